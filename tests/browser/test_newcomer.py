"""Somebody who has read nothing: from `trunkline up --demo` to a command that was approved, watched and read about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import WAIT_MS
from tests.running import Running, wait_until

pytestmark = pytest.mark.timeout(150)
expect.set_options(timeout=WAIT_MS)


def test_a_newcomer_approves_a_paused_command_watches_it_run_and_reads_its_story(
    browser: Browser, short_path: Path
) -> None:
    exchange = Running(short_path / "home")
    exchange.flags = ("--demo",)
    profile = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        exchange.start()
        printed = wait_until(lambda: re.search(r"console (http://\S+\?code=\S+)", exchange.said()), "an address")
        page = profile.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(printed[1])
        # Nothing but what the page itself offers is used from here on.
        page.get_by_role("link", name="Run a command in a space").click()
        page.get_by_role("button", name="Make a space").click()
        expect(page.get_by_role("heading", name="demo")).to_be_visible()
        if not exchange.request("GET", "/v1/spaces")[1]["spaces"][0]["shell"]:
            pytest.skip("no sandbox holds here: install bubblewrap")
        page.get_by_role("button", name="Such as this one").click()
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.get_by_text("It has not begun: a person has to approve it first.")).to_be_visible()
        page.get_by_role("link", name="Answer its question").click()
        question = page.get_by_role("article").filter(has_text="space.demo/shell")
        expect(question.locator("mark")).to_contain_text("rm -rf old")
        question.get_by_role("button", name="Approve").click()
        page.get_by_role("link", name="Watch it run").click()
        expect(page.get_by_label("Output so far")).to_contain_text("step 1 of 5")
        expect(page.locator(".timeline li").last).to_contain_text("Succeeded")
        story = page.locator(".timeline")
        expect(story).to_contain_text("asks; a person has to decide")
        expect(story).to_contain_text("was approved by operator")
        expect(page.get_by_label("Output")).to_contain_text("step 5 of 5")
        # A second space, from the page that lists the first.
        page.get_by_role("link", name="Spaces", exact=True).click()
        expect(page.get_by_role("link", name="demo", exact=True)).to_be_visible()
        page.get_by_label("Name of the space").fill("second")
        page.get_by_role("button", name="Make a space").click()
        expect(page.get_by_role("heading", name="second")).to_be_visible()
        # What was denied is on record, and so on the page of its run.
        denied = {"type": "createFile", "path": ".git/hooks/post-commit", "content": "x"}
        message = {"protocolVersion": "1.0", "operations": [denied]}
        run = exchange.request("POST", "/v1/spaces/second/runs?wait=20", message)[1]
        page.evaluate("where => { location.hash = where; }", f"#/spaces/second/runs/{run['runId']}")
        operation = page.get_by_role("article").filter(has_text="create file")
        expect(operation).to_contain_text("refused")
        expect(operation).to_contain_text("policy.denied")
    finally:
        profile.close()
        exchange.stop()

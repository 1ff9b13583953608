"""A mounted server that wants OAuth, signed in at from the console."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.conftest import signed_in
from tests.running import running
from tests.unit.edges.mounts.oauth_kit import sites


def test_a_person_is_led_to_the_address_and_the_question_goes_when_he_is_done(
    browser: Browser, short_path: Path
) -> None:
    with sites() as server, running(short_path / "home", f'[[mcp]]\nid = "issues"\nurl = "{server.url}"\n') as exchange:
        profile = browser.new_context()
        page = signed_in(profile, exchange)
        page.goto(f"{exchange.ready['http']}/#/approvals")
        expect(page.get_by_role("heading", name="mcp.issues wants you to sign in")).to_be_visible()
        page.get_by_role("button", name="Sign in…").click()
        link = page.get_by_role("link", name=f"Sign in at {server.signs_in.origin}")
        with profile.expect_page() as opened:
            link.click()
        expect(opened.value.get_by_role("heading", name="Signed in")).to_be_visible()
        expect(page.get_by_role("heading", name="mcp.issues wants you to sign in")).to_have_count(0)
        exchange.wait_tool("mcp.issues/echo")
        assert server.refusals == server.signs_in.refusals == []
        profile.close()

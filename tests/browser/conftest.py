"""A browser at the console of a real exchange: one of each for a module, a signed-in page for each test.

Debian's chromium is driven by Playwright. Without one the tests are skipped, and say so.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.running import Running, running

WAIT_MS = 15_000
# Nothing but what a page asks for leaves the browser: the tests look at each request.
QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-dev-shm-usage")
# The pages of a profile share a process as long as one of them is open, and none is started to have one in reserve: to
# start it was half of what a page takes.
ONE_PROCESS = ("--process-per-site", "--disable-features=SpareRendererForSitePerProcess")
POLICY = """
[[policy.rule]]
caller = "http:buyer"
tool = "*"
decision = "ask"
reason = "a buyer is asked about"
"""


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on this machine (apt-get install chromium): the console's page is not tried")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=[*QUIET, *ONE_PROCESS, *sandbox])
        yield started
        started.close()


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("console") / "home", POLICY) as found:
        yield found


def new_address(exchange: Running) -> str:
    """An address that signs a browser in, as `trunkline console` gets one."""
    status, answer = exchange.request("POST", "/console/code", {})
    assert status == 201, answer
    return f"{exchange.ready['http']}{answer['path']}"


def signed_in(context: BrowserContext, exchange: Running) -> Page:
    """A page that is signed in and has its live line."""
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(new_address(exchange))
    page.get_by_role("status").get_by_text("live").wait_for()
    return page


@pytest.fixture(scope="module")
def context(browser: Browser, exchange: Running) -> Iterator[BrowserContext]:
    """A profile of the browser, signed in once."""
    profile = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    # Stays, for the process, with a picture that asks for nothing.
    signed_in(profile, exchange).goto(f"{exchange.ready['http']}/console/page/icon.svg")
    yield profile
    profile.close()


@pytest.fixture
def page(context: BrowserContext, exchange: Running) -> Iterator[Page]:
    """A page of that profile. A script that fails, or that the policy for content stops, fails the test."""
    opened = context.new_page()
    opened.set_default_timeout(WAIT_MS)
    troubles: list[str] = []
    opened.on("pageerror", lambda error: troubles.append(str(error)))

    def hear(message: ConsoleMessage) -> None:
        if _is_trouble(message):
            troubles.append(message.text)

    opened.on("console", hear)
    opened.goto(exchange.ready["http"])
    opened.get_by_role("status").get_by_text("live").wait_for()
    yield opened
    opened.close()
    assert troubles == []


def _is_trouble(message: ConsoleMessage) -> bool:
    # A refusal is part of some tests; that it is logged is the browser's habit.
    return message.type in ("error", "warning") and "Failed to load resource" not in message.text


@pytest.fixture(scope="module")
def buyer(exchange: Running) -> str:
    """The token of somebody about whose calls a person is asked."""
    return exchange.new_token("buyer", edge="http")


def visit(page: Page, exchange: Running, view: str) -> None:
    """Open one of the page's addresses."""
    page.goto(f"{exchange.ready['http']}/#/{view}")


PAGE_FOLDER = Path(__file__).parents[2] / "src" / "trunkline" / "edges" / "console" / "page"
# The views of the page, by the part of the address that leads to each, with their names: what ``main.js`` has.
VIEWS = dict(re.findall(r'^  \["(\w+)", "([^"]+)", \w+\],$', (PAGE_FOLDER / "main.js").read_text(), re.MULTILINE))

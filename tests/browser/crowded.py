"""A page with much to show: a real exchange with many agents and a long record, looked at on a telephone's screen.

``tests/browser`` runs it with small figures, ``tools/soak.py`` with 500 agents and 100,000 calls. What is judged is
that lists come in pages, that searching and filtering find what is there and nothing else, and that no view is wider
than the screen; how long each step took is told and not judged.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.browser.conftest import QUIET, new_address, visit
from tests.running import RawAgent, Running, running, wait_until
from tests.unit.ledger.made import accepted, in_process, settled
from trunkline.model import Fault, Status

NARROW, HIGH = 390, 844
WAIT_MS = 60_000
READY_S = 120.0
# Commits of so many calls: as large as the exchange makes them under load.
GROUP = 500
# Each call whose number this divides has the word that is searched for; each whose number the other divides failed.
RARE_EVERY, FAILED_EVERY = 1000, 97
RARE = "heliotrope"
AGENTS_PAGE, CALLS_PAGE = 100, 50


class Looked(NamedTuple):
    """How long each step took, in milliseconds, by its name."""

    steps: dict[str, float]

    def __str__(self) -> str:
        return ", ".join(f"{name} {ms:.0f} ms" for name, ms in self.steps.items())


def fill_record(home: Path, calls: int) -> None:
    """Write so many calls into the record of a home that has none, as an exchange would have."""
    home.mkdir(mode=0o700, exist_ok=True)
    with in_process(home) as made:
        for first in range(0, calls, GROUP):
            entries = []
            for number in range(first, min(first + GROUP, calls)):
                at = made.ledger.last + 1 + 2 * (number - first)
                word = RARE if number % RARE_EVERY == 0 else "lobelia"
                body = Raw(b'{"text":"%b number %d","for":"somebody"}' % (word.encode(), number))
                is_failed = number % FAILED_EVERY == 0
                ended = {"status": Status.FAILED, "output": None, "fault": Fault("tool.failed", "it did not work")}
                caller = f"http:caller-{number % 7}"
                entries += [
                    accepted(at, body, caller=caller, tool_id=f"com.example.a{number % 500:03}/work"),
                    settled(at + 1, at, body, **(ended if is_failed else {})),
                ]
            made.add(*entries)


@contextmanager
def attached_agents(exchange: Running, agents: int) -> Iterator[None]:
    """So many agents with a tool each."""
    with ExitStack() as connections:
        for number in range(agents):
            agent = RawAgent(exchange, f"com.example.a{number:03}")
            connections.callback(agent.close)
            agent.hello("tools")
            agent.register({"name": "work", "side_effects": False, "description": f"Works for whoever asks {number}."})
        yield


@contextmanager
def own_browser() -> Iterator[Browser]:
    """A browser for who has none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium is not None, "no chromium on this machine (apt-get install chromium)"
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=[*QUIET, *sandbox])
        yield started
        started.close()


@contextmanager
def telephone(exchange: Running, browser: Browser) -> Iterator[Page]:
    """A signed-in page on a small screen."""
    profile = browser.new_context(viewport={"width": NARROW, "height": HIGH})
    try:
        page = profile.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(new_address(exchange))
        page.get_by_role("status").get_by_text("live").wait_for()
        yield page
    finally:
        profile.close()


def look(home: Path, browser: Browser, *, agents: int, calls: int) -> Looked:
    """Fill, attach, and go through the views."""
    fill_record(home, calls)
    with running(home) as exchange, attached_agents(exchange, agents):
        # The first search has the record indexed, which the page is not made to wait for here.
        rare = -(-calls // RARE_EVERY)
        wait_until(lambda: _found(exchange, RARE) == rare, "the index of calls", READY_S)
        with telephone(exchange, browser) as page:
            return _go_through(page, exchange, agents, calls)


def _found(exchange: Running, word: str) -> int:
    status, answer = exchange.request("GET", f"/v1/calls?search={word}&limit=500")
    return len(answer["calls"]) if status == 200 else -1


def _go_through(page: Page, exchange: Running, agents: int, calls: int) -> Looked:
    steps: dict[str, float] = {}
    rows = page.locator("tbody tr")

    @contextmanager
    def step(name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        steps[name] = (time.monotonic() - begun) * 1000
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, name

    with step("now"):
        visit(page, exchange, "now")
        expect(page.get_by_role("link", name=re.compile(r"^All \d+ agents$"))).to_be_visible(timeout=WAIT_MS)

    def has(count: int, found: Locator = rows) -> None:
        expect(found).to_have_count(count, timeout=WAIT_MS)

    with step("agents"):
        visit(page, exchange, "agents")
        has(AGENTS_PAGE)
    with step("more agents"):
        page.get_by_role("button", name="more").click()
        has(min(2 * AGENTS_PAGE, agents + len(exchange_agents(exchange, own=True))))
    with step("search in agents"):
        page.get_by_label("Search").fill("example.a04")
        has(10)
    with step("calls"):
        visit(page, exchange, "calls")
        has(CALLS_PAGE)
    for number in (2, 3):
        with step(f"page {number} of calls"):
            page.get_by_role("button", name="Older calls").click()
            has(number * CALLS_PAGE)
            shown = page.evaluate("[...document.querySelectorAll('tbody a')].map((link) => link.hash)")
            assert len(set(shown)) == number * CALLS_PAGE, "a call is there twice"
    with step("search in calls"):
        page.get_by_label("Search").fill(RARE)
        has(min(CALLS_PAGE, -(-calls // RARE_EVERY)))
    with step("failed calls"):
        visit(page, exchange, "calls?status=failed")
        has(min(CALLS_PAGE, -(-calls // FAILED_EVERY)))
        has(0, page.locator("tbody tr .state.good"))
    with step("one call"):
        rows.first.get_by_role("link").click()
        expect(page.locator(".timeline li").last).to_contain_text("Failed", timeout=WAIT_MS)
    with step("tools"):
        visit(page, exchange, "tools")
        has(AGENTS_PAGE)
    with step("search in tools"):
        page.get_by_label("Search").fill("example.a04")
        has(10)
    with step("ledger"):
        visit(page, exchange, "ledger")
        expect(rows).not_to_have_count(0, timeout=WAIT_MS)
    return Looked(steps)


def exchange_agents(exchange: Running, *, own: bool) -> list[str]:
    """Agents that are here; ``own``: those of the exchange itself."""
    found = [agent["agent_id"] for agent in exchange.request("GET", "/v1/agents")[1]["agents"]]
    return [name for name in found if name.startswith("com.example.a") is not own]

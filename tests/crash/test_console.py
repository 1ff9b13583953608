"""``kill -9`` of the exchange while a page of the console follows the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.console import FEED, Browser
from tests.pylon import Pusher
from tests.running import EXAMPLES, Running, running

pytestmark = pytest.mark.timeout(120)
CONFIG = f"""
[[agent]]
id = "com.example.echo"
command = ["python", "{EXAMPLES}/echo.py"]
"""
ROUNDS = 3


async def told(line: Pusher, after: int | None, upto: int) -> list[dict[str, Any]]:
    """All entries up to one; each batch begins where the one before ended."""
    found: list[dict[str, Any]] = []
    while after is None or after < upto:
        batch = await line.next("feed.batch")
        assert after is None or batch["after"] == after
        after = batch["upto"]
        found += batch["entries"]
    return found


def on_record(exchange: Running) -> dict[int, str]:
    return {entry["n"]: entry["kind"] for entry in exchange.entries()}


async def test_a_page_that_comes_back_after_kill9_has_every_entry_once_and_none_that_was_lost(short_path: Path) -> None:
    seen: dict[int, str] = {}
    with running(short_path / "home", CONFIG) as exchange:
        browser = await Browser(exchange.ready["http"], exchange.token).sign_in()
        secret, key = browser.cookie.partition("=")[2], browser.key
        for number in range(ROUNDS):
            exchange.wait_tool("com.example.echo/echo")
            here = Browser(exchange.ready["http"], exchange.token)
            here.key = key
            # The sign-in has survived; the port, and with it the cookie's name, is another one.
            here.http.cookies.set(f"trunkline_{here.url.rpartition(':')[2]}", secret)
            async with here.line(FEED) as line:
                last = max(seen, default=0)
                await line.send("client-feed.follow", {"after": last}, FEED)
                for n in range(5):
                    exchange.call("com.example.echo/echo", {"text": f"{number} {n}"})
                upto = (await here.ask("GET", "/console/session")).json()["last"]
                for entry in await told(line, last, upto):
                    assert entry["n"] not in seen
                    seen[entry["n"]] = entry["kind"]
                exchange.kill()
            await here.http.aclose()
            exchange.start()
        await browser.http.aclose()
        exchange.stop()
        recorded = on_record(exchange)
    assert sorted(seen) == list(range(1, max(seen) + 1))
    assert {n: recorded.get(n) for n in seen} == seen

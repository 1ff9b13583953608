"""The console's live line against pages that say anything: nothing raises, and nothing is kept of one that left."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any, Final

import msgspec
from hypothesis import given

from tests.fuzz.console import FOLLOWS, SAID
from trunkline.edges.console import messages
from trunkline.edges.console.edge import CONSOLE, ConsoleEdge
from trunkline.edges.console.live import BATCH_S, FIGURES_S, MAX_WAITING_BYTES, Page
from trunkline.edges.console.routes import APP_KEY
from trunkline.edges.console.signing_in import SignIn
from trunkline.edges.http.edge import HTTP
from trunkline.edges.pusher.session import PusherSession
from trunkline.testing.memory import NOWHERE, MemoryExchange

SECRET: Final = b"of the test"
SIGNED_IN: Final = SignIn("0" * 64, 0, 2**40)


class Line:
    """The live line of an exchange in memory, and one page on it without a socket."""

    def __init__(self) -> None:
        self.exchange = MemoryExchange(edges=(CONSOLE, HTTP), home=NOWHERE)
        edge = self.exchange.edges._running["console"]
        assert isinstance(edge, ConsoleEdge)
        self.live = edge.live
        self.exchange.attach("com.example.echo", "echo", deliver=lambda agent, effect: agent.finish(effect.input))

    def page(self, name: str, *channels: str) -> Page:
        now = self.exchange.feed.now()
        session = PusherSession(messages.CHANNELS, name, APP_KEY, SECRET, now, MAX_WAITING_BYTES)
        page = Page(self.live, self.exchange.feed, session, SIGNED_IN, lambda: None)
        self.live.pages[name] = page
        for channel in channels:
            made = hmac.new(SECRET, f"{name}:{channel}".encode(), hashlib.sha256).hexdigest()
            self.say(page, "pusher:subscribe", {"channel": channel, "auth": f"{APP_KEY}:{made}"})
        return page

    def say(self, page: Page, event: str, data: object, channel: str = "") -> None:
        page.receive(json.dumps({"event": event, "data": data, "channel": channel}).encode())

    def leave(self, page: Page) -> None:
        del self.live.pages[page.session.socket_id]
        self.exchange.feed.close_session(page.number)


def heard(page: Page) -> list[dict[str, Any]]:
    found = []
    while (data := page.session.take_output()) is not None:
        found.append(msgspec.json.decode(data))
    return found


@given(SAID)
def test_whatever_a_page_says_is_answered_or_refused_and_nothing_is_kept_of_it(said: list[bytes]) -> None:
    line = Line()
    page = line.page("1.2", "private-feed", "private-registry", "private-figures")
    for data in said:
        page.receive(data)
        line.exchange.call("com.example.echo/echo", {"n": 1})
        line.exchange.advance(BATCH_S)
    heard(page)
    line.leave(page)
    line.exchange.advance(2 * FIGURES_S)
    live = line.live
    assert (live.pages, live._batch, live._look, live._figures, live._is_watching) == ({}, None, None, None, False)
    assert not line.exchange.feed._watchers
    assert line.exchange.feed.figures()["defects"] == 0
    assert line.exchange.died is None


@given(FOLLOWS)
def test_whatever_is_followed_batches_join_each_other(wanted: dict[str, Any]) -> None:
    line = Line()
    for n in range(6):
        line.exchange.call("com.example.echo/echo", {"n": n})
    page = line.page("1.2", "private-feed")
    line.say(page, messages.FOLLOW, wanted, "private-feed")
    at: int | None = None
    for _ in range(4):
        line.exchange.call("com.example.echo/echo", {})
        line.exchange.advance(2 * BATCH_S)
        for frame in heard(page):
            if frame["event"] == messages.BATCH:
                batch = msgspec.json.decode(frame["data"])
                assert at is None or batch["after"] == at
                assert all(batch["after"] < entry["n"] <= batch["upto"] for entry in batch["entries"])
                at = batch["upto"]
    if at is not None:
        assert at == line.exchange.views.last_entry()
    assert line.exchange.feed.figures()["defects"] == 0

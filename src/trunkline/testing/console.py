"""People at the console in a simulation: pages that follow the record, go away and come back, and what they were told.

Everything behind the live line is the real one (``edges.console.live``). Signing in and the page's files are left out:
whoever connects is signed in. ``breaches`` holds the record against what pages were told.

Owns when pages come and go, and what must hold of them: each has every entry once, in order, as it is on record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from msgspec.structs import replace
from starlette.types import Scope

from trunkline.edges.background import Background
from trunkline.edges.console.live import PATH, LiveLine
from trunkline.edges.console.messages import BATCH, BEHIND, FEED_CHANNEL, FOLLOW
from trunkline.edges.console.routes import APP_KEY
from trunkline.edges.console.signing_in import SignIn
from trunkline.edges.edge import RunningEdge, Surroundings
from trunkline.edges.pusher import frames
from trunkline.edges.pusher.frames import Frame
from trunkline.edges.pusher.session import signature
from trunkline.ledger.reader import Reader
from trunkline.testing.clock import ManualLoop
from trunkline.testing.promises import Breach
from trunkline.testing.pusher import PusherPage
from trunkline.testing.witness import Witness

PAGES: Final = 2
# A page that follows is told forty times a second: it stays for as long as a person looks.
VISIT_S: Final = (0.1, 2.0)
PERSON: Final = SignIn("", 0, 2**53)
SECRET: Final = b"what pages of the simulation sign with"


class ConsolePage(PusherPage):
    """One page. ``at``: it was told everything up to this entry."""

    def __init__(self, name: str, witness: Witness, left_exchange: Callable[[], None]) -> None:
        super().__init__(left_exchange)
        self.name = name
        self._witness = witness
        self.at = 0
        self.entries: dict[int, Any] = {}

    def connected(self, socket_id: str) -> None:
        """Listen to the record."""
        auth = signature(SECRET, APP_KEY, socket_id, FEED_CHANNEL)
        self.say(frames.SUBSCRIBE, {"channel": FEED_CHANNEL, "auth": auth})

    def told(self, frame: Frame) -> None:
        """Follow from where it was, and take what comes."""
        if frame.event in {frames.SUBSCRIBED, BEHIND}:
            if frame.data["last"] < self.at:
                self._witness.defect(f"{self.name} was told up to entry {self.at}; the last is {frame.data['last']}")
            self.say(FOLLOW, {"after": self.at}, FEED_CHANNEL)
        elif frame.event == BATCH:
            after, upto = frame.data["after"], frame.data["upto"]
            numbers = [entry["n"] for entry in frame.data["entries"]]
            if after != self.at or numbers != list(range(after + 1, upto + 1)):
                self._witness.defect(f"{self.name} is at {self.at}, and was told {len(numbers)} of {after} to {upto}")
            self.at = upto
            self.entries.update(zip(numbers, frame.data["entries"], strict=True))


class ConsolePages:
    """All of them. In the end each has come and read everything (``fall_silent``)."""

    def __init__(self, loop: ManualLoop, rng: Random, witness: Witness, left_exchange: Callable[[], None]) -> None:
        self._loop = loop
        self.rng = rng
        self._witness = witness
        self.pages = [ConsolePage(f"page {number}", witness, left_exchange) for number in range(1, PAGES + 1)]
        self._live: LiveLine | None = None
        self._server: asyncio.AbstractEventLoop | None = None
        # What each has to have read in the end.
        self.last = 0

    def open(self, live: LiveLine, server: asyncio.AbstractEventLoop) -> None:
        """An exchange serves."""
        self._live, self._server = live, server

    def close(self) -> None:
        """It does not any more."""
        self._live = self._server = None
        for page in self.pages:
            page.lose()

    def visit(self) -> None:
        """Somebody opens the page, or closes it."""
        page = self.rng.choice(self.pages)
        if page.socket is not None:
            self._witness.note(page.name, f"leaves, at entry {page.at}")
            page.leave()
        else:
            self._arrive(page)
            self._loop.call_later(self.rng.uniform(*VISIT_S), self._leave, page, page.socket)

    def _arrive(self, page: ConsolePage) -> None:
        if self._live is not None and self._server is not None:
            self._witness.note(page.name, f"comes, at entry {page.at}")
            page.open(self._live, PATH, self._server)

    def _leave(self, page: ConsolePage, socket: object) -> None:
        if page.socket is socket:
            page.leave()

    def fall_silent(self, last: int) -> None:
        """Everybody comes, and stays until he has read this entry."""
        self.last = last
        for page in self.pages:
            page.leave()
            self._arrive(page)


class ConsoleOnWires(RunningEdge):
    """The console, whose pages are those of the simulation: ``live.Doorkeeper``."""

    def __init__(self, given: Surroundings, pages: ConsolePages) -> None:
        self._pages = pages
        self._background = Background(given.feed)
        self._live = LiveLine(replace(given, entropy=pages.rng.randbytes), self, self._background)

    async def start(self) -> None:
        """Let them in."""
        self._pages.open(self._live, asyncio.get_running_loop())

    async def stop(self) -> None:
        """Say goodbye to all pages."""
        await self._live.stop()
        self._pages.close()
        await self._background.stop()

    def cookie_of(self, scope: Scope) -> SignIn | None:
        """Whoever connects is signed in."""
        del scope
        return PERSON

    def channel_secret(self, sign_in: SignIn) -> bytes:
        """What subscriptions are signed with."""
        del sign_in
        return SECRET

    def is_open(self, sign_in: SignIn) -> bool:
        """Nobody is signed out."""
        return sign_in is PERSON


def breaches(pages: ConsolePages, reader: Reader) -> Iterator[Breach]:
    """P-E12: what a page was told is on record as it was told, and in the end it was told everything."""
    for page in pages.pages:
        if page.at < pages.last:
            yield Breach(f"{page.name} has read up to entry {page.at} of {pages.last}")
        for number, entry in page.entries.items():
            line = reader.line(number)
            kept = {} if line is None else json.loads(line)
            told = {name: value for name, value in entry.items() if not _is_cut(value)}
            if told != {name: value for name, value in kept.items() if name in told}:
                yield Breach(f"{page.name} was told of entry {number} what is not on record: {told}")


def _is_cut(value: Any) -> bool:
    return isinstance(value, dict) and "$cut" in value

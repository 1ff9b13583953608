"""A request that waits for the exchange: ``await call(…)``, ``await ask(…)``, and the conversation behind both.

Each request is a conversation of its own, so that one that fails takes nobody else with it. Owns what a request was
told so far and how much of it may wait for a slow reader. Does not own what is made of it on a wire.

Invariant: what is buffered for one reader is bounded; the outcome of a call is never dropped, pieces of its stream may
be, and then their number is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from trunkline.edges.exchange import BaseSink, Feed
from trunkline.effects import Answer, Notify, Progress, Reply, ToSession
from trunkline.events import CallerLeft, CallRequested, Event
from trunkline.model import Now, Status, fault

# What may wait for a reader who does not read: twice the largest frame of an agent. Above it pieces of a stream are
# dropped.
MAX_WAITING_BYTES: Final = 8_388_608
# Everything but a call is answered as soon as it is on disk; a disk that takes longer than this is broken.
REPLY_S: Final = 30.0
# A conversation of one request needs no more names than one.
REF: Final = "r"


class Dropped:
    """So many pieces were dropped here because the reader was too slow."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Left:
    """The reader is gone."""


class Closing:
    """The edge is being closed; nothing more will come."""


class Quiet:
    """Nothing was to be told for a while."""


class Failed:
    """A defect of ours ended this conversation; nothing more will come."""


LEFT: Final = Left()
CLOSING: Final = Closing()
QUIET: Final = Quiet()
FAILED: Final = Failed()
Item = ToSession | bytes | Dropped | Left | Closing | Quiet | Failed


class Waiting(BaseSink):
    """One request that waits, and what it is still to be told, in order. Use it in a ``with``; one reader only."""

    __slots__ = ("_bytes", "_feed", "_items", "_requests", "_waiter", "number", "wants_large", "wants_progress")

    def __init__(
        self, feed: Feed, requests: Requests | None = None, *, wants_progress: bool = False, wants_large: bool = True
    ) -> None:
        self._feed = feed
        self._requests = requests
        self.wants_progress = wants_progress
        # Without it a large output is dropped as soon as it comes, and only ``Answer.large`` is kept: whoever shows
        # a reference would otherwise hold 64 MiB for as long as its reader takes to read.
        self.wants_large = wants_large
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self.number = 0

    def __enter__(self) -> Self:
        self.number = self._feed.open_session(self)
        if self._requests is not None:
            self._requests.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._feed.close_session(self.number)
        if self._requests is not None:
            self._requests.discard(self)

    # -- what it is told -----------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:  # noqa: ARG002  a Sink is told the time; this one needs none
        """The exchange says something."""
        if type(effect) is Progress:
            if self.wants_progress:
                self.put(effect, size_of(effect))
        elif type(effect) is Answer and effect.large is not None and not self.wants_large:
            self.put(replace(effect, output=None))
        else:
            self.put(effect)

    def put(self, item: Item, size: int = 0) -> None:
        """One more. An item with a ``size`` may be dropped; a run of dropped ones leaves one ``Dropped``."""
        if size and self._bytes + size > MAX_WAITING_BYTES:
            last = self._items[-1] if self._items else None
            if not isinstance(last, Dropped):
                last = Dropped()
                self._items.append(last)
            last.count += 1
        else:
            self._bytes += size
            self._items.append(item)
        self._wake()

    def leave(self) -> None:
        """The reader is gone: this comes before all that is still waiting."""
        self._items.appendleft(LEFT)
        self._wake()

    def abort(self) -> None:
        """A defect ended this conversation: whoever waits is told."""
        self.put(FAILED)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- who reads it --------------------------------------------------------------------------------------------------

    async def next(self, timeout_s: float | None = None) -> Item | None:
        """The next item; None if there was none in time."""
        if not self._items:
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            if timeout_s is None:
                await waiter
            else:
                await asyncio.wait((waiter,), timeout=timeout_s)
                if not self._items:
                    return None
        item = self._items.popleft()
        if isinstance(item, Progress | Notify):
            self._bytes -= size_of(item)
        elif isinstance(item, bytes):
            self._bytes -= len(item)
        return item

    def tell_left(self) -> None:
        """Say to the exchange that nobody waits for this any more."""
        self._feed.feed([CallerLeft(self.number, REF)])


class Requests:
    """All requests of one edge that wait, so that they can be told when it closes."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._open: set[Waiting] = set()
        self._gathered: list[Event] = []
        self._is_closing = False

    def waiting(self, *, wants_progress: bool = False, wants_large: bool = True) -> Waiting:
        """For one more request."""
        return Waiting(self._feed, self, wants_progress=wants_progress, wants_large=wants_large)

    def add(self, waiting: Waiting) -> None:
        """One more waits."""
        self._open.add(waiting)
        if self._is_closing:
            waiting.put(CLOSING)

    def discard(self, waiting: Waiting) -> None:
        """One was answered, or left."""
        self._open.discard(waiting)

    def feed_soon(self, event: Event) -> None:
        """Say to the exchange that this happened, together with what else happens in this turn of the loop.

        Requests of many connections then reach an agent in one write instead of one for each. One that is alone has
        nobody to wait for: another turn of the loop takes 10 µs of it.
        """
        self._gathered.append(event)
        if len(self._open) <= 1 or self._is_closing:
            # While it closes at once: who is told so learns whether his call is on record.
            self._feed_gathered()
        elif len(self._gathered) == 1:
            asyncio.get_running_loop().call_soon(self._feed_gathered)

    def _feed_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered:
            self._feed.feed(gathered)

    def close(self) -> None:
        """Tell everybody who waits that the edge closes."""
        self._is_closing = True
        self._feed_gathered()
        for waiting in tuple(self._open):
            waiting.put(CLOSING)


def size_of(effect: Progress | Notify) -> int:
    """What a piece of a stream counts, its envelope included."""
    return len(effect.data if isinstance(effect, Progress) else effect.body) + 128


async def call(feed: Feed, request: Callable[[int, str], CallRequested]) -> Answer:
    """Make a call and wait for its outcome, however long that takes, questions included.

    Canceled while it waits, it has told the exchange that its caller is gone.
    """
    with Waiting(feed) as waiting:
        feed.feed([request(waiting.number, REF)])
        while True:
            try:
                item = await waiting.next()
            except asyncio.CancelledError:
                waiting.tell_left()
                raise
            if isinstance(item, Answer):
                return item
            if isinstance(item, Failed):
                return Answer(waiting.number, 0, REF, "", Status.FAILED, fault=fault("hub.unavailable"), refused=True)


async def ask(feed: Feed, event: Callable[[int, str], Event], timeout_s: float = REPLY_S) -> Reply:
    """Tell the exchange something that is not a call, and wait for its reply."""
    with Waiting(feed) as waiting:
        feed.feed([event(waiting.number, REF)])
        item = await waiting.next(timeout_s)
    return item if isinstance(item, Reply) else Reply(0, 0, REF, fault=fault("hub.unavailable"))


async def stored(feed: Feed) -> None:
    """Wait until everything that was fed up to now is on disk."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    feed.when_stored(lambda: None if told.done() else told.set_result(None))
    await told

"""Who waits for what: the HTTP edge's one conversation with the exchange.

Owns the way from an effect back to the request it answers. Each request that waits opens a ``Line`` under a ``ref``
of its own; an effect for a ref whose line is closed (the caller left, or was content with a 202) goes nowhere. Does
not own bytes on a socket (``routes``, ``serve``).

Invariant: what is buffered for one reader is bounded; the outcome of a call is never dropped, pieces of its stream
may be, and then their number is told.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trunkline.edges.exchange import BaseSink, Exchange
from trunkline.effects import Progress, ToSession
from trunkline.events import CallerLeft
from trunkline.model import Now

# What may wait for a reader who does not read: twice the largest frame of an agent. Above it pieces of a stream are
# dropped.
MAX_LINE_BYTES: Final = 8_388_608


class Dropped:
    """So many pieces were dropped here because the reader was too slow."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Left:
    """The reader is gone."""


class Closing:
    """The edge is being closed; nothing more will come."""


LEFT: Final = Left()
CLOSING: Final = Closing()
Item = ToSession | bytes | Dropped | Left | Closing


class Line:
    """What one reader still has to be told, in order. One reader only."""

    def __init__(self, ref: str, *, progress: bool) -> None:
        self.ref = ref
        self.progress = progress
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._ready = asyncio.Event()

    def put(self, item: Item, size: int = 0) -> None:
        """One more. An item with a ``size`` may be dropped; a run of dropped ones leaves one ``Dropped``."""
        if size and self._bytes + size > MAX_LINE_BYTES:
            last = self._items[-1] if self._items else None
            if not isinstance(last, Dropped):
                last = Dropped()
                self._items.append(last)
            last.count += 1
        else:
            self._bytes += size
            self._items.append(item)
        self._ready.set()

    def leave(self) -> None:
        """The reader is gone: this comes before all that is still waiting."""
        self._items.appendleft(LEFT)
        self._ready.set()

    async def next(self, timeout_s: float | None = None) -> Item | None:
        """The next item; None if there was none in time."""
        if not self._items:
            self._ready.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ready.wait()
            except TimeoutError:
                return None
        item = self._items.popleft()
        if isinstance(item, Progress):
            self._bytes -= size_of(item)
        elif isinstance(item, bytes):
            self._bytes -= len(item)
        return item


def size_of(effect: Progress) -> int:
    """What a piece of a stream counts, its envelope included."""
    return len(memoryview(effect.data)) + 128


class HttpSession(BaseSink):
    """The sink of all effects for HTTP callers."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._lines: dict[str, Line] = {}
        self._refs = itertools.count(1)
        self._closing = False
        self.number = exchange.open_session(self)

    def send(self, effect: ToSession, now: Now) -> None:  # noqa: ARG002  a Sink is told the time; this one needs none
        """Hand an effect to whoever waits for it."""
        ref: str | None = getattr(effect, "ref", None)
        line = None if ref is None else self._lines.get(ref)
        if line is None:
            return
        if isinstance(effect, Progress):
            if line.progress:
                line.put(effect, size_of(effect))
        else:
            line.put(effect)

    @contextmanager
    def line(self, *, progress: bool = False) -> Iterator[Line]:
        """A line for one request, for as long as it is being answered."""
        line = Line(f"h{next(self._refs)}", progress=progress)
        self._lines[line.ref] = line
        if self._closing:
            line.put(CLOSING)
        try:
            yield line
        finally:
            del self._lines[line.ref]

    def caller_left(self, line: Line) -> None:
        """Tell the exchange that nobody waits for this any more."""
        self._exchange.feed([CallerLeft(self.number, line.ref)])

    def close(self) -> None:
        """End every line; those who wait are told that the edge closes."""
        self._closing = True
        for line in self._lines.values():
            line.put(CLOSING)

    def forget(self) -> None:
        """The conversation is over."""
        self._exchange.close_session(self.number)

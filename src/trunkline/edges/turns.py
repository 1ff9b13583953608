"""Long work on the loop, in slices: who has it done waits for himself, and others have as much time as it took.

Owns the order of one identity's slices and the pause after each. Does not own what is done, nor how large a slice is.

Invariant: of one identity at most one slice is being worked off, and it is followed by a pause as long as itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

# What is shorter is no reason to pause longer than for one turn of the loop.
SHORT_S: Final = 0.002


class Slices:
    """The slices of one piece of work; ``pause`` follows each."""

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        # How long the last one took.
        self.took_s = 0.0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Do a slice inside."""
        began = self._stopwatch()
        try:
            yield
        finally:
            self.took_s = self._stopwatch() - began

    async def pause(self) -> None:
        """Let others have as long as the last slice took."""
        await asyncio.sleep(self.took_s if self.took_s > SHORT_S else 0)


class Turns:
    """Whose turn it is, for each identity by itself; ``stopwatch`` goes on also within a turn of the loop."""

    def __init__(self, stopwatch: Callable[[], float] = time.perf_counter) -> None:
        self._stopwatch = stopwatch
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def of(self, who: str) -> AsyncIterator[Slices]:
        """Work inside, when all that this identity asked for before is done."""
        lock = self._locks.setdefault(who, asyncio.Lock())
        self._waiting[who] = self._waiting.get(who, 0) + 1
        try:
            async with lock:
                yield Slices(self._stopwatch)
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who], self._locks[who]

"""Time that passes only when a test says so.

``ManualClock`` is both clocks: ``mono`` only moves forward, ``wall`` can jump. ``ManualLoop`` is the part of an event
loop that the exchange uses (``time``, ``call_soon``, ``call_later``), run by hand on such a clock, in one thread.
``ProcessLoop`` is one process's share of it, and ends with the process.

Invariant: what is due first is done first, and of two things due at the same moment the one that was asked for first;
so a run depends on nothing but what was asked for.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any, Final, cast

from trunkline.model import Now

# Some day in 2027. A fixed one: what is recorded must not depend on the day a test is run.
SOME_DAY: Final = 1_800_000_000.0
TICK_S: Final = 1e-6


class ManualClock:
    """A monotonic and a wall clock, in seconds, moved by a test."""

    def __init__(self, mono: float = 1000.0, wall: float = SOME_DAY) -> None:
        self.mono = mono
        self.wall = wall

    def now(self) -> Now:
        """One reading of both clocks."""
        return Now(self.mono, self.wall)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("the monotonic clock does not go back; `jump` moves the wall clock")
        self.mono += seconds
        self.wall += seconds

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.wall += seconds


class Timer:
    """A callback that will be called at a moment; what asyncio calls a handle."""

    __slots__ = ("_args", "_callback", "at")

    def __init__(self, at: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.at = at
        self._callback: Callable[..., object] | None = callback
        self._args = args

    def cancel(self) -> None:
        """Call it off."""
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        """Whether it was called off, or is done."""
        return self._callback is None

    def run(self) -> bool:
        """Call back, if it was not called off; whether it was not."""
        callback, args = self._callback, self._args
        if callback is None:
            return False
        self.cancel()
        callback(*args)
        return True


class ManualLoop:
    """An event loop without events: callbacks on a clock that stands still in between."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self._due: list[tuple[float, int, Timer]] = []
        self._count = 0

    def time(self) -> float:
        """The monotonic clock."""
        return self.clock.mono

    def call_soon(self, callback: Callable[..., object], *args: object) -> Timer:
        """Do this after everything that is due now."""
        return self.call_at(self.clock.mono, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> Timer:
        """Do this in so many seconds. What lies ahead lies a tick ahead at least, or floats might stop the clock."""
        return self.call_at(self.clock.mono + (max(delay, TICK_S) if delay > 0 else 0.0), callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Timer:
        """Do this at a moment of the monotonic clock."""
        timer = Timer(max(when, self.clock.mono), callback, args)
        self._count += 1
        heapq.heappush(self._due, (timer.at, self._count, timer))
        return timer

    def run_until(self, moment: float) -> None:
        """Do everything that is due until then, in order, each at its time; then it is that time."""
        due, clock = self._due, self.clock
        while due and due[0][0] <= moment:
            at, _, timer = heapq.heappop(due)
            if not timer.cancelled():
                if at > clock.mono:
                    clock.advance(at - clock.mono)
                timer.run()
        if moment > clock.mono:
            clock.advance(moment - clock.mono)

    def run_for(self, seconds: float) -> None:
        """Let so much time pass."""
        self.run_until(self.clock.mono + seconds)


class ProcessLoop:
    """The callbacks of one process: after ``kill`` none of them is called any more."""

    def __init__(self, loop: ManualLoop) -> None:
        self.clock = loop.clock
        self._loop = loop
        self._is_alive = True

    @property
    def as_asyncio(self) -> asyncio.AbstractEventLoop:
        """The same, for code that names asyncio's loop and uses only these methods of it."""
        return cast("asyncio.AbstractEventLoop", self)

    def time(self) -> float:
        """The monotonic clock."""
        return self.clock.mono

    def call_soon(self, callback: Callable[..., object], *args: object) -> Timer:
        """Do this after everything that is due now."""
        return self._loop.call_soon(self._call, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> Timer:
        """Do this in so many seconds."""
        return self._loop.call_later(delay, self._call, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Timer:
        """Do this at a moment of the monotonic clock."""
        return self._loop.call_at(when, self._call, callback, *args)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        if self._is_alive:
            callback(*args)

    def kill(self) -> None:
        """The process is gone."""
        self._is_alive = False

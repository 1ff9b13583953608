"""One timer for something that says when it wants to be woken: a session without a connection, or a process.

Owns the timer. ``wake_at`` says when (monotonic; None: not at all), ``wake`` does what is due then. Whoever changes
what is being timed calls ``set``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trunkline.edges.exchange import Feed, Timer

# A moment that is just over is looked at soon, not at once: else what is due at the same time is done one by one.
_SOON_S: Final = 0.001


class Alarm:
    """Wakes its owner. After a defect in ``wake``, which is on record, the next ``set`` starts it again."""

    def __init__(self, feed: Feed, wake_at: Callable[[], float | None], wake: Callable[[], None]) -> None:
        self._feed = feed
        self._wake_at = wake_at
        self._wake = wake
        self._timer: Timer | None = None
        self._at = 0.0

    def set(self) -> None:
        """Something changed: be there when the owner wants it. One that comes too early sets itself anew."""
        at = self._wake_at()
        if at is None or (self._timer is not None and self._at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        delay = max(_SOON_S, at - self._feed.now().mono)
        self._timer = self._feed.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        at = self._wake_at()
        if at is not None and at <= self._feed.now().mono:
            self._wake()
        self.set()

    def cancel(self) -> None:
        """Not any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""Looking for news once a second, while somebody listens.

Owns who listens and the timer. What is news, and what is said of it, is each child's (``changes``, ``completions``).

Invariant: there is a timer if, and only if, somebody listens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from trunkline.edges.exchange import Feed, Timer
from trunkline.edges.waiting import Waiting

LOOK_S: Final = 1.0

T = TypeVar("T")


class Listening(ABC, Generic[T]):
    """Those who listen, each with what a child keeps of him."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._listeners: dict[Waiting, T] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._listeners)

    def _add(self, listener: Waiting, kept: T) -> None:
        self._listeners[listener] = kept
        if self._timer is None:
            self._timer = self._feed.call_later(LOOK_S, self._look)

    def leave(self, listener: Waiting) -> None:
        """Somebody listens no more."""
        self._listeners.pop(listener, None)
        if not self._listeners and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._feed.call_later(LOOK_S, self._look)
        for listener, kept in list(self._listeners.items()):
            self._look_for(listener, kept)

    @abstractmethod
    def _look_for(self, listener: Waiting, kept: T) -> None:
        """Tell this one what is new for him."""

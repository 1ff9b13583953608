"""Telling clients that their tools changed: whose list, and when it is looked at again.

Owns who listens. A change is looked for once a second while somebody listens: an agent that comes with fifty tools is
one change. Does not own the lists (``catalogue``).

Invariant: who listens is told if, and only if, the list that he would be shown differs from the last one he was told
of.
"""

from __future__ import annotations

from typing import Final

from trunkline.edges.exchange import Feed, Timer
from trunkline.edges.mcp.catalogue import Catalogue
from trunkline.edges.waiting import Waiting

LOOK_S: Final = 1.0


class Changes:
    """Who listens for changes of the list of tools."""

    def __init__(self, feed: Feed, catalogue: Catalogue) -> None:
        self._feed = feed
        self._catalogue = catalogue
        # What each listener is told, for whom, and the list he knows.
        self._listeners: dict[Waiting, tuple[bytes, str, bytes]] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._listeners)

    def listen(self, listener: Waiting, caller: str, line: bytes) -> None:
        """Put ``line`` to a listener with each change of this caller's list."""
        self._listeners[listener] = (line, caller, self._catalogue.of(caller).digest)
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
        for listener, (line, caller, known) in list(self._listeners.items()):
            digest = self._catalogue.of(caller).digest
            if digest != known:
                self._listeners[listener] = (line, caller, digest)
                listener.put(line, len(line))

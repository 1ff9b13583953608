"""Telling clients that their tools changed: whose list, and when it is looked at again.

Owns who listens. A change is looked for once a second while somebody listens: an agent that comes with fifty tools is
one change. Does not own the lists (``catalogue``).

Invariant: who listens is told if, and only if, the list that he would be shown differs from the last one he was told
of.
"""

from __future__ import annotations

from trunkline.edges.exchange import Feed
from trunkline.edges.mcp.catalogue import Catalogue
from trunkline.edges.mcp.listening import Listening
from trunkline.edges.waiting import Waiting


class Changes(Listening[tuple[bytes, str, bytes]]):
    """Who listens for changes of the list of tools: what each is told, for whom, and the list he knows."""

    def __init__(self, feed: Feed, catalogue: Catalogue) -> None:
        super().__init__(feed)
        self._catalogue = catalogue

    def listen(self, listener: Waiting, caller: str, line: bytes) -> None:
        """Put ``line`` to a listener with each change of this caller's list."""
        self._add(listener, (line, caller, self._catalogue.of(caller).digest))

    def _look_for(self, listener: Waiting, kept: tuple[bytes, str, bytes]) -> None:
        line, caller, known = kept
        digest = self._catalogue.of(caller).digest
        if digest != known:
            self._listeners[listener] = (line, caller, digest)
            listener.put(line, len(line))

"""How long a peer that does not read is waited for: one judgement for all connections of the web listener.

Owns the looks at what waits to be read: while writing is paused, and after a connection was closed. Does not own how
much may wait (who writes stops at the transport's mark) nor what is written.

Invariant: a peer that took nothing at all between two looks is cut off; one that takes something is slow, and stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

# P-C4: from one look to the next.
WRITE_TIMEOUT_S: Final = 10.0


class Patience:
    """With one peer, while it reads more slowly than we write. ``begin`` and ``end`` in turns."""

    __slots__ = ("_deadline", "_loop", "_transport", "_unread")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._unread = 0
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Writing is paused."""
        self.end()
        self._unread = self._transport.get_write_buffer_size()
        self._deadline = self._loop.call_later(WRITE_TIMEOUT_S, self._look)

    def end(self) -> None:
        """It has read, or is gone."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look(self) -> None:
        self._deadline = None
        if self._transport.get_write_buffer_size() >= self._unread:
            # abort, not close: close would wait for it to read.
            self._transport.abort()
        else:
            self.begin()


class Connected(Protocol):
    """A connection, as far as this is concerned."""

    transport: asyncio.Transport


class LastWords:
    """What was written to connections that are closed: whoever does not take it is cut off.

    Connections are closed in many places, some of them not ours, and a closed one lasts until its last byte was read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unread: dict[Connected, int] = {}
        self._next: asyncio.TimerHandle | None = None

    def watch(self, connections: Iterable[Connected]) -> None:
        """Look at these from now on, again and again; the collection may change meanwhile."""
        self._next = self._loop.call_later(WRITE_TIMEOUT_S, self.look, connections)

    def look(self, connections: Iterable[Connected]) -> None:
        """Look at all of them, and look again later."""
        unread: dict[Connected, int] = {}
        for connection in list(connections):
            transport = connection.transport
            if transport.is_closing():
                size = unread[connection] = transport.get_write_buffer_size()
                if size >= self._unread.get(connection, size + 1):
                    transport.abort()
        self._unread = unread
        self.watch(connections)

    def stop(self) -> None:
        """Look no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

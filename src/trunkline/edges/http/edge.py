"""HTTP as an edge of the exchange: our own API, and the listener behind which other edges have doors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trunkline.config import host_and_port
from trunkline.edges.edge import Edge, RunningEdge, Surroundings, TokenKind
from trunkline.edges.http.serve import HttpListener


class HttpEdge(RunningEdge):
    """The operator's door."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._listener: HttpListener | None = None

    async def start(self) -> None:
        """Listen, for all edges that have doors."""
        given = self._given
        host, port = host_and_port(given.config.http.listen)
        self._listener = HttpListener(given.exchange, host, port, doors=given.doors())
        await self._listener.start()

    async def stop(self) -> None:
        """Answer who still waits, then close."""
        if self._listener is not None:
            await self._listener.stop()

    def ready(self) -> Mapping[str, str | None]:
        """The address in use."""
        return {"http": None if self._listener is None else self._listener.url}


HTTP: Final = Edge(name="http", make=HttpEdge, section="http", ready_keys=("http",), tokens=TokenKind())

"""HTTP as an edge of the exchange: our own API, and the listener behind which other edges have doors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trunkline.addresses import host_and_port
from trunkline.edges.address import Address
from trunkline.edges.edge import Edge, RunningEdge, Surroundings, TokenKind
from trunkline.edges.http.gate import EDGE
from trunkline.edges.http.routes import Api
from trunkline.edges.listener import WebListener
from trunkline.edges.waiting import Requests


class HttpEdge(RunningEdge):
    """The operator's door."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._requests = Requests(given.feed)
        self._listener: WebListener | None = None

    async def start(self) -> None:
        """Listen, for all edges that have doors."""
        given = self._given
        host, port = host_and_port(given.config.http.listen)
        is_traced = bool(given.config.otel.endpoint)
        parts = (given.feed, given.views, given.operator, self._requests, given.doors())
        app = Api(*parts, is_traced=is_traced, stopwatch=given.stopwatch).app()
        # Without it nobody could ask the exchange anything.
        address = Address(host, port, EDGE, is_given=given.config.is_given(EDGE, "listen"), is_needed=True)
        self._listener = WebListener(app, address)
        await self._listener.start()

    async def stop(self) -> None:
        """Take no new request, tell who still waits, give answers a moment to leave."""
        if self._listener is not None:
            self._listener.close()
            self._requests.close()
            await self._listener.stop()

    def ready(self) -> Mapping[str, str | None]:
        """The address in use."""
        return {"http": None if self._listener is None else self._listener.url}


HTTP: Final = Edge(
    name=EDGE,
    make=HttpEdge,
    section="http",
    ready_keys=("http",),
    tokens=TokenKind(),
    stops_last=True,
    is_operators=True,
)

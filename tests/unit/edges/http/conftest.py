"""The HTTP edge on a real loopback socket, in front of an exchange in memory with somebody in it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import pytest
import uvloop
from msgspec.structs import replace

from tests.inhabited import Inhabited
from trunkline.edges.doors import Door
from trunkline.edges.http.edge import HttpEdge
from trunkline.edges.waiting import Waiting
from trunkline.edges.web_connection import Connections
from trunkline.events import Event
from trunkline.testing.memory import OPERATOR_TOKEN

BOUND_S = 5


class Server:
    """A running edge and a client for it."""

    def __init__(self, exchange: Inhabited, doors: Sequence[Door] = ()) -> None:
        self.exchange = exchange
        self.edge = HttpEdge(replace(exchange.surroundings(), doors=lambda: doors))
        self.port = 0
        self.client: httpx.AsyncClient

    async def __aenter__(self) -> Self:
        await self.edge.start()
        url = self.edge.ready()["http"]
        assert url is not None
        self.port = urlsplit(url).port or 0
        # No TLS here; an empty context spares each test the 30 ms of loading certificates.
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client = httpx.AsyncClient(base_url=url, timeout=10, verify=plain)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        await self.edge.stop()
        left = [sink for sink in self.exchange.feed._sinks.values() if isinstance(sink, Waiting)]
        assert not left, "each request gives its conversation back"
        assert self.exchange.died is None

    @property
    def connections(self) -> Connections:
        assert self.edge._listener is not None
        assert self.edge._listener._connections is not None
        return self.edge._listener._connections

    @property
    def watchers(self) -> int:
        return len(self.exchange.feed._watchers)

    async def ask(self, method: str, path: str, token: str | None = OPERATOR_TOKEN, **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return await self.client.request(method, path, headers=headers, **more)

    async def wait_fed(self, kind: type[Event]) -> Any:
        """The first event of a kind that the edge feeds, whenever it comes."""
        found: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

        def look(event: Event) -> None:
            if isinstance(event, kind) and not found.done():
                found.set_result(event)

        self.exchange.answering.on_fed = look
        for event in self.exchange.answering.fed:
            look(event)
        async with asyncio.timeout(BOUND_S):
            return await found


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """The loop that the exchange runs on."""
    return {"uvloop": uvloop.new_event_loop}


async def wait_until(condition: Callable[[], bool]) -> None:
    """Until something that nobody announces is so; bounded."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.001)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(Inhabited()) as running:
        yield running

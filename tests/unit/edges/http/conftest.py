"""The real listener on a real loopback socket, in front of a scripted exchange."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import uvloop

from tests.unit.edges.http.scripted import OPERATOR_TOKEN, ScriptedExchange
from trunkline.edges.http.serve import HttpListener


class Server:
    """A running listener and a client for it."""

    def __init__(self, exchange: ScriptedExchange, listener: HttpListener, port: int) -> None:
        self.exchange = exchange
        self.listener = listener
        self.port = port
        # No TLS here; an empty context spares each test the 30 ms of loading certificates.
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, verify=plain)

    async def ask(self, method: str, path: str, token: str | None = OPERATOR_TOKEN, **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return await self.client.request(method, path, headers=headers, **more)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """The loop that the exchange runs on."""
    return {"uvloop": uvloop.new_event_loop}


async def wait_until(condition: Callable[[], bool]) -> None:
    """Until something that nobody announces is so; bounded."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.001)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    exchange = ScriptedExchange()
    listener = HttpListener(exchange, "127.0.0.1", 0)
    _, port = await listener.start()
    running = Server(exchange, listener, port)
    try:
        yield running
    finally:
        await running.client.aclose()
        await listener.stop()
        assert not exchange.sinks, "the session must be given back"

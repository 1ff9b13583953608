"""The real listener on a real loopback socket, in front of a scripted exchange."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.unit.edges.http.scripted import OPERATOR_TOKEN, ScriptedExchange
from trunkline.edges.http.serve import HttpListener


class Server:
    """A running listener and a client for it."""

    def __init__(self, exchange: ScriptedExchange, listener: HttpListener, port: int) -> None:
        self.exchange = exchange
        self.listener = listener
        self.port = port
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10)

    async def ask(self, method: str, path: str, token: str | None = OPERATOR_TOKEN, **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return await self.client.request(method, path, headers=headers, **more)


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

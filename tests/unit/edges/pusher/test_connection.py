from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

import pytest
from starlette.websockets import WebSocket

from trunkline.edges.background import Background
from trunkline.edges.pusher.connection import PusherClient, PusherConnections
from trunkline.edges.pusher.session import PusherSession
from trunkline.edges.pylon.messages import CHANNELS
from trunkline.testing.memory import MemoryExchange


async def _nothing(*_: object) -> NoReturn:
    raise AssertionError("nobody reads from this socket, or writes to it")


async def test_a_client_that_could_not_be_made_is_not_waited_for() -> None:
    exchange = MemoryExchange(edges=(), live=asyncio.get_running_loop())
    connections = PusherConnections(exchange.feed, Background(exchange.feed), bytes)
    session = PusherSession(CHANNELS, "1.2", "key", b"secret", exchange.feed.now(), 1024)

    def came(_on_output: Callable[[], None]) -> PusherClient:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await connections.converse(WebSocket({"type": "websocket"}, _nothing, _nothing), session, came, lambda _: None)
    async with asyncio.timeout(2):
        await connections.wait_closed()

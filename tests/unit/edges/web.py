"""A web listener with an application of a few pages and a socket, for the tests of ``edges.listener`` and its parts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Self

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from trunkline.edges.address import Address
from trunkline.edges.answers import application, json_answer
from trunkline.edges.bodies import read_body
from trunkline.edges.listener import WebListener
from trunkline.edges.request_scope import ANSWER, when_closed, when_lost
from trunkline.edges.web_connection import Connections
from trunkline.testing.memory import MemoryExchange

BOUND_S = 5
MAX_BODY_BYTES = 200_000
LARGE_BYTES = 60_000_000
SIZABLE_BYTES = 1_000_000
CLOSE = "Connection: close\r\n"
JSON = "Content-Type: application/json\r\n"


class Pages:
    """An application: one answer at once, one that reads a body, one that is large, one that lasts, a socket."""

    def __init__(self) -> None:
        self.exchange = MemoryExchange()
        self.read: list[bytes] = []
        self.headers: list[bytes] = []
        self.lasting = 0
        self.answered = 0
        self.sockets: list[WebSocket] = []
        self.heard: list[Any] = []
        self.lost = asyncio.Event()
        # Until then one who lasts is told nothing.
        self.goes_on = asyncio.Event()

    def app(self) -> Any:
        table: dict[str, dict[str, Any]] = {
            "/quick": {"GET": self.quick},
            "/body": {"POST": self.body},
            "/large": {"GET": self.large},
            "/lasting": {"GET": self.last},
            "/waiting": {"GET": self.wait, "POST": self.wait},
            "/polling": {"GET": self.poll},
            "/sizable": {"GET": self.answer_sizable},
        }
        return application(self.exchange.feed, table, WebSocketRoute("/socket", self.socket))

    async def quick(self, _: Request) -> Response:
        return json_answer({"ok": True})

    async def body(self, request: Request) -> Response:
        self.read.append(await read_body(request.scope, request.receive, MAX_BODY_BYTES))
        self.headers = [name for name, _ in request.scope["headers"]]
        return json_answer({"bytes": len(self.read[-1])})

    async def large(self, _: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(LARGE_BYTES // 65_536):
                yield b"x" * 65_536

        return StreamingResponse(pieces())

    async def last(self, _: Request) -> Any:
        async def stream(scope: Scope, _: Receive, send: Send) -> None:
            with when_lost(scope, self._lose):
                self.lasting += 1
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"on", "more_body": True})
                await self.goes_on.wait()
            await send({"type": "http.response.body", "body": b"off"})

        return stream

    async def wait(self, request: Request) -> Any:
        """One answer, when it goes on; nothing is said before."""
        if request.method == "POST":
            await read_body(request.scope, request.receive, MAX_BODY_BYTES)
        return partial(self._answer_late, when_lost)

    async def poll(self, _: Request) -> Any:
        """The same, and whoever closes its side is gone."""
        return partial(self._answer_late, when_closed)

    async def _answer_late(self, when: type[when_lost], scope: Scope, _: Receive, __: Send) -> None:
        with when(scope, self._lose):
            self.lasting += 1
            await self.goes_on.wait()
        scope["extensions"][ANSWER](200, b'{"waited":true}')

    async def answer_sizable(self, _: Request) -> Any:
        async def answer(scope: Scope, _: Receive, __: Send) -> None:
            self.answered += 1
            scope["extensions"][ANSWER](200, b"x" * SIZABLE_BYTES)

        return answer

    async def socket(self, websocket: WebSocket) -> None:
        """What is said is noted and said again; ``many`` is answered with many messages, until nobody is there, and
        ``wait`` when it goes on.
        """
        self.sockets.append(websocket)
        await websocket.accept()
        try:
            while True:
                message = await websocket.receive()
                self.heard.append(message)
                if message["type"] != "websocket.receive":
                    return
                if message.get("text") == "many":
                    while True:
                        await websocket.send_text("x" * 65_536)
                        self.answered += 1
                if message.get("text") == "wait":
                    await self.goes_on.wait()
                await websocket.send_text(message.get("text") or "bytes")
        except WebSocketDisconnect:
            self.lost.set()

    def _lose(self) -> None:
        self.lasting -= 1
        self.lost.set()


class Server:
    """A running listener."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.pages = Pages()
        self.listener = WebListener(self.pages.app(), Address(host, 0, "http"), tls)

    async def __aenter__(self) -> Self:
        await self.listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.pages.goes_on.set()
        await self.listener.stop()

    @property
    def port(self) -> int:
        return int(self.listener.url.rpartition(":")[2])

    @property
    def connections(self) -> Connections:
        assert self.listener._connections is not None
        return self.listener._connections

    def head(self, method: str = "GET", path: str = "/quick", more: str = "") -> bytes:
        return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{more}\r\n".encode()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def said(self, data: bytes) -> bytes:
        """All that is answered to these bytes."""
        reader, writer = await self.connect()
        writer.write(data)
        async with asyncio.timeout(BOUND_S):
            answer = await reader.read()
        writer.close()
        return answer


async def wait_until(condition: Callable[[], bool]) -> None:
    """Until something that nobody announces is so; bounded."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.001)

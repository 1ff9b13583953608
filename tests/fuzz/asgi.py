"""An exchange in memory whose edges await in fake time, and requests and WebSockets to their applications.

``Scene`` is the exchange with a loop for tasks; ``ask`` and ``connect`` speak ASGI to an application, without sockets.
What an application raises instead of answering is in ``raised``: nothing may be.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, MutableMapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from trunkline.edges.edge import Edge
from trunkline.edges.request_scope import ANSWER, CLOSED, LOST
from trunkline.entries import CallAccepted, CallSettled
from trunkline.events import CancelRequested
from trunkline.ledger.verify import verify
from trunkline.testing.memory import BOSS, MemoryExchange
from trunkline.testing.tasks import TaskLoop

Message = MutableMapping[str, Any]
# After all calls were given up, timed out or tried again, and everybody silent is gone.
LONG_S: Final = 4000.0


class Request:
    """One request, and what came back."""

    def __init__(
        self,
        method: str,
        target: str,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
        more: dict[str, Any] | None = None,
    ) -> None:
        path, _, query = target.partition("?")
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._lost: list[Any] = []
        self.sent = (method, target, body)
        self.status = 0
        self.content = b""
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        self.scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode(),
            "headers": list(headers), "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
            "extensions": {LOST: self._lost, CLOSED: self._lost, ANSWER: self._answer}, **(more or {}),
        }  # fmt: skip

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self.status, "answered twice"
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.content += message.get("body", b"")
            self.complete = not message.get("more_body")

    def _answer(self, status: int, data: bytes) -> None:
        """Head and body at once, as our listener takes them."""
        assert not self.status, "answered twice"
        self.status, self.content, self.complete = status, data, True
        self.headers = {b"content-type": b"application/json"}

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        for told in self._lost[:]:
            told()
        self._gone.set()


class Socket:
    """One WebSocket, and what was said on it."""

    def __init__(
        self, path: str, headers: Sequence[tuple[bytes, bytes]] = (), more: dict[str, Any] | None = None
    ) -> None:
        self.incoming: deque[Message] = deque([{"type": "websocket.connect"}])
        self._bell = asyncio.Event()
        self.said: list[str] = []
        self.closed = False
        self.denied = 0
        # The code and the reason of a goodbye from the other side.
        self.goodbye: tuple[int, str] | None = None
        self.scope: dict[str, Any] = {
            "type": "websocket", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "ws", "path": path,
            "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": list(headers),
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "subprotocols": [],
            "extensions": {"websocket.http.response": {}}, **(more or {}),
        }  # fmt: skip

    async def receive(self) -> Message:
        while not self.incoming:
            self._bell.clear()
            await self._bell.wait()
        return self.incoming.popleft()

    async def send(self, message: Message) -> None:
        match message["type"]:
            case "websocket.send":
                assert self.goodbye is None, "said after the goodbye"
                if self.closed:
                    raise OSError  # as a server does when its peer is gone
                self.said.append(message["text"])
            case "websocket.http.response.start":
                self.denied = message["status"]
            case "websocket.close":
                self.goodbye = (message.get("code", 1000), message.get("reason") or "")
                self.leave()
            case _:
                pass

    def say(self, message: str | bytes) -> None:
        """A frame, of text or of bytes."""
        kind = "text" if isinstance(message, str) else "bytes"
        self.incoming.append({"type": "websocket.receive", kind: message})
        self._bell.set()

    def leave(self, code: int = 1000) -> None:
        """The connection ends, from either side."""
        if not self.closed:
            self.closed = True
            self.incoming.append({"type": "websocket.disconnect", "code": code})
            self._bell.set()


class Scene:
    """The exchange, in a ``with``: while it lasts, its loop is the running one."""

    def __init__(self, edges: Sequence[Edge], **terms: Any) -> None:
        self.exchange = MemoryExchange(edges=edges, **terms)
        self.raised: list[BaseException] = []
        self.loop = TaskLoop(self.exchange.loop, self.raised.append)
        self._before: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop.as_asyncio)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.loop.kill()
        asyncio._set_running_loop(self._before)
        self.exchange.close()

    def spawn(self, work: Awaitable[Any]) -> None:
        """Begin this; what it raises is kept."""

        async def kept() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  whatever it is, it is judged
                self.raised.append(error)

        self.loop.create_task(kept())

    def ask(self, app: Any, request: Request, wait_s: float = 0.0) -> Request:
        """Send a request, and let so much time pass for its answer."""
        self.spawn(app(request.scope, request.receive, request.send))
        self.exchange.advance(wait_s)
        return request

    def connect(self, app: Any, socket: Socket) -> Socket:
        """Open a WebSocket."""
        self.spawn(app(socket.scope, socket.receive, socket.send))
        self.exchange.advance(0)
        return socket

    def disk(self, rng: Random) -> None:
        """Now and then the disk is behind for a few steps."""
        exchange = self.exchange
        if rng.random() < (0.3 if exchange.disk_rests else 0.03):
            exchange.disk_rests = not exchange.disk_rests
            if not exchange.disk_rests:
                exchange.store()
                exchange.advance(0)

    def judge(self, about: object = "") -> None:
        """Nothing was fatal, nothing was a defect of ours."""
        exchange = self.exchange
        if self.raised:
            raise AssertionError(f"{self.raised[0]!r} after {about!r:.1500}") from self.raised[0]
        assert exchange.died is None, f"{exchange.died} after {about!r:.1500}"
        assert not exchange.feed._defects, f"{exchange.feed._defects} after {about!r:.1500}"

    def judge_end(self) -> None:
        """After much time every call has one outcome, and the record verifies."""
        exchange = self.exchange
        exchange.disk_rests = False
        exchange.store()
        exchange.advance(LONG_S)
        # Those that were given days are stopped by a person.
        for call_id in list(exchange.hub.state.calls):
            exchange.feed.feed([CancelRequested(0, "stop", BOSS, call_id=call_id)])
        exchange.advance(LONG_S)
        self.judge("the end")
        accepted = [entry.call_id for entry in exchange.recorded(CallAccepted)]
        settled = [entry.call_id for entry in exchange.recorded(CallSettled)]
        assert sorted(accepted) == sorted(settled), "a call has no outcome, or two"
        exchange.store()
        verify(exchange.disk.path("ledger.sqlite"), vfs=exchange.disk.vfs)

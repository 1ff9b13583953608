"""Requests to the doors of a simulated exchange: late, lost, given up, or cut off with the exchange.

``Web`` calls the real ASGI applications of edges (``edges.doors``), on the loop of the exchange that serves at the
time. Sockets, HTTP's own syntax and the listener's limits are left out; so is the gate of the HTTP edge: who asks at a
door that has no gate of its own is said by ``principal``.

Invariant: whoever asked hears once: a ``WebAnswer``, or None if none came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from random import Random
from typing import Any, Final

from msgspec import Struct

from trunkline.edges.doors import Door
from trunkline.edges.request_scope import CLOSED, LOST
from trunkline.model import Principal
from trunkline.testing.clock import ManualLoop
from trunkline.testing.network import LATENCY_S

# How long it takes somebody to notice that nobody answers any more.
NOTICE_S: Final = (0.0, 1.0)

Message = MutableMapping[str, Any]


class WebAnswer(Struct, frozen=True):
    """What came back. ``order`` tells in which order answers left the exchange, whenever they arrived."""

    status: int
    body: bytes
    order: int


class WebRequest:
    """One request under way. ``give_up`` is its sender's: nobody waits any more."""

    def __init__(
        self, web: Web, method: str, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]], principal: Any
    ) -> None:
        self._web = web
        self._lost: list[Callable[[], None]] = []
        self._unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._gone: asyncio.Future[None] | None = None
        self._status = 0
        self._pieces: list[bytes] = []
        self.is_lost = False
        self.path, _, query = path.partition("?")
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json"), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "extensions": {LOST: self._lost, CLOSED: self._lost},
            "principal": principal,
        }

    def give_up(self) -> None:
        """The one who asked closes the connection."""
        if not self.is_lost:
            self.is_lost = True
            for told in self._lost[:]:
                told()
            if self._gone is not None and not self._gone.done():
                self._gone.set_result(None)

    async def receive(self) -> Message:
        """What the application reads."""
        if self._unread:
            return self._unread.pop()
        if not self.is_lost:
            self._gone = asyncio.get_running_loop().create_future()
            await self._gone
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """What the application says."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        else:
            self._pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                self._web.answered(self, self._status, b"".join(self._pieces))


class Web:
    """Everybody's way to the doors. ``left`` is told of each answer that leaves the exchange."""

    def __init__(self, loop: ManualLoop, rng: Random, left: Callable[[], None]) -> None:
        self._loop = loop
        self._rng = rng
        self._left = left
        self._doors: Sequence[Door] = ()
        self._server: asyncio.AbstractEventLoop | None = None
        self._order = 0
        # Requests without an answer, and who waits for it.
        self._waiting: dict[WebRequest, Callable[[WebAnswer | None], None]] = {}

    def open(self, doors: Sequence[Door], server: asyncio.AbstractEventLoop) -> None:
        """An exchange serves."""
        self._doors, self._server = doors, server

    def close(self) -> None:
        """It does not any more: whoever waits notices, soon or later."""
        self._doors, self._server = (), None
        for request in list(self._waiting):
            self._loop.call_later(self._rng.uniform(*NOTICE_S), self._tell, request, None)

    def ask(
        self,
        method: str,
        path: str,
        then: Callable[[WebAnswer | None], None],
        *,
        body: bytes = b"",
        token: str = "",
        principal: Principal | None = None,
    ) -> WebRequest:
        """Send a request."""
        headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
        request = WebRequest(self, method, path, body, headers, principal)
        self._waiting[request] = then
        self._loop.call_later(self._rng.uniform(*LATENCY_S), self._arrive, request)
        return request

    def _arrive(self, request: WebRequest) -> None:
        door = next((door for door in self._doors if door.leads_to(request.path)), None)
        if self._server is None or door is None:
            self._tell(request, None)
        elif not request.is_lost:
            self._server.create_task(door.app(request.scope, request.receive, request.send))  # type: ignore[arg-type]

    def answered(self, request: WebRequest, status: int, body: bytes) -> None:
        """An answer leaves the exchange."""
        self._order += 1
        answer = WebAnswer(status, body, self._order)
        self._loop.call_later(self._rng.uniform(*LATENCY_S), self._tell, request, answer)
        self._left()

    def _tell(self, request: WebRequest, answer: WebAnswer | None) -> None:
        then = self._waiting.pop(request, None)
        if then is not None:
            then(None if request.is_lost else answer)

    def give_up(self, request: WebRequest) -> None:
        """The one who asked does not wait any more."""
        request.give_up()
        self._tell(request, None)

"""Pages that speak Pusher's protocol in a simulation: one WebSocket each, handed to an edge's real application.

Owns the socket in memory and the words of Pusher that every page says. Does not own what a page asks for (``console``,
``pylon``). Listeners, their limits and the time on the wire are left out.

Invariant: a page hears nothing of a connection that it has left, or whose exchange is gone.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.types import ASGIApp

from trunkline.edges.pusher import frames
from trunkline.edges.pusher.frames import Frame, read_frame

Message = MutableMapping[str, Any]


class PageSocket:
    """One connection, as its application sees it."""

    def __init__(self, page: PusherPage) -> None:
        self._page = page
        self._unread: list[Message] = [{"type": "websocket.connect"}]
        self._news: asyncio.Future[None] | None = None

    async def receive(self) -> Message:
        """What the page says next."""
        while not self._unread:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return self._unread.pop(0)

    async def send(self, message: Message) -> None:
        """What the page is told."""
        if message["type"] == "websocket.send":
            self._page.left_exchange()
            if self._page.socket is self:
                self._page.hear(read_frame(message["text"].encode()))
        elif message["type"] == "websocket.close":
            self.put({"type": "websocket.disconnect", "code": message["code"]})
            if self._page.socket is self:
                self._page.lose()

    def put(self, message: Message) -> None:
        """The page says something."""
        self._unread.append(message)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class PusherPage(abc.ABC):
    """One page, connected or not. ``left_exchange`` is called for each message that leaves the exchange."""

    def __init__(self, left_exchange: Callable[[], None]) -> None:
        self.left_exchange = left_exchange
        self.socket: PageSocket | None = None

    def open(self, app: ASGIApp, path: str, server: asyncio.AbstractEventLoop) -> None:
        """Connect to an exchange that serves."""
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"origin", b"http://localhost")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "subprotocols": [],
            "extensions": {},
        }
        socket = self.socket = PageSocket(self)
        server.create_task(app(scope, socket.receive, socket.send))  # type: ignore[arg-type]

    def say(self, event: str, data: object, channel: str = "") -> None:
        """One message, if it is connected."""
        if self.socket is not None:
            text = frames.frame(event, data, channel).decode()
            self.socket.put({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        """Close the connection."""
        socket = self.socket
        self.lose()
        if socket is not None:
            socket.put({"type": "websocket.disconnect", "code": 1001})

    def lose(self) -> None:
        """The connection is gone, whoever ended it."""
        self.socket = None

    def hear(self, frame: Frame) -> None:
        """One message."""
        match frame.event:
            case frames.ESTABLISHED:
                self.connected(frame.data["socket_id"])
            case frames.PING:
                self.say(frames.PONG, {})
            case _:
                self.told(frame)

    @abc.abstractmethod
    def connected(self, socket_id: str) -> None:
        """It is let in, under this id."""

    @abc.abstractmethod
    def told(self, frame: Frame) -> None:
        """Something that is not Pusher's own."""

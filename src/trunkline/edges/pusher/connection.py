"""One WebSocket whose client speaks Pusher's protocol, from its first message to its last.

Owns the loop that reads, the timer for signs of life, the task that writes, and the order of the end; an edge has one
``PusherConnections`` for all of its sockets. Does not own the frames (``session``), who may connect, nor what the
messages of a client lead to: that is the edge's child of ``PusherClient``.

Invariant: a defect met in one connection ends that one alone; a connection counts as open until its socket is closed.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect

from trunkline.edges.alarm import Alarm
from trunkline.edges.background import Background
from trunkline.edges.exchange import BaseSink, Feed
from trunkline.edges.pusher import frames
from trunkline.edges.pusher.frames import Code
from trunkline.edges.pusher.session import PusherSession
from trunkline.edges.pusher.writer import Writer


class PusherClient(BaseSink, abc.ABC):
    """One client and its conversation. ``on_output`` is called when there is something to write or it is over."""

    # Of its conversation; 0 once a defect has ended that.
    number = 0

    def __init__(self, feed: Feed, session: PusherSession, on_output: Callable[[], None]) -> None:
        self._feed = feed
        self.session = session
        self._on_output = on_output

    @abc.abstractmethod
    def receive(self, data: bytes) -> None:
        """One message."""

    async def wait_ready(self) -> None:
        """Until the next message may be taken."""

    def wake(self) -> None:
        """See whether it is still there."""
        self.session.wake(self._feed.now())
        self._on_output()

    def end(self, code: Code, reason: str) -> None:
        """Say why, and close."""
        self.session.end(code, reason)
        self._on_output()

    def abort(self) -> None:
        """A defect of ours ended this conversation."""
        self.number = 0
        self.end(Code.DEFECT, "a defect of the exchange ended this connection; it is on record")


AnyClient = TypeVar("AnyClient", bound=PusherClient)


class PusherConnections:
    """The connections of one edge that are open, or still being closed."""

    def __init__(self, feed: Feed, background: Background, entropy: Callable[[int], bytes]) -> None:
        self._feed = feed
        self._background = background
        self._entropy = entropy
        self._writers: set[Writer] = set()
        # Set whenever one is gone.
        self._is_left = asyncio.Event()

    def new_socket_id(self) -> str:
        """Two numbers with a dot, as Pusher's are. Nobody can guess another's."""
        first, second = (int.from_bytes(self._entropy(6), "big") for _ in range(2))
        return f"{first}.{second}"

    async def converse(
        self,
        socket: WebSocket,
        session: PusherSession,
        came: Callable[[Callable[[], None]], AnyClient],
        left: Callable[[AnyClient], None],
    ) -> None:
        """Serve a socket that was accepted. ``came`` makes its client, given ``on_output``; ``left`` forgets it."""
        writer = Writer(socket, session, self._background)
        # First, and only then counted as open: if it raises, nobody is there whom `wait_closed` would wait for.
        client = came(writer.wake)
        self._writers.add(writer)
        alarm = Alarm(self._feed, session.wake_at, client.wake)
        alarm.set()
        writing = self._background.spawn(writer.run())
        try:
            while (event := await socket.receive())["type"] == "websocket.receive":
                text, data = event.get("text"), event.get("bytes")
                client.receive(text.encode() if text is not None else bytes(data or b""))
                await client.wait_ready()
        except WebSocketDisconnect:
            pass
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(client.number, error)
        finally:
            alarm.cancel()
            left(client)
            if session.code is None:
                writing.cancel()
            else:
                # The socket is closed when this returns, with whatever was said by then.
                await writer.wait_closed()
            self._writers.discard(writer)
            self._is_left.set()

    async def wait_closed(self) -> None:
        """Until all are gone. Each goodbye has a deadline of its own."""
        while self._writers:
            self._is_left.clear()
            await self._is_left.wait()


async def turn_away(socket: WebSocket, code: Code, text: str) -> None:
    """Say to one that was accepted why it is not served: only so a client hears a code of Pusher's."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_text(frames.error_frame(code, text).decode())
        await socket.close(code, text)

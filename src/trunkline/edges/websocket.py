"""A connection of the web listener that became a WebSocket, with the bounds that uvicorn's protocol lacks.

Owns what a peer may make grow or last: how long one message may take and in how many pieces it may come, what waits
for a peer that does not read, how long a goodbye may take; and how an application says goodbye (``close_quietly``).
Does not own what is said (an ASGI application).

Invariant: nothing that a peer sends raises here or writes a line into the log; it is answered, or ends its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, Final, cast

from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import State

from trunkline.edges.patience import Patience
from trunkline.edges.request_scope import SAY
from trunkline.edges.shares import SHARE, Share

# A message: the largest that a door behind this listener takes (an operations message).
MAX_SOCKET_MESSAGE_BYTES: Final = 16_777_216
# The pieces of one message: the largest in pieces of 1 KiB. Empty ones would go on for ever within any size.
MAX_FRAGMENTS: Final = 16_384
# From a message's first byte to its last; the same bound as for the body of a request.
MESSAGE_TIMEOUT_S: Final = 30.0
# A sign of life, and how long its answer may take.
PING_S: Final = 20.0
# How long a goodbye waits for a peer to read what was said before.
GOODBYE_S: Final = 2.0
# What is read of one peer in one turn of the loop. The shortest frame has 6 bytes and takes some 5 µs to read: a whole
# read of 256 KiB would keep everybody waiting for a quarter of a second.
TURN_BYTES: Final = 16_384
# What is gathered of what is said in one turn before it is written.
GATHERED_BYTES: Final = 65_536
# Messages that an application takes before others have their turn; nothing else makes it wait while there are some.
TURN_MESSAGES: Final = 16


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket; ``gone`` is set when the last connection of the listener is."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._gone: asyncio.Event = server_state.gone  # type: ignore[attr-defined]
        self._patience: Patience
        self._message_deadline: asyncio.TimerHandle | None = None
        # Read, and not looked at yet.
        self._unread: deque[memoryview] = deque()
        self._goes_on = False
        self._taken = 0
        # Of a message that is on its way: its bytes, and what they take of its sender's share.
        self._message_bytes = 0
        self._share: Share | None = None
        # Whether nothing is read from the peer: something that was read waits, since the application is busy
        # (`read_paused`), or for its turn.
        self._is_held = False
        # Whether what was said in this turn is written at its end, and how much that is.
        self._is_saying = False
        self._said_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It was an HTTP connection until now."""
        super().connection_made(transport)
        self._patience = Patience(self.loop, cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """The listener waits for the last one when it stops."""
        self._patience.end()
        self._unread.clear()
        if self._share is not None:
            self._share.end()
        if self._message_deadline is not None:
            self._message_deadline.cancel()
        super().connection_lost(exc)
        if not self.connections:
            self._gone.set()

    # -- what the peer says --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes, of which one turn takes only so many."""
        if not self.handshake_initiated:
            super().data_received(data)
        elif not self.handshake_complete:
            # Nobody may say anything before the answer to its handshake (RFC 6455 4.1); we would have to keep it.
            self.transport.abort()
        else:
            whole = memoryview(data)
            self._unread.extend(whole[at : at + TURN_BYTES] for at in range(0, len(data), TURN_BYTES))
            self._go_on_soon()

    def _go_on(self) -> None:
        """Look at a turn's share of what was read, unless the application or the peer has to take something first."""
        self._goes_on = False
        if self.transport.is_closing():
            self._unread.clear()
            return
        if self._unread and not self.read_paused and self.writable.is_set():
            self._read(bytes(self._unread.popleft()))
            if self._unread and not self.read_paused:
                self._goes_on = True
                self.loop.call_soon(self._go_on)
        self._set_reading()

    def _set_reading(self) -> None:
        # Not as soon as the application has something to take: mostly it has taken it before more comes.
        is_held = bool(self._unread)
        if is_held is not self._is_held and not self.transport.is_closing():
            self._is_held = is_held
            if is_held:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _read(self, data: bytes) -> None:
        self._message_bytes += len(data)
        super().data_received(data)
        if not self.frames and not self.conn.reader.buffer:
            self._message_bytes = 0
        self._count_message()
        if not self.frames and not self.conn.reader.buffer:
            if self._message_deadline is not None:
                self._message_deadline.cancel()
                self._message_deadline = None
        elif self._message_deadline is None:
            self._message_deadline = self.loop.call_later(MESSAGE_TIMEOUT_S, self._judge_message)

    def _count_message(self) -> None:
        """What is kept of a message counts for its sender, once the application has said who that is."""
        if self._share is None:
            share = self.scope.get(SHARE)
            if not isinstance(share, Share):
                return
            self._share = share.beside()
        if not self._share.try_set_size(self._message_bytes):
            self._share.end()
            self._fail(CloseCode.TRY_AGAIN_LATER, "too much is on its way")

    def _judge_message(self) -> None:
        """A message that takes longer to arrive is not coming, unless it is we who do not read."""
        self._message_deadline = None
        if self._is_held:
            self._message_deadline = self.loop.call_later(MESSAGE_TIMEOUT_S, self._judge_message)
        else:
            self._fail(CloseCode.POLICY_VIOLATION, "the message did not end in time")

    def handle_cont(self, event: Frame) -> None:
        """One more piece of a message."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "too many pieces")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """A message is complete. Text that is none ends the connection (RFC 6455 8.1)."""
        data = b"".join(self.frames)
        self.frames = []
        self._message_bytes = 0
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            try:
                self.queue.put_nowait({"type": "websocket.receive", "text": data.decode()})
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "not UTF-8")
                return
        else:
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        # The next message is looked at when the application has taken this one.
        self.read_paused = True

    def handle_parser_exception(self) -> None:
        """What came is no WebSocket: say so and close."""
        if self.conn.close_sent is None:
            self.transport.abort()
        elif not self.transport.is_closing():
            super().handle_parser_exception()

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    # -- a peer that does not read -------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write. What it says meanwhile waits: its pings would be answered."""
        super().pause_writing()
        self._patience.begin()

    def resume_writing(self) -> None:
        """The peer has read."""
        super().resume_writing()
        self._patience.end()
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._goes_on:
            self._go_on()

    # -- what the application says -------------------------------------------------------------------------------------

    def handle_connect(self, event: Request) -> None:
        """Somebody wants to speak: an application that is told so may also speak without a task."""
        super().handle_connect(event)
        if not self.close_sent:
            cast("dict[str, Any]", self.scope["extensions"])[SAY] = self.try_say

    def try_say(self, text: bytes) -> bool:
        """Say a text at once. False: nothing was said, since it has to wait for its reader, or is too late."""
        is_open = self.handshake_complete and not self.close_sent and self.conn.state is State.OPEN
        if not is_open or not self.writable.is_set() or self.transport.is_closing():
            return False
        self.conn.send_text(text)
        self._said_bytes += len(text)
        if self._said_bytes > GATHERED_BYTES:
            # Whether the peer reads is known only of what is written.
            self._write_said()
        elif not self._is_saying:
            self._is_saying = True
            self.loop.call_soon(self._say_all)
        return True

    def _say_all(self) -> None:
        self._is_saying = False
        if not self.transport.is_closing():
            self._write_said()

    def _write_said(self) -> None:
        """Write what was said in this turn at once: each write of its own would be a record of TLS of its own."""
        self._said_bytes = 0
        data = b"".join(self.conn.data_to_send())
        if data:
            self.transport.write(data)

    async def receive(self) -> Any:
        """The next that the application is told."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._go_on_soon()
        self._taken += 1
        if self._taken % TURN_MESSAGES == 0:
            await asyncio.sleep(0)
        return message

    async def send(self, message: Any) -> None:
        """Say something, as soon as the peer has read what was said before; a goodbye does not wait for long."""
        is_goodbye = message["type"] == "websocket.close"
        if is_goodbye:
            try:
                async with asyncio.timeout(GOODBYE_S):
                    await self.writable.wait()
            except TimeoutError:
                self.transport.abort()
                return
            # What the peer still says is read and dropped, up to its own goodbye.
            self.read_paused = False
        await super().send(message)
        if is_goodbye:
            self._go_on_soon()
        if self.close_sent:
            # A refusal is an answer, and no reason to complain of a handshake that was not completed.
            self.handshake_complete = True


async def close_quietly(socket: WebSocket, code: CloseCode, reason: str = "") -> None:
    """Say goodbye from an application; a peer that is gone, or to whom it was said before, is no reason to complain."""
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await socket.close(code, reason or None)

"""Streams of an OSSA agent: those it sends, numbered and kept for a while, and those it is sent, piece after piece.

Owns sequence numbers: ``stream_start`` has none, ``stream_data`` counts from 0, ``stream_end`` carries the count. What
is sent is kept until more than ``KEPT`` pieces came after it: a peer that reports a gap gets it again. Does not own the
connection. A stream has no acknowledgments: whether its last pieces arrived is known to its receiver alone.

Invariant: a handler is given the pieces in order and without a gap, or the iteration fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.edges.ossa import messages
from trunkline.edges.ossa.messages import (
    BAD_REQUEST,
    INSUFFICIENT,
    INTERNAL_ERROR,
    STREAM_DATA,
    STREAM_END,
    STREAM_START,
    Identity,
    Message,
)
from trunkline.sdk.ossa_connection import OssaConnection
from trunkline.sdk.ossa_message import ConnectionLost, OssaError, error_of
from trunkline.sdk.own_tasks import OwnTasks

log = logging.getLogger("trunkline.sdk")

# Pieces of a stream of ours that can be sent again, and what they may hold together.
KEPT: Final = 256
KEPT_BYTES: Final = 8_388_608
# Streams of ours that have ended and may still be asked about.
KEPT_ENDED: Final = 64
# After a piece could not be sent.
AGAIN_S: Final = 0.05
# What a handler has not taken of one stream; more ends it for this agent.
MAX_UNREAD: Final = 4096
MAX_UNREAD_BYTES: Final = 16_777_216


class Stream:
    """A stream that this agent sends: give it to ``send_data`` and ``end_stream``."""

    def __init__(self, stream_id: str, to: Identity, action: str, correlation_id: str, *, sealed: bool) -> None:
        self.stream_id = stream_id
        self.to = to
        self.action = action
        self.correlation_id = correlation_id
        self.sealed = sealed
        self.count = 0
        self.has_ended = False
        # Why nobody hears it any more.
        self.error: OssaError | None = None
        self.kept: deque[Message] = deque()
        self._kept_bytes = 0

    def keep(self, message: Message) -> None:
        """It was sent, and may have to be sent again."""
        self.kept.append(message)
        self._kept_bytes += len(message.payload)
        while len(self.kept) > KEPT or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self.kept.popleft().payload)

    def check(self) -> None:
        """``OssaError`` if nothing more can be sent on it."""
        if self.error is not None:
            raise self.error
        if self.has_ended:
            raise OssaError(BAD_REQUEST, f"the stream {self.stream_id!r} has ended")


class IncomingStream:
    """A stream that this agent is sent: ``async for data in stream``. It ends with the stream; ``OssaError`` if a piece
    is missing or the sender is gone.
    """

    def __init__(self, start: Message) -> None:
        self.stream_id = str(start.stream_id)
        self.sender = start.sender.agent_id
        self.action = start.action
        self.correlation_id = start.correlation
        self.metadata: Any = msgspec.json.decode(start.payload)
        self._next = 0
        self._unread: deque[Raw] = deque()
        self._unread_bytes = 0
        self._bell = asyncio.Event()
        self._is_over = False
        self._error: OssaError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._is_over

    def receive(self, message: Message) -> None:
        """A piece of it, or its end."""
        if self._is_over or (message.type == STREAM_DATA and (message.sequence or 0) < self._next):
            return  # a repeat
        if message.sequence is not None and message.sequence != self._next:
            self.fail(OssaError(INTERNAL_ERROR, "pieces of the stream are missing"))
        elif message.type == STREAM_END:
            self._is_over = True
        elif len(self._unread) >= MAX_UNREAD or self._unread_bytes + len(message.payload) > MAX_UNREAD_BYTES:
            self.fail(OssaError(INSUFFICIENT, "more of the stream came than is read"))
        else:
            self._next += 1
            self._unread.append(message.payload)
            self._unread_bytes += len(message.payload)
        self._bell.set()

    def fail(self, error: OssaError) -> None:
        """Nothing more comes, and that is not its end."""
        if not self._is_over:
            self._is_over, self._error = True, error
            self._bell.set()

    def __aiter__(self) -> IncomingStream:
        return self

    async def __anext__(self) -> Any:
        while not self._unread:
            if self._is_over:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._bell.clear()
            await self._bell.wait()
        piece = self._unread.popleft()
        self._unread_bytes -= len(piece)
        return msgspec.json.decode(piece)


StreamHandler = Callable[[IncomingStream], Awaitable[None]]


class Streams:
    """All streams of one agent, in both directions."""

    def __init__(self, connection: OssaConnection) -> None:
        self._connection = connection
        self._sent: dict[str, Stream] = {}
        self._coming: dict[tuple[str, str], IncomingStream] = {}
        self._handlers: dict[str, StreamHandler] = {}
        self._tasks = OwnTasks()

    def handle(self, handler: StreamHandler, action: str) -> None:
        """Streams of this action, or all others if it is empty, go to this handler."""
        self._handlers[action] = handler

    # -- sending -------------------------------------------------------------------------------------------------------

    async def start(self, stream: Stream, metadata: Any) -> None:
        """Say that it begins."""
        earlier = self._sent.get(stream.stream_id)
        if earlier is not None and not earlier.has_ended and earlier.error is None:
            raise OssaError(BAD_REQUEST, f"the stream {stream.stream_id!r} has begun and not ended")
        self._sent.pop(stream.stream_id, None)
        self._sent[stream.stream_id] = stream
        await self._send(stream, STREAM_START, metadata, None)

    async def send(self, stream: Stream, data: Any) -> None:
        """One more piece."""
        stream.check()
        number, stream.count = stream.count, stream.count + 1
        await self._send(stream, STREAM_DATA, data, number)

    async def end(self, stream: Stream) -> None:
        """It is complete."""
        stream.check()
        stream.has_ended = True
        await self._send(stream, STREAM_END, {}, stream.count)
        ended = [one for one in self._sent.values() if one.has_ended or one.error is not None]
        for old in ended[: max(0, len(ended) - KEPT_ENDED)]:
            del self._sent[old.stream_id]

    async def _send(self, stream: Stream, kind: str, payload: Any, sequence: int | None) -> None:
        message = self._connection.new(
            kind,
            stream.action,
            (stream.to,),
            Raw(msgspec.json.encode(payload)),
            correlation_id=stream.correlation_id,
            stream_id=stream.stream_id,
            sequence=sequence,
        )
        stream.keep(message)
        while True:
            await self._connection.is_ready.wait()
            try:
                return await self._connection.send(message, sealed=stream.sealed)
            except ConnectionLost:
                # It is noticed elsewhere too, in a moment; then there is a next one to wait for.
                await asyncio.sleep(AGAIN_S)

    def nacked(self, message: Message) -> bool:
        """Somebody reports a gap; whether it is in a stream of ours. What is kept is sent again."""
        stream = self._sent.get(message.stream_id or "")
        if stream is None:
            return False
        again = []
        for piece in stream.kept:
            if piece.message_id == messages.about(message.payload):
                break
            again.append(piece)
        self._tasks.spawn(self._send_again(stream, again))
        return True

    async def _send_again(self, stream: Stream, pieces: list[Message]) -> None:
        with contextlib.suppress(ConnectionLost):
            for piece in pieces:
                await self._connection.send(piece, sealed=stream.sealed)

    def refused(self, message: Message) -> bool:
        """An error; whether it is about a stream of ours, of which nobody hears any more then."""
        assert message.error is not None
        for stream in self._sent.values():
            if stream.correlation_id == message.correlation_id and not stream.has_ended:
                stream.error = error_of(message.error)
                return True
        return False

    # -- being sent ----------------------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        """A piece of somebody's stream."""
        key = (message.sender.agent_id, str(message.stream_id))
        if message.type == STREAM_START:
            handler = self._handlers.get(message.action) or self._handlers.get("")
            if handler is None:
                log.warning("nobody here handles streams of the action %s", message.action)
            elif key not in self._coming:
                stream = self._coming[key] = IncomingStream(message)
                self._tasks.spawn(self._handled(key, stream, handler))
        elif (coming := self._coming.get(key)) is not None:
            coming.receive(message)

    async def _handled(self, key: tuple[str, str], stream: IncomingStream, handler: StreamHandler) -> None:
        try:
            await handler(stream)
        except OssaError as error:
            log.warning("the stream %s of %s: %s", stream.stream_id, stream.sender, error)
        except Exception:
            log.exception("the handler of the stream %s failed", stream.stream_id)
        finally:
            del self._coming[key]

    def lost(self) -> None:
        """The connection ended: what was on its way to us is lost."""
        for stream in self._coming.values():
            stream.fail(ConnectionLost())

    async def stop(self) -> None:
        """Nothing is handled any more."""
        await self._tasks.stop()

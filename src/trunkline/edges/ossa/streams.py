"""Streams that one agent sends: their pieces in order, whatever order they come in. Pure.

Owns sequence numbers (decision 66): ``stream_start`` has none, ``stream_data`` counts from 0, ``stream_end`` carries
the count. A piece that shows a gap is kept and answered with a NACK that names it; nothing beyond the gap goes on until
it is filled. Does not own whether a stream belongs to a call, nor who may send one.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from trunkline.edges.ossa.messages import BAD_REQUEST, INSUFFICIENT, STREAM_DATA, STREAM_START, Message, Refused

# Silent point 12.
IDLE_S: Final = 300.0
# Of one agent: streams at once, and pieces of all of them that wait for an earlier one.
MAX_STREAMS: Final = 64
MAX_HELD: Final = 256
MAX_HELD_BYTES: Final = 8_388_608


class OssaStream(Struct, eq=False):
    """One that has begun."""

    start: Message
    heard_at: float
    next: int = 0
    # Pieces beyond a gap, by number; the end, whose number is the count, is one of them.
    held: dict[int, Message] = {}


class OssaStreams:
    """All that one agent has begun and not ended."""

    def __init__(self) -> None:
        self._open: dict[str, OssaStream] = {}
        self._held = self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def receive(self, message: Message, now_mono: float) -> tuple[list[Message], bool]:
        """What goes on now, in order, and whether this message showed a gap."""
        assert message.stream_id is not None
        if message.type == STREAM_START:
            return self._start(message, now_mono), False
        stream = self._open.get(message.stream_id)
        if stream is None:
            raise Refused(BAD_REQUEST, "no such stream: it has not begun, or it has ended")
        if {one.agent_id for one in message.recipients} != {one.agent_id for one in stream.start.recipients}:
            raise Refused(BAD_REQUEST, "recipient: a stream goes to those that its start names")
        # What it is for was judged when it began.
        message = msgspec.structs.replace(message, recipients=stream.start.recipients, action=stream.start.action)
        stream.heard_at = now_mono
        number = stream.next if message.sequence is None else message.sequence
        if number < stream.next and message.type == STREAM_DATA:
            return [], False  # a repeat
        if number < stream.next:
            raise Refused(BAD_REQUEST, "sequence: the stream has more pieces than that")
        if number > stream.next:
            self._hold(stream, number, message)
            return [], True
        return self._go_on(stream, message), False

    def _start(self, message: Message, now_mono: float) -> list[Message]:
        assert message.stream_id is not None
        earlier = self._open.get(message.stream_id)
        if earlier is not None:
            if earlier.start.message_id == message.message_id:
                return []  # a repeat
            raise Refused(BAD_REQUEST, "streamId: this stream has begun")
        if len(self._open) >= MAX_STREAMS:
            raise Refused(INSUFFICIENT, f"{MAX_STREAMS} streams of yours have not ended")
        self._open[message.stream_id] = OssaStream(message, now_mono)
        return [message]

    def _hold(self, stream: OssaStream, number: int, message: Message) -> None:
        if number in stream.held:
            return
        if self._held >= MAX_HELD or self._held_bytes + message.size > MAX_HELD_BYTES:
            raise Refused(INSUFFICIENT, "too much waits for pieces that are missing")
        stream.held[number] = message
        self._held += 1
        self._held_bytes += message.size

    def _go_on(self, stream: OssaStream, message: Message) -> list[Message]:
        going = [message]
        while going[-1].type == STREAM_DATA:
            stream.next += 1
            following = stream.held.pop(stream.next, None)
            if following is None:
                return going
            self._held -= 1
            self._held_bytes -= following.size
            going.append(following)
        self._close(str(message.stream_id))
        return going

    def _close(self, stream_id: str) -> None:
        stream = self._open.pop(stream_id)
        self._held -= len(stream.held)
        self._held_bytes -= sum(one.size for one in stream.held.values())

    def forget(self, stream_id: str) -> None:
        """One that was begun is not taken after all."""
        if stream_id in self._open:
            self._close(stream_id)

    def wake_at(self) -> float | None:
        """When the next one has been idle for too long."""
        return min(stream.heard_at + IDLE_S for stream in self._open.values()) if self._open else None

    def wake(self, now_mono: float) -> list[Message]:
        """The beginnings of streams that were idle for too long, and are closed."""
        idle = [name for name, stream in self._open.items() if stream.heard_at + IDLE_S <= now_mono]
        starts = [self._open[name].start for name in idle]
        for name in idle:
            self._close(name)
        return starts

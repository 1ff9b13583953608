"""The calls of one conversation, both ways: those the agent was given, and those it made.

Owns their messages, echoes, streams and the ids an answer carries. It does not own outcomes: a result that nobody waits
for is passed on, and the hub has it on record. Invariant: what is remembered is bounded (``MAX_REMEMBERED_CALLS`` given
calls; made calls by the hub, which answers each of them exactly once).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw, Struct

from trunkline.edges.framing.length_prefix import prefix
from trunkline.edges.opensentience import translate
from trunkline.edges.opensentience.messages import (
    CancelTool,
    Message,
    TextData,
    ToolCall,
    ToolResult,
    ToolStream,
    encode_part,
    no_room,
)
from trunkline.edges.opensentience.outbox import Outbox
from trunkline.effects import Answer, Cancel, Deliver, Progress, Wait
from trunkline.errors import LocalProtocolError, RemoteProtocolError
from trunkline.events import CallFinished, CallProgressed, CallRequested, CancelRequested, Event
from trunkline.model import Now, Principal, Status, fault

# Calls that were sent and never answered are forgotten, the oldest first; only their streams are lost by it.
MAX_REMEMBERED_CALLS: Final = 4_096
# Of one call, all chunks together: two full frames; more belongs into a result or a file.
MAX_STREAM_BYTES: Final = 8_388_608

# code, what it is about, detail: put on record once for each thing it is about.
Note = Callable[[str, str, str], None]
Emit = Callable[[Event], None]


class GivenCall(Struct):
    """A call that the agent was given: what its messages have to echo, and where its stream is."""

    correlation_id: str
    causation_id: str | None
    is_cancelable: bool
    last_seq: int = 0
    streamed: int = 0
    is_streaming: bool = True


class GivenCalls:
    """The calls that the agent was given, by our ``call_id``, which is the ``request_id`` of all their messages too."""

    def __init__(self, session: int, outbox: Outbox, note: Note, emit: Emit) -> None:
        self._session = session
        self._outbox = outbox
        self._note = note
        self._emit = emit
        self._open: dict[str, GivenCall] = {}
        # Whether all of the agent's tools can be canceled, or else which.
        self.all_cancelable = False
        self.cancelable: set[str] = set()

    def give(self, effect: Deliver, now: Now) -> None:
        """Send the call; what cannot be sent is finished at once."""
        call, actor = translate.tool_call(effect)
        outbox, known = self._outbox, self._open
        call_id, correlation_id, causation_id = effect.call_id, effect.correlation_id, effect.causation_id
        body = outbox.write(now, "core.tool.call", call, None, call_id, correlation_id, causation_id, actor)
        if len(body) > outbox.max_frame_bytes:
            problem = fault("tool.invalid_input", no_room("the call", outbox.max_frame_bytes))
            self._emit(CallFinished(self._session, call_id, Status.FAILED, fault=problem))
            return
        outbox.frames += (prefix(len(body)), body)
        if len(known) >= MAX_REMEMBERED_CALLS:
            del known[next(iter(known))]
        is_cancelable = self.all_cancelable or effect.tool_id in self.cancelable
        known[call_id] = GivenCall(correlation_id, causation_id, is_cancelable)

    def cancel(self, effect: Cancel, now: Now) -> None:
        """Ask for the end of a call, if that would be heard."""
        given = self._open.get(effect.call_id)
        if given is not None and given.is_cancelable:
            cancel = CancelTool(effect.call_id, effect.reason or None, effect.deadline_ms)
            self._outbox.try_put(
                now, "core.tool.cancel", cancel, None, effect.call_id, given.correlation_id, given.causation_id
            )

    def finished(self, message: Message[ToolResult], value: Any, _now: Now) -> CallFinished:
        """Read ``agent.tool.result``. That of a call we do not know goes on too: the hub has it on record."""
        finished = translate.call_finished(self._session, message, value)
        call_id = finished.call_id
        given = self._open.pop(call_id, None)
        if given is not None and (
            message.request_id != call_id
            or message.correlation_id != given.correlation_id
            or message.causation_id != given.causation_id
        ):
            self._note_echo(message, call_id, given)
        return finished

    def spoil(self, call_id: str, reason: str) -> None:
        """A call's one result cannot be read: that is its outcome (decision 21)."""
        if self._open.pop(call_id, None) is not None:
            problem = fault("tool.invalid_output", reason)
            self._emit(CallFinished(self._session, call_id, Status.FAILED, fault=problem))

    def progressed(self, message: Message[ToolStream], _value: Any, _now: Now) -> CallProgressed | None:
        """Read ``agent.tool.stream``; ``None`` for a chunk that is dropped and noted."""
        chunk = message.payload
        progressed = translate.call_progressed(self._session, message)
        call_id, seq = chunk.call_id, chunk.seq
        given = self._open.get(call_id)
        if given is None:  # OS-107
            self._note("stream.ignored", call_id, "of a call that is not open")
        elif not given.is_streaming:  # OS-112
            self._note("stream.after_end", call_id, f"call {call_id}")
        elif seq <= given.last_seq:  # OS-108
            self._note("stream.repeated", call_id, f"call {call_id}: {seq} after {given.last_seq}")
        else:
            self._note_echo(message, call_id, given)
            if seq > given.last_seq + 1:
                self._note("stream.gap", call_id, f"call {call_id}: {seq} after {given.last_seq}")
            given.last_seq = seq
            given.streamed += len(memoryview(chunk.data))
            if given.streamed <= MAX_STREAM_BYTES:
                given.is_streaming = not progressed.done
                return progressed
            given.is_streaming = False
            self._note("stream.too_large", call_id, f"call {call_id}: more than {MAX_STREAM_BYTES} bytes")
        return None

    def _note_echo(self, message: Message[Any], call_id: str, given: GivenCall) -> None:
        """OS-040 to OS-042, seen from here: a missing echo is recorded, never demanded (decision 20)."""
        if message.request_id != call_id:
            self._note("echo.missing", "request_id", f"{message.type} without its request_id")
        if message.correlation_id != given.correlation_id:
            self._note("echo.missing", "correlation_id", f"{message.type} without its correlation_id")
        if message.causation_id != given.causation_id:
            self._note("echo.missing", "causation_id", f"{message.type} without its causation_id")


class MadeCall(Struct, frozen=True, gc=False):
    """A call that the agent made: what the answer has to carry. Not the message: many may wait for one call."""

    message_id: str
    request_id: str
    correlation_id: str | None
    causation_id: str | None


class MadeCalls:
    """The open calls that the agent made, by its own ``call_id``."""

    def __init__(self, session: int, outbox: Outbox) -> None:
        self._session = session
        self._outbox = outbox
        self._open: dict[str, MadeCall] = {}
        # How many chunks were passed on.
        self._streams: dict[str, int] = {}
        # Who the agent is, once it said so.
        self.caller = Principal("")

    def requested(self, message: Message[ToolCall], value: Any, _now: Now) -> CallRequested:
        """Read ``agent.tool.call``."""
        call_id = message.payload.call_id
        requested = translate.call_requested(self._session, self.caller, message, value)
        if message.request_id is None:
            raise RemoteProtocolError("protocol.invalid_message", "agent.tool.call: request_id is required")
        if call_id in self._open:
            raise RemoteProtocolError("protocol.duplicate_id", "a call of yours with this call_id is open")
        self._open[call_id] = MadeCall(message.id, message.request_id, message.correlation_id, message.causation_id)
        return requested

    def cancel_requested(self, message: Message[CancelTool], _value: Any, _now: Now) -> CancelRequested:
        """Read ``agent.tool.cancel``."""
        cancel = message.payload
        reason = (cancel.reason or "")[:256]
        return CancelRequested(self._session, message.id, self.caller, target=cancel.call_id, reason=reason)

    def answer(self, effect: Answer, now: Now) -> None:
        """Send ``core.tool.result``; the call's name may be used again."""
        made = self._open.pop(effect.ref, None)
        if made is None:
            raise _not_open()
        outbox, message_id, request_id = self._outbox, made.message_id, made.request_id
        correlation_id, causation_id = made.correlation_id, made.causation_id
        result = translate.tool_result(effect)
        body = outbox.write(now, "core.tool.result", result, message_id, request_id, correlation_id, causation_id)
        if len(body) > outbox.max_frame_bytes:
            text = no_room("the result", outbox.max_frame_bytes)
            problem = translate.error_object(fault("tool.output_too_large", text))
            result = ToolResult(result.call_id, "failed", error=problem, exchange_call_id=effect.call_id)
            body = outbox.write(now, "core.tool.result", result, message_id, request_id, correlation_id, causation_id)
        outbox.frames += (prefix(len(body)), body)
        if self._streams:
            self._streams.pop(effect.ref, None)

    def wait(self, effect: Wait, now: Now) -> None:
        """Say that the call waits, and for which approval."""
        waiting = encode_part(TextData(effect.status.value, effect.approval_id))
        self._stream(effect.ref, effect.call_id, "status", waiting, now)

    def progress(self, effect: Progress, now: Now) -> None:
        """Pass a chunk on."""
        self._stream(effect.ref, effect.call_id, effect.channel, effect.data, now, done=effect.done)

    def _stream(self, ref: str, call_id: str, channel: Any, data: Raw, now: Now, *, done: bool = False) -> None:
        made = self._open.get(ref)
        if made is None:
            raise _not_open()
        # Numbered anew: what the exchange itself says of the call stands between the agent's chunks.
        self._streams[ref] = seq = self._streams.get(ref, 0) + 1
        chunk = ToolStream(ref, seq, channel, data, done or None, call_id)
        self._outbox.try_put(
            now, "core.tool.stream", chunk, None, made.request_id, made.correlation_id, made.causation_id
        )


def _not_open() -> LocalProtocolError:
    return LocalProtocolError("no call of this name is open here")

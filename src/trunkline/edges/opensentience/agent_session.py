"""The agent's side of one OpenSentience conversation, without I/O: what the SDK stands on.

Owns what a connection's bytes decide: hello and welcome, registration, which calls are open and which ids their
messages echo, stream numbers, heartbeats, size limits. Does not own running a tool, reconnecting, or anything else that
outlives the connection (``sdk``). The token is written into the hello and not kept::

    GREETING ──welcome──▶ READY ──goodbye──▶ LEAVING ──▶ CLOSED
        └─────── error, silence, end of stream, a broken frame ────▲

What goes wrong is an event in its place among the others (``Refused``, ``Broken``), so whole input and byte by byte
give the same events. Invariant: each call that a ``Called`` event opened gets exactly one result (OS-122).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct

from trunkline import strictjson
from trunkline.edges.framing.length_prefix import FrameDecoder, FrameTooLarge, frame
from trunkline.edges.opensentience import messages
from trunkline.edges.opensentience.agent_events import (
    AgentEvent,
    Answered,
    Broken,
    Called,
    CancelAsked,
    Complained,
    DirectiveAnswered,
    Dismissed,
    Progressed,
    Refused,
    ToolsConfirmed,
    ToolsWithdrawn,
    Welcomed,
)
from trunkline.edges.opensentience.agent_translate import echo, fault_of, rejections, wire_tool
from trunkline.edges.opensentience.messages import Envelope, ErrorObject
from trunkline.errors import LocalProtocolError, RemoteProtocolError
from trunkline.model import Channel, Fault, Now, Status, ToolDefinition, fault, stamp

CAPABILITIES: Final = ("tools", "streaming", "cancellation", "calls", "directives")
WHERE: Final = "agent.runtime"

# Core waits 5 s for our hello; six times that for its answer covers a Core that slows down those who keep failing.
WELCOME_WITHIN_S: Final = 30.0
# After a goodbye Core closes. An agent whose Core forgot to is free to go after this.
CLOSE_WITHIN_S: Final = 5.0
# What one call may stream in total; the rest is dropped and the stream says so.
STREAM_BYTES: Final = 8_388_608
# One chunk: small enough that a flood of text never delays a heartbeat or another call's result by much.
CHUNK_BYTES: Final = 262_144
# What a result needs besides its output: ids of up to 128 characters, times, the names of the fields.
RESULT_ROOM: Final = 2_048
# Our own heartbeats and complaints need less, with ids of 128 characters that are all escapes.
SMALLEST_FRAME_BYTES: Final = 4_096
# A shorter interval would be a busy loop; no sane Core asks for a hundred heartbeats a second.
SHORTEST_HEARTBEAT_S: Final = 0.01

HealthWord = Literal["ok", "degraded", "unhealthy"]


class State(enum.Enum):
    """Where the conversation stands."""

    GREETING = "greeting"
    READY = "ready"
    LEAVING = "leaving"
    CLOSED = "closed"


class Offer(Struct, frozen=True):
    """A tool to register, and how its input is read: into keyword arguments, or into the fault that refuses it."""

    definition: ToolDefinition
    read: Callable[[Raw], dict[str, Any] | Fault]


class _Open(Struct):
    """A call that waits for its result: what its messages echo, and what it streamed."""

    request_id: str | None
    correlation_id: str | None
    causation_id: str | None
    started_ms: int
    seq: int = 0
    streamed: int = 0
    stream_ended: bool = False


class AgentSession:
    """One conversation of an agent with Core; the hello is in the output from the start.

    ``seed`` are ``messages.ID_SEED_BYTES`` random bytes, for the ids of our messages. ``started`` is when the agent
    came up, on the monotonic clock.
    """

    def __init__(
        self,
        agent_id: str,
        version: str,
        token: str,
        offers: Iterable[Offer],
        now: Now,
        seed: bytes,
        *,
        started: float | None = None,
        manifest_hash: str | None = None,
        sdk: messages.Sdk | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.state = State.GREETING
        self.session_id = ""
        self.core_capabilities: frozenset[str] = frozenset()
        self.max_frame_bytes = messages.MAX_FRAME_BYTES
        self._offers = {offer.definition.tool_id: offer for offer in offers}
        self._started = now.mono if started is None else started
        self._frames = FrameDecoder(self.max_frame_bytes)
        self._writer = messages.Writer(seed)
        self._output: list[bytes] = []
        self._open: dict[str, _Open] = {}
        # Our own requests that Core has not answered, and the event that will answer each: a call by its own id, a
        # wish for a directive by that of its message.
        self._asked: dict[str, type[Answered | DirectiveAnswered]] = {}
        self._health: HealthWord = "ok"
        self._health_details: Raw | None = None
        self._interval_s = 0.0
        self._wake_at: float | None = now.mono + WELCOME_WITHIN_S
        self._readers: dict[str, Callable[[Envelope, Now, list[AgentEvent]], None]] = {
            "core.welcome": self._read_welcome,
            "core.tools.registered": self._read_registered,
            "core.tools.unregistered": self._read_unregistered,
            "core.tool.call": self._read_call,
            "core.tool.cancel": self._read_cancel,
            "core.tool.result": self._read_result,
            "core.tool.stream": self._read_stream,
            "core.directive.create": self._read_directive,
            "core.ping": self._read_ping,
            "core.error": self._read_error,
            "core.goodbye": self._read_goodbye,
        }
        protocol = messages.HelloProtocol((messages.VERSION,), CAPABILITIES)
        self._put(now, "agent.hello", messages.Hello(agent_id, version, protocol, token, manifest_hash, sdk))  # OS-143

    def __repr__(self) -> str:
        return f"AgentSession({self.agent_id!r}, {self.state.name})"

    # -- the face of every session -------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: Now) -> list[AgentEvent]:
        """Bytes arrived; ``b""`` means that Core closed."""
        events: list[AgentEvent] = []
        if not data:
            self._close()
        if self.is_closed():
            return events
        self._frames.feed(data)
        try:
            # One by one: the welcome says how large the next may be.
            while not self.is_closed() and (frames := self._frames.take(1)):
                self._read(frames[0], now, events)
        except FrameTooLarge as exc:  # OS-016, OS-022
            self._break("protocol.frame_too_large", str(exc), now, events)
        except RemoteProtocolError as exc:
            self._break(exc.code, exc.message, now, events)
        except LocalProtocolError as exc:
            # The one answer that can be too large is our own list of tools, after the welcome said what a frame holds.
            self._break("protocol.frame_too_large", str(exc), now, events)
        return events

    def take_output(self) -> bytes:
        """Everything to write now."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def wake_at(self) -> float | None:
        """When ``wake`` wants to be called, on the monotonic clock."""
        return self._wake_at

    def wake(self, now: Now) -> list[AgentEvent]:
        """The time has come: a heartbeat, or the end of our patience."""
        if self._wake_at is None or now.mono < self._wake_at:
            return []
        if self.state is State.READY:
            self._heartbeat(now)
            # From the due time, so that a late wake does not shift the rhythm; after a long sleep from now: no burst.
            self._wake_at += self._interval_s
            if self._wake_at <= now.mono:
                self._wake_at = now.mono + self._interval_s
            return []
        silent = self.state is State.GREETING
        self._close()
        return [Broken("protocol.timeout", "Core did not answer the hello in time")] if silent else []

    def is_closed(self) -> bool:
        """Whether the conversation is over."""
        return self.state is State.CLOSED

    @property
    def waiting_frames(self) -> int:
        """How many frames ``take_output`` would give."""
        return len(self._output)

    @property
    def open_calls(self) -> int:
        """How many calls wait for their result."""
        return len(self._open)

    def is_open(self, call_id: str) -> bool:
        """Whether this call waits for its result here."""
        return call_id in self._open and not self.is_closed()

    def fits(self, output: bytes) -> bool:
        """Whether a result with this output fits into a frame (but for ids that are all escapes)."""
        return len(output) + RESULT_ROOM <= self.max_frame_bytes

    # -- what an agent says --------------------------------------------------------------------------------------------

    def stream(self, call_id: str, channel: Channel, data: bytes, now: Now, *, done: bool = False) -> bool:
        """Show something of a running call; False when a bound is reached and it was left out (OS-152).

        ``data`` is a JSON object: ``{"text": …}``, or for ``partial_result`` ``{"json": {…}}``.
        """
        call = self._call(call_id)
        if call.stream_ended:
            return False
        if len(data) > min(CHUNK_BYTES, self.max_frame_bytes - RESULT_ROOM):
            self._chunk(call_id, call, "log", f"{len(data)} bytes were left out here: too much for one chunk", now)
            return False
        if call.streamed + len(data) > STREAM_BYTES:
            self._chunk(call_id, call, "log", f"the stream ends here: it reached {STREAM_BYTES} bytes", now, done=True)
            return False
        self._chunk(call_id, call, channel, data, now, done=done)
        return True

    def finish(
        self, call_id: str, status: Status, now: Now, *, output: bytes | None = None, error: Fault | None = None
    ) -> bool:
        """The one result of a call; False when it did not fit and ``tool.output_too_large`` was said instead."""
        call = self._call(call_id)
        del self._open[call_id]
        body = self._result(call_id, call, status, output, error, now)
        fits = len(body) <= self.max_frame_bytes  # OS-016
        if not fits:
            limit = fault("tool.output_too_large", messages.no_room("the result", self.max_frame_bytes))
            body = self._result(call_id, call, Status.FAILED, None, limit, now)
        self._output.append(frame(body))
        return fits

    def call(
        self,
        tool_id: str,
        body: bytes,
        now: Now,
        *,
        key: str | None = None,
        timeout_ms: int | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> str:
        """Call somebody's tool; the ref that is returned comes back in ``Answered``."""
        self._require("calls")
        ref = self._writer.new_id()
        asked = messages.ToolCall(ref, tool_id, Raw(body), timeout_ms, key)
        self._put(
            now,
            "agent.tool.call",
            asked,
            request_id=ref,
            correlation_id=correlation_id,
            causation_id=causation_id,
        )
        self._asked[ref] = Answered
        return ref

    def cancel(self, ref: str, reason: str, now: Now) -> None:
        """Ask that a call of ours be stopped; its ``Answered`` still follows."""
        if ref in self._asked and not self.is_closed():
            self._put(now, "agent.tool.cancel", messages.CancelTool(ref, reason), request_id=ref)

    def request_directive(self, tool_id: str, arguments: bytes | None, reason: str, now: Now) -> str:
        """Ask a person to state an intent; the ref that is returned comes back in ``DirectiveAnswered``."""
        self._require("directives")
        asked = messages.RequestDirective(tool_id, reason, UNSET if arguments is None else Raw(arguments))
        body = self._writer.write(now, "agent.directive.request", asked, None, self._writer.new_id())
        self._append("agent.directive.request", body)
        ref = messages.envelope(body).id
        self._asked[ref] = DirectiveAnswered
        return ref

    def register(self, offers: Iterable[Offer], now: Now, *, replace: bool = False) -> None:
        """Offer more tools, or with ``replace`` these and no others."""
        self._require()
        added = {offer.definition.tool_id: offer for offer in offers}
        self._put_registration(added.values(), now, replace=replace or None)
        self._offers = added if replace else {**self._offers, **added}

    def unregister(self, tool_ids: Iterable[str], now: Now) -> None:
        """Take tools back: new calls of them are refused, open ones go on."""
        self._require()
        names = tuple(tool_ids)
        self._put(now, "agent.tools.unregister", messages.UnregisterTools(names))
        for tool_id in names:
            self._offers.pop(tool_id, None)

    def report(self, health: HealthWord, now: Now, details: bytes | None = None) -> None:
        """Say how the agent is, at once and from now on."""
        self._health = health
        self._health_details = None if details is None else Raw(details)
        if self.state is State.READY:
            self._heartbeat(now)

    # -- what Core says ------------------------------------------------------------------------------------------------

    def _read(self, body: bytes, now: Now, events: list[AgentEvent]) -> None:
        try:
            strictjson.check(
                body,
                max_depth=strictjson.CARRIED_DEPTH,
                max_containers=strictjson.CARRIED_CONTAINERS,
                want_object=True,
            )
        except strictjson.NotStrictJson as exc:
            raise RemoteProtocolError("protocol.invalid_message", str(exc)) from None
        message = messages.envelope(body)
        if self.state is State.GREETING:
            self._read_greeting(message, now, events)
            return
        reader = self._readers.get(message.type)
        if reader is not None:
            try:
                reader(message, now, events)
            except RemoteProtocolError as exc:
                # A known type with a payload that is wrong: say so, and go on.
                self._complain(message, exc.code, exc.message, now)
        elif message.type.startswith("agent."):  # OS-057
            self._complain(message, "protocol.unexpected_type", "agent.* messages are for agents to send", now)
        elif messages.expects_reply(message):  # OS-148; whoever expects none is ignored, OS-149
            self._complain(message, "protocol.unknown_type", "this agent does not know the type", now)

    def _read_greeting(self, message: Envelope, now: Now, events: list[AgentEvent]) -> None:
        if message.type in {"core.welcome", "core.error"} and message.error is not None:
            # The error first: with one, a welcome's payload may be empty.
            self._close()
            events.append(Refused(message.error.code, message.error.message))
        elif message.type == "core.welcome":
            self._read_welcome(message, now, events)
        elif message.type == "core.goodbye":
            self._read_goodbye(message, now, events)
        else:
            raise RemoteProtocolError("protocol.unexpected_type", "core.welcome comes first")

    def _read_welcome(self, message: Envelope, now: Now, events: list[AgentEvent]) -> None:
        if self.state is not State.GREETING:
            raise RemoteProtocolError("protocol.unexpected_type", "there was a core.welcome already")
        welcome = messages.payload(messages.Welcome, message)
        if welcome.accepted_version != messages.VERSION:
            raise RemoteProtocolError("protocol.unsupported_version", "Core chose a version that was not offered")
        if welcome.max_frame_bytes < SMALLEST_FRAME_BYTES:
            text = f"core.welcome: frames of less than {SMALLEST_FRAME_BYTES} bytes hold no conversation"
            raise RemoteProtocolError("protocol.invalid_message", text)
        self.state = State.READY
        self.session_id = welcome.session_id
        self.core_capabilities = frozenset(welcome.capabilities or ())
        self.max_frame_bytes = self._frames.limit = welcome.max_frame_bytes
        self._interval_s = max(welcome.heartbeat_interval_ms / 1000, SHORTEST_HEARTBEAT_S)
        self._wake_at = now.mono + self._interval_s
        events.append(Welcomed(welcome.session_id, welcome.server.core_version, welcome.server.instance_id))
        if self._offers:
            self._put_registration(self._offers.values(), now)

    def _read_registered(self, message: Envelope, _now: Now, events: list[AgentEvent]) -> None:
        confirmed = messages.payload(messages.ToolsRegistered, message)
        events.append(ToolsConfirmed(confirmed.registered, rejections(confirmed.rejected)))

    def _read_unregistered(self, message: Envelope, _now: Now, events: list[AgentEvent]) -> None:
        gone = messages.payload(messages.ToolsUnregistered, message)
        events.append(ToolsWithdrawn(gone.unregistered, rejections(gone.rejected)))

    def _read_call(self, message: Envelope, now: Now, events: list[AgentEvent]) -> None:
        asked = messages.payload(messages.ToolCall, message)
        call_id = asked.call_id
        call = self._open.get(call_id)
        if call is not None:
            # Sent again while it runs: its one result answers the latest delivery.
            call.request_id = message.request_id
            call.correlation_id = message.correlation_id
            call.causation_id = message.causation_id
            return
        self._open[call_id] = _Open(message.request_id, message.correlation_id, message.causation_id, now.ms)
        offer = self._offers.get(asked.tool_id)
        if offer is None:
            arguments: dict[str, Any] | Fault = fault("tool.not_found", "this agent does not offer the tool")
        elif not messages.is_object(asked.input):
            arguments = fault("tool.invalid_input", "the input is not a JSON object")
        else:
            arguments = offer.read(asked.input)  # OS-105
        if isinstance(arguments, Fault):  # OS-106
            self.finish(call_id, Status.FAILED, now, error=arguments)
            return
        events.append(
            Called(
                call_id,
                asked.tool_id,
                arguments,
                asked.input,
                asked.idempotency_key,
                asked.timeout_ms,
                asked.caller,
                message.correlation_id,
                messages.body(asked.context),
            )
        )

    def _read_cancel(self, message: Envelope, now: Now, events: list[AgentEvent]) -> None:
        asked = messages.payload(messages.CancelTool, message)
        call = self._open.get(asked.call_id)
        if call is None:
            ack = messages.CancelAck(asked.call_id, accepted=False, note="there is no such call, or it has ended")
            self._put(now, "agent.tool.cancel_ack", ack, in_reply_to=message.id, **echo(message))
        else:
            ack = messages.CancelAck(asked.call_id, accepted=True)
            self._put(now, "agent.tool.cancel_ack", ack, in_reply_to=message.id, **echo(call))  # OS-127
            events.append(CancelAsked(asked.call_id, asked.reason, asked.deadline_ms))

    def _read_result(self, message: Envelope, _now: Now, events: list[AgentEvent]) -> None:
        result = messages.payload(messages.ToolResult, message)
        if self._asked.pop(result.call_id, None) is None:
            return
        # In the payload or at top level; the payload's is meant if there are two.
        error = fault_of(result.error or message.error)
        status = Status(result.status)
        if error is not None and error.details and error.details.get("outcome") == Status.UNKNOWN:
            status = Status.UNKNOWN  # this wire has no such word (decision 1)
        events.append(Answered(result.call_id, status, messages.body(result.output), error, result.exchange_call_id))

    def _read_stream(self, message: Envelope, _now: Now, events: list[AgentEvent]) -> None:
        chunk = messages.payload(messages.ToolStream, message)
        if chunk.call_id in self._asked:
            events.append(Progressed(chunk.call_id, chunk.channel, chunk.data))

    def _read_directive(self, message: Envelope, _now: Now, events: list[AgentEvent]) -> None:
        made = messages.payload(messages.CreateDirective, message)
        ref = message.in_reply_to or ""
        if made.directive_id is None and message.error is None and made.status != "refused":
            return
        if self._asked.pop(ref, None) is not None:
            events.append(DirectiveAnswered(ref, made.directive_id, fault_of(message.error)))

    def _read_error(self, message: Envelope, _now: Now, events: list[AgentEvent]) -> None:
        error = message.error or ErrorObject("protocol.error", "Core gave no reason")
        for ref in (message.request_id or "", message.in_reply_to or ""):
            kind = self._asked.pop(ref, None)
            if kind is Answered:
                events.append(Answered(ref, Status.FAILED, fault=fault_of(error)))
                return
            if kind is DirectiveAnswered:
                events.append(DirectiveAnswered(ref, fault=fault_of(error)))
                return
        events.append(Complained(error.code, error.message))

    def _read_ping(self, message: Envelope, now: Now, _events: list[AgentEvent]) -> None:
        self._put(now, "agent.pong", messages.EMPTY, in_reply_to=message.id, **echo(message))  # OS-134

    def _read_goodbye(self, message: Envelope, now: Now, events: list[AgentEvent]) -> None:
        goodbye = messages.payload(messages.Goodbye, message)
        self.state = State.LEAVING
        self._wake_at = now.mono + CLOSE_WITHIN_S
        events.append(Dismissed(goodbye.reason, goodbye.retry_after_ms))

    # -- writing -------------------------------------------------------------------------------------------------------

    def _put(
        self,
        now: Now,
        type_: str,
        payload: Struct,
        *,
        in_reply_to: str | None = None,
        request_id: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        error: ErrorObject | None = None,
    ) -> None:
        body = self._writer.write(
            now, type_, payload, in_reply_to, request_id, correlation_id, causation_id, None, error
        )
        self._append(type_, body)

    def _append(self, type_: str, body: bytes) -> None:
        if len(body) > self.max_frame_bytes:  # OS-016
            raise LocalProtocolError(f"{type_} has {len(body)} bytes, and a frame holds {self.max_frame_bytes}")
        self._output.append(frame(body))

    def _chunk(
        self, call_id: str, call: _Open, channel: Channel, data: bytes | str, now: Now, *, done: bool = False
    ) -> None:
        body = msgspec.json.encode({"text": data}) if isinstance(data, str) else data
        call.seq += 1  # OS-108
        call.streamed += len(body)
        call.stream_ended = done
        chunk = messages.ToolStream(call_id, call.seq, channel, Raw(body), done or None)
        self._put(now, "agent.tool.stream", chunk, **echo(call))  # OS-040, OS-041, OS-042

    def _result(
        self, call_id: str, call: _Open, status: Status, output: bytes | None, error: Fault | None, now: Now
    ) -> bytes:
        result = messages.ToolResult(
            call_id,
            status.value,  # type: ignore[arg-type]  # an outcome; `unknown` is for Core to say
            UNSET if output is None else Raw(output),
            None if error is None else ErrorObject(error.code, error.message, error.details, error.retryable, WHERE),
            stamp(call.started_ms),
            stamp(now.ms),
        )
        return self._writer.write(
            now, "agent.tool.result", result, None, call.request_id, call.correlation_id, call.causation_id
        )

    def _put_registration(self, offers: Iterable[Offer], now: Now, *, replace: bool | None = None) -> None:
        tools = tuple(Raw(msgspec.json.encode(wire_tool(offer.definition))) for offer in offers)
        self._put(now, "agent.tools.register", messages.RegisterTools(tools, replace))

    def _heartbeat(self, now: Now) -> None:
        uptime_ms = int((now.mono - self._started) * 1000)
        details = UNSET if self._health_details is None else self._health_details
        beat = messages.Heartbeat(self.session_id, uptime_ms, len(self._open), self._health, details)
        self._put(now, "agent.heartbeat", beat)  # OS-128

    def _complain(self, message: Envelope, code: str, text: str, now: Now) -> None:
        error = ErrorObject(code, text, retryable=False, where=WHERE)
        self._put(now, "agent.error", messages.EMPTY, in_reply_to=message.id, error=error, **echo(message))

    def _break(self, code: str, text: str, now: Now, events: list[AgentEvent]) -> None:
        if self.state is not State.GREETING:
            self._put(now, "agent.error", messages.EMPTY, error=ErrorObject(code, text, retryable=False, where=WHERE))
        self._close()
        events.append(Broken(code, text))

    def _close(self) -> None:
        self.state = State.CLOSED
        self._wake_at = None

    def _call(self, call_id: str) -> _Open:
        call = self._open.get(call_id)
        if call is None or self.is_closed():
            raise LocalProtocolError("no such call is open here; each gets exactly one result")
        return call

    def _require(self, capability: str = "") -> None:
        if self.state is not State.READY:
            raise LocalProtocolError(f"not possible while {self.state.value}")
        if capability and capability not in self.core_capabilities:
            raise LocalProtocolError(f"this Core does not offer the capability `{capability}`")

"""Core's side of one OpenSentience conversation: sans-IO, whole input and byte by byte give the same events.

Theory of operation::

    AWAITING_HELLO --hello--> AUTHENTICATING --Admit--> READY --Close, fault, silence--> CLOSING --> CLOSED
          |                        |                                                       ^
          +---- fault, 5 s --------+---- Refuse (after its delay) -------------------------+

AWAITING_HELLO takes one frame of at most 64 KiB and only ``agent.hello``. In AUTHENTICATING nothing is read: the hub
decides, and what the peer sent ahead waits, at most 64 KiB of it. READY is the conversation: ``_handlers`` has one
method for each type. In CLOSING the last words are written (a refusal may wait for its time); input is dropped.
CLOSED follows when they were taken, or when the peer is gone. Two kinds of fault (decision 21): what makes the stream
itself doubtful (frame, JSON, envelope, anything before welcome) ends the conversation; a known type with a wrong
payload is answered with ``core.error`` and the conversation goes on. ``receive`` therefore never raises.

Owns who the peer is, what it may say when, and what an answer needs to be remembered for. It does not decide anything
about a call. Invariant: after ``AgentArrived`` comes exactly one ``AgentLeft``, unless the hub refused the agent.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any, Final

from trunkline import strictjson
from trunkline.edges.framing.length_prefix import FrameDecoder, FrameTooLarge
from trunkline.edges.offers import JudgingBudget
from trunkline.edges.opensentience import greetings, translate
from trunkline.edges.opensentience.calls import GivenCalls, MadeCalls
from trunkline.edges.opensentience.heartbeats import Heartbeats, Step
from trunkline.edges.opensentience.inbox import Unread, read_agents
from trunkline.edges.opensentience.messages import (
    EMPTY,
    FROM_AGENT,
    MAX_BESIDE_BODIES_BYTES,
    MAX_HELLO_FRAME_BYTES,
    VERSION,
    CallName,
    CancelAck,
    CreateDirective,
    Empty,
    EnvelopeError,
    ErrorObject,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    PayloadError,
    RequestDirective,
    expects_reply,
    invalid,
    object_body,
    part,
    without_junk,
)
from trunkline.edges.opensentience.outbox import Outbox
from trunkline.edges.opensentience.settings import Settings
from trunkline.edges.opensentience.told import ToldEvents
from trunkline.edges.opensentience.tools import OfferedTools
from trunkline.effects import (
    Admit,
    Answer,
    Cancel,
    Close,
    ConfirmTools,
    ConfirmWithdrawal,
    Deliver,
    Notify,
    Progress,
    Refuse,
    Reply,
    StopTelling,
    ToSession,
    Wait,
)
from trunkline.errors import LocalProtocolError, RemoteProtocolError
from trunkline.events import (
    AgentLeft,
    CancelAcknowledged,
    DirectiveRequested,
    Event,
    HealthReported,
    Noticed,
)
from trunkline.model import Health, Now, Peer, Principal

# An agent that is there says so at once; a stranger holds a connection no longer.
HELLO_WITHIN_S: Final = 5.0
# Sent ahead of the welcome: as much as the one frame a stranger may send. An agent with more has to wait for it.
MAX_SENT_AHEAD_BYTES: Final = 65_536
# P-C3: from a frame's first byte to its last, however the bytes trickle. 4 MiB at 140 KB/s.
FRAME_WITHIN_S: Final = 30.0
# Break the wave: a peer that sends a thousand frames at once is served between others, not before them.
FRAMES_A_TURN: Final = 64
# One peer cannot fill the ledger with notes about itself.
MAX_NOTES: Final = 1_000

_AT_ONCE: Final = 0.0


class State(enum.Enum):
    """Where the conversation stands."""

    AWAITING_HELLO = "awaiting_hello"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"


# Local names: in Python 3.11 a look into the enum takes 70 ns, and each frame looks five times.
AWAITING_HELLO: Final = State.AWAITING_HELLO
AUTHENTICATING: Final = State.AUTHENTICATING
READY: Final = State.READY
CLOSING: Final = State.CLOSING
CLOSED: Final = State.CLOSED


class CoreSession:
    """One connected agent."""

    def __init__(
        self,
        session: int,
        settings: Settings,
        peer: Peer,
        *,
        seed: bytes,
        now: Now,
        judging: JudgingBudget | None = None,
    ) -> None:
        self.state = AWAITING_HELLO
        # Whether ``state`` is CLOSED, for the driver.
        self.is_closed = False
        self.agent_id: str | None = None
        self._session = session
        self._settings = settings
        self._peer = peer
        # Only the origin is known until the hub admits the agent.
        self._who = peer.origin
        self._principal = Principal("")
        self._outbox = Outbox(seed, settings.max_frame_bytes)
        self._session_id = self._outbox.new_id()
        self._decoder = FrameDecoder(MAX_HELLO_FRAME_BYTES)
        self._events: list[Event] = []
        self._noted: set[tuple[str, str]] = set()
        # What the hub knows, so that it is told of the end exactly once.
        self._is_known = False
        # Timers, in monotonic seconds; None: not running.
        self._hello_by: float | None = now.mono + HELLO_WITHIN_S
        self._frame_by: float | None = None
        self._refuse_at: float | None = None
        self._heartbeats = Heartbeats(settings.heartbeat_interval_ms / 1000, now.mono)
        self._paused_at: float | None = None
        self._frames_wait = False
        self._refusal_for = ""
        self._end_reason = "connection_lost"
        self._health = Health.OK
        self._given = GivenCalls(session, self._outbox, self._note, self._events.append)
        self._made = MadeCalls(session, self._outbox)
        limits = translate.ToolSizes(settings.max_tool_input_bytes, settings.max_tool_output_bytes)
        judging = judging or JudgingBudget(translate.EDGE)
        self._tools = OfferedTools(session, self._outbox, self._given.cancelable, limits, judging)
        self._told = ToldEvents(session, self._events.append)
        # By the id of the message that asked.
        self._wishes: dict[str, str] = {}
        # The agent's types that READY takes; agent.hello is not among them.
        self._handlers: dict[str, Callable[[Message[Any], Any, Now], Event | None]] = {
            "agent.tool.result": self._given.finished,
            "agent.tool.stream": self._given.progressed,
            "agent.tool.call": self._take_undeclared,
            "agent.tool.cancel": self._take_undeclared,
            "agent.directive.request": self._take_undeclared,
            "agent.tool.cancel_ack": self._take_cancel_ack,
            "agent.heartbeat": self._take_heartbeat,
            "agent.pong": self._take_pong,
            "agent.tools.register": self._tools.offered,
            "agent.tools.unregister": self._tools.withdrawn,
            "agent.error": self._take_error,
        }
        # What each effect becomes, and the state it needs; None: any that is not ending.
        self._say: dict[type[ToSession], tuple[Callable[[Any, Now], None], State | None]] = {
            Admit: (self._say_welcome, AUTHENTICATING),
            Refuse: (self._say_no, AUTHENTICATING),
            Deliver: (self._given.give, READY),
            Cancel: (self._given.cancel, READY),
            Answer: (self._say_answer, READY),
            Wait: (self._say_wait, READY),
            Progress: (self._say_progress, READY),
            Notify: (self._told.notify, READY),
            StopTelling: (self._told.stop, READY),
            ConfirmTools: (self._say_tools, READY),
            ConfirmWithdrawal: (self._tools.confirm_withdrawal, READY),
            Reply: (self._say_reply, READY),
            Close: (self._say_goodbye, None),
        }

    # -- the face ------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: Now) -> list[Event]:
        """Bytes arrived; ``b""`` means the peer closed."""
        if not data:
            self._take_frames(now, sys.maxsize)
            self._end(self._end_reason)
            self._close()
        elif self.state is READY or self.state is AWAITING_HELLO:
            self._decoder.feed(data)
            self._take_frames(now, FRAMES_A_TURN)
        elif self.state is AUTHENTICATING:
            self._decoder.feed(data)
        if self.state is AUTHENTICATING and self._decoder.held > MAX_SENT_AHEAD_BYTES:
            self._fail("protocol.throttled", "too much was sent ahead of core.welcome", now)
        return self._take_events()

    def send(self, effect: ToSession, now: Now) -> None:
        """The hub wants this said. What comes too late for a conversation that ends is dropped."""
        say, needed = self._say[type(effect)]
        state = self.state
        if state is needed:
            say(effect, now)
        elif state is not CLOSING and state is not CLOSED:
            if needed is not None:
                raise LocalProtocolError(f"{type(effect).__name__} while {state.value}")
            say(effect, now)

    def take_output(self) -> bytes:
        """Everything to write now."""
        out = self._outbox.take()
        if self.state is CLOSING and self._refuse_at is None:
            self._close()
        return out

    def wake_at(self) -> float | None:
        """When ``wake`` is due; 0 is at once."""
        state = self.state
        if self._events:
            return _AT_ONCE
        if state is CLOSING:
            return self._refuse_at
        if state is CLOSED or self._paused_at is not None:
            return None
        if self._frames_wait and state is not AUTHENTICATING:
            return _AT_ONCE
        # In READY, a frame that has to end; before it, the hello.
        at = self._frame_by if state is READY else self._hello_by
        if state is READY:
            for other in (self._heartbeats.due_at, self._told.wake_at()):
                if at is None or (other is not None and other < at):
                    at = other
        return at

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be written and no timer runs but that of the peer's silence."""
        return (
            self.state is READY
            and not self._outbox.frames
            and not self._events
            and not self._frames_wait
            and self._frame_by is None
            and self._told.wake_at() is None
        )

    @property
    def held(self) -> int:
        """How many bytes were received and not read."""
        return self._decoder.held

    @property
    def who(self) -> str:
        """The agent that this says it is."""
        return f"{translate.EDGE}:{self.agent_id or '?'}"

    def wake(self, now: Now) -> list[Event]:
        """The time has come."""
        mono = now.mono
        if self.state is CLOSING:
            if self._refuse_at is not None and mono >= self._refuse_at:
                self._refuse_at = None
                self._say_refused(now)
        elif self.state is not CLOSED and self._paused_at is None:
            if self._frames_wait:
                self._take_frames(now, FRAMES_A_TURN)
            if self._hello_by is not None and mono >= self._hello_by:
                self._fail("hello_timeout", f"no agent.hello within {HELLO_WITHIN_S:g} s", now, goodbye=True)
            elif self._frame_by is not None and mono >= self._frame_by:
                self._fail("frame_timeout", f"a frame took longer than {FRAME_WITHIN_S:g} s", now, goodbye=True)
            self._listen(now)
            if self.state is READY:
                self._told.wake(now)
        return self._take_events()

    def pause(self, now: Now) -> None:
        """Nothing is read from here on, by our own choice: the peer's silence does not count."""
        if self._paused_at is None:
            self._paused_at = now.mono

    def resume(self, now: Now) -> None:
        """Reading goes on."""
        if self._paused_at is not None:
            paused_s = now.mono - self._paused_at
            self._paused_at = None
            self._heartbeats.excuse(paused_s)
            self._frame_by = None if self._frame_by is None else self._frame_by + paused_s
            self._hello_by = None if self._hello_by is None else self._hello_by + paused_s

    # -- frames --------------------------------------------------------------------------------------------------------

    def _take_frames(self, now: Now, at_most: int) -> None:
        """Read whole frames, at most so many; the rest waits for ``wake``."""
        decoder = self._decoder
        taken = 0
        self._frames_wait = False
        while self.state is READY or self.state is AWAITING_HELLO:
            if taken == at_most:
                self._frames_wait = decoder.mid_frame
                break
            # What a peer sent ahead of its welcome stays where it is.
            room = 1 if self.state is AWAITING_HELLO else at_most - taken
            try:
                frames = decoder.take(room)
            except FrameTooLarge as exc:  # OS-022, OS-024
                text = f"{exc.size} bytes; the limit is {exc.limit}"
                self._fail("protocol.frame_too_large", text, now, goodbye=True)
                return
            if not frames:
                break
            taken += len(frames)
            self._take(frames, now)
        # A frame's time counts from its first byte on: only a new partial frame starts a new count.
        if not decoder.mid_frame or self.state is not READY:
            self._frame_by = None
        elif taken or self._frame_by is None:
            self._frame_by = now.mono + FRAME_WITHIN_S

    def _take(self, frames: list[bytes], now: Now) -> None:
        """Read frames in turn, until one of them ends the conversation."""
        handlers = self._handlers
        for frame, read in zip(frames, read_agents(frames), strict=True):
            if not isinstance(read, tuple):
                self._take_unread(read, now)
                if self.state is not READY:
                    return
                continue
            message, value = read
            if len(frame) > MAX_BESIDE_BODIES_BYTES:
                message = without_junk(message, len(frame))
            handler = self._take_first if self.state is AWAITING_HELLO else handlers.get(message.type, self._take_stray)
            try:
                event = handler(message, value, now)
            except RemoteProtocolError as exc:
                if message.type == "agent.tool.result":
                    self._given.spoil(message.payload.call_id, exc.message)
                self._complain(exc, message, now)
                continue
            if event is not None:
                self._events.append(event)
            elif self.state is not READY:
                return

    def _take_unread(self, exc: Unread, now: Now) -> None:
        if isinstance(exc, strictjson.NotStrictJson):
            self._fail("protocol.invalid_message", f"frame: {exc}", now)
        elif isinstance(exc, EnvelopeError):
            self._fail(exc.code, exc.message, now)
        else:
            self._take_unreadable(exc, now)

    def _take_unreadable(self, exc: PayloadError, now: Now) -> None:
        """A known type whose payload is wrong."""
        message = exc.envelope
        if self.state is not READY:
            self._fail(exc.code, exc.message, now, in_reply_to=message.id)
            return
        if message.type == "agent.tool.result":
            named = part(CallName, message.payload)
            if isinstance(named, CallName):
                self._given.spoil(named.call_id, exc.message)
        self._complain(exc, message, now)

    def _take_stray(self, message: Message[Any], _value: Any, now: Now) -> None:
        """A type without a handler: of the other direction, out of place, or of a later version."""
        if message.type.startswith("core."):  # OS-057
            raise RemoteProtocolError("protocol.unexpected_type", "core.* messages are Core's to send")
        if message.type in FROM_AGENT:
            raise RemoteProtocolError("protocol.unexpected_type", "agent.hello was said before")
        if self._settings.strict_types:  # OS-149
            self._fail("protocol.unknown_type", "this type is not known", now, in_reply_to=message.id)
        elif expects_reply(message):  # OS-148
            raise RemoteProtocolError("protocol.unknown_type", "this type is not known")

    # -- what an agent says: handshake and health ----------------------------------------------------------------------

    def _take_first(self, message: Message[Any], _value: Any, now: Now) -> None:
        if message.type != "agent.hello":  # OS-058, OS-144
            self._fail("protocol.unexpected_type", "agent.hello must come first", now, in_reply_to=message.id)
            return
        hello: Hello = message.payload
        # With it goes the last copy of the token, once this returns.
        self._decoder.drop_consumed()
        problem = translate.hello_fault(hello)
        if problem is not None:
            text = f"agent.hello: {problem}"
            self._fail("protocol.invalid_message", text, now, in_reply_to=message.id)
            return
        self._hello_by = None
        if VERSION not in hello.protocol.supported_versions:  # OS-146
            error = self._error("protocol.unsupported_version", "no common version", {"supported": [VERSION]})
            self._outbox.put(now, "core.welcome", EMPTY, message.id, error=error)
            self._note("protocol.unsupported_version", "", f"claimed to be {hello.agent_id}")
            self.state = CLOSING
            return
        self.agent_id = hello.agent_id
        self._principal = Principal(f"{translate.EDGE}:{hello.agent_id}")
        known = greetings.capabilities_of(hello)
        self._given.all_cancelable = "cancellation" in known
        self._made.caller = self._principal
        self._tools.agent_id = self._told.agent_id = hello.agent_id
        if "calls" in known:
            self._handlers["agent.tool.call"] = self._made.requested
            self._handlers["agent.tool.cancel"] = self._made.cancel_requested
        if "directives" in known:
            self._handlers["agent.directive.request"] = self._take_directive
        self._is_known = True
        self.state = AUTHENTICATING
        self._events.append(greetings.arrival(self._session, message, self._peer, self._settings))

    def _take_heartbeat(self, message: Message[Heartbeat], _value: Any, now: Now) -> HealthReported | None:
        beat = message.payload
        if beat.session_id != self._session_id:  # OS-129
            raise invalid(message, "another conversation's id - at `$.session_id`")
        object_body(message, "details", beat.details)
        return self._heard(Health(beat.status), now)

    def _take_pong(self, _message: Message[Empty], _value: Any, _now: Now) -> None:
        """It can be heard; how it is, only its heartbeats say (§4.5.1): a program that hangs may still answer pings."""

    def _heard(self, health: Health, now: Now) -> HealthReported | None:
        changed = self._heartbeats.is_silent or health is not self._health
        self._health = health
        self._heartbeats.heard(now.mono)
        return HealthReported(self._session, health) if changed else None

    def _listen(self, now: Now) -> None:
        """OS-132: what follows from an agent's silence."""
        while self.state is READY:
            match self._heartbeats.due(now.mono):
                case Step.PING:
                    self._outbox.put(now, "core.ping", EMPTY)
                case Step.SILENT:
                    self._events.append(HealthReported(self._session, Health.SILENT))
                case Step.GONE:
                    text = f"no heartbeat in {Step.GONE.value} intervals"
                    self._fail("heartbeat_timeout", text, now, goodbye=True)
                case None:
                    return

    def _take_error(self, message: Message[Empty], _value: Any, _now: Now) -> None:
        code = message.error.code[:64] if message.error is not None else "none"
        self._note("agent.error", code, f"the agent complained: {code}")

    # -- what an agent says: calls and wishes --------------------------------------------------------------------------

    def _take_cancel_ack(self, message: Message[CancelAck], _value: Any, _now: Now) -> CancelAcknowledged:
        ack = message.payload
        return CancelAcknowledged(self._session, ack.call_id, ack.accepted)

    def _take_directive(self, message: Message[RequestDirective], _value: Any, _now: Now) -> DirectiveRequested:
        wish = message.payload
        given = object_body(message, "input", wish.input)
        if message.id in self._wishes:
            raise RemoteProtocolError("protocol.duplicate_id", "a request with this id is open")
        self._wishes[message.id] = wish.tool_id
        return DirectiveRequested(self._session, message.id, self._principal, wish.tool_id, given, wish.reason)

    def _take_undeclared(self, message: Message[Any], _value: Any, _now: Now) -> Event | None:
        capability = "directives" if message.type == "agent.directive.request" else "calls"
        text = f"{message.type} needs the capability `{capability}` in agent.hello"
        raise RemoteProtocolError("protocol.unexpected_type", text)

    # -- what the hub wants said ---------------------------------------------------------------------------------------

    def _say_welcome(self, effect: Admit, now: Now) -> None:
        settings = self._settings
        self.state = READY
        self._who = self._principal.identity
        self._decoder.limit = settings.max_frame_bytes
        self._heartbeats.heard(now.mono)
        self._frames_wait = self._decoder.held > 0
        self._outbox.put(now, "core.welcome", greetings.welcome(self._session_id, settings), effect.ref)

    def _say_answer(self, effect: Answer, now: Now) -> None:
        if effect.ref in self._told.open:
            self._told.answered(effect, now)
        else:
            self._made.answer(effect, now)

    def _say_wait(self, effect: Wait, now: Now) -> None:
        if effect.ref not in self._told.open:
            self._made.wait(effect, now)

    def _say_progress(self, effect: Progress, now: Now) -> None:
        if effect.ref not in self._told.open:
            self._made.progress(effect, now)

    def _say_tools(self, effect: ConfirmTools, now: Now) -> None:
        self._tools.confirm(effect, now)
        self._told.tools_confirmed(effect.registered, self._principal)

    def _say_no(self, effect: Refuse, now: Now) -> None:
        self.state = CLOSING
        self._is_known = False
        self._refusal_for = effect.ref
        if effect.delay_s > 0:
            self._refuse_at = now.mono + effect.delay_s
        else:
            self._say_refused(now)

    def _say_refused(self, now: Now) -> None:
        """OS-073: the same words for every reason."""
        error = self._error("protocol.unauthorized", "the credential is missing or not valid")
        self._outbox.put(now, "core.welcome", EMPTY, self._refusal_for, error=error)

    def _say_reply(self, effect: Reply, now: Now) -> None:
        error = None if effect.fault is None else translate.error_object(effect.fault)
        tool_id = self._wishes.pop(effect.ref, None)
        if tool_id is not None:
            status = effect.status or "stated"
            stated = CreateDirective(tool_id, "refused" if error is not None else status, effect.id)
            self._outbox.put(now, "core.directive.create", stated, effect.ref, error=error)
        elif error is not None:
            self._outbox.put(now, "core.error", EMPTY, effect.ref, error=error)

    def _say_goodbye(self, effect: Close, now: Now) -> None:
        self._outbox.put(now, "core.goodbye", Goodbye(effect.reason, effect.retry_after_ms))
        self._end_reason = effect.reason
        self.state = CLOSING

    # -- faults and the end --------------------------------------------------------------------------------------------

    def _complain(self, exc: RemoteProtocolError, message: Message[Any], now: Now) -> None:
        """Answer a message with ``core.error``; the conversation goes on."""
        self._note(exc.code, message.type, exc.message)
        self._outbox.put(
            now,
            "core.error",
            EMPTY,
            message.id,
            request_id=message.request_id,
            correlation_id=message.correlation_id,
            error=self._error(exc.code, exc.message),
        )

    def _fail(self, code: str, text: str, now: Now, *, in_reply_to: str | None = None, goodbye: bool = False) -> None:
        """Say why, and end the conversation."""
        if goodbye:
            self._outbox.put(now, "core.goodbye", Goodbye(code))
        else:
            self._outbox.put(now, "core.error", EMPTY, in_reply_to, error=self._error(code, text))
        self._note(code, "", text)
        self.state = CLOSING
        self._end(code)

    def _end(self, reason: str) -> None:
        if self._is_known:
            self._is_known = False
            self._events.append(AgentLeft(self._session, reason))

    def _close(self) -> None:
        self.state = CLOSED
        self.is_closed = True

    def _error(self, code: str, text: str, details: dict[str, Any] | None = None) -> ErrorObject:
        debug = {"session": self._session, "state": self.state.value} if self._settings.debug_errors else None
        return ErrorObject(code, text, details, retryable=False, where="core.session", debug=debug)

    def _note(self, code: str, about: str, detail: str) -> None:
        """Put something on record, once for each thing it is about."""
        noted = (code, about)
        if noted not in self._noted and len(self._noted) < MAX_NOTES:
            self._noted.add(noted)
            self._events.append(Noticed(code, translate.EDGE, self._who, detail[:256]))

    def _take_events(self) -> list[Event]:
        events = self._events.copy()
        self._events.clear()
        return events

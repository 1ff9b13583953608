"""The OpenSentience wire, typed: envelope, payloads in both directions, and the making of frames' bodies.

Owns the protocol's field names, which stop here, and the checks that need no memory of the conversation. Does not own
what a message means (``translate``) or when it may come (``session``, ``agent_session``).

Invariant: bodies (``input``, ``output``, ``data``, schemas) stay the bytes they arrived as. ``null`` in an optional
field is the same as absent on receipt, and never sent (decision 20). Unknown fields are ignored everywhere (OS-147).

Types that v1 does not have, and which peers may ignore: ``core.error``, ``agent.error``, ``agent.tool.call``,
``agent.tool.cancel``, ``core.tool.result``, ``core.tool.stream``, ``core.directive.create`` and
``agent.directive.request``.
"""

from __future__ import annotations

import functools
import re
from calendar import monthrange
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from trunkline.errors import RemoteProtocolError
from trunkline.model import MAX_NAME_CHARS, Actor, Channel, Now, stamp

VERSION: Final = 1

# Spec §2.2. Both sides enforce it; core.welcome carries the value in force.
MAX_FRAME_BYTES: Final = 4_194_304
# Before core.welcome nobody is known: a stranger cannot make us hold more than this.
MAX_HELLO_FRAME_BYTES: Final = 65_536

# Ids are opaque (the spec's own examples are no valid UUIDs): only their length is judged.
Id = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
# Long enough for 32 digits of a second. Bounded, for `is_timestamp` remembers some.
Time = Annotated[str, Meta(max_length=64)]
# Above 2^53 a peer that reads numbers as doubles sees another value than we do (decision 23).
Count = Annotated[int, Meta(ge=0, le=9_007_199_254_740_992)]
Names = tuple[str, ...]
# msgspec cannot decode `Raw | None`; an absent body is UNSET, and `null` arrives as the bytes `null`: see `body()`.
Body = Raw | UnsetType


# --- the envelope -----------------------------------------------------------------------------------------------------


class ErrorObject(Struct, frozen=True, omit_defaults=True):
    """The standard error object, spec §3.3. ``debug`` is only sent where the configuration says so."""  # OS-054

    code: str
    message: str
    details: dict[str, Any] | None = None
    retryable: bool | None = None
    where: str | None = None
    debug: dict[str, Any] | None = None


P = TypeVar("P")


class Message(Struct, Generic[P], frozen=True, gc=False):
    """A message as received."""

    v: Literal[1]  # OS-027: msgspec takes neither true, 1.0 nor "1" for it
    type: Id
    id: Id
    ts: Time
    payload: P
    in_reply_to: Id | None = None
    request_id: Id | None = None
    correlation_id: Id | None = None
    causation_id: Id | None = None
    actor: Actor | None = None
    error: ErrorObject | None = None


# With its payload still unread.
Envelope = Message[Raw]


class Outgoing(Struct, frozen=True, omit_defaults=True, gc=False):
    """A message to send; the payload comes last, as the specification prints it. ``payload`` is always given."""

    v: int
    type: str
    id: str
    ts: str
    in_reply_to: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    actor: Actor | None = None
    error: ErrorObject | None = None
    payload: Struct | None = None


# --- payloads: handshake ----------------------------------------------------------------------------------------------


class Empty(Struct, frozen=True):
    """``core.ping``, ``agent.pong``, ``core.error``, ``agent.error``."""


class HelloProtocol(Struct, frozen=True, omit_defaults=True):
    """What the agent speaks."""

    supported_versions: Annotated[tuple[int, ...], Meta(min_length=1)]  # OS-063
    capabilities: Names


class Sdk(Struct, frozen=True, omit_defaults=True):
    """Which library the agent was written with."""

    name: str
    version: str


class Hello(Struct, frozen=True, omit_defaults=True):
    """``agent.hello``. Without a token it is read like one with a wrong token: both are refused in the same bytes."""

    agent_id: str
    agent_version: str
    protocol: HelloProtocol
    session_token: str | None = None
    manifest_hash: str | None = None
    sdk: Sdk | None = None

    def __repr__(self) -> str:  # OS-066: the generated one would print the token into any traceback or log
        return f"Hello(agent_id={self.agent_id!r}, agent_version={self.agent_version!r})"


class Server(Struct, frozen=True):
    """Which exchange answers."""

    core_version: str
    instance_id: str


class Welcome(Struct, frozen=True, omit_defaults=True):
    """``core.welcome``. On failure the payload is empty: test the envelope's ``error`` first.

    ``capabilities`` is ours: which of v1's open additions this Core takes (``calls``, ``directives``).
    """

    accepted_version: int
    session_id: Id
    heartbeat_interval_ms: Annotated[int, Meta(ge=1, le=86_400_000)]
    max_frame_bytes: Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)]
    server: Server
    capabilities: Names | None = None


class Goodbye(Struct, frozen=True, omit_defaults=True):
    """``core.goodbye``."""

    reason: str
    retry_after_ms: Count | None = None


# --- payloads: tools --------------------------------------------------------------------------------------------------


class Tool(Struct, frozen=True, omit_defaults=True):
    """One tool of ``agent.tools.register``."""

    tool_id: str
    name: str
    description: str
    input_schema: Raw
    output_schema: Body = UNSET
    capabilities: Names | None = None
    side_effects: bool | None = None
    requires_directive: bool | None = None
    tags: Names | None = None
    required_permissions: Names | None = None
    # Ours: how long a call may take whose caller does not say. Others leave out what they do not know.
    timeout_ms: Annotated[int, Meta(ge=1, le=9_007_199_254_740_992)] | None = None


class RegisterTools(Struct, frozen=True, omit_defaults=True):
    """``agent.tools.register``. Each tool is read by itself (``part``): one bad tool does not spoil the list."""

    tools: tuple[Raw, ...]
    replace: bool | None = None


class Rejection(Struct, frozen=True):
    """Why one tool was not taken, or not withdrawn."""

    tool_id: str
    error: ErrorObject


class ToolsRegistered(Struct, frozen=True, omit_defaults=True):
    """``core.tools.registered``."""

    registered: Names
    rejected: tuple[Rejection, ...] | None = None


class UnregisterTools(Struct, frozen=True):
    """``agent.tools.unregister``."""

    tool_ids: Names


class ToolsUnregistered(Struct, frozen=True, omit_defaults=True):
    """``core.tools.unregistered``."""

    unregistered: Names
    rejected: tuple[Rejection, ...] | None = None


# --- payloads: calls --------------------------------------------------------------------------------------------------


class Caller(Struct, frozen=True):
    """On whose behalf a tool is called. A remark, never an authorization."""

    type: Literal["human", "agent", "system"]
    id: str


class Context(Struct, frozen=True):
    """The known fields of a call's ``context``; only its shape is judged, the bytes pass through."""

    project_root: str | None = None
    resource_paths: Names | None = None
    ui: Body = UNSET


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """``core.tool.call`` and ``agent.tool.call``."""

    call_id: Id
    tool_id: str
    input: Raw
    timeout_ms: Annotated[int, Meta(ge=1, le=9_007_199_254_740_992)] | None = None
    idempotency_key: Id | None = None
    caller: Caller | None = None
    context: Body = UNSET


class ToolStream(Struct, frozen=True, omit_defaults=True, gc=False):
    """``agent.tool.stream`` and ``core.tool.stream``."""

    call_id: Id
    seq: Annotated[int, Meta(ge=-9_007_199_254_740_992, le=9_007_199_254_740_992)]
    channel: Channel
    data: Raw
    done: bool | None = None
    exchange_call_id: str | None = None


class TextData(Struct, frozen=True, omit_defaults=True):
    """``data`` of all channels but ``partial_result``. ``approval_id`` is ours, only in ``core.tool.stream``."""

    text: str
    approval_id: str | None = None


class JsonData(Struct, frozen=True):
    """``data`` of the channel ``partial_result``."""

    json: Raw


class ToolResult(Struct, frozen=True, omit_defaults=True, gc=False):
    """``agent.tool.result`` and ``core.tool.result``; in the latter ``call_id`` is the caller's own (decision 7)."""

    call_id: Id
    status: Literal["succeeded", "failed", "canceled"]
    output: Body = UNSET
    error: ErrorObject | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    metrics: Body = UNSET
    exchange_call_id: str | None = None


class CallName(Struct, frozen=True):
    """What is left of a payload that cannot be read: which call it was about."""

    call_id: Id


class CancelTool(Struct, frozen=True, omit_defaults=True):
    """``core.tool.cancel`` and ``agent.tool.cancel``."""

    call_id: Id
    reason: str | None = None
    deadline_ms: Count | None = None


class CancelAck(Struct, frozen=True, omit_defaults=True):
    """``agent.tool.cancel_ack``."""

    call_id: Id
    accepted: bool
    note: str | None = None


# --- payloads: health and directives ----------------------------------------------------------------------------------


class Heartbeat(Struct, frozen=True, omit_defaults=True):
    """``agent.heartbeat``."""

    session_id: str
    uptime_ms: Count
    inflight_calls: Count
    status: Literal["ok", "degraded", "unhealthy"]
    details: Body = UNSET


class RequestDirective(Struct, frozen=True, omit_defaults=True):
    """``agent.directive.request``: a person is asked to state this intent."""

    tool_id: str
    reason: str
    input: Body = UNSET


class CreateDirective(Struct, frozen=True, omit_defaults=True):
    """``core.directive.create``: how it stands. ``directive_id`` is what a call then names in ``causation_id``."""

    tool_id: str
    status: str
    directive_id: str | None = None
    approval_id: str | None = None


FROM_AGENT: Final[dict[str, type[Struct]]] = {
    "agent.hello": Hello,
    "agent.tools.register": RegisterTools,
    "agent.tools.unregister": UnregisterTools,
    "agent.tool.call": ToolCall,
    "agent.tool.cancel": CancelTool,
    "agent.tool.stream": ToolStream,
    "agent.tool.result": ToolResult,
    "agent.tool.cancel_ack": CancelAck,
    "agent.heartbeat": Heartbeat,
    "agent.pong": Empty,
    "agent.error": Empty,
    "agent.directive.request": RequestDirective,
}
FROM_CORE: Final[dict[str, type[Struct]]] = {
    "core.welcome": Welcome,
    "core.goodbye": Goodbye,
    "core.tools.registered": ToolsRegistered,
    "core.tools.unregistered": ToolsUnregistered,
    "core.tool.call": ToolCall,
    "core.tool.cancel": CancelTool,
    "core.tool.stream": ToolStream,
    "core.tool.result": ToolResult,
    "core.ping": Empty,
    "core.error": Empty,
    "core.directive.create": CreateDirective,
}


# --- reading ----------------------------------------------------------------------------------------------------------

_decode_envelope: Final = msgspec.json.Decoder(Envelope).decode
_KINDS: Final[set[type[Struct]]] = {Tool, Context, TextData, JsonData, CallName}
_DECODERS: Final[dict[type[Struct], Any]] = {
    kind: msgspec.json.Decoder(kind).decode for kind in _KINDS.union(FROM_AGENT.values(), FROM_CORE.values())
}
_OPEN_BRACE: Final = ord("{")
_LETTER_N: Final = ord("n")
# msgspec quotes a wrong enum value; a fault never does, for the value may be a secret in the wrong place.
_QUOTED_VALUE: Final = re.compile(r"Invalid enum value .*?(?= - at `\$|$)", re.DOTALL)

S = TypeVar("S", bound=Struct)


class EnvelopeError(RemoteProtocolError):
    """A message whose envelope is wrong: what follows it cannot be trusted to be what it seems."""

    def __init__(self, reason: str) -> None:
        super().__init__("protocol.invalid_message", f"envelope: {reason}")


class PayloadError(RemoteProtocolError):
    """A message of a known type whose payload is wrong; the conversation can go on."""

    def __init__(self, message: Envelope, reason: str) -> None:
        super().__init__("protocol.invalid_message", f"{message.type}: {reason}", in_reply_to=message.id)
        self.envelope = message


def no_room(what: str, max_frame_bytes: int) -> str:
    """Why something cannot be sent, and which setting of the exchange decides that."""
    return f"{what} does not fit into a frame of {max_frame_bytes} bytes ([opensentience] max_frame_bytes)"


def envelope(body: bytes) -> Envelope:
    """The envelope of a frame whose JSON ``strictjson`` accepted; ``EnvelopeError`` names the wrong field."""
    try:
        read = _decode_envelope(body)
    except msgspec.DecodeError as exc:
        raise EnvelopeError(_reason(exc)) from None
    if not is_object(read.payload):
        raise EnvelopeError("Expected `object` - at `$.payload`")
    if not is_timestamp(read.ts):
        raise not_a_time()
    return read


def not_a_time() -> EnvelopeError:
    """What is said of a message without a proper ``ts``."""  # OS-031
    return EnvelopeError("not an RFC 3339 time with offset - at `$.ts`")


def payload(kind: type[S], message: Envelope) -> S:
    """The payload of a message, read as ``kind``, or ``PayloadError``."""
    try:
        return cast("S", _DECODERS[kind](message.payload))
    except msgspec.DecodeError as exc:
        raise PayloadError(message, _reason(exc)) from None


def part(kind: type[S], raw: Raw) -> S | str:
    """An inner object (a tool, a stream's data, a context) read as ``kind``, or the reason why it cannot be."""
    try:
        return cast("S", _DECODERS[kind](raw))
    except msgspec.DecodeError as exc:
        return _reason(exc)


def body(raw: Body) -> Raw | None:
    """An optional body, with absent and ``null`` made one. Of all JSON values only ``null`` begins with an n."""
    if raw is UNSET or memoryview(raw)[0] == _LETTER_N:
        return None
    return raw


def object_body(message: Message[Any], field: str, raw: Body) -> Raw | None:
    """An optional body that must be an object."""
    if raw is UNSET:
        return None
    first = memoryview(raw)[0]
    if first == _OPEN_BRACE:
        return raw
    if first == _LETTER_N:
        return None
    raise invalid(message, f"Expected `object` - at `$.{field}`")


def invalid(message: Message[Any], reason: str) -> RemoteProtocolError:
    """A payload that is wrong in a way its types do not show."""
    return RemoteProtocolError("protocol.invalid_message", f"{message.type}: {reason}", in_reply_to=message.id)


def expects_reply(message: Message[Any]) -> bool:
    """Whether a message of a type we do not know wants an answer."""  # OS-148
    return message.request_id is not None and message.in_reply_to is None


# A body is a view of its frame and keeps all of it. So much else may be in there; more is junk that no limit counts.
MAX_BESIDE_BODIES_BYTES: Final = 8_192


def without_junk(message: Message[P], size: int) -> Message[P]:
    """The same message; if there is much in its frame of ``size`` bytes besides its bodies, with bodies of its own."""
    payload = message.payload
    if not isinstance(payload, Struct):
        return message
    views = {name: body for name in payload.__struct_fields__ if isinstance(body := getattr(payload, name), Raw)}
    if size - sum(map(len, views.values())) <= MAX_BESIDE_BODIES_BYTES:
        return message
    copies = {name: view.copy() for name, view in views.items()}
    return msgspec.structs.replace(message, payload=msgspec.structs.replace(payload, **copies))


def is_object(raw: Raw) -> bool:
    """Whether a body that is known to be JSON is an object."""
    return memoryview(raw)[0] == _OPEN_BRACE


def _reason(exc: msgspec.DecodeError) -> str:
    return _QUOTED_VALUE.sub("not one of the allowed values", str(exc))


# --- forms ------------------------------------------------------------------------------------------------------------

_TIMESTAMP: Final = re.compile(
    r"(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d{1,32})?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
# semver.org's own expression.
_SEMVER: Final = re.compile(
    r"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)"
    r"(?:-(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)


# Peers stamp to the millisecond, so under load many messages share one text: 70 ns remembered, 600 ns judged.
@functools.lru_cache(maxsize=256)
def is_timestamp(text: str) -> bool:
    """Whether this is an RFC 3339 time with its offset; a leap second is one."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        return False
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    return day <= 28 or (year > 0 and day <= monthrange(year, month)[1])


def is_semver(text: str) -> bool:
    """Whether this is a version of the semver form."""
    return len(text) <= 128 and _SEMVER.fullmatch(text) is not None


# --- writing ----------------------------------------------------------------------------------------------------------

EMPTY: Final = Empty()
_encode: Final = msgspec.json.Encoder().encode


def encode_part(inner: Struct) -> Raw:
    """An inner object as a body."""
    return Raw(_encode(inner))


# The last 12 digits of a UUID count the messages of one conversation; the others are random, so none is like another.
ID_SEED_BYTES: Final = 10


class Writer:
    """Makes the bodies of outgoing frames: names each message and stamps it, once for each reading of the clock."""

    __slots__ = ("_count", "_now", "_prefix", "_ts")

    def __init__(self, seed: bytes) -> None:
        digits = seed[:ID_SEED_BYTES].hex()
        variant = "89ab"[int(digits[15], 16) & 3]
        # All of a version 8 UUID but its last 12 digits.
        self._prefix = f"{digits[:8]}-{digits[8:12]}-8{digits[12:15]}-{variant}{digits[16:19]}-"
        self._count = 0
        self._now: Now | None = None
        self._ts = ""

    def new_id(self) -> str:
        """A UUID that nobody used before."""  # OS-030, OS-035
        self._count += 1
        return f"{self._prefix}{self._count:012x}"

    def write(
        self,
        now: Now,
        type_: str,
        payload: Struct,
        in_reply_to: str | None = None,
        request_id: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        actor: Actor | None = None,
        error: ErrorObject | None = None,
    ) -> bytes:
        """The body of one frame."""
        if now is not self._now:
            self._now = now
            self._ts = stamp(now.ms)
        self._count += 1
        return _encode(
            Outgoing(
                VERSION,
                type_,
                f"{self._prefix}{self._count:012x}",
                self._ts,
                in_reply_to,
                request_id,
                correlation_id,
                causation_id,
                actor,
                error,
                payload,
            )
        )

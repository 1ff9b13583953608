"""The wire of OSSA, typed: messages as they are read and as they are written, and the ten error codes.

Owns field names, their bounds, and the words of a refusal (``Refused``: an error code, and what the reply says). A
message is judged twice (contradiction 3): by the JSON Schema of the specification, which is shipped as it was printed,
and by its typed interfaces, which say more. Does not own signatures (``signing``), encryption (``sealing``), nor what a
message means to the exchange.

Invariant: what is read here has the shape it claims, and what is built here reads back as it was. Nothing of a message
that is refused is echoed but the ids that the reply is addressed by.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, Final

import jsonschema_rs
import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.errors import RemoteProtocolError
from trunkline.model import EMPTY_OBJECT, LATEST_MS, MAX_NAME_CHARS, stamp
from trunkline.topic_names import MAX_TOPIC_CHARS, is_topic

VERSION: Final = "1.0.0"
MAJOR: Final = "1"
# Silent point 1.
MAX_MESSAGE_BYTES: Final = 1_048_576
# Silent point 22.
MAX_DEPTH: Final = 64
# Silent point 20.
MAX_RECIPIENTS: Final = 100
# What a message has besides its payload, at most, where we make it.
HEADER_ROOM: Final = 16_384
# Fields of a header and of a sender that mean nothing here: they are handed on, once for each recipient.
MAX_OTHERS_BYTES: Final = 8192
# Silent point 19: 0 is the highest.
DEFAULT_PRIORITY: Final = 5
LOWEST_PRIORITY: Final = 9
# RFC 8785 cannot hold more (decision 65: such a message cannot be signed).
MAX_INTEGER: Final = 2**53 - 1
# Whom an error is addressed to whose cause had no sender that could be read (silent point 23).
UNKNOWN: Final = "unknown"

REQUEST, RESPONSE, EVENT = "request", "response", "event"
COMMAND, COMMAND_RESULT = "command", "command_result"
STREAM_START, STREAM_DATA, STREAM_END = "stream_start", "stream_data", "stream_end"
HEARTBEAT, ERROR, ACK, NACK = "heartbeat", "error", "acknowledgment", "negative_acknowledgment"
TYPES: Final = (
    REQUEST, RESPONSE, EVENT, COMMAND, COMMAND_RESULT, STREAM_START, STREAM_DATA, STREAM_END,
    HEARTBEAT, ERROR, ACK, NACK,
)  # fmt: skip
STREAM_TYPES: Final = frozenset({STREAM_START, STREAM_DATA, STREAM_END})

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TIMEOUT = 400, 401, 403, 404, 408
RATE_LIMITED, INTERNAL_ERROR, NOT_IMPLEMENTED, UNAVAILABLE, INSUFFICIENT = 429, 500, 501, 503, 507
CODES: Final = {
    BAD_REQUEST: "BAD_REQUEST",
    UNAUTHORIZED: "UNAUTHORIZED",
    FORBIDDEN: "FORBIDDEN",
    NOT_FOUND: "NOT_FOUND",
    TIMEOUT: "TIMEOUT",
    RATE_LIMITED: "RATE_LIMITED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    UNAVAILABLE: "SERVICE_UNAVAILABLE",
    INSUFFICIENT: "INSUFFICIENT_RESOURCES",
}

SCHEMA: Final = msgspec.json.decode(resources.files(__package__).joinpath("message.schema.json").read_bytes())


_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_UUID_4: Final = re.compile(r".{14}4.{4}[89ab]", re.ASCII | re.IGNORECASE)


def _is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


# Draft 7 does not know the format `uuid`, which the schema names.
_schema: Final = jsonschema_rs.Draft7Validator(SCHEMA, formats={"uuid": _is_uuid}, validate_formats=True)
# By place and the schema's rule: what somebody has to write there.
_EXPECTED: Final = {
    ("header.version", "pattern"): "three numbers, as in 1.0.0",
    ("header.timestamp", "format"): "a time with an offset, as in 2026-01-16T12:00:00Z",
}
AGENT_TYPE: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


class Identity(Struct, frozen=True):
    """Who speaks, or is spoken to. ``others`` are fields that mean nothing here."""

    agent_id: str
    agent_type: str
    instance_name: str | None = None
    version: str | None = None
    others: Mapping[str, object] = {}


class ErrorInfo(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What went wrong."""

    code: int
    message: str
    timestamp: str
    details: Raw | msgspec.UnsetType = msgspec.UNSET
    trace_id: str | None = None


class Message(Struct, frozen=True):
    """One message. ``recipients`` are as many as it names; both moments are texts, as they were written."""

    message_id: str
    type: str
    sender: Identity
    recipients: tuple[Identity, ...]
    timestamp: str
    action: str
    payload: Raw = EMPTY_OBJECT
    error: ErrorInfo | None = None
    correlation_id: str | None = None
    priority: int | None = None
    expires_at: str | None = None
    topic: str | None = None
    # None: what is usual for its type (silent point 10).
    qos: int | None = None
    stream_id: str | None = None
    sequence: int | None = None
    sensitive: bool = False
    signature: str | None = None
    version: str = VERSION
    # Whether the recipient was written as a list, which changes the form of the answer.
    is_to_list: bool = False
    # Fields of the header, the body and the message that mean nothing here.
    others: Mapping[str, Raw] = {}
    body_others: Mapping[str, Raw] = {}
    message_others: Mapping[str, Raw] = {}

    @property
    def level(self) -> int:
        """The quality of service in force."""
        if self.qos is not None:
            return self.qos
        return 1 if self.type in {REQUEST, COMMAND} else 0

    @property
    def urgency(self) -> int:
        """Its priority: 0 is the highest (silent point 19)."""
        return DEFAULT_PRIORITY if self.priority is None else self.priority

    @property
    def sent_ms(self) -> int:
        """When it was made, in milliseconds since 1970."""
        return moment(self.timestamp)

    @property
    def expires_ms(self) -> int | None:
        """When it is not to be delivered any more."""
        return None if self.expires_at is None else moment(self.expires_at)

    def is_expired(self, now_ms: int) -> bool:
        """Whether it is not to be handled any more (silent point 16)."""
        expires_ms = self.expires_ms
        return expires_ms is not None and expires_ms <= now_ms

    @property
    def correlation(self) -> str:
        """The correlation of everything that belongs to this message (silent point 9)."""
        return self.correlation_id or self.message_id


class Refused(RemoteProtocolError):
    """A message that is not taken. ``to`` and ``correlation`` are whom and what the reply is about, as far as known."""

    def __init__(
        self, code: int, text: str, *, to: Identity | None = None, correlation: str | None = None, **details: object
    ) -> None:
        super().__init__(f"ossa.{CODES[code].lower()}", text)
        self.error_code = code
        self.text = text
        self.details = details
        self.to = to
        self.correlation = correlation
        # The identity that proved to have said it; empty if nobody did.
        self.proven = ""
        # It was an error: an error never gets an error (silent point 15).
        self.is_of_error = False


# --- reading ----------------------------------------------------------------------------------------------------------


_parts: Final = msgspec.json.Decoder(dict[str, Raw])
_MESSAGE: Final = frozenset({"header", "body", "signature"})
_IDENTITY: Final = frozenset({"agentId", "agentType", "instanceName", "version"})
_BODY: Final = frozenset({"action", "payload", "error"})


def read(data: bytes, *, any_uuid: bool = False) -> Message:
    """The message in these bytes; ``Refused`` if it is not one. ``any_uuid`` takes ids of peers that make no v4."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise Refused(BAD_REQUEST, f"larger than {MAX_MESSAGE_BYTES} bytes")
    try:
        value = strictjson.load(data, MAX_DEPTH)
    except strictjson.NotStrictJson as error:
        raise Refused(BAD_REQUEST, str(error)) from None
    if type(value) is not dict:
        raise Refused(BAD_REQUEST, "not a JSON object")
    try:
        return _read(value, data, any_uuid=any_uuid)
    except Refused as refused:
        header = value.get("header")
        known = header if type(header) is dict else {}
        refused.to, refused.correlation = _addressed_by(known)
        refused.is_of_error = known.get("type") == ERROR
        raise


def _addressed_by(header: Mapping[str, Any]) -> tuple[Identity | None, str | None]:
    """Whom a refusal goes to and what it is about, as far as these can be read."""
    try:
        to = read_identity(header.get("sender"), "sender")
    except Refused:
        to = None
    correlation = header.get("correlationId", header.get("messageId"))
    if type(correlation) is not str or not 0 < len(correlation) <= MAX_NAME_CHARS or not correlation.isprintable():
        correlation = None
    return to, correlation


def read_own(data: bytes) -> Message:
    """A message that was read before and kept by us."""
    return _read(msgspec.json.decode(data), data, any_uuid=True)


def _read(value: dict[str, Any], data: bytes, *, any_uuid: bool) -> Message:
    if not _schema.is_valid(value):
        problem = next(_schema.iter_errors(value))
        raise Refused(BAD_REQUEST, _where(problem.instance_path) + _what(problem))
    header, body, parts = value["header"], value["body"], _parts.decode(data)
    body_parts = _parts.decode(parts["body"])
    _check_version(header["version"])
    recipients, is_list = _recipients(header["recipient"])
    kind = header["type"]
    message = Message(
        _message_id(header["messageId"], any_uuid=any_uuid),
        kind,
        read_identity(header["sender"], "sender"),
        recipients,
        _time(header["timestamp"], "timestamp"),
        text_of(body["action"], "body.action"),
        body_parts["payload"],
        _error(body_parts["error"]) if "error" in body else None,
        **{field: read(header[name], name) for name, (field, read) in OPTIONAL.items() if name in header},
        signature=_signature(value["signature"]) if "signature" in value else None,
        version=header["version"],
        is_to_list=is_list,
        others=_rest(_parts.decode(parts["header"]), KNOWN) if header.keys() - KNOWN else {},
        body_others=_rest(body_parts, _BODY),
        message_others=_rest(parts, _MESSAGE),
    )
    _check_whole(message)
    sender = 0 if not message.sender.others else len(msgspec.json.encode(message.sender.others))
    if sender + sum(len(name) + len(part) for name, part in message.others.items()) > MAX_OTHERS_BYTES:
        raise Refused(BAD_REQUEST, f"header: more than {MAX_OTHERS_BYTES} bytes of fields of your own")
    return message


def _rest(parts: Mapping[str, Raw], known: frozenset[str]) -> dict[str, Raw]:
    # Copied: a part of a large message would keep all of it.
    return {name: part.copy() for name, part in parts.items() if name not in known}


def _check_whole(message: Message) -> None:
    """What a message of this type must have."""
    if message.type == ERROR and message.error is None:
        raise Refused(BAD_REQUEST, "body.error: missing")
    if message.type in STREAM_TYPES and message.stream_id is None:
        raise Refused(BAD_REQUEST, "streamId: missing")
    if message.type == STREAM_DATA and message.sequence is None:
        raise Refused(BAD_REQUEST, "sequence: missing")
    if message.type == EVENT and message.topic is None:
        raise Refused(BAD_REQUEST, "topic: missing")


def _where(path: list[str | int]) -> str:
    return "".join(f"{part}." for part in path).rstrip(".") + (": " if path else "")


def _what(problem: jsonschema_rs.ValidationError) -> str:
    """What the schema has against it, without a word of it."""
    kind = problem.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        return f"{kind.property} is missing"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Enum):
        return f"expected one of {', '.join(TYPES)}"
    place, rule = ".".join(str(part) for part in problem.instance_path), str(problem.schema_path[-1])
    if (place, rule) in _EXPECTED:
        return f"expected {_EXPECTED[place, rule]}"
    return f"does not match `{rule}` of the message schema"


def _check_version(version: str) -> None:
    if version.partition(".")[0].lstrip("0") != MAJOR:
        raise Refused(NOT_IMPLEMENTED, "this version of the protocol is not spoken here", supported=[VERSION])


def _message_id(text: str, *, any_uuid: bool) -> str:
    # That it is one was the schema's to say.
    if not any_uuid and _UUID_4.match(text) is None:  # contradiction 4
        raise Refused(BAD_REQUEST, "messageId: expected a UUID of version 4")
    return text


def _recipients(given: object) -> tuple[tuple[Identity, ...], bool]:
    if type(given) is not list:
        return (read_identity(given, "recipient"),), False
    if not 0 < len(given) <= MAX_RECIPIENTS:
        raise Refused(BAD_REQUEST, f"recipient: expected one, or a list of 1 to {MAX_RECIPIENTS}")
    found = tuple(read_identity(one, f"recipient.{index}") for index, one in enumerate(given))
    if len({one.agent_id for one in found}) != len(found):
        raise Refused(BAD_REQUEST, "recipient: the same agent twice")
    return found, True


def read_identity(given: object, place: str = "sender") -> Identity:
    """An identity as it stands in a header."""
    if type(given) is not dict:
        raise Refused(BAD_REQUEST, f"{place}: expected an agent's identity")
    agent_type = given.get("agentType")
    if type(agent_type) is not str or AGENT_TYPE.fullmatch(agent_type) is None:  # silent point 7
        raise Refused(BAD_REQUEST, f"{place}.agentType: expected {AGENT_TYPE.pattern}")
    more = {key: text_of(given[key], f"{place}.{key}") for key in ("instanceName", "version") if key in given}
    return Identity(
        text_of(given.get("agentId"), f"{place}.agentId"),
        agent_type,
        more.get("instanceName"),
        more.get("version"),
        {name: value for name, value in given.items() if name not in _IDENTITY},
    )


def text_of(given: object, place: str) -> str:
    """A name or an id, as all of them are bounded."""
    if type(given) is not str or not 0 < len(given) <= MAX_NAME_CHARS or not given.isprintable():
        raise Refused(BAD_REQUEST, f"{place}: expected 1 to {MAX_NAME_CHARS} printable characters")
    return given


def _integer(given: object, place: str, low: int, high: int) -> int:
    if type(given) is float and given.is_integer():
        given = int(given)
    if type(given) is not int or not low <= given <= high:
        raise Refused(BAD_REQUEST, f"{place}: expected an integer from {low} to {high}")
    return given


def _boolean(given: object, place: str) -> bool:
    if type(given) is not bool:
        raise Refused(BAD_REQUEST, f"{place}: expected true or false")
    return given


def _signature(given: object) -> str:
    if type(given) is not str:
        raise Refused(BAD_REQUEST, "signature: expected a string")
    return given


def _time(given: object, place: str) -> str:
    try:
        if type(given) is not str or _TIME.fullmatch(given) is None:
            raise ValueError
        if moment(given) > LATEST_MS:
            raise ValueError
    except (ValueError, OverflowError):
        raise Refused(BAD_REQUEST, f"{place}: expected a time like 2026-01-16T12:00:00Z") from None
    return given


def moment(text: str) -> int:
    """Milliseconds since 1970."""
    return int(dt.datetime.fromisoformat(text).timestamp() * 1000)


def topic_of(given: object, _place: str = "topic") -> str:
    """A topic to publish on: segments between dots (silent point 11)."""
    if type(given) is not str or not is_topic(given):
        raise Refused(BAD_REQUEST, f"topic: expected segments between dots, at most {MAX_TOPIC_CHARS} characters")
    return given


def _in_range(low: int, high: int) -> Callable[[object, str], int]:
    return lambda given, place: _integer(given, place, low, high)


# The fields that a header need not have: the one place where they are spelled. By their name on the wire: what
# ``Message`` calls them, and how they are read. None, and a sensitive that is false, are not written.
OPTIONAL: Final[Mapping[str, tuple[str, Callable[[object, str], Any]]]] = {
    "correlationId": ("correlation_id", text_of),
    "priority": ("priority", _in_range(0, LOWEST_PRIORITY)),
    "expiresAt": ("expires_at", _time),
    "topic": ("topic", topic_of),
    "qos": ("qos", _in_range(0, 2)),
    "streamId": ("stream_id", text_of),
    "sequence": ("sequence", _in_range(0, MAX_INTEGER)),
    "sensitive": ("sensitive", _boolean),
}
# The fields of a header that mean something here. All others are the sender's own, and are passed on (OSSA-098).
KNOWN: Final = frozenset(SCHEMA["properties"]["header"]["required"]) | OPTIONAL.keys()


def _error(given: Raw) -> ErrorInfo:
    try:
        error = msgspec.json.decode(given, type=ErrorInfo)
    except msgspec.DecodeError:
        raise Refused(BAD_REQUEST, "body.error: expected code, message and timestamp") from None
    if error.code not in CODES:
        raise Refused(BAD_REQUEST, "body.error.code: not a code of this protocol")
    _time(error.timestamp, "body.error.timestamp")
    return error


def receipt(message_id: str) -> Raw:
    """The payload of an acknowledgment of a message, or of its opposite (silent point 13)."""
    return Raw(msgspec.json.encode({"messageId": message_id}))


def about(payload: Raw) -> str:
    """The message that an acknowledgment, or its opposite, is about; empty if it does not say."""
    try:
        found = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return ""
    name = found.get("messageId") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""


# --- writing ----------------------------------------------------------------------------------------------------------


def write(message: Message) -> dict[str, object]:
    """A message as it goes on the wire, but for its signature."""
    given: dict[str, object] = {
        "messageId": message.message_id,
        "type": message.type,
        "version": message.version,
        "timestamp": message.timestamp,
        "sender": written(message.sender),
        "recipient": [written(one) for one in message.recipients]
        if message.is_to_list
        else written(message.recipients[0]),
    }
    for name, (field, _) in OPTIONAL.items():
        value = getattr(message, field)
        if value is not None and value is not False:
            given[name] = value
    header = {**given, **message.others}
    body: dict[str, object] = {"action": message.action, "payload": message.payload}
    if message.error is not None:
        body["error"] = message.error
    return {"header": header, "body": {**body, **message.body_others}, **message.message_others}


def written(identity: Identity) -> dict[str, Any]:
    """An identity as it goes on the wire."""
    fields: dict[str, object] = {"agentId": identity.agent_id, "agentType": identity.agent_type}
    if identity.instance_name is not None:
        fields["instanceName"] = identity.instance_name
    if identity.version is not None:
        fields["version"] = identity.version
    return {**fields, **identity.others}


def encode(message: Message) -> bytes:
    """The bytes of a message, with its signature if it has one."""
    fields = write(message)
    if message.signature is not None:
        fields["signature"] = message.signature
    return msgspec.json.encode(fields)


def reply(
    to: Message,
    kind: str,
    sender: Identity,
    message_id: str,
    now_ms: int,
    payload: Raw = EMPTY_OBJECT,
    action: str = "",
) -> Message:
    """An answer to a message: sender and recipient change places, and the thread stays (OSSA-101)."""
    return Message(
        message_id,
        kind,
        sender,
        (to.sender,),
        stamp(now_ms),
        action or to.action,
        payload,
        correlation_id=to.correlation,
    )


def error_reply(refused: Refused, sender: Identity, message_id: str, now_ms: int) -> Message:
    """What the sender of a message that was not taken is told (OSSA-101, OSSA-102)."""
    return Message(
        message_id,
        ERROR,
        sender,
        (Identity(UNKNOWN, UNKNOWN) if refused.to is None else Identity(refused.to.agent_id, refused.to.agent_type),),
        stamp(now_ms),
        "error",
        EMPTY_OBJECT,
        ErrorInfo(
            refused.error_code,
            refused.text,
            stamp(now_ms),
            Raw(msgspec.json.encode(refused.details)) if refused.details else msgspec.UNSET,
        ),
        correlation_id=refused.correlation,
    )

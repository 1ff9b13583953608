"""Bytes to OSSA messages: what is not one is refused in words that help.

A message is judged twice (contradiction 3): by the JSON Schema of the specification, which is shipped as it was
printed, and by its typed interfaces, which say more. Most messages are ordinary: they have no field but the usual ones,
and one reader takes them in a third of the time. It takes nothing that the two judges would not, and gives the same.

Owns the form of each field and its bounds. Does not own what a field means, nor whose message it is (``identity``).

Invariant: what is read here has the shape it claims. Nothing of a message that is refused is echoed but the ids that
the reply is addressed by.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import jsonschema_rs
import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from trunkline import strictjson
from trunkline.edges.ossa.messages import (
    BAD_REQUEST,
    CODES,
    ERROR,
    EVENT,
    HEADER_ROOM,
    KNOWN,
    LOWEST_PRIORITY,
    MAJOR,
    MAX_DEPTH,
    MAX_INTEGER,
    MAX_MESSAGE_BYTES,
    MAX_OTHERS_BYTES,
    MAX_RECIPIENTS,
    NOT_IMPLEMENTED,
    OPTIONAL,
    SCHEMA,
    STREAM_DATA,
    STREAM_TYPES,
    TYPES,
    VERSION,
    ErrorInfo,
    Identity,
    Message,
    Refused,
    moment,
)
from trunkline.model import LATEST_MS, MAX_NAME_CHARS
from trunkline.topic_names import MAX_TOPIC_CHARS, is_topic

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
    ordinary = read_ordinary(data)
    if ordinary is not None:
        return ordinary
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
        _payload(body_parts["payload"], data),
        _error(body_parts["error"]) if "error" in body else None,
        **{OPTIONAL[name]: read(header[name], name) for name, read in _READS.items() if name in header},
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


def _payload(payload: Raw, data: bytes) -> Raw:
    # Copied where it would keep much else: what is kept of a message is counted by what it holds.
    return payload if len(data) - len(payload) <= HEADER_ROOM else payload.copy()


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


def topic_of(given: object, _place: str = "topic") -> str:
    """A topic to publish on: segments between dots (silent point 11)."""
    if type(given) is not str or not is_topic(given):
        raise Refused(BAD_REQUEST, f"topic: expected segments between dots, at most {MAX_TOPIC_CHARS} characters")
    return given


def _in_range(low: int, high: int) -> Callable[[object, str], int]:
    return lambda given, place: _integer(given, place, low, high)


# How the fields that a header need not have are read.
_READS: Final[Mapping[str, Callable[[object, str], Any]]] = {
    "correlationId": text_of,
    "priority": _in_range(0, LOWEST_PRIORITY),
    "expiresAt": _time,
    "topic": topic_of,
    "qos": _in_range(0, 2),
    "streamId": text_of,
    "sequence": _in_range(0, MAX_INTEGER),
    "sensitive": _boolean,
}


def _error(given: Raw) -> ErrorInfo:
    try:
        error = msgspec.json.decode(given, type=ErrorInfo)
    except msgspec.DecodeError:
        raise Refused(BAD_REQUEST, "body.error: expected code, message and timestamp") from None
    if error.code not in CODES:
        raise Refused(BAD_REQUEST, "body.error.code: not a code of this protocol")
    _time(error.timestamp, "body.error.timestamp")
    return error


# --- ordinary messages ------------------------------------------------------------------------------------------------


class _OrdinaryIdentity(Struct, frozen=True, gc=False, forbid_unknown_fields=True, rename="camel"):
    agent_id: str
    agent_type: str


class _OrdinaryHeader(Struct, frozen=True, gc=False, forbid_unknown_fields=True, rename="camel"):
    message_id: str
    type: Literal["request", "response", "event", "command", "command_result", "heartbeat", "acknowledgment"]
    version: Literal["1.0.0"]
    timestamp: str
    sender: _OrdinaryIdentity
    recipient: _OrdinaryIdentity
    correlation_id: str | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=LOWEST_PRIORITY)] | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    qos: Annotated[int, Meta(ge=0, le=2)] | UnsetType = UNSET


class _OrdinaryBody(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    action: str
    payload: Raw


class _Ordinary(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    header: _OrdinaryHeader
    body: _OrdinaryBody
    signature: str | UnsetType = UNSET


_ordinary: Final = msgspec.json.Decoder(_Ordinary)
_ORDINARY_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
_ORDINARY_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{1,9})?Z", re.ASCII)
# Identities that are remembered: agents say the same of themselves in every message.
_IDENTITIES: Final = 1024


def read_ordinary(data: bytes) -> Message | None:
    """The message in these bytes of strict JSON if it is an ordinary one. None says nothing of it."""
    try:
        found = _ordinary.decode(data)
        header, body = found.header, found.body
        if _ORDINARY_ID.fullmatch(header.message_id) is None or _ORDINARY_TIME.fullmatch(header.timestamp) is None:
            return None
        message = Message(
            header.message_id,
            header.type,
            _ordinary_identity(header.sender.agent_id, header.sender.agent_type),
            (_ordinary_identity(header.recipient.agent_id, header.recipient.agent_type),),
            _time(header.timestamp, ""),
            text_of(body.action, ""),
            _payload(body.payload, data),
            correlation_id=None if header.correlation_id is UNSET else text_of(header.correlation_id, ""),
            priority=None if header.priority is UNSET else header.priority,
            topic=None if header.topic is UNSET else topic_of(header.topic),
            qos=None if header.qos is UNSET else header.qos,
            signature=None if found.signature is UNSET else found.signature,
        )
        _check_whole(message)
    except (msgspec.DecodeError, UnicodeDecodeError, Refused):
        return None
    return message


@functools.lru_cache(maxsize=_IDENTITIES)
def _ordinary_identity(agent_id: str, agent_type: str) -> Identity:
    return read_identity({"agentId": agent_id, "agentType": agent_type})

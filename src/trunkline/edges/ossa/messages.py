"""The wire of OSSA, typed: messages and how they are written, and the ten error codes.

Owns field names, and the words of a refusal (``Refused``: an error code, and what the reply says). Does not own how
messages are read and judged (``reading``), signatures (``signing``), encryption (``sealing``), nor what a message means
to the exchange.

Invariant: what is built here reads back as it was.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.errors import RemoteProtocolError
from trunkline.model import EMPTY_OBJECT, stamp

VERSION: Final = "1.0.0"
MAJOR: Final = "1"
# Silent point 1.
MAX_MESSAGE_BYTES: Final = 1_048_576
# Silent point 22.
MAX_DEPTH: Final = 64
# Silent point 20.
MAX_RECIPIENTS: Final = 100
# What a message has besides its payload, at most, where we make it, and mostly where others do.
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
# The fields that a header need not have: by their name on the wire, what ``Message`` calls them (``reading`` says how
# each is read). None, and a sensitive that is false, are not written.
OPTIONAL: Final[Mapping[str, str]] = {
    "correlationId": "correlation_id",
    "priority": "priority",
    "expiresAt": "expires_at",
    "topic": "topic",
    "qos": "qos",
    "streamId": "stream_id",
    "sequence": "sequence",
    "sensitive": "sensitive",
}
# The fields of a header that mean something here. All others are the sender's own, and are passed on (OSSA-098).
KNOWN: Final = frozenset(SCHEMA["properties"]["header"]["required"]) | OPTIONAL.keys()


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
    def size(self) -> int:
        """What it holds, in bytes: its payload, and the fields that mean nothing here."""
        size = len(self.payload)
        for others in (self.others, self.body_others, self.message_others):
            if others:
                size += sum(len(part) for part in others.values())
        return size

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


@functools.lru_cache(maxsize=64)
def moment(text: str) -> int:
    """Milliseconds since 1970."""
    return int(dt.datetime.fromisoformat(text).timestamp() * 1000)


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
    for name, field in OPTIONAL.items():
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

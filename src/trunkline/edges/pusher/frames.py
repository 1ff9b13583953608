"""Pusher's frames, as every edge that speaks its protocol reads and writes them.

Owns names, sizes and codes of Pusher. A frame is one JSON object in one text message, with ``event``, ``data`` and
perhaps ``channel``. Does not own which channels there are, nor what follows from a frame.

``data`` leaves as a JSON *string* (double-encoded), as Pusher's clients expect it, in all events but ``pusher:error``,
where it is an object: one of the clients looks for the code in it without decoding (decision 86). It is read as a
string or as any other value; empty or missing, it is an empty object.

Invariant: reading raises nothing but ``NotAFrame``, whatever a stranger sent.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.model import MAX_INPUT_BYTES

# Pusher's own versions that differ in nothing we use; 7 is what its clients say today.
PROTOCOLS: Final = frozenset({"5", "6", "7"})

# A frame that we take: what the hub takes as an input, and its envelope. Pusher takes 10 kB, which a prompt with a
# picture does not fit into.
MAX_FRAME_BYTES: Final = MAX_INPUT_BYTES
# Pusher's own bounds for names.
MAX_CHANNEL_CHARS: Final = 164
MAX_EVENT_CHARS: Final = 200

ESTABLISHED: Final = "pusher:connection_established"
ERROR: Final = "pusher:error"
PING: Final = "pusher:ping"
PONG: Final = "pusher:pong"
SUBSCRIBE: Final = "pusher:subscribe"
UNSUBSCRIBE: Final = "pusher:unsubscribe"
SUBSCRIBED: Final = "pusher_internal:subscription_succeeded"
NOT_SUBSCRIBED: Final = "pusher:subscription_error"
MEMBER_ADDED: Final = "pusher_internal:member_added"
MEMBER_REMOVED: Final = "pusher_internal:member_removed"
CLIENT_PREFIX: Final = "client-"


class Code(enum.IntEnum):
    """Why a connection ends, or what was not taken; the hundreds say what a client does next.

    4000 to 4099 do not connect again unchanged, 4100 to 4199 connect again after a while, 4200 to 4299 at once, 4300 to
    4399 the connection stays.
    """

    NO_SUCH_APP = 4001
    PATH_NOT_FOUND = 4005
    BAD_VERSION = 4006
    UNSUPPORTED_VERSION = 4007
    NOT_AUTHORIZED = 4009
    NOT_PUSHER = 4099
    OVER_CAPACITY = 4100
    STOPPING = 4101
    TOO_SLOW = 4102
    DEFECT = 4200
    NO_PONG = 4201
    NOT_TAKEN = 4300
    RATE = 4301


class NotAFrame(ValueError):
    """A message that is none of Pusher's; the text says why, and quotes nothing of it."""


class Frame(Struct, frozen=True):
    """One message of a client, its ``data`` decoded."""

    event: str
    channel: str
    data: Any


def read_frame(data: bytes) -> Frame:
    """Read one text message."""
    if len(data) > MAX_FRAME_BYTES:
        raise NotAFrame(f"larger than {MAX_FRAME_BYTES} bytes")
    try:
        value = strictjson.load(data)
    except strictjson.NotStrictJson as error:
        raise NotAFrame(error.fault) from None
    if not isinstance(value, dict):
        raise NotAFrame("expected an object with `event`")
    event, channel = value.get("event"), value.get("channel")
    if not isinstance(event, str) or not 0 < len(event) <= MAX_EVENT_CHARS:
        raise NotAFrame(f"event: expected a text of 1 to {MAX_EVENT_CHARS} characters")
    if channel is None:
        channel = ""
    if not isinstance(channel, str) or len(channel) > MAX_CHANNEL_CHARS:
        raise NotAFrame(f"channel: expected a text of at most {MAX_CHANNEL_CHARS} characters")
    return Frame(event, channel, decoded(value.get("data")))


def decoded(data: Any) -> Any:
    """The ``data`` of a frame: encoded once more, as it is, empty, or not there."""
    if data is None or data == "":
        return {}
    if not isinstance(data, str):
        return data
    try:
        return strictjson.load(data.encode())
    except strictjson.NotStrictJson:
        return data


def frame(event: str, data: object, channel: str = "") -> bytes:
    """A message of ours, its ``data`` encoded once more."""
    return _written(event, encode(data).decode(), channel)


def encoded_frame(event: str, data: str, channel: str) -> bytes:
    """The same for data that is a JSON text already."""
    return _written(event, data, channel)


def error_frame(code: Code, text: str) -> bytes:
    """What was not taken, or why the connection ends."""
    return _written(ERROR, {"code": int(code), "message": text})


def _written(event: str, data: object, channel: str = "") -> bytes:
    found: dict[str, object] = {"event": event, "data": data}
    if channel:
        found["channel"] = channel
    return encode(found)


encode: Final = msgspec.json.Encoder().encode

# Some libraries (Echo) send events of a client only on channels whose names begin so; these are signed.
PRIVATE: Final = "private-"
PRESENCE: Final = "presence-"


class Channels(Struct, frozen=True):
    """The channels of one server: which events of a client each of them takes, and by which names it goes.

    A channel is known by its own name and by that name behind each of the ``prefixes``; behind ``private-`` and
    ``presence-`` who subscribes has to show a signature.
    """

    events: Mapping[str, frozenset[str]]
    prefixes: tuple[str, ...] = (PRIVATE, PRESENCE, "")

    @property
    def names(self) -> tuple[str, ...]:
        """How a client is told which there are: each once, without a prefix where it goes without."""
        prefix = "" if "" in self.prefixes else self.prefixes[0]
        return tuple(f"{prefix}{base}" for base in self.events)

    def base_of(self, channel: str) -> str:
        """Which channel a name stands for; empty if none."""
        for prefix in self.prefixes:
            if channel.startswith(prefix) and (base := channel[len(prefix) :]) in self.events:
                return base
        return ""

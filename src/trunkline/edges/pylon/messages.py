"""The wire of Pylon: Pusher's frames, and the payloads of the events on its two channels.

Owns names, sizes and codes of the protocol, and how a frame and a payload are read and written. A frame is one JSON
object in one text message, with ``event``, ``data`` and perhaps ``channel``. Does not own what follows from one.

``data`` leaves as a JSON *string* (double-encoded), as Pusher's clients expect it, in all events but ``pusher:error``,
where it is an object: one of the clients looks for the code in it without decoding (decision 86). It is read as a
string or as any other value; empty or missing, it is an empty object. Fields are read in both spellings,
``workspaceId`` and ``workspace_id`` (contradiction 9).

Invariant: reading raises nothing but ``NotAFrame`` and ``BadPayload``, whatever a stranger sent.
"""

from __future__ import annotations

import enum
import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.model import MAX_INPUT_BYTES, MAX_NAME_CHARS

# Pusher's own versions that differ in nothing we use; 7 is what its clients say today.
PROTOCOLS: Final = frozenset({"5", "6", "7"})

# A frame that we take: what the hub takes as an input, and its envelope. Pusher takes 10 kB, which a prompt with a
# picture does not fit into.
MAX_FRAME_BYTES: Final = MAX_INPUT_BYTES
# Pusher's own bounds for names.
MAX_CHANNEL_CHARS: Final = 164
MAX_EVENT_CHARS: Final = 200

# --- Pusher -----------------------------------------------------------------------------------------------------------

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

# --- Pylon ------------------------------------------------------------------------------------------------------------

SYSTEM: Final = "pylon.system"
CODEX: Final = "pylon.codex"
CHANNELS: Final = (SYSTEM, CODEX)
# Pusher's clients send events only on these in some libraries (Echo), so each channel has them, too; they are signed.
PRIVATE: Final = "private-"
PRESENCE: Final = "presence-"

CAPABILITIES: Final = "pylon.capabilities"
SYSTEM_PONG: Final = "pylon.system.pong"
DISCOVER: Final = "client-pylon.discover"
SYSTEM_PING: Final = "client-pylon.ping"

CODEX_EVENT: Final = "pylon.codex.event"
CODEX_RESPONSE: Final = "pylon.codex.response"
CODEX_STATUS: Final = "pylon.codex.status"
CODEX_ERROR: Final = "pylon.codex.error"
CONNECT: Final = "client-codex.connect"
DISCONNECT: Final = "client-codex.disconnect"
REQUEST: Final = "client-codex.request"
RESPOND: Final = "client-codex.respond"

CLIENT_EVENTS: Final = {
    SYSTEM: frozenset({DISCOVER, SYSTEM_PING}),
    CODEX: frozenset({CONNECT, DISCONNECT, REQUEST, RESPOND}),
}


def base_of(channel: str) -> str:
    """Which of Pylon's channels a channel's name stands for; empty if none."""
    for prefix in (PRIVATE, PRESENCE, ""):
        if channel.startswith(prefix) and (base := channel[len(prefix) :]) in CHANNELS:
            return base
    return ""


class BadPayload(ValueError):
    """A payload that cannot be used; the text names the field. ``workspace_id`` and ``request_id`` as far as known."""

    def __init__(self, text: str, data: Any) -> None:
        super().__init__(text)
        found = data if isinstance(data, dict) else {}
        self.workspace_id = _name(_field(found, "workspaceId"))
        self.request_id = _id(_field(found, "requestId"))


RequestId = str | int


class Connect(Struct, frozen=True):
    """``client-codex.connect``: a page's name for a folder."""

    workspace_id: str
    cwd: str


class Disconnect(Struct, frozen=True):
    """``client-codex.disconnect``."""

    workspace_id: str


class Request(Struct, frozen=True):
    """``client-codex.request``: a request for the app-server, with an id of the page's own."""

    workspace_id: str
    request_id: RequestId
    method: str
    params: Any


class Respond(Struct, frozen=True):
    """``client-codex.respond``: the answer to something that the app-server asked, under the id that it gave."""

    workspace_id: str
    request_id: RequestId
    result: Any


Payload = Connect | Disconnect | Request | Respond


def read_payload(event: str, data: Any) -> Payload:
    """What one of the four events on ``pylon.codex`` says."""
    if not isinstance(data, dict):
        raise BadPayload("expected an object", data)
    workspace_id = _name(_field(data, "workspaceId"))
    if not workspace_id:
        raise BadPayload(f"workspaceId: expected a text of 1 to {MAX_NAME_CHARS} characters", data)
    if event == DISCONNECT:
        return Disconnect(workspace_id)
    if event == CONNECT:
        cwd = data.get("cwd")
        if not isinstance(cwd, str) or not cwd.startswith("/") or "\0" in cwd or len(cwd) > MAX_PATH_CHARS:
            raise BadPayload("cwd: expected the absolute path of a folder", data)
        return Connect(workspace_id, cwd)
    # Some send the whole JSON-RPC message instead of its parts.
    message = data.get("message")
    inner = message if isinstance(message, dict) else {}
    request_id = _id(_field(data, "requestId"))
    if request_id is None:
        request_id = _id(inner.get("id"))
    if request_id is None:
        raise BadPayload(f"requestId: expected a number or a text of 1 to {MAX_NAME_CHARS} characters", data)
    if event == RESPOND:
        for place in (data, inner):
            if "result" in place:
                return Respond(workspace_id, request_id, place["result"])
        raise BadPayload("result: it is missing", data)
    method = _name(data.get("method")) or _name(inner.get("method"))
    if not method:
        raise BadPayload(f"method: expected a text of 1 to {MAX_NAME_CHARS} characters", data)
    params = data.get("params", inner.get("params"))
    return Request(workspace_id, request_id, method, {} if params is None else params)


# Linux takes 4,096 bytes.
MAX_PATH_CHARS: Final = 4096
_HUMP: Final = re.compile(r"(?=[A-Z])")


def _field(data: dict[str, Any], name: str) -> Any:
    """A field in either spelling; the one of client events first."""
    found = data.get(name)
    return data.get(_HUMP.sub("_", name).lower()) if found is None else found


def _name(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= MAX_NAME_CHARS else ""


def _id(value: Any) -> RequestId | None:
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    return _name(value) or None


def envelope(workspace_id: str, message: object) -> dict[str, object]:
    """The payload of ``pylon.codex.event``: something that the app-server said, as it said it."""
    return {"workspace_id": workspace_id, "message": message}

"""The payloads of the events on Pylon's two channels; the frames around them are Pusher's (``edges.pusher``).

Owns the names of Pylon's channels and events, and how a payload is read and written. Does not own what follows from
one. Fields are read in both spellings, ``workspaceId`` and ``workspace_id`` (contradiction 9).

Invariant: reading raises nothing but ``BadPayload``, whatever a stranger sent.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from trunkline.edges.pusher.frames import Channels
from trunkline.model import MAX_NAME_CHARS

SYSTEM: Final = "pylon.system"
CODEX: Final = "pylon.codex"

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

# Pylon's channels take events of a client although they are public, which Pusher's own do not (contradiction 8).
CHANNELS: Final = Channels(
    {
        SYSTEM: frozenset({DISCOVER, SYSTEM_PING}),
        CODEX: frozenset({CONNECT, DISCONNECT, REQUEST, RESPOND}),
    }
)


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

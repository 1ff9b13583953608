"""JSON-RPC 2.0 as a client of the Model Context Protocol writes and reads it: one message at a time, typed; pure.

Owns the names of the wire. Both eras of the protocol are here: the one with a handshake (up to 2025-11-25:
``initialize``, then requests), and the one without (2026-07-28: every request says in ``_meta`` who asks, and in which
version). Does not own what is asked when (``session``), nor how messages travel (``piped``, ``remote``).

Invariant: nothing that a server writes raises; what is no message is None.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson

DISCOVER: Final = "server/discover"
INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
LISTEN: Final = "subscriptions/listen"
LIST_TOOLS: Final = "tools/list"
CALL_TOOL: Final = "tools/call"
PING: Final = "ping"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"

encode: Final = msgspec.json.encode


class Message(Struct, frozen=True):
    """One message of a server. Bodies stay the bytes they arrived as."""

    method: str | None = None
    id: str | int | None = None
    params: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()

    @property
    def is_answer(self) -> bool:
        """Whether it answers a request of ours."""
        return self.method is None and self.id is not None and bool(bytes(self.result) or bytes(self.error))


class Error(Struct, frozen=True):
    """Why a request was not answered with a result."""

    code: int = 0
    message: str = ""
    data: Any = None


class Tool(Struct, frozen=True, rename="camel"):
    """A tool as a server lists it. Fields that are not here do not say what it does."""

    name: str
    input_schema: Raw
    description: str | None = None
    title: str | None = None
    output_schema: Raw = Raw()
    annotations: Raw = Raw()


class ToolList(Struct, frozen=True, rename="camel"):
    """One page of ``tools/list``. Each tool is read for itself: one that cannot be read hides no other."""

    tools: list[Raw]
    next_cursor: str | None = None


class Discovered(Struct, frozen=True, rename="camel"):
    """The answer to ``server/discover``."""

    supported_versions: list[str]
    capabilities: dict[str, Any] = {}
    meta: Any = msgspec.field(name="_meta", default=None)


class Initialized(Struct, frozen=True, rename="camel"):
    """The answer to ``initialize``."""

    protocol_version: str
    capabilities: dict[str, Any] = {}
    server_info: Any = None


class Progress(Struct, frozen=True, rename="camel"):
    """What a running request shows."""

    progress_token: str | int
    progress: float | None = None
    total: float | None = None
    message: str | None = None


class ResultKind(Struct, frozen=True, rename="camel"):
    """What is looked at of a result: whether it is one (2026-07-28), and whether the tool says that it failed."""

    result_type: str = "complete"
    is_error: bool = False
    input_requests: dict[str, Any] | None = None


_read_message: Final = msgspec.json.Decoder(Message).decode


def read(data: bytes) -> Message | None:
    """One message; None if it is none. A list of messages (2025-03-26) is none: nothing of ours asks for one."""
    try:
        strictjson.check(data, max_depth=strictjson.CARRIED_DEPTH, max_containers=strictjson.CARRIED_CONTAINERS)
        return _read_message(data)
    except (strictjson.NotStrictJson, msgspec.DecodeError):
        return None


def part(kind: type[Any], raw: Raw) -> Any:
    """A part of a message as this type, or None."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        return None

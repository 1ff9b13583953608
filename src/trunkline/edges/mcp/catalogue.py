"""The tools as an MCP client is shown them: which of them, by which names, in which form, in pages.

Owns profiles: a caller with one sees, and can name, only the tools that it lists. Does not own whether a call is
allowed: policy decides that for each call.

Invariant: what a caller is shown changes only when a tool of his view does. A tool whose agent is away stays; one whose
definition waits for approval is not shown, since nobody has read what it says yet.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.config import Profile
from trunkline.edges import tool_results
from trunkline.edges.exchange import Views
from trunkline.edges.framing.json_rpc import INVALID_PARAMS
from trunkline.edges.mcp.messages import BadMessage, encode
from trunkline.edges.mcp.names import shown_name
from trunkline.model import MOUNT_PREFIX
from trunkline.shown import ToolView

# Tools in one answer: with schemas of some KiB each it stays below a megabyte.
PAGE_TOOLS: Final = 250
# A keyword of 2026-07-28 by which clients repeat arguments in headers. We read the body, so they need not.
_HEADER_KEYWORD: Final = b'"x-mcp-header"'


class Listed(Struct, frozen=True):
    """One tool of a view."""

    tool_id: str
    name: str
    # Its definition, encoded.
    definition: Raw
    # Whether clients hold its results against a schema.
    has_output_schema: bool


class ToolList:
    """What the callers of one profile, or those without any, are shown."""

    def __init__(self, tools: Sequence[Listed]) -> None:
        self.tools = sorted(tools, key=lambda tool: tool.name)
        self._by_name = {tool.name: tool for tool in self.tools}
        # The same for equal lists.
        self.digest = hashlib.sha256(b"".join(bytes(tool.definition) for tool in self.tools)).digest()

    def __len__(self) -> int:
        return len(self.tools)

    def find(self, name: str) -> Listed | None:
        """The tool of this name."""
        return self._by_name.get(name)

    def page(self, cursor: object) -> dict[str, object]:
        """Tools from a cursor on, and the next one's if there are more."""
        after = "" if cursor is None else _name_in(cursor)
        rest = [tool for tool in self.tools if tool.name > after] if after else self.tools
        shape: dict[str, object] = {"tools": [tool.definition for tool in rest[:PAGE_TOOLS]]}
        if len(rest) > PAGE_TOOLS:
            shape["nextCursor"] = base64.urlsafe_b64encode(rest[PAGE_TOOLS - 1].name.encode()).decode()
        return shape


class Catalogue:
    """The lists of all profiles, made again when a tool changes."""

    def __init__(self, views: Views, profiles: Sequence[Profile]) -> None:
        self._views = views
        self._profiles = [(_glob(profile.caller), profile) for profile in profiles]
        self._version = -1
        self._lists: dict[str, ToolList] = {}

    def profile_of(self, caller: str) -> str:
        """The name of the profile that holds for a caller; empty if none does."""
        return next((profile.name for glob, profile in self._profiles if glob.fullmatch(caller)), "")

    def of(self, caller: str) -> ToolList:
        """What this caller is shown."""
        version = self._views.tools_version()
        if version != self._version:
            self._version = version
            self._lists.clear()
        name = self.profile_of(caller)
        found = self._lists.get(name)
        if found is None:
            found = self._lists[name] = self._made(name)
        return found

    def _made(self, name: str) -> ToolList:
        wanted = next((profile.tools for _, profile in self._profiles if profile.name == name), ("*",))
        globs = [_glob(pattern) for pattern in wanted]
        return ToolList(
            [
                listed(view)
                for view in self._views.tools()
                if view.status != "suspended" and any(glob.fullmatch(view.tool_id) for glob in globs)
            ]
        )


@functools.cache
def _glob(pattern: str) -> re.Pattern[str]:
    """As in rules: ``*`` stands for any characters."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def listed(view: ToolView) -> Listed:
    """A tool in the protocol's words."""
    output_schema = _output_schema(view)
    title = view.tool_id.partition("/")[2]
    shape: dict[str, object] = {
        "name": shown_name(view.tool_id),
        "title": title,
        "description": view.description,
        "inputSchema": _input_schema(bytes(view.input_schema)),
        "annotations": {
            "title": title,
            "readOnlyHint": not view.side_effects,
            "destructiveHint": view.side_effects,
            "idempotentHint": "idempotency" in view.capabilities,
        },
        "_meta": {"trunkline/tool_id": view.tool_id, "trunkline/requires_directive": view.requires_directive},
    }
    if output_schema is not None:
        shape["outputSchema"] = output_schema
    return Listed(view.tool_id, shown_name(view.tool_id), Raw(encode(shape)), output_schema is not None)


def _input_schema(schema: bytes) -> object:
    """Its root says ``object``, as the protocol wants, and no argument is asked for in a header."""
    value: Any = msgspec.json.decode(schema)
    has_headers = _HEADER_KEYWORD in schema
    if isinstance(value, dict) and value.get("type") == "object" and not has_headers:
        return Raw(schema)
    if not isinstance(value, dict):  # `true`: anything
        value = {}
    return {**(_without_headers(value) if has_headers else value), "type": "object"}


def _without_headers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_headers(part) for name, part in value.items() if name != "x-mcp-header"}
    return [_without_headers(part) for part in value] if isinstance(value, list) else value


def _output_schema(view: ToolView) -> object | None:
    """What a client may hold results against: only objects, which all versions of the protocol know."""
    if view.output_schema is None:
        return None
    value: Any = msgspec.json.decode(bytes(view.output_schema))
    if view.tool_id.startswith(MOUNT_PREFIX):
        # Around it is what the server's result looks like as a whole: outputs of theirs have the protocol's own form.
        inner = tool_results.structured(value)
        return inner if isinstance(inner, dict) and inner.get("type") == "object" else None
    return view.output_schema if isinstance(value, dict) and value.get("type") == "object" else None


def _name_in(cursor: object) -> str:
    try:
        return base64.b64decode(str(cursor), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise BadMessage(INVALID_PARAMS, "cursor: expected one that an earlier answer named") from None

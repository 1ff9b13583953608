"""Pylon's words and ours: what is shown of the exchange, the tools behind the events on ``pylon.codex``, and outcomes.

Owns the names of the four tools, the form of their inputs, and every payload that leaves. Pure.

A client's events are calls: ``connect``, ``request`` and ``respond`` by ``pylon:<app_key>``, and ``approve`` for what
the app-server asks of a person. So policy, questions and the record hold for them as for all calls (decision 87).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.pusher.frames import encode
from trunkline.edges.pylon.messages import RequestId
from trunkline.effects import Answer
from trunkline.model import MAX_OUTPUT_BYTES, Fault, Now, Status, ToolDefinition, stamp
from trunkline.shown import ToolView

EDGE: Final = "pylon"
AGENT: Final = "pylon.codex"
CONNECT: Final = f"{AGENT}/connect"
REQUEST: Final = f"{AGENT}/request"
RESPOND: Final = f"{AGENT}/respond"
APPROVE: Final = f"{AGENT}/approve"

# Tools in one snapshot: a page lists them. What is left out is counted.
MAX_TOOLS: Final = 1000

# Of a workspace, as the client is told (silent point 24).
CONNECTED: Final = "connected"
DISCONNECTED: Final = "disconnected"
DISABLED: Final = "disabled"
UNAVAILABLE: Final = "unavailable"
FAILED: Final = "failed"


# --- tools ------------------------------------------------------------------------------------------------------------


class ConnectInput(Struct, frozen=True):
    """Which folder is opened under which name, for which connection."""

    workspace_id: str
    cwd: str
    client: str


class RequestInput(Struct, frozen=True):
    """A request to the app-server of a workspace."""

    workspace_id: str
    client: str
    method: str
    params: Any


class RespondInput(Struct, frozen=True):
    """A client's answer to a question of the app-server."""

    workspace_id: str
    client: str
    question: str
    result: Any


class ApproveInput(Struct, frozen=True):
    """What the app-server of a workspace asks of a person."""

    workspace_id: str
    cwd: str
    question: str
    method: str
    params: Any


T = TypeVar("T", ConnectInput, RequestInput, RespondInput, ApproveInput)

_TEXTS: Final[tuple[tuple[str, type[Struct], str], ...]] = (
    (
        CONNECT,
        ConnectInput,
        (
            "Start `codex app-server` in a folder for a page that is connected to Pylon. Until it disconnects, the page"
            " may have codex do anything there that codex may do, and answer what codex asks."
        ),
    ),
    (REQUEST, RequestInput, "A request of a page to the codex app-server of a workspace that it has connected."),
    (RESPOND, RespondInput, "A page answers what the codex app-server of its workspace asks."),
    (APPROVE, ApproveInput, "Codex asks whether it may go on: run a command, change files, have more permissions."),
)


def definitions() -> tuple[ToolDefinition, ...]:
    """The four tools. All of them have side effects: whatever codex does is behind each."""
    return tuple(
        ToolDefinition(
            name,
            text,
            Raw(encode({**_inlined(shape), "additionalProperties": False})),
            max_output_bytes=MAX_OUTPUT_BYTES,
        )
        for name, shape, text in _TEXTS
    )


def _inlined(shape: type[Struct]) -> dict[str, Any]:
    (found,) = msgspec.json.schema_components([shape])[1].values()
    return {name: value for name, value in found.items() if name in {"type", "properties", "required"}}


def read_input(shape: type[T], body: Raw) -> T | None:
    """The input of a call; None if another caller than this edge made it up."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.MsgspecError:
        return None


# --- payloads ---------------------------------------------------------------------------------------------------------


def tool_key(tools: Iterable[ToolView]) -> tuple[tuple[str, str, str], ...]:
    """What tells one state of the registry from another."""
    return tuple((tool.tool_id, tool.status, tool.fingerprint) for tool in tools)


def capabilities(tools: list[ToolView], version: str, codex: Mapping[str, bool], now: Now) -> dict[str, object]:
    """The payload of ``pylon.capabilities``: all tools by name, and whether codex can be had."""
    shown = tools[:MAX_TOOLS]
    found: dict[str, object] = {
        "timestamp": stamp(now.ms),
        "pylon": {"version": version, "mode": "exchange", "network": "loopback"},
        "codex": dict(codex),
        "tools": [
            {
                "tool_id": tool.tool_id,
                "description": tool.description,
                "status": tool.status,
                "side_effects": tool.side_effects,
            }
            for tool in shown
        ],
    }
    if len(tools) > len(shown):
        found["truncated"] = True
    return found


def pong(now: Now) -> dict[str, object]:
    """The payload of ``pylon.system.pong``."""
    return {"timestamp": stamp(now.ms)}


def status(workspace_id: str, word: str, detail: str = "") -> dict[str, object]:
    """The payload of ``pylon.codex.status``."""
    return {"workspace_id": workspace_id, "status": word, "detail": detail}


def error(workspace_id: str, message: str) -> dict[str, object]:
    """The payload of ``pylon.codex.error``."""
    return {"workspace_id": workspace_id, "message": message}


def response(workspace_id: str, request_id: RequestId, answer: Answer) -> dict[str, object]:
    """The payload of ``pylon.codex.response``: the result, or the app-server's own error, or why it was not asked."""
    found: dict[str, object] = {"workspace_id": workspace_id, "request_id": request_id}
    if answer.status is Status.SUCCEEDED:
        return {**found, "ok": True, "result": answer.output or Raw(b"null")}
    return {**found, "ok": False, "error": shown_error(answer.fault)}


def refused(workspace_id: str, request_id: RequestId, problem: Fault) -> dict[str, object]:
    """The same for a request that was not made."""
    return {"workspace_id": workspace_id, "request_id": request_id, "ok": False, "error": shown_error(problem)}


def shown_error(problem: Fault | None) -> object:
    """The app-server's error as it said it, or a fault of ours."""
    if problem is None:
        return {"code": "tool.failed", "message": "no result"}
    own = (problem.details or {}).get("error")
    return own if isinstance(own, dict) else {"code": problem.code, "message": problem.message}

"""An operation as a call of a tool, and a call's outcome as an event.

Each space is the agent ``space.<name>``; the six operations are six tools. A tool's input is the operation without
``type`` and ``id``, its output the event's own fields: nothing inside is renamed, so that there is one description of
both. Owns the tools' definitions and the words for what went wrong; does not own when an operation is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.spaces.messages import (
    DEFAULT_TIMEOUT_MS,
    ENCODINGS,
    MAX_EDITS,
    MAX_MESSAGE_BYTES,
    MAX_VARIABLES,
    PROTOCOL_VERSION,
)
from trunkline.effects import Answer
from trunkline.errors import ScriptChanged, WorkspaceError
from trunkline.model import Decision, Fault, Status, ToolDefinition, Verdict, fault, stamp
from trunkline.workspace import policy

EDGE: Final = "space"
AGENT_PREFIX: Final = "space."

TOOL_OF: Final = {
    "message": "message",
    "createFile": "create_file",
    "readFile": "read_file",
    "editFile": "edit_file",
    "deleteFile": "delete_file",
    "shell": "shell",
}

# A rule said no, or a person did: the operation is skipped and the run goes on.
DENIED: Final = frozenset(
    {"policy.denied", "policy.directive_required", "approval.expired", "chain.refused", "tool.suspended"}
)
# What the exchange says when it cannot take a call on at all.
STOPPING: Final = "hub.unavailable"
GONE: Final = frozenset({"tool.not_found", "tool.unavailable"})
# In the details of a fault: ``errors.ScriptChanged``.
SCRIPT_CHANGED: Final = "scriptChanged"
# Likewise: what went wrong with a file, without its path.
WITHOUT_PATH: Final = "problem"
NOT_KNOWN: Final = "whether the operation took effect is not known"
# The place of a defect of ours is on record, for the operator.
DEFECT: Final = "A defect of the exchange ended this; the operator's record says where"

encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.decode


# --- tools ------------------------------------------------------------------------------------------------------------


def _schema(required: tuple[str, ...], **properties: object) -> Raw:
    return Raw(encode({"type": "object", "properties": properties, "required": required}))


_TEXT: Final = {"type": "string"}
_PATH: Final = {"type": "string", "minLength": 1, "maxLength": 255, "description": "Relative to the space's root."}
_ENCODING: Final = {"enum": ENCODINGS, "default": "utf-8"}
_EDIT: Final = {
    "type": "object",
    "properties": {
        "oldContent": {"type": "string", "minLength": 1, "description": "Text to find; it must stand in one place."},
        "newContent": _TEXT,
        "replaceAll": {"type": "boolean", "description": "Replace it wherever it stands."},
    },
    "required": ["oldContent", "newContent"],
}
_EDITS: Final = {"type": "array", "minItems": 1, "maxItems": MAX_EDITS, "items": _EDIT}
_ENV: Final = {
    "type": "object",
    "maxProperties": MAX_VARIABLES,
    "additionalProperties": _TEXT,
    "description": "Extra environment variables.",
}
_TIMEOUT: Final = {"type": "number", "minimum": 1, "default": DEFAULT_TIMEOUT_MS, "description": "Milliseconds."}


class Described(Struct, frozen=True):
    """What all spaces' tools of one kind have in common."""

    text: str
    input_schema: Raw
    side_effects: bool = True
    capabilities: tuple[str, ...] = ()


TOOLS: Final = {
    "create_file": Described(
        "Create a file in this space; missing folders are made.",
        _schema(
            ("path", "content"),
            path=_PATH,
            content=_TEXT,
            encoding=_ENCODING,
            overwrite={"type": "boolean", "default": False},
        ),
    ),
    "read_file": Described(
        "Read a file of this space.", _schema(("path",), path=_PATH, encoding=_ENCODING), side_effects=False
    ),
    "edit_file": Described(
        "Replace passages of a text file, all or none.", _schema(("path", "edits"), path=_PATH, edits=_EDITS)
    ),
    "delete_file": Described("Delete a file of this space.", _schema(("path",), path=_PATH)),
    "message": Described(
        "Say what you are about to do. Nothing is done; it is on record.",
        _schema(("content",), content=_TEXT),
        side_effects=False,
    ),
    "shell": Described(
        "Run a command in this space's sandbox.",
        _schema(("command",), command=_TEXT, cwd=_TEXT, timeout=_TIMEOUT, env=_ENV),
        capabilities=("cancellation", "streaming"),
    ),
}


def agent_id(space: str) -> str:
    """The agent that a space is to others."""
    return f"{AGENT_PREFIX}{space}"


def tool_id(space: str, kind: str) -> str:
    """The tool that carries out this type of operation."""
    return f"{AGENT_PREFIX}{space}/{TOOL_OF[kind]}"


def space_of(tool_id: str) -> str:
    """The space whose tool this is."""
    return tool_id.partition("/")[0].removeprefix(AGENT_PREFIX)


def definitions(space: str, *, has_shell: bool) -> tuple[ToolDefinition, ...]:
    """The tools of a space; without a sandbox there is no shell (decision 25)."""
    return tuple(
        ToolDefinition(
            f"{AGENT_PREFIX}{space}/{name}",
            tool.text,
            tool.input_schema,
            capabilities=tool.capabilities,
            side_effects=tool.side_effects,
            tags=("space",),
            max_input_bytes=MAX_MESSAGE_BYTES,
        )
        for name, tool in TOOLS.items()
        if has_shell or name != "shell"
    )


def tool_input(operation: Mapping[str, Any]) -> Raw:
    """What the tool is called with."""
    return Raw(encode({key: value for key, value in operation.items() if key not in {"type", "id"}}))


# --- policy -----------------------------------------------------------------------------------------------------------


class _Subject(Struct, frozen=True):
    """Of an input, what rules are about."""

    path: str = ""
    command: str = ""
    env: dict[str, str] = {}


_ACTIONS: Final = {"create_file": "create", "read_file": "read", "edit_file": "edit", "delete_file": "delete"}
_read_subject: Final = msgspec.json.Decoder(_Subject).decode


def judge(rules: policy.SpacePolicy, tool: str, body: Raw) -> policy.SpaceVerdict | None:
    """What a space's own rules say to one input; None: nothing. ``WorkspaceError`` if it cannot be an input at all."""
    if tool == "message":
        return None
    try:
        subject = _read_subject(body)
    except msgspec.DecodeError:
        raise WorkspaceError("validation", "The input is not what the tool's schema says") from None
    if tool == "shell":
        if len(subject.env) > MAX_VARIABLES:
            raise WorkspaceError("validation", f"env: at most {MAX_VARIABLES} variables")
        return policy.judge_command(rules, subject.command, subject.env)
    return policy.judge_file(rules, _ACTIONS[tool], subject.path)  # type: ignore[arg-type]


def guard_verdict(rules: policy.SpacePolicy, agent: str, tool: str, body: Raw) -> Verdict | None:
    """The same in the hub's words: policy of the space and of the exchange must agree."""
    try:
        found = judge(rules, tool, body)
    except WorkspaceError as error:
        return Verdict(Decision.DENY, "input", error.message, agent, fault("tool.invalid_input", error.message))
    if found is None or found.decision is Decision.ALLOW:
        return None
    problem = None
    if found.decision is Decision.DENY:
        details: dict[str, object] = {"policy": found.rule}
        if found.suggestion is not None:
            details["suggestion"] = found.suggestion
        problem = fault("policy.denied", found.reason, details=details)
    return Verdict(found.decision, found.rule, found.reason, agent, problem)


# --- events -----------------------------------------------------------------------------------------------------------


def events_message(run_id: str, status: str, events: list[dict[str, Any]], *, more: bool = False) -> dict[str, Any]:
    """What the runtime says. ``more``: the run goes on, and ``status`` is that of these events only."""
    message: dict[str, Any] = {
        "protocolVersion": PROTOCOL_VERSION,
        "runId": run_id,
        "status": status,
        "events": events,
    }
    if more:
        message["more"] = True
    return message


def invalid(error: Mapping[str, Any], at: str) -> list[dict[str, Any]]:
    """One event for each fault of a message that was not taken on (reading "Whole message first")."""
    found = []
    for issue in error["issues"]:
        details = {key: issue[key] for key in ("index", "path") if key in issue}
        where = issue["path"]
        message = f"{where}: {issue['message']}" if where else issue["message"]
        found.append(error_event("validation", message, at, details))
    return found


def error_event(category: str, message: str, at: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An ``error`` event."""
    return {
        "type": "error",
        "timestamp": at,
        "category": category,
        "message": message,
        "details": dict(details or {}),
    }


class Why(Struct, frozen=True):
    """Why a person is asked: by which rule, what it says, and since when."""

    policy: str
    reason: str
    asked_at: str
    approval_id: str
    expires_at: str | None = None
    suggestion: str | None = None


def _subject(operation: Mapping[str, Any]) -> dict[str, Any]:
    """What an event repeats of its operation."""
    return {key: operation[key] for key in ("path", "command") if key in operation}


def operation_id(operation: Mapping[str, Any], index: int) -> str:
    """Its own id, or the one we give it where a person has to name it (reading "Approvals")."""
    return str(operation.get("id", f"op-{index}"))


def _head(kind: str, operation: Mapping[str, Any], at: str) -> dict[str, Any]:
    head = {"type": kind, "timestamp": at}
    if "id" in operation:
        head["operationId"] = operation["id"]
    return head


def approval_required(operation: Mapping[str, Any], index: int, why: Why) -> dict[str, Any]:
    """A person is asked."""
    details = {**_subject(operation), "policy": why.policy, "approvalId": why.approval_id}
    if why.expires_at is not None:
        details["expiresAt"] = why.expires_at
    event = {
        "type": "approvalRequired",
        "timestamp": why.asked_at,
        "operationId": operation_id(operation, index),
        "operationType": operation["type"],
        "reason": why.reason or "Approval is required",
        "details": details,
    }
    if why.suggestion is not None:
        event["suggestion"] = why.suggestion
    return event


def outcome(operation: Mapping[str, Any], index: int, answer: Answer, no_shell: str) -> dict[str, Any]:
    """What became of an operation. ``no_shell`` is what to say where there is no sandbox."""
    kind: str = operation["type"]
    at = stamp(answer.finished_ms or 0)
    if answer.status is Status.SUCCEEDED:
        told = {} if answer.output is None else decode(answer.output, type=dict[str, Any])
        return {**_head(kind, operation, at), **_subject(operation), "success": True, **told}
    problem = answer.fault or fault("tool.failed")
    if answer.status is Status.UNKNOWN:
        text = problem.message if NOT_KNOWN in problem.message else f"{problem.message}; {NOT_KNOWN}"
        return _error_of(operation, index, _category_told(problem) or "execution", text, problem, at)
    if problem.code in DENIED:
        return _denied(operation, problem, at)
    category = _category(kind, problem)
    if category == "execution" and kind not in {"shell", "message"} and problem.code == "tool.failed":
        said = (problem.details or {}).get(WITHOUT_PATH, problem.message)
        event = {**_head(kind, operation, at), **_subject(operation), "success": False, "error": said}
        return {**event, "editsApplied": 0} if kind == "editFile" else event
    text = no_shell if kind == "shell" and problem.code == "tool.not_found" and no_shell else problem.message
    return _error_of(operation, index, category, text, problem, at)


def _category(kind: str, problem: Fault) -> str:
    told = _category_told(problem)
    if told:
        return told
    if problem.code == "tool.invalid_input":
        return "validation"
    if problem.code == "tool.timeout":
        return "timeout"
    if problem.code == "tool.not_found" and kind == "shell":
        return "execution"
    ours = problem.code.startswith(("limit.", "hub.", "idempotency.")) or problem.code in GONE
    return "system" if ours else "execution"


def _category_told(problem: Fault) -> str:
    """The category that a space itself gave to a failure, if it did."""
    told = (problem.details or {}).get("category")
    return told if isinstance(told, str) else ""


def _denied(operation: Mapping[str, Any], problem: Fault, at: str) -> dict[str, Any]:
    details = problem.details or {}
    event = {
        **_head("policyDenied", operation, at),
        "operationType": operation["type"],
        "reason": problem.message,
        "details": {**_subject(operation), "policy": details.get("policy", problem.code)},
    }
    if "suggestion" in details:
        event["suggestion"] = details["suggestion"]
    return event


def _error_of(
    operation: Mapping[str, Any], index: int, category: str, message: str, problem: Fault, at: str
) -> dict[str, Any]:
    details = {"index": index, "operationType": operation["type"], "code": problem.code, **_subject(operation)}
    event = error_event(category, message, at, details)
    return {**event, "operationId": operation["id"]} if "id" in operation else event


def refused_before(operation: Mapping[str, Any], problem: Fault | None, at: str) -> dict[str, Any]:
    """An operation that was refused, and so not recorded as a call, before the exchange was started anew.

    It stays refused, even if the rules would allow it by now: later operations have been carried out.
    """
    text = "The operation was refused before the exchange was restarted"
    return _denied(operation, problem or fault("policy.denied", text), at)


def not_shown(operation: Mapping[str, Any], index: int, problem: Fault, at: str) -> dict[str, Any]:
    """An operation that became a call before the exchange was started anew, of which its caller may hear no more."""
    text = (
        f"The operation was taken on before the exchange was restarted, and its outcome is not told: {problem.message}"
    )
    return _error_of(operation, index, "policy", text, problem, at)


def shortened(event: dict[str, Any], text: str) -> dict[str, Any]:
    """An event without the content that makes it large."""
    if event["type"] == "shell":
        return {**event, "stdout": "", "stderr": "", "stdoutTruncated": True, "stderrTruncated": True}
    if event["type"] == "readFile":
        kept = {key: value for key, value in event.items() if key not in {"content", "encoding", "size"}}
        return {**kept, "success": False, "error": text}
    return event


def failed(event: Mapping[str, Any]) -> bool:
    """Whether an event tells of something that did not go as asked."""
    return event["type"] in {"error", "policyDenied"} or event.get("success") is False


def failure(error: WorkspaceError, path: str = "") -> Fault:
    """What a tool of a space says when it could not do its work; of a file, which one. An event names that itself."""
    text = f"{error.message}; {NOT_KNOWN}" if error.in_doubt else error.message
    details: dict[str, object] = {"category": error.kind}
    if path and error.kind == "execution" and not error.in_doubt:
        text = f"{error.message}: {path}"
        details[WITHOUT_PATH] = error.message
    if isinstance(error, ScriptChanged):
        details[SCRIPT_CHANGED] = True
    return Fault("tool.failed", text, details=details)


def path_in(body: Raw) -> str:
    """The path that an input names, if it names one."""
    try:
        return decode(body, type=_WithPath).path
    except msgspec.DecodeError:
        return ""


class _WithPath(Struct):
    path: str = ""


def is_script_changed(problem: Fault | None) -> bool:
    """Whether a command was not begun because a script that it reads is another than the one that was approved."""
    return problem is not None and bool((problem.details or {}).get(SCRIPT_CHANGED))

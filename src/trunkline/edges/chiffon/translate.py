"""Chiffon's words to ours and back: work types as tools, results as outcomes, error codes as faults.

Owns the two columns of the table of faults, and the shape of a task's output. Does not own the conversation.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.chunks import sha256
from trunkline.edges.chiffon.messages import ErrorPayload, Hints, Resources, WorkRequest, WorkResult
from trunkline.effects import Answer, Deliver
from trunkline.events import Event, Noticed
from trunkline.model import FAULTS, Fault, Status, ToolDefinition, fault, is_told_of, stamp
from trunkline.traces import read_traceparent

# Before the colon of a caller, and in notices.
EDGE: Final = "chiffon"

# Where a caller of a work type's tool puts what is not a parameter of the work.
HINTS_KEY: Final = "$hints"
AGENT_KEY: Final = "$agent_id"

# What is left of an output that is too large for a result (silent point 19).
TAIL_BYTES: Final = 65_536

# Silent point 21, and what shells use for the rest.
EXIT_CANCELED: Final = 130
EXIT_TIMEOUT: Final = 124
EXIT_REFUSED: Final = 126
EXIT_FAILED: Final = 1

_OPEN: Final = "Any other field is a parameter of the work. Chiffon has no schemas: its author says which there are."
_INPUT_SCHEMA: Final = {
    "type": "object",
    "description": _OPEN,
    "additionalProperties": True,
    "properties": {
        HINTS_KEY: {
            "type": "object",
            "description": "Scheduling hints of the task; everything else is a parameter of the work.",
            "properties": {
                "max_duration_seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": messages.MAX_DURATION_S},
                "max_memory_mb": {"type": "number", "exclusiveMinimum": 0, "maximum": 2**50},
            },
        }
    },
}
_AGENT_PROPERTY: Final = {"type": "string", "description": "The instance that has to do it."}


def tool_definition(agent_id: str, work_type: str, kind: str) -> ToolDefinition:
    """A work type of one agent instance."""
    text = f"{work_type}, done by the Chiffon {kind} agent {agent_id}. Its input is open."
    return ToolDefinition(f"{agent_id}/{work_type}", text, messages.raw(_INPUT_SCHEMA), tags=("chiffon", kind))


def type_definition(kind: str, work_type: str) -> ToolDefinition:
    """A work type of whichever instance has the least to do."""
    properties: dict[str, object] = {**_INPUT_SCHEMA["properties"], AGENT_KEY: _AGENT_PROPERTY}  # type: ignore[dict-item]
    schema = messages.raw({**_INPUT_SCHEMA, "properties": properties})
    text = f"{work_type}, done by the least loaded healthy Chiffon {kind} agent. Its input is open."
    return ToolDefinition(f"chiffon.{kind}/{work_type}", text, schema, tags=("chiffon", kind))


def trace_id_of(correlation_id: str) -> str:
    """A correlation as a trace id: itself if it is a UUID, the trace that it names if it is a ``traceparent``, else one
    that always follows from it.
    """
    named = read_traceparent(correlation_id)
    if named is not None:
        return str(uuid.UUID(named.trace_id))
    try:
        return str(uuid.UUID(correlation_id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, correlation_id))


def work_request(effect: Deliver, *, is_typed: bool) -> WorkRequest:
    """A call as work. The task's id is the call's, so nothing has to be remembered to find it again.

    ``is_typed``: any instance of the type was asked for, so that ``$agent_id`` is no parameter of the work.
    """
    work_type = effect.tool_id.partition("/")[2]
    parameters, hints = effect.input, Hints()
    given = msgspec.json.decode(parameters, type=dict[str, Raw])
    if is_typed and AGENT_KEY in given:
        msgspec.json.decode(given.pop(AGENT_KEY), type=str)
        parameters = messages.raw(given)
    if HINTS_KEY in given:
        hints = messages.read_hints(given.pop(HINTS_KEY))
        parameters = messages.raw(given)
    if effect.timeout_ms is not None:
        seconds = effect.timeout_ms / 1000
        hints = Hints(int(seconds) if seconds == int(seconds) else seconds, hints.max_memory_mb)
    return WorkRequest(effect.call_id, work_type, parameters, hints)


class Wishes(msgspec.Struct):
    """What an input says about who should do the work, as far as it can be read."""

    agent_id: str | None = None
    memory_mb: float | None = None


def wishes(body: Raw) -> Wishes:
    """The instance that an input names, and the memory it says it needs. What is wrong with it, the instance says."""
    found = Wishes()
    with contextlib.suppress(messages.Refused, msgspec.ValidationError):
        given = msgspec.json.decode(body, type=dict[str, Raw])
        if AGENT_KEY in given:
            found.agent_id = msgspec.json.decode(given[AGENT_KEY], type=str)
        if HINTS_KEY in given:
            found.memory_mb = messages.read_hints(given[HINTS_KEY]).max_memory_mb
    return found


# --- an agent's answers as outcomes -----------------------------------------------------------------------------------

# Our code for each of theirs. 5003 and 5006 of an agent are about what the caller gave.
_OUR_CODE: Final = {
    messages.TIMEOUT: "tool.timeout",
    messages.UNAVAILABLE: "tool.unavailable",
    messages.INVALID: "tool.invalid_input",
    messages.LIMIT: "limit.resource",
    messages.UNSUPPORTED: "tool.not_found",
}
MAX_TEXT_CHARS: Final = 2000


def fault_of(error: ErrorPayload) -> Fault:
    """An agent's error. Only what the table marks is tried again; unknown codes are not (CH-063, silent point 20)."""
    known = messages.CODES.get(error.error_code)
    details: dict[str, object] = {"error_code": error.error_code}
    if error.error_context:
        details["error_context"] = error.error_context
    code = _OUR_CODE.get(error.error_code, "tool.failed")
    return Fault(code, error.error_message[:MAX_TEXT_CHARS], known is not None and known.retryable, details)


def error_noticed(agent_id: str, error: ErrorPayload, count: int) -> list[Event]:
    """The ``count``-th error of a peer about nothing we know of: on record, if it is to be told of."""
    if not is_told_of(count):
        return []
    return [Noticed("chiffon.error", EDGE, f"{EDGE}:{agent_id}", f"{error.error_code}")]


def timeout_fault(attempt: int, last_attempt_ms: int) -> Fault:
    """Nothing came in time (CH-057)."""
    context: dict[str, object] = {"attempted_retries": attempt - 1, "last_attempt": stamp(last_attempt_ms)}
    details: dict[str, object] = {"error_code": messages.TIMEOUT, "error_context": context}
    return fault("tool.timeout", retryable=True, details=details)


def outcome(
    result: WorkResult, output: str, steps: list[dict[str, object]], custom: Raw | None
) -> tuple[Status, Raw | None, Fault | None]:
    """How a task ended, in our words; ``output`` is the whole of it, if it was put together from chunks."""
    shape: dict[str, object] = {
        "status": result.status,
        "exit_code": result.exit_code,
        "output": output,
        "resources_used": result.resources_used,
    }
    if steps:
        shape["steps"] = steps
    if custom is not None and bytes(custom) != b"{}":
        shape["x_custom_fields"] = custom
    if result.status == "success":
        return Status.SUCCEEDED, messages.raw(shape), None
    del shape["status"]
    shape["output"] = output[-TAIL_BYTES:]
    details: dict[str, object] = msgspec.json.decode(messages.raw(shape))
    last_line = output.strip().rpartition("\n")[2][:MAX_TEXT_CHARS]
    return Status.FAILED, None, Fault("tool.failed", last_line or FAULTS["tool.failed"].text, False, details)


# --- our outcomes as an agent's answers -------------------------------------------------------------------------------

_THEIR_CODE: Final = {
    "tool.not_found": messages.UNSUPPORTED,
    "tool.unavailable": messages.UNAVAILABLE,
    "hub.unavailable": messages.UNAVAILABLE,
    "tool.invalid_input": messages.INVALID,
    "message.malformed": messages.INVALID,
    "idempotency.conflict": messages.INVALID,
    "auth.failed": messages.UNAUTHORIZED,
    "limit.rate": messages.LIMIT,
    "limit.inflight": messages.LIMIT,
    "limit.resource": messages.LIMIT,
    "call.expired": messages.TIMEOUT,
}
_FIELD_OF: Final = {"idempotency.conflict": "request_id", "tool.invalid_input": "payload.parameters"}


def refusal(
    problem: Fault, request: WorkRequest, supported: Callable[[], tuple[str, ...]], agent_id: str, now_ms: int
) -> ErrorPayload | None:
    """A call that was not taken on, as an error; None where Chiffon has no word for it (policy said no)."""
    code = _THEIR_CODE.get(problem.code)
    context: dict[str, Any]
    match code:
        case None:
            return None
        case messages.TIMEOUT:
            context = {"attempted_retries": 0, "last_attempt": stamp(now_ms)}
        case messages.UNAVAILABLE:
            context = {"agent_id": agent_id, "last_heartbeat": None}
        case messages.INVALID:
            context = {"validation_error": problem.message, "field_name": _FIELD_OF.get(problem.code)}
        case messages.UNAUTHORIZED:
            context = {"agent_id": agent_id, "token_status": "invalid"}
        case messages.LIMIT:
            context = {"limit_name": problem.code, "available": 0, "required": 1}
        case _:
            context = {"work_type_requested": request.work_type, "supported_types": list(supported())}
    return ErrorPayload(code, problem.message, context)


def work_result(answer: Answer, body: bytes, task_id: str) -> tuple[WorkResult, dict[str, object]]:
    """A call's outcome as a result with its whole output, and what goes into the custom fields."""
    duration_s = 0
    if answer.started_ms is not None and answer.finished_ms is not None:
        duration_s = max(0, answer.finished_ms - answer.started_ms) // 1000
    used = Resources(duration_s)
    if answer.status is Status.SUCCEEDED:
        shape = _chiffon_shape(body)
        if shape is not None:
            custom = shape.x_custom_fields
            return WorkResult(task_id, "success", 0, shape.output, shape.resources_used), dict(custom)
        return WorkResult(task_id, "success", 0, body.decode(), used), {}
    problem = answer.fault or fault("tool.failed")
    details = problem.details or {}
    given = details.get("exit_code")
    # What an agent of another edge said; to Python true is a number.
    exit_code = _exit_code(answer, problem)
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        exit_code = given
    text = details.get("output")
    output = text if isinstance(text, str) else f"{problem.code}: {problem.message}"
    told: dict[str, object] = {"code": problem.code, "retryable": problem.retryable}
    if answer.status is Status.UNKNOWN:  # decision 1: Chiffon has no such word
        told["outcome"] = "unknown"
    return WorkResult(task_id, "failed", exit_code, output, used), {"fault": told}


class _Shape(msgspec.Struct):
    """The output of a task that another Chiffon agent did."""

    status: str
    exit_code: int
    output: str
    resources_used: Resources
    x_custom_fields: dict[str, object] = {}


def _chiffon_shape(body: bytes) -> _Shape | None:
    try:
        return msgspec.json.decode(body, type=_Shape)
    except msgspec.ValidationError:
        return None


def _exit_code(answer: Answer, problem: Fault) -> int:
    if answer.status is Status.CANCELED or problem.code == "tool.canceled":
        return EXIT_CANCELED
    if problem.code == "tool.timeout":
        return EXIT_TIMEOUT
    return EXIT_REFUSED if answer.refused else EXIT_FAILED


def shortened(result: WorkResult) -> tuple[WorkResult, dict[str, object]]:
    """A result whose output is too large: its end, with the hash of the whole in the custom fields."""
    data = result.output.encode()
    if len(data) <= messages.MAX_OUTPUT_BYTES:
        return result, {}
    tail = data[-TAIL_BYTES:].decode("utf-8", "ignore")
    custom: dict[str, object] = {"output_truncated": True, "output_sha256": sha256(result.output)}
    return msgspec.structs.replace(result, output=tail), {**custom, "output_bytes": len(data)}

"""OpenSentience's words to ours and back: payloads to values, effects to payloads, and the protocol's column of faults.

Owns what a message means. It does not own when one may come or what has to be remembered for the answer (``session``).
The agent's side speaks the wire's own words and needs none of this.

Invariant: what leaves here towards the hub is whole and checked; what is refused is refused with a text that names the
place and never quotes a value.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from trunkline import schemas
from trunkline.edges.opensentience.messages import (
    Body,
    Caller,
    Context,
    ErrorObject,
    Hello,
    JsonData,
    Message,
    RegisterTools,
    Rejection,
    TextData,
    Tool,
    ToolCall,
    ToolResult,
    ToolStream,
    body,
    invalid,
    is_object,
    is_semver,
    is_timestamp,
    object_body,
    part,
)
from trunkline.effects import Answer, Deliver
from trunkline.events import CallFinished, CallProgressed, CallRequested
from trunkline.model import (
    AGENT_ID,
    FAULTS,
    TOOL_NAME,
    Actor,
    Fault,
    Principal,
    Status,
    ToolDefinition,
    fault,
    stamp,
)

EDGE: Final = "opensentience"

# A page of prose. What a person should read before approving a tool must be readable.
MAX_DESCRIPTION_CHARS: Final = 8_192
MAX_MESSAGE_CHARS: Final = 2_048
_LONGEST_SHOWN_ID: Final = 256

# --- faults -----------------------------------------------------------------------------------------------------------

# Our codes that this wire spells differently; all others travel as they are. Peers retry by code alone: none of the
# left that must not be retried may become one of the right that may.
WIRE_CODES: Final[dict[str, str]] = {
    "agent.lost": "tool.disconnected",
    "limit.rate": "protocol.throttled",
    "limit.inflight": "protocol.throttled",
    "message.malformed": "protocol.invalid_message",
    "auth.failed": "protocol.unauthorized",
    "not_found": "protocol.invalid_message",
    "not_allowed": "policy.denied",
}
_CODE: Final = re.compile(r"[a-z_]+(\.[a-z_]+)+")  # OS-049
_WHERE: Final = "core.router"


def error_object(problem: Fault, *, outcome_unknown: bool = False) -> ErrorObject:
    """A fault as this wire says it. This wire has no word for *unknown*: the details have it (decision 1)."""
    details = problem.details
    retryable = problem.retryable
    if outcome_unknown:
        details = {**(details or {}), "outcome": "unknown"}
        retryable = False
    return ErrorObject(WIRE_CODES.get(problem.code, problem.code), problem.message, details, retryable, _WHERE)


def agent_fault(error: ErrorObject | None, default: str) -> Fault:
    """What an agent says went wrong. It may name codes of tools, not those by which the exchange itself refuses."""
    if error is None:
        return fault(default)
    code = error.code
    if len(code) > 128 or _CODE.fullmatch(code) is None or (code in FAULTS and not code.startswith("tool.")):
        code = default
    row = FAULTS.get(code)
    retryable = error.retryable if error.retryable is not None else row is not None and row.retryable
    return Fault(code, error.message[:MAX_MESSAGE_CHARS], retryable, error.details)


# --- handshake --------------------------------------------------------------------------------------------------------


def hello_token_sha256(hello: Hello) -> str:
    """The token as the hub knows it; a missing one has the hash of the empty one, which nobody was ever given."""
    return hashlib.sha256((hello.session_token or "").encode("utf-8", "surrogatepass")).hexdigest()


def hello_fault(hello: Hello) -> str | None:
    """What is wrong with a hello beyond its types."""
    if AGENT_ID.fullmatch(hello.agent_id) is None:
        return "not an agent id - at `$.agent_id`"
    if not is_semver(hello.agent_version):  # OS-061
        return "not a semver version - at `$.agent_version`"
    if hello.sdk is not None and not is_semver(hello.sdk.version):  # OS-065
        return "not a semver version - at `$.sdk.version`"
    return None


def manifest_sha256(hello: Hello) -> str | None:
    """The manifest's hash in our form; peers write it with or without the name of the hash function."""
    if hello.manifest_hash is None:
        return None
    return hello.manifest_hash.removeprefix("sha256:").lower()[:64]


# --- tools ------------------------------------------------------------------------------------------------------------


class ToolSizes(Struct, frozen=True):
    """What one body of a tool may have; the hub enforces it."""

    max_input_bytes: int
    max_output_bytes: int


Rejected = tuple[str, Fault]


def offered_tools(
    register: RegisterTools, agent_id: str, limits: ToolSizes, too_often: Callable[[int], Fault | None]
) -> tuple[tuple[ToolDefinition, ...], tuple[Rejected, ...]]:
    """The tools that can be read, and why not the others. Conflicts between tools are the hub's to find.

    ``too_often`` counts a tool by its size before it is looked at, or says why it is not.
    """
    taken: list[ToolDefinition] = []
    rejected: list[Rejected] = []
    schema_bytes = 0
    for raw in register.tools:
        if schema_bytes > schemas.MAX_TOGETHER_BYTES:
            # More than an agent may have: the rest is not even looked at, which takes 20 ms for some.
            rejected.append((claimed_id(raw), _TOO_LARGE_TOGETHER))
            continue
        refused = too_often(len(raw))
        if refused is not None:
            rejected.append((claimed_id(raw), refused))
            continue
        tool = part(Tool, raw)
        if isinstance(tool, str):
            rejected.append((claimed_id(raw), fault("message.malformed", f"tool: {tool}")))
            continue
        problem = _tool_fault(tool, agent_id)
        if problem is None:
            taken.append(_definition(tool, limits))
            given = (body(tool.input_schema), body(tool.output_schema))
            schema_bytes += sum(schemas.judged_bytes(bytes(schema)) for schema in given if schema is not None)
        else:
            rejected.append((tool.tool_id[:_LONGEST_SHOWN_ID], problem))
    return tuple(taken), tuple(rejected)


_TOO_LARGE_TOGETHER: Final = fault(
    "tool.schema_too_large", f"the schemas of this message would take more than {schemas.MAX_TOGETHER_BYTES} bytes"
)


def _definition(tool: Tool, limits: ToolSizes) -> ToolDefinition:
    return ToolDefinition(
        tool_id=tool.tool_id,
        description=tool.description,
        input_schema=_kept(tool.input_schema),
        output_schema=_kept(output) if (output := body(tool.output_schema)) is not None else None,
        capabilities=tool.capabilities or (),
        side_effects=tool.side_effects is not False,
        requires_directive=tool.requires_directive is True,
        tags=tool.tags or (),
        required_permissions=tool.required_permissions or (),
        max_input_bytes=limits.max_input_bytes,
        max_output_bytes=limits.max_output_bytes,
        timeout_ms=tool.timeout_ms,
    )


def _kept(raw: Raw) -> Raw:
    """A copy by itself: a definition lives long, and a view would keep the whole frame it came in."""
    return raw.copy()


def claimed_id(raw: Raw) -> str:
    """The id that a tool says it has; empty if it cannot be read."""
    try:
        claimed = _decode_claim(raw).tool_id
    except msgspec.DecodeError:
        return ""
    return claimed[:_LONGEST_SHOWN_ID]


class _Claim(Struct):
    tool_id: str


_decode_claim: Final = msgspec.json.Decoder(_Claim).decode


def _tool_fault(tool: Tool, agent_id: str) -> Fault | None:
    owner, slash, name = tool.tool_id.partition("/")
    if not slash or owner != agent_id or TOOL_NAME.fullmatch(name) is None:  # OS-078
        return Fault("tool.invalid_tool_id", f"must be {agent_id}/NAME, NAME of letters, digits, `_`, `.`, `-`")
    if tool.name != name:  # OS-079
        return Fault("tool.invalid_tool_id", "name must be the part of tool_id after the slash")
    texts = (*(tool.capabilities or ()), *(tool.tags or ()), *(tool.required_permissions or ()))
    if len(tool.description) > MAX_DESCRIPTION_CHARS or sum(map(len, texts)) > MAX_DESCRIPTION_CHARS:
        return fault("message.malformed", f"tool: description or labels longer than {MAX_DESCRIPTION_CHARS} characters")
    if schemas.hides_something(tool.description) or any(map(schemas.hides_something, texts)):
        return fault("message.malformed", "tool: description or labels have invisible or direction-changing characters")
    return _schema_fault("input_schema", tool.input_schema) or _schema_fault("output_schema", tool.output_schema)


def _schema_fault(field: str, schema: Body) -> Fault | None:
    given = body(schema)
    if given is None:
        return None if field == "output_schema" else Fault("tool.schema_invalid", f"{field}: not a JSON object")
    data = bytes(given)
    if len(data) > schemas.MAX_SCHEMA_BYTES:
        return Fault("tool.schema_too_large", f"{field}: {len(data)} bytes; the limit is {schemas.MAX_SCHEMA_BYTES}")
    problem = schemas.judge(data)
    return None if problem is None else Fault("tool.schema_invalid", f"{field}: {problem}")


def rejections(rejected: tuple[Rejected, ...]) -> tuple[Rejection, ...] | None:
    """The hub's refusals as the wire lists them; an empty list is left out."""
    return tuple(Rejection(tool_id, error_object(problem)) for tool_id, problem in rejected) or None


# --- calls towards an agent -------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _caller(identity: str) -> tuple[Caller, Actor | None]:
    """Who calls, as the wire says it; a person's call also names him as the actor (OS-046)."""
    if identity == "operator":
        return Caller("human", identity), Actor("human", identity)
    return Caller("agent", identity), None


def tool_call(effect: Deliver) -> tuple[ToolCall, Actor | None]:
    """The payload of ``core.tool.call``, and the actor for its envelope."""
    caller, actor = _caller(effect.caller)
    call = ToolCall(
        effect.call_id,
        effect.tool_id,
        effect.input,
        effect.timeout_ms,
        effect.key,
        caller,
        UNSET if effect.context is None else effect.context,
    )
    return call, effect.actor or actor


_STATUS: Final = {"succeeded": Status.SUCCEEDED, "failed": Status.FAILED, "canceled": Status.CANCELED}
_SUCCEEDED: Final = Status.SUCCEEDED


def call_finished(session: int, message: Message[ToolResult], value: Any) -> CallFinished:
    """How an agent says a call ended; ``RemoteProtocolError`` if the result contradicts its own form.

    ``value`` is the message as plain JSON.
    """
    result = message.payload
    output = object_body(message, "output", result.output)  # OS-118
    metrics = None if result.metrics is UNSET else object_body(message, "metrics", result.metrics)
    started_at, finished_at = result.started_at, result.finished_at
    if started_at is not None and not is_timestamp(started_at):  # OS-120
        raise invalid(message, "not an RFC 3339 time with offset - at `$.started_at`")
    if finished_at is not None and not is_timestamp(finished_at):
        raise invalid(message, "not an RFC 3339 time with offset - at `$.finished_at`")
    status = _STATUS[result.status]
    problem = None
    if status is not _SUCCEEDED:
        # v1 has errors at the top level everywhere but here: both are read, the payload's wins.
        default = "tool.canceled" if status is Status.CANCELED else "tool.failed"
        problem = agent_fault(result.error or message.error, default)
    return CallFinished(
        session,
        result.call_id,
        status,
        output,
        problem,
        started_at,
        finished_at,
        metrics,
        None if output is None else value["payload"]["output"],
    )


def call_progressed(session: int, message: Message[ToolStream]) -> CallProgressed:
    """Something of a running call to show."""
    chunk = message.payload
    if chunk.channel == "partial_result":
        read: Struct | str = part(JsonData, chunk.data)
        if isinstance(read, JsonData) and not is_object(read.json):  # OS-111
            read = "Expected `object` - at `$.json`"
    else:
        read = part(TextData, chunk.data)  # OS-110
    if isinstance(read, str):
        raise invalid(message, f"data of the channel {chunk.channel}: {read}")
    return CallProgressed(session, chunk.call_id, chunk.seq, chunk.channel, chunk.data, chunk.done is True)


# --- calls of an agent ------------------------------------------------------------------------------------------------


def call_requested(session: int, caller: Principal, message: Message[ToolCall], value: Any) -> CallRequested:
    """An agent's own call; ``value`` is the message as plain JSON."""
    call = message.payload
    given = value["payload"]["input"]
    if type(given) is not dict:  # OS-097
        raise invalid(message, "Expected `object` - at `$.input`")
    context = None if call.context is UNSET else _context(message, call.context)
    return CallRequested(
        session,
        call.call_id,
        caller,
        call.tool_id,
        call.input,
        call.idempotency_key,
        call.timeout_ms,
        message.correlation_id,
        message.causation_id,
        message.actor,
        context,
        value=given,
    )


def _context(message: Message[ToolCall], given: Body) -> Raw | None:
    context = object_body(message, "context", given)
    if context is not None:
        known = part(Context, context)  # OS-101
        if isinstance(known, str):
            raise invalid(message, f"context: {known}")
        object_body(message, "context.ui", known.ui)
    return context


def tool_result(answer: Answer) -> ToolResult:
    """The payload of ``core.tool.result``: under the caller's own name, with ours beside it (decision 7)."""
    status, output, problem, started_ms, finished_ms = (
        answer.status, answer.output, answer.fault, answer.started_ms, answer.finished_ms,
    )  # fmt: skip
    if answer.large is not None:
        output = answer.large.reference()
    return ToolResult(
        answer.ref,
        "succeeded" if status is _SUCCEEDED else "canceled" if status is Status.CANCELED else "failed",
        UNSET if output is None else output,
        None if problem is None else error_object(problem, outcome_unknown=status is Status.UNKNOWN),
        None if started_ms is None else stamp(started_ms),
        None if finished_ms is None else stamp(finished_ms),
        UNSET,
        answer.call_id,
    )

"""The wire of Chiffon, typed: the envelope, the payloads of the four message types, and the table of error codes.

Owns field names, their bounds, and the words of a refusal (``Refused``: an error code with its context). Does not own
tokens (``peers``), directions or tasks (the sessions), nor what a message means to the exchange (``translate``).

Invariant: what is read here has the shape it claims; what is built here reads back as it was.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from trunkline import strictjson
from trunkline.errors import RemoteProtocolError
from trunkline.model import EMPTY_OBJECT, OptionalRaw, stamp

VERSION: Final = "1.0"  # CH-091
SUPPORTED_VERSIONS: Final = (VERSION,)
ORCHESTRATOR: Final = "orchestrator"
AGENT_TYPES: Final = (ORCHESTRATOR, "infra", "desktop", "code", "research")
MESSAGE_TYPES: Final = ("work_request", "work_status", "work_result", "error")

# Silent point 26. Sixteen chunks fit; a message larger than this is not a message.
MAX_MESSAGE_BYTES: Final = 4_194_304
# Silent point 29.
MAX_CUSTOM_BYTES: Final = 16_384
# Silent point 18: above this an output is split.
MAX_OUTPUT_BYTES: Final = 1_048_576
# Longer than any task we know of, and a deadline that every calendar can write down.
MAX_DURATION_S: Final = 2_592_000
# Names end up in tables and logs.
MAX_NAME_CHARS: Final = 256
# Of a step: as all names that others make up. It is kept for as long as the task is open.
MAX_STEP_NAME_CHARS: Final = 128
MIN_CODE: Final = 5001
MAX_CODE: Final = 5999

TIMEOUT: Final = 5001
UNAVAILABLE: Final = 5002
INVALID: Final = 5003
UNAUTHORIZED: Final = 5004
LIMIT: Final = 5005
UNSUPPORTED: Final = 5006


class Code(Struct, frozen=True):
    """One line of the table of error codes: its fields in ``error_context`` and whether one tries again."""

    name: str
    retryable: bool
    context: dict[str, Any]
    http: int


# CH-056: permanent. CH-057 to CH-062: what each says. The HTTP status is ours (silent point 1).
CODES: Final[dict[int, Code]] = {
    TIMEOUT: Code("Timeout", True, {"attempted_retries": int, "last_attempt": str}, 504),
    UNAVAILABLE: Code("Agent Unavailable", True, {"agent_id": str, "last_heartbeat": str | None}, 503),
    INVALID: Code("Invalid Message", False, {"validation_error": str, "field_name": str | None}, 400),
    UNAUTHORIZED: Code("Authentication Failed", False, {"agent_id": str, "token_status": str}, 401),
    LIMIT: Code("Resource Limit Exceeded", True, {"limit_name": str, "available": int, "required": int}, 429),
    UNSUPPORTED: Code("Unsupported Work Type", False, {"work_type_requested": str, "supported_types": list[str]}, 422),
}


class Envelope(Struct, frozen=True, omit_defaults=True):
    """What every message is wrapped in."""

    protocol_version: str
    message_id: str
    from_agent: str
    to_agent: str
    timestamp: str
    trace_id: str
    request_id: str
    type: str
    payload: Raw
    x_custom_fields: OptionalRaw = None


class Hints(Struct, frozen=True, omit_defaults=True):
    """What both sides know beforehand: the orchestrator sets its timers by it, the agent its limits."""

    max_duration_seconds: float | None = None
    max_memory_mb: float | None = None


class WorkRequest(Struct, frozen=True):
    """Start this."""

    task_id: str
    work_type: str
    parameters: Raw = EMPTY_OBJECT
    hints: Hints = Hints()


class Step(Struct, frozen=True, omit_defaults=True):
    """Where a task is. ``output_chunk`` says which part of the step's output this is."""

    number: int | None = None
    name: str | None = None
    output: str | None = None
    output_chunk: str | None = None


class WorkStatus(Struct, frozen=True, omit_defaults=True):
    """It goes on."""

    task_id: str
    status: Literal["running", "step_completed", "paused"]
    progress_percent: int
    step: Step = Step()


class Resources(Struct, frozen=True):
    """What a task used."""

    duration_seconds: int = 0
    gpu_vram_mb: int = 0
    cpu_time_ms: int = 0


class WorkResult(Struct, frozen=True):
    """How it ended."""

    task_id: str
    status: Literal["success", "failed"]
    exit_code: int
    output: str = ""
    resources_used: Resources = Resources()


class ErrorPayload(Struct, frozen=True):
    """What prevents the normal flow."""

    error_code: int
    error_message: str
    error_context: dict[str, Any] = {}


Payload = WorkRequest | WorkStatus | WorkResult | ErrorPayload
_TYPES: Final = dict(zip((WorkRequest, WorkStatus, WorkResult, ErrorPayload), MESSAGE_TYPES, strict=True))


class Refused(RemoteProtocolError):
    """A message that is not taken. ``error`` is what its sender is told; ``status`` is for HTTP."""

    def __init__(self, error: ErrorPayload, status: int = 0) -> None:
        super().__init__(str(error.error_code), error.error_message)
        self.error = error
        self.status = status or CODES[error.error_code].http


def invalid(text: str, field: str | None = None, status: int = 0) -> Refused:
    """Refused with 5003: what is wrong, and where."""
    message = f"{field}: {text}" if field else text
    return Refused(ErrorPayload(INVALID, message[:400], {"validation_error": text[:300], "field_name": field}), status)


def unauthorized(agent_id: str | None, token_status: Literal["missing", "invalid", "mismatch"]) -> Refused:
    """Refused with 5004; malformed, unknown, revoked and expired tokens get equal words."""
    context = {"agent_id": agent_id or "unknown", "token_status": token_status}
    return Refused(ErrorPayload(UNAUTHORIZED, _TOKEN_STATUS[token_status], context))


_TOKEN_STATUS: Final = {
    "missing": "no token was given; `trunkline token new chiffon --agent ID` makes one",
    "invalid": "the token is not valid, or was revoked; `trunkline token new chiffon --agent ID` makes another",
    "mismatch": "the token is valid, but for another agent_id, agent type or message type",
}


def unavailable(agent_id: str, last_heartbeat_ms: int | None, text: str) -> Refused:
    """Refused with 5002."""
    seen = None if last_heartbeat_ms is None else stamp(last_heartbeat_ms)
    return Refused(ErrorPayload(UNAVAILABLE, text, {"agent_id": agent_id, "last_heartbeat": seen}))


def defect() -> Refused:
    """Refused with 5002 because of a defect of ours; its place is on record."""
    refused = unavailable("exchange", None, "the exchange failed; the operator's log says where")
    refused.status = 500
    return refused


def over_limit(name: str, available: int, required: int) -> Refused:
    """Refused with 5005."""
    context = {"limit_name": name, "available": available, "required": required}
    return Refused(ErrorPayload(LIMIT, f"{name}: {required} needed, {available} available", context))


def unsupported(requested: str, supported: tuple[str, ...], version: str | None = None) -> Refused:
    """Refused with 5006: an unknown work type or, as the text demands, another version (contradiction 3)."""
    context: dict[str, Any] = {"work_type_requested": requested[:MAX_NAME_CHARS], "supported_types": list(supported)}
    if version is None:
        return Refused(ErrorPayload(UNSUPPORTED, "this work_type is not offered here", context))
    context |= {"unsupported_version": version[:MAX_NAME_CHARS], "supported_versions": list(SUPPORTED_VERSIONS)}
    return Refused(ErrorPayload(UNSUPPORTED, f"this protocol_version is not spoken here; {VERSION} is", context))


# --- reading ----------------------------------------------------------------------------------------------------------

_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d(?::?\d\d)?)?")
_EXPECTED: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<field>.*)`)?$", re.DOTALL)
_decode_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode
T = TypeVar("T")

Fields = dict[str, Raw]


def read_object(data: bytes) -> Fields:
    """The fields of a JSON object, each as it was written; duplicate keys and the like are refused."""
    try:
        strictjson.check(data, want_object=True)
    except strictjson.NotStrictJson as error:
        raise invalid(f"not strict JSON: {error}") from None
    return _decode_fields(data)


def read_envelope(fields: Fields) -> Envelope:
    """All required fields with their types; the payload as an object that is not looked into."""
    for name in Envelope.__struct_fields__[:-1]:
        if name not in fields:  # CH-017
            raise invalid("missing", name)
    texts = {name: _field(fields, name, str) for name in Envelope.__struct_fields__[:-2]}
    for name in ("message_id", "trace_id", "request_id"):  # CH-007, CH-011, CH-013
        _check_uuid(texts[name], name)
    for name in ("from_agent", "to_agent"):  # CH-008, CH-009
        if texts[name] not in AGENT_TYPES:
            raise invalid(f"expected one of {', '.join(AGENT_TYPES)}", name)
    check_time(texts["timestamp"], "timestamp")  # CH-010
    if texts["type"] not in MESSAGE_TYPES:  # CH-014
        raise invalid(f"expected one of {', '.join(MESSAGE_TYPES)}", "type")
    payload = _object(fields, "payload")  # CH-015
    if payload is None:
        raise invalid("expected an object", "payload")
    custom = _object(fields, "x_custom_fields")  # CH-016
    if custom is not None and len(bytes(custom)) > MAX_CUSTOM_BYTES:
        raise invalid(f"larger than {MAX_CUSTOM_BYTES} bytes", "x_custom_fields")
    return Envelope(payload=payload, x_custom_fields=custom, **texts)


def task_id_of(envelope: Envelope) -> str | None:
    """The task that a payload names, if it can be read."""
    try:
        found = msgspec.json.decode(envelope.payload, type=_Named).task_id
    except msgspec.ValidationError:
        return None
    return found.lower() if found is not None and _UUID.fullmatch(found) else None


class _Named(Struct):
    task_id: str | None = None


def read_payload(envelope: Envelope) -> Payload:
    """The payload as its type says, every rule checked."""
    return _READERS[envelope.type](_decode_fields(bytes(envelope.payload)))


def _work_request(fields: Fields) -> WorkRequest:
    task_id = _task_id(fields)
    work_type = _required(fields, "work_type", str)  # CH-022
    if not 0 < len(work_type) <= MAX_NAME_CHARS:
        raise invalid(f"expected 1 to {MAX_NAME_CHARS} characters", "payload.work_type")
    parameters = _object(fields, "parameters", "payload.")  # CH-023
    hints = _object(fields, "hints", "payload.")  # CH-024
    return WorkRequest(task_id, work_type, parameters or EMPTY_OBJECT, Hints() if hints is None else read_hints(hints))


def read_hints(raw: Raw) -> Hints:
    """Scheduling hints, wherever they stand."""
    fields = _decode_fields(bytes(raw))
    found: dict[str, float] = {}
    for name in ("max_duration_seconds", "max_memory_mb"):  # CH-025, CH-026
        value = _optional(fields, name, float, "payload.hints.")
        if value is not None:
            if not 0 < value < 2**53:
                raise invalid("expected a positive number", f"payload.hints.{name}")
            found[name] = int(value) if value == int(value) else value
    return Hints(**found)


def _work_status(fields: Fields) -> WorkStatus:
    task_id = _task_id(fields)
    status = _required(fields, "status", str)
    if status not in {"running", "step_completed", "paused"}:  # CH-032
        raise invalid("expected running, step_completed or paused", "payload.status")
    percent = _required(fields, "progress_percent", int)
    if not 0 <= percent <= 100:  # CH-033
        raise invalid("expected an integer from 0 to 100", "payload.progress_percent")
    raw = _object(fields, "step", "payload.")
    step = Step() if raw is None else _step(_decode_fields(bytes(raw)))
    return WorkStatus(task_id, status, percent, step)  # type: ignore[arg-type]  # it is one of the three


def _step(fields: Fields) -> Step:
    prefix = "payload.step."
    number = _optional(fields, "number", int, prefix)  # CH-034
    name = _optional(fields, "name", str, prefix)  # CH-035
    if name is not None and len(name) > MAX_STEP_NAME_CHARS:
        raise invalid(f"expected at most {MAX_STEP_NAME_CHARS} characters", "payload.step.name")
    output = _optional(fields, "output", str, prefix)  # CH-036
    chunk = _optional(fields, "output_chunk", str, prefix)
    if chunk is not None and (number is None or output is None):
        raise invalid("needs step.number and step.output beside it", "payload.step.output_chunk")
    if chunk is None and output is not None and len(output) > MAX_OUTPUT_BYTES // 4:
        size = len(output.encode())
        if size > MAX_OUTPUT_BYTES:  # CH-083
            raise invalid(f"{size} bytes; above {MAX_OUTPUT_BYTES} it is split into chunks", "payload.step.output")
    return Step(number, name, output, chunk)


def _work_result(fields: Fields) -> WorkResult:
    task_id = _task_id(fields)
    status = _required(fields, "status", str)
    if status not in {"success", "failed"}:  # CH-042
        raise invalid("expected success or failed", "payload.status")
    exit_code = _required(fields, "exit_code", int)
    if exit_code < 0 or (exit_code == 0) is not (status == "success"):  # CH-043
        raise invalid("expected 0 with success, a positive number with failed", "payload.exit_code")
    output = _field(fields, "output", str, "payload.") if "output" in fields else ""  # CH-044, silent point 20
    raw = _object(fields, "resources_used", "payload.")
    used = {} if raw is None else _decode_fields(bytes(raw))
    numbers: dict[str, int] = {}
    for name in Resources.__struct_fields__:  # CH-045, CH-046, CH-047
        value = _optional(used, name, int, "payload.resources_used.")
        if value is not None:
            if value < 0:
                raise invalid("expected an integer from 0", f"payload.resources_used.{name}")
            numbers[name] = value
    return WorkResult(task_id, status, exit_code, output, Resources(**numbers))  # type: ignore[arg-type]  # as above


def _error(fields: Fields) -> ErrorPayload:
    code = _required(fields, "error_code", int)
    if not MIN_CODE <= code <= MAX_CODE:  # CH-005, CH-052
        raise invalid(f"expected an integer from {MIN_CODE} to {MAX_CODE}", "payload.error_code")
    message = _required(fields, "error_message", str)  # CH-053
    raw = _object(fields, "error_context", "payload.")
    context: dict[str, Any] = {} if raw is None else msgspec.json.decode(raw)
    known = CODES[code].context if code in CODES else {}
    for name, kind in known.items():  # CH-054
        if name in context:
            try:
                msgspec.convert(context[name], kind)
            except msgspec.ValidationError as error:
                raise invalid(_expected(error), f"payload.error_context.{name}") from None
            if name in {"last_attempt", "last_heartbeat"} and context[name] is not None:
                check_time(context[name], f"payload.error_context.{name}")
    return ErrorPayload(code, message, context)


_READERS: Final[dict[str, Callable[[Fields], Payload]]] = {
    "work_request": _work_request,
    "work_status": _work_status,
    "work_result": _work_result,
    "error": _error,
}


def _task_id(fields: Fields) -> str:
    task_id = _required(fields, "task_id", str)
    _check_uuid(task_id, "payload.task_id")  # CH-021, CH-041
    return task_id


def _required(fields: Fields, name: str, kind: type[T]) -> T:
    if name not in fields:
        raise invalid("missing", f"payload.{name}")
    return _field(fields, name, kind, "payload.")


def _optional(fields: Fields, name: str, kind: type[T], prefix: str) -> T | None:
    if name not in fields or bytes(fields[name]) == b"null":
        return None
    return _field(fields, name, kind, prefix)


def _field(fields: Fields, name: str, kind: type[T], prefix: str = "") -> T:
    try:
        return msgspec.json.decode(fields[name], type=kind)
    except msgspec.ValidationError as error:
        raise invalid(_expected(error), prefix + name) from None


def _object(fields: Fields, name: str, prefix: str = "") -> Raw | None:
    raw = fields.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    if not bytes(raw).startswith(b"{"):
        raise invalid("expected an object", prefix + name)
    return raw


def _expected(error: msgspec.ValidationError) -> str:
    found = _EXPECTED.match(str(error))
    what = (found["what"] if found is not None else str(error)).replace("`", "")
    return what[:1].lower() + what[1:]


def _check_uuid(text: str, field: str) -> None:
    if _UUID.fullmatch(text) is None:
        raise invalid("expected a UUID", field)


def check_time(text: str, field: str) -> dt.datetime:
    """An ISO 8601 moment; without an offset it is UTC (silent point 26)."""
    problem = invalid("expected an ISO 8601 datetime such as 2026-01-19T04:21:04Z", field)
    if _ISO.fullmatch(text) is None:
        raise problem
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise problem from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


# --- building ---------------------------------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder().encode


def encode(envelope: Envelope) -> bytes:
    """The message as bytes."""
    return _encode(envelope)


def raw(value: object) -> Raw:
    """A value as JSON."""
    return Raw(_encode(value))


def build(
    payload: Payload,
    *,
    sender: str,
    to: str,
    trace_id: str,
    request_id: str,
    now_ms: int,
    message_id: str,
    custom: Raw | None = None,
    version: str = VERSION,
) -> Envelope:
    """A message of ours. Each needs an id of its own, also when it says again what another one said."""
    return Envelope(
        protocol_version=version,
        message_id=message_id,
        from_agent=sender,
        to_agent=to,
        timestamp=stamp(now_ms),
        trace_id=trace_id,
        request_id=request_id,
        type=_TYPES[type(payload)],
        payload=raw(payload),
        x_custom_fields=custom,
    )


def error_reply(
    error: ErrorPayload,
    to: str,
    fields: Fields | None,
    now_ms: int,
    new_id: Callable[[], str],
    *,
    sender: str = "",
) -> Envelope:
    """The answer to a message that was not taken; ids that cannot be read are replaced (silent point 28)."""
    known = fields or {}
    named = _readable(known, "message_id")
    asker, asked = _text(known, "from_agent"), _text(known, "to_agent")
    if not sender:
        # To an orchestrator that gives work we are the agent that it addressed, to everybody else the orchestrator.
        sender = asked if asker == ORCHESTRATOR and asked in AGENT_TYPES else ORCHESTRATOR
    return build(
        error,
        sender=sender,
        to=to or (asker if asker in AGENT_TYPES else ORCHESTRATOR),
        trace_id=_readable(known, "trace_id") or new_id(),
        request_id=_readable(known, "request_id") or new_id(),
        now_ms=now_ms,
        message_id=new_id(),
        custom=None if named is None else raw({"in_reply_to": named}),
    )


def sender_type(fields: Fields | None) -> str:
    """The type that a message says it comes from, as far as it can be read."""
    found = _text(fields or {}, "from_agent")
    return found if found in AGENT_TYPES else "unknown"


def _text(fields: Fields, name: str) -> str:
    try:
        return msgspec.json.decode(fields[name], type=str) if name in fields else ""
    except msgspec.ValidationError:
        return ""


def _readable(fields: Fields, name: str) -> str | None:
    text = _text(fields, name)
    return text if _UUID.fullmatch(text) is not None else None


# --- registration -----------------------------------------------------------------------------------------------------


class Capacity(Struct, frozen=True, omit_defaults=True):
    """What an agent has; absent is unknown and limits nothing."""

    gpu_vram_mb: int | None = None
    cpu: float | None = None
    memory_mb: int | None = None


class Registration(Struct, frozen=True):
    """``POST /api/agent/register`` (silent point 3)."""

    agent_id: str
    agent_type: str
    supported_versions: tuple[str, ...]
    work_types: tuple[str, ...] = ()
    capacity: Capacity = Capacity()
    callback_url: str | None = None
    version: str = ""


def read_registration(fields: Fields) -> Registration:
    """A registration, each field named in its fault."""
    for name in ("agent_id", "agent_type", "supported_versions"):
        if name not in fields:
            raise invalid("missing", name)
    agent_type = _field(fields, "agent_type", str)
    if agent_type not in AGENT_TYPES:
        raise invalid(f"expected one of {', '.join(AGENT_TYPES)}", "agent_type")
    capacity = _object(fields, "capacity")
    numbers = {} if capacity is None else _decode_fields(bytes(capacity))
    return Registration(
        _field(fields, "agent_id", str),
        agent_type,
        _field(fields, "supported_versions", tuple[str, ...]),
        tuple(dict.fromkeys(_optional(fields, "work_types", tuple[str, ...], "") or ())),
        Capacity(
            _optional(numbers, "gpu_vram_mb", int, "capacity."),
            _optional(numbers, "cpu", float, "capacity."),
            _optional(numbers, "memory_mb", int, "capacity."),
        ),
        _optional(fields, "callback_url", str, ""),
        (_optional(fields, "version", str, "") or "")[:64],
    )


def common_version(theirs: tuple[str, ...], ours: tuple[str, ...] = SUPPORTED_VERSIONS) -> str | None:
    """The lowest version that both speak, by number (CH-093, contradiction 4)."""
    numbers = {tuple(map(int, each.split("."))): each for each in theirs if re.fullmatch(r"\d{1,4}\.\d{1,4}", each)}
    common = [number for number in numbers if numbers[number] in ours]
    return numbers[min(common)] if common else None

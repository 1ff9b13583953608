"""The wire of the HTTP edge, typed: what a request's body may say and what an answer looks like.

Owns the field names, their order and their bounds, and turns a body into one of these shapes or into an error that
names the field. Does not own what they mean (``translate``) or who may send them (``gate``).

Invariant: an unknown field is an error. This is our own API: a misspelt ``timeout_ms`` must not pass silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline import strictjson
from trunkline.errors import RemoteProtocolError
from trunkline.model import AGENT_ID, CALLER_EDGES, MAX_INPUT_BYTES, OPERATOR

# An input of the largest size and everything that may stand around it in a body.
MAX_BODY_BYTES: Final = MAX_INPUT_BYTES + 65_536
# 30 days. Longer than any run we know of, and a deadline that every clock and calendar can still write down.
MAX_TIMEOUT_MS: Final = 2_592_000_000
# An error quotes at most this much of what it complains about.
MAX_MESSAGE_CHARS: Final = 300

ToolId = Annotated[str, Meta(min_length=1, max_length=193)]  # 128 for the agent, the slash, 64 for the name
# Names that callers make up: a UUID, a URN or a path fits; control characters would end up in tables and logs.
CallerName = Annotated[
    str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$", description="no control characters")
]
AGENT_ID_IN_WORDS: Final = "letters, digits, '.', '_' and '-', at most 128, the first a letter or digit"
# msgspec knows no `Raw | None`: an optional body that is absent is the same as one that is null (decision 20).
NOTHING: Final = Raw(b"null")
Reason = Annotated[str, Meta(max_length=2000)]
Permission = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\s]*$", description="no white space")]


class CallBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/calls``."""

    tool_id: ToolId
    input: Raw
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)] | None = None
    idempotency_key: CallerName | None = None
    correlation_id: CallerName | None = None
    causation_id: CallerName | None = None
    wait: bool | None = None


class CancelBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/calls/{id}/cancel``; may be left out."""

    reason: Reason | None = None


class AnswerBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/approvals/{id}``."""

    decision: Literal["approved", "denied"]
    reason: Reason | None = None


class DirectiveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/directives``."""

    tool_id: ToolId
    reason: Annotated[str, Meta(min_length=1, max_length=2000)]
    input: Raw = NOTHING


class TokenBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/tokens``."""

    edge: Literal["http", "opensentience", "chiffon"]
    agent: Annotated[str, Meta(pattern=f"^{AGENT_ID.pattern}$", description=AGENT_ID_IN_WORDS)]
    permissions: tuple[Permission, ...] | None = None
    # Chiffon's agents have one, and need it.
    type: Literal["orchestrator", "infra", "desktop", "code", "research"] | None = None


class CheckBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/policy/check``."""

    caller: Annotated[
        str,
        Meta(
            max_length=256,
            pattern=rf"^({OPERATOR}|({'|'.join(CALLER_EDGES)}):[^*\s]+)$",
            description="operator, or an edge and an id as in agent:com.example.echo or http:NAME",
        ),
    ]
    tool_id: ToolId
    input: Raw = NOTHING


# --- answers ----------------------------------------------------------------------------------------------------------


class ErrorShape(Struct, frozen=True):
    """What stands under ``error``, of a request or of a call; all four are always there."""

    code: str
    message: str
    retryable: bool
    details: dict[str, object]


class CallShape(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A call, wherever one is shown. What is not known yet is absent."""

    call_id: str
    status: str
    output: Raw | None = None
    error: ErrorShape | None = None
    started_at: str | None = None
    finished_at: str | None = None
    tool_id: str
    caller: str
    accepted_at: str | None = None
    correlation_id: str | None = None
    approval_id: str | None = None
    expires_at: str | None = None


class TokenShape(Struct, frozen=True, omit_defaults=True):
    """A credential as it is listed."""

    id: str
    edge: str
    agent: str
    issued_at: str
    permissions: tuple[str, ...] = ()
    revoked: bool = False
    type: str = ""


class NewTokenShape(Struct, frozen=True, omit_defaults=True):
    """A new credential: the only time its secret is shown."""

    id: str
    edge: str
    agent: str
    token: str
    permissions: tuple[str, ...] = ()
    type: str = ""


T = TypeVar("T", bound=Struct)

_EXPECTED = re.compile(r"^(?P<what>Expected .*?|Invalid .*?)(?: - at `\$\.?(?P<field>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`$", re.DOTALL)


def decode(kind: type[T], data: bytes) -> T:
    """A body of this kind, or ``RemoteProtocolError`` with words that name the field."""
    try:
        strictjson.check(data)
    except ValueError as error:
        raise RemoteProtocolError("message.malformed", clip(f"the body is not strict JSON: {error}")) from None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError("message.malformed", clip(_say(kind, str(error)))) from None


def clip(text: str) -> str:
    """At most ``MAX_MESSAGE_CHARS`` of a text."""
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def _say(kind: type[Struct], text: str) -> str:
    """The complaint of msgspec with the field in front, and what would be right where that is not obvious."""
    if (unknown := _UNKNOWN.match(text)) is not None:
        return f"unknown field {unknown['field']!r}; known are {', '.join(kind.__struct_fields__)}"
    if (expected := _EXPECTED.match(text)) is not None:
        field, what = expected["field"] or "", expected["what"].replace("`", "")
        if what.startswith("Invalid enum value"):
            what = "expected " + " or ".join(", ".join(_choices(kind, field)).rsplit(", ", 1))
        elif "matching regex" in what:
            what = f"expected {_in_words(kind, field)}"
        return f"{field or 'the body'}: {what[:1].lower()}{what[1:]}"
    return text.replace("`", "").replace("Object missing", "missing")


def _parts(kind: type[Struct], field: str) -> Iterator[object]:
    """A field's type, and what it is made of. An element of an array is `field[...]`."""
    waiting: list[object] = [get_type_hints(kind, include_extras=True).get(field.partition("[")[0])]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += get_args(part)


def _choices(kind: type[Struct], field: str) -> Iterator[str]:
    """The words that a field may be."""
    for part in _parts(kind, field):
        if get_origin(part) is Literal:
            yield from get_args(part)


def _in_words(kind: type[Struct], field: str) -> str:
    """What the pattern of a field asks for; every pattern has words."""
    return next(part.description for part in _parts(kind, field) if isinstance(part, Meta) and part.description)

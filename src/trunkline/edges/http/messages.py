"""The wire of the HTTP edge, typed: what a request's body may say and what an answer looks like.

Owns the field names, their order and their bounds. Does not own what they mean (``translate``) or who may send them
(``gate``).

Invariant: an unknown field is an error. This is our own API: a misspelt ``timeout_ms`` must not pass silently.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Raw, Struct

from trunkline.edges.answers import ErrorShape
from trunkline.edges.client import MAX_URL_CHARS
from trunkline.edges.edge import PIN
from trunkline.model import AGENT_ID, CALLER_EDGES, MAX_INPUT_BYTES, MAX_NAME_CHARS, OPERATOR

# An input of the largest size and everything that may stand around it in a body.
MAX_BODY_BYTES: Final = MAX_INPUT_BYTES + 65_536
# 30 days. Longer than any run we know of, and a deadline that every clock and calendar can still write down.
MAX_TIMEOUT_MS: Final = 2_592_000_000

ToolId = Annotated[str, Meta(min_length=1, max_length=193)]  # 128 for the agent, the slash, 64 for the name
# Names that callers make up: a UUID, a URN or a path fits; control characters would end up in tables and logs.
CallerName = Annotated[
    str,
    # Not $, here and below: it also matches before a line end.
    Meta(
        min_length=1, max_length=MAX_NAME_CHARS, pattern=r"\A[^\x00-\x1f\x7f]*\Z", description="no control characters"
    ),
]
AGENT_ID_IN_WORDS: Final = "letters, digits, '.', '_' and '-', at most 128, the first a letter or digit"
# msgspec knows no `Raw | None`: an optional body that is absent is the same as one that is null (decision 20).
NOTHING: Final = Raw(b"null")
Reason = Annotated[str, Meta(max_length=2000)]
Permission = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"\A[^\s]*\Z", description="no white space")]


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


class RuleBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/approvals/{id}/rule``."""

    # As it was shown.
    rule: Annotated[str, Meta(min_length=1, max_length=8192)]
    also_untrusted: bool = False
    reason: Annotated[str, Meta(max_length=1024)] | None = None


class DirectiveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/directives``."""

    tool_id: ToolId
    reason: Annotated[str, Meta(min_length=1, max_length=2000)]
    input: Raw = NOTHING


class TokenBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/tokens``."""

    edge: Annotated[str, Meta(min_length=1, max_length=64)]
    agent: Annotated[str, Meta(pattern=rf"\A{AGENT_ID.pattern}\Z", description=AGENT_ID_IN_WORDS)]
    permissions: tuple[Permission, ...] | None = None
    # On edges whose agents have types.
    type: Annotated[str, Meta(max_length=64)] | None = None
    # On edges that send messages to where an agent listens: there, and whose public key its server has.
    url: Annotated[str, Meta(max_length=MAX_URL_CHARS)] | None = None
    pin: (
        Annotated[
            str,
            Meta(pattern=rf"\A{PIN.pattern}\Z", description="the SHA-256 of a SubjectPublicKeyInfo in base64"),
        ]
        | None
    ) = None


class CheckBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/policy/check``."""

    caller: Annotated[
        str,
        Meta(
            max_length=256,
            pattern=rf"\A({OPERATOR}|({'|'.join(CALLER_EDGES)}):[^*\s]+)\Z",
            description="operator, or an edge and an id as in agent:com.example.echo or http:NAME",
        ),
    ]
    tool_id: ToolId
    input: Raw = NOTHING


# --- answers ----------------------------------------------------------------------------------------------------------


class CallShape(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A call, wherever one is shown. What is not known yet is absent."""

    call_id: str
    status: str
    output: Raw | None = None
    # In lists, where an output that is not small is left out: its size.
    output_bytes: int | None = None
    # Of a call that succeeded: the exit code of a command that it ran and that did not.
    failed_with: int | None = None
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
    # Of a pair of keys: everything but the private parts, which nobody has kept. ``kid`` names the key.
    public: Raw | None = None

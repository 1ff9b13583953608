"""The HTTP edge's words and ours, both ways.

Owns how an effect or a view becomes an answer's bytes and how a body becomes an event. Bodies of tools stay the bytes
they arrived as (``Raw``), from the request to the event and from the effect to the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.answers import encode, error_shape
from trunkline.edges.http.messages import CallBody, CallShape, TokenBody, TokenShape
from trunkline.effects import Answer, Progress, Wait
from trunkline.events import CallRequested
from trunkline.model import NOBODY, Principal, stamp
from trunkline.shown import CallView, TokenView


def call_requested(
    body: CallBody, value: Any, session: int, ref: str, caller: Principal, *, announce: bool
) -> CallRequested:
    """The event for ``POST /v1/calls``; ``value`` is its input as plain JSON. With ``announce`` its id is told at once.

    By position, in the order of the fields: by keyword it takes a microsecond more.
    """
    return CallRequested(
        session, ref, caller, body.tool_id, body.input, body.idempotency_key, body.timeout_ms, body.correlation_id,
        body.causation_id, None, None, None, None, announce, NOBODY, value,
    )  # fmt: skip


def plain(shape: Struct) -> dict[str, Any]:
    """A shape as whoever asks over HTTP would see it."""
    found: dict[str, Any] = msgspec.json.decode(encode(shape))
    return found


def outcome(effect: Answer, tool_id: str, caller: str) -> CallShape:
    """A finished call."""
    return CallShape(
        call_id=effect.call_id,
        status=effect.status,
        output=_shown(effect),
        error=error_shape(effect.fault),
        started_at=None if effect.started_ms is None else stamp(effect.started_ms),
        finished_at=None if effect.finished_ms is None else stamp(effect.finished_ms),
        tool_id=tool_id,
        caller=caller,
        correlation_id=effect.correlation_id,
    )


def unfinished(effect: Wait, tool_id: str, caller: str) -> CallShape:
    """A call that was taken on and runs, queues, or waits for a person."""
    return CallShape(
        call_id=effect.call_id,
        status=effect.status.value,
        tool_id=tool_id,
        caller=caller,
        correlation_id=effect.correlation_id,
        approval_id=effect.approval_id,
        expires_at=None if effect.expires_ms is None else stamp(effect.expires_ms),
    )


def progress(effect: Progress) -> dict[str, object]:
    """A piece of a stream."""
    shape: dict[str, object] = {
        "call_id": effect.call_id,
        "seq": effect.seq,
        "channel": effect.channel,
        "data": effect.data,
    }
    if effect.done:
        shape["done"] = True
    return shape


def call(view: CallView) -> CallShape:
    """A call as it was looked up."""
    return CallShape(
        call_id=view.call_id,
        status=view.status.value,
        output=_shown(view),
        output_bytes=view.output_bytes,
        failed_with=view.failed_with,
        error=error_shape(view.error),
        started_at=view.started_at,
        finished_at=view.finished_at,
        tool_id=view.tool_id,
        caller=view.caller,
        accepted_at=view.accepted_at,
        correlation_id=view.correlation_id,
        approval_id=view.approval_id,
    )


def token(view: TokenView) -> TokenShape:
    """A credential as it is listed."""
    return TokenShape(
        id=view.token_id,
        edge=view.edge,
        agent=view.agent,
        issued_at=view.issued_at,
        permissions=view.permissions,
        revoked=view.revoked,
        type=view.type,
        public=view.public,
    )


def new_token(token_id: str, body: TokenBody, shown: Mapping[str, object]) -> dict[str, object]:
    """A new credential: the only time that what is secret of it is shown."""
    shape = {"id": token_id, "edge": body.edge, "agent": body.agent, **shown}
    if body.permissions:
        shape["permissions"] = body.permissions
    if body.type:
        shape["type"] = body.type
    return shape


def _shown(outcome: Answer | CallView) -> Raw | None:
    """The output, or the reference to a large one."""
    return outcome.output if outcome.large is None else outcome.large.reference()

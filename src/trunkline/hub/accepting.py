"""The entry of a call that is taken on: made here and nowhere else, whichever way the call came.

``Terms`` are what was decided about a call and holds for the next one like it; whoever adds something to what a call is
judged by, and wants it on record, adds it here. Does not judge (``judging``), does not write (``hub``, ``lanes``).
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.entries import CallAccepted
from trunkline.events import CallRequested
from trunkline.model import Circumstance, Decision


class Terms(Struct, frozen=True, gc=False):
    """Who calls for whom, what was decided by which rule, and what the tool and its provider say of themselves."""

    caller: str
    # The callers before him.
    chain: tuple[str, ...]
    decision: Decision
    rule: str
    policy: str
    fingerprint: str
    side_effects: bool
    dedupes: bool


def accepted_entry(
    number: int,
    at_ms: int,
    call_id: str,
    event: CallRequested,
    terms: Terms,
    cause: int | None,
    depth: int,
    correlation_id: str | None,
    sent: bool = True,
    key_id: str | None = None,
    input_mac: str | None = None,
    directive_id: str | None = None,
    circumstances: tuple[Circumstance, ...] = (),
    warning: str | None = None,
    provider: str | None = None,
    sensitive: bool = False,
) -> CallAccepted:
    """``call.accepted``. ``cause`` is the number of the call that this one is part of, ``depth`` how deep it is."""
    # By position, in the order of the fields: by keyword it takes a microsecond more, a fifth of an ordinary call.
    return CallAccepted(
        number, at_ms, call_id, terms.caller, event.tool_id, event.input, terms.decision, terms.rule, terms.policy,
        terms.fingerprint, sent, terms.side_effects, terms.dedupes, terms.chain, cause, event.key, key_id, input_mac,
        correlation_id, event.causation_id, directive_id, event.timeout_ms, event.expires_ms, circumstances, warning,
        depth, provider, sensitive,
    )  # fmt: skip

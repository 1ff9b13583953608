"""What the hub asks for: imperative, immutable, carried out in order by ``host.runner``.

Two kinds: an entry, which is appended to the ledger, and something for one conversation.
``after`` is the number of the last entry that must be on disk before the effect leaves; 0 waits for nothing
(decision 26).

Owns what an effect carries. Does not own who carries it out or how it looks on a wire.
"""

from __future__ import annotations

from typing import dataclass_transform

from msgspec import Raw, Struct

from trunkline.entries import Entry
from trunkline.model import Actor, Circumstance, Fault, LargeOutput, Status
from trunkline.shown import CallView


# The decorator tells type checkers what msgspec does: a child of a frozen struct is frozen.
@dataclass_transform(frozen_default=True)
class ToSession(Struct, frozen=True, gc=False):
    """An effect for one conversation."""

    session: int
    after: int


class Admit(ToSession):
    """The agent is who it says."""

    ref: str


class Refuse(ToSession):
    """The agent is not who it says; the same words for every reason, after ``delay_s`` for one who keeps trying."""

    ref: str
    delay_s: float = 0.0


class Deliver(ToSession):
    """Run this tool. ``call_id`` is ours and stays the same when the call is sent again.

    ``chain`` are the callers before ``caller``, for whom he asks; the first one first.
    """

    call_id: str
    tool_id: str
    input: Raw
    caller: str
    correlation_id: str
    timeout_ms: int | None = None
    key: str | None = None
    causation_id: str | None = None
    actor: Actor | None = None
    context: Raw | None = None
    attempt: int = 1
    chain: tuple[str, ...] = ()
    # Its content is for the one who serves it; an edge keeps it nowhere, and encrypts it if its wire can.
    sensitive: bool = False


class CheckHealth(ToSession):
    """See whether this agent is well, and report it with ``HealthReported``: its breaker waits for that."""


class Cancel(ToSession):
    """Stop this call if you can, and say how it ended."""

    call_id: str
    reason: str
    deadline_ms: int


class Answer(ToSession):
    """The one outcome of a call, or why it was refused, for the one who asked under ``ref``.

    ``output`` is always whole. With ``large`` it is on disk under its hash, and a wire that does not carry so much
    shows ``large.reference()`` instead.
    """

    ref: str
    call_id: str
    status: Status
    output: Raw | None = None
    fault: Fault | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    correlation_id: str | None = None
    # A refusal came before the call was taken on: an HTTP status of its own, no key used.
    refused: bool = False
    large: LargeOutput | None = None
    # When its caller hears something even if the disk does not answer (monotonic); 0.0: whoever asked waits.
    deadline: float = 0.0


class Wait(ToSession):
    """The call waits: for a person (``approval_id``) or for its turn. The answer comes later."""

    ref: str
    call_id: str
    status: Status
    approval_id: str | None = None
    expires_ms: int | None = None
    correlation_id: str | None = None


class Progress(ToSession):
    """Something of a running call to show to the one who asked; said once with session 0 if nobody waits for the call,
    for those who look on.
    """

    ref: str
    call_id: str
    seq: int
    channel: str
    data: Raw
    done: bool = False
    correlation_id: str | None = None
    sensitive: bool = False


class ConfirmTools(ToSession):
    """Which of the announced tools were taken, and why not the others."""

    ref: str
    registered: tuple[str, ...]
    rejected: tuple[tuple[str, Fault], ...] = ()


class ConfirmWithdrawal(ToSession):
    """Which tools are gone, and why not the others."""

    ref: str
    withdrawn: tuple[str, ...]
    rejected: tuple[tuple[str, Fault], ...] = ()


class Notify(ToSession):
    """An event for a subscription of this conversation. With ``qos`` above 0 it is owed until ``EventTaken``.

    ``event`` is its number; one that is told again, to another conversation or after a restart, has the same.
    """

    subscription_id: str
    event: int
    event_id: str
    publisher: str
    topic: str
    body: Raw
    qos: int
    published_ms: int
    correlation_id: str | None = None
    expires_ms: int | None = None
    # What its publisher's protocol said beside it, unread.
    context: Raw | None = None
    # Under which it was published: what a subscriber is asked to do about it is done under them, too.
    circumstances: tuple[Circumstance, ...] = ()
    # As in ``Deliver``.
    sensitive: bool = False


class StopTelling(ToSession):
    """A subscription of this conversation was ended by somebody else: what is on its way for it is owed no more."""

    subscription_id: str


class Reply(ToSession):
    """The answer to a request that is not a call: an id, a view of a call, or a fault."""

    ref: str
    id: str | None = None
    call: CallView | None = None
    fault: Fault | None = None
    status: str | None = None


class Close(ToSession):
    """End this conversation; ``reason`` is a code that is safe to tell."""

    reason: str
    retry_after_ms: int | None = None


Effect = Entry | ToSession

__all__ = [
    "Admit",
    "Answer",
    "Cancel",
    "CheckHealth",
    "Close",
    "ConfirmTools",
    "ConfirmWithdrawal",
    "Deliver",
    "Effect",
    "Notify",
    "Progress",
    "Refuse",
    "Reply",
    "StopTelling",
    "ToSession",
    "Wait",
]

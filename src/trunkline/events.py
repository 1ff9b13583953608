"""What can happen: the values that edges and the host hand to ``Hub.handle``.

Past tense, immutable, without secrets: a token arrives as the hash of itself. Owns no behaviour.

``session`` is the number of a conversation, given by the runner; ``ref`` is the edge's own name for a request in it,
which comes back unread in the effect that answers.
"""

from __future__ import annotations

from typing import Any, dataclass_transform

from msgspec import Raw, Struct

from trunkline.entries import CallAccepted, CallSettled
from trunkline.model import (
    NOBODY,
    Actor,
    Behalf,
    BreakerPolicy,
    Fault,
    Health,
    HubSettings,
    Manifest,
    Peer,
    Principal,
    ProcessIdentity,
    RetryPolicy,
    Status,
    ToolDefinition,
)


# The decorator tells type checkers what msgspec does: a child of a frozen struct is frozen.
@dataclass_transform(frozen_default=True)
class Event(Struct, frozen=True, gc=False):
    """The root, so that ``Hub.handle`` has a type."""


# --- agents -----------------------------------------------------------------------------------------------------------


class AgentLaunched(Event):
    """The host started a process for an agent and gave it a token. The hub then knows whom to expect."""

    agent_id: str
    run_id: str
    process: ProcessIdentity
    token_sha256: str
    manifest: Manifest | None = None


class AgentStopping(Event):
    """The host has asked a launched process to end. ``reason`` is in words of ours that every caller may read."""

    agent_id: str
    run_id: str
    reason: str


class AgentExited(Event):
    """A launched process ended."""

    agent_id: str
    run_id: str
    exit_code: int
    restart_in_s: float | None = None
    note: str = ""


class AgentArrived(Event):
    """Somebody says who they are. The hub answers ``Admit`` or ``Refuse``.

    ``max_inflight`` and ``timeout_s`` (None: the edge has timers of its own) are the edge's defaults. An edge whose
    attempts can fail without being an outcome states how they are repeated (``retry``), and when its agent gets a rest.
    """

    session: int
    ref: str
    edge: str
    agent_id: str
    version: str
    token_sha256: str
    peer: Peer
    capabilities: tuple[str, ...] = ()
    manifest_sha256: str | None = None
    max_inflight: int = 256
    timeout_s: float | None = 30.0
    dedupes: bool = False
    retry: RetryPolicy | None = None
    breaker: BreakerPolicy | None = None
    # It is part of the exchange: its tools' definitions change with a release of ours only, so nobody is asked.
    is_resident: bool = False
    # The edge speaks for it, as somebody else's program or server does not know us: it has an id with the edge's
    # prefix, and is otherwise an agent like those that come by themselves.
    is_mounted: bool = False
    # All it does are entries of this record, behind that of the call: it need not wait until that one is on disk.
    only_records: bool = False


class AgentLeft(Event):
    """A session ended; everything it offered or asked for is affected."""

    session: int
    reason: str


class AgentRemoved(Event):
    """A person took away an agent that was part of the exchange. It has left before; what waits for it ends."""

    agent_id: str
    reason: str


class HealthReported(Event):
    """An agent said how it is, or was silent for too long. Also the answer to ``CheckHealth``."""

    session: int
    health: Health


class ToolsOffered(Event):
    """An agent announces tools. ``rejected`` are those that the edge could not read."""

    session: int
    ref: str
    tools: tuple[ToolDefinition, ...]
    rejected: tuple[tuple[str, Fault], ...] = ()
    replace: bool = False


class ToolsWithdrawn(Event):
    """An agent takes tools back."""

    session: int
    ref: str
    tool_ids: tuple[str, ...]


# --- calls ------------------------------------------------------------------------------------------------------------


class Earlier(Struct, frozen=True, gc=False):
    """The settled call that used a key before, looked up by the runner (decision 29)."""

    accepted: CallAccepted
    settled: CallSettled


class CallRequested(Event):
    """Somebody asks for one run of a tool.

    With ``announce`` the hub answers a call it took on with ``Wait`` (``running`` or ``queued``) at once, so that the
    caller knows its id before the outcome. ``on_behalf_of`` is what the hub said when this work was asked for, if that
    was before: it is added to what the hub finds out about the caller now.
    """

    session: int
    ref: str
    caller: Principal
    tool_id: str
    input: Raw
    key: str | None = None
    timeout_ms: int | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    actor: Actor | None = None
    context: Raw | None = None
    expires_ms: int | None = None
    earlier: Earlier | None = None
    announce: bool = False
    on_behalf_of: Behalf = NOBODY
    # The input as plain JSON, where the edge has read it already.
    value: Any = None
    # What is said in this call is for its two ends only: on record and for onlookers there are hashes of it.
    sensitive: bool = False


class CallProgressed(Event):
    """A running call has something to show. ``data`` is ``{"text": …}`` or ``{"json": …}`` as received."""

    session: int
    call_id: str
    seq: int
    channel: str
    data: Raw
    done: bool = False


class CallFinished(Event):
    """An agent says how a call ended; ``fault`` is given when it did not succeed."""

    session: int
    call_id: str
    status: Status
    output: Raw | None = None
    fault: Fault | None = None
    started_at: str | None = None
    finished_at: str | None = None
    metrics: Raw | None = None
    # The output as plain JSON, where the edge has read it already.
    value: Any = None


class AttemptFailed(Event):
    """Sending a call led to nothing yet: no answer in time, or an answer that says so. Not an outcome by itself.

    ``fault.retryable`` says whether the edge's rules allow another attempt; the hub decides whether there is one.
    ``is_callers_limit``: only a limit that the caller set ran out, which says nothing of how the agent is.
    """

    session: int
    call_id: str
    fault: Fault
    is_callers_limit: bool = False


class CancelRequested(Event):
    """Somebody wants a call stopped: named by our ``call_id``, or by the ``target`` ref of the same session."""

    session: int
    ref: str
    by: Principal
    call_id: str | None = None
    target: str | None = None
    reason: str = ""


class CancelAcknowledged(Event):
    """An agent heard that a call should stop; its result still follows."""

    session: int
    call_id: str
    accepted: bool


class CallerLeft(Event):
    """The one who waits for this request is gone (its session may go on)."""

    session: int
    ref: str


# --- topics -----------------------------------------------------------------------------------------------------------


class SubscriptionRequested(Event):
    """Somebody wants to be told of events whose topic matches. ``Reply`` has the subscription's id.

    ``session`` is only where the reply goes: the subscriber is told where ``SubscriberArrived`` says that he is.
    ``qos`` is the most that is wanted: 0 once at most, 1 and 2 until ``EventTaken``. One that is not durable needs such
    a conversation, and ends with it. ``call_id`` is the call by which it was asked for, if it was one.
    """

    session: int
    ref: str
    subscriber: Principal
    pattern: str
    qos: int = 0
    durable: bool = False
    call_id: str | None = None


class SubscriptionEnded(Event):
    """A subscriber wants to hear no more of it, or the operator ends it. ``Reply`` has the subscription's id."""

    session: int
    ref: str
    by: Principal
    subscription_id: str


class SubscriberArrived(Event):
    """A subscriber is told of events in this conversation from here on, and in no earlier one any more.

    What is owed to him follows, oldest first.
    """

    session: int
    subscriber: Principal


class SubscriberLeft(Event):
    """A subscriber is not told of events in this conversation any more. ``AgentLeft`` says so, too."""

    session: int


class EventPublished(Event):
    """An event, by somebody who may publish. ``Reply`` has its id, and comes when it is on disk, if it has to be.

    ``context`` is what the publisher's protocol says beside it; it reaches ``Notify`` unread. ``call_id`` is the call
    by which it was published, if it was one: those behind that call count for who may publish here.
    """

    session: int
    ref: str
    publisher: str
    topic: str
    body: Raw
    qos: int = 0
    correlation_id: str | None = None
    expires_ms: int | None = None
    context: Raw | None = None
    call_id: str | None = None
    # As in ``CallRequested``.
    sensitive: bool = False


class WordsPassed(Event):
    """What one identity says is about to reach others, by an edge's own ways: by no call and on no topic.

    If it may hold what strangers wrote, they are labelled as who receives an untrusted result is.
    """

    by: str
    to: tuple[str, ...]
    correlation_id: str | None = None


class EventTaken(Event):
    """A subscriber has an event of quality 1 or 2, and needs it no more."""

    session: int
    subscription_id: str
    event: int


class EventGivenUp(Event):
    """An edge tried long enough to hand an event over."""

    session: int
    subscription_id: str
    event: int
    reason: str


# --- people -----------------------------------------------------------------------------------------------------------


class ApprovalAnswered(Event):
    """A person answers a question."""

    session: int
    ref: str
    by: Principal
    approval_id: str
    approved: bool
    reason: str = ""


class DirectiveStated(Event):
    """Somebody states an intent for one call of a tool."""

    session: int
    ref: str
    by: Principal
    tool_id: str
    input: Raw | None
    reason: str


class DirectiveRequested(Event):
    """An agent asks that a person state an intent; the answer is a question first."""

    session: int
    ref: str
    by: Principal
    tool_id: str
    input: Raw | None
    reason: str


class TokenIssued(Event):
    """A standing credential was made; nobody keeps its secret any longer than it takes to show it."""

    session: int
    ref: str
    by: Principal
    edge: str
    agent: str
    token_sha256: str
    permissions: tuple[str, ...] = ()
    type: str = ""
    # Of a pair of keys: what everybody may know of it, as its edge wrote it. ``token_sha256`` is that of its name.
    public: Raw | None = None


class TokenRevoked(Event):
    """A standing credential is taken back."""

    session: int
    ref: str
    by: Principal
    token_id: str


# --- the exchange itself ----------------------------------------------------------------------------------------------


class ExchangeStarted(Event):
    """All entries are folded: take up what was open."""

    version: str
    instance: str


class DrainStarted(Event):
    """No new calls from here on."""


class ExchangeStopped(Event):
    """Everything is answered or given up; the last entry follows."""


class SettingsChanged(Event):
    """The operator's configuration was read again: these hold from here on."""

    settings: HubSettings


class StorageChanged(Event):
    """How the disk is: short of room for new calls, without an answer for too long, or failed, which is for ever."""

    low: bool
    failed: bool = False
    stalled: bool = False


class ClockJumped(Event):
    """The wall clock went ahead by so much more than time passed: it was set, or the machine slept."""

    ahead_ms: int


class Noticed(Event):
    """An edge or the host saw something that should be on record."""

    code: str
    place: str
    who: str = ""
    detail: str = ""


class ProcessStepped(Event):
    """Something of an edge that outlives a connection (a run, a task) took a step. ``Reply`` comes when it is on disk.

    ``data`` is the edge's own JSON object; the hub does not read it. With ``done`` the subject is closed. What is
    written counts for ``caller``, whose identity is empty if the exchange does this for itself; the first step of a
    subject is refused if too much would be written for him.
    """

    session: int
    ref: str
    process: str
    subject: str
    step: str
    data: Raw
    done: bool = False
    caller: str = ""


class SnapshotTaken(Event):
    """The open state up to ``through`` is about to be stored."""

    through: int
    sha256: str


class PartClosed(Event):
    """Old entries are about to be removed by the retention setting."""

    first: int
    last: int
    head: str
    kept: dict[str, str]


class Woke(Event):
    """The time that ``Hub.wake_at`` named has come."""

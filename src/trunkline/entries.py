"""What is remembered: the kinds of ledger entries, as values.

The hub's durable state is the fold of these (``hub.state``); nothing else survives a crash. Owns their fields; does not
own hashing, masking or storage (``ledger``).

Invariant: each entry starts with ``kind``, ``n`` (its number, from 1 without gaps) and ``at`` (wall milliseconds).
An old entry stays readable for ever: fields are added with defaults, never renamed or removed.
"""

from __future__ import annotations

from typing import dataclass_transform

import msgspec
from msgspec import Raw, Struct

from trunkline.model import Circumstance, Decision, Fault, Health, OptionalRaw, Rule, Status, ToolDefinition


# The decorator tells type checkers what msgspec does: a child of a frozen struct is frozen.
@dataclass_transform(frozen_default=True)
class Entry(Struct, frozen=True, omit_defaults=True, tag_field="kind", gc=False):
    """One line of the ledger."""

    n: int
    at: int


class ExchangeStarted(Entry, tag="exchange.started"):
    """The exchange came up; calls that were open before are taken up after this entry."""

    version: str
    instance: str


class ExchangeStopped(Entry, tag="exchange.stopped"):
    """The exchange stopped after draining; ``open_calls`` were left for the next start."""

    open_calls: int = 0


class PolicyChanged(Entry, tag="policy.changed"):
    """The rules in force from here on."""

    version: str
    rules: tuple[Rule, ...]
    # The whole hash of them, in the form of OpenAgents: what trajectories name. ``version`` is a short one.
    policy_bundle_id: str = ""


class AgentLaunched(Entry, tag="agent.launched"):
    """A process was started for an agent."""

    agent_id: str
    run_id: str
    pid: int
    manifest_sha256: str | None = None


class AgentExited(Entry, tag="agent.exited"):
    """A launched process ended. ``restart_in_s`` is absent when it will not be started again."""

    agent_id: str
    run_id: str
    exit_code: int
    restart_in_s: float | None = None
    note: str = ""


class AgentAdmitted(Entry, tag="agent.admitted"):
    """An agent proved who it is. Written before it is told so; ``credential`` names the token, never its value."""

    agent_id: str
    edge: str
    version: str
    credential: str
    capabilities: tuple[str, ...] = ()
    manifest_sha256: str | None = None
    drift: bool = False


class AgentRefused(Entry, tag="agent.refused"):
    """Somebody did not prove who they are. ``reason`` is for the operator; the peer is told nothing of it."""

    edge: str
    claimed: str
    origin: str
    reason: str


class AgentLeft(Entry, tag="agent.left"):
    """An agent's session ended and its tools were withdrawn."""

    agent_id: str
    reason: str


class AgentHealthChanged(Entry, tag="agent.health"):
    """An agent's health changed."""

    agent_id: str
    health: Health


class PermissionsGranted(Entry, tag="agent.permissions"):
    """The permissions a person approved for an agent, pinned to the manifest they were asked in."""

    agent_id: str
    manifest_sha256: str
    permissions: tuple[str, ...]


class ToolsOffered(Entry, tag="tools.offered"):
    """What an agent announced: the ids taken and, for the others, the code of the refusal."""

    agent_id: str
    tool_ids: tuple[str, ...]
    rejected: dict[str, str] = {}


class ToolsWithdrawn(Entry, tag="tools.withdrawn"):
    """Tools that an agent took back."""

    agent_id: str
    tool_ids: tuple[str, ...]


class ToolPinned(Entry, tag="tool.pinned"):
    """The definition that is in force for a tool: by first use, or because a person approved a changed one."""

    definition: ToolDefinition
    fingerprint: str
    approval_id: str | None = None


class CallAccepted(Entry, tag="call.accepted"):
    """A call was taken on. With ``sent`` its delivery follows at once; else a ``call.sent`` precedes each delivery."""

    call_id: str
    caller: str
    tool_id: str
    input: Raw
    decision: Decision
    rule: str
    policy: str
    fingerprint: str
    sent: bool
    side_effects: bool = True
    dedupes: bool = False
    chain: tuple[str, ...] = ()
    cause: int | None = None
    key: str | None = None
    key_id: str | None = None
    input_mac: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    directive_id: str | None = None
    timeout_ms: int | None = None
    expires_ms: int | None = None
    # Under which it was judged, in the order of their names.
    circumstances: tuple[Circumstance, ...] = ()
    warning: str | None = None
    # How many calls deep; not always the length of ``chain``, which may join the chains of several causes.
    depth: int = 1
    # Of a tool that stands for others: the one that serves the call, if it is sent at once and is another one.
    # ``dedupes`` is then what that one promised; all else is about the tool that was asked for.
    provider: str | None = None
    # Its content is stored and shown as hashes. ``hashed``: this is such a form, and nobody has the original any more.
    sensitive: bool = False
    hashed: bool = False


class CallSent(Entry, tag="call.sent"):
    """A call is about to be sent (again). ``attempt`` counts those at one provider.

    ``provider`` and ``dedupes`` as in ``call.accepted``; absent where no router was asked.
    """

    call: int
    attempt: int
    provider: str | None = None
    dedupes: bool = False


class CallReturned(Entry, tag="call.returned"):
    """A provider did not take a routed call on: it counts as not sent, and that provider is not asked again."""

    call: int
    provider: str
    code: str


class StreamSummary(Struct, frozen=True, omit_defaults=True):
    """What is kept of a stream: how much, its hash, its end."""

    chunks: int
    bytes: int
    sha256: str
    tail: str = ""
    gaps: int = 0


class CallSettled(Entry, tag="call.settled"):
    """A call's one outcome."""

    call: int
    call_id: str
    status: Status
    output: OptionalRaw = None
    fault: Fault | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    stream: StreamSummary | None = None
    untrusted: bool = False
    metrics: OptionalRaw = None
    # The correlations that an untrusted result is part of, so that a fold finds them without the call.
    taints: tuple[str, ...] = ()
    # The one that served it, where that is not the tool that was asked for.
    provider: str | None = None
    # The agents that received an untrusted result, by their ids.
    receivers: tuple[str, ...] = ()
    # As in ``call.accepted``.
    sensitive: bool = False
    hashed: bool = False


class CallRefused(Entry, tag="call.refused"):
    """A call that was not taken on. It used no key and reached nobody."""

    call_id: str
    caller: str
    tool_id: str
    code: str
    rule: str = ""
    chain: tuple[str, ...] = ()
    correlation_id: str | None = None
    # What its code does not say: where the input does not fit the schema, which limit is exceeded. Never of the input.
    why: str = ""


class CallNoted(Entry, tag="call.noted"):
    """Something about a call that changes nothing: a late or second result, a gap in its stream, a cancel request."""

    call_id: str
    note: str
    by: str = ""
    detail: str = ""


class QuestionOpened(Entry, tag="question.opened"):
    """A person is asked. Bound to what is named here; one use."""

    approval_id: str
    subject: str
    asked_by: str
    expires_ms: int
    reason: str
    call: int | None = None
    tool_id: str | None = None
    agent_id: str | None = None
    chain: tuple[str, ...] = ()
    input_mac: str | None = None
    policy: str | None = None
    fingerprint: str | None = None
    definition: ToolDefinition | None = None
    manifest_sha256: str | None = None
    permissions: tuple[str, ...] = ()
    input: OptionalRaw = None
    # By which names the same was asked before, the oldest first.
    earlier: tuple[str, ...] = ()
    # The reasons that were given with the last of these names; older records have names alone.
    earlier_reasons: tuple[str, ...] = ()
    # Of a call that was judged again: the rule that asks now, if it is not the one that the call was taken on by.
    rule: str = ""
    # Of a call: what its provider gets beside the input ({"context", "actor"}); empty if the call is sensitive.
    beside: OptionalRaw = None
    # Of a call of a tool that stands for others: who would serve it, and by which definition.
    provider: str | None = None
    provider_fingerprint: str = ""


class QuestionJoined(Entry, tag="question.joined"):
    """An identical call waits behind an open question; the answer still covers one call only."""

    approval_id: str
    call: int


class QuestionClosed(Entry, tag="question.closed"):
    """A question has its answer, or will get none: ``how`` is approved, denied, expired or withdrawn."""

    approval_id: str
    how: str
    by: str = ""
    reason: str = ""
    same_person: bool = False


class DirectiveStated(Entry, tag="directive.stated"):
    """An intent, for one call of a ``requires_directive`` tool."""

    directive_id: str
    by: str
    tool_id: str
    reason: str
    expires_ms: int
    input_mac: str | None = None


class TokenIssued(Entry, tag="token.issued"):
    """A standing credential was made: only its hash is kept, or of a pair of keys its hash and the public part."""

    token_id: str
    edge: str
    agent: str
    sha256: str
    permissions: tuple[str, ...] = ()
    type: str = ""
    public: OptionalRaw = None


class TokenRevoked(Entry, tag="token.revoked"):
    """A standing credential is worth nothing any more."""

    token_id: str


class Noticed(Entry, tag="notice"):
    """Something an edge or the host saw that should be on record; never with content of a message."""

    code: str
    place: str
    who: str = ""
    detail: str = ""


class ProcessStep(Entry, tag="process.step"):
    """A step of something that outlives a connection: a run, a task. An edge's ``process.py`` folds its own."""

    process: str
    subject: str
    step: str
    data: Raw
    # Nothing more follows; only the record remembers the subject from here on.
    done: bool = False


class TopicSubscribed(Entry, tag="topic.subscribed"):
    """Somebody is told of events from here on. One that is not durable ends with its conversation."""

    subscription_id: str
    subscriber: str
    pattern: str
    qos: int = 0
    durable: bool = False
    # For whom he subscribed: what one of them is denied, he is not told.
    chain: tuple[str, ...] = ()


class TopicUnsubscribed(Entry, tag="topic.unsubscribed"):
    """A subscription ended, and with it what was owed to it.

    ``reason`` is empty if its subscriber wanted it so, ``left`` if his conversation ended, ``operator``.
    """

    subscription_id: str
    reason: str = ""
    # Sensitive events that are owed to nobody any more: their originals are destroyed with this entry.
    released: tuple[int, ...] = ()


class EventPublished(Entry, tag="event.published"):
    """An event on a topic. ``owed`` are the durable subscriptions that have to say that they took it."""

    event_id: str
    publisher: str
    topic: str
    body: Raw
    qos: int = 0
    owed: tuple[str, ...] = ()
    correlation_id: str | None = None
    expires_ms: int | None = None
    # What its publisher's protocol says beside it, which is passed on unread.
    context: OptionalRaw = None
    # Those of the call that published it.
    circumstances: tuple[Circumstance, ...] = ()
    # As in ``call.accepted``.
    sensitive: bool = False
    hashed: bool = False


class EventTaken(Entry, tag="event.taken"):
    """A durable subscription took an event that was owed to it."""

    event: int
    subscription_id: str
    # It was sensitive and is owed to nobody any more: its original is destroyed with this entry.
    released: bool = False


class EventDropped(Entry, tag="event.dropped"):
    """An event is not owed to a durable subscription any more, though it was not taken."""

    event: int
    subscription_id: str
    reason: str
    # As in ``event.taken``.
    released: bool = False


class AgentsLabelled(Entry, tag="agents.labelled"):
    """These agents are told of untrusted events from here on, and count as who received an untrusted result."""

    # By the agent's id: the correlations that the events become part of, as in ``CallSettled.taints``.
    agents: dict[str, tuple[str, ...]]


class SnapshotTaken(Entry, tag="ledger.snapshot"):
    """The open state at ``through`` was stored; ``sha256`` is the hash of the stored bytes."""

    through: int
    sha256: str


class PartClosed(Entry, tag="ledger.part_closed"):
    """Entries ``first`` to ``last`` were removed by the retention setting; ``head`` is the hash of the last of them.

    ``kept`` maps the numbers of those still needed to their hashes.
    """

    first: int
    last: int
    head: str
    kept: dict[str, str] = {}


AnyEntry = (
    ExchangeStarted
    | ExchangeStopped
    | PolicyChanged
    | AgentLaunched
    | AgentExited
    | AgentAdmitted
    | AgentRefused
    | AgentLeft
    | AgentHealthChanged
    | PermissionsGranted
    | ToolsOffered
    | ToolsWithdrawn
    | ToolPinned
    | CallAccepted
    | CallSent
    | CallReturned
    | CallSettled
    | CallRefused
    | CallNoted
    | QuestionOpened
    | QuestionJoined
    | QuestionClosed
    | DirectiveStated
    | TokenIssued
    | TokenRevoked
    | Noticed
    | ProcessStep
    | TopicSubscribed
    | TopicUnsubscribed
    | EventPublished
    | EventTaken
    | EventDropped
    | AgentsLabelled
    | SnapshotTaken
    | PartClosed
)

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(AnyEntry).decode

"""The nouns: what everything else in Trunkline talks about.

Owns the words of ARCHITECTURE.md as values, and the one table of faults. It does not own behaviour: the hub decides,
edges translate. Nothing here imports anything of ours.

Invariant: values are immutable; a body (a tool's input or output) stays the bytes it arrived as, in ``msgspec.Raw``.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Raw, Struct

OPERATOR: Final = "operator"
# What may stand before the colon of a caller. `agent` is short for `opensentience`.
CALLER_EDGES: Final = (
    "agent",
    "opensentience",
    "nostr",
    "ossa",
    "space",
    "chiffon",
    "mcp",
    "a2a",
    "http",
    "pylon",
    "trunkline",
)

# Edges whose callers have no credential of ours: whoever makes a key is one more. All of one edge share what one caller
# may use, and what he may ask a person.
STRANGERS: Final = frozenset({"nostr"})

# Above this a result is handed over as a reference to a blob, not inline (decision 8).
INLINE_OUTPUT_BYTES: Final = 1_048_576
# How much of a large output its reference shows.
HEAD_BYTES: Final = 1024
# Above this a result is refused: the largest body one frame sequence or one HTTP answer should ever carry.
MAX_OUTPUT_BYTES: Final = 67_108_864
# The same bound as the frame limit of most JSON-RPC servers; a schema may set a lower one for its tool.
MAX_INPUT_BYTES: Final = 1_048_576

# Ids, keys and names that callers make up, on every edge: what one takes, all others can carry. 128 holds a UUID, a URN
# or a `chat_session:…` name with room to spare.
MAX_NAME_CHARS: Final = 128

AGENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# Before the id of a mounted MCP server, in that of the agent that it is here.
MOUNT_PREFIX: Final = "mcp."
# Ids that only an edge of ours may give out, so that `space.x/shell` can never be somebody's agent.
RESERVED_PREFIXES: Final = ("space.", "chiffon.", MOUNT_PREFIX, "nostr.", "pylon.", "a2a.", "trunkline.")

# The agent that is the exchange itself, and the one who calls for it when it tells an agent of an event: two, because
# what the first works on has nothing to do with what the second asks for.
EXCHANGE: Final = "trunkline"
EVENTS_CALLER: Final = "trunkline:trunkline.events"
# The tool by which an agent whose protocol has no events is told of one.
EVENT_TOOL: Final = "a2a_handle_event"

EMPTY_OBJECT: Final = Raw(b"{}")

if TYPE_CHECKING:
    OptionalRaw = Raw | None
else:
    # msgspec reads `Raw | None` as null and nothing else. Absent is the default, None; a written null is not ours.
    OptionalRaw = Raw


class Now(Struct, frozen=True, gc=False):
    """One reading of both clocks. Live timers use ``mono``; what survives a restart is stored as ``wall``."""

    mono: float
    wall: float

    @property
    def ms(self) -> int:
        """Wall time as the ledger writes it."""
        return int(self.wall * 1000)


class Status(enum.StrEnum):
    """Where a call stands. The last four are outcomes."""

    QUEUED = "queued"
    WAITING_APPROVAL = "waiting_approval"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    UNKNOWN = "unknown"

    @property
    def is_outcome(self) -> bool:
        """Whether nothing more will happen to the call."""
        return self in OUTCOMES


OUTCOMES: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.UNKNOWN})


class Decision(enum.StrEnum):
    """What policy says."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Circumstance(enum.StrEnum):
    """Something about how a call came to be made that a rule may name (``when``). ``hub.judging`` finds them out.

    All callers of a chain are judged under those of the call itself. That is right for what makes rules stricter; one
    that grants something has to be judged for each caller by his own call first.
    """

    # What strangers wrote may be behind it: a result of an agent that reads such text is part of its correlation, or
    # was received by its caller.
    UNTRUSTED = "untrusted"


Circumstances = frozenset[Circumstance]


class Behalf(Struct, frozen=True, omit_defaults=True):
    """For whom somebody asked when he asked, as the hub found it out then: for work that goes on after he was answered.

    The callers behind him, the first one first; how deep a call of his was; under which circumstances he asked.
    """

    callers: tuple[str, ...] = ()
    depth: int = 1
    circumstances: tuple[Circumstance, ...] = ()


NOBODY: Final = Behalf()


class Health(enum.StrEnum):
    """How an agent says it is, or what its silence says. Only ``ok`` and ``degraded`` are given calls."""

    OK = "ok"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    SILENT = "silent"


Channel = Literal["stdout", "stderr", "log", "partial_result", "status"]


class Fault(Struct, frozen=True, omit_defaults=True):
    """Why a call failed, as a value that travels. ``message`` is always safe to show."""

    code: str
    message: str
    retryable: bool = False
    details: dict[str, object] | None = None


class FaultRow(Struct, frozen=True):
    """One line of the table of faults."""

    http: int
    retryable: bool
    exit_code: int
    text: str


# The one table. Each edge's translate.py has its own column for the codes that its wire spells differently.
# `http` is 200 where the call itself ran and the answer is its outcome.
FAULTS: Final[dict[str, FaultRow]] = {
    "tool.not_found": FaultRow(404, False, 2, "no such tool; `trunkline tools` lists them"),
    "tool.unavailable": FaultRow(503, True, 1, "the tool's agent is not connected or not healthy"),
    "tool.suspended": FaultRow(403, False, 2, "the tool's definition changed; `trunkline approvals` shows how"),
    "tool.invalid_input": FaultRow(400, False, 2, "the input does not match the tool's schema"),
    "tool.invalid_output": FaultRow(200, False, 1, "the agent's result is not valid"),
    "tool.output_too_large": FaultRow(200, False, 1, "the agent's result is larger than the limit"),
    "tool.invalid_tool_id": FaultRow(400, False, 2, "a tool's id is its agent's id, a slash and the tool's name"),
    "tool.name_conflict": FaultRow(409, False, 2, "another tool of this agent has this name"),
    "tool.schema_invalid": FaultRow(400, False, 2, "a schema of the tool cannot be used"),
    "tool.schema_too_large": FaultRow(400, False, 2, "a schema of the tool is larger than the limit"),
    "tool.failed": FaultRow(200, False, 1, "the tool failed"),
    "tool.timeout": FaultRow(200, False, 1, "the tool did not answer in time"),
    "tool.canceled": FaultRow(200, False, 3, "the call was canceled"),
    "agent.lost": FaultRow(200, False, 3, "the agent was lost after the call was sent; whether it ran is not known"),
    "policy.denied": FaultRow(
        403, False, 2, "policy does not allow this call; `trunkline policy check CALLER TOOL` says why"
    ),
    "policy.directive_required": FaultRow(
        403, False, 2, "needs a directive; `trunkline directive new TOOL --reason WHY` states one"
    ),
    "approval.expired": FaultRow(403, False, 2, "nobody answered the question in time"),
    "chain.refused": FaultRow(403, False, 2, "the chain of calls is too deep or runs in a circle"),
    "idempotency.conflict": FaultRow(409, False, 2, "this key was used before with another tool or input"),
    "limit.rate": FaultRow(429, True, 2, "too many calls in a short time"),
    "limit.inflight": FaultRow(429, True, 2, "too many calls in flight"),
    "limit.resource": FaultRow(503, True, 1, "the exchange is short of disk or memory"),
    "hub.unavailable": FaultRow(503, True, 1, "the exchange is stopping or cannot write its record"),
    "call.expired": FaultRow(408, False, 1, "the call expired before it could be sent"),
    "message.malformed": FaultRow(400, False, 2, "the message cannot be read"),
    "config.invalid": FaultRow(400, False, 2, "the configuration cannot be used"),
    "auth.failed": FaultRow(401, False, 2, "the credential is missing or not valid"),
    "not_found": FaultRow(404, False, 2, "there is no such thing here"),
    "state.conflict": FaultRow(409, False, 2, "this cannot be done as things stand"),
    "not_allowed": FaultRow(403, False, 2, "this credential may not do that"),
}


def fault(
    code: str, message: str = "", *, retryable: bool | None = None, details: dict[str, object] | None = None
) -> Fault:
    """A fault from the table; ``message`` adds what was wrong, without ever quoting a payload."""
    row = FAULTS[code]
    return Fault(code, message or row.text, row.retryable if retryable is None else retryable, details)


class LargeOutput(Struct, frozen=True):
    """An output above ``INLINE_OUTPUT_BYTES``: the hash it is stored under, its size and how it begins (decision 48).

    It travels beside the output, never inside it: what a tool returns is not looked into for one.
    """

    sha256: str
    size: int
    head: str

    @classmethod
    def of(cls, output: Raw | None) -> LargeOutput | None:
        """What is to be said of this output if it is a large one."""
        if output is None or len(output) <= INLINE_OUTPUT_BYTES:
            return None
        data = bytes(output)
        head = data[:HEAD_BYTES].decode("utf-8", "ignore")
        return cls(hashlib.sha256(data).hexdigest(), len(data), head)

    def reference(self) -> Raw:
        """What stands in the output's place on a wire that does not carry so much (decision 8)."""
        return Raw(msgspec.json.encode({"$ref": f"sha256:{self.sha256}", "bytes": self.size, "head": self.head}))


class ToolDefinition(Struct, frozen=True, omit_defaults=True):
    """What an agent says about one tool. A tool that does not say ``side_effects: false`` has them (decision 2)."""

    tool_id: str
    description: str
    input_schema: Raw
    output_schema: OptionalRaw = None
    capabilities: tuple[str, ...] = ()
    side_effects: bool = True
    requires_directive: bool = False
    tags: tuple[str, ...] = ()
    required_permissions: tuple[str, ...] = ()
    max_input_bytes: int = MAX_INPUT_BYTES
    max_output_bytes: int = MAX_OUTPUT_BYTES
    # How long a call may take whose caller does not say; None is what the edge says.
    timeout_ms: int | None = None

    @property
    def agent_id(self) -> str:
        """The part before the slash."""
        return self.tool_id.partition("/")[0]

    @property
    def name(self) -> str:
        """The part after the slash."""
        return self.tool_id.partition("/")[2]


class ProcessIdentity(Struct, frozen=True):
    """One process, told apart from a later one with the same pid."""

    pid: int
    start_time: int


class Peer(Struct, frozen=True):
    """What the host found out about who connected. ``origin`` names it for counting failures.

    ``run_id`` is the launched run to whose operating-system session the process belongs, if any.
    """

    origin: str
    process: ProcessIdentity | None = None
    run_id: str | None = None


class Principal(Struct, frozen=True):
    """Somebody who proved who they are: ``operator`` or ``<edge>:<id>``."""

    identity: str
    permissions: tuple[str, ...] = ()
    # On edges whose agents have types; fixed by the token.
    type: str = ""

    @property
    def is_operator(self) -> bool:
        """Whether this is the person who runs the exchange."""
        return self.identity == OPERATOR


class Manifest(Struct, frozen=True):
    """What the host read from an agent's manifest file: the hash of its bytes and the permissions it asks for."""

    sha256: str
    permissions: tuple[str, ...] = ()


class Actor(Struct, frozen=True, omit_defaults=True):
    """Who stands behind a message: a remark, never an authorization."""

    type: Literal["human", "agent", "system"]
    id: str
    display: str | None = None


Scalar = str | bool | int | float
# "like" compares with a pattern, in which ``*`` stands for any characters.
Comparison = Literal["like", "==", "!=", "<", "<=", ">", ">="]


class InputCondition(Struct, frozen=True):
    """What a rule wants of a call's input: how the value at ``path`` compares (``input_conditions``)."""

    path: tuple[str, ...]
    compare: Comparison
    value: Scalar


class Rule(Struct, frozen=True, omit_defaults=True):
    """One line of policy. ``*`` matches any characters, slash included. ``id`` names the line where it came from.

    With ``when`` it speaks only of calls that are made under this circumstance, with ``input`` only of those whose
    input is so.
    """

    id: str
    caller: str
    tool: str
    decision: Decision
    reason: str = ""
    side_effects: bool | None = None
    when: Circumstance | None = None
    # What is said in calls that it lets through is on record as hashes only.
    sensitive: bool = False
    input: tuple[InputCondition, ...] = ()


class Policy(Struct, frozen=True):
    """The rules in force, in order. ``version`` is a hash of them, so that equal rules have equal versions.

    ``policy_bundle_id`` is the hash by which trajectories and receipts name them.
    """

    rules: tuple[Rule, ...]
    version: str
    policy_bundle_id: str = ""


class Limits(Struct, frozen=True):
    """What one caller may use at once, and how long what it read is held against it. Zero means no bound."""

    calls_per_s: float = 0.0
    # Enough for 16 full agent connections; a caller above it is broken or hostile.
    open_calls: int = 4096
    # Of all that one caller's open calls hold. 64 MiB is 64 inputs of the largest allowed size.
    open_bytes: int = 67_108_864
    # What is written on record for one caller in an hour: 4,000 small calls a second. The operator has no such bound.
    ledger_bytes_per_hour: int = 17_179_869_184
    # How long who received what strangers wrote counts as under its influence, in seconds (decision 14).
    taint_s: float = 86_400.0

    @property
    def taint_ms(self) -> int:
        """The same in milliseconds."""
        return int(self.taint_s * 1000) if self.taint_s else sys.maxsize


class Verdict(Struct, frozen=True, omit_defaults=True):
    """What policy would do with a call, and by which rule; the answer of a dry run and of every judgement."""

    decision: Decision
    rule: str
    reason: str
    caller: str
    fault: Fault | None = None
    # Whether a rule that let the call through says that its content is not for the record.
    sensitive: bool = False
    # Of a dry run without an input: what would be decided otherwise for some inputs.
    depends: tuple[str, ...] = ()
    # Of a denial by a guard: what the record may say of it, without a word of the input.
    for_record: str = ""


# What the agent behind a tool says to one input (tool id, body) before anybody is let through; None: nothing against
# it. Pure: the same input, the same answer. Only agents that are part of the exchange have one.
Guard = Callable[[str, Raw], Verdict | None]

# Which tools can serve a call of a tool that stands for others (its id, the input), the best first. Pure, like a guard:
# nothing happens because it was asked. Only agents that are part of the exchange have one.
Router = Callable[[str, Raw], Sequence[str]]


class HubSettings(Struct, frozen=True):
    """What the operator's configuration says to the hub. Replaced as a whole while the exchange runs."""

    policy: Policy
    limits: Limits = Limits()
    # Agents that read what strangers wrote (decision 14).
    untrusted_agents: frozenset[str] = frozenset()
    # Agents whose changed tool definitions are taken without asking: for developing them.
    unpinned_agents: frozenset[str] = frozenset()
    # Whether an input that its tool's schema does not allow is refused; else it is only noted.
    schema_strict: bool = True
    # How long a question to a person stays open.
    approval_expire_s: float = 3600.0


class RetryPolicy(Struct, frozen=True):
    """How often, and after which waits, a call is sent again. Each edge states its own; only ``hub.retry`` reads it."""

    delays_s: tuple[float, ...] = (0.0, 1.0, 2.0)

    @property
    def deliveries(self) -> int:
        """How many times the call is sent at most."""
        return len(self.delays_s)


class BreakerPolicy(Struct, frozen=True):
    """After how many failed attempts in a row an agent gets no new work, and for how long. ``codes`` are what counts.

    Edges that have such a rule state it; only ``hub.breaker`` reads it.
    """

    failures: int = 5
    rest_s: float = 60.0
    codes: tuple[str, ...] = ("tool.timeout", "tool.unavailable")


RESEND: Final = RetryPolicy()


def is_told_of(count: int) -> bool:
    """Whether the ``count``-th of the same is put on record: the 1st, 10th, 100th …; nobody fills the disk with it."""
    return str(count).rstrip("0") == "1"


def tool_agent(tool_id: str) -> str:
    """The agent's part of a tool id."""
    return tool_id.partition("/")[0]


def reserved_prefix(agent_id: str) -> str:
    """The prefix by which an id is one of the exchange's own agents, in whatever case it is written; else empty."""
    name = agent_id.casefold()
    prefix = name.partition(".")[0] + "."
    return prefix if prefix in RESERVED_PREFIXES and ("." in name or name == EXCHANGE) else ""


def agent_of(identity: str) -> str:
    """The agent behind an identity, whichever edge it came by; "" is nobody's id, and stands for the operator."""
    return identity.partition(":")[2]


def share_of(identity: str) -> str:
    """Under which name what somebody uses is counted: his own, or that of all strangers of his edge."""
    edge = identity.partition(":")[0]
    return f"{edge}:*" if edge in STRANGERS else identity


def identity_of(caller: str) -> str:
    """An identity as people write it: ``agent:`` is short for ``opensentience:`` (decision 9)."""
    return f"opensentience:{caller.removeprefix('agent:')}" if caller.startswith("agent:") else caller


# The last moment that can be written down: the end of the year 9999.
LATEST_MS: Final = 253_402_300_799_999


def uuid_4(data: bytes) -> str:
    """Sixteen bytes as a UUID of version 4: what ``uuid.UUID(bytes=data, version=4)`` shows, in a sixth of its time."""
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[data[8] >> 4 & 3]}{text[17:20]}-{text[20:]}"


# What happens in one turn happens at one time: 70 ns remembered, 400 made.
@functools.lru_cache(maxsize=256)
def stamp(ms: int) -> str:
    """Wall milliseconds as an RFC 3339 time."""
    seconds, rest = divmod(ms, 1000)
    return f"{_second(seconds)}.{rest:03d}Z"


# Most stamps of one moment are of the same second; to write one down takes 4 µs.
@functools.lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")

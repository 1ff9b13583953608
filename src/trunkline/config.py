"""Every setting, its default and its bounds, as one frozen ``Config``; and the built-in rules of policy.

Does not own what an edge or the host does with a setting, where settings come from (``config_file``), or what may be
wrong with them beyond their types (``config_problems``).

Invariant: a ``Config`` does not change.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, dataclass_transform

import msgspec
from msgspec import Meta, Struct, field

from trunkline import input_conditions
from trunkline.model import (
    EVENT_TOOL,
    EVENTS_CALLER,
    EXCHANGE,
    MAX_INPUT_BYTES,
    MAX_OUTPUT_BYTES,
    MOUNT_PREFIX,
    OPERATOR,
    Circumstance,
    Decision,
    HubSettings,
    InputCondition,
    Limits,
    Policy,
    Rule,
    identity_of,
)

# Below this not even a welcome fits; above it a length prefix could reserve more than a machine has.
MIN_FRAME_BYTES: Final = 4096
MAX_FRAME_BYTES: Final = 67_108_864

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Words = Annotated[tuple[str, ...], Meta(min_length=1)]


# The decorator tells type checkers what msgspec does: a child of a frozen struct is frozen.
@dataclass_transform(frozen_default=True, kw_only_default=True)
class Section(Struct, frozen=True, kw_only=True):
    """A table of the file. Its keys are the fields, its defaults are ours."""


class Http(Section):
    """The operator's door: the API and the command line."""

    listen: str = "127.0.0.1:7411"


class OpenSentience(Section):
    """The agents' socket and the limits of what is said on it."""

    socket: str = "run/agents.sock"
    tcp: str = ""
    # Above an hour a lost agent would be noticed by everybody else first.
    heartbeat_interval_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 10_000
    max_frame_bytes: Annotated[int, Meta(ge=MIN_FRAME_BYTES, le=MAX_FRAME_BYTES)] = 4_194_304
    max_inflight_requests: Positive = 256
    # What a call may take if neither its caller nor its tool says.
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 30.0
    max_tool_input_bytes: Annotated[int, Meta(ge=1, le=MAX_FRAME_BYTES)] = MAX_INPUT_BYTES
    max_tool_output_bytes: Annotated[int, Meta(ge=1, le=MAX_OUTPUT_BYTES)] = MAX_OUTPUT_BYTES
    strict_types: bool = False
    schema_validation: Literal["strict", "warn"] = "strict"
    debug_errors: bool = False


class Ossa(Section):
    """OSSA over TLS 1.3."""

    listen: str = "127.0.0.1:7413"
    require_signature: bool = True
    # Ids of messages need not be UUIDs of version 4: for peers that make others.
    any_uuid: bool = False
    # Who connects has to show a certificate that one of these authorities signed.
    client_ca: str = ""
    # Messages a minute, by the class that an agent's key was made for; 100 where it is not named.
    rate: dict[str, Positive] = {}
    # Actions of the recipient `trunkline` that stand for tools.
    actions: dict[str, str] = {}


class NostrKinds(Section):
    """Numbers of event kinds: the defaults of NIP-90, NIP-89 and the drafts of NIP-SA. A job is known by its schema."""

    # A result has the kind of its request and 1000 (NIP-90), so it has no key.
    request: Annotated[int, Meta(ge=5000, le=5999)] = 5050
    feedback: Annotated[int, Meta(ge=1, le=65_535)] = 7000
    announcement: Annotated[int, Meta(ge=30_000, le=39_999)] = 31_990
    # Addressable ones: each tick and each event of a trajectory has a name of its own (tag `d`).
    agent_profile: Annotated[int, Meta(ge=30_000, le=39_999)] = 39_200
    agent_state: Annotated[int, Meta(ge=30_000, le=39_999)] = 39_201
    tick_request: Annotated[int, Meta(ge=30_000, le=39_999)] = 39_210
    tick_result: Annotated[int, Meta(ge=30_000, le=39_999)] = 39_211
    trajectory_session: Annotated[int, Meta(ge=30_000, le=39_999)] = 39_230
    trajectory_event: Annotated[int, Meta(ge=30_000, le=39_999)] = 39_231

    @property
    def result(self) -> int:
        """The kind of a result."""
        return self.request + 1000


class NostrPricing(Section):
    """What a job costs, in thousandths of a satoshi, under the announcement's own names. 0 is free."""

    input_tokens_per_1k_msats: Count = 0
    output_tokens_per_1k_msats: Count = 0
    sandbox_per_minute_msats: Count = 0


class NostrWallet(Section):
    """What the exchange may pay for jobs of its own, and with which wallet beside the embedded one."""

    # A payment above these is refused, whoever approves it. A day is the last 24 hours.
    max_msats_per_job: Count = 100_000
    max_msats_per_day: Count = 1_000_000
    # How long a quote of ours holds.
    quote_s: Annotated[int, Meta(ge=10, le=3600)] = 600
    # A wallet elsewhere (NIP-47, `nostr+walletconnect://…`), as ``env:NAME`` or ``file:PATH``. It pays at once and
    # gives nothing back, so it is used only where ``prepay`` says so.
    connection: str = ""
    prepay: bool = False
    # Mints whose ecash is taken for jobs, and paid with where ``prepay`` says so: https, or http on this machine. No
    # other mint is ever asked anything.
    mints: Annotated[tuple[str, ...], Meta(max_length=8)] = ()


class NostrChain(Section):
    """Which payments on Bitcoin's chain are believed."""

    network: Literal["main", "regtest"] = "main"
    # Blocks that are known to be part of the chain, "HEIGHT:HASH" each. Without one no such payment is believed.
    checkpoints: tuple[str, ...] = ()
    # Blocks that have to stand on a payment, its own included.
    confirmations: Annotated[int, Meta(ge=1, le=1000)] = 6


class NostrBuyer(Section):
    """How jobs of ours are bought from providers."""

    # How long a provider may say nothing before the next one is asked.
    silence_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    # Whether what we offer ourselves may be bought by us.
    from_ourselves: bool = False
    # A tool that says which results of a job mean the same; without one they are compared.
    judge: str = ""


class Nostr(Section):
    """Jobs over Nostr: the embedded relay and the outside ones, and what strangers may ask for."""

    relay: str = "127.0.0.1:7414"
    relays: tuple[str, ...] = ()
    # Schema ids and tool ids that anybody may ask for, without a question. Empty: nothing.
    offer: tuple[str, ...] = ()
    # Of pages in a browser that may connect to the embedded relay. Programs have no origin, and may.
    allowed_origins: tuple[str, ...] = ()
    # Of all strangers together: jobs that run at once, and requests a minute that are looked at.
    max_jobs: Annotated[int, Meta(ge=1, le=1000)] = 4
    requests_per_minute: Annotated[int, Meta(ge=1, le=1_000_000)] = 600
    max_context_tokens: Positive = 128_000
    pricing: NostrPricing = NostrPricing()
    buyer: NostrBuyer = NostrBuyer()
    wallet: NostrWallet = NostrWallet()
    chain: NostrChain = NostrChain()
    kinds: NostrKinds = NostrKinds()


class Pylon(Section):
    """The bridge for pages in a browser, in Pusher's protocol."""

    listen: str = "127.0.0.1:8081"
    # Clients are `pylon:<app_key>` to the rules. It is in every page that uses it, and no secret.
    app_key: str = "local-key"
    tls: bool = True
    # Besides those of this machine.
    allowed_origins: tuple[str, ...] = ()
    # How the app-server is started; empty turns it off.
    codex: tuple[str, ...] = ("codex", "app-server")


class Chiffon(Section):
    """Chiffon's message queue, its timeout, and which tool serves which inbound work type."""

    nats: str = ""
    # How long an agent may be silent about a task that says nothing about its duration.
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 30.0
    work: dict[str, str] = {}


class Jobs(Section):
    """Typed jobs as tools of the agent ``trunkline.jobs``, and what one of them may use at most."""

    enabled: bool = True
    # An OpenAI-compatible API, the models that it serves, and its key as ``env:NAME`` or ``file:PATH``.
    endpoint: str = ""
    model: str = ""
    embedding_model: str = ""
    key: str = ""
    # How many run at once; more wait.
    running: Annotated[int, Meta(ge=1, le=64)] = 4
    memory_mb: Annotated[int, Meta(ge=16, le=1_048_576)] = 2048
    disk_mb: Annotated[int, Meta(ge=1, le=1_048_576)] = 2048
    timeout_s: Annotated[float, Meta(ge=1, le=86_400)] = 600.0
    # Whether a sandbox job may ask for the machine's network.
    network: bool = False


class Cluster(Section):
    """Several hosts as one; empty is one machine."""

    nats: str = ""


class AgentProgram(Section):
    """A program that is run as an agent and kept running, as ``[[agent]]`` or an edge describes it. All paths are
    absolute once loaded.
    """

    id: str
    command: Words
    cwd: str = "."
    manifest: str | None = None
    restart: Literal["never", "on-failure", "always"] = "on-failure"
    env: dict[str, str] = {}
    # Its results may hold what strangers wrote (`when = "untrusted"` in a rule).
    reads_untrusted: bool = False
    # False takes changed tool definitions without asking: for developing the agent.
    pin_definitions: bool = True
    # How long it may take to end by itself before its process group is killed.
    stop_grace_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    # One run's log; what is printed beyond it is counted and dropped.
    max_log_bytes: Annotated[int, Meta(ge=0, le=1_099_511_627_776)] = 10_485_760
    # What keeps it from everything else. Not set: a sandbox where one holds, else none, with a warning.
    isolation: Literal["sandbox", "user", "none"] | None = None
    # What its sandbox shows it besides what its command needs.
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    # Whether its sandbox has the machine's network. Agents call model APIs.
    network: bool = True
    # Start it anew when its files change: for developing it.
    watch: bool = False

    def __repr__(self) -> str:
        """Without ``env``, which is where people put secrets."""
        return f"AgentProgram(id={self.id!r})"


class McpSignIn(Section):
    """How the operator signs in at a server that wants OAuth; what is empty is found out, or asked for."""

    # As whom the exchange is known at the authorization server; empty: it registers itself.
    client_id: str = ""
    # A reference (``secret_references``), or the secret.
    client_secret: str = ""
    # Where the operator has put a document that says who the exchange is (a client ID metadata document).
    client_document: str = ""
    # What is asked for, with spaces between; empty: what the server says.
    scope: str = ""
    # The one authorization server that may sign people in; empty: the one that the server names.
    issuer: str = ""

    def __repr__(self) -> str:
        """Without the secret."""
        return f"McpSignIn(client_id={self.client_id!r})"


class McpServer(Section):
    """An MCP server mounted as an agent: started by ``command`` or reached at ``url``."""

    # The agent is `mcp.<id>`.
    id: str
    command: Words | None = None
    url: str | None = None
    # Of a command. Values may be references to secrets (``secret_references``).
    env: dict[str, str] = {}
    cwd: str = "."
    # Of a URL; values may be references.
    headers: dict[str, str] = {}
    oauth: McpSignIn = McpSignIn()
    # What the server says of its own tools (`readOnlyHint`) is a claim; True believes it.
    trust_annotations: bool = False
    # Its results may hold what strangers wrote (`when = "untrusted"` in a rule). False: nobody else writes there.
    untrusted: bool = True
    # As for an agent, but for `restart`: a server has no reason to end by itself.
    restart: Literal["never", "on-failure", "always"] = "always"
    pin_definitions: bool = True
    isolation: Literal["sandbox", "user", "none"] | None = None
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = True
    stop_grace_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    max_log_bytes: Annotated[int, Meta(ge=0, le=1_099_511_627_776)] = 10_485_760
    # How long a call may take whose caller does not say. Clients of MCP wait a minute.
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 60.0

    @property
    def agent_id(self) -> str:
        """The agent that is made of it."""
        return f"{MOUNT_PREFIX}{self.id}"

    def __repr__(self) -> str:
        """Without ``env`` and ``headers``, which is where people put secrets."""
        return f"McpServer(id={self.id!r})"


class Profile(Section):
    """What some callers of MCP are shown: the tools whose ids match, and no others. ``*`` stands for any characters."""

    name: str
    caller: str
    tools: Words


class Notify(Section):
    """Who is told that a person is asked: a ``command`` gets JSON on stdin, a ``url`` as the body of a POST."""

    command: Words | None = None
    url: str | None = None


class Approvals(Section):
    """The life of a question."""

    expire_s: Annotated[float, Meta(ge=1, le=31_536_000)] = 3600.0
    notify: Notify | None = None


class RuleLine(Section):
    """One ``[[policy.rule]]`` as written."""

    caller: str
    tool: str
    decision: Literal["allow", "deny", "ask"]
    reason: str = ""
    side_effects: bool | None = None
    # A circumstance, or a table: `input` is what the call's input is to be, `circumstance` the circumstance.
    when: Circumstance | dict[str, Any] | None = None
    sensitive: bool = False

    @property
    def circumstance(self) -> Circumstance | None:
        """The circumstance that it speaks of, if it names one."""
        if isinstance(self.when, dict):
            named = self.when.get("circumstance")
            return None if named is None else Circumstance(named)
        return self.when

    @property
    def input(self) -> tuple[InputCondition, ...]:
        """What it wants of a call's input."""
        wanted = self.when.get("input") if isinstance(self.when, dict) else None
        return () if wanted is None else input_conditions.compiled(wanted)


class PolicyTable(Section):
    """The file's rules, and whether the built-in ones follow them."""

    builtin: bool = True
    rule: tuple[RuleLine, ...] = ()


class Log(Section):
    """What the exchange itself prints on stderr; agents have files of their own."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Otel(Section):
    """Where spans of calls are told of (OTLP over HTTP, JSON): the collector's URL for traces. Empty: nowhere."""

    endpoint: str = ""
    service: Annotated[str, Meta(min_length=1, max_length=128)] = "trunkline"


class Anchor(Section):
    """Where signed heads of the record are published, out of reach of whoever can write to the home folder: one way.

    ``file`` is appended to, ``command`` gets each head on stdin. ``file`` is absolute once loaded.
    """

    file: str | None = None
    command: Words | None = None


class LedgerTable(Section):
    """The record. ``retention_days`` 0 keeps it for ever."""

    retention_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    anchor: Anchor | None = None


# The agent that does typed jobs, and the names of their types (docs/protocols/openagents.md).
JOBS_AGENT: Final = "trunkline.jobs"
REMOTE_JOBS_AGENT: Final = "nostr.jobs"
SCHEMA_ID: Final = re.compile(r"oa(\.[a-z][a-z0-9_]*){1,2}\.v[1-9][0-9]*")

# Between the file's rules and the built-in ones: what is offered to strangers, without a question.
STRANGER_CALLERS: Final = "nostr:*"

BUILTIN_RULES: Final = (
    Rule(
        "builtin-strangers",
        STRANGER_CALLERS,
        "*",
        Decision.DENY,
        "strangers may ask for what [nostr] offer names",
    ),
    Rule(
        "builtin-told",
        EVENTS_CALLER,
        f"*/{EVENT_TOOL}",
        Decision.ALLOW,
        "an agent that subscribed is told of events; that it may subscribe was decided then",
    ),
    Rule(
        "builtin-untrusted",
        "*",
        "*",
        Decision.ASK,
        "what strangers wrote is part of this conversation, and the tool has side effects",
        side_effects=True,
        when=Circumstance.UNTRUSTED,
    ),
    Rule("builtin-operator", OPERATOR, "*", Decision.ALLOW, "the operator may call everything"),
    Rule(
        "builtin-read-only",
        "*",
        "*",
        Decision.ALLOW,
        "a tool without side effects may be called by every agent",
        side_effects=False,
    ),
    Rule(
        "builtin-publish",
        "*",
        f"{EXCHANGE}/publish",
        Decision.ALLOW,
        "every agent may tell those of events who subscribed to them; rules for topic/<topic> say where not",
    ),
    Rule(
        "builtin-codex-request",
        "pylon:*",
        "pylon.codex/request",
        Decision.ALLOW,
        "a page may use the workspaces that it has connected; that it may connect them was decided then",
    ),
    Rule(
        "builtin-codex-respond",
        "pylon:*",
        "pylon.codex/respond",
        Decision.ALLOW,
        "a page may answer what codex asks in the workspaces that it has connected",
    ),
    Rule(
        "builtin-side-effects",
        "*",
        "*",
        Decision.ASK,
        "a person decides before an agent calls a tool with side effects",
        side_effects=True,
    ),
)


class Sections(Struct, frozen=True, kw_only=True):
    """Everything that can be set. The field's name on file is the section's."""

    http: Http = Http()
    opensentience: OpenSentience = OpenSentience()
    ossa: Ossa = Ossa()
    nostr: Nostr = Nostr()
    pylon: Pylon = Pylon()
    chiffon: Chiffon = Chiffon()
    jobs: Jobs = Jobs()
    cluster: Cluster = Cluster()
    agents: tuple[AgentProgram, ...] = field(default=(), name="agent")
    mcp_servers: tuple[McpServer, ...] = field(default=(), name="mcp")
    profile: tuple[Profile, ...] = ()
    approvals: Approvals = Approvals()
    policy_table: PolicyTable = field(default=PolicyTable(), name="policy")
    limits: Limits = Limits()
    ledger: LedgerTable = LedgerTable()
    log: Log = Log()
    otel: Otel = Otel()


class Config(Sections, frozen=True, kw_only=True):
    """The configuration in force, and which keys of which section somebody set, in the file or the environment."""

    given: frozenset[tuple[str, str]] = frozenset()

    def is_given(self, section: str, key: str) -> bool:
        """Whether somebody chose this value; else it is our default."""
        return (section, key) in self.given

    @property
    def given_sections(self) -> frozenset[str]:
        """The sections in which something is set."""
        return frozenset(section for section, _ in self.given)

    @property
    def schema_strict(self) -> bool:
        """Whether an input that does not match its tool's schema is refused, or only remarked on."""
        return self.opensentience.schema_validation == "strict"

    @property
    def chain(self) -> NostrChain:
        """Which payments on Bitcoin's chain are believed."""
        return self.nostr.chain

    def agent_ids(self) -> list[str]:
        """The agents that it names, mounted servers included."""
        return [*(agent.id for agent in self.agents), *(server.agent_id for server in self.mcp_servers)]

    def hub_settings(self) -> HubSettings:
        """What the hub goes by."""
        return HubSettings(
            self.policy(),
            self.limits,
            untrusted_agents=self._untrusted_agents(),
            unpinned_agents=frozenset(
                (
                    *(agent.id for agent in self.agents if not agent.pin_definitions),
                    *(server.agent_id for server in self.mcp_servers if not server.pin_definitions),
                )
            ),
            schema_strict=self.schema_strict,
            approval_expire_s=self.approvals.expire_s,
        )

    def _untrusted_agents(self) -> frozenset[str]:
        found = frozenset(agent.id for agent in self.agents if agent.reads_untrusted)
        found |= {server.agent_id for server in self.mcp_servers if server.untrusted}
        # What comes from an outside relay was written by anybody; on our own, on this machine, nobody else writes.
        return found | {REMOTE_JOBS_AGENT} if self.nostr.relays else found

    def policy(self) -> Policy:
        """The file's rules in order, then the built-in ones; the version is a hash of them."""
        import hashlib

        from trunkline.canonical import openagents_hash

        lines = tuple(
            Rule(
                f"rule-{number}",
                identity_of(line.caller),
                line.tool,
                Decision(line.decision),
                line.reason,
                line.side_effects,
                line.circumstance,
                line.sensitive,
                line.input,
            )
            for number, line in enumerate(self.policy_table.rule, start=1)
        )
        offered = tuple(
            Rule(f"offer-{number}", STRANGER_CALLERS, tool_of_offer(line), Decision.ALLOW, "[nostr] offer")
            for number, line in enumerate(self.nostr.offer, start=1)
        )
        rules = lines + offered + (BUILTIN_RULES if self.policy_table.builtin else ())
        # 64 bits tell apart the handful of policies an exchange ever has, and can be read aloud.
        encoded = msgspec.json.encode(rules)
        return Policy(rules, hashlib.sha256(encoded).hexdigest()[:16], openagents_hash(encoded))


def tool_of_offer(line: str) -> str:
    """The tool that a line of ``[nostr] offer`` stands for: itself, or that of a job type."""
    return line if "/" in line else f"{JOBS_AGENT}/{line}"


# The addresses on which the exchange listens, and whether each may be off (empty).
LISTENERS: Final = {
    ("http", "listen"): False,
    ("opensentience", "tcp"): True,
    ("ossa", "listen"): True,
    ("nostr", "relay"): True,
    ("pylon", "listen"): True,
}

"""One frozen ``Config`` from a TOML file and the environment, validated once; and the ``Home`` folder it belongs to.

Owns every setting, its default and its bounds, and the built-in rules of policy. It does not own what an edge or the
host does with a setting, and it starts nothing.

The environment overrides the file: ``TRUNKLINE_<SECTION>_<KEY>`` sets one key of a section that is not repeated, as in
``TRUNKLINE_HTTP_LISTEN=127.0.0.1:0``. Text is taken as it is, anything else is written as in TOML.

Invariant: a ``Config`` that exists can be used: paths are absolute, ids and addresses are well formed. What cannot be
used is a ``ConfigError`` that names the file and line (or the variable), the key and what was expected.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, dataclass_transform

import msgspec
from msgspec import Meta, Struct, field, structs

from trunkline import input_conditions
from trunkline.addresses import host_and_port, is_loopback
from trunkline.errors import ConfigError
from trunkline.model import (
    AGENT_ID,
    CALLER_EDGES,
    EVENT_TOOL,
    EVENTS_CALLER,
    EXCHANGE,
    MAX_INPUT_BYTES,
    MAX_OUTPUT_BYTES,
    OPERATOR,
    RESERVED_PREFIXES,
    TOOL_NAME,
    Circumstance,
    Decision,
    HubSettings,
    InputCondition,
    Limits,
    Policy,
    Rule,
    identity_of,
    reserved_prefix,
)
from trunkline.toml_lines import KeyPath
from trunkline.tomlfile import TomlFile, suggestion

# `sun_path` holds 108 bytes on Linux, the last of them zero.
MAX_SOCKET_PATH_BYTES: Final = 107
# Below this not even a welcome fits; above it a length prefix could reserve more than a machine has.
MIN_FRAME_BYTES: Final = 4096
MAX_FRAME_BYTES: Final = 67_108_864

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
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
    # Of all strangers together: jobs that run at once, and requests a minute that are looked at.
    max_jobs: Annotated[int, Meta(ge=1, le=1000)] = 4
    requests_per_minute: Annotated[int, Meta(ge=1, le=1_000_000)] = 600
    max_context_tokens: Positive = 128_000
    pricing: NostrPricing = NostrPricing()
    buyer: NostrBuyer = NostrBuyer()
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


class AgentProcess(Section):
    """An agent that is launched and supervised. All paths are absolute once loaded."""

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
        return f"AgentProcess(id={self.id!r})"


class McpServer(Section):
    """An MCP server mounted as an agent: started by ``command`` or reached at ``url``."""

    id: str
    command: Words | None = None
    url: str | None = None


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
_SCHEMA_ID: Final = re.compile(r"oa(\.[a-z][a-z0-9_]*){1,2}\.v[1-9][0-9]*")
# What OSSA calls the type of an agent (docs/protocols/ossa.md).
_AGENT_CLASS: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")

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
    agents: tuple[AgentProcess, ...] = field(default=(), name="agent")
    mcp_servers: tuple[McpServer, ...] = field(default=(), name="mcp")
    approvals: Approvals = Approvals()
    policy_table: PolicyTable = field(default=PolicyTable(), name="policy")
    limits: Limits = Limits()
    ledger: LedgerTable = LedgerTable()
    log: Log = Log()


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

    def hub_settings(self) -> HubSettings:
        """What the hub goes by."""
        return HubSettings(
            self.policy(),
            self.limits,
            untrusted_agents=self._untrusted_agents(),
            unpinned_agents=frozenset(agent.id for agent in self.agents if not agent.pin_definitions),
            schema_strict=self.schema_strict,
            approval_expire_s=self.approvals.expire_s,
        )

    def _untrusted_agents(self) -> frozenset[str]:
        found = frozenset(agent.id for agent in self.agents if agent.reads_untrusted)
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


class Home:
    """The folder that an exchange owns, and the names in it. Nobody else may write there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "trunkline.toml"
        self.ready_file = path / "ready.json"
        self.operator_token_file = path / "operator.token"
        self.ledger_file = path / "ledger.sqlite"
        self.run_folder = path / "run"
        self.logs_folder = path / "logs"
        # What an exchange in the background prints.
        self.output_file = path / "exchange.log"
        self.keys_folder = path / "keys"

    @classmethod
    def resolve(cls, option: str | None, environ: Mapping[str, str]) -> Home:
        """``--home``, else ``$TRUNKLINE_HOME``, else ``~/.trunkline``."""
        chosen = option or environ.get("TRUNKLINE_HOME") or "~/.trunkline"
        return cls(Path(os.path.abspath(Path(chosen).expanduser())))  # noqa: PTH100  (resolve() would follow links)

    def log_file(self, agent_id: str, run_id: str) -> Path:
        """Where one run of an agent prints to."""
        return self.logs_folder / agent_id / f"{run_id}.log"

    def create(self) -> None:
        """Make what is missing, close it to everybody else, and refuse a folder that is not ours alone."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.check()
            self._check_no_other_use()
            for folder in (self.path, self.run_folder, self.logs_folder, self.keys_folder):
                folder.mkdir(mode=0o700, exist_ok=True)
                if stat.S_IMODE(folder.stat().st_mode) != 0o700:
                    folder.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"the home folder cannot be made: {error.strerror}", str(error.filename)) from None

    def _check_no_other_use(self) -> None:
        """Refuse a folder that is in use for something else: closing it to others would break that."""
        found = {entry.name for entry in self.path.iterdir()}
        made_first = {self.run_folder.name, self.logs_folder.name, self.keys_folder.name, self.output_file.name}
        marks = {self.config_file.name, self.ledger_file.name, self.operator_token_file.name}
        if found - made_first and not found & marks:
            text = "it has files, and none of an exchange; choose a new or an empty folder with --home"
            raise ConfigError(text, str(self.path))

    def check(self) -> None:
        """Refuse a folder that belongs to, or can be written by, somebody else."""
        status = self.path.stat()
        if status.st_uid != os.geteuid():
            raise ConfigError(f"it belongs to user {status.st_uid}; choose another one with --home", str(self.path))
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(f"others can write to the home folder; chmod 700 {self.path}", str(self.path))


def load(home: Home, config_path: Path | None, environ: Mapping[str, str]) -> Config:
    """The configuration in force: ``config_path`` (else the home's file, if there is one) under the environment.

    Paths in it are made absolute: ``socket`` against the home, an agent's ``cwd`` and ``manifest``, the anchor's
    ``file``, ``client_ca`` and the file of a job's ``key`` against the folder of the file.
    """
    path = (home.config_file if config_path is None else config_path).absolute()
    file = TomlFile(path, required=config_path is not None)
    file.take_environment(environ, Sections, "TRUNKLINE")
    config = file.convert(Sections)
    socket = str(home.path / config.opensentience.socket)
    for key, problem in (*_problems(config, socket), *_write_problems(config, path)):
        file.fail(key, problem)
    placed = structs.replace(
        config,
        opensentience=structs.replace(config.opensentience, socket=socket),
        agents=tuple(_placed(agent, path.parent) for agent in config.agents),
        ledger=_placed_ledger(config.ledger, path.parent),
        ossa=_placed_ossa(config.ossa, path.parent),
        jobs=_placed_jobs(config.jobs, path.parent),
    )
    values = {name: getattr(placed, name) for name in Sections.__struct_fields__}
    return Config(**values, given=_given(file.tables))


def _given(tables: Mapping[str, object]) -> frozenset[tuple[str, str]]:
    """The keys that are set; of a section that is repeated only that it is there."""
    return frozenset(
        (section, key)
        for section, table in tables.items()
        for key in (table if isinstance(table, dict) else ("",) if table else ())
    )


# --- what may be wrong ------------------------------------------------------------------------------------------------


def _problems(config: Sections, socket: str) -> Iterator[tuple[KeyPath, str]]:
    """What the types alone do not tell, in the order of the sections."""
    yield from _listen_problems(config)
    yield from _url_problems(config)
    yield from _tool_problems(("chiffon", "work"), config.chiffon.work, "the work")
    yield from _tool_problems(("ossa", "actions"), config.ossa.actions, "the action")
    yield from _offer_problems(config.nostr)
    for name in config.ossa.rate:
        if not _AGENT_CLASS.fullmatch(name):
            yield ("ossa", "rate", name), f"expected the class of an agent, {_AGENT_CLASS.pattern}"
    yield from _command_problems(("pylon", "codex"), config.pylon.codex)
    yield from _job_problems(config.jobs)
    if not AGENT_ID.fullmatch(config.pylon.app_key):
        yield ("pylon", "app_key"), "expected 1 to 128 of the characters A-Z a-z 0-9 . _ -, the first a letter or digit"
    yield from _agent_problems(config.agents)
    yield from _mcp_problems(config.mcp_servers)
    for index, rule in enumerate(config.policy_table.rule):
        yield from _rule_problems(("policy", "rule", index), rule)
    for name, value in structs.asdict(config.limits).items():
        if not 0 <= value < float("inf"):
            yield ("limits", name), "expected a number from 0, where 0 means no bound"
    if (anchor := config.ledger.anchor) is not None:
        if (not anchor.file) == (not anchor.command):
            yield ("ledger", "anchor"), "expected one of the keys `file` and `command`"
        elif anchor.command:
            yield from _command_problems(("ledger", "anchor", "command"), anchor.command)
    if (notify := config.approvals.notify) is not None:
        yield from _notify_problems(("approvals", "notify"), notify)
    yield from _path_problems(("opensentience", "socket"), config.opensentience.socket)
    if config.ossa.client_ca:
        yield from _path_problems(("ossa", "client_ca"), config.ossa.client_ca)
    if (size := len(os.fsencode(socket))) > MAX_SOCKET_PATH_BYTES:
        problem = f"{socket} has {size} bytes and a socket's path at most {MAX_SOCKET_PATH_BYTES}; use a shorter --home"
        yield ("opensentience", "socket"), problem


def _notify_problems(key: KeyPath, notify: Notify) -> Iterator[tuple[KeyPath, str]]:
    if (notify.command is None) == (notify.url is None):
        yield key, "expected one of the keys `command` and `url`"
    elif notify.command is not None:
        yield from _command_problems((*key, "command"), notify.command)
    elif notify.url is not None and not _is_told_safely(notify.url):
        yield (*key, "url"), "expected https://HOST[:PORT]/PATH, or http:// on this machine"


def _is_told_safely(url: str) -> bool:
    from urllib.parse import urlsplit

    if not _is_url(url, ("http", "https"), has_path=True):
        return False
    parts = urlsplit(url)
    return parts.username is None and (parts.scheme == "https" or is_loopback(parts.hostname or ""))


# The addresses on which the exchange listens, and whether each may be off (empty).
LISTENERS: Final = {
    ("http", "listen"): False,
    ("opensentience", "tcp"): True,
    ("ossa", "listen"): True,
    ("nostr", "relay"): True,
    ("pylon", "listen"): True,
}


def _listen_problems(config: Sections) -> Iterator[tuple[KeyPath, str]]:
    for key, may_be_off in LISTENERS.items():
        address: str = getattr(getattr(config, key[0]), key[1])
        if not address and may_be_off:
            continue
        try:
            host, _ = host_and_port(address)
        except ValueError as error:
            yield key, str(error)
            continue
        if is_loopback(host):
            continue
        if key != ("ossa", "listen"):
            yield key, f"{host} is not loopback, and only [ossa] may listen elsewhere: 127.0.0.1 or [::1]"
        elif not config.ossa.require_signature:
            # With TLS and a signature on every message it may be reached from anywhere; without signatures whoever
            # reaches it is whom he says he is.
            yield key, f"{host} is not loopback, and without `require_signature` it has to be: 127.0.0.1 or [::1]"


def _url_problems(config: Sections) -> Iterator[tuple[KeyPath, str]]:
    """Those that we connect to, or compare with; a password in one must not get into a message."""
    urls: list[tuple[KeyPath, str, tuple[str, ...], bool]] = []
    urls += [((name, "nats"), getattr(config, name).nats, ("nats", "tls"), False) for name in ("chiffon", "cluster")]
    urls += [(("nostr", "relays", index), url, ("ws", "wss"), True) for index, url in enumerate(config.nostr.relays)]
    for index, origin in enumerate(config.pylon.allowed_origins):
        urls.append((("pylon", "allowed_origins", index), origin, ("http", "https"), False))
    for index, server in enumerate(config.mcp_servers):
        if server.url is not None:
            urls.append((("mcp", index, "url"), server.url, ("http", "https"), True))
    for key, url, schemes, has_path in urls:
        is_off = not url and key[1] == "nats"
        if not is_off and not _is_url(url, schemes, has_path=has_path):
            forms = " or ".join(f"{scheme}://HOST[:PORT]" for scheme in schemes)
            yield key, f"expected {forms}" + (", with or without a path" if has_path else "")


def _job_problems(jobs: Jobs) -> Iterator[tuple[KeyPath, str]]:
    """What belongs to the endpoint makes no sense without it."""
    from urllib.parse import urlsplit

    if not jobs.endpoint:
        for name in ("model", "embedding_model", "key"):
            if getattr(jobs, name):
                yield ("jobs", name), "has no effect without `endpoint`"
        return
    if not _is_url(jobs.endpoint, ("http", "https"), has_path=True) or "@" in jobs.endpoint:
        yield ("jobs", "endpoint"), "expected https://HOST[:PORT]/PATH, without a user; the key is named by `key`"
    elif urlsplit(jobs.endpoint).scheme == "http" and not is_loopback(urlsplit(jobs.endpoint).hostname or ""):
        yield ("jobs", "endpoint"), "http leaves this machine unencrypted: expected https"
    if not jobs.model and not jobs.embedding_model:
        yield ("jobs", "endpoint"), "expected `model`, `embedding_model` or both beside it"
    if jobs.key and not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:[^\0]+", jobs.key):
        yield ("jobs", "key"), "expected env:NAME or file:PATH, and never the key itself"


def _tool_problems(place: KeyPath, tools: Mapping[str, str], what: str) -> Iterator[tuple[KeyPath, str]]:
    """Names of a protocol that stand for tools."""
    for name, tool_id in tools.items():
        agent_id, _, tool_name = tool_id.partition("/")
        if not name:
            yield (*place, name), f"the name of {what} is empty"
        if not AGENT_ID.fullmatch(agent_id) or not TOOL_NAME.fullmatch(tool_name):
            yield (*place, name), "expected the id of a tool, 'agent_id/tool_name'"


def _offer_problems(nostr: Nostr) -> Iterator[tuple[KeyPath, str]]:
    judge_agent, _, judge_tool = nostr.buyer.judge.partition("/")
    if nostr.buyer.judge and not (AGENT_ID.fullmatch(judge_agent) and TOOL_NAME.fullmatch(judge_tool)):
        yield ("nostr", "buyer", "judge"), "expected the id of a tool, 'agent_id/tool_name'"
    for index, line in enumerate(nostr.offer):
        key: KeyPath = ("nostr", "offer", index)
        agent_id, slash, tool_name = line.partition("/")
        is_tool = bool(slash and AGENT_ID.fullmatch(agent_id) and TOOL_NAME.fullmatch(tool_name))
        if not is_tool and (slash or not _SCHEMA_ID.fullmatch(line)):
            yield key, "expected the id of a tool, 'agent_id/tool_name', or of a job type, such as 'oa.embedding.v1'"
        elif line in nostr.offer[:index]:
            yield key, f"{line} stands here twice"
    kinds = structs.asdict(nostr.kinds)
    for name, kind in kinds.items():
        if list(kinds.values()).count(kind) > 1 or kind == nostr.kinds.result:
            yield ("nostr", "kinds", name), f"{kind} is also the kind of something else"


def _command_problems(key: KeyPath, words: tuple[str, ...]) -> Iterator[tuple[KeyPath, str]]:
    if words and not words[0]:
        yield key, "the first word, the program, is empty"
    if any("\0" in word for word in words):
        yield key, "a word holds a zero character"


def _path_problems(key: KeyPath, path: str) -> Iterator[tuple[KeyPath, str]]:
    if not path:
        yield key, "expected a path"
    if "\0" in path:
        yield key, "a path holds no zero character"


def _agent_problems(agents: tuple[AgentProcess, ...]) -> Iterator[tuple[KeyPath, str]]:
    seen: dict[str, str] = {}
    for index, agent in enumerate(agents):
        key: KeyPath = ("agent", index, "id")
        yield from _id_problems(key, agent.id, seen)
        if reserved_prefix(agent.id):
            yield key, f"{agent.id!r} starts with a reserved name ({', '.join(RESERVED_PREFIXES)})"
        yield from _command_problems(("agent", index, "command"), agent.command)
        yield from _path_problems(("agent", index, "cwd"), agent.cwd or ".")
        if agent.manifest is not None:
            yield from _path_problems(("agent", index, "manifest"), agent.manifest)
        for name, value in agent.env.items():
            if not name or "=" in name or "\0" in name + value:
                yield ("agent", index, "env", name), "not a name and a text that an environment can hold"
            elif name.startswith("OPENSENTIENCE_"):
                yield ("agent", index, "env", name), "set by the exchange for each run"
        yield from _isolation_problems(index, agent)


def _isolation_problems(index: int, agent: AgentProcess) -> Iterator[tuple[KeyPath, str]]:
    is_sandbox = agent.isolation not in {"user", "none"}
    no_effect = f'has no effect with isolation = "{agent.isolation}", which is no sandbox'
    for key, paths in (("read", agent.read), ("write", agent.write)):
        if any(not path or "\0" in path for path in paths):
            yield ("agent", index, key), "expected paths"
        if paths and not is_sandbox:
            yield ("agent", index, key), no_effect
    if not agent.network and not is_sandbox:
        yield ("agent", index, "network"), f"false {no_effect}"


def _write_problems(config: Sections, file: Path) -> Iterator[tuple[KeyPath, str]]:
    """An agent that may write to this file, or move what is above it, decides itself what it may."""
    real = os.path.realpath(file)
    for index, agent in enumerate(config.agents):
        for path in agent.write:
            folder = os.path.realpath(_placed_path(path, file.parent))
            if real == folder or real.startswith(folder.rstrip("/") + "/"):
                yield ("agent", index, "write"), f"{path} holds this file itself: name a folder beside it"


def _mcp_problems(servers: tuple[McpServer, ...]) -> Iterator[tuple[KeyPath, str]]:
    seen: dict[str, str] = {}
    for index, server in enumerate(servers):
        yield from _id_problems(("mcp", index, "id"), server.id, seen)
        yield from _command_problems(("mcp", index, "command"), server.command or ())
        if (server.command is None) == (server.url is None):
            yield ("mcp", index), "expected one of the keys `command` and `url`"


def _id_problems(key: KeyPath, name: str, seen: dict[str, str]) -> Iterator[tuple[KeyPath, str]]:
    """Decision 19: two ids equal after case folding are one. ``seen`` maps the folded to the written form."""
    if not AGENT_ID.fullmatch(name):
        yield key, "expected 1 to 128 of the characters A-Z a-z 0-9 . _ -, the first a letter or digit"
    folded = name.casefold()
    if folded in seen:
        yield key, f"{name!r} is taken; the id {seen[folded]!r} stands further up"
    seen[folded] = name


def _rule_problems(key: KeyPath, rule: RuleLine) -> Iterator[tuple[KeyPath, str]]:
    """A rule that can match nothing is a mistake, and a dangerous one if it says deny."""
    edge, colon, _ = rule.caller.partition(":")
    if rule.caller != OPERATOR and "*" not in edge and not (colon and edge in CALLER_EDGES):
        expected = (
            f"{rule.caller!r} matches nobody: expected 'operator', or an edge and an id as in 'agent:com.example.echo'"
            f" (edges: {', '.join(CALLER_EDGES)})"
        )
        yield (*key, "caller"), expected + suggestion(edge, (OPERATOR, *CALLER_EDGES))
    if isinstance(rule.when, dict):
        yield from _when_problems((*key, "when"), rule.when)
    if "*" not in rule.tool and rule.tool.count("/") != 1:
        yield (
            (*key, "tool"),
            f"{rule.tool!r} matches no tool: expected 'agent_id/tool_name'; * stands for any characters",
        )


def _when_problems(key: KeyPath, when: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    for name in when.keys() - {"input", "circumstance"}:
        yield (*key, name), f"no such key{suggestion(name, ('input', 'circumstance'))}"
    if not when:
        yield key, "expected the key `input`"
    if "circumstance" in when and when["circumstance"] not in [one.value for one in Circumstance]:
        yield (*key, "circumstance"), "expected " + " or ".join(f'"{one.value}"' for one in Circumstance)
    if "input" not in when:
        return
    if not isinstance(when["input"], dict):
        yield (*key, "input"), "expected a table of JSON pointers"
        return
    try:
        input_conditions.compiled(when["input"])
    except ValueError as problem:
        yield (*key, "input"), str(problem)


def _is_url(text: str, schemes: tuple[str, ...], *, has_path: bool) -> bool:
    from urllib.parse import urlsplit

    # What `urlsplit` takes out silently, and what no host or path of a URL holds.
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    is_bare = not (parts.path or parts.query or parts.fragment) and "," not in text
    return parts.scheme in schemes and bool(parts.hostname) and port != 0 and (has_path or is_bare)


def _placed_ledger(ledger: LedgerTable, folder: Path) -> LedgerTable:
    if ledger.anchor is None or ledger.anchor.file is None:
        return ledger
    return structs.replace(ledger, anchor=structs.replace(ledger.anchor, file=str(folder / ledger.anchor.file)))


def _placed_ossa(ossa: Ossa, folder: Path) -> Ossa:
    return structs.replace(ossa, client_ca=str(folder / ossa.client_ca)) if ossa.client_ca else ossa


def _placed_jobs(jobs: Jobs, folder: Path) -> Jobs:
    kind, _, path = jobs.key.partition(":")
    return structs.replace(jobs, key=f"file:{folder / path}") if kind == "file" else jobs


def _placed(agent: AgentProcess, folder: Path) -> AgentProcess:
    return structs.replace(
        agent,
        cwd=str(folder / agent.cwd),
        manifest=None if agent.manifest is None else str(folder / agent.manifest),
        read=tuple(_placed_path(path, folder) for path in agent.read),
        write=tuple(_placed_path(path, folder) for path in agent.write),
    )


def _placed_path(path: str, folder: Path) -> str:
    """Absolute, by the names alone: ``..`` goes, links stay."""
    return os.path.normpath(folder / Path(path).expanduser())

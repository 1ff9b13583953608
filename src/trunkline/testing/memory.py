"""A whole exchange in memory, for tests of an edge: the real hub, runner, views and ledger; a clock that stands still.

Everything that is recorded is on disk at once, unless ``disk_rests``: then ``store`` puts it there. Time passes by
``advance``, or by itself on a ``live`` loop, for tests on real sockets. ``call`` and ``attach`` are a caller and an
agent of no particular protocol, so that a test of one edge needs no other. Give ``surroundings`` to an edge, or
``feed`` and ``views`` to its parts.

Owns how the parts are joined without processes and sockets. Does not own any of the parts.

Invariant: nothing here answers in the place of the hub.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from trunkline import events
from trunkline.addresses import host_and_port
from trunkline.config import LISTENERS, Config
from trunkline.edges.edge import Edge, Surroundings
from trunkline.edges.exchange import BaseSink
from trunkline.edges.piped import NoPrograms, Programs, StartPiped, start_nothing
from trunkline.effects import Answer, Cancel, Deliver, Progress, Reply, ToSession, Wait
from trunkline.entries import Entry
from trunkline.errors import InvariantBroken, LedgerError
from trunkline.host.assembly import Plan, assemble
from trunkline.host.edges import Edges
from trunkline.host.runner import Loop, Runner, both_clocks
from trunkline.hub import invariants
from trunkline.hub.hub import Hub
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.masking import Masker
from trunkline.model import (
    OPERATOR,
    Decision,
    Fault,
    Now,
    Peer,
    Policy,
    Principal,
    ProcessIdentity,
    Rule,
    Status,
    ToolDefinition,
)
from trunkline.shown import AgentView
from trunkline.testing.clock import ManualClock, ManualLoop
from trunkline.testing.disk import FaultyDisk

ALLOW_ALL: Final = Policy((Rule("all", "*", "*", Decision.ALLOW),), "all")
BOSS: Final = Principal(OPERATOR)
OPERATOR_TOKEN: Final = "tlk_operator-of-the-memory-exchange"  # noqa: S105  (opens nothing else)
# A home in which nobody can make anything, root included: whoever wants files gives a folder.
NOWHERE: Final = Path("/dev/null/nowhere")
ANY_OBJECT: Final = Raw(b'{"type":"object"}')
PROCESS: Final = ProcessIdentity(1, 1)
_SECRET: Final = b"k" * 32


class NoProcesses:
    """A machine on which nothing was launched."""

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Some process."""
        return Peer(f"process {pid} of {uid}", ProcessIdentity(pid, pid))

    def views(self) -> list[AgentView]:
        """None."""
        return []

    def tool_raised(self, agent_id: str, exception: str) -> None:
        """There is nobody to look at."""


class MemoryRunner(Runner):
    """The real runner; what it recorded is on disk before ``feed`` returns, and the hub's invariants hold."""

    exchange: MemoryExchange

    def _send(self, effect: ToSession, now: Now) -> None:
        self.exchange.effects.append(effect)
        super()._send(effect, now)

    def feed(self, happened: Sequence[events.Event]) -> None:
        """Hand events to the hub."""
        super().feed(happened)
        if not self._is_feeding and not self.exchange.is_storing and not self.exchange.disk_rests:
            self.exchange.store()
        if not self._is_feeding and self.exchange.died is None:
            try:
                invariants.check(self.hub)
            except InvariantBroken as broken:
                # Whoever fed may take what is raised here for a defect of its own.
                self.exchange.died = str(broken)
                raise

    def kill(self) -> None:
        """From here on nothing happens any more, whatever tasks of this exchange still say."""
        self._dead = True


def on_any_port(config: Config) -> Config:
    """The same, with any free port instead of a default one: two exchanges at a time cannot both have that."""
    usual = Config()
    for section, key in LISTENERS:
        values, default = getattr(config, section), getattr(getattr(usual, section), key)
        if default and getattr(values, key) == default:
            config = replace(config, **{section: replace(values, **{key: f"{host_and_port(default)[0]}:0"})})
    return config


class MemoryExchange:
    """One exchange. ``log`` is everything it recorded, as it was before masking, ``effects`` what it said to whom."""

    def __init__(
        self,
        policy: Policy = ALLOW_ALL,
        *,
        edges: Sequence[Edge] = (),
        config: Config | None = None,
        disk: FaultyDisk | None = None,
        clock: ManualClock | None = None,
        live: Loop | None = None,
        home: Path = NOWHERE,
        log: list[Entry] | None = None,
        start_piped: StartPiped = start_nothing,
        programs: Programs | None = None,
        run: int = 1,
    ) -> None:
        self.home = home
        self.policy = policy
        self._known = edges
        self.config = on_any_port(Config() if config is None else config)
        is_own = disk is None or run > 1
        self.disk = FaultyDisk(1) if disk is None else disk
        # A megabyte each: a thousand tests must not fill the memory that the folder is in.
        self._removal = weakref.finalize(self, shutil.rmtree, self.disk.folder, ignore_errors=True)
        if not is_own:
            self._removal.detach()
        self.clock = ManualClock() if clock is None else clock
        self.loop = ManualLoop(self.clock)
        # Both clocks.
        self.now = self.clock.now if live is None else both_clocks
        self._live = live
        self.log: list[Entry] = [] if log is None else log
        self.effects: list[ToSession] = []
        self.disk_rests = self.is_storing = False
        # Ids of agents whose processes can be started and stopped, as far as anybody can tell.
        self.launched: set[str] = set()
        # Why it ended by itself.
        self.died: str | None = None
        self._run = run
        self._ids = itertools.count(1)
        keys = LedgerKeys(_SECRET, Random(run).randbytes)
        self.ledger = Ledger.open(
            self.disk.path("ledger.sqlite"),
            Path(),
            loop=None,
            on_durable=lambda number: self.feed.on_durable(number),  # noqa: PLW0108  (it is made further down)
            on_failure=lambda error: self.feed.on_failure(error),  # noqa: PLW0108
            vfs=self.disk.vfs,
            keys=keys,
        )
        append = self.ledger.append

        def logged(entry: Entry) -> None:
            self.log.append(entry)
            append(entry)

        self.ledger.append = logged  # type: ignore[method-assign]
        self.edges = Edges(edges, {})
        plan = Plan(
            settings=replace(self.config.hub_settings(), policy=policy),
            config=self.config,
            home=home,
            version="0.0.0",
            instance=f"run-{run}",
            process=PROCESS,
            operator_sha256=hashlib.sha256(OPERATOR_TOKEN.encode()).hexdigest(),
            launch_edge="opensentience",
            operator_edge="http",
            call_prefix=f"{run:08x}-0000-8000-a000-",
            new_id=lambda: f"{run:08x}-0000-4000-8000-{next(self._ids):012x}",
            steer=lambda agent_id, _: agent_id in self.launched,
            start_piped=start_piped,
            programs=NoPrograms() if programs is None else programs,
        )
        self._start_piped = start_piped
        self._parts = parts = assemble(self.ledger, self.edges, NoProcesses(), plan, self._make_runner)
        self.hub, self.views, self.operator = parts.hub, parts.views, parts.operator
        self._caller = _Caller()
        self._session = self.feed.open_session(self._caller)
        self._refs = itertools.count(1)

    def _make_runner(self, hub: Hub, masker: Masker) -> MemoryRunner:
        loop = self.loop if self._live is None else self._live
        instance = f"run-{self._run}"
        self.feed = MemoryRunner(
            hub, self.ledger, masker, NoProcesses(), loop, instance=instance, fatal=self._fatal, clock=self.now
        )
        self.feed.exchange = self
        return self.feed

    def _fatal(self, why: str) -> None:
        self.died = why

    def surroundings(self, home: Path | None = None) -> Surroundings:
        """What an edge is given."""
        given = self._parts.surroundings
        return given if home is None else replace(given, home=home)

    # -- time and disk -------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass, with every timer at its moment."""
        self.loop.run_for(seconds)

    def store(self) -> None:
        """Put everything that was recorded on disk; what waited for it leaves."""
        self.is_storing = True
        try:
            while self.ledger.backlog and self.died is None:
                self.ledger.flush()
        finally:
            self.is_storing = False

    def close(self) -> None:
        """Let go of everything, where many are made: SQLite knows of a disk until somebody says that it is gone."""
        self.died = self.died or "closed"
        self.feed.kill()
        with contextlib.suppress(LedgerError):
            self.ledger.close()
        self.ledger.reader.close()
        self._removal.detach()
        self.disk.close()

    def restarted(self, **changes: Any) -> MemoryExchange:
        """Another process on the same record, after this one was killed; nobody is connected."""
        self.died = "killed"
        self._removal.detach()
        self.feed.kill()
        self.ledger.reader.close()
        terms = {
            "policy": self.policy,
            "edges": self._known,
            "config": self.config,
            "disk": self.disk,
            "clock": self.clock,
            "log": self.log,
            "home": self.home,
            "live": self._live,
            "start_piped": self._start_piped,
        }
        return MemoryExchange(**{**terms, **changes}, run=self._run + 1)

    # -- people --------------------------------------------------------------------------------------------------------

    def token(self, edge: str, agent: str, kind: str = "", permissions: tuple[str, ...] = ()) -> str:
        """A standing token, made by the operator; the same for the same words."""
        secret = hashlib.sha256(f"{edge}:{agent}:{kind}".encode()).hexdigest()[:32]
        digest = hashlib.sha256(secret.encode()).hexdigest()
        if self.feed.identify(edge, digest) is None:
            issued = events.TokenIssued(self._session, "token", BOSS, edge, agent, digest, permissions, kind)
            self.feed.feed([issued])
        return secret

    def revoke(self, edge: str, agent: str) -> None:
        """Take back the tokens of an agent."""
        for token in self.operator.tokens():
            if (token.edge, token.agent, token.revoked) == (edge, agent, False):
                self.feed.feed([events.TokenRevoked(self._session, "revoke", BOSS, token.token_id)])

    def call(self, tool_id: str, value: object = None, *, by: Principal = BOSS, **terms: Any) -> MadeCall:
        """A call by somebody of no edge; what came of it so far."""
        ref = f"call-{next(self._refs)}"
        body = value if isinstance(value, Raw) else Raw(msgspec.json.encode({} if value is None else value))
        asked = events.CallRequested(self._session, ref, by, tool_id, body, **{"announce": True, **terms})
        self.feed.feed([asked])
        return MadeCall(self._caller, ref)

    def answer(self, approval_id: str, *, approved: bool = True, by: Principal = BOSS) -> None:
        """A person answers a question."""
        self.feed.feed([events.ApprovalAnswered(self._session, "answer", by, approval_id, approved)])

    def attach(
        self,
        agent_id: str,
        *tools: str | ToolDefinition,
        deliver: Callable[[AttachedAgent, Deliver], None] | None = None,
        **terms: Any,
    ) -> AttachedAgent:
        """An agent of no particular protocol, with these tools."""
        return AttachedAgent(self, agent_id, tools, deliver, terms)

    # -- the record ----------------------------------------------------------------------------------------------------

    def notices(self) -> list[str]:
        """The codes of what was noticed."""
        from trunkline.entries import Noticed

        return [entry.code for entry in self.log if isinstance(entry, Noticed)]

    def recorded(self, kind: type[Entry]) -> list[Any]:
        """The entries of one kind."""
        return [entry for entry in self.log if isinstance(entry, kind)]


class _Caller(BaseSink):
    """Whoever calls: keeps what is said, by request."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.waits: dict[str, list[Wait]] = {}
        self.progress: dict[str, list[Progress]] = {}
        self.replies: list[Reply] = []

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something."""
        del now
        match effect:
            case Answer():
                assert effect.ref not in self.answers, "answered twice"
                self.answers[effect.ref] = effect
            case Wait():
                self.waits.setdefault(effect.ref, []).append(effect)
            case Progress():
                self.progress.setdefault(effect.ref, []).append(effect)
            case Reply():
                self.replies.append(effect)
            case _:
                raise AssertionError(effect)


class MadeCall:
    """A call, and what its caller was told."""

    def __init__(self, caller: _Caller, ref: str) -> None:
        self._caller = caller
        self.ref = ref

    @property
    def answer(self) -> Answer | None:
        """Its outcome, if there is one."""
        return self._caller.answers.get(self.ref)

    @property
    def outcome(self) -> Answer:
        """Its outcome."""
        found = self.answer
        assert found is not None, "no answer yet"
        return found

    @property
    def code(self) -> str | None:
        """The code of its fault."""
        return None if self.outcome.fault is None else self.outcome.fault.code

    @property
    def details(self) -> dict[str, Any]:
        """The details of its fault."""
        assert self.outcome.fault is not None
        return dict(self.outcome.fault.details or {})

    @property
    def output(self) -> Any:
        """Its output, read."""
        assert self.outcome.output is not None
        return json.loads(bytes(self.outcome.output))

    @property
    def waits(self) -> list[Wait]:
        """What it was told before its outcome."""
        return self._caller.waits.get(self.ref, [])

    @property
    def progress(self) -> list[Progress]:
        """What it was shown."""
        return self._caller.progress.get(self.ref, [])

    @property
    def approval_id(self) -> str:
        """The question that it waits for."""
        found = [wait.approval_id for wait in self.waits if wait.approval_id is not None]
        assert found, "nobody is asked"
        return found[-1]

    @property
    def call_id(self) -> str:
        """Our name for it."""
        return self.outcome.call_id if self.answer is not None else self.waits[0].call_id


class AttachedAgent(BaseSink):
    """An agent that keeps what it is sent, or does what ``deliver`` says."""

    def __init__(
        self,
        exchange: MemoryExchange,
        agent_id: str,
        tools: Sequence[str | ToolDefinition],
        deliver: Callable[[AttachedAgent, Deliver], None] | None,
        terms: dict[str, Any],
    ) -> None:
        self._exchange = exchange
        self._deliver = deliver
        self.agent_id = agent_id
        self.delivered: list[Deliver] = []
        self.canceled: list[Cancel] = []
        self.session = exchange.feed.open_session(self)
        digest, run_id = f"launch-{agent_id}", f"run-{agent_id}"
        process = ProcessIdentity(7, 7)
        definitions = tuple(
            ToolDefinition(f"{agent_id}/{tool}", "a tool", ANY_OBJECT) if isinstance(tool, str) else tool
            for tool in tools
        )
        arrived = events.AgentArrived(
            session=self.session,
            ref="arrive",
            agent_id=agent_id,
            version="1.0.0",
            token_sha256=digest,
            peer=Peer("memory", process, run_id),
            **{"edge": "opensentience", **terms},
        )
        exchange.feed.feed(
            [
                events.AgentLaunched(agent_id, run_id, process, digest),
                arrived,
                events.ToolsOffered(self.session, "offer", definitions),
            ]
        )

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something."""
        del now
        if isinstance(effect, Deliver):
            self.delivered.append(effect)
            if self._deliver is not None:
                self._deliver(self, effect)
        elif isinstance(effect, Cancel):
            self.canceled.append(effect)

    def finish(
        self,
        value: object = None,
        status: Status = Status.SUCCEEDED,
        fault: Fault | None = None,
        *,
        at: int = -1,
    ) -> None:
        """End a call: the last one that was delivered, unless ``at`` names another."""
        output = value if isinstance(value, Raw) else None if value is None else Raw(msgspec.json.encode(value))
        call_id = self.delivered[at].call_id
        self._exchange.feed.feed([events.CallFinished(self.session, call_id, status, output, fault)])

    def show(self, channel: str, data: object, seq: int = 1) -> None:
        """Show something of the last call."""
        body = Raw(msgspec.json.encode(data))
        call_id = self.delivered[-1].call_id
        self._exchange.feed.feed([events.CallProgressed(self.session, call_id, seq, channel, body)])

    def leave(self, reason: str = "gone") -> None:
        """The connection ends."""
        self._exchange.feed.feed([events.AgentLeft(self.session, reason)])
        self._exchange.feed.close_session(self.session)

"""The machine that a simulation happens on: the exchange that runs there or does not, its agents, its operator.

Owns what starts, ends and comes back: processes of agents (launched by the exchange, or started by hand with a standing
token), runs of the exchange, and what survives them. Does not choose what happens (``simulation``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline import events
from trunkline.config import Chiffon, Config, OpenSentience
from trunkline.edges.chiffon import translate as chiffon_tools
from trunkline.edges.edge import Surroundings
from trunkline.edges.spaces import translate as space_tools
from trunkline.effects import Reply
from trunkline.errors import InvariantBroken, LedgerError
from trunkline.model import (
    OPERATOR,
    HubSettings,
    Limits,
    Manifest,
    Peer,
    Policy,
    Principal,
    ProcessIdentity,
    ToolDefinition,
)
from trunkline.shown import AgentView
from trunkline.testing import jobs, pylon
from trunkline.testing.agents import Script, ScriptedAgent
from trunkline.testing.callers import HttpCallers
from trunkline.testing.chiffon import ChiffonPeer, Orchestrator, Planner, Worker
from trunkline.testing.clock import ManualLoop
from trunkline.testing.console import ConsolePages
from trunkline.testing.edges import simulated_edges
from trunkline.testing.exchange import PowerCut, Setup, SimulatedExchange
from trunkline.testing.jobs import JobsInMemory, WorkersInMemory
from trunkline.testing.network import Network
from trunkline.testing.nostr import NostrUsers
from trunkline.testing.ossa import OssaUsers
from trunkline.testing.policies import POLICIES
from trunkline.testing.pylon import PylonPages
from trunkline.testing.spaces import SimulatedSpacesEdge, SimulatedWorkspace, SpaceUsers
from trunkline.testing.topics import TopicUsers
from trunkline.testing.web import Web
from trunkline.testing.witness import Witness

BOSS: Final = Principal(OPERATOR)
SCRIPT: Final = Principal("http:script")
CHECKER: Final = Principal("http:checker", ("approve",))
PEOPLE: Final = (BOSS, SCRIPT, CHECKER)

ANYTHING: Final = Raw(b'{"type":"object"}')
NUMBERED: Final = Raw(b'{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}')
# How many agents there are: often few, who then meet each other more.
CROWDS: Final = (3, 3, 4, 4, 5, 6, 8, 12)
# What each agent offers. Behaviour differs by agent and by day; what a tool promises does not.
TOOLS: Final[tuple[tuple[str, dict[str, object]], ...]] = (
    ("read", {"side_effects": False}),
    ("look", {"side_effects": False, "capabilities": ("cancellation",)}),
    ("write", {"input_schema": NUMBERED}),
    ("make", {"capabilities": ("cancellation",)}),
    ("once", {"capabilities": ("idempotency",)}),
    ("intended", {"requires_directive": True}),
    ("guarded", {"side_effects": False, "required_permissions": ("files:read",)}),
)
# A secret that the exchange was told of. One for all seeds: the search for it is compiled once, in 70 ms.
CONFIGURED: Final = "plain-Xq7vBn2mKp9sTr4w"
# The one whose results are other people's words.
UNTRUSTED: Final = "com.c"
# Short, so that a quiet minute at the end sees everything expire.
APPROVAL_S: Final = 40.0
# Not every simulation has every edge: those that are there meet each other more, and all cost time.
CHIFFON_SHARE: Final = 0.25
SPACES_SHARE: Final = 0.25
TOPICS_SHARE: Final = 0.25
OSSA_SHARE: Final = 0.2
NOSTR_SHARE: Final = 0.2
CONSOLE_SHARE: Final = 0.15
PYLON_SHARE: Final = 0.15
SPACES: Final = (("lab", "standard"), ("office", "restrictive"))
# Four attempts end within the quiet at the end.
CHIFFON_TIMEOUT_S: Final = 15.0
WORKERS: Final = (("infra-1", "infra"), ("infra-2", "infra"), ("code-1", "code"))
WORK_TYPES: Final = ("build", "check")
ORCHESTRATORS: Final = ("planner", "scheduler")
# How long an exchange that gave up still says no to everybody.
DYING_S: Final = 2.0
# What is recorded last has so long to reach a slow disk.
LAST_COMMIT_S: Final = 20.0


def tools_of(agent_id: str, wording: str = "does what it says") -> list[ToolDefinition]:
    """The tools of one agent; another wording is another definition."""
    plain = ToolDefinition("", wording, ANYTHING)
    return [msgspec.structs.replace(plain, tool_id=f"{agent_id}/{name}", **terms) for name, terms in TOOLS]


class Run(Struct):
    """A launched process, as the exchange's supervisor knows it."""

    agent_id: str
    run_id: str
    process: ProcessIdentity


class World:
    """Everything there is."""

    def __init__(self, seed: int, script: Script, planner: Planner) -> None:
        self.rng = Random(seed)
        self.loop = ManualLoop()
        self.clock = self.loop.clock
        self.witness = Witness(self.clock)
        self.network = Network(self.loop, self.rng, self._something_left)
        self.callers = HttpCallers(self.witness, self._something_left)
        self.setup = Setup(self.loop, self.network, self.rng, self, self.rng.randbytes(32))
        self.web = Web(self.loop, self.rng, self._something_left)
        self.has_chiffon = self.rng.random() < CHIFFON_SHARE
        self.has_spaces = self.rng.random() < SPACES_SHARE
        # From a source of its own: what happens in simulations without topics is what it always was.
        topics_rng = Random(f"topics {seed}")
        self.topics = (
            TopicUsers(self.loop, topics_rng, self.witness, self._something_left)
            if topics_rng.random() < TOPICS_SHARE
            else None
        )
        ossa_rng = Random(f"ossa {seed}")
        self.ossa = (
            OssaUsers(self.loop, ossa_rng, self.witness, self._something_left)
            if ossa_rng.random() < OSSA_SHARE
            else None
        )
        nostr_rng = Random(f"nostr {seed}")
        self.nostr = (
            NostrUsers(self.loop, nostr_rng, self.witness, self._something_left)
            if nostr_rng.random() < NOSTR_SHARE
            else None
        )
        console_rng = Random(f"console {seed}")
        self.console = (
            ConsolePages(self.loop, console_rng, self.witness, self._something_left)
            if console_rng.random() < CONSOLE_SHARE
            else None
        )
        pylon_rng = Random(f"pylon {seed}")
        self.pylon = (
            PylonPages(pylon_rng, self.witness, self._something_left) if pylon_rng.random() < PYLON_SHARE else None
        )
        # Strangers buy them.
        self.workers_of_jobs = WorkersInMemory(nostr_rng) if self.nostr is not None else None
        self.workspaces = [SimulatedWorkspace(name, preset) for name, preset in SPACES if self.has_spaces]
        self.space_users = SpaceUsers(self.web, self.witness)
        self.setup.edges = simulated_edges(
            self.network,
            self.callers,
            self.web,
            with_chiffon=self.has_chiffon,
            spaces=self._spaces_edge if self.has_spaces else None,
            ossa=self.ossa,
            nostr=self.nostr,
            jobs=self._jobs_edge if self.nostr is not None else None,
            console=self.console,
            pylon=self.pylon,
        )
        self.setup.config = Config(
            opensentience=OpenSentience(max_inflight_requests=self.rng.choice([1, 2, 8, 256])),
            chiffon=Chiffon(timeout_s=CHIFFON_TIMEOUT_S),
            pylon=pylon.SETTINGS,
        )
        # With so little room reading stops whenever the disk is slow.
        self.setup.backlog = self.rng.choice([(2048, 8192), (3, 8)])
        self.setup.settings = self.settings(POLICIES[0])
        self.exchange: SimulatedExchange | None = None
        self.canaries: list[str] = []
        # The latest time the wall clock ever showed before it was set.
        self.latest_wall = 0.0
        self._runs: dict[int, Run] = {}
        self._pids = 100
        # Writes and answers until the power goes; 0: it stays.
        self._cut_in = 0
        self._is_dying = False
        self._failures = 0
        token = self.new_token()
        self.setup.operator_sha256 = hashlib.sha256(token.encode()).hexdigest()
        self.setup.secrets = [("operator_token", token), ("configured", CONFIGURED)]
        self.canaries.append(CONFIGURED)
        names = [f"com.{letter}" for letter in "abcdefghijkl"][: self.rng.choice(CROWDS)]
        self.agents = {name: self._new_agent(name, script) for name in names}
        self.tools = {tool.tool_id: tool for name in names for tool in tools_of(name)}
        # Standing tokens by agent: the others are launched by the exchange.
        self.workers = {name: self._new_worker(name, kind, planner) for name, kind in WORKERS if self.has_chiffon}
        self.orchestrators = {name: self._new_orchestrator(name) for name in ORCHESTRATORS if self.has_chiffon}
        for worker in self.workers.values():
            for work_type in worker.work_types:
                for tool in (
                    chiffon_tools.tool_definition(worker.agent_id, work_type, worker.kind),
                    chiffon_tools.type_definition(worker.kind, work_type),
                ):
                    self.tools[tool.tool_id] = tool
        for space in self.workspaces:
            self.tools |= {tool.tool_id: tool for tool in space_tools.definitions(space.name, has_shell=True)}
        if self.ossa is not None:
            self.tools |= self.ossa.tools
        if self.nostr is not None:
            self.tools |= jobs.definitions()
        if self.pylon is not None:
            self.tools |= pylon.definitions()
        self._standing: dict[str, str] = {name: "" for name in names if self.rng.random() < 0.3}
        self._token_ids: dict[str, str] = {}
        self._peer_tokens: dict[str, str] = {}
        self._manifests = {name: Manifest("ab" * 32, ("files:read",)) for name in names if self.rng.random() < 0.3}

    def _new_agent(self, name: str, script: Script) -> ScriptedAgent:
        return ScriptedAgent(
            name,
            tools_of(name),
            script,
            loop=self.loop,
            network=self.network,
            rng=self.rng,
            witness=self.witness,
            died=self._agent_died,
            can_cancel=self.rng.random() < 0.7,
        )

    def _spaces_edge(self, given: Surroundings) -> SimulatedSpacesEdge:
        return SimulatedSpacesEdge(given, self.workspaces, self.rng, self.witness)

    def _jobs_edge(self, given: Surroundings) -> JobsInMemory:
        assert self.workers_of_jobs is not None
        return JobsInMemory(given, self.workers_of_jobs, self.witness)

    def _new_worker(self, name: str, kind: str, planner: Planner) -> Worker:
        work_types = WORK_TYPES if self.rng.random() < 0.6 else WORK_TYPES[:1]
        return Worker(name, kind, work_types, planner, **self._peer_terms())

    def _new_orchestrator(self, name: str) -> Orchestrator:
        return Orchestrator(name, **self._peer_terms())

    def _peer_terms(self) -> dict[str, Any]:
        return {
            "loop": self.loop,
            "web": self.web,
            "rng": self.rng,
            "witness": self.witness,
            "needs_token": lambda peer: self.loop.call_later(self.rng.uniform(0.1, 3.0), self._start_peer, peer),
            "died": self.kill_peer,
        }

    @property
    def peers(self) -> list[ChiffonPeer]:
        """Everybody who speaks Chiffon."""
        return [*self.workers.values(), *self.orchestrators.values()]

    def settings(self, policy: Policy) -> HubSettings:
        """A configuration with this policy."""
        strict = Limits(calls_per_s=5.0, open_calls=4, open_bytes=100_000)
        return HubSettings(
            policy,
            strict if self.rng.random() < 0.15 else Limits(),
            untrusted_agents=frozenset({UNTRUSTED}),
            unpinned_agents=frozenset({"com.b"}) if self.rng.random() < 0.3 else frozenset(),
            approval_expire_s=APPROVAL_S,
        )

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.latest_wall = max(self.latest_wall, self.clock.wall)
        self.clock.jump(seconds)

    # -- secrets -------------------------------------------------------------------------------------------------------

    def _secret(self, start: str, size: int) -> str:
        letters = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
        secret = start + "".join(self.rng.choices(letters, k=size))
        self.canaries.append(secret)
        return secret

    def new_token(self) -> str:
        """A credential as the exchange makes them. It must never be on record."""
        return self._secret("tlk_", 43)

    def canary(self) -> str:
        """A secret in somebody's words. It must never be readable on record."""
        which = self.rng.randrange(4)
        if which == 0:
            return CONFIGURED
        return self._secret(*(("tlk_", 43), ("ghp_", 36), ("sk-ant-api03-", 40))[which - 1])

    # -- the exchange --------------------------------------------------------------------------------------------------

    def start_exchange(self) -> None:
        """Start it from what is on the disk; if that cannot be read because the disk is broken, try again later."""
        if self.exchange is not None:
            return
        self._failures = len(self.setup.disk.failures)
        try:
            self.exchange = SimulatedExchange(self.setup)
        except LedgerError as exc:
            if not self._disk_failed:
                raise
            self.witness.note("exchange", f"cannot start: {exc}")
            self.setup.disk.heal()
            self.loop.call_later(1.0, self.start_exchange)
            return
        self.witness.run = self.setup.runs
        self.witness.note("exchange", f"starts, run {self.setup.runs}, from entry {self.exchange.ledger.durable}")
        self.exchange.start_edges(self._is_up)

    def _is_up(self) -> None:
        self.witness.note("exchange", "is up")
        if self.topics is not None and self.exchange is not None:
            self.topics.open(self.exchange.runner)
        for agent in self.agents.values():
            self._start(agent)
        for peer in self.peers:
            self._start_peer(peer)

    @property
    def is_up(self) -> bool:
        """Whether an exchange runs whose edges have all started."""
        return self.exchange is not None and self.exchange.is_up

    def crash(self, *, power_loss: bool) -> None:
        """The exchange is gone, from one moment to the next."""
        exchange = self._gone()
        if exchange is None:
            return
        on_record = exchange.ledger.durable
        self.witness.note("exchange", f"{'loses power' if power_loss else 'is killed'}; {on_record} entries promised")
        self._count_crash()
        exchange.kill(power_loss=power_loss)
        self._come_back()

    def end(self, *, power_loss: bool) -> None:
        """The exchange is gone, and nobody starts it again."""
        exchange = self._gone()
        if exchange is not None:
            exchange.kill(power_loss=power_loss)

    def stop(self) -> None:
        """The exchange is told to stop."""
        exchange = self.exchange
        if exchange is None or exchange.died is not None:
            return
        self.witness.note("exchange", "is told to stop")
        try:
            in_good_order = exchange.stop()
        except LedgerError as exc:
            if not self._disk_failed:
                raise
            self.witness.note("exchange", f"cannot close its record: {exc}")
            self._count_crash()
        else:
            if not in_good_order:
                self._judge_death(exchange)
                self._count_crash()
        self._gone()
        self.witness.note("exchange", "has stopped")
        self.setup.disk.heal()
        self._come_back()

    @property
    def _disk_failed(self) -> bool:
        """Whether an operation failed since the exchange was started last: then it may die."""
        return len(self.setup.disk.failures) > self._failures

    def _count_crash(self) -> None:
        self.witness.crashes += 1
        self.witness.crashed_run = self.setup.runs

    def _gone(self) -> SimulatedExchange | None:
        exchange, self.exchange = self.exchange, None
        self._cut_in = 0
        self._is_dying = False
        self.network.listener = None
        self.callers.close()
        self.web.close()
        if self.topics is not None:
            self.topics.close()
        if self.ossa is not None:
            self.ossa.close()
        if self.nostr is not None:
            self.nostr.close()
        if self.console is not None:
            self.console.close()
        if self.pylon is not None:
            self.pylon.close()
        return exchange

    def _come_back(self) -> None:
        """The keeper ends launched agents; somebody starts the exchange again."""
        for name, agent in self.agents.items():
            if name not in self._standing:
                self.loop.call_later(self.rng.uniform(0.0, 0.5), agent.kill)
        self.loop.call_later(self.rng.uniform(0.6, 3.0), self.start_exchange)

    def cut_power_after(self, writes: int) -> None:
        """Let the power go in the middle of a step: when so many more things have left the exchange."""
        self._cut_in = writes

    def _something_left(self) -> None:
        if self._cut_in:
            self._cut_in -= 1
            if self._cut_in == 0 and self.exchange is not None:
                self.exchange.runner.kill()
                raise PowerCut

    @contextmanager
    def under_power(self) -> Iterator[None]:
        """Whatever happens inside may end with the exchange's death; what is left after it goes on."""
        try:
            yield
        except PowerCut:
            self.crash(power_loss=self.rng.random() < 0.7)

    def look(self) -> None:
        """After each step: the hub is whole, and whoever died had a reason."""
        exchange = self.exchange
        if exchange is None:
            return
        if exchange.died is not None:
            if not self._is_dying:
                self._is_dying = True
                self._judge_death(exchange)
                self.loop.call_later(self.rng.uniform(0.0, DYING_S), self._bury, exchange)
            return
        exchange.check()

    def wait_for_disk(self) -> None:
        """Until everything that was recorded is on the disk."""
        give_up_at = self.loop.time() + LAST_COMMIT_S
        while self.exchange is not None and self.exchange.ledger.backlog and self.loop.time() < give_up_at:
            self.loop.run_for(0.01)

    def _judge_death(self, exchange: SimulatedExchange) -> None:
        if not self._disk_failed:
            raise InvariantBroken(f"the exchange died: {exchange.died}\n{exchange.stack}")
        self.witness.note("exchange", f"dies: {exchange.died}")

    def _bury(self, exchange: SimulatedExchange) -> None:
        if exchange is self.exchange:
            self.crash(power_loss=self.rng.random() < 0.5)

    # -- processes of agents -------------------------------------------------------------------------------------------

    def _start(self, agent: ScriptedAgent) -> None:
        name = agent.agent_id
        if agent.is_alive or not self.is_up:
            return
        if name not in self._standing:
            self._launch(agent)
        elif self._standing[name]:
            agent.start(self.new_pid(), self._standing[name])
        else:
            self._give_token(agent)

    def _give_token(self, agent: ScriptedAgent) -> None:
        """The operator makes a standing token and starts the agent with it, once he has been told that it is good."""
        token = self.new_token()

        def started(reply: Reply) -> None:
            self._standing[agent.agent_id] = token
            self._token_ids[agent.agent_id] = reply.id or ""
            self.loop.call_soon(self._start, agent)

        sha256 = hashlib.sha256(token.encode()).hexdigest()
        self.callers.issue(BOSS, "opensentience", agent.agent_id, sha256, started)

    def _start_peer(self, peer: ChiffonPeer) -> None:
        """Start one who speaks Chiffon, with a new token if it has none."""
        if not self.is_up or peer.is_alive:
            return
        if peer.token:
            peer.start()
            return
        token = self._secret("", 32)

        def started(reply: Reply) -> None:
            peer.token = token
            self._peer_tokens[peer.agent_id] = reply.id or ""
            self.loop.call_soon(peer.start)

        sha256 = hashlib.sha256(token.encode()).hexdigest()
        self.callers.issue(BOSS, "chiffon", peer.agent_id, sha256, started, peer.kind)

    def rouse(self, peer: ChiffonPeer) -> None:
        """Whatever it did, from here on it is there."""
        peer.wake_up()
        self._start_peer(peer)

    def kill_peer(self, peer: ChiffonPeer) -> None:
        """One who speaks Chiffon dies; some day it is started again."""
        peer.kill()
        self.loop.call_later(self.rng.uniform(0.1, 20.0), self._start_peer, peer)

    def revoke_peer_token(self) -> None:
        """The operator takes the token of one who speaks Chiffon back; it is told when it next says something."""
        if self._peer_tokens:
            name = self.rng.choice(list(self._peer_tokens))
            self.callers.revoke(BOSS, self._peer_tokens.pop(name))
            (peer,) = [peer for peer in self.peers if peer.agent_id == name]
            peer.token_is_revoked()

    def revoke_token(self) -> None:
        """The operator takes a standing token back; its agent is started with another one, some day."""
        if self._token_ids:
            name = self.rng.choice(list(self._token_ids))
            self.callers.revoke(BOSS, self._token_ids.pop(name))
            self._standing[name] = ""
            self.loop.call_later(self.rng.uniform(0.0, 10.0), self.agents[name].kill)

    def _launch(self, agent: ScriptedAgent) -> None:
        assert self.exchange is not None
        name, pid, token = agent.agent_id, self.new_pid(), self.new_token()
        process = ProcessIdentity(pid, pid * 7)
        run = self._runs[pid] = Run(name, f"run-{pid}", process)
        sha256 = hashlib.sha256(token.encode()).hexdigest()
        self.exchange.runner.feed([events.AgentLaunched(name, run.run_id, process, sha256, self._manifests.get(name))])
        agent.start(pid, token)

    def _agent_died(self, agent: ScriptedAgent) -> None:
        self.loop.call_soon(self._tell_of_death, agent)
        self.loop.call_later(self.rng.uniform(0.1, 6.0), self._start, agent)

    def _tell_of_death(self, agent: ScriptedAgent) -> None:
        for pid, run in list(self._runs.items()):
            if run.agent_id == agent.agent_id and pid != agent.pid:
                del self._runs[pid]
                if self.exchange is not None and self.exchange.died is None:
                    self.exchange.runner.feed([events.AgentExited(run.agent_id, run.run_id, 1, 0.5)])

    def steal(self) -> tuple[str, str] | None:
        """The name and the token of a launched agent, for somebody who should not have it."""
        launched = [agent for agent in self.agents.values() if agent.is_alive and agent.agent_id not in self._standing]
        if not launched:
            return None
        victim = self.rng.choice(launched)
        return victim.agent_id, victim.token

    def new_pid(self) -> int:
        """A process that was not there before."""
        self._pids += 1
        return self._pids

    # -- what the runner asks the supervisor ---------------------------------------------------------------------------

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Who a connecting process is."""
        del uid
        run = self._runs.get(pid)
        return Peer(f"process {pid}", ProcessIdentity(pid, pid * 7), None if run is None else run.run_id)

    def views(self) -> list[AgentView]:
        """What is to be said of each agent's process."""
        return [AgentView(run.agent_id, "opensentience", "running", pid=pid) for pid, run in self._runs.items()]

    def tool_raised(self, agent_id: str, exception: str) -> None:
        """Agents have no logs here."""

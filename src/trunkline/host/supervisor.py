"""The agents that the exchange launches itself: which of them run, under which token, and what follows when one ends.

Joins three parts: ``restart`` (pure: when to run again), ``keeper`` (a process of its own: running and ending) and the
hub, which hears ``AgentLaunched`` before the agent's program starts and ``AgentExited`` when nothing of it is left.
Owns the launch tokens; a token's value goes to its agent and is not kept. Owns the link to the keeper, too, which
processes with pipes share (``piped``). Does not own what an agent sees of the machine (``run_isolation``).

Invariant: at most one run of an agent exists at a time, and only a process of its session is told to belong to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from trunkline.config import AgentProgram
from trunkline.edges.edge import Launcher, new_bearer
from trunkline.edges.exchange import AgentAction
from trunkline.edges.piped import KeptOwner, PipedSpec
from trunkline.errors import ConfigError, SecretMissing
from trunkline.events import AgentExited, AgentLaunched, AgentStopping, Event, Noticed
from trunkline.host import isolation, processes
from trunkline.host.confinement import advice, advice_on
from trunkline.host.keeper import KILL_WAIT_S
from trunkline.host.keeper_link import KeeperLink, Report, end_leftovers, end_strays
from trunkline.host.kept import Kept, KeptPipes
from trunkline.host.launch import CANNOT_RUN, LaunchError, find_program
from trunkline.host.log_mask import mask_log
from trunkline.host.piped import PipedProcesses
from trunkline.host.restart import STOPPED_BY_HAND, State, Step, how_it_ended
from trunkline.host.run_files import forget_old_logs, last_words, new_run_id
from trunkline.host.run_isolation import RunIsolation
from trunkline.host.supervised import Agent, AgentSpec, Run, environment
from trunkline.host.watched_files import FileWatch, Looks, look_at_files
from trunkline.model import Peer, ProcessIdentity
from trunkline.secret_references import Found, may_wait
from trunkline.shown import AgentView

log = logging.getLogger("trunkline")

# After its heartbeats, which take 30 s to be missed, an agent that was there gets so long to come back.
HUNG_S: Final = 60.0
# A launch token has to be used within this time (decision 16).
NEVER_CAME_S: Final = 120.0
# An agent that fails within this time of its start may miss something that its sandbox does not show it.
SOON_S: Final = 30.0
# Of the last line of an agent that left at once.
MAX_SAID_CHARS: Final = 120
# What an agent printed before its tool's failure was told arrives in its log later: the waits between looks for it.
LOG_WAITS_S: Final = (0.1, 0.4, 1.5)
# Between two tries to get a keeper, on a machine without memory, or where one dies at once.
KEEPER_WAIT_S: Final = 1.0
# What callers are told of an agent that another configuration stops or restarts.
NOT_CONFIGURED: Final = "it is not configured any more"
# What is added where an agent cannot start in the form that was written now, and runs in the one before.
GOES_ON: Final = "; its process goes on as it was configured before"
# What is said of a program that ended well, but was never an agent.
NEVER_CONNECTED: Final = "it never connected: in Python, `agent.run()` may be missing at its end"
OTHERWISE_CONFIGURED: Final = "its configuration changed, and it is being restarted"


class Supervisor:
    """All supervised agents of one exchange. Must be used on the event loop's thread."""

    def __init__(
        self,
        home: Path,
        launcher: Launcher,
        *,
        mask: Callable[[bytes], bytes] = mask_log,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``mask`` runs in the keeper on what agents print, so it must pickle, and its module should import little."""
        self._home = home
        self._launcher = launcher
        self._mask = mask
        self._clock = clock
        self._jitter = jitter
        self._feed: Callable[[Sequence[Event]], None]
        self._know_secret: Callable[[str, str], None]
        # Lookups of secrets that take a while.
        self._looking: set[asyncio.Task[None]] = set()
        self._agents: dict[str, Agent] = {}
        self._runs: dict[str, Run] = {}
        self._by_root: dict[int, Run] = {}
        self._link: KeeperLink | None = None
        self._keeper_since = 0.0
        self._is_stopping = False
        # Commands for the next keeper, while there is none.
        self._unsent: list[dict[str, object]] = []
        # Processes that edges speak with over pipes.
        self.piped = PipedProcesses(home, launcher, self._send)
        self._replacing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._quiet = asyncio.Event()
        self.isolation = RunIsolation(home, launcher)

    # --- what the exchange asks for -----------------------------------------------------------------------------------

    async def start(
        self,
        feed: Callable[[Sequence[Event]], None],
        specs: Sequence[AgentSpec],
        know_secret: Callable[[str, str], None] = lambda _name, _secret: None,
    ) -> None:
        """Start the keeper, then the agents. Events go to ``feed``, and secrets of agents to ``know_secret``."""
        self._feed = feed
        self._know_secret = know_secret
        processes.become_subreaper()
        end_leftovers(str(self._home), self._launcher)
        await self._open_keeper()
        kept = [agent.spec for agent in self._agents.values()]
        if any(spec.isolation in {None, "sandbox"} for spec in (*specs, *kept)):
            await self.isolation.probe()
        self.reload(specs)

    def reload(self, specs: Sequence[AgentSpec]) -> dict[str, list[str]]:
        """Run these agents and no others. Equal ones go on, changed ones restart, those that do not run are started.

        What it did: the ids of those ``started``, ``restarted`` and ``stopped``; and, if there are any, those that
        ``cannot_start``, each with the reason. One that runs is not stopped for a form in which it could not start.
        """
        done: dict[str, list[str]] = {"started": [], "restarted": [], "stopped": []}
        wanted = {spec.agent_id for spec in specs}
        for agent_id in sorted(self._agents.keys() - wanted):
            agent = self._agents[agent_id]
            if agent.kept is not None and not agent.is_removed:
                # Whether it is wanted is its edge's affair.
                is_fit = agent.life.state is State.RUNNING or not self._tell_problem(agent.spec, done, is_ours=False)
                step = agent.life.retry(self._clock())
                if step is not None and is_fit:
                    done["started"].append(agent_id)
                self._perform(agent, step)
                continue
            if not agent.is_removed:
                done["stopped"].append(agent_id)
            agent.is_removed = True
            self._perform(agent, agent.life.stop(), NOT_CONFIGURED)
        for spec in specs:
            known = self._agents.get(spec.agent_id)
            if known is not None and known.spec == spec and not known.is_removed:
                is_fit = known.life.state is State.RUNNING or not self._tell_problem(spec, done)
                step = known.life.retry(self._clock())
                if step is not None and is_fit:
                    done["started"].append(spec.agent_id)
                self._perform(known, step)
                continue
            is_there = known is not None and known.life.has_process
            goes_on = known is not None and known.life.state in {State.STARTING, State.RUNNING}
            is_unfit = self._tell_problem(spec, done, more=GOES_ON if goes_on else "")
            if is_unfit and is_there:
                continue
            if not is_unfit:
                done["restarted" if is_there else "started"].append(spec.agent_id)
            agent = known or Agent(spec)
            self._agents[spec.agent_id] = agent
            agent.spec = spec
            agent.life.restart = spec.restart
            agent.is_removed = False
            self._perform(agent, agent.life.start(self._clock()), OTHERWISE_CONFIGURED)
        return done

    def _problem(self, spec: AgentSpec, *, is_ours: bool = True) -> str:
        """Why an agent could not start now; empty if it could, as far as can be told without starting it."""
        try:
            if spec.manifest is not None:
                self._launcher.read_manifest(Path(spec.manifest), spec.agent_id)
            # A keyring may ask its owner to unlock it, and is not asked for this.
            quick = {name: text for name, text in spec.env.items() if not may_wait({name: text})}
            own = Found(quick, os.environ).texts
            find_program(spec.command, spec.cwd, environment(own, {}, os.environ, is_ours=is_ours)["PATH"])
        except SecretMissing as problem:
            return f"a secret is missing: {problem}"
        except (ConfigError, LaunchError) as problem:
            return str(problem)
        return ""

    def _tell_problem(
        self, spec: AgentSpec, done: dict[str, list[str]], *, is_ours: bool = True, more: str = ""
    ) -> bool:
        problem = self._problem(spec, is_ours=is_ours)
        if problem:
            done.setdefault("cannot_start", []).append(f"{spec.agent_id}: {problem}{more}")
        return bool(problem)

    def keep(self, program: AgentProgram, owner: KeptOwner, *, edge: str, table: str) -> str:
        """Run a program for an edge: ``edges.piped.Programs``. Before ``start`` it is only noted."""
        spec, known = AgentSpec.of(program), self._agents.get(program.id)
        if known is None:
            self._agents[program.id] = known = Agent(spec)
        known.spec, known.kept, known.is_removed = spec, Kept(owner, edge, table), False
        known.life.restart = spec.restart
        if self._link is not None or self._replacing is not None:
            self._perform(known, known.life.start(self._clock()), OTHERWISE_CONFIGURED)
        return self._problem(spec, is_ours=False)

    def release(self, agent_id: str) -> None:
        """Run it no longer."""
        agent = self._agents.get(agent_id)
        if agent is not None:
            agent.is_removed = True
            self._perform(agent, agent.life.stop(), NOT_CONFIGURED)

    def steer(self, agent_id: str, action: AgentAction) -> bool:
        """Start, stop or restart one agent as it is configured; False if there is none of this id."""
        agent = self._agents.get(agent_id)
        if agent is None or agent.is_removed:
            return False
        life = agent.life
        if action == "stop":
            self._perform(agent, life.stop(), "the operator stopped it")
            life.note = f"{STOPPED_BY_HAND}; `trunkline start {agent_id}` starts it again"
        elif action == "restart" or life.state not in {State.STARTING, State.RUNNING}:
            self._perform(agent, life.start(self._clock()), "the operator has it restarted")
        return True

    def look(self, well: Collection[str]) -> None:
        """End agents that hang: their process is there, but they are not among those that are connected and well.

        What follows is decided as after a crash.
        """
        now = self._clock()
        for agent in list(self._agents.values()):
            run = agent.run
            if run is None or agent.life.state is not State.RUNNING or agent.spec.agent_id in well:
                agent.unwell_since = None
                if run is not None and agent.spec.agent_id in well:
                    run.has_come = True
                continue
            if agent.unwell_since is None:
                agent.unwell_since = now
            patience_s = HUNG_S if run.has_come else NEVER_CAME_S
            if now - agent.unwell_since >= patience_s and not run.ended_for:
                what = "was silent" if run.has_come else "did not come in"
                self._end_hanging(run, f"{what} for {patience_s:.0f} s and was ended")

    def tool_raised(self, agent_id: str, exception: str) -> None:
        """A tool failed with an exception: its log may name a path that its sandbox does not show it."""
        agent = self._agents.get(agent_id)
        run = None if agent is None else agent.run
        if run is not None and run.view is not None and not run.is_looked_at:
            run.is_looked_at = True
            self._look_at_log(run, exception, LOG_WAITS_S)

    def _look_at_log(self, run: Run, exception: str, waits_s: Sequence[float]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(waits_s[0], self._find_missed, run, exception, waits_s[1:])

    def _find_missed(self, run: Run, exception: str, waits_s: Sequence[float]) -> None:
        agent = run.agent
        if run.view is None or agent.run is not run:
            return
        printed = last_words(self._home / "logs" / agent.spec.agent_id, run.run_id)
        missed = advice_on(run.view, printed, exception, self._table_of(agent))
        if missed and missed != run.missed:
            run.missed, waits_s = missed, ()
            self._send({"do": "remark", "run_id": run.run_id, "text": missed})
        if waits_s:
            self._look_at_log(run, exception, waits_s)
        else:
            run.is_looked_at = False

    def _end_hanging(self, run: Run, why: str) -> None:
        if not run.ended_for and run.agent.run is run:
            run.ended_for = why
            self._feed([Noticed("agent.hung", "host", run.agent.spec.agent_id, why)])
            self._tell_why(run, f"it {why}")
            self._send({"do": "stop", "run_id": run.run_id, "grace_s": run.agent.spec.stop_grace_s})

    async def look_at_files(self) -> None:
        """Restart each watched agent whose files changed; one that fell is started, one stopped by hand is not."""
        watched = [agent for agent in self._agents.values() if agent.spec.watch and not agent.is_removed]
        for agent in watched:
            spec = agent.spec
            seen = await asyncio.to_thread(look_at_files, spec.command, spec.cwd, spec.manifest, str(self._home))
            self._files_seen(agent, spec, seen)

    def _files_seen(self, agent: Agent, spec: AgentSpec, seen: Looks) -> None:
        if agent.files is None or agent.spec is not spec:
            agent.files = FileWatch(seen)
            return
        is_wanted = not (agent.is_removed or self._is_stopping or agent.is_stopped_by_hand)
        if agent.files.has_changed(seen) and is_wanted:
            log.info("%s: its files changed; it is started anew", spec.agent_id)
            self._perform(agent, agent.life.start(self._clock()), "its files changed, and it is being restarted")

    async def stop_all(self, max_grace_s: float = float("inf")) -> None:
        """End every agent and the keeper. Takes no longer than the longest grace and a few seconds."""
        self._is_stopping = True
        grace_s = min(max_grace_s, max((agent.spec.stop_grace_s for agent in self._agents.values()), default=0.0))
        for agent in list(self._agents.values()):
            agent.is_removed = True
            self._perform(agent, agent.life.stop(), max_grace_s=max_grace_s)
        self._settle()
        # The keeper ends what is left after that when its socket closes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s + 2 * KILL_WAIT_S):
                await self._quiet.wait()
        await self.piped.stop(2 * KILL_WAIT_S)
        if self._replacing is not None:
            await self._replacing
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            await self._link.close()
            self._link = None
        isolation.leave_place(self._home)

    # --- what the exchange wants to know ------------------------------------------------------------------------------

    def views(self) -> list[AgentView]:
        """What is to be said of each agent's process."""
        return [
            AgentView(
                agent_id=agent_id,
                edge=self._launcher.edge if agent.kept is None else agent.kept.edge,
                state=agent.life.state.value,
                pid=agent.run.process.pid if agent.run is not None and agent.run.process is not None else None,
                run_id=agent.run.run_id if agent.run is not None else None,
                restarts=agent.life.restarts,
                isolation="" if agent.isolation is None else agent.isolation.name,
                note=agent.life.note or ("" if agent.run is None else agent.run.missed),
            )
            for agent_id, agent in self._agents.items()
        ]

    def warnings(self) -> list[str]:
        """Agents that run without isolation though nobody said that they may, in one line."""
        given = {agent_id: agent.isolation for agent_id, agent in self._agents.items() if agent.isolation is not None}
        lacking = [agent_id for agent_id, found in given.items() if found.is_lacking]
        sandbox = self.isolation.sandbox
        if not lacking or sandbox is None:
            return []
        tables = " or ".join(dict.fromkeys(self._table_of(self._agents[agent_id]) for agent_id in lacking))
        why = f"nothing keeps these agents from the exchange's own files: no sandbox holds ({sandbox.why_not})"
        return [f'{", ".join(lacking)}: {why}; isolation = "none" in an {tables} accepts that']

    def _table_of(self, agent: Agent) -> str:
        return "[[agent]]" if agent.kept is None else agent.kept.table

    def run_of(self, pid: int, uid: int) -> str | None:
        """The launched run to whose session a process belongs, if any (decision 16)."""
        process = processes.read(pid)
        if process is None or processes.uid_of(pid) != uid:
            return None
        run = self._by_root.get(process.sid)
        if run is None or run.process is None or uid != (os.getuid() if run.uid is None else run.uid):
            return None
        leader = processes.read(process.sid)
        if not processes.in_session(process, leader, run.process.pid, run.process.start_time):
            return None
        run.has_connected = True
        return run.run_id

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Who a connecting process is. One that is gone already has no identity, and belongs to no run."""
        process = processes.read(pid)
        if process is None:
            return Peer(f"process {pid}")
        identity = ProcessIdentity(pid, process.start_time)
        return Peer(f"process {pid} started {process.start_time}", identity, self.run_of(pid, uid))

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _perform(self, agent: Agent, step: Step | None, why: str = "", *, max_grace_s: float = float("inf")) -> None:
        """``why`` is what callers of an agent that runs are told when it is stopped for this."""
        if step is Step.LAUNCH:
            self._launch(agent)
        elif step is Step.STOP and agent.run is not None:
            self._tell_why(agent.run, why)
            grace_s = min(agent.spec.stop_grace_s, max_grace_s)
            self._send({"do": "stop", "run_id": agent.run.run_id, "grace_s": grace_s})
        self._settle()

    def _tell_why(self, run: Run, why: str) -> None:
        if why:
            self._feed([AgentStopping(run.agent.spec.agent_id, run.run_id, why)])

    def _launch(self, agent: Agent) -> None:
        run_id = new_run_id(time.time())
        token = new_bearer()  # OS-135
        agent.run = run = Run(run_id, agent, hashlib.sha256(token.encode()).hexdigest(), None)
        if may_wait(agent.spec.env):
            task = asyncio.get_running_loop().create_task(self._launch_later(run, token))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
            return
        try:
            found = Found(agent.spec.env, os.environ)
        except SecretMissing as problem:
            self._lacks_secret(run, problem)
            return
        self._launch_with(run, token, found)

    async def _launch_later(self, run: Run, token: str) -> None:
        """A keyring may ask its owner to unlock it: nobody else waits for that."""
        try:
            found = await asyncio.to_thread(Found, run.agent.spec.env, os.environ)
        except SecretMissing as problem:
            self._lacks_secret(run, problem)
            return
        if run.agent.life.state is State.STARTING:
            self._launch_with(run, token, found)
        else:
            self._end(run, 0, "")

    def _lacks_secret(self, run: Run, problem: SecretMissing) -> None:
        # Another try would find the same.
        run.agent.life.give_up()
        self._end(run, CANNOT_RUN, f"a secret is missing: {problem}")

    def _launch_with(self, run: Run, token: str, found: Found) -> None:
        agent, run_id = run.agent, run.run_id
        spec, launcher = agent.spec, self._launcher
        for name, secret in found.secrets:
            self._know_secret(name, secret)
        given = {launcher.run_variable: run_id, launcher.home_variable: str(self._home)}
        if agent.kept is None:
            given = launcher.environment(spec.agent_id, run_id, token)
        else:
            run.pipes = self._pipes_of(run, agent.kept)
            token = ""
        try:
            if spec.manifest is not None:
                run.manifest = launcher.read_manifest(Path(spec.manifest), spec.agent_id)
            others = [other.spec for other in self._agents.values() if other is not agent]
            env, plan = self.isolation.of(run, found.texts, given, others)
        except (ConfigError, LaunchError) as problem:
            self._end(run, CANNOT_RUN, str(problem))
            return
        except OSError as problem:
            self._end(run, CANNOT_RUN, f"what it may see cannot be worked out: {problem}")
            return
        logs = self._home / "logs" / spec.agent_id
        forget_old_logs(logs)
        self._runs[run_id] = run
        self._send(
            {
                "do": "launch",
                "run_id": run_id,
                "argv": spec.command,
                "env": env,
                "secrets": [text for text in (token, *(secret for _, secret in found.secrets)) if text],
                "cwd": spec.cwd,
                "log": str(logs / f"{run_id}.log"),
                "max_log_bytes": spec.max_log_bytes,
                "isolation": plan,
                "pipes": agent.kept is not None,
            }
        )

    def _pipes_of(self, run: Run, kept: Kept) -> KeptPipes:
        spec = run.agent.spec
        return KeptPipes(
            PipedSpec(spec.agent_id, spec.command, spec.cwd, stop_grace_s=spec.stop_grace_s),
            kept.owner,
            run.run_id,
            run.token_sha256,
            self._send,
            hung=lambda why: self._end_hanging(run, why),
            over=lambda code, reason: self._end(run, code, reason),
        )

    def _on_report(self, report: Report) -> None:
        run = self._runs.get(report["run_id"])
        if run is None:
            self.piped.on_report(report)
            return
        if report["report"] != "launched":
            # One that hung did not end well, whatever it says in the end.
            code = report.get("code", CANNOT_RUN) or (-signal.SIGTERM if run.ended_for else 0)
            reason = run.ended_for or report["reason"]
            if run.pipes is None:
                self._end(run, code, reason)
            else:
                run.pipes.exited(code, reason)
            return
        agent = run.agent
        run.began_at = self._clock()
        run.process = ProcessIdentity(report["pid"], report["start_time"])
        self._by_root[run.process.pid] = run
        agent.life.launched()
        # The hub knows the token before the program that has it runs; one that is stopped already never runs.
        self._feed([AgentLaunched(agent.spec.agent_id, run.run_id, run.process, run.token_sha256, run.manifest)])
        if run.pipes is not None:
            run.pipes.launched(run.process, report["pipes"], is_wanted=agent.life.state is State.RUNNING)
        elif agent.life.state is State.RUNNING:
            self._send({"do": "go", "run_id": run.run_id})

    def _end(self, run: Run, code: int, reason: str) -> None:
        """A run is over, or could not begin."""
        agent = run.agent
        self._runs.pop(run.run_id, None)
        agent.run = None
        now, logs = self._clock(), self._home / "logs" / agent.spec.agent_id
        if code and run.view is not None and not run.ended_for and now - run.began_at < SOON_S:
            missed = advice(run.view, last_words(logs, run.run_id), self._table_of(agent))
            reason = f"{reason or how_it_ended(code)}; {missed}" if missed else reason
        elif code == 0 and not reason and now - run.began_at < SOON_S:
            # It left at once and found nothing wrong with that: its own last words say why.
            lines = [line.strip() for line in last_words(logs, run.run_id).splitlines()]
            said = next((line for line in reversed(lines) if line.isprintable() and line), "")
            reason = f"{how_it_ended(code)}, saying: {said[:MAX_SAID_CHARS]}" if said else reason
        if code == 0 and agent.kept is None and agent.life.state is State.RUNNING and not run.has_connected:
            reason = f"{reason or how_it_ended(code)}; {NEVER_CONNECTED}"
        step = agent.life.ended(code, reason, now, self._jitter())
        note = agent.life.note or reason or how_it_ended(code)
        if run.process is None:
            self._feed([Noticed("agent.not_launched", "host", agent.spec.agent_id, note)])
        else:
            if self._by_root.get(run.process.pid) is run:
                del self._by_root[run.process.pid]
            restart_in_s = 0.0 if step is Step.LAUNCH else None
            if agent.life.wake_at is not None:
                restart_in_s = agent.life.wake_at - now
            self._feed([AgentExited(agent.spec.agent_id, run.run_id, code, restart_in_s, note)])
        ended_by_itself = agent.life.state is State.STOPPED and agent.life.note and not agent.is_stopped_by_hand
        if agent.life.state in {State.CRASHED, State.BACKOFF} or ended_by_itself:
            more = "" if run.process is None else f"; see `trunkline logs {agent.spec.agent_id}`"
            log.warning("%s does not run: %s%s", agent.spec.agent_id, note, more)
        self._perform(agent, step)

    def _settle(self) -> None:
        """After each change: forget removed agents, set the one timer, and say whether anything runs."""
        self._agents = {
            agent_id: agent
            for agent_id, agent in self._agents.items()
            if not agent.is_removed or agent.life.has_process
        }
        if any(agent.life.has_process for agent in self._agents.values()):
            self._quiet.clear()
        else:
            self._quiet.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [agent.life.wake_at for agent in self._agents.values() if agent.life.wake_at is not None]
        if times:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, min(times) - self._clock()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        for agent in list(self._agents.values()):
            self._perform(agent, agent.life.wake(self._clock()))
        self._settle()

    # --- the keeper ---------------------------------------------------------------------------------------------------

    def _send(self, command: dict[str, object]) -> None:
        if self._link is None:
            self._unsent.append(command)
        else:
            self._link.send(command)

    async def _open_keeper(self) -> None:
        link = KeeperLink(self._on_report, self._on_keeper_lost)
        await link.open(self._mask, self._launcher.run_variable)
        self._link = link
        self._keeper_since = self._clock()
        commands, self._unsent = self._unsent, []
        for command in commands:
            link.send(command)

    def _on_keeper_lost(self) -> None:
        self._link = None
        lost = list(self._runs.values())
        self._replacing = asyncio.get_running_loop().create_task(self._replace_keeper(lost))

    async def _replace_keeper(self, lost: Sequence[Run]) -> None:
        """The keeper was killed, and the agents with it: end what they left, say so, and get another keeper."""
        roots = [run.process for run in lost if run.process is not None]
        await end_strays([*roots, *self.piped.identities()])
        self.piped.keeper_lost()
        self._feed([Noticed("host.keeper_lost", "host", detail=f"{len(lost)} agents ended with it")])
        for run in lost:
            reason = "the process that keeps the agents was killed"
            if run.pipes is None:
                self._end(run, -signal.SIGKILL, reason)
            else:
                run.pipes.exited(-signal.SIGKILL, reason)
        wait_s = KEEPER_WAIT_S if self._clock() - self._keeper_since < KEEPER_WAIT_S else 0.0
        while self._link is None and not self._is_stopping:
            await asyncio.sleep(wait_s)
            wait_s = KEEPER_WAIT_S
            with contextlib.suppress(OSError):
                await self._open_keeper()

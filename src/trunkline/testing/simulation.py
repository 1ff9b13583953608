"""``simulate(seed)``: the whole system on a fake clock, disk and network, with everything that can go wrong.

Agents and people call, repeat, cancel and answer; agents die, hang and misbehave; connections break; rules, clocks and
definitions change; the exchange is killed, loses its power in the middle of a write, finds its disk broken, and is
started again. After each step the hub's own invariants are checked. In the end everything falls silent, and the record
is held against what was seen from outside (``promises``).

Invariant: everything random comes from one ``Random(seed)``: same seed, same ledger, byte for byte.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from random import Random
from typing import Final

from trunkline import events
from trunkline.edges.chiffon.messages import WorkRequest
from trunkline.edges.opensentience.agent_events import Called
from trunkline.effects import Reply
from trunkline.errors import InvariantBroken, LedgerError
from trunkline.model import HubSettings, Principal, Status
from trunkline.testing import spaces
from trunkline.testing.agents import Job, ScriptedAgent, Thief
from trunkline.testing.chiffon import Plan, Worker
from trunkline.testing.choices import Choices
from trunkline.testing.disk import Failure
from trunkline.testing.ending import figures, findings, forgetting, ledger_sha256, on_record
from trunkline.testing.exchange import SimulatedExchange
from trunkline.testing.policies import OPEN, POLICIES
from trunkline.testing.promises import Breach
from trunkline.testing.story import SimulationFailed, Story, involved
from trunkline.testing.witness import Request, SpaceRun
from trunkline.testing.world import APPROVAL_S, BOSS, CHECKER, PEOPLE, WORK_TYPES, World, tools_of

__all__ = ["STEPS", "simulate"]

# Enough for several crashes and policies, few enough for several simulations in a second.
STEPS: Final = 120
# Longer than any deadline, patience, question or silence lasts.
QUIET_S: Final = 150.0
# An exchange that is down or dying is up again within so many seconds.
UP_WITHIN_S: Final = 8
# How long a step is followed by nothing new: most are close to each other, some far apart.
PAUSES_S: Final = (((0.0, 0.0), 3), ((0.0, 0.02), 8), ((0.0, 0.5), 6), ((0.5, 6.0), 3), ((6.0, 35.0), 1))
# In the end: for questions to be answered, and for calls to come back over the slowest disk and network.
ROLL_CALL_S: Final = 12


def simulate(seed: int, steps: int = STEPS) -> Story:
    """Run one simulation; ``SimulationFailed``, whose text is the story, if a promise was broken."""
    simulation = Simulation(seed, steps)
    try:
        return simulation.run()
    finally:
        simulation.close()


class Simulation:
    """One run. ``actions`` are what can happen, and how often."""

    def __init__(self, seed: int, steps: int) -> None:
        self._seed = seed
        self._steps = steps
        self.world = World(seed, self._job, self._plan)
        self.rng: Random = self.world.rng
        self.choices = Choices(self.world)
        self._sent = 0
        self._directives: list[tuple[str, str]] = []
        self._complaints = _Complaints()
        self.actions: dict[Callable[[], None], float] = {
            self._person_calls: 30,
            self._agent_calls: 16,
            self._somebody_repeats: 10,
            self._somebody_cancels: 6,
            self._somebody_leaves: 2,
            self._somebody_looks: 6,
            self._person_answers: 18,
            self._person_states_intent: 3,
            self._agent_wishes: 1,
            self._agent_dies: 3,
            self._agent_hangs: 1,
            self._agent_changes: 5,
            self._connection_breaks: 3,
            self._rules_change: 3,
            self._token_is_revoked: 0.7,
            self._thief_knocks: 1,
            self._clock_jumps: 2,
            self._snapshot_is_taken: 2,
            self._exchange_crashes: 3,
            self._exchange_crashes_after_a_look: 1,
            self._disk_breaks: 1,
            self._disk_fills: 0.7,
            self._exchange_stops: 0.7,
        }

        if self.world.has_chiffon:
            self.actions |= {
                self._orchestrator_gives_work: 25,
                self._orchestrator_repeats: 6,
                self._peer_dies: 2,
                self._peer_is_cut_off: 3,
                self._peer_falls_silent: 2,
                self._peer_token_is_revoked: 0.7,
            }

        if self.world.topics is not None:
            self.actions |= {self.world.topics.publish: 25, self.world.topics.change: 25}

        if self.world.ossa is not None:
            ossa = self.world.ossa
            self.actions |= {ossa.ask: 25, ossa.repeat: 12, ossa.somebody_goes: 4}

        if self.world.nostr is not None:
            nostr = self.world.nostr
            self.actions |= {nostr.ask: 20, nostr.repeat: 10, nostr.take_back: 4}

        if self.world.console is not None:
            self.actions[self.world.console.visit] = 25

        if self.world.pylon is not None:
            self.actions |= {self.world.pylon.ask: 30, self.world.pylon.leave: 3}

        if self.world.has_spaces:
            self.actions |= {
                self._person_sends_operations: 20,
                self._person_looks_at_a_run: 14,
                self._person_resumes_a_run: 8,
            }

    def _job(self, agent: ScriptedAgent, called: Called) -> Job:
        return self.choices.job(agent, called)

    def _plan(self, worker: Worker, request: WorkRequest) -> Plan:
        return self.choices.plan(worker, request)

    def close(self) -> None:
        """Let go of the disk."""
        exchange = self.world.exchange
        if exchange is not None:
            exchange.abandon()
        self.world.setup.disk.close()

    def run(self) -> Story:
        """All of it."""
        with self._complaints:
            try:
                self._play()
                breaches = list(findings(self.world, self._complaints.texts))
                story = self._story(ledger_sha256(self.world.setup))
                if not breaches:
                    breaches = list(forgetting(self.world))
            except (InvariantBroken, LedgerError) as exc:
                raise SimulationFailed(self._story(), [Breach(f"{type(exc).__name__}: {exc}")]) from exc
        if breaches:
            raise SimulationFailed(story, breaches, on_record(self.world.setup, involved(breaches)))
        return story

    def _play(self) -> None:
        world = self.world
        world.start_exchange()
        world.loop.run_for(self.rng.uniform(0.0, 1.0))
        actions, weights = list(self.actions), list(self.actions.values())
        for _ in range(self._steps):
            with world.under_power():
                if world.is_up:
                    self.rng.choices(actions, weights)[0]()
            self._pass_time()
        self._fall_silent()

    def _pass_time(self) -> None:
        (bounds,) = self.rng.choices([bounds for bounds, _ in PAUSES_S], [weight for _, weight in PAUSES_S])
        self._run_until(self.world.loop.time() + self.rng.uniform(*bounds))

    def _run_until(self, moment: float) -> None:
        world = self.world
        while True:
            with world.under_power():
                world.loop.run_until(moment)
                world.look()
                return
            # The power went: what is left of this time passes without it.

    def _fall_silent(self) -> None:
        """Nothing new happens, nothing breaks any more, and everybody does what they should."""
        world = self.world
        self.choices.is_quiet = True
        if world.ossa is not None:
            world.ossa.is_quiet = True
        if world.nostr is not None:
            world.nostr.is_quiet = True
        if world.workers_of_jobs is not None:
            world.workers_of_jobs.is_quiet = True
        if world.pylon is not None:
            world.pylon.is_quiet = True
        world.cut_power_after(0)
        world.setup.disk.heal()
        # First it has to be up: it may be dying of what was broken before.
        for seconds in (*(1.0,) * UP_WITHIN_S, QUIET_S):
            self._run_until(world.loop.time() + seconds)
        if world.exchange is None or world.exchange.died is not None or not world.is_up:
            raise InvariantBroken("the exchange did not come back")
        # What an agent is asked about itself is asked again whenever it comes back.
        for question in world.exchange.views.questions():
            if question.subject == "call":
                world.witness.defect(f"a question about a call stays open for ever: {question.approval_id}")
        self._call_the_roll(world.exchange)
        world.wait_for_disk()

    def _call_the_roll(self, exchange: SimulatedExchange) -> None:
        """Whatever happened is over: everybody is there, and every tool can be called."""
        world = self.world
        world.witness.note("exchange", "calls the roll")
        world.setup.settings = HubSettings(OPEN, approval_expire_s=APPROVAL_S)
        exchange.runner.feed([events.SettingsChanged(world.setup.settings)])
        for worker in world.workers.values():
            world.rouse(worker)
        for agent in world.agents.values():
            agent.report("ok")
            agent.offer(tools_of(agent.agent_id), replace=True)
        if world.nostr is not None:
            world.nostr.repeat_everything()
        for _ in range(ROLL_CALL_S):
            # A changed definition waits for somebody's word, some for their turn to be asked about.
            for question in exchange.views.questions():
                world.callers.answer(BOSS, question.approval_id, approved=True)
            self._run_until(world.loop.time() + 1.0)
        asked = [
            world.callers.call(BOSS, f"{name}/{tool}", b'{"n":1}')
            for name in world.agents
            for tool in ("read", "write")
        ]
        asked += [
            world.callers.call(BOSS, f"{name}/{worker.work_types[0]}", b'{"n":1}')
            for worker in world.workers.values()
            for name in (worker.agent_id, f"chiffon.{worker.kind}")
        ]
        if world.topics is not None:
            world.topics.fall_silent()
        if world.ossa is not None:
            asked += [world.callers.call(BOSS, tool_id, b'{"n":0}') for tool_id in world.ossa.tools]
            world.ossa.repeat_everything()
        if world.console is not None:
            world.console.fall_silent(exchange.views.last_entry())
        self._run_until(world.loop.time() + ROLL_CALL_S)
        for request in asked:
            outcome = request.outcome
            if outcome is None or outcome.status is not Status.SUCCEEDED:
                world.witness.defect(f"in the end {request.tool_id} cannot be called")

    def _story(self, sha256: str = "") -> Story:
        return Story(self._seed, self._steps, sha256, figures(self.world), list(self.world.witness.lines))

    # -- what people and programs do -----------------------------------------------------------------------------------

    def _person_calls(self) -> None:
        rng, world = self.rng, self.world
        who = rng.choice(PEOPLE)
        tool_id, causation_id = self.choices.tool(), None
        if tool_id.endswith("/intended") and self._directives:
            tool_id, causation_id = rng.choice(self._directives)
        wall_ms = int(world.clock.wall * 1000)
        call = functools.partial(
            world.callers.call,
            who,
            tool_id,
            self.choices.body(),
            key=f"k{rng.randrange(12)}" if rng.random() < 0.3 else None,
            timeout_ms=rng.choice([None, None, 200, 2000, 20_000]),
            expires_ms=wall_ms + rng.choice([-5, 1, 300, 5000, 30_000]) if rng.random() < 0.15 else None,
            correlation_id=self.choices.correlation(),
            causation_id=causation_id,
            announce=rng.random() < 0.4,
        )
        # Some people click twice, most of those who were told that they may do it once.
        for _ in range(2 if rng.random() < (0.15 if causation_id is None else 0.7) else 1):
            call()

    def _agent_calls(self) -> None:
        rng = self.rng
        agent = self._ready_agent()
        if agent is not None:
            agent.ask(
                self.choices.tool("" if rng.random() < 0.05 else agent.agent_id),
                self.choices.body(),
                key=f"k{rng.randrange(12)}" if rng.random() < 0.3 else None,
                timeout_ms=rng.choice([None, None, 200, 2000]),
                correlation_id=self.choices.correlation(),
            )

    def _ready_agent(self) -> ScriptedAgent | None:
        ready = [agent for agent in self.world.agents.values() if agent.is_ready]
        return self.rng.choice(ready) if ready else None

    def _somebody_repeats(self) -> None:
        """The same request once more: the answer got lost, or a program is impatient."""
        keyed = [request for request in self.world.witness.requests if request.key is not None]
        if not keyed:
            return
        request = self.rng.choice(keyed[-20:])
        agent = self.world.agents.get(request.caller.removeprefix("opensentience:"))
        if agent is not None:
            agent.ask(request.tool_id, request.input, key=request.key)
        else:
            who = next(person for person in PEOPLE if person.identity == request.caller)
            self.world.callers.call(who, request.tool_id, request.input, key=request.key)

    def _waiting_request(self) -> Request | None:
        waiting = [request for request in self.world.witness.requests[-40:] if request.is_waiting]
        return self.rng.choice(waiting) if waiting else None

    def _somebody_cancels(self) -> None:
        request = self._waiting_request()
        if request is None:
            return
        agent = self.world.agents.get(request.caller.removeprefix("opensentience:"))
        if agent is not None:
            agent.cancel(request)
        elif request.call_id:
            # The caller, the operator, or somebody who has no business with it.
            who = self.rng.choice([*PEOPLE, Principal(request.caller)])
            self.world.callers.cancel(who, request.call_id, f"enough of {self.world.canary()}")

    def _somebody_leaves(self) -> None:
        request = self._waiting_request()
        if request is not None:
            self.world.callers.leave(request)

    def _somebody_looks(self) -> None:
        known = [request.call_id for request in self.world.witness.requests[-30:] if request.call_id]
        if known and self.rng.random() < 0.5:
            self.world.callers.look_up(BOSS, self.rng.choice(known))
        else:
            self.world.callers.look_around(BOSS)

    def _exchange_crashes_after_a_look(self) -> None:
        """What was just read is what may not be forgotten."""
        self.world.callers.look_around(BOSS)
        self.world.crash(power_loss=True)

    def _person_answers(self) -> None:
        exchange = self.world.exchange
        questions = exchange.views.questions() if exchange is not None else []
        if self.rng.random() < 0.8:
            questions = [question for question in questions if question.subject == "call"] or questions
        if questions:
            who = self.rng.choice([BOSS, BOSS, CHECKER, self.rng.choice(PEOPLE)])
            question = self.rng.choice(questions)
            approved = self.rng.random() < 0.7
            self.world.callers.answer(who, question.approval_id, approved=approved, reason="as seen")

    def _person_states_intent(self) -> None:
        agent = self.rng.choice(list(self.world.agents))
        tool_id = f"{agent}/intended"

        def stated(reply: Reply) -> None:
            self._directives.append((tool_id, reply.id or ""))

        self.world.callers.state(BOSS, tool_id, stated, "it is needed")

    def _agent_wishes(self) -> None:
        agent = self._ready_agent()
        if agent is not None:
            agent.wish(f"{self.rng.choice(list(self.world.agents))}/intended")

    # -- who speaks Chiffon --------------------------------------------------------------------------------------------

    def _orchestrator_gives_work(self) -> None:
        rng = self.rng
        giver = rng.choice(list(self.world.orchestrators.values()))
        worker = rng.choice(list(self.world.workers.values()))
        if giver.is_alive:
            pinned = worker.agent_id if rng.random() < 0.2 else ""
            giver.give(worker.kind, rng.choice(WORK_TYPES), b'{"n":%d}' % rng.randrange(3), pinned)

    def _orchestrator_repeats(self) -> None:
        giver = self.rng.choice(list(self.world.orchestrators.values()))
        if giver.works:
            giver.repeat(self.rng.choice(list(giver.works.values())[-10:]))

    def _peer_dies(self) -> None:
        self.world.kill_peer(self.rng.choice(self.world.peers))

    def _peer_is_cut_off(self) -> None:
        peer = self.rng.choice(self.world.peers)
        self.world.witness.note(peer.agent_id, "loses what was on its way to it")
        peer.lose_next() if self.rng.random() < 0.5 else peer.cut()

    def _peer_falls_silent(self) -> None:
        self.rng.choice(self.world.peers).fall_silent(self.rng.uniform(1.0, 70.0))

    def _peer_token_is_revoked(self) -> None:
        self.world.revoke_peer_token()

    # -- who uses spaces -----------------------------------------------------------------------------------------------

    def _person_sends_operations(self) -> None:
        rng, world = self.rng, self.world
        self._sent += 1
        # Three questions after each other expire within the quiet at the end.
        kinds = rng.choices(spaces.KINDS, k=rng.randint(1, 3))
        operations = [
            spaces.operation(kind, f"m{self._sent}-{number}", rng.randrange(3)) for number, kind in enumerate(kinds)
        ]
        space = rng.choice(world.workspaces).name
        who = rng.choice(PEOPLE)
        world.space_users.submit(who, space, operations, rng.choice([0, 0, 2, 30]), stops=rng.random() < 0.2)

    def _some_run(self) -> SpaceRun | None:
        open_runs = [run for run in self.world.witness.runs.values() if not run.is_over]
        return self.rng.choice(open_runs[-5:]) if open_runs else None

    def _person_looks_at_a_run(self) -> None:
        run = self._some_run()
        if run is not None:
            after = self.rng.choice([0, run.seen])
            self.world.space_users.look(BOSS, run, self.rng.choice([0, 1, 20]), after)

    def _person_resumes_a_run(self) -> None:
        run = self._some_run()
        if run is not None:
            operation_id = self.rng.choice(run.operations)["id"]
            decision = "approved" if self.rng.random() < 0.7 else "denied"
            self.world.space_users.resume(self.rng.choice([BOSS, CHECKER]), run, operation_id, decision)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _agent_dies(self) -> None:
        self.rng.choice(list(self.world.agents.values())).kill()

    def _agent_hangs(self) -> None:
        self.rng.choice(list(self.world.agents.values())).hang(self.rng.uniform(1.0, 80.0))

    def _agent_changes(self) -> None:
        """It says how it is, takes a tool back, offers it again, or describes it differently."""
        rng = self.rng
        agent = self._ready_agent()
        if agent is None:
            return
        match rng.randrange(4):
            case 0:
                agent.report(rng.choice(["ok", "ok", "degraded", "unhealthy"]))
            case 1:
                agent.withdraw(rng.choice(list(agent.tools)))
            case 2:
                agent.offer(tools_of(agent.agent_id), replace=rng.random() < 0.5)
            case _:
                changed = rng.choice(tools_of(agent.agent_id, f"does something else {rng.randrange(3)}"))
                agent.offer([changed], replace=rng.random() < 0.2)

    def _connection_breaks(self) -> None:
        rng = self.rng
        agent = rng.choice(list(self.world.agents.values()))
        if rng.random() < 0.5:
            agent.reset()
        else:
            up, down = rng.choice([(True, True), (True, False), (False, True)])
            agent.cut(up=up, down=down, notice_after_s=rng.uniform(5.0, 90.0))

    def _rules_change(self) -> None:
        world = self.world
        policy = self.rng.choice(POLICIES)
        world.witness.note("exchange", f"has other rules: {policy.version}")
        world.setup.settings = world.settings(policy)
        if world.exchange is not None:
            world.exchange.runner.feed([events.SettingsChanged(world.setup.settings)])

    def _token_is_revoked(self) -> None:
        self.world.revoke_token()

    def _thief_knocks(self) -> None:
        world = self.world
        name, token = world.steal() or ("com.a", world.new_token())
        if self.rng.random() < 0.3:
            token = world.new_token()
        Thief(name, token, world.new_pid(), loop=world.loop, network=world.network, witness=world.witness)

    def _clock_jumps(self) -> None:
        seconds = self.rng.choice([-3600.0, -60.0, -0.5, 0.5, 60.0, 3600.0])
        self.world.witness.note("exchange", f"sees its wall clock jump by {seconds:g} s")
        self.world.jump(seconds)

    def _snapshot_is_taken(self) -> None:
        if self.world.exchange is not None:
            self.world.exchange.snapshot()

    def _exchange_crashes(self) -> None:
        """Now, or in the middle of the next thing it says."""
        if self.rng.random() < 0.5:
            self.world.crash(power_loss=self.rng.random() < 0.6)
        else:
            self.world.cut_power_after(self.rng.randint(1, 6))

    def _disk_breaks(self) -> None:
        kind = self.rng.choice(list(Failure))
        self.world.setup.disk.fail_at(self.rng.randint(1, 40), kind, persistent=self.rng.random() < 0.5)
        self.world.witness.note("exchange", f"has a disk that will fail: {kind.value}")

    def _disk_fills(self) -> None:
        """Full for some seconds: who asks meanwhile is refused, what runs may finish."""
        exchange = self.world.exchange
        if exchange is not None:
            exchange.runner.feed([events.StorageChanged(low=True)])
            self.world.loop.call_later(
                self.rng.uniform(0.1, 3.0), exchange.runner.feed, [events.StorageChanged(low=False)]
            )

    def _exchange_stops(self) -> None:
        self.world.stop()


class _Complaints(logging.Handler):
    """What the exchange logs as wrong while a simulation runs: none of it may be its own doing."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self._log = logging.getLogger("trunkline")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning or an error; a death is judged where it is seen, and a broken disk cannot be read."""
        if record.levelno < logging.CRITICAL and "a defect: Ledger" not in record.getMessage():
            self.texts.append(record.getMessage())

    def __enter__(self) -> None:
        self._was = self._log.propagate
        self._log.propagate = False
        self._log.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._was

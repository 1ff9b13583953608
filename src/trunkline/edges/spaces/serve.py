"""All spaces of an exchange and their runs: the rim between ``process`` and the world.

Owns the conversation of each run, the alarm for their time, and who is told when a run has something to show. Does not
own the folders that spaces are on disk (``store``), why something is so (``reasons``), nor how people ask for all this
(``routes``, ``sockets``).

Invariants: a defect met in one run ends this run with an error event, and no other. What is held for a run is bounded
by one message in each direction; a finished run is dropped from memory first, and then comes from the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, ParamSpec

from trunkline.edges.alarm import Alarm
from trunkline.edges.answers import Refused
from trunkline.edges.exchange import BaseSink, Feed, Views
from trunkline.edges.spaces import translate, undo
from trunkline.edges.spaces.agent import SpaceAgent
from trunkline.edges.spaces.messages import Undo, read_operations_message
from trunkline.edges.spaces.process import (
    PROCESS,
    Changed,
    Drop,
    Ended,
    Output,
    Run,
    Runs,
    Start,
    Submission,
    Turn,
)
from trunkline.edges.spaces.reasons import Reasons
from trunkline.edges.spaces.store import Space, SpacesFolder
from trunkline.edges.waiting import Requests, Waiting
from trunkline.effects import Deliver, ToSession
from trunkline.errors import WorkspaceError
from trunkline.events import AgentRemoved, CallFinished, Event
from trunkline.model import Now, Principal, ProcessIdentity, Status, fault, stamp
from trunkline.workspace.sandbox import Sandbox, probe

log = logging.getLogger("trunkline")

# Finished runs kept as they were: for whoever asks again soon, before the record's masked form has to do.
KEPT_RUNS: Final = 256
KEPT_BYTES: Final = 67_108_864
# What those who follow a run are told: look at it.
NEWS: Final = b""

P = ParamSpec("P")


class NotTaken(Exception):
    """An operations message of which nothing is done: the events message that says why, and its HTTP status."""

    def __init__(self, status: int, run_id: str, events: list[dict[str, Any]]) -> None:
        super().__init__(f"not taken: {status}")
        self.status = status
        self.message = translate.events_message(run_id, "error", events)


class Spaces:
    """The spaces and their runs. ``prepare`` before the exchange starts, ``start`` and ``stop`` once each."""

    def __init__(
        self,
        feed: Feed,
        views: Views,
        store: SpacesFolder,
        process: ProcessIdentity,
        version: str,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._feed = feed
        self._views = views
        self._store = store
        self._process = process
        self._version = version
        self._entropy = entropy
        self._sandbox: Sandbox | None = None
        self._is_probed = False
        self.agents: dict[str, SpaceAgent] = {}
        # One space is made or removed at a time: it may be the same one.
        self._changing = asyncio.Lock()
        self.reasons = Reasons(feed, views, self.agents)
        self.runs = Runs(self.reasons)
        self._alarm = Alarm(feed, self.runs.wake_at, self._wake)
        self._requests = Requests(feed)
        self._followers: dict[str, list[Waiting]] = {}
        self._finished: dict[str, Run] = {}
        self._finished_bytes = 0

    # -- spaces --------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Set the guards of all spaces: what was asked before a restart is judged as the exchange starts."""
        for space in self._store.load():
            self._put(space)

    def reload(self) -> list[str]:
        """Take the settings that the spaces' files say by now, and name the spaces that have others than before.

        ``ConfigError`` if one cannot be used, and all stay.
        """
        fresh = [(agent, self._store.read_again(agent.space)) for agent in self.agents.values()]
        changed = [
            (agent, space)
            for agent, space in fresh
            if (space.preset, space.policy) != (agent.space.preset, agent.space.policy)
        ]
        for agent, space in changed:
            agent.take_settings(space)
        return [space.name for _, space in changed]

    def _put(self, space: Space) -> SpaceAgent:
        agent = self.new_agent(space)
        agent.run_of, agent.shown_before = self._run_of, self.reasons.shown_before
        self.agents[space.name] = agent
        self._feed.guard(agent.agent_id, agent.guard)
        return agent

    def new_agent(self, space: Space) -> SpaceAgent:
        """The agent of a space; a simulation has its own, without files and processes."""
        return SpaceAgent(self._feed, space, self._process, self._version, self._delivered, self._entropy)

    async def start(self) -> None:
        """Attach the spaces, then go on with the runs that were open, in the order of the record."""
        for agent in self.agents.values():
            await agent.recover()
            await self._attach(agent)
        await undo.close(self._feed, self._views.open_steps(undo.PROCESS))
        recorded = self._views.open_steps(PROCESS).values()
        for started in sorted((steps[0] for steps in recorded), key=lambda step: step.n):
            session = self._converse(started.subject)
            self._guarded(session, self.runs.take_up, session, started, self.reasons.on_record)

    async def _attach(self, agent: SpaceAgent) -> None:
        """Let a space in. A sandbox is looked for once, when the first one needs it."""
        if not self._is_probed:
            self._is_probed = True
            self._sandbox = await self.find_sandbox()
        agent.sandbox = self._sandbox
        await agent.attach()

    async def find_sandbox(self) -> Sandbox | None:
        """Where commands run; None if nothing holds them here, and then ``reasons.no_shell`` says why."""
        try:
            return await probe()
        except WorkspaceError as error:
            self.reasons.no_shell = error.message
            log.warning("spaces have no shell: %s", error.message)
            return None

    def agent(self, name: str) -> SpaceAgent:
        """A space that is there."""
        found = self.agents.get(name)
        if found is None:
            raise Refused(fault("not_found", "there is no such space; `trunkline space list` shows them"))
        return found

    async def create(self, name: str, preset: str, overrides: Mapping[str, Any], at: str = "") -> SpaceAgent:
        """Make a space and attach it; ``ConfigError`` if it cannot be made of this."""
        async with self._changing:
            closed = self._views.closed()
            if closed is not None:
                raise Refused(closed)
            if name in self.agents:
                raise Refused(fault("state.conflict", f"there is a space {name} already"))
            agent = self._put(self._store.create(name, preset, overrides, at))
            try:
                await self._attach(agent)
            except TimeoutError:  # the disk is behind; the space is made, and serves as soon as its record is there
                raise Refused(fault("hub.unavailable")) from None
            return agent

    async def remove(self, name: str, by: Principal | None = None) -> None:
        """Take a space away, with its files; ``by`` wants its open runs to be ended for that."""
        async with self._changing:
            agent = self.agent(name)
            unfinished = [run for run in self.runs.open.values() if run.space == name]
            if unfinished and by is None:
                text = "runs of this space are not done: answer what they ask, wait for them, or end them (--force)"
                raise Refused(fault("state.conflict", text))
            del self.agents[name]
            if by is not None:
                # Whoever has the turn last: it goes to nobody else meanwhile.
                for run in sorted(unfinished, key=lambda run: run.state == "active"):
                    self.end(run, by)
            await agent.detach("removed")
            self._feed.feed([AgentRemoved(agent.agent_id, f"the space {name} was removed")])
            self._feed.guard(agent.agent_id, None)
            await asyncio.to_thread(self._store.remove, agent.space)

    async def undo(self, name: str, by: str, asked: Undo) -> dict[str, Any]:
        """Bring a space back to where it was before a run, or tell what that would do."""
        async with self._changing:
            agent = self.agent(name)
            active = [one.run_id for one in self.runs.open.values() if one.space == name and one.is_open]
            if active:
                text = f"the run {active[0]} is not done: wait for its end (`trunkline space show {active[0]} --wait`)"
                raise Refused(fault("state.conflict", text))
            if asked.dry_run:
                return await undo.preview(agent, asked)
            return await undo.undo(self._feed, agent, by, asked, f"undo_{self._entropy(8).hex()}")

    def _run_of(self, delivery: Deliver) -> str:
        """The run that a delivery is of; of a call that is of none, the call."""
        run = self.runs.run_of(delivery)
        return delivery.call_id if run is None else run.run_id

    async def stop(self) -> None:
        """End what still runs, and tell whoever follows a run that it goes on after the next start."""
        # A copy: the operator may remove one meanwhile.
        for agent in list(self.agents.values()):
            await agent.detach("shutdown")
        self._alarm.cancel()
        self._requests.close()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def read(self, data: bytes) -> dict[str, Any]:
        """A valid operations message; ``NotTaken`` says everything that is wrong with it."""
        result = read_operations_message(data)
        if not result["success"]:
            raise NotTaken(400, self._new_run_id(), translate.invalid(result["error"], stamp(self._feed.now().ms)))
        data_read: dict[str, Any] = result["data"]
        return data_read

    def not_taken(self, status: int, category: str, text: str, details: Mapping[str, Any] | None = None) -> NotTaken:
        """What to raise if a message is not taken for one reason."""
        event = translate.error_event(category, text, stamp(self._feed.now().ms), details)
        return NotTaken(status, self._new_run_id(), [event])

    def submit(self, space: str, caller: str, message: Mapping[str, Any]) -> Run:
        """Take on a valid message; ``NotTaken`` if all of it is denied to its caller or to one he asks for, if there is
        no room, or if too much was written on record for him.
        """
        kinds = sorted({operation["type"] for operation in message["operations"]})
        behalf = self._views.behalf(caller)
        faults = [self._views.check(caller, translate.tool_id(space, kind), None, behalf).fault for kind in kinds]
        denied = [found for found in faults if found is not None and found.code == "policy.denied"]
        if denied and len(denied) == len(kinds):
            raise self.not_taken(403, "policy", denied[0].message)
        closed = self._views.closed()
        wanted = Submission.made(space, caller, message, behalf)
        full = self.runs.refusal(wanted) if closed is None else closed.message
        if full:
            raise self.not_taken(503, "system", full)
        run_id = self._new_run_id()
        outputs = self.runs.submit(run_id, self._converse(run_id), wanted)
        run = self.runs.open[run_id]
        self._carry_out(outputs)
        if run.refused is not None:
            raise NotTaken(429, run_id, run.events)
        return run

    def end(self, run: Run, by: Principal) -> None:
        """End a run before it is done; one that is done stays as it is."""
        self._guarded(run.session, self.runs.end, run, by, self._feed.now())

    def _new_run_id(self) -> str:
        """``run_`` and 128 random bits (SP-039)."""
        return f"run_{self._entropy(16).hex()}"

    def find(self, run_id: str) -> Run | None:
        """A run: as it is, as it was, or, once memory has forgotten it, as it is on record."""
        run = self.runs.open.get(run_id) or self._finished.get(run_id)
        return run if run is not None else self._on_record(run_id)

    def _on_record(self, run_id: str) -> Run | None:
        for step in self._views.steps(PROCESS, run_id):
            if step.done:
                data = translate.decode(step.data, type=dict[str, Any])
                space, caller, events = data["space"], data["caller"], data["events"]
                return Run(run_id, 0, space, caller, [], events=events, status=data["status"], state="done")
        return None

    @contextlib.contextmanager
    def following(self, run: Run) -> Iterator[Waiting]:
        """A request that is told ``NEWS`` whenever there is something to look at."""
        with self._requests.waiting() as follower:
            followers = self._followers.setdefault(run.run_id, [])
            followers.append(follower)
            try:
                yield follower
            finally:
                followers.remove(follower)
                if not followers:
                    self._followers.pop(run.run_id, None)

    # -- their conversations -------------------------------------------------------------------------------------------

    def _converse(self, run_id: str) -> int:
        return self._feed.open_session(_RunSink(self, run_id))

    def hear(self, run_id: str, effect: ToSession, now: Now) -> None:
        """The exchange says something to a run."""
        self._carry_out(self.runs.handle(run_id, effect, now))

    def fail(self, run_id: str) -> None:
        """A defect ended the conversation of a run."""
        run = self.runs.open.get(run_id)
        if run is not None:
            self._carry_out(self.runs.fail(run, self._converse(run_id), self._feed.now()))

    def _delivered(self, delivery: Deliver) -> None:
        """A space was given something to do: now, or when the turn of its run comes."""
        run = self.runs.run_of(delivery)
        self._guarded(0 if run is None else run.session, self.runs.delivered, delivery)

    def _wake(self) -> None:
        now = self._feed.now()
        for run in self.runs.overdue(now):
            self._guarded(run.session, self.runs.time_over, run, now)

    def _guarded(self, session: int, work: Callable[P, Sequence[Output]], *args: P.args, **options: P.kwargs) -> None:
        """Do something for one run that nobody else guards."""
        try:
            self._carry_out(work(*args, **options))
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(session, error)

    def _carry_out(self, outputs: Sequence[Output]) -> None:
        happened: list[Event] = []
        turns: list[Run] = []
        for output in outputs:
            match output:
                case Start(delivery):
                    agent = self.agents.get(translate.space_of(delivery.tool_id))
                    # A space that is being removed takes on nothing more; the hub says what became of this.
                    if agent is not None:
                        agent.start(delivery)
                case Drop(delivery, problem):
                    agent = self.agents.get(translate.space_of(delivery.tool_id))
                    if agent is not None:
                        happened.append(CallFinished(agent.number, delivery.call_id, Status.FAILED, fault=problem))
                case Turn(run):
                    turns.append(run)
                case Changed(run):
                    self._tell(run)
                case Ended(run):
                    self._feed.close_session(run.session)
                    self._keep(run)
                    self._tell(run)
                case _:
                    happened.append(output)
        if happened:
            self._feed.feed(happened)
        for run in turns:
            self._guarded(run.session, self.runs.go_on, run, self._feed.now())
        self._alarm.set()

    def _tell(self, run: Run) -> None:
        for follower in self._followers.get(run.run_id, ()):
            follower.put(NEWS)

    def _keep(self, run: Run) -> None:
        """Remember a finished run for a while."""
        self._finished[run.run_id] = run
        self._finished_bytes += run.size
        while len(self._finished) > KEPT_RUNS or self._finished_bytes > KEPT_BYTES:
            oldest = self._finished.pop(next(iter(self._finished)))
            self._finished_bytes -= oldest.size


class _RunSink(BaseSink):
    """The conversation of one run."""

    __slots__ = ("_run_id", "_spaces")

    def __init__(self, spaces: Spaces, run_id: str) -> None:
        self._spaces = spaces
        self._run_id = run_id

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something."""
        self._spaces.hear(self._run_id, effect, now)

    def abort(self) -> None:
        """A defect was met here."""
        self._spaces.fail(self._run_id)

"""All spaces of an exchange, attached, and their runs: the rim between ``process`` and the world.

Owns the conversation in which runs ask for their operations, the alarm for their time, and who is told when a run has
something to show. Does not own the folders that spaces are on disk (a ``Store``), nor the routes (``routes``).

Invariant: what is held for a run is bounded by one message in each direction; a finished run is dropped from memory
first, and then comes from the record.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from trunkline.edges.exchange import BaseSink, Exchange
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.process import PROCESS, Changed, Output, Run, Runs, Start
from trunkline.edges.spaces.provider import Space, SpaceAgent
from trunkline.effects import Deliver, Reply, ToSession, Wait
from trunkline.errors import WorkspaceError
from trunkline.events import ApprovalAnswered, Event
from trunkline.model import Decision, Fault, Now, Principal, ProcessIdentity, fault, stamp
from trunkline.workspace.sandbox import Sandbox, probe

log = logging.getLogger("trunkline")

# Finished runs kept as they were: for whoever asks again soon, before the record's masked form has to do.
KEPT_RUNS: Final = 256
KEPT_BYTES: Final = 67_108_864
# An answer to a question is told as soon as it is on disk; a disk that takes longer than this is broken.
REPLY_S: Final = 30.0


class Store(Protocol):
    """Where spaces are kept."""

    def create(self, name: str, preset: str, overrides: Mapping[str, Any]) -> Space:
        """A new space; ``ConfigError`` if it cannot be made of this."""

    def remove(self, space: Space) -> None:
        """Its folder is gone after this, with everything in it."""


class Spaces(BaseSink):
    """The spaces and their runs. ``prepare`` before the exchange starts, ``start`` and ``stop`` once each."""

    def __init__(self, exchange: Exchange, store: Store, process: ProcessIdentity, version: str) -> None:
        self._exchange = exchange
        self._store = store
        self._process = process
        self._version = version
        self._sandbox: Sandbox | None = None
        self._is_probed = False
        self.no_shell = ""
        self.agents: dict[str, SpaceAgent] = {}
        self.closing = False
        self._session = exchange.open_session(self)
        self.runs = Runs(self._session, self)
        self._finished: dict[str, Run] = {}
        self._finished_bytes = 0
        self._news: dict[str, asyncio.Event] = {}
        self._replies: dict[str, asyncio.Future[Reply]] = {}
        self._refs = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    # -- spaces --------------------------------------------------------------------------------------------------------

    def prepare(self, spaces: Iterable[Space]) -> None:
        """Set the guards of all spaces: what was asked before a restart is judged as the exchange starts."""
        for space in spaces:
            self._put(space)

    def _put(self, space: Space) -> SpaceAgent:
        agent = SpaceAgent(self._exchange, space, self._process, self._version, gate=self._gate)
        self.agents[space.name] = agent
        self._exchange.guard(agent.agent_id, agent.guard)
        return agent

    async def start(self) -> None:
        """Attach the spaces, then go on with the runs that were open."""
        for agent in self.agents.values():
            await agent.attach(await self._find_sandbox())
        recorded = self._exchange.open_steps(PROCESS)
        self._carry_out(self.runs.take_up(recorded, self._carried_out, self._exchange.now()))

    async def _find_sandbox(self) -> Sandbox | None:
        """Look for a sandbox once, when the first space needs it."""
        if not self._is_probed:
            self._is_probed = True
            try:
                self._sandbox = await probe()
            except WorkspaceError as error:
                self.no_shell = error.message
                log.warning("spaces have no shell: %s", error.message)
        return self._sandbox

    async def create(self, name: str, preset: str, overrides: Mapping[str, Any]) -> Space:
        """Make a space and attach it; ``ConfigError`` if it cannot be made of this."""
        space = self._store.create(name, preset, overrides)
        await self._put(space).attach(await self._find_sandbox())
        return space

    def refusal_to_remove(self, name: str) -> Fault | None:
        """Why a space cannot be removed now."""
        if any(run.space == name for run in self.runs.open.values()):
            text = "runs of this space are not done: answer what they ask, or wait for them"
            return fault("state.conflict", text)
        return None

    async def remove(self, name: str) -> None:
        """Take a space away, with its files."""
        agent = self.agents.pop(name)
        await agent.detach("removed")
        self._exchange.guard(agent.agent_id, None)
        await asyncio.to_thread(self._store.remove, agent.space)

    async def stop(self) -> None:
        """End what still runs, and tell whoever follows a run that it goes on after the next start."""
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        for agent in self.agents.values():
            await agent.detach("shutdown")
        for news in self._news.values():
            news.set()
        self._news.clear()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def new_run_id(self) -> str:
        """``run_`` and 128 random bits (SP-039)."""
        return f"run_{secrets.token_hex(16)}"

    def refusal(self, space: str, caller: str, message: Mapping[str, Any]) -> tuple[str, str] | None:
        """Why a run is not taken on at all: an error category and a text."""
        kinds = sorted({operation["type"] for operation in message["operations"]})
        verdicts = [self._exchange.check(caller, translate.tool_id(space, kind), None) for kind in kinds]
        denied = [found for found in verdicts if found.fault is not None and found.fault.code == "policy.denied"]
        if denied and len(denied) == len(verdicts):
            assert denied[0].fault is not None
            return "policy", denied[0].fault.message
        full = self.runs.refusal(space)
        return ("system", full) if full else None

    def submit(self, space: str, caller: str, message: Mapping[str, Any]) -> Run:
        """Take on a valid message."""
        run_id = self.new_run_id()
        outputs = self.runs.submit(run_id, space, caller, message)
        run = self.runs.open[run_id]
        self._carry_out(outputs)
        return run

    def find(self, run_id: str) -> Run | None:
        """A run: as it is, as it was, or, once memory has forgotten it, as it is on record."""
        run = self.runs.open.get(run_id) or self._finished.get(run_id)
        return run if run is not None else self._on_record(run_id)

    def _on_record(self, run_id: str) -> Run | None:
        for step in self._exchange.steps(PROCESS, run_id):
            if step.done:
                data = translate.decode(step.data, type=dict[str, Any])
                return Run(
                    run_id,
                    data["space"],
                    data["caller"],
                    [],
                    events=data["events"],
                    status=data["status"],
                    state="done",
                )
        return None

    def news(self, run: Run) -> asyncio.Event:
        """What is set when there is something to look at. Ask for it before looking, and nothing is missed."""
        found = self._news.setdefault(run.run_id, asyncio.Event())
        if self.closing:
            found.set()
        return found

    async def answer(self, approval_id: str, by: Principal, *, approved: bool, reason: str) -> Fault | None:
        """A person answers what a run asked; why not, if that is so."""
        ref = f"answer-{next(self._refs)}"
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[ref] = waiting
        try:
            self._exchange.feed([ApprovalAnswered(self._session, ref, by, approval_id, approved, reason)])
            async with asyncio.timeout(REPLY_S):
                return (await waiting).fault
        except TimeoutError:
            return fault("hub.unavailable")
        finally:
            del self._replies[ref]

    # -- the sink of the runs ------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something to a run."""
        if isinstance(effect, Reply) and (waiting := self._replies.get(effect.ref)) is not None:
            if not waiting.done():
                waiting.set_result(effect)
            return
        self._carry_out(self.runs.handle(effect, now))

    def _gate(self, deliver: Deliver) -> None:
        """A space was given something to do: now, or when the turn of its run comes."""
        now = self._exchange.now()
        self._carry_out(self.runs.delivered(deliver.key, deliver.caller, deliver.call_id, now))

    def _carry_out(self, outputs: Sequence[Output]) -> None:
        happened: list[Event] = []
        for output in outputs:
            if isinstance(output, Start):
                for agent in self.agents.values():
                    agent.start(output.call_id)
            elif isinstance(output, Changed):
                self._tell(output.run_id)
            else:
                happened.append(output)
        if happened:
            self._exchange.feed(happened)
        self._set_timer()

    def _tell(self, run_id: str) -> None:
        news = self._news.pop(run_id, None)
        if news is not None:
            news.set()

    def _set_timer(self) -> None:
        at = self.runs.wake_at()
        if at == self._timer_at or self.closing:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at or 0.0
        if at is not None:
            delay = max(0.0, at - self._exchange.now().mono)
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, 0.0
        self._carry_out(self.runs.woke(self._exchange.now()))

    # -- what runs are told of the world -------------------------------------------------------------------------------

    def ended(self, run: Run) -> None:
        """Remember a finished run for a while."""
        self._finished[run.run_id] = run
        self._finished_bytes += run.size
        while len(self._finished) > KEPT_RUNS or self._finished_bytes > KEPT_BYTES:
            oldest = self._finished.pop(next(iter(self._finished)))
            self._finished_bytes -= oldest.size

    def why(self, run: Run, operation: Mapping[str, Any], wait: Wait) -> translate.Why:
        """Why a person is asked: by the space's rules, or else by those of the exchange."""
        question = next((q for q in self._exchange.questions() if q.approval_id == wait.approval_id), None)
        tool_id, body = translate.tool_id(run.space, operation["type"]), translate.tool_input(operation)
        agent = self.agents.get(run.space)
        own = None if agent is None else agent.judge(tool_id, body)
        if own is not None and own.decision is Decision.ASK:
            rule, reason, suggestion = own.rule, own.reason, own.suggestion
        else:
            rule, suggestion = self._exchange.check(run.caller, tool_id, None).rule, None
            reason = "" if question is None else question.reason
        return translate.Why(
            rule,
            reason,
            stamp(self._exchange.now().ms) if question is None else question.asked_at,
            wait.approval_id or "",
            None if wait.expires_ms is None else stamp(wait.expires_ms),
            suggestion,
        )

    def denial(self, run: Run, operation: Mapping[str, Any]) -> Fault | None:
        """Why such an operation would be refused now, if it would."""
        tool_id = translate.tool_id(run.space, operation["type"])
        return self._exchange.check(run.caller, tool_id, translate.tool_input(operation)).fault

    def _carried_out(self, run_id: str) -> set[int]:
        """Which operations of a run became calls, by what is on record of it."""
        found = set()
        caller = self.runs.open[run_id].caller
        for line in self._exchange.entries(correlation_id=run_id):
            entry = _read_keyed(line)
            owner, _, index = (entry.key or "").rpartition("/")
            # Correlations and keys are the callers' to choose: somebody else's say nothing about this run.
            if owner == run_id and entry.caller == caller and index.isdecimal():
                found.add(int(index))
        return found


class _Keyed(msgspec.Struct):
    """Of an entry, the key and whose it is."""

    key: str | None = None
    caller: str = ""


_read_keyed: Final = msgspec.json.Decoder(_Keyed).decode

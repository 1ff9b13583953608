"""Runs: an operations message on its way, which outlives the connection it came on and the exchange it came to.

Pure. A run is on record by one step ``started`` (space, caller, message) and one ``ended`` (status, events). Between
the two it holds nothing durable: each operation is an ordinary call with the key ``<run>/<index>``, so after a restart
the run asks for all of them again, and the record answers what was done. Owns the order of operations, whose turn it
is in a space, and a run's time; does not own policy, approvals or retries (the hub) or what an operation does.

Invariant: at most one run of a space is active. A run that waits for a person holds no turn, and what was approved
meanwhile is carried out when the turn comes back to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

from msgspec import Raw, Struct

from trunkline.edges.spaces import translate
from trunkline.edges.spaces.messages import DEFAULT_TIMEOUT_MS, MAX_MESSAGE_BYTES
from trunkline.effects import Answer, Reply, ToSession, Wait
from trunkline.entries import ProcessStep
from trunkline.events import CallRequested, CancelRequested, Event, ProcessStepped
from trunkline.model import Fault, Now, Principal, stamp

PROCESS: Final = "spaces.run"
# Runs of one space that wait for their turn; above it a caller is told to come again (decision 37).
MAX_QUEUED: Final = 16
# Runs of one space that are not done, most of them waiting for a person: each is held in memory.
MAX_OPEN: Final = 256
# The messages and events of all runs that are not done. A message is held twice, here and in the hub's state.
MAX_OPEN_BYTES: Final = 268_435_456
# What the exchange itself may take, besides the operations (decision 38).
SLACK_MS: Final = 5000
# A command's timeout is capped by policy; a run's time need not be longer.
LONGEST_TIMEOUT_MS: Final = 600_000
# An event without content has at most this; such events are always told.
SMALL_EVENT_BYTES: Final = 4096
TOO_LARGE: Final = f"The events of this run are larger than {MAX_MESSAGE_BYTES} bytes; read it in another run"

State = Literal["recording", "queued", "active", "paused", "ending", "done", "left"]


class Asked(Struct, frozen=True):
    """The question that a paused run waits for."""

    approval_id: str
    operation_id: str


class Run(Struct, eq=False):
    """One run. ``left``: the exchange is stopping; the run goes on after its next start."""

    run_id: str
    space: str
    caller: str
    operations: list[dict[str, Any]]
    stop_on_error: bool = False
    events: list[dict[str, Any]] = []
    # Of its events so far, and of its message.
    size: int = 0
    message_bytes: int = 0
    index: int = 0
    state: State = "recording"
    status: str = "completed"
    asked: Asked | None = None
    # A delivery that waits for the run's turn.
    held: str | None = None
    # What is left of its time, and when that ends while it is active.
    seconds: float = 0.0
    deadline: float = 0.0
    # Operations that were refused before a restart: they are not asked for again after later ones were carried out.
    refused_before: frozenset[int] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether it may still do something by itself."""
        return self.state in {"recording", "queued", "active", "ending"}

    @property
    def shown_status(self) -> str:
        """The protocol's word for where it stands."""
        return "awaiting_approval" if self.state == "paused" else self.status


class Start(Struct, frozen=True):
    """A delivery may be carried out now."""

    call_id: str


class Changed(Struct, frozen=True):
    """Whoever follows this run has something to look at."""

    run_id: str


Output = Event | Start | Changed


class Surroundings(Protocol):
    """What a run has to be told about the world."""

    def why(self, run: Run, operation: Mapping[str, Any], wait: Wait) -> translate.Why:
        """Why a person is asked."""

    def denial(self, run: Run, operation: Mapping[str, Any]) -> Fault | None:
        """Why such an operation would be refused now, if it would."""

    @property
    def no_shell(self) -> str:
        """Why there is no shell here; empty if there is one."""

    def ended(self, run: Run) -> None:
        """The end of a run is on record."""


def time_of(operations: list[dict[str, Any]]) -> float:
    """How many seconds a run may be active: what its operations may take, and some (decision 38)."""
    total = SLACK_MS
    for operation in operations:
        if operation["type"] == "shell":
            total += min(operation["timeout"], LONGEST_TIMEOUT_MS)
        elif operation["type"] != "message":
            total += DEFAULT_TIMEOUT_MS
    return total / 1000


class Runs:
    """All runs that are not done."""

    def __init__(self, session: int, around: Surroundings) -> None:
        self._session = session
        self._around = around
        self.open: dict[str, Run] = {}
        self._active: dict[str, Run] = {}
        self._queues: dict[str, deque[Run]] = {}
        self._out: list[Output] = []

    def _take(self) -> list[Output]:
        out, self._out = self._out, []
        return out

    # -- the beginning -------------------------------------------------------------------------------------------------

    def refusal(self, space: str) -> str:
        """Why this space takes no more runs now; empty if it does."""
        if sum(run.message_bytes + run.size for run in self.open.values()) >= MAX_OPEN_BYTES:
            return "the runs that are not done hold too much memory; answer what they ask, or try again later"
        here = [run for run in self.open.values() if run.space == space]
        if sum(run.state in {"recording", "queued"} for run in here) >= MAX_QUEUED:
            return f"{MAX_QUEUED} runs wait for their turn in this space; try again later"
        if len(here) >= MAX_OPEN:
            return f"{MAX_OPEN} runs of this space are not done; answer what they ask, or try again later"
        return ""

    def submit(self, run_id: str, space: str, caller: str, message: Mapping[str, Any]) -> list[Output]:
        """Take on a message that was found valid. It starts once it is on record."""
        run = self._add(run_id, space, caller, message)
        data = Raw(translate.encode({"space": space, "caller": caller, "message": message}))
        run.message_bytes = len(memoryview(data))
        self._out.append(ProcessStepped(self._session, f"{run_id}/started", PROCESS, run_id, "started", data))
        return self._take()

    def take_up(
        self, recorded: Mapping[str, list[ProcessStep]], carried_out: Callable[[str], set[int]], now: Now
    ) -> list[Output]:
        """After a restart: go on with what was open. ``carried_out`` tells which operations of a run became calls."""
        for run_id, steps in sorted(recorded.items(), key=lambda item: item[1][0].n):
            data = translate.decode(steps[0].data)
            run = self._add(run_id, data["space"], data["caller"], data["message"])
            done = carried_out(run_id)
            run.message_bytes = len(memoryview(steps[0].data))
            run.refused_before = frozenset(range(max(done, default=0))) - done
            self._enqueue(run)
        for space in list(self._queues):
            self._next(space, now)
        return self._take()

    def _add(self, run_id: str, space: str, caller: str, message: Mapping[str, Any]) -> Run:
        operations = message["operations"]
        run = Run(run_id, space, caller, operations, message.get("stopOnError", False), seconds=time_of(operations))
        self.open[run_id] = run
        return run

    # -- what happens --------------------------------------------------------------------------------------------------

    def handle(self, effect: ToSession, now: Now) -> list[Output]:
        """The exchange says something about a run."""
        run_id, _, part = getattr(effect, "ref", "").rpartition("/")
        run = self.open.get(run_id)
        if run is None:
            return []
        match effect:
            case Reply() if part == "started" and run.state == "recording":
                self._enqueue(run)
                self._next(run.space, now)
            case Reply() if part == "ended":
                run.state = "done"
                run.operations = []  # whoever keeps a run that is done keeps its events
                del self.open[run_id]
                self._around.ended(run)
                self._out.append(Changed(run_id))
            case Wait() if part == str(run.index) and effect.approval_id is not None:
                self._paused(run, effect, now)
            case Answer() if part == str(run.index) and run.state in {"active", "paused", "queued"}:
                self._answered(run, effect, now)
            case _:
                pass
        return self._take()

    def operation_of(self, key: str | None, caller: str) -> Run | None:
        """The run that asked for a call with this key."""
        run_id, _, part = (key or "").rpartition("/")
        run = self.open.get(run_id)
        return run if run is not None and run.caller == caller and part == str(run.index) else None

    def delivered(self, key: str | None, caller: str, call_id: str, now: Now) -> list[Output]:
        """An operation arrived at its space: it starts now, unless it is an approved one of a run without the turn."""
        run = self.operation_of(key, caller)
        if run is None or run.state != "paused":
            self._out.append(Start(call_id))
        else:
            run.held, run.asked = call_id, None
            self._enqueue(run, first=True)
            self._next(run.space, now)
        return self._take()

    def _paused(self, run: Run, wait: Wait, now: Now) -> None:
        if run.asked is not None and run.asked.approval_id == wait.approval_id:
            return
        assert wait.approval_id is not None
        operation = run.operations[run.index]
        self._tell(run, translate.approval_required(operation, run.index, self._around.why(run, operation, wait)))
        run.asked = Asked(wait.approval_id, translate.operation_id(operation, run.index))
        if run.state == "active":
            run.seconds = max(0.0, run.deadline - now.mono)
            run.state = "paused"
            self._give_turn(run, now)

    def _answered(self, run: Run, answer: Answer, now: Now) -> None:
        problem = answer.fault
        if answer.refused and problem is not None and problem.code == translate.STOPPING:
            # Nothing of it is lost: the next start finds it as it is on record.
            run.state = "left"
            self._out.append(Changed(run.run_id))
            self._give_turn(run, now)
            return
        operation = run.operations[run.index]
        event = translate.outcome(operation, run.index, answer, self._around.no_shell)
        run.asked = run.held = None
        run.index += 1
        self._tell(run, event)
        gone = (
            answer.refused and problem is not None and problem.code in translate.GONE and operation["type"] != "shell"
        )
        if gone or (run.stop_on_error and translate.failed(event)):
            self._end(run, "error", now)
        elif run.state == "active":
            self._ask(run, now)
        elif run.state == "paused":
            self._enqueue(run, first=True)
            self._next(run.space, now)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _enqueue(self, run: Run, *, first: bool = False) -> None:
        run.state = "queued"
        queue = self._queues.setdefault(run.space, deque())
        if first:
            queue.appendleft(run)
        else:
            queue.append(run)

    def _next(self, space: str, now: Now) -> None:
        """Give the turn to the next run, if nobody has it."""
        queue = self._queues.get(space)
        if space in self._active or not queue:
            return
        run = queue.popleft()
        if not queue:
            del self._queues[space]
        self._active[space] = run
        run.state = "active"
        run.deadline = now.mono + run.seconds
        if run.held is not None:
            self._out.append(Start(run.held))
            run.held = None
        else:
            self._ask(run, now)

    def _give_turn(self, run: Run, now: Now) -> None:
        if self._active.get(run.space) is run:
            del self._active[run.space]
            self._next(run.space, now)
        elif run in (queue := self._queues.get(run.space, deque())):
            queue.remove(run)

    def _ask(self, run: Run, now: Now) -> None:
        while run.index in run.refused_before:
            operation = run.operations[run.index]
            event = translate.refused_before(operation, self._around.denial(run, operation), stamp(now.ms))
            run.index += 1
            self._tell(run, event)
            if run.stop_on_error:
                self._end(run, "error", now)
                return
        if run.index == len(run.operations):
            self._end(run, "completed", now)
            return
        operation = run.operations[run.index]
        ref = f"{run.run_id}/{run.index}"
        self._out.append(
            CallRequested(
                session=self._session,
                ref=ref,
                caller=Principal(run.caller),
                tool_id=translate.tool_id(run.space, operation["type"]),
                input=translate.tool_input(operation),
                key=ref,
                correlation_id=run.run_id,
            )
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def _tell(self, run: Run, event: dict[str, Any]) -> None:
        """One more event, unless it is one too large for the message: then it says so."""
        size = len(translate.encode(event))
        if size > SMALL_EVENT_BYTES and run.size + size > MAX_MESSAGE_BYTES:
            event = translate.shortened(event, TOO_LARGE)
            size = len(translate.encode(event))
        run.size += size
        run.events.append(event)
        self._out.append(Changed(run.run_id))

    def _end(self, run: Run, status: str, now: Now) -> None:
        run.state, run.status = "ending", status
        data = Raw(translate.encode({"space": run.space, "caller": run.caller, "status": status, "events": run.events}))
        self._out.append(
            ProcessStepped(self._session, f"{run.run_id}/ended", PROCESS, run.run_id, "ended", data, done=True)
        )
        self._give_turn(run, now)

    # -- time ----------------------------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When ``woke`` should be called next (monotonic)."""
        return min((run.deadline for run in self._active.values()), default=None)

    def woke(self, now: Now) -> list[Output]:
        """The time of some runs may be over."""
        for run in [run for run in self._active.values() if now.mono >= run.deadline]:
            operation, ref = run.operations[run.index], f"{run.run_id}/{run.index}"
            details = {"index": run.index, "operationType": operation["type"]}
            text = "The run took longer than its operations may take together"
            self._out.append(
                CancelRequested(self._session, ref, Principal(run.caller), target=ref, reason="run deadline")
            )
            self._tell(run, translate.error_event("timeout", text, stamp(now.ms), details))
            self._end(run, "error", now)
        return self._take()

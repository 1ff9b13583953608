"""Runs: an operations message on its way, which outlives the connection it came on and the exchange it came to.

Pure. A run is on record by one step ``started`` (space, caller, for whom he asked, message) and one ``ended`` (status,
events). Between the two it holds nothing durable: each operation is an ordinary call with the key ``<run>/<index>``,
so after a restart the run asks for all of them again, and the record answers what was done. An approved command that
was not begun because a script of it had changed is asked for once more, ``<run>/<index>.2``. Owns the order of
operations, whose turn it is in a space, who may have how many runs, and a run's time; does not own policy, approvals or
retries (the hub) or what an operation does.

Each run is a conversation of its own with the exchange, whose number it is told. A method that takes or names a run
changes no other, but for one thing: it may give the turn away, and says so (``Turn``). So a defect met on the way is a
defect of one run.

Invariant: at most one run of a space is active. A run that waits for a person holds no turn, and what was approved
meanwhile is carried out when the turn comes back to it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

from msgspec import Raw, Struct, convert

from trunkline.edges.spaces import translate
from trunkline.edges.spaces.messages import DEFAULT_TIMEOUT_MS, MAX_MESSAGE_BYTES
from trunkline.effects import Answer, Deliver, Reply, ToSession, Wait
from trunkline.entries import ProcessStep
from trunkline.events import CallRequested, CancelRequested, Event, ProcessStepped
from trunkline.model import NOBODY, OPERATOR, Behalf, Fault, Now, Principal, stamp

PROCESS: Final = "spaces.run"
# Runs of one space that wait for their turn; above it a caller is told to come again (decision 37).
MAX_QUEUED: Final = 16
# Runs of one space that are not done, most of them waiting for a person: each is held in memory.
MAX_OPEN: Final = 256
# The messages and events of all runs that are not done. A message is held twice, here and in the hub's state.
MAX_OPEN_BYTES: Final = 268_435_456
# Of these nobody but the operator gets so many: what a person needs while everybody else floods. The bytes are two of
# the largest messages.
RESERVED_QUEUED: Final = 2
RESERVED_OPEN: Final = 16
RESERVED_BYTES: Final = 33_554_432
# What the exchange itself may take, besides the operations (decision 38).
SLACK_MS: Final = 5000
# A command's timeout is capped by policy; a run's time need not be longer.
LONGEST_TIMEOUT_MS: Final = 600_000
# An event without content has at most this; such events are always told.
SMALL_EVENT_BYTES: Final = 4096
# Behind the index of an operation that is asked for the second time.
AGAIN: Final = ".2"
COME_AGAIN: Final = "answer what they ask, or try again later"
ENDED: Final = "This run was ended before it was done"
TOO_LARGE: Final = f"The events of this run are larger than {MAX_MESSAGE_BYTES} bytes; read it in another run"

State = Literal["recording", "queued", "active", "paused", "ending", "done", "left"]


class Submission(Struct, frozen=True):
    """What somebody wants to be run: a valid message, and for whom he asked. ``data`` is all of it, for the record."""

    space: str
    caller: str
    message: Mapping[str, Any]
    on_behalf_of: Behalf
    data: Raw

    @classmethod
    def made(cls, space: str, caller: str, message: Mapping[str, Any], on_behalf_of: Behalf) -> Submission:
        """One that is new."""
        fields: dict[str, Any] = {"space": space, "caller": caller, "message": message}
        if on_behalf_of != NOBODY:
            fields["behalf"] = on_behalf_of
        return cls(space, caller, message, on_behalf_of, Raw(translate.encode(fields)))

    @classmethod
    def read(cls, data: Raw) -> Submission:
        """One that is on record."""
        found = translate.decode(data)
        behalf = convert(found.get("behalf", {}), Behalf)
        return cls(found["space"], found["caller"], found["message"], behalf, data)

    @property
    def size(self) -> int:
        """In bytes, as it is on record."""
        return len(memoryview(self.data))


class Asked(Struct, frozen=True):
    """The question that a paused run waits for."""

    approval_id: str
    operation_id: str


class Run(Struct, eq=False):
    """One run. ``left``: the exchange is stopping; the run goes on after its next start."""

    run_id: str
    # The number of its conversation; 0 for one that was read from the record.
    session: int
    space: str
    caller: str
    operations: list[dict[str, Any]]
    stop_on_error: bool = False
    events: list[dict[str, Any]] = []
    # Of its events so far, and of its message.
    size: int = 0
    message_bytes: int = 0
    index: int = 0
    # Whether its present operation is asked for the second time.
    is_again: bool = False
    state: State = "recording"
    status: str = "completed"
    # Why it was not put on record, and so is none.
    refused: Fault | None = None
    # The call of its present operation, once it has an id; the question it asks; what waits for the run's turn.
    call_id: str | None = None
    asked: Asked | None = None
    held: Deliver | None = None
    # For whom its caller asked when he started it.
    on_behalf_of: Behalf = NOBODY
    # What is left of its time, and when that ends while it is active.
    seconds: float = 0.0
    deadline: float = 0.0
    # What was refused before a restart, by reference: not asked for again after later operations were carried out.
    refused_before: frozenset[str] = frozenset()
    # What a person was asked before a restart, by operation, and which questions have been told of since.
    asked_before: dict[int, list[translate.Why]] = {}
    told: set[str] = set()
    # What was taken on before a restart, by reference.
    taken_on_before: frozenset[str] = frozenset()

    @property
    def ref(self) -> str:
        """What the call of its present operation is known by in this run."""
        return f"{self.index}{AGAIN}" if self.is_again else str(self.index)

    @property
    def is_open(self) -> bool:
        """Whether it may still do something by itself."""
        return self.state in {"recording", "queued", "active", "ending"}

    @property
    def shown_status(self) -> str:
        """The protocol's word for where it stands."""
        return "awaiting_approval" if self.state == "paused" else self.status


class Start(Struct, frozen=True):
    """A delivery may be carried out now, by its space."""

    delivery: Deliver


class Drop(Struct, frozen=True):
    """A delivery must not be carried out any more: its space says so to the exchange."""

    delivery: Deliver
    fault: Fault


class Turn(Struct, frozen=True):
    """It is this run's turn: call ``go_on`` for it."""

    run: Run


class Changed(Struct, frozen=True):
    """Whoever follows this run has something to look at."""

    run: Run


class Ended(Struct, frozen=True):
    """The end of this run is on record."""

    run: Run


Output = Event | Start | Drop | Turn | Changed | Ended


class Reasons(Protocol):
    """What a run asks the world: why something is so."""

    def why_asked(self, run: Run, operation: Mapping[str, Any], wait: Wait) -> translate.Why:
        """Why a person is asked."""

    def why_refused(self, run: Run, operation: Mapping[str, Any]) -> Fault | None:
        """Why such an operation would be refused now, if it would."""

    def why_denied(self, delivery: Deliver) -> Fault | None:
        """Why what was delivered before must not be carried out now, if it must not."""

    @property
    def no_shell(self) -> str:
        """Why there is no shell here; empty if there is one."""


def index_of(ref: str) -> int:
    """The operation that a reference is about."""
    return int(ref.removesuffix(AGAIN))


def time_of(operations: list[dict[str, Any]]) -> float:
    """How many seconds a run may be active: what its operations may take, and some (decision 38)."""
    total = SLACK_MS
    for operation in operations:
        if operation["type"] == "shell":
            total += min(operation["timeout"], LONGEST_TIMEOUT_MS)
        elif operation["type"] != "message":
            total += DEFAULT_TIMEOUT_MS
    return total / 1000


def is_within_share(caller: str, wanted: int, held: Mapping[str, int], most: int, reserved: int) -> bool:
    """Whether a caller may have so much more of something of which there is ``most``, and each holds ``held``.

    One caller gets at most half of what others leave, or the first thing he wants; ``reserved`` is the operator's, also
    if others hold more than they should: what was taken on before may grow.
    """
    own, total = held.get(caller, 0), sum(held.values())
    if caller == OPERATOR:
        return own + wanted <= reserved or total + wanted <= most
    left = most - reserved - (total - own)
    return own + wanted <= left and (own == 0 or own + wanted <= left // 2)


class Runs:
    """All runs that are not done."""

    def __init__(self, reasons: Reasons) -> None:
        self._reasons = reasons
        self.open: dict[str, Run] = {}
        # Who has the turn of a space, and who waits for it.
        self._active: dict[str, Run] = {}
        self._queues: dict[str, deque[Run]] = {}
        self._out: list[Output] = []

    def _take(self) -> list[Output]:
        out, self._out = self._out, []
        return out

    # -- the beginning -------------------------------------------------------------------------------------------------

    def refusal(self, wanted: Submission) -> str:
        """Why this is not taken on now; empty if it is."""
        caller = wanted.caller
        kept: Counter[str] = Counter()
        queued: Counter[str] = Counter()
        opened: Counter[str] = Counter()
        for run in self.open.values():
            kept[run.caller] += run.message_bytes + run.size
            if run.space == wanted.space:
                opened[run.caller] += 1
                queued[run.caller] += run.state in {"recording", "queued"}
        if not is_within_share(caller, wanted.size, kept, MAX_OPEN_BYTES, RESERVED_BYTES):
            return f"the runs that are not done hold too much memory, {kept[caller]} bytes of it for you; {COME_AGAIN}"
        if not is_within_share(caller, 1, queued, MAX_QUEUED, RESERVED_QUEUED):
            waiting = f"{queued.total()} runs wait for their turn in this space"
            return f"{waiting}, {queued[caller]} of them yours; try again later"
        if not is_within_share(caller, 1, opened, MAX_OPEN, RESERVED_OPEN):
            return f"{opened.total()} runs of this space are not done, {opened[caller]} of them yours; {COME_AGAIN}"
        return ""

    def submit(self, run_id: str, session: int, wanted: Submission) -> list[Output]:
        """Take on what was found valid. It starts once it is on record."""
        self._add(run_id, session, wanted)
        self._out.append(
            ProcessStepped(session, "started", PROCESS, run_id, "started", wanted.data, caller=wanted.caller)
        )
        return self._take()

    def take_up(
        self,
        session: int,
        started: ProcessStep,
        on_record: Callable[[Run], Mapping[str, list[translate.Why]]],
    ) -> list[Output]:
        """After a restart: go on with a run that was open.

        ``on_record`` tells which of its operations became calls, by reference and in their order, and what a person was
        asked about each.
        """
        run = self._add(started.subject, session, Submission.read(started.data))
        found = on_record(run)
        last = max(map(index_of, found), default=0)
        run.refused_before = (
            frozenset(f"{index}{again}" for index in range(last) for again in ("", AGAIN)) - found.keys()
        )
        for ref, questions in found.items():
            if questions:
                run.asked_before.setdefault(index_of(ref), []).extend(questions)
        run.taken_on_before = frozenset(found)
        self._enqueue(run)
        return self._take()

    def _add(self, run_id: str, session: int, wanted: Submission) -> Run:
        operations = wanted.message["operations"]
        run = Run(
            run_id,
            session,
            wanted.space,
            wanted.caller,
            operations,
            wanted.message.get("stopOnError", False),
            message_bytes=wanted.size,
            on_behalf_of=wanted.on_behalf_of,
            seconds=time_of(operations),
        )
        self.open[run_id] = run
        return run

    # -- what happens --------------------------------------------------------------------------------------------------

    def handle(self, run_id: str, effect: ToSession, now: Now) -> list[Output]:
        """The exchange says something about a run."""
        run = self.open.get(run_id)
        if run is None:
            return []
        match effect:
            case Reply(ref="started") if effect.fault is not None:
                self._refused(run, effect.fault, now)
            case Reply(ref="started") if run.state == "recording":
                self._enqueue(run)
            case Reply(ref="ended"):
                self._done(run)
            case Wait() if effect.ref == run.ref:
                run.call_id = effect.call_id
                if effect.approval_id is not None:
                    self._paused(run, effect, now)
            case Answer() if effect.ref == run.ref and run.state in {"active", "paused", "queued"}:
                self._answered(run, effect, now)
            case _:
                pass
        return self._take()

    def _refused(self, run: Run, problem: Fault, now: Now) -> None:
        """Nothing of this run is on record, and nothing of it is done."""
        run.refused, run.status = problem, "error"
        self._tell(run, translate.error_event("system", problem.message, stamp(now.ms), problem.details))
        self._done(run)

    def run_of(self, delivery: Deliver) -> Run | None:
        """The run whose present operation this is."""
        run_id, _, ref = (delivery.key or "").rpartition("/")
        run = self.open.get(run_id)
        return run if run is not None and run.caller == delivery.caller and ref == run.ref else None

    def delivered(self, delivery: Deliver) -> list[Output]:
        """An operation arrived at its space: it starts now, unless it is an approved one of a run without the turn."""
        run = self.run_of(delivery)
        if run is None or run.state != "paused":
            self._out.append(Start(delivery))
        else:
            run.held, run.asked = delivery, None
            self._enqueue(run, first=True)
        return self._take()

    def _paused(self, run: Run, wait: Wait, now: Now) -> None:
        if run.asked is not None and run.asked.approval_id == wait.approval_id:
            return
        assert wait.approval_id is not None
        operation = run.operations[run.index]
        if wait.approval_id not in run.told:
            self._tell_question(run, self._reasons.why_asked(run, operation, wait))
        run.asked = Asked(wait.approval_id, translate.operation_id(operation, run.index))
        if run.state == "active":
            run.seconds = max(0.0, run.deadline - now.mono)
            run.state = "paused"
            self._give_turn(run)

    def _tell_question(self, run: Run, why: translate.Why) -> None:
        run.told.add(why.approval_id)
        self._tell(run, translate.approval_required(run.operations[run.index], run.index, why))

    def _answered(self, run: Run, answer: Answer, now: Now) -> None:
        problem = answer.fault
        if answer.refused and problem is not None and problem.code == translate.STOPPING:
            # Nothing of it is lost: the next start finds it as it is on record.
            run.state = "left"
            self._out.append(Changed(run))
            self._give_turn(run)
            return
        operation = run.operations[run.index]
        if not run.is_again and translate.is_script_changed(problem):
            # What was approved is not what would run: the question that shows what it is now is another one.
            run.asked = run.held = run.call_id = None
            run.is_again = True
            self._go_on_asking(run, now)
            return
        if answer.refused and run.ref in run.taken_on_before and problem is not None:
            event = translate.not_shown(operation, run.index, problem, stamp(now.ms))
        else:
            event = translate.outcome(operation, run.index, answer, self._reasons.no_shell)
        run.asked = run.held = run.call_id = None
        run.index, run.is_again = run.index + 1, False
        self._tell(run, event)
        gone = (
            answer.refused and problem is not None and problem.code in translate.GONE and operation["type"] != "shell"
        )
        if gone or (run.stop_on_error and translate.failed(event)):
            self._end(run, "error")
        else:
            self._go_on_asking(run, now)

    def _go_on_asking(self, run: Run, now: Now) -> None:
        if run.state == "active":
            self._ask(run, now)
        elif run.state == "paused":
            self._enqueue(run, first=True)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _enqueue(self, run: Run, *, first: bool = False) -> None:
        run.state = "queued"
        queue = self._queues.setdefault(run.space, deque())
        if first:
            queue.appendleft(run)
        else:
            queue.append(run)
        self._next(run.space)

    def _next(self, space: str) -> None:
        """Give the turn to the next run, if nobody has it."""
        queue = self._queues.get(space)
        if space in self._active or not queue:
            return
        run = self._active[space] = queue.popleft()
        if not queue:
            del self._queues[space]
        self._out.append(Turn(run))

    def _give_turn(self, run: Run) -> None:
        if self._active.get(run.space) is run:
            del self._active[run.space]
            self._next(run.space)
        elif run in (queue := self._queues.get(run.space, deque())):
            queue.remove(run)

    def go_on(self, run: Run, now: Now) -> list[Output]:
        """The turn of a run has come."""
        if run.state == "queued" and self._active.get(run.space) is run:
            run.state = "active"
            run.deadline = now.mono + run.seconds
            if run.held is not None:
                problem = self._reasons.why_denied(run.held)
                self._out.append(Start(run.held) if problem is None else Drop(run.held, problem))
                run.held = None
            else:
                self._ask(run, now)
        return self._take()

    def _ask(self, run: Run, now: Now) -> None:
        while run.ref in run.refused_before:
            operation = run.operations[run.index]
            event = translate.refused_before(operation, self._reasons.why_refused(run, operation), stamp(now.ms))
            run.index, run.is_again = run.index + 1, False
            self._tell(run, event)
            if run.stop_on_error:
                self._end(run, "error")
                return
        if run.index == len(run.operations):
            self._end(run, "completed")
            return
        operation = run.operations[run.index]
        # Whoever has seen so many events finds the next one in its place.
        for why in run.asked_before.pop(run.index, ()):
            self._tell_question(run, why)
        self._out.append(
            CallRequested(
                session=run.session,
                ref=run.ref,
                caller=Principal(run.caller),
                tool_id=translate.tool_id(run.space, operation["type"]),
                input=translate.tool_input(operation),
                key=f"{run.run_id}/{run.ref}",
                correlation_id=run.run_id,
                # Its id is needed if the run has to be ended.
                announce=True,
                on_behalf_of=run.on_behalf_of,
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
        self._out.append(Changed(run))

    def _end(self, run: Run, status: str) -> None:
        run.state, run.status = "ending", status
        data = Raw(translate.encode({"space": run.space, "caller": run.caller, "status": status, "events": run.events}))
        ended = ProcessStepped(run.session, "ended", PROCESS, run.run_id, "ended", data, done=True, caller=run.caller)
        self._out.append(ended)
        self._give_turn(run)

    def _done(self, run: Run) -> None:
        run.state = "done"
        run.operations = []  # whoever keeps a run that is done keeps its events
        del self.open[run.run_id]
        self._out.append(Ended(run))

    def fail(self, run: Run, session: int, now: Now) -> list[Output]:
        """A defect of ours was met in this run, and ended its conversation: it ends, in another one, with an error."""
        if run.state == "ending":
            self._done(run)
        elif run.is_open or run.state == "paused":
            run.session = session
            if run.call_id is not None:
                by = Principal(run.caller)
                self._out.append(CancelRequested(session, "cancel", by, call_id=run.call_id, reason="defect"))
            details = {"index": run.index}
            self._tell(run, translate.error_event("system", translate.DEFECT, stamp(now.ms), details))
            self._end(run, "error")
        return self._take()

    def end(self, run: Run, by: Principal, now: Now) -> list[Output]:
        """Somebody wants this run to end now, whatever it does or waits for."""
        if run.state != "ending" and (run.is_open or run.state == "paused"):
            # Under its reference: a call that has just been asked for may have no id yet.
            self._out.append(CancelRequested(run.session, "cancel", by, target=run.ref, reason="run ended"))
            details = {"index": run.index, "endedBy": by.identity}
            self._tell(run, translate.error_event("system", ENDED, stamp(now.ms), details))
            self._end(run, "error")
        return self._take()

    # -- time ----------------------------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When somebody should look for ``overdue`` runs (monotonic)."""
        return min((run.deadline for run in self._active.values() if run.state == "active"), default=None)

    def overdue(self, now: Now) -> list[Run]:
        """The runs whose time is over: call ``time_over`` for each."""
        return [run for run in self._active.values() if run.state == "active" and now.mono >= run.deadline]

    def time_over(self, run: Run, now: Now) -> list[Output]:
        """End a run whose time is over."""
        operation, ref = run.operations[run.index], run.ref
        details = {"index": run.index, "operationType": operation["type"]}
        text = "The run took longer than its operations may take together"
        by = Principal(run.caller)
        self._out.append(CancelRequested(run.session, "cancel", by, target=ref, reason="run deadline"))
        self._tell(run, translate.error_event("timeout", text, stamp(now.ms), details))
        self._end(run, "error")
        return self._take()

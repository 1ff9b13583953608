"""What was seen from outside: who asked for what, who was told what, and what ran how often.

The witness believes nothing that the exchange keeps in memory. It writes down what reached a caller or an agent, so
that ``promises`` can hold the record against it in the end. It judges nothing itself.

Owns what was seen, by call, agent and run. Does not own who acts.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Raw, Struct

from trunkline.edges.chiffon.messages import UNAVAILABLE, WorkRequest, WorkResult
from trunkline.ledger.reader import call_number
from trunkline.model import Status, ToolDefinition
from trunkline.shown import Question
from trunkline.testing.clock import ManualClock


class StoryLine(Struct, frozen=True):
    """One thing that happened, as a line of the story."""

    at: float
    who: str
    what: str
    call_id: str = ""

    def __str__(self) -> str:
        about = f"  [{short(self.call_id)}]" if self.call_id else ""
        return f"{self.at:10.4f}  {self.who:<22} {self.what}{about}"


class ToldOutcome(Struct, frozen=True):
    """The end of a call as somebody was told it.

    ``refused`` is None where the wire does not tell a refusal from a failure.
    """

    call_id: str
    tool_id: str
    status: Status
    output_sha256: str
    refused: bool | None = False


class Request(Struct, eq=False):
    """One request for a call and what came back. ``is_waiting`` while its caller is there to be answered."""

    ref: str
    caller: str
    tool_id: str
    input: bytes
    key: str | None = None
    call_id: str = ""
    outcome: ToldOutcome | None = None
    is_waiting: bool = True
    # The call that the caller worked on, if it named one.
    cause: str = ""
    canceled: bool = False


class Execution(Struct, frozen=True):
    """A tool ran: the effect, if it has one, took place."""

    call_id: str
    tool_id: str
    by: str
    caller: str
    key: str | None
    input_sha256: str
    side_effects: bool


class Work(Struct, eq=False):
    """A piece of work that a Chiffon orchestrator asked for, once or repeatedly, and every end it was told of."""

    request_id: str
    caller: str
    request: WorkRequest
    to: str
    custom: Raw | None = None
    asked: int = 0
    refusals: int = 0
    is_waiting: bool = True
    results: list[WorkResult] = []
    # What it was told after a result, if that was no result.
    refused_after: list[int] = []


class SpaceRun(Struct, eq=False):
    """A run of a space that somebody was told was taken on, and what was shown of it."""

    run_id: str
    caller: str
    space: str
    operations: list[dict[str, Any]]
    # In which run of the exchange, from which event on, and the events.
    looks: list[tuple[int, int, list[dict[str, Any]]]] = []
    is_over: bool = False

    @property
    def seen(self) -> int:
        """How many of its events were shown."""
        return max((first + len(events) for _, first, events in self.looks), default=0)


class Witness:
    """Collects everything that callers and agents see in one simulation."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.lines: list[StoryLine] = []
        self.requests: list[Request] = []
        self.outcomes: list[ToldOutcome] = []
        self.executions: list[Execution] = []
        # Calls that agents were given, each time, executed or recognised as a repeat.
        self.deliveries: dict[str, int] = {}
        # Calls that some agent is at work on, and which.
        self.under_way: dict[str, str] = {}
        # Approvals somebody was told to wait for, and the calls that waited.
        self.waits: list[tuple[str, str]] = []
        # Open questions that a person read: the name, who asked and for which tool.
        self.questions: list[tuple[str, str, str | None]] = []
        # Calls somebody was told were taken on, with their tool.
        self.taken_on: list[tuple[str, str]] = []
        # Requests of people that were confirmed: what it was, and the id it was about.
        self.confirmed: list[tuple[str, str]] = []
        # How often each agent was welcomed.
        self.welcomes: dict[str, int] = {}
        # Work of orchestrators.
        self.works: list[Work] = []
        # The last result of each worker for each call that was acknowledged: in which run, and as which answer.
        self._results: dict[tuple[str, str], tuple[int, int]] = {}
        # Runs of spaces.
        self.runs: dict[str, SpaceRun] = {}
        # The present run of the exchange.
        self.run = 0
        self.crashes = 0
        # The last run of the exchange that did not end in good order.
        self.crashed_run = 0
        self.defects: list[str] = []

    def note(self, who: str, what: str, call_id: str = "") -> None:
        """Add a line to the story."""
        self.lines.append(StoryLine(self._clock.mono, who, what, call_id))

    def defect(self, what: str) -> None:
        """Something that must never happen, wherever it is seen."""
        self.defects.append(what)
        self.note("witness", what)

    def asked(self, request: Request) -> Request:
        """Somebody asks for a call."""
        self.requests.append(request)
        key = f", key {request.key}" if request.key is not None else ""
        self.note(request.caller, f"asks {request.ref} for {request.tool_id}{key}")
        return request

    def answered(
        self,
        request: Request,
        call_id: str,
        status: Status,
        code: str,
        output: bytes | None,
        *,
        refused: bool | None,
    ) -> None:
        """Somebody is told how a call ended."""
        outcome = ToldOutcome(call_id, request.tool_id, status, digest(output), refused)
        how = f"{'refused' if refused else status.value}{f' {code}' if code else ''}"
        self.note(request.caller, f"hears of {request.ref}: {how}", call_id)
        if request.outcome is not None:
            self.defect(f"{request.ref} of {request.caller} was answered twice")
        request.outcome = outcome
        request.is_waiting = False
        request.call_id = call_id
        if refused is not True:
            self.outcomes.append(outcome)

    def read(self, who: str, call_id: str, tool_id: str, status: Status, output: bytes | None) -> None:
        """Somebody looks a call up and reads its outcome: that is being told as well."""
        self.note(who, f"reads {status.value}", call_id)
        self.outcomes.append(ToldOutcome(call_id, tool_id, status, digest(output)))

    def waits_for(self, request: Request, call_id: str, approval_id: str) -> None:
        """Somebody is told that a call waits for a person."""
        request.call_id = call_id
        self.note(request.caller, f"hears of {request.ref}: waits for {approval_id}", call_id)
        self.waits.append((call_id, approval_id))

    def read_question(self, who: str, question: Question) -> None:
        """A person reads what is open: an answer by this name is to what was read."""
        self.note(who, f"is shown {question.approval_id}", question.call_id or "")
        self.questions.append((question.approval_id, question.asked_by, question.tool_id))

    def announced(self, request: Request, call_id: str) -> None:
        """Somebody is told that a call was taken on."""
        request.call_id = call_id
        self.note(request.caller, f"hears of {request.ref}: taken on", call_id)
        self.taken_on.append((call_id, request.tool_id))

    def confirm(self, who: str, what: str, named: str) -> None:
        """Somebody is told that what they said is done."""
        self.note(who, f"hears that {named} is {what}")
        self.confirmed.append((what, named))

    def delivered(self, by: str, call_id: str) -> None:
        """An agent is given a call."""
        self.deliveries[call_id] = self.deliveries.get(call_id, 0) + 1
        self.under_way[call_id] = by
        self.note(by, "is given a call", call_id)

    def executed(self, by: str, call_id: str, tool: ToolDefinition, caller: str, key: str | None, body: bytes) -> None:
        """A tool runs."""
        self.note(by, f"runs {tool.name}", call_id)
        self.executions.append(
            Execution(
                call_id=call_id,
                tool_id=tool.tool_id,
                by=by,
                caller=caller,
                key=key,
                input_sha256=digest(body),
                side_effects=tool.side_effects,
            )
        )

    # -- Chiffon -------------------------------------------------------------------------------------------------------

    def given_work(self, by: str, call_id: str, order: int) -> None:
        """A worker is given work, in an answer that left the exchange as number ``order``."""
        self.note(by, "is given work", call_id)
        run, result = self._results.get((by, call_id), (0, 0))
        # A result that was only heard of may be lost in a crash.
        if result and order > result and run > self.crashed_run:
            self.defect(f"{by} was given work again whose result had been taken: {short(call_id)}")

    def gave_result(self, by: str, call_id: str, order: int) -> None:
        """A worker's result is taken."""
        self._results[by, call_id] = (self.run, order)

    def work_asked(self, work: Work) -> Work:
        """An orchestrator asks for work."""
        self.works.append(work)
        self.note(work.caller, f"asks {work.request_id} for {work.to} {work.request.work_type}")
        return work

    def work_ended(self, work: Work, result: WorkResult, *, is_refusal: bool) -> None:
        """An orchestrator is told how its work ended; a refusal is nothing that anybody remembers."""
        self.note(work.caller, f"hears of {work.request_id}: {result.status} {result.exit_code}")
        work.is_waiting = False
        if not is_refusal:
            work.results.append(result)
        elif work.results:
            work.refused_after.append(result.exit_code)

    def work_refused(self, work: Work, code: int, *, is_last: bool) -> None:
        """An orchestrator is told that its work was not taken on."""
        self.note(work.caller, f"hears of {work.request_id}: error {code}")
        # An exchange that is dying says to everything that it is not there.
        if work.results and code != UNAVAILABLE:
            work.refused_after.append(code)
        if is_last:
            work.is_waiting = False

    # -- spaces --------------------------------------------------------------------------------------------------------

    def run_taken(self, run: SpaceRun) -> None:
        """Somebody is told that a run was taken on."""
        self.runs[run.run_id] = run
        self.note(run.caller, f"hears that {run.run_id} was taken on")

    def run_told(self, who: str, run_id: str, first: int, events: list[dict[str, Any]], *, is_over: bool) -> None:
        """Somebody is shown the events of a run, from one on."""
        kinds = ", ".join(f"{event['type']} {event.get('operationId', '')}" for event in events)
        self.note(who, f"is shown of {run_id} from {first} on: {kinds}{' (the end)' if is_over else ''}")
        run = self.runs[run_id]
        run.is_over = run.is_over or is_over
        run.looks.append((self.run, first, events))

    def welcomed(self, agent_id: str) -> None:
        """An agent is let in."""
        self.welcomes[agent_id] = self.welcomes.get(agent_id, 0) + 1
        self.note(agent_id, "is welcome")


def run_of(call_id: str) -> int:
    """The run of the exchange that took a call on: a simulation's call ids begin with it."""
    return int(call_id[:8], 16)


def digest(output: bytes | None) -> str:
    """The SHA-256 of a body; empty if there is none."""
    return "" if output is None else hashlib.sha256(output).hexdigest()


def short(call_id: str) -> str:
    """A call id as a story prints it: the run of the exchange it is of, and its number."""
    number = call_number(call_id)
    return call_id if number is None else f"{run_of(call_id)}:{number}"

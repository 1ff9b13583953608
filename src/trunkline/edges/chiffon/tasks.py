"""Tasks that were given to one agent: their timers, their progress, their outputs in pieces. Pure.

A task is an open call of the hub and has its id, so nothing here outlives the process: after a restart the hub sends
what is open again, under the same ``request_id``, and the timers start anew (silent point 23). Owns the two timers of
silent point 8. Does not own retries, which the hub decides, nor the messages' way.

Theory of the timers. *Idle* starts with each attempt and with each message of the task; when it runs out the attempt
has failed with 5001. *Total* is ``max_duration_seconds`` from the first attempt; a task that has one is only suspected
when it is idle (who follows the call is told), and fails at its total; that counts against the agent only if it is
suspected then, since the limit is the caller's own. ``paused`` stops idle, never total. A total that came as
the caller's own ``timeout_ms`` is the hub's deadline and is not kept twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline.edges.chiffon import chunks, messages, translate
from trunkline.edges.chiffon.chunks import Assembly
from trunkline.edges.chiffon.messages import ErrorPayload, WorkRequest, WorkResult, WorkStatus
from trunkline.edges.chiffon.translate import EDGE
from trunkline.effects import Deliver
from trunkline.events import AttemptFailed, CallFinished, CallProgressed, Event, Noticed
from trunkline.model import Fault, Now, RetryPolicy

# CH-075, CH-076: four attempts.
RETRY: Final = RetryPolicy((0.0, 1.0, 2.0, 4.0))
# Outputs that one agent may have us keep at the same time, in pieces or whole: two steps of the largest size.
MAX_HELD_BYTES: Final = 2 * chunks.MAX_STEP_BYTES
# Steps that are begun and not complete: as many of one task as are told of, and four such tasks of an agent.
MAX_OPEN_STEPS: Final = 1000
MAX_OPEN_STEPS_OF_AGENT: Final = 4 * MAX_OPEN_STEPS
# Steps of one task that are told of at its end; of more the last ones.
MAX_STEPS: Final = 1000
# Tasks of one agent whose result is remembered: an attempt may still be on its way to the disk when the result comes.
MAX_ANSWERED: Final = 1024
# How often tasks that were ended elsewhere (canceled, out of time) are looked for.
LOOK_S: Final = 30.0


class Task(Struct):
    """One call that this agent works on."""

    call_id: str
    request: WorkRequest
    trace_id: str
    custom: Raw | None
    # Moments are monotonic seconds, 0.0 is none.
    total_at: float
    has_total: bool
    idle_at: float = 0.0
    # The agent was silent about it for longer than it may be, and still is.
    is_suspected: bool = False
    attempt: int = 0
    sent_ms: int = 0
    # This attempt led to nothing, and the next one has not left.
    is_failed: bool = False
    has_fallen: bool = False
    percent: int = 0
    seq: int = 0
    steps: dict[int, Assembly] = {}
    # What is told of each step that is complete, by its number.
    finished: dict[int, dict[str, object]] = {}
    # The last step that is complete: where an output that is too large for a result comes from (silent point 19).
    last_text: str = ""
    last_bytes: int = 0
    # What keeping its steps and that text takes.
    held_bytes: int = 0


class Tasks:
    """The open tasks of one agent. ``is_open`` answers whether a call still runs at this agent."""

    def __init__(self, session: int, who: str, timeout_s: float, is_open: Callable[[str], bool]) -> None:
        self._session = session
        self._who = who
        self._timeout_s = timeout_s
        self._is_open = is_open
        self._tasks: dict[str, Task] = {}
        self._answered: dict[str, None] = {}
        # Of all tasks: what keeping their outputs takes, and how many steps are begun.
        self._held_bytes = 0
        self._open_steps = 0
        # While there are tasks: when somebody looks which of them were ended elsewhere.
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, call_id: str) -> Task | None:
        """An open task."""
        return self._tasks.get(call_id)

    def is_answered(self, call_id: str) -> bool:
        """Whether the agent gave a result of this lately: it is not to be given it again."""
        return call_id in self._answered

    def all(self) -> list[Task]:
        """All of them, in the order in which they were given."""
        return list(self._tasks.values())

    def sent(self, effect: Deliver, now: Now, *, is_typed: bool) -> Task:
        """An attempt leaves: the first one, or another of the same task."""
        task = self._tasks.get(effect.call_id)
        if task is None:
            request = translate.work_request(effect, is_typed=is_typed)
            if not self._tasks:
                self._look_at = now.mono + LOOK_S
            limit_s = request.hints.max_duration_seconds
            task = self._tasks[effect.call_id] = Task(
                effect.call_id,
                request,
                translate.trace_id_of(effect.correlation_id),
                effect.context,
                now.mono + limit_s if limit_s is not None and effect.timeout_ms is None else 0.0,
                limit_s is not None,
            )
        task.attempt, task.sent_ms, task.is_failed = effect.attempt, now.ms, False
        self.restart_idle(task, now)
        return task

    def restart_idle(self, task: Task, now: Now) -> None:
        """It was sent, or heard of: from here on the agent may be silent about it for so long."""
        task.idle_at, task.is_suspected = now.mono + self._timeout_s, False

    # -- what the agent says -------------------------------------------------------------------------------------------

    def status(self, task: Task, status: WorkStatus, now: Now) -> list[Event]:
        """It goes on (CH-065, CH-066). What it shows is passed on; pieces of an output in their order."""
        step = status.step
        text = step.output or ""
        if step.output_chunk is not None:
            assert step.number is not None
            text = self._add_chunk(task, step.number, step.name, chunks.read(step.output_chunk, text))
        elif text and step.number is not None:
            self._check_room(len(text))
            self._note_step(task, step.number, step.name or "", text)
        self.restart_idle(task, now)
        if status.status == "paused":
            task.idle_at = 0.0
        events: list[Event] = []
        if status.progress_percent < task.percent and not task.has_fallen:
            task.has_fallen = True
            events.append(Noticed("chiffon.progress_fell", EDGE, self._who, task.call_id))  # silent point 22
        task.percent = status.progress_percent
        shown: dict[str, object] = {"status": status.status, "progress_percent": status.progress_percent}
        if step.number is not None or step.name is not None:
            shown["step"] = {"number": step.number, "name": step.name}
        events.append(self._progress(task, "status", messages.raw({"json": shown})))
        if text:
            events.append(self._progress(task, "stdout", messages.raw({"text": text})))
        return events

    def _progress(self, task: Task, channel: str, data: Raw) -> CallProgressed:
        task.seq += 1
        return CallProgressed(self._session, task.call_id, task.seq, channel, data)

    def _add_chunk(self, task: Task, number: int, name: str | None, chunk: chunks.Chunk) -> str:
        assembly = task.steps.get(number)
        if assembly is None:
            if number in task.finished:
                return ""  # a repeat of what is complete
            self._check_room(chunk.end - chunk.start)
            for limit, has in ((MAX_OPEN_STEPS, len(task.steps)), (MAX_OPEN_STEPS_OF_AGENT, self._open_steps)):
                if has >= limit:
                    raise messages.over_limit("open_steps", limit, limit + 1)
            assembly = Assembly()
            # A piece that is refused begins no step.
            text = assembly.add(chunk)
            task.steps[number] = assembly
            self._open_steps += 1
            self._hold(task, assembly.size)
        else:
            self._check_room(chunk.end - chunk.start)
            before = assembly.size
            text = assembly.add(chunk)
            self._hold(task, assembly.size - before)
        assembly.name = name or assembly.name
        if assembly.is_complete:
            self._drop_step(task, number)
            self._note_step(task, number, assembly.name, assembly.text())
        return text

    def _check_room(self, size: int) -> None:
        if self._held_bytes > MAX_HELD_BYTES:
            raise messages.over_limit("chunk_bytes", MAX_HELD_BYTES, MAX_HELD_BYTES + size)

    def _hold(self, task: Task, size: int) -> None:
        """Count so much more, or less, as kept for a task."""
        task.held_bytes += size
        self._held_bytes += size

    def _drop_step(self, task: Task, number: int) -> None:
        self._hold(task, -task.steps.pop(number).size)
        self._open_steps -= 1

    def _note_step(self, task: Task, number: int, name: str, text: str) -> None:
        """Decision 24: of each step what it was, how much and its hash; a step that speaks again has its last word."""
        task.finished.pop(number, None)
        size = len(text.encode())
        task.finished[number] = {"number": number, "name": name, "bytes": size, "sha256": chunks.sha256(text)}
        self._hold(task, size - task.last_bytes)
        task.last_text, task.last_bytes = text, size
        if len(task.finished) > MAX_STEPS:
            del task.finished[next(iter(task.finished))]

    def result(self, task: Task, result: WorkResult, custom: Raw | None) -> list[Event]:
        """How it ended. What is missing of an output is on record with it."""
        for number, assembly in sorted(task.steps.items()):
            if assembly.total is None and not assembly.missing():
                self._note_step(task, number, assembly.name, assembly.text())  # contradiction 1: only now it is whole
            else:
                task.finished[number] = {"number": number, "name": assembly.name, "missing": assembly.missing()}
        output = result.output
        is_tail = task.last_text.endswith(output) and len(task.last_text) > len(output)
        if custom is not None and is_tail and f'"{chunks.sha256(task.last_text)}"'.encode() in bytes(custom):
            output = task.last_text
        self.end(task)
        self._answered[task.call_id] = None
        if len(self._answered) > MAX_ANSWERED:
            del self._answered[next(iter(self._answered))]
        status, body, fault = translate.outcome(result, output, list(task.finished.values()), custom)
        metrics = messages.raw(result.resources_used)
        return [CallFinished(self._session, task.call_id, status, body, fault, metrics=metrics)]

    def error(self, task: Task, error: ErrorPayload) -> list[Event]:
        """The agent cannot go on with it (contradiction 14): a failed attempt, and the hub decides what follows."""
        return self.failed(task, translate.fault_of(error))

    def failed(self, task: Task, fault: Fault, *, is_callers_limit: bool = False) -> list[Event]:
        """An attempt led to nothing, and it fails once. A late answer still counts while the call is open."""
        if task.is_failed and fault.retryable:
            return []
        task.idle_at, task.is_failed = 0.0, True
        return [AttemptFailed(self._session, task.call_id, fault, is_callers_limit)]

    def end(self, task: Task) -> None:
        """Nothing more is expected of it."""
        if self._tasks.pop(task.call_id, None) is not None:
            self._held_bytes -= task.held_bytes
            self._open_steps -= len(task.steps)

    # -- time ----------------------------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When the next timer ends (monotonic)."""
        moments = [moment for task in self._tasks.values() for moment in (task.idle_at, task.total_at) if moment]
        return min([self._look_at, *moments]) if self._tasks else None

    def wake(self, now: Now) -> list[Event]:
        """What follows from the time that passed. Now and then, tasks that were ended elsewhere are forgotten."""
        events: list[Event] = []
        looks = now.mono >= self._look_at
        if looks:
            self._look_at = now.mono + LOOK_S
        for task in list(self._tasks.values()):
            is_idle = bool(task.idle_at) and now.mono >= task.idle_at
            is_over = bool(task.total_at) and now.mono >= task.total_at
            if (looks or is_idle or is_over) and not self._is_open(task.call_id):
                self.end(task)
            elif is_over:
                # CH-068. The caller's own limit is the end of it: no further attempt (contradiction 7).
                task.total_at = 0.0
                problem = replace(self._timeout(task), retryable=False)
                events += self.failed(task, problem, is_callers_limit=not task.is_suspected)
            elif is_idle and task.has_total:
                task.idle_at, task.is_suspected = 0.0, True
                events.append(Noticed("chiffon.suspected", EDGE, self._who, task.call_id))
                events.append(self._progress(task, "status", messages.raw({"text": self._waiting_words(task)})))
            elif is_idle:
                events += self.failed(task, self._timeout(task))  # CH-065, CH-066, CH-067
        return events

    def _waiting_words(self, task: Task) -> str:
        """What those who follow a call are told while its agent is silent, and the one attempt has all the time."""
        limit_s = task.request.hints.max_duration_seconds
        return (
            f"attempt {task.attempt} goes on: nothing heard from the agent for {self._timeout_s:g} s. "
            f"It has {limit_s:g} s in all, as the call asked, and there is no further attempt then"
        )

    def _timeout(self, task: Task) -> Fault:
        return translate.timeout_fault(task.attempt, task.sent_ms)

"""A trajectory from the entries of one correlation: the record of any protocol as lines of REPLAY.jsonl v1.

Owns which entries become which lines, which step a call belongs to and what a session came to. Entries come as they are
on record, masked; so does everything in the lines, and each hash is over what is written. Does not read the record
(``ledger.export`` does) and does not judge files (``check``).

The entries are looked through twice, so that a step can be told to be over when its last call has ended, and a
session of any length needs no more memory than the names of its calls. A session in which something is open has no
``SessionEnd``.

Invariant: the same entries give the same bytes, whoever asks and when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.canonical import openagents, openagents_hash
from trunkline.entries import AnyEntry, CallAccepted, CallRefused, CallSettled, ProcessStep
from trunkline.model import Status, stamp
from trunkline.strictjson import NotStrictJson
from trunkline.trajectory import events
from trunkline.trajectory.commands import commands_of
from trunkline.trajectory.events import AnyLine
from trunkline.trajectory.plan import Plan, is_run, is_sandbox_job, loaded, member, plan_of

_UTILITY: Final = {Status.SUCCEEDED: 1.0, Status.FAILED: -1.0}
NULL: Final = Raw(b"null")


class Recorded(Struct, frozen=True):
    """An entry of the correlation, and whether it is stored otherwise than it was said."""

    entry: AnyEntry
    masked: bool = False


class Origin(Struct, frozen=True):
    """Who recorded a session, and under which rules it began."""

    producer: str
    policy_bundle_id: str


Entries = Callable[[], Iterable[Recorded]]


def lines(session_id: str, entries: Entries, origin: Origin) -> Iterator[bytes]:
    """The lines of a trajectory, without line ends; none if nothing was asked under this correlation."""
    survey = _Survey.of(session_id, entries())
    return iter(()) if survey is None else map(events.encode, _Writing(survey).lines(entries(), origin))


def trajectory_hash(session_id: str, written: Iterable[bytes]) -> str:
    """The hash of a whole session: of ``{"session_id", "events"}``, whose events are all its lines."""
    digest = hashlib.sha256(b'{"events":[')
    between = b""
    for line in written:
        digest.update(between + openagents(line))
        between = b","
    digest.update(b'],"session_id":%b}' % openagents(msgspec.json.encode(session_id)))
    return f"sha256:{digest.hexdigest()}"


class _Survey(Struct):
    """What the first look at a session tells: its plan, which step each call belongs to, and when each step is over."""

    session_id: str
    plan: Plan
    began_ms: int
    # The step of each call, by the number of its entry; and which of them were asked for at the top.
    step_of: dict[int, int]
    at_top: set[int]
    # By the number of an entry, the steps that are over with it.
    over_with: dict[int, list[int]]
    is_open: bool
    is_run: bool
    is_refused: bool
    # Of a run that ended, the events of its operations in their order.
    told: list[Any]

    @classmethod
    def of(cls, session_id: str, entries: Iterable[Recorded]) -> _Survey | None:
        """Of these entries, in their order; None if none of them is a call or a run."""
        first: CallAccepted | CallRefused | ProcessStep | None = None
        seen: list[_Seen] = []
        told: list[Any] | None = None
        for recorded in entries:
            entry = recorded.entry
            match entry:
                case CallAccepted():
                    first = first if isinstance(first, CallAccepted | ProcessStep) else entry
                    seen.append(_Seen(entry.n, cause=entry.cause, key=entry.key))
                case CallSettled():
                    seen.append(_Seen(entry.n, entry.call))
                case CallRefused():
                    first = first or entry
                case ProcessStep() if is_run(entry):
                    first = entry
                case ProcessStep() if is_run(first) and entry.done:
                    told = _told(entry)
                case _:
                    pass
        if first is None:
            return None
        survey = cls(
            session_id, plan_of(first), first.at, {}, set(), {}, is_open=is_run(first) and told is None,
            is_run=is_run(first), is_refused=isinstance(first, CallRefused), told=told or [],
        )  # fmt: skip
        survey._assign(seen)
        return survey

    def _assign(self, seen: list[_Seen]) -> None:
        """Give each call its step, and find the entry with which each step is over."""
        open_calls: set[int] = set()
        last: dict[int, int] = {}
        for entry in seen:
            if entry.call:
                open_calls.discard(entry.call)
            else:
                open_calls.add(entry.n)
                if entry.cause not in self.step_of:
                    self.at_top.add(entry.n)
                self.step_of[entry.n] = self.step_of.get(entry.cause or 0, self._own_step(entry))
            step = self.step_of.get(entry.call or entry.n)
            if step is not None:
                last[step] = entry.n
        self.is_open = self.is_open or bool(open_calls)
        still = {self.step_of[call] for call in open_calls}
        for step, number in last.items():
            # The steps of a job, and one that anybody may add calls to, are over when all is.
            if self.is_run and step not in still:
                self.over_with.setdefault(number, []).append(step)

    def _own_step(self, entry: _Seen) -> int:
        """The step of a call that nobody in this session caused: of a run, the operation that its key names."""
        prefix = f"{self.session_id}/"
        if self.is_run and entry.key is not None and entry.key.startswith(prefix):
            index = entry.key.removeprefix(prefix).partition(".")[0]
            if index.isdecimal() and int(index) < len(self.plan.steps):
                return int(index)
        return 0


class _Seen(Struct, frozen=True, gc=False):
    """Of an entry, what the first look keeps. ``call`` is the number of the call that it ends, 0 if it begins one."""

    n: int
    call: int = 0
    cause: int | None = None
    key: str | None = None


def _told(ended: ProcessStep) -> list[Any]:
    told = member(loaded(ended.data), "events")
    return [one for one in told if member(one, "type") != "approvalRequired"] if isinstance(told, list) else []


class _Step(Struct):
    """What is known of a step so far."""

    iterations: int = 0
    statuses: set[str] = set()
    is_told: bool = False


class _Writing:
    """The second look: each entry becomes its lines."""

    def __init__(self, survey: _Survey) -> None:
        self._survey = survey
        self._steps = [_Step() for _ in survey.plan.steps] or [_Step()]
        self._asked: dict[int, CallAccepted] = {}
        self._calls = 0
        self._settled = 0
        self._succeeded = 0
        self._latency_ms = 0
        self._verified: int | None = None
        self._ended_ms = survey.began_ms

    def lines(self, entries: Iterable[Recorded], origin: Origin) -> Iterator[AnyLine]:
        survey = self._survey
        began, plan = stamp(survey.began_ms), survey.plan
        yield events.ReplayHeader(events.REPLAY_VERSION, origin.producer, began)
        yield events.SessionStart(survey.session_id, None, origin.policy_bundle_id, began)
        yield events.PlanStart(plan.hash, len(plan.steps), began, plan.json)
        for recorded in entries:
            entry = recorded.entry
            if isinstance(entry, CallAccepted):
                yield self._called(entry, recorded.masked)
            elif isinstance(entry, CallSettled) and entry.call in self._asked:
                yield from self._ended(entry, recorded.masked)
            else:
                continue
            self._ended_ms = entry.at
            for step in survey.over_with.get(entry.n, ()):
                yield self._over(step)
        if not survey.is_open:
            yield from self._last_lines()

    def _called(self, entry: CallAccepted, masked: bool) -> AnyLine:
        survey = self._survey
        step = survey.step_of[entry.n]
        if entry.n in survey.at_top:
            self._steps[step].iterations += 1
        self._calls += 1
        self._asked[entry.n] = entry
        params, digest, as_text = _hashed(entry.input)
        return events.ToolCall(
            id=entry.call_id,
            tool=entry.tool_id,
            params=params,
            params_hash=digest,
            step_id=self._step_id(step),
            t=stamp(entry.at),
            masked=masked or entry.hashed,
            as_text=as_text,
        )

    def _ended(self, entry: CallSettled, masked: bool) -> Iterator[AnyLine]:
        asked = self._asked.pop(entry.call)
        latency_ms = _latency_ms(asked, entry)
        self._settled += 1
        self._succeeded += entry.status is Status.SUCCEEDED
        self._latency_ms += latency_ms
        output, digest, as_text = _hashed(_output(entry))
        yield events.ToolResult(
            id=asked.call_id,
            output_hash=digest,
            step_utility=_UTILITY.get(entry.status, 0.0),
            latency_ms=latency_ms,
            t=stamp(entry.at),
            status=entry.status.value,
            output=output,
            masked=masked or entry.hashed,
            as_text=as_text,
        )
        commands, exit_codes = commands_of(asked.tool_id, asked.input, entry.output)
        if entry.call in self._survey.at_top:
            self._judge_steps(asked, entry.status, exit_codes)
        if commands:
            yield self._verification(commands, exit_codes, entry.at)

    def _judge_steps(self, asked: CallAccepted, status: Status, exit_codes: list[int]) -> None:
        """What a call at the top means for its step; a sandbox job is all steps of its plan in one call."""
        word = {Status.SUCCEEDED: "Success", Status.CANCELED: "Cancelled"}.get(status, "Failed")
        if is_sandbox_job(asked.tool_id) and not self._survey.is_run:
            for step, code in zip(self._steps, exit_codes, strict=False):
                step.statuses.add("Success" if code == 0 else "Failed")
            if word != "Success":
                self._steps[min(len(exit_codes), len(self._steps) - 1)].statuses.add(word)
            return
        step = self._steps[self._survey.step_of[asked.n]]
        step.statuses.add("Failed" if word == "Success" and any(exit_codes) else word)

    def _verification(self, commands: list[str], exit_codes: list[int], at_ms: int) -> AnyLine:
        failing = sum(code != 0 for code in exit_codes)
        first = self._verified = failing if self._verified is None else self._verified
        return events.Verification(tuple(commands), tuple(exit_codes), first - failing, stamp(at_ms))

    def _step_id(self, step: int) -> str:
        steps = self._survey.plan.steps
        return steps[step].step_id if steps else "step-1"

    def _over(self, index: int) -> AnyLine:
        step = self._steps[index]
        step.is_told = True
        return events.StepComplete(self._step_id(index), self._status(index), step.iterations, stamp(self._ended_ms))

    def _status(self, index: int) -> events.Status:
        statuses = self._steps[index].statuses
        if not statuses and (self._survey.is_refused or self._is_error(index)):
            return "Failed"
        if "Failed" in statuses:
            return "Failed"
        return "Success" if statuses == {"Success"} else "Cancelled"

    def _is_error(self, index: int) -> bool:
        """Whether an operation of a run was denied, or ended with an error, before it became a call."""
        told = self._survey.told
        return index < len(told) and member(told[index], "type") in {"error", "policyDenied"}

    def _last_lines(self) -> Iterator[AnyLine]:
        planned = range(len(self._survey.plan.steps))
        yield from (self._over(index) for index in planned if not self._steps[index].is_told)
        if self._verified is None:
            yield self._verification([], [], self._ended_ms)
        words = {self._status(index) for index in planned}
        yield events.SessionEnd(
            status="Failed" if "Failed" in words else "Cancelled" if "Cancelled" in words else "Success",
            confidence=self._succeeded / self._settled if self._settled else 0.0,
            total_tool_calls=self._calls,
            total_latency_ms=self._latency_ms,
            t=stamp(self._ended_ms),
        )


def _latency_ms(asked: CallAccepted, ended: CallSettled) -> int:
    if ended.started_ms is None or ended.finished_ms is None:
        return max(0, ended.at - asked.at)
    return max(0, ended.finished_ms - ended.started_ms)


def _output(ended: CallSettled) -> Raw:
    if ended.output is not None:
        return ended.output
    return NULL if ended.fault is None else Raw(msgspec.json.encode(ended.fault))


def _hashed(value: Raw) -> tuple[Raw, str, bool]:
    """What is written of a value, its hash, and whether it is the text of the value: where that cannot be hashed."""
    data = bytes(value)
    try:
        digest, as_text = openagents_hash(data), False
    except NotStrictJson:
        data = msgspec.json.encode(data.decode("utf-8", "replace"))
        digest, as_text = openagents_hash(data), True
    # A body keeps the white space it arrived with. Outside strings a line end is only that; inside there is none.
    return Raw(data.replace(b"\r", b" ").replace(b"\n", b" ")), digest, as_text

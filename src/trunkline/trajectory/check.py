"""Whether a file is a trajectory: REPLAY.jsonl v1, made by us or by anybody else.

Owns which line may follow which, and that every hash that can be computed from the file is the one that it names. Reads
line after line; of what was read it keeps the names of the calls and nothing else. Accepted is what the format leaves
open: events and fields of somebody's own, the later names ``type`` and ``ts``, any text as a policy or a time.

Invariant: no bytes make it raise anything but ``NotATrajectory``, which names the first line that is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, NoReturn

import msgspec
from msgspec import Raw, Struct

from trunkline.canonical import openagents
from trunkline.errors import TrunklineError
from trunkline.strictjson import NotStrictJson
from trunkline.trajectory import events

__all__ = ["Checked", "NotATrajectory", "check", "lines_of"]

# Twice the largest output that a call may have (64 MiB): JSON text inside a string may be that much longer.
MAX_LINE_BYTES: Final = 2 * 67_108_864


Members = dict[str, Raw]
_members: Final = msgspec.json.Decoder(Members).decode
_KNOWN: Final = frozenset(msgspec.json.encode(name) for name in events.KNOWN)


class NotATrajectory(TrunklineError):
    """The file is wrong, first on this line."""

    def __init__(self, line: int, fault: str) -> None:
        super().__init__(f"line {line}: {fault}")
        self.line = line
        self.fault = fault


class Checked(Struct, frozen=True):
    """A trajectory that is whole."""

    session_id: str
    producer: str
    policy_bundle_id: str
    status: str
    confidence: float
    tool_calls: int
    lines: int
    # Computed here, by the file's own values; and what could not be, since the file does not hold what was hashed.
    hashes: int
    unproved: int
    unknown_events: int
    trajectory_hash: str


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, without their ends. A line ends at U+000A and nowhere else."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise NotATrajectory(number, f"is longer than {MAX_LINE_BYTES:,} bytes")
        yield line.removesuffix(b"\n")


def check(lines: Iterable[bytes]) -> Checked:
    """Accept a trajectory, given as its lines; ``NotATrajectory`` says what is wrong first."""
    checking = _Checking()
    for number, line in enumerate(lines, start=1):
        checking.take(number, line)
    return checking.end()


class _Checking:
    """A trajectory of which the lines so far are right."""

    def __init__(self) -> None:
        self._number = 0
        self._header: events.ReplayHeader | None = None
        self._start: events.SessionStart | None = None
        self._end: events.SessionEnd | None = None
        self._has_plan = False
        # The calls without a result, with their steps; and the names of all calls.
        self._open: dict[str, str] = {}
        self._ids: set[str] = set()
        self._hashes = 0
        self._unproved = 0
        self._unknown = 0
        self._digest = hashlib.sha256(b'{"events":[')

    def take(self, number: int, line: bytes) -> None:
        """The next line."""
        self._number = number
        if self._end is not None:
            self._fail("stands after SessionEnd, which is the last line")
        form = self._form(line)
        members = _members(form)
        found = self._event(form, members)
        if number == 1 and not isinstance(found, events.ReplayHeader):
            self._fail("the first line has to be a ReplayHeader")
        if found is None:
            self._unknown += 1
        else:
            self._judge(found, members)
        self._digest.update(form if number == 1 else b"," + form)

    def end(self) -> Checked:
        """There are no more lines."""
        if self._number == 0:
            raise NotATrajectory(1, "the file is empty")
        if self._header is None or self._start is None or self._end is None:
            raise NotATrajectory(
                self._number, "is the last one, and no SessionEnd: the file was cut, or the session was still open"
            )
        session_id = self._start.session_id
        self._digest.update(b'],"session_id":%b}' % openagents(msgspec.json.encode(session_id)))
        return Checked(
            session_id=session_id,
            producer=self._header.producer,
            policy_bundle_id=self._start.policy_bundle_id,
            status=self._end.status,
            confidence=self._end.confidence,
            tool_calls=len(self._ids),
            lines=self._number,
            hashes=self._hashes,
            unproved=self._unproved,
            unknown_events=self._unknown,
            trajectory_hash=f"sha256:{self._digest.hexdigest()}",
        )

    def _fail(self, fault: str) -> NoReturn:
        raise NotATrajectory(self._number, fault)

    def _form(self, line: bytes) -> bytes:
        """The form of a line that is hashed. All else is read from it: its values are in that form too."""
        if not line.strip():
            self._fail("is empty")
        try:
            form = openagents(line)
        except NotStrictJson as refusal:
            raise NotATrajectory(self._number, f"not strict JSON: {_lowered(str(refusal))}") from None
        if not form.startswith(b"{"):
            self._fail("is not a JSON object")
        return form

    def _event(self, form: bytes, members: Members) -> events.AnyLine | None:
        """The event of a line; None if it is one that nobody here knows."""
        name = bytes(members.get("event") or members.get("type") or b"null")
        if not name.startswith(b'"'):
            self._fail("has no `event`")
        if name not in _KNOWN:
            return None
        try:
            is_as_written = "event" in members and "t" in members
            return events.decode(form if is_as_written else events.named_as_written(form))
        except msgspec.DecodeError as error:
            raise NotATrajectory(self._number, f"{name.decode().strip(chr(34))}: {_plain(str(error))}") from None

    def _judge(self, found: events.AnyLine, members: Members) -> None:
        if self._start is None and not isinstance(found, events.ReplayHeader | events.SessionStart):
            self._fail(f"{type(found).__name__} stands before SessionStart")
        match found:
            case events.ReplayHeader():
                if self._number != 1:
                    self._fail("a ReplayHeader stands on the first line only")
                self._header = found
            case events.SessionStart():
                if self._start is not None:
                    self._fail("a second SessionStart")
                self._start = found
            case events.PlanStart():
                self._judge_plan(found, members)
            case events.ToolCall():
                self._judge_call(found, members)
            case events.ToolResult():
                self._judge_result(found, members)
            case events.StepComplete():
                waiting = next((call for call, step in self._open.items() if step == found.step_id), None)
                if waiting is not None:
                    self._fail(f"{found.step_id} is complete, and the call {waiting} of it has no result")
            case events.Verification():
                if len(found.commands) != len(found.exit_codes):
                    self._fail(
                        f"{len(found.commands)} commands and {len(found.exit_codes)} exit_codes: one for each is needed"
                    )
            case events.SessionEnd():
                if self._open:
                    self._fail(f"SessionEnd, and the call {next(iter(self._open))} has no result")
                self._end = found

    def _judge_plan(self, found: events.PlanStart, members: Members) -> None:
        self._has_plan = True
        self._compute("plan_hash", found.plan_hash, members.get("plan"))
        if found.plan is None:
            return
        plan = msgspec.json.decode(found.plan)
        steps = plan.get("steps") if isinstance(plan, dict) else None
        if isinstance(steps, list) and len(steps) != found.step_count:
            self._fail(f"step_count is {found.step_count}, and the plan has {len(steps)} steps")

    def _judge_call(self, found: events.ToolCall, members: Members) -> None:
        if not self._has_plan:
            self._fail("a ToolCall before PlanStart: the plan is made before anything is done")
        if found.id in self._ids:
            self._fail(f"the call {found.id} was there before")
        self._compute("params_hash", found.params_hash, members.get("params"))
        self._ids.add(found.id)
        self._open[found.id] = found.step_id

    def _judge_result(self, found: events.ToolResult, members: Members) -> None:
        if self._open.pop(found.id, None) is None:
            again = "has a result already" if found.id in self._ids else "was not made before"
            self._fail(f"a result of the call {found.id}, which {again}")
        self._compute("output_hash", found.output_hash, members.get("output"))

    def _compute(self, name: str, named: str, value: Raw | None) -> None:
        """That a hash is the one of the value beside it, which is in its form; without it, it proves nothing here."""
        if value is None:
            self._unproved += 1
            return
        self._hashes += 1
        computed = f"sha256:{hashlib.sha256(value).hexdigest()}"
        if computed != named:
            self._fail(f"{name} is {named}, and computes to {computed}")


def _plain(error: str) -> str:
    """What the reader of a type says, for people: ``Expected `float` <= 1.0 - at `$.confidence```."""
    fault, _, place = error.partition(" - at `$.")
    return f"{place.rstrip('`')}: {_lowered(fault)}" if place else _lowered(fault)


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]

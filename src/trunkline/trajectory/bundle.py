"""A whole trajectory as one value, OpenAgents' ReplayBundle, and the way back to the lines of REPLAY.jsonl v1.

Owns what a bundle holds: the session, its steps with their calls, and everything else as metadata. Each part also says
on which line it stands (``line``), and what these types would not write again as it was, an event that nobody knows
or a field of somebody's own, is kept as it is (``others``).

Invariant: ``export(bundle_of(lines))`` is those lines, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.model import OptionalRaw
from trunkline.trajectory import events
from trunkline.trajectory.events import AnyLine

__all__ = ["ReplayBundle", "bundle_of", "decode_bundle", "encode_bundle", "export"]


class ReplayedCall(Struct, omit_defaults=True):
    """A call and its result; one that has none yet has no ``ended_at``."""

    id: str
    tool: str
    params: Raw
    params_hash: str
    output_hash: str | None
    step_utility: float
    latency_ms: int | float
    started_at: str
    line: int
    ended_at: str | None = None
    status: Any = ""
    output: OptionalRaw = None
    params_masked: Any = False
    params_as_text: Any = False
    output_masked: Any = False
    output_as_text: Any = False
    result_line: int = 0


class ReplayStep(Struct, omit_defaults=True):
    """A step of the plan with its calls; one that is not over has no ``completed_at``."""

    step_id: str
    tool_calls: list[ReplayedCall]
    status: events.Status | None
    iterations: int
    completed_at: str | None
    line: int = 0


class ReplayedVerification(Struct):
    """One verification."""

    commands: tuple[str, ...]
    exit_codes: tuple[int, ...]
    verification_delta: int
    t: str
    line: int


class ReplayMetadata(Struct, omit_defaults=True):
    """All that is neither a step nor a call."""

    verification: list[ReplayedVerification]
    replay_version: int
    producer: str
    created_at: str
    issue_number: int | None
    policy_bundle_id: str
    plan_hash: str | None
    step_count: int
    status: events.Status | None
    confidence: float
    total_tool_calls: int
    total_latency_ms: int | float
    ended_at: str | None
    plan: OptionalRaw = None
    started_at: str | None = None
    planned_at: str | None = None
    # The lines of the session's own events, by their names.
    line: dict[str, int] = {}
    # Lines that are kept as they were written, by their number.
    others: dict[str, Raw] = {}


class ReplayBundle(Struct):
    """One session."""

    session_id: str
    steps: list[ReplayStep]
    metadata: ReplayMetadata


encode_bundle: Final = msgspec.json.Encoder().encode
decode_bundle: Final = msgspec.json.Decoder(ReplayBundle).decode
_value: Final = msgspec.json.Decoder(dict[str, Raw]).decode


def bundle_of(lines: Iterable[bytes]) -> ReplayBundle:
    """The bundle of a trajectory that ``check`` accepts, or of one of ours whose session is open."""
    gathering = _Gathering()
    for number, line in enumerate(lines, start=1):
        gathering.take(number, line)
    return gathering.bundle


class _Gathering:
    """A bundle while its lines are read."""

    def __init__(self) -> None:
        empty = ReplayMetadata([], events.REPLAY_VERSION, "", "", None, "", None, 0, None, 0.0, 0, 0, None)
        self.bundle = ReplayBundle("", [], empty)
        self._steps: dict[str, ReplayStep] = {}
        self._calls: dict[str, ReplayedCall] = {}

    def take(self, number: int, line: bytes) -> None:
        try:
            found = events.decode(line)
        except msgspec.ValidationError:
            found = None
        if found is None or not self._took(number, found) or events.encode(found) != line:
            # Written again as a value of its own: one that is on several lines would not be one line any more.
            self.bundle.metadata.others[str(number)] = Raw(msgspec.json.encode(line.decode()))

    def _took(self, number: int, found: AnyLine) -> bool:
        """Put an event in its place; False if that is taken, or there is none."""
        metadata = self.bundle.metadata
        match found:
            case events.ToolCall():
                return self._call(number, found)
            case events.ToolResult():
                return self._result(number, found)
            case events.StepComplete():
                return self._step_over(number, found)
            case events.Verification():
                metadata.verification.append(
                    ReplayedVerification(
                        found.commands, found.exit_codes, found.verification_delta, found.t, line=number
                    )
                )
                return True
            case _:
                return self._own(number, found)

    def _own(self, number: int, found: AnyLine) -> bool:
        metadata, name = self.bundle.metadata, type(found).__name__
        if name in metadata.line:
            return False
        metadata.line[name] = number
        match found:
            case events.ReplayHeader():
                metadata.replay_version, metadata.producer = found.replay_version, found.producer
                metadata.created_at = found.created_at
            case events.SessionStart():
                self.bundle.session_id, metadata.started_at = found.session_id, found.t
                metadata.issue_number, metadata.policy_bundle_id = found.issue_number, found.policy_bundle_id
            case events.PlanStart():
                metadata.plan_hash, metadata.step_count = found.plan_hash, found.step_count
                metadata.plan, metadata.planned_at = found.plan, found.t
            case events.SessionEnd():
                metadata.status, metadata.confidence, metadata.ended_at = found.status, found.confidence, found.t
                metadata.total_tool_calls = found.total_tool_calls
                metadata.total_latency_ms = found.total_latency_ms
            case _:
                return False
        return True

    def _step(self, step_id: str) -> ReplayStep:
        step = self._steps.get(step_id)
        if step is None:
            step = self._steps[step_id] = ReplayStep(step_id, [], None, 0, None)
            self.bundle.steps.append(step)
        return step

    def _call(self, number: int, found: events.ToolCall) -> bool:
        if found.id in self._calls:
            return False
        call = self._calls[found.id] = ReplayedCall(
            found.id, found.tool, found.params, found.params_hash, None, 0.0, 0, found.t, number,
            params_masked=found.masked, params_as_text=found.as_text,
        )  # fmt: skip
        self._step(found.step_id).tool_calls.append(call)
        return True

    def _result(self, number: int, found: events.ToolResult) -> bool:
        call = self._calls.get(found.id)
        if call is None or call.result_line:
            return False
        call.output_hash, call.step_utility, call.latency_ms = found.output_hash, found.step_utility, found.latency_ms
        call.ended_at, call.status, call.output, call.result_line = found.t, found.status, found.output, number
        call.output_masked, call.output_as_text = found.masked, found.as_text
        return True

    def _step_over(self, number: int, found: events.StepComplete) -> bool:
        step = self._step(found.step_id)
        if step.line:
            return False
        step.status, step.iterations, step.completed_at = found.status, found.iterations, found.t
        step.line = number
        return True


def export(bundle: ReplayBundle) -> Iterator[bytes]:
    """The lines of REPLAY.jsonl v1, without line ends."""
    placed = {number: events.encode(line) for number, line in _lines(bundle)}
    for number, kept in bundle.metadata.others.items():
        placed[int(number)] = msgspec.json.decode(kept, type=str).encode()
    return (placed[number] for number in sorted(placed))


def _lines(bundle: ReplayBundle) -> Iterator[tuple[int, AnyLine]]:
    yield from _own_lines(bundle)
    for step in bundle.steps:
        for call in step.tool_calls:
            yield from _call_lines(step.step_id, call)
        if step.line and step.status is not None and step.completed_at is not None:
            yield step.line, events.StepComplete(step.step_id, step.status, step.iterations, step.completed_at)
    for one in bundle.metadata.verification:
        yield one.line, events.Verification(one.commands, one.exit_codes, one.verification_delta, one.t)


def _own_lines(bundle: ReplayBundle) -> Iterator[tuple[int, AnyLine]]:
    metadata = bundle.metadata
    line = metadata.line
    if "ReplayHeader" in line:
        yield line["ReplayHeader"], events.ReplayHeader(1, metadata.producer, metadata.created_at)
    if metadata.started_at is not None:
        yield (
            line["SessionStart"],
            events.SessionStart(
                bundle.session_id, metadata.issue_number, metadata.policy_bundle_id, metadata.started_at
            ),
        )
    if metadata.plan_hash is not None and metadata.planned_at is not None:
        yield (
            line["PlanStart"],
            events.PlanStart(metadata.plan_hash, metadata.step_count, metadata.planned_at, metadata.plan),
        )
    if metadata.status is not None and metadata.ended_at is not None:
        yield (
            line["SessionEnd"],
            events.SessionEnd(
                metadata.status, metadata.confidence, metadata.total_tool_calls, metadata.total_latency_ms,
                metadata.ended_at,
            ),
        )  # fmt: skip


def _call_lines(step_id: str, call: ReplayedCall) -> Iterator[tuple[int, AnyLine]]:
    yield call.line, events.ToolCall(
        call.id, call.tool, call.params, call.params_hash, step_id, call.started_at, call.params_masked,
        call.params_as_text,
    )  # fmt: skip
    if call.output_hash is not None and call.ended_at is not None:
        yield call.result_line, events.ToolResult(
            call.id, call.output_hash, call.step_utility, call.latency_ms, call.ended_at, call.status, call.output,
            call.output_masked, call.output_as_text,
        )  # fmt: skip

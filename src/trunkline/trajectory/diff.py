"""Where two runs part: the first call, its params, its output or its outcome in which two trajectories differ.

Compares by hashes, call by call in the order in which they were made, and keeps of each call its names and hashes only;
what differs is read again by whoever shows it. Times, ids and latencies are no difference. Both files have to be
trajectories (``check``).

Invariant: two runs part where the earlier of two differences was written: a call that differs because an earlier output
did is told as that output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from trunkline.trajectory import events

__all__ = ["Difference", "Side", "difference", "first_change", "run_of"]

What = Literal["call", "params", "output", "outcome", "end"]


class _Call(Struct):
    """One call of a run, and the lines on which it and its result stand."""

    tool: str
    params_hash: str
    line: int
    output_hash: str = ""
    outcome: str = ""
    result_line: int = 0


class Run(Struct):
    """What is compared of a trajectory."""

    calls: list[_Call]
    status: str = ""
    last_line: int = 0


class Side(Struct, frozen=True):
    """One of the two runs where they part: the line, and what stands there; nothing if it has no such call."""

    line: int
    tool: str = ""
    shown: str = ""


class Difference(Struct, frozen=True):
    """Where two runs part. ``call`` counts from 1; 0 where all calls are the same."""

    what: What
    call: int
    a: Side
    b: Side


_OUTCOMES: Final = {1.0: "succeeded", -1.0: "failed"}


def run_of(lines: Iterable[bytes]) -> Run:
    """What is compared of a trajectory, from its lines."""
    run = Run([])
    by_id: dict[str, _Call] = {}
    for number, line in enumerate(lines, start=1):
        run.last_line = number
        try:
            found = events.decode(events.named_as_written(line))
        except msgspec.ValidationError:
            # An event of somebody's own.
            continue
        match found:
            case events.ToolCall():
                by_id[found.id] = call = _Call(found.tool, found.params_hash, number)
                run.calls.append(call)
            case events.ToolResult() if found.id in by_id:
                call = by_id.pop(found.id)
                call.output_hash, call.result_line = found.output_hash, number
                call.outcome = str(found.status) or _OUTCOMES.get(found.step_utility, str(found.step_utility))
            case events.SessionEnd():
                run.status = found.status
            case _:
                pass
    return run


def difference(a: Run, b: Run) -> Difference | None:
    """Where they part; None if they do not."""
    found = _first_call(a, b)
    paired = min(len(a.calls), len(b.calls)) if found is None else found.call - 1
    before = a.last_line + 1 if found is None else found.a.line
    earliest: Difference | None = None
    for number, (one, other) in enumerate(zip(a.calls[:paired], b.calls[:paired], strict=True), start=1):
        if (one.outcome, one.output_hash) == (other.outcome, other.output_hash) or one.result_line >= before:
            continue
        before = one.result_line
        what: What = "output" if one.outcome == other.outcome else "outcome"
        earliest = Difference(what, number, _result(one), _result(other))
    if earliest is not None or found is not None:
        return earliest or found
    if a.status != b.status:
        return Difference("end", 0, Side(a.last_line, shown=a.status), Side(b.last_line, shown=b.status))
    return None


def _result(call: _Call) -> Side:
    return Side(call.result_line, call.tool, call.outcome)


def _first_call(a: Run, b: Run) -> Difference | None:
    for number, (one, other) in enumerate(zip(a.calls, b.calls, strict=False), start=1):
        if one.tool != other.tool or one.params_hash != other.params_hash:
            what: What = "call" if one.tool != other.tool else "params"
            return Difference(what, number, Side(one.line, one.tool), Side(other.line, other.tool))
    common = min(len(a.calls), len(b.calls))
    if len(a.calls) == len(b.calls):
        return None
    sides = [Side(run.calls[common].line, run.calls[common].tool) if len(run.calls) > common else Side(run.last_line)
             for run in (a, b)]  # fmt: skip
    return Difference("call", common + 1, sides[0], sides[1])


def first_change(a: Raw | None, b: Raw | None) -> tuple[str, Any, Any]:
    """The place of the first member in which two values differ (``$.items[2].name``), and what stands there in each."""
    absent = "(nothing)"
    one, other = (absent if value is None else msgspec.json.decode(value) for value in (a, b))
    place = "$"
    while True:
        if isinstance(one, dict) and isinstance(other, dict):
            # By their names, as they are hashed: the order in which members were written is no difference.
            keys = sorted({*one, *other})
            key = next((name for name in keys if not _same(one.get(name, absent), other.get(name, absent))), None)
            if key is None:
                return place, one, other
            place, one, other = f"{place}.{key}", one.get(key, absent), other.get(key, absent)
        elif isinstance(one, list) and isinstance(other, list):
            at = next((n for n, (x, y) in enumerate(zip(one, other, strict=False)) if not _same(x, y)), None)
            at = min(len(one), len(other)) if at is None else at
            if at == len(one) == len(other):
                return place, one, other
            place = f"{place}[{at}]"
            one, other = (side[at] if at < len(side) else absent for side in (one, other))
        else:
            return place, one, other


def _same(one: object, other: object) -> bool:
    # To Python 1, 1.0 and True are one value; to a hash they are three.
    return msgspec.json.encode(one) == msgspec.json.encode(other) if one == other else False

"""What must hold of runs of spaces after a simulation: what people were told against the record.

As in ``promises`` nothing is taken from the exchange's memory. That an operation has its effect once, for a call that
is on record and was allowed, is judged where all calls are (``promises``).

Owns what is compared of runs. Does not own the record's reading.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from trunkline.edges.spaces.process import PROCESS
from trunkline.entries import ProcessStep
from trunkline.testing.promises import Breach, Record
from trunkline.testing.witness import SpaceRun, Witness


def breaches(witness: Witness, record: Record) -> Iterator[Breach]:
    """Everything that was not kept."""
    steps: dict[str, list[ProcessStep]] = {}
    for step in record.steps:
        if step.process == PROCESS:
            steps.setdefault(step.subject, []).append(step)
    for run_id, found in steps.items():
        yield from (Breach(f"the run {run_id} {text}") for text in _on_record(found, run_id, witness, record))
    for run in witness.runs.values():
        found = steps.get(run.run_id, [])
        yield from (Breach(f"the run {run.run_id} {text}") for text in _told(run, found, witness.crashed_run))


def _on_record(steps: list[ProcessStep], run_id: str, witness: Witness, record: Record) -> Iterator[str]:
    names = [step.step for step in steps]
    if names != ["started", "ended"]:
        yield f"has the steps {', '.join(names)} on record"
        return
    message, ended = msgspec.json.decode(steps[0].data)["message"], msgspec.json.decode(steps[1].data)
    asked = [operation["id"] for operation in message["operations"]]
    told = [_operation_of(event) for event in ended["events"] if event["type"] != "approvalRequired"]
    ends = [name for name in told if name]
    if ends != asked[: len(ends)]:
        yield f"told of {', '.join(ends)}, asked for were {', '.join(asked)}"
    if ended["status"] == "completed" and len(ends) != len(asked):
        yield f"is completed, and told of {len(ends)} of {len(asked)} operations"
    done = _effects(run_id, witness, record)
    for index in sorted(set(done)):
        if done.count(index) > 1:
            yield f"had the effect of {asked[index]} {done.count(index)} times"
    if done != sorted(done):
        yield f"had its effects in the order {done}"
    for event in ended["events"]:
        name = _operation_of(event)
        if event.get("success") and event["type"] not in {"message", "readFile"} and asked.index(name) not in done:
            yield f"says that {name} was done, and it was not"


def _effects(run_id: str, witness: Witness, record: Record) -> list[int]:
    """The operations of a run that changed something, in the order in which they did."""
    found = []
    for execution in witness.executions:
        accepted = record.call(execution.call_id)
        if execution.side_effects and accepted is not None and accepted.correlation_id == run_id:
            found.append(int((execution.key or "").rpartition("/")[2]))
    return found


def _told(run: SpaceRun, steps: list[ProcessStep], crashed_run: int) -> Iterator[str]:
    if not steps:
        yield "was taken on, and is not on record"
    if len(steps) != 2:
        return
    events = msgspec.json.decode(steps[1].data)["events"]
    for in_run, first, shown in run.looks:
        told = list(itertools.takewhile(_lasts, shown)) if in_run <= crashed_run else shown
        now = events[first : first + len(told)]
        if len(now) != len(told) or not all(map(_is_same, told, now)):
            says = [_kept(event) for event in now]
            yield f"was told of with {told} from event {first} on, and the record says {says}"


def _lasts(event: dict[str, Any]) -> bool:
    """Whether this is told only once it is on record. What was read or refused may be different after a crash."""
    kinds = {"message", "readFile"}
    return event["type"] not in {*kinds, "policyDenied", "error"} and event.get("operationType") not in kinds


def _is_same(told: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether an event is what it was; or one of which its caller may hear no more, by the rules after a restart."""
    is_withheld = now["type"] == "error" and "its outcome is not told" in now["message"]
    return _kept(told) == _kept(now) or (is_withheld and _operation_of(told) == _operation_of(now))


def _kept(event: dict[str, Any]) -> tuple[str, str, object]:
    """Of an event, what may never be different: texts may be masked, and what was read may be read again."""
    return event["type"], _operation_of(event), event["type"] == "readFile" or event.get("success")


def _operation_of(event: dict[str, Any]) -> str:
    return str(event.get("operationId", ""))

"""What a session intended before anything was done: its plan, worked out from entries that precede the first effect.

The plan of a run of a space is its operations, from the step by which the run was put on record; that of a sandbox job
its commands, from the input of its call; of everything else the call itself. All of these are on disk before anything
is carried out, in a chain of hashes, so a plan needs no entry and no field of its own (decision 68).

Invariant: a plan depends on nothing that was recorded after its session's first call was taken on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.canonical import openagents_hash
from trunkline.entries import CallAccepted, CallRefused, ProcessStep

RUN: Final = "spaces.run"
SANDBOX_JOB: Final = "oa.sandbox_run.v1"
_OPERATION_TOOLS: Final = {
    "createFile": "create_file",
    "readFile": "read_file",
    "editFile": "edit_file",
    "deleteFile": "delete_file",
}


class PlannedStep(Struct, frozen=True, omit_defaults=True):
    """One step of a plan."""

    step_id: str
    description: str
    tool: str


class Plan(Struct, frozen=True):
    """A goal, which is the tool asked for at the top, and the steps to it."""

    goal: str
    steps: tuple[PlannedStep, ...]

    @property
    def json(self) -> Raw:
        """The value that is hashed."""
        return Raw(msgspec.json.encode(self))

    @property
    def hash(self) -> str:
        """Its hash, in the form of OpenAgents."""
        return openagents_hash(self.json)


def plan_of(first: CallAccepted | CallRefused | ProcessStep) -> Plan:
    """The plan of a session that began with this entry."""
    if isinstance(first, ProcessStep):
        return _of_run(first)
    commands = commands_of_job(first) if isinstance(first, CallAccepted) else []
    return _made(first.tool_id, [(command, first.tool_id) for command in commands] or [("call", first.tool_id)])


def is_run(entry: object) -> bool:
    """Whether this entry put a run of a space on record."""
    return isinstance(entry, ProcessStep) and entry.process == RUN and entry.step == "started"


def is_sandbox_job(tool_id: str) -> bool:
    """Whether a call of this tool runs the commands of a sandbox job, here or at another provider."""
    return tool_id.rpartition("/")[2] == SANDBOX_JOB


def commands_of_job(call: CallAccepted) -> list[str]:
    """The commands that a call asks a sandbox to run; none if it is no such call."""
    if not is_sandbox_job(call.tool_id):
        return []
    commands = member(loaded(call.input), "commands")
    found = [member(one, "cmd") for one in commands] if isinstance(commands, list) else []
    return [text for text in found if isinstance(text, str)]


def _of_run(started: ProcessStep) -> Plan:
    data = loaded(started.data)
    space, operations = member(data, "space"), member(member(data, "message"), "operations")
    steps = []
    for operation in operations if isinstance(operations, list) else []:
        kind = str(member(operation, "type"))
        what = next((text for name in ("command", "path") if isinstance(text := member(operation, name), str)), "")
        steps.append((f"{kind} {what}".rstrip(), f"space.{space}/{_OPERATION_TOOLS.get(kind, kind)}"))
    return _made(steps[0][1] if steps else f"space.{space}", steps)


def _made(goal: str, steps: list[tuple[str, str]]) -> Plan:
    return Plan(goal, tuple(PlannedStep(f"step-{at}", text, tool) for at, (text, tool) in enumerate(steps, start=1)))


def loaded(data: Raw | None) -> Any:
    """The value of JSON that is on record; of what is not there, nothing."""
    try:
        return None if data is None else msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def member(value: Any, name: str) -> Any:
    """A member of an object; None of anything else."""
    return value.get(name) if isinstance(value, dict) else None

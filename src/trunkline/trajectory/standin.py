"""The calls of a trajectory as something that can be asked again: same tool and params, same outcome.

Owns what is kept of a recording and which answer a call gets; speaks to nobody (``sdk.recorded`` does). A call that was
made several times with the same params is answered in the recorded order, and from then on with the last answer.

Invariant: what is answered stands in the file, with a hash that computes. Nothing is made up: params that were never
recorded have no answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw, Struct

from trunkline.canonical import openagents_hash
from trunkline.model import Fault
from trunkline.strictjson import NotStrictJson
from trunkline.trajectory import events

__all__ = ["RecordedAnswer", "Recording"]


class RecordedAnswer(Struct, frozen=True):
    """What a call came to: an output, or a fault."""

    output: Raw | None = None
    fault: Fault | None = None


class Recording:
    """All answers of one trajectory, by tool and by the hash of the params."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], list[RecordedAnswer]] = {}
        self._given: dict[tuple[str, str], int] = {}
        self.left_out = 0

    @classmethod
    def of(cls, lines: Iterable[bytes]) -> Recording:
        """From the lines of a trajectory that ``check`` accepts. Calls whose output it does not hold are left out."""
        recording = cls()
        asked: dict[str, tuple[str, str]] = {}
        for line in lines:
            try:
                found = events.decode(events.named_as_written(line))
            except msgspec.ValidationError:
                continue
            if isinstance(found, events.ToolCall):
                asked[found.id] = (found.tool, found.params_hash)
            elif isinstance(found, events.ToolResult) and found.id in asked:
                recording._keep(asked.pop(found.id), found)
        return recording

    def _keep(self, key: tuple[str, str], found: events.ToolResult) -> None:
        if found.output is None or found.as_text:
            self.left_out += 1
            return
        answers = self._answers.setdefault(key, [])
        succeeded = found.step_utility > 0 if not found.status else found.status == "succeeded"
        # Its own bytes: they are a view of the whole line.
        answers.append(RecordedAnswer(output=found.output.copy()) if succeeded else RecordedAnswer(fault=_fault(found)))

    @property
    def tools(self) -> dict[str, int]:
        """The tools that can be asked, and how many different params each has answers for."""
        counted: dict[str, int] = {}
        for tool, _ in self._answers:
            counted[tool] = counted.get(tool, 0) + 1
        return counted

    def answer(self, tool: str, params: bytes) -> RecordedAnswer | None:
        """What such a call came to; None if none with these params is recorded."""
        try:
            key = (tool, openagents_hash(params))
        except NotStrictJson:
            return None
        answers = self._answers.get(key)
        if answers is None:
            return None
        given = self._given.get(key, 0)
        self._given[key] = given + 1
        return answers[min(given, len(answers) - 1)]


def _fault(found: events.ToolResult) -> Fault:
    try:
        fault = msgspec.json.decode(found.output or b"null", type=Fault)
    except msgspec.DecodeError:
        fault = Fault("tool.failed", "the recorded call did not succeed")
    if found.status in {"canceled", "unknown"}:
        return msgspec.structs.replace(fault, details={**(fault.details or {}), "recorded_status": found.status})
    return fault

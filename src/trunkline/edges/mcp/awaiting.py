"""Calls of MCP clients that wait for a person, and by what a repeat of one is known.

No connection waits for a person, so the client makes its call again afterwards. A call is the repeat of an earlier one
if the caller, the tool and the input are the same, and the earlier one waited for a person and its outcome was not told
yet. Once it was told, the next such call is a new one. What waits is on record (``process.step`` of ``mcp.call``), so
this holds after a crash too (decision 96).

Invariant: the outcome of a call that waited is told at least once, and no repeat runs before it was.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.canonical import exact
from trunkline.edges.exchange import Feed, Views
from trunkline.edges.mcp.translate import EDGE
from trunkline.edges.waiting import ask
from trunkline.events import ProcessStepped
from trunkline.model import Fault

PROCESS: Final = "mcp.call"
# Of one caller; the oldest is given up for one more. Nobody asks a person a thousand things and forgets all of them.
MAX_AWAITED: Final = 1024


class Awaited(Struct, frozen=True):
    """What is on record of a call that waits: by this its repeat is known."""

    caller: str
    tool_id: str
    input_sha256: str


_read: Final = msgspec.json.Decoder(Awaited).decode


class Awaiting:
    """The calls that wait, or waited and whose outcome was not told."""

    def __init__(self, feed: Feed, views: Views) -> None:
        self._feed = feed
        self._views = views
        # By caller, so that a flood of one pushes out nothing of another's; the oldest first.
        self._calls: dict[str, dict[Awaited, str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))

    async def restore(self) -> None:
        """Take up what was on record at the start."""
        for call_id, steps in self._views.open_steps(PROCESS).items():
            self._put(_read(steps[0].data), call_id)
        # One that was asked about in the moment of a crash has its question on record, and no step.
        for question in self._views.questions():
            if question.subject != "call" or not question.asked_by.startswith(f"{EDGE}:"):
                continue
            if question.call_id is None or question.tool_id is None or question.input is None:
                continue
            # Put on record now: once it is answered, its question says nothing any more.
            await self.add(question.asked_by, question.tool_id, question.input, question.call_id)

    def find(self, caller: str, tool_id: str, body: Raw) -> str | None:
        """The earlier call of which this would be the repeat."""
        of_caller = self._calls.get(caller)
        return None if not of_caller else of_caller.get(_known_by(caller, tool_id, body))

    async def add(self, caller: str, tool_id: str, body: Raw, call_id: str) -> Fault | None:
        """A person is asked about a call: its repeat is known from here on. Why it is not, after a crash, if so."""
        known_by = _known_by(caller, tool_id, body)
        if self._calls.get(caller, {}).get(known_by) == call_id:
            return None
        self._put(known_by, call_id)
        problem = await self._step(call_id, "waiting", known_by)
        of_caller = self._calls.get(caller, {})
        while len(of_caller) > MAX_AWAITED:
            oldest = next(iter(of_caller))
            await self._step(of_caller.pop(oldest), "given_up", oldest, done=True)
        return problem

    async def told(self, caller: str, tool_id: str, body: Raw, call_id: str) -> None:
        """The outcome of a call left for its caller: the next such call is a new one."""
        known_by = _known_by(caller, tool_id, body)
        of_caller = self._calls.get(caller, {})
        if of_caller.get(known_by) != call_id:
            return
        del of_caller[known_by]
        if not of_caller:
            del self._calls[caller]
        await self._step(call_id, "told", known_by, done=True)

    def _put(self, known_by: Awaited, call_id: str) -> None:
        self._calls.setdefault(known_by.caller, {})[known_by] = call_id

    async def _step(self, call_id: str, step: str, known_by: Awaited, *, done: bool = False) -> Fault | None:
        """Put a step on record; why it is not there, if so."""
        data = Raw(msgspec.json.encode(known_by))
        problem: Fault | None = None
        # What was written for the caller may have reached its limit with the call itself. That call is on record and
        # may run, so what keeps it from running twice has to be there, too: one small entry for each such call.
        for caller in (known_by.caller, ""):
            stepped = functools.partial(
                ProcessStepped, process=PROCESS, subject=call_id, step=step, data=data, done=done, caller=caller
            )
            problem = (await ask(self._feed, stepped)).fault
            if problem is None or problem.code != "limit.rate":
                break
        return problem


def _known_by(caller: str, tool_id: str, body: Raw) -> Awaited:
    return Awaited(caller, tool_id, hashlib.sha256(exact(body)).hexdigest())

"""What can be looked at of a running exchange: ``edges.exchange.Views`` over the hub's memory and the record on disk.

Owns where something is looked for: open and recent calls in the hub, older ones in the ledger, processes at the
supervisor; and which calls ran a command that failed, which the hub cannot tell. Changes nothing, and decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from trunkline.edges.exchange import ReceiptView, Views
from trunkline.entries import CallAccepted, CallSettled, ProcessStep
from trunkline.errors import LedgerError
from trunkline.host.receipts import Judges, checked
from trunkline.host.runner import Processes, Runner
from trunkline.hub import views
from trunkline.hub.state import Call
from trunkline.ledger import export, receipts
from trunkline.ledger.reader import Reader, call_number
from trunkline.ledger.search import Found
from trunkline.model import NOBODY, Behalf, Fault, LargeOutput, Principal, Status, Verdict
from trunkline.shown import AgentView, CallSearch, CallView, Question, TokenView, ToolView
from trunkline.trajectory.commands import failed_with

# Pairs of a large output and its caller. Who is forgotten looks at his call again.
MAX_LARGE: Final = 16_384


class Searcher(Protocol):
    """Who searches in an index of calls: a process of its own, or nobody."""

    async def find(self, wanted: CallSearch) -> Found:
        """Search. ``LedgerError`` if that cannot be done."""


class NoIndex:
    """Where there is none."""

    async def find(self, wanted: CallSearch) -> Found:
        """Nothing can be found."""
        raise LedgerError(f"there is no index of calls here to find {wanted.limit} in")


class Reading(Views):
    """The views of one exchange."""

    def __init__(
        self,
        runner: Runner,
        reader: Reader,
        processes: Processes,
        searcher: Searcher,
        of_edges: Callable[[], list[AgentView]] = list,
        judges: Judges = dict,
    ) -> None:
        """``of_edges`` are the agents that edges look after, beside those that are processes here; ``judges`` say
        which payments are believed.
        """
        self._runner = runner
        self._hub = runner.hub
        self._reader = reader
        self._processes = processes
        self._of_edges = of_edges
        self._searcher = searcher
        self._judges = judges
        # Large outputs by their hashes, and whose calls they belong to, as far as somebody looked.
        self._large: dict[tuple[str, str], None] = {}
        # Calls whose outputs were looked at for that.
        self._looked_at: dict[str, None] = {}

    def storage_trouble(self) -> str:
        """Why nothing can be put on record, if that is so."""
        return self._hub.in_force.storage_trouble

    def closed(self) -> Fault | None:
        """Why nothing new is taken on, if that is so."""
        return self._hub.in_force.closed

    def agents(self) -> list[AgentView]:
        """All agents, launched or attached."""
        found = {agent.agent_id: views.agent(self._hub, agent) for agent in self._hub.registry.agents.values()}
        for run in (*self._processes.views(), *self._of_edges()):
            attached = found.get(run.agent_id)
            if run.resident:
                if attached is not None:
                    found[run.agent_id] = msgspec.structs.replace(attached, health=run.health, note=run.note)
            elif attached is None:
                note = run.note or self._hub.registry.why_stopping(run.agent_id)
                found[run.agent_id] = msgspec.structs.replace(run, steerable=True, note=note)
            else:
                found[run.agent_id] = msgspec.structs.replace(
                    attached,
                    pid=run.pid,
                    run_id=run.run_id,
                    restarts=run.restarts,
                    isolation=run.isolation,
                    note=run.note,
                    steerable=True,
                )
        return [found[agent_id] for agent_id in sorted(found)]

    def agent(self, agent_id: str) -> AgentView | None:
        """One agent that is attached."""
        found = self._hub.registry.agents.get(agent_id)
        return None if found is None else views.agent(self._hub, found)

    def tools(self, limit: int | None = None, after: str = "") -> list[ToolView]:
        """Tools by name: all, or the first so many after a name."""
        return views.tools(self._hub, self._runner.now(), limit, after)

    def tools_version(self) -> int:
        """A number that changes with the list of tools."""
        return self._hub.registry.version

    def tool(self, tool_id: str) -> ToolView | None:
        """One tool."""
        return views.tool(self._hub, tool_id, self._runner.now())

    def tools_named(self, name: str) -> list[ToolView]:
        """The tools whose part after the slash is this."""
        return views.tools_named(self._hub, name, self._runner.now())

    def call(self, call_id: str) -> CallView | None:
        """One call, open or settled."""
        view = views.call(self._hub, call_id, _settled_view)
        if view is not None:
            return self._shown(view)
        number = call_number(call_id)
        found = None if number is None else self._reader.call(number)
        if found is None or found[0].call_id != call_id:
            return None
        return self._shown(_stored_view(*found))

    def keyed(self, caller: str, key: str) -> CallView | None:
        """The call that a repeat with this key of this caller would join."""
        key_id = self._hub.fingerprints.key_id(caller, key)
        call_id = self._hub.state.keys.get(key_id)
        if call_id is not None:
            return self.call(call_id)
        found = self._reader.by_key(key_id)
        return None if found is None else _stored_view(*found)

    def awaited(self, session: int, ref: str) -> CallView | None:
        """The call whose outcome this conversation waits for under ``ref``, also while that is on its way to disk."""
        answer = self._runner.held_answer(session, ref)
        return views.awaited(self._hub, session, ref) if answer is None else self.call(answer.call_id)

    def calls(
        self, limit: int, before: int | None, correlation_id: str | None = None, caller: str | None = None
    ) -> tuple[list[CallView], int | None]:
        """Calls, newest first, and where the next page starts. What is not on disk yet comes from memory."""
        stored, following = self._reader.calls_page(before, limit, correlation_id, caller)
        found = {accepted.n: _listed_view(accepted, settled, size) for accepted, settled, size in stored}
        # What is before the next page's start belongs there.
        numbers = range(following or 0, sys.maxsize if before is None else before)
        found.update(views.calls_in_memory(self._hub, numbers, limit + 1, correlation_id, caller, _settled_listed))
        newest = sorted(found, reverse=True)
        shown = newest[:limit]
        return [found[n] for n in shown], shown[-1] if len(newest) > limit else following

    async def search(self, wanted: CallSearch) -> tuple[list[CallView], int | None]:
        """Calls that are looked for. The index knows of outcomes only; how an open call stands, the hub says."""
        found = await self._searcher.find(wanted)
        shown = []
        for accepted, settled, size in self._reader.listed(found.numbers):
            is_open = views.call(self._hub, accepted.call_id, _settled_view) if settled is None else None
            view = _listed_view(accepted, settled, size) if is_open is None else is_open
            if not wanted.status or view.status.value == wanted.status:
                shown.append(view)
        return shown, found.next

    def questions(self) -> list[Question]:
        """The open questions."""
        return self._hub.approvals.views()

    def question(self, approval_id: str) -> Question | None:
        """One open question."""
        named = self._hub.approvals.find(approval_id)
        wanted = approval_id if named is None else named.entry.approval_id
        return next((found for found in self.questions() if found.approval_id == wanted), None)

    def check(self, caller: str, tool_id: str, body: Raw | None, on_behalf_of: Behalf = NOBODY) -> Verdict:
        """What would happen to such a call."""
        return views.dry_run(self._hub, caller, tool_id, body, self._runner.now(), on_behalf_of)

    def behalf(self, caller: str) -> Behalf:
        """For whom this caller asks at this moment."""
        return self._hub.judging.behalf(caller, self._runner.now())

    def judged(self, caller: str, name: str) -> Verdict:
        """What the rules say to a name that is no tool, for this caller and those for whom he asks."""
        return self._hub.judging.judged(caller, name, self._runner.now())

    def denied(self, call_id: str) -> Fault | None:
        """Why an open call may not go on, if it may not."""
        found = self._hub.state.calls.get(call_id)
        return None if found is None else self._hub.calls.denial(found)

    def blob(self, sha256: str, by: Principal) -> bytes | None:
        """A large body by its hash, if it belongs to a call that ``by`` may see."""
        return self._reader.blob(sha256) if by.is_operator or self._is_output_of(sha256, by.identity) else None

    def _is_output_of(self, sha256: str, caller: str) -> bool:
        """Whether a call of this caller has this output: one in memory, one that was shown, or the newest on record."""
        if (sha256, caller) in self._large or self._reader.newest_user(sha256) == caller:
            return True
        for call_id, recent in self._hub.state.recent.items():
            if recent.accepted.caller == caller and recent.settled.n <= self._hub.state.stored:
                self._look_at(call_id, recent.settled.output, caller)
        return (sha256, caller) in self._large

    def _look_at(self, call_id: str, output: Raw | None, caller: str) -> None:
        """Remember the hash of a call's output, if it is a large one; it is made once, not for each who asks."""
        if call_id in self._looked_at:
            return
        large = LargeOutput.of(output)
        if large is not None:
            self._remember(large, caller)
            self._looked_at[call_id] = None
            if len(self._looked_at) > MAX_LARGE:
                del self._looked_at[next(iter(self._looked_at))]

    def _shown(self, view: CallView | None) -> CallView | None:
        if view is not None and view.large is not None:
            self._remember(view.large, view.caller)
        return view

    def _remember(self, large: LargeOutput, caller: str) -> None:
        self._large[large.sha256, caller] = None
        if len(self._large) > MAX_LARGE:
            del self._large[next(iter(self._large))]

    def entries(self, *, call_id: str | None = None, correlation_id: str | None = None) -> list[bytes]:
        """The masked entries of a call or a correlation."""
        return list(export.entry_lines(self._reader, call_id=call_id, correlation=correlation_id))

    def last_entry(self) -> int:
        """The number of the latest entry."""
        return self._hub.state.last

    def recorded(self, first: int, last: int) -> list[bytes]:
        """The masked entries from one number to another that are on disk."""
        return list(self._reader.lines(first, last))

    def has_correlation(self, correlation_id: str, last: int) -> bool:
        """Whether something is recorded under a correlation up to this entry."""
        return any(number <= last for number in self._reader.by_correlation(correlation_id)[:1])

    def trajectory(self, correlation_id: str, *, call_id: str = "", caller: str = "") -> Iterator[bytes]:
        """A correlation as REPLAY.jsonl v1, line by line as it is read: all of it, or one call's or caller's part."""
        return export.trajectory(self._reader, correlation_id, call_id=call_id, caller=caller)

    def receipts(self, limit: int, before: int | None) -> tuple[list[Raw], int | None]:
        """Receipts on record as JSON, newest first, and where the next page starts."""
        found = list(itertools.islice(receipts.listed(self._reader, before), limit + 1))
        following = found[limit - 1].number if len(found) > limit else None
        return [one.issued.receipt for one in found[:limit]], following

    async def receipt(self, receipt_id: str) -> ReceiptView | None:
        """One receipt with its links followed, beside the work: a session may be long."""

        def read() -> ReceiptView | None:
            with contextlib.closing(self._reader.another()) as reader:
                return checked(reader, receipt_id, self._judges)

        return await asyncio.to_thread(read)

    def credential(self, edge: str, token_sha256: str) -> TokenView | None:
        """The standing credential that is known by this hash and good for this edge."""
        return views.credential(self._hub, edge, token_sha256)

    def credentials(self, edge: str, agent: str) -> list[TokenView]:
        """The standing credentials of one agent that are good for this edge, newest first."""
        return views.credentials(self._hub, edge, agent)

    def revoked(self, edge: str, token_sha256: str) -> TokenView | None:
        """The credential that was known by this hash on this edge and was revoked."""
        return views.revoked(self._hub, edge, token_sha256)

    def was_offered(self, tool_id: str) -> bool:
        """Whether a definition of this tool is in force, also if nobody offers the tool now."""
        return tool_id in self._hub.state.pins

    def open_steps(self, process: str) -> dict[str, list[ProcessStep]]:
        """What is on record of the subjects of a process that are not done."""
        found = self._hub.state.processes.items()
        return {subject: list(steps) for (name, subject), steps in found if name == process}

    def steps(self, process: str, subject: str) -> list[ProcessStep]:
        """What is on record of one subject."""
        found = (self._reader.entry(number) for number in self._reader.steps(subject))
        return [entry for entry in found if isinstance(entry, ProcessStep) and entry.process == process]


def _stored_view(accepted: CallAccepted, settled: CallSettled | None) -> CallView:
    if settled is not None:
        return _settled_view(accepted, settled)
    return views.open_call(Call(accepted, Status.RUNNING))


def _listed_view(accepted: CallAccepted, settled: CallSettled | None, moved_bytes: int) -> CallView:
    if settled is not None:
        return _settled_listed(accepted, settled, moved_bytes)
    return views.open_call(Call(accepted, Status.RUNNING))


def _settled_view(accepted: CallAccepted, settled: CallSettled) -> CallView:
    return _with_exit_code(views.settled_call(accepted, settled), settled)


def _settled_listed(accepted: CallAccepted, settled: CallSettled, moved_bytes: int = 0) -> CallView:
    return _with_exit_code(views.listed_call(accepted, settled, moved_bytes), settled)


def _with_exit_code(view: CallView, settled: CallSettled) -> CallView:
    """A call that succeeded may have run a command that failed; lists say so, also where they leave the output out."""
    if settled.status is not Status.SUCCEEDED:
        return view
    code = failed_with(view.tool_id, settled.output, settled.metrics)
    return view if code is None else msgspec.structs.replace(view, failed_with=code)

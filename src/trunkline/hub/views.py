"""What the hub shows of itself as values: agents, tools, open and recent calls, figures, and a dry run of a call.

Owns the way from live state to the views of ``model``. Does not own what is on disk (``host.reading`` joins the two),
who may see what (each edge says that), which commands a call ran (``host.reading`` knows tools by name), or how a view
looks on a wire.

Invariant: nothing here changes anything; a view is a copy that stays as it is while the hub goes on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from trunkline.entries import CallAccepted, CallSettled, TokenIssued
from trunkline.events import CallRequested
from trunkline.hub.calls import waits_for_disk
from trunkline.hub.hub import Hub
from trunkline.hub.judging import Case
from trunkline.hub.registry import Agent, Tool
from trunkline.hub.state import Call, Settled
from trunkline.model import (
    EMPTY_OBJECT,
    NOBODY,
    Behalf,
    Decision,
    LargeOutput,
    Now,
    Principal,
    Status,
    Verdict,
    fault,
    stamp,
)
from trunkline.shown import LISTED_OUTPUT_BYTES, AgentView, CallView, TokenView, ToolView

# Calls in a row that ran out of time. Shown, not acted on: a caller with a short timeout must not shut others out.
UNRESPONSIVE_AFTER: Final = 3

# How a call with its outcome is shown.
Outcome = Callable[[CallAccepted, CallSettled], CallView]


def open_call(call: Call, approval_id: str | None = None) -> CallView:
    """A call that has no outcome yet, and the question that it waits for, if that may be told of."""
    entry = call.entry
    return CallView(
        entry.call_id,
        entry.tool_id,
        entry.caller,
        call.status,
        stamp(entry.at),
        entry.correlation_id,
        approval_id,
        started_at=None if call.started_ms is None else stamp(call.started_ms),
        provider=call.provider,
    )


def settled_call(accepted: CallAccepted, settled: CallSettled) -> CallView:
    """A call with its outcome."""
    # Of a sensitive call whose original is gone the record has only a hash.
    output = None if settled.hashed else settled.output
    return CallView(
        accepted.call_id,
        accepted.tool_id,
        accepted.caller,
        settled.status,
        stamp(accepted.at),
        accepted.correlation_id,
        output=output,
        error=settled.fault,
        started_at=None if settled.started_ms is None else stamp(settled.started_ms),
        finished_at=None if settled.finished_ms is None else stamp(settled.finished_ms),
        large=LargeOutput.of(output),
        provider=settled.provider,
    )


def listed_call(accepted: CallAccepted, settled: CallSettled, moved_bytes: int = 0) -> CallView:
    """A call with its outcome as lists show it: an output that is not small is left out, and is not looked at.

    ``moved_bytes`` is the size of an output that is kept beside the record and was not fetched.
    """
    size = moved_bytes or len(settled.output or b"")
    if size <= LISTED_OUTPUT_BYTES:
        return settled_call(accepted, settled)
    shown = settled_call(accepted, replace(settled, output=None))
    return replace(shown, output_bytes=size)


def call(hub: Hub, call_id: str, shown: Outcome = settled_call) -> CallView | None:
    """One call that is still in memory; ``shown`` makes the view of one with its outcome."""
    found = hub.state.calls.get(call_id)
    if found is not None:
        return _held_up(open_call(found, hub.state.question_of(found)), found, hub.state.questions_inside())
    recent = hub.state.recent.get(call_id)
    return None if recent is None else _recent_call(hub, recent, shown)


def awaited(hub: Hub, session: int, ref: str) -> CallView | None:
    """The open call whose outcome is waited for in this conversation under ``ref``, once it may be told of."""
    waiter = (session, ref)
    found = next((call for call in hub.state.calls.values() if waiter in call.waiters), None)
    # A call that nobody can be promised yet is not there (decision 26).
    if found is None or (found.entry.n > hub.state.stored and waits_for_disk(found)):
        return None
    return open_call(found, hub.state.question_of(found))


def _held_up(view: CallView, call: Call, questions: dict[int, str]) -> CallView:
    """A running call with the question that it waits for, if there is one inside."""
    approval_id = questions.get(call.entry.n)
    return view if approval_id is None or view.approval_id is not None else replace(view, approval_id=approval_id)


def _recent_call(hub: Hub, recent: Settled, shown: Outcome) -> CallView:
    """An outcome is shown once it is on disk; until then a crash could still change it (decision 26)."""
    accepted, settled = recent.accepted, recent.settled
    if settled.n > hub.state.stored:
        view = open_call(Call(accepted, Status.RUNNING, started_ms=settled.started_ms))
        return replace(view, provider=settled.provider)
    return shown(accepted, settled)


def agent(hub: Hub, found: Agent) -> AgentView:
    """One attached agent."""
    tools = [hub.registry.tools[tool_id] for tool_id in found.tools]
    return AgentView(
        agent_id=found.agent_id,
        edge=found.edge,
        state="ready" if found.is_usable else "unhealthy",
        health=_health(found),
        version=found.version,
        tools=len(tools),
        open_calls=len(found.running) + len(found.queue),
        succeeded=sum(tool.succeeded for tool in tools),
        failed=sum(tool.failed for tool in tools),
        permissions=found.permissions,
        resident=found.is_resident,
    )


def _health(found: Agent) -> str:
    if found.breaker is not None and found.breaker.is_open:
        return found.breaker.word
    return "unresponsive" if found.unanswered >= UNRESPONSIVE_AFTER else found.health.value


def tools(hub: Hub, now: Now, limit: int | None = None, after: str = "") -> list[ToolView]:
    """Tools by name, also those that cannot be called now: all, or the first so many after a name."""
    known = hub.registry.tools
    wanted = (tool_id for tool_id in known if tool_id > after)
    chosen = sorted(wanted) if limit is None else heapq.nsmallest(limit, wanted)
    return [_tool(hub, known[tool_id], now) for tool_id in chosen]


def tool(hub: Hub, tool_id: str, now: Now) -> ToolView | None:
    """One tool."""
    found = hub.registry.tools.get(tool_id)
    return None if found is None else _tool(hub, found, now)


def held_back(hub: Hub) -> set[str]:
    """The tools that nobody can call before a person approves their definition."""
    return {tool_id for tool_id, found in hub.registry.tools.items() if found.suspended and found.agent is not None}


def tools_named(hub: Hub, name: str, now: Now) -> list[ToolView]:
    """The tools whose part after the slash is this."""
    return [_tool(hub, found, now) for found in hub.registry.named(name)]


def _tool(hub: Hub, found: Tool, now: Now) -> ToolView:
    """A tool as whoever asks may see it: with the definition in force, while another one waits for a person.

    Descriptions are read by models. One that nobody has approved is in the question about it, and nowhere else.
    """
    definition, fingerprint = found.definition, found.fingerprint
    if found.suspended and (pin := hub.state.pins.get(definition.tool_id)) is not None:
        definition, fingerprint = pin.definition, pin.fingerprint
    return ToolView(
        definition.tool_id,
        found.status(now.mono),
        definition.description,
        definition.input_schema,
        definition.output_schema,
        definition.capabilities,
        definition.side_effects,
        definition.requires_directive,
        definition.tags,
        definition.required_permissions,
        fingerprint,
    )


def tokens(hub: Hub) -> list[TokenView]:
    """The standing credentials, oldest first. One that is not on disk yet has a name that a crash would give away."""
    revoked, stored = hub.state.revoked, hub.state.stored
    return [
        _token(token, is_revoked=token_id in revoked)
        for token_id, token in hub.state.tokens.items()
        if token.n <= stored
    ]


def credential(hub: Hub, edge: str, token_sha256: str) -> TokenView | None:
    """The credential that is good for this edge and known by this hash."""
    found = hub.credentials.standing(edge, token_sha256)
    return None if found is None else _token(found)


def credentials(hub: Hub, edge: str, agent: str) -> list[TokenView]:
    """The credentials of an agent that are good for this edge, newest first."""
    return [_token(found) for found in reversed(hub.credentials.standing_of(f"{edge}:{agent}"))]


def revoked(hub: Hub, edge: str, token_sha256: str) -> TokenView | None:
    """The credential that was known by this hash on this edge until it was revoked."""
    found = hub.credentials.revoked(edge, token_sha256)
    return None if found is None else _token(found, is_revoked=True)


def _token(token: TokenIssued, *, is_revoked: bool = False) -> TokenView:
    return TokenView(
        token.token_id,
        token.edge,
        token.agent,
        stamp(token.at),
        token.permissions,
        is_revoked,
        token.type,
        token.public,
    )


def dry_run(hub: Hub, caller: str, tool_id: str, body: Raw | None, now: Now, behalf: Behalf = NOBODY) -> Verdict:
    """What would happen to such a call, by which rule: the steps of ``judging`` that say so without making it."""
    given = EMPTY_OBJECT if body is None else body
    case = Case(CallRequested(0, "", Principal(caller), tool_id, given, on_behalf_of=behalf))
    tool, pin = hub.registry.tools.get(tool_id), hub.state.pins.get(tool_id)
    if tool is None and pin is not None:
        tool = hub.registry.tool(pin.definition, pin.fingerprint)
    if tool is None:
        return Verdict(Decision.DENY, "registry", "no such tool", caller, fault("tool.not_found"))
    case.tool = tool
    judging = hub.judging
    refusal = judging.dry_refusal(case, now, has_input=body is not None)
    status = tool.status(now.mono)
    depends = () if body is not None else hub.judge.depends_on_input(case.tool, case.caller, case.circumstances)
    if case.verdict.fault is not None:
        return replace(case.verdict, depends=depends)
    if refusal is not None:
        return Verdict(Decision.DENY, "schema", refusal.fault.message, caller, refusal.fault)
    nobody = body is not None and status == "available" and judging.provider_is_there(case, now) is not None
    verdict = case.verdict
    remarks = [verdict.reason] if verdict.reason else []
    if tool.definition.requires_directive:
        remarks.append("besides, the tool needs a directive")
    if nobody:
        remarks.append("nobody can serve it now")
    if status != "available":
        remarks.append(f"the tool is {status} now")
    return Verdict(verdict.decision, verdict.rule, "; ".join(remarks), caller, depends=depends)


def figures(hub: Hub) -> dict[str, object]:
    """Counts for a person and for /metrics."""
    state = hub.state
    by_status: dict[str, int] = {}
    for open_one in state.calls.values():
        by_status[open_one.status] = by_status.get(open_one.status, 0) + 1
    return {
        "agents": len(hub.registry.agents),
        "tools": len(hub.registry.tools),
        "open_calls": by_status,
        "settled_calls": {status.value: count for status, count in hub.calls.settled.items()},
        "call_durations": hub.calls.durations.figures(),
        "refused_calls": dict(hub.refused),
        "resent_calls": hub.interruptions.resent,
        "open_breakers": sum(
            1 for agent in hub.registry.agents.values() if agent.breaker is not None and agent.breaker.is_open
        ),
        "questions": len(state.questions),
        **hub.topics.figures(),
        "policy": hub.in_force.settings.policy.version,
    }


def calls_in_memory(
    hub: Hub,
    numbers: range,
    limit: int,
    correlation_id: str | None = None,
    caller: str | None = None,
    shown: Outcome = listed_call,
) -> list[tuple[int, CallView]]:
    """Open and recently settled calls with their numbers, the newest so many of a range, as lists show them.

    Those of one correlation, or of one caller, if it is given. Only what is shown is made a view of.
    """
    state = hub.state

    def is_wanted(entry: CallAccepted) -> bool:
        return (
            entry.n in numbers
            and (caller is None or entry.caller == caller)
            and (correlation_id is None or correlation_id in (entry.correlation_id, entry.call_id))
        )

    found: list[tuple[int, Call | Settled]] = [
        (call.entry.n, call) for call in state.calls.values() if is_wanted(call.entry)
    ]
    found += [(done.accepted.n, done) for done in state.recent.values() if is_wanted(done.accepted)]
    newest = heapq.nlargest(limit, found, key=itemgetter(0))
    inside = state.questions_inside() if newest else {}
    return [
        (
            n,
            _recent_call(hub, one, shown)
            if isinstance(one, Settled)
            else _held_up(open_call(one, state.question_of(one)), one, inside),
        )
        for n, one in newest
    ]

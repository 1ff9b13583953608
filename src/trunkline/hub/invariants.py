"""``check(hub)``: what must always be true of a hub, said once. Tests and the simulator call it after each step.

Owns what is compared: calls with the places they wait or run in, agents with their slots, questions with calls, what is
owed with the record. Does not own any of it.

Invariant: it changes nothing; what does not hold is ``InvariantBroken``.
"""

from __future__ import annotations

from collections import Counter

from trunkline.errors import InvariantBroken
from trunkline.hub.approvals import MAX_OPEN_BY_ONE
from trunkline.hub.hub import Hub
from trunkline.hub.queues import MAX_QUEUED
from trunkline.hub.registry import Agent
from trunkline.hub.state import Call, body_size, held_beside
from trunkline.model import OPERATOR, Status, tool_agent


def check(hub: Hub) -> None:
    """Raise ``InvariantBroken`` naming the first contradiction."""
    state = hub.state
    if len(state.calls) != len(state.by_number):
        raise InvariantBroken("open calls and their numbers differ")
    for call in state.calls.values():
        _check_call(hub, call)
        _check_place(hub, call)
    used = (
        len(state.calls),
        sum(body_size(call.entry.input) + held_beside(call.context, call.actor) for call in state.calls.values()),
    )
    if hub.loads.total() != used:
        raise InvariantBroken("what callers use differs from what is open")
    _check_topics(hub)
    for session, agent in hub.registry.by_session.items():
        _check_agent(hub, session, agent)
    for tool_id, tool in hub.registry.tools.items():
        if tool.agent is not None and not tool.suspended and state.pins[tool_id].fingerprint != tool.fingerprint:
            raise InvariantBroken(f"{tool_id} is callable with a definition that nobody approved")
    asked: Counter[str] = Counter(question.entry.asked_by for question in state.questions.values())
    for asked_by, count in asked.items():
        if count > MAX_OPEN_BY_ONE and asked_by != OPERATOR:
            raise InvariantBroken(f"{asked_by} has {count} open questions")
    for approval_id, question in state.questions.items():
        if question.entry.subject == "call" and not question.calls:
            raise InvariantBroken(f"{approval_id} is about no call")
        for number in question.calls:
            waiting = state.by_number.get(number)
            if waiting is None or waiting.approval_id != approval_id:
                raise InvariantBroken(f"{approval_id} is about {number}, which does not wait for it")


def _check_topics(hub: Hub) -> None:
    """What is owed on record is owed in memory, and nothing besides."""
    recorded = {(number, name) for number, event in hub.state.owed.items() for name in event.to}
    if recorded != hub.topics.owed_to_durable():
        raise InvariantBroken("what is owed to durable subscriptions differs from the record")
    for event in hub.state.owed.values():
        if not event.to.keys() <= hub.state.subscriptions.keys():
            raise InvariantBroken(f"{event.entry.event_id} is owed to a subscription that is not there")


def _check_call(hub: Hub, call: Call) -> None:
    state, call_id = hub.state, call.entry.call_id
    if state.calls.get(call_id) is not call or state.by_number.get(call.entry.n) is not call:
        raise InvariantBroken(f"{call_id} is not found under its id or its number")
    if call.status.is_outcome:
        raise InvariantBroken(f"{call_id} is open with the outcome {call.status}")
    if call_id in state.recent:
        raise InvariantBroken(f"{call_id} is open and settled")
    if call.entry.key_id is not None and state.keys.get(call.entry.key_id) != call_id:
        raise InvariantBroken(f"{call_id} is not found under its key")


def _check_place(hub: Hub, call: Call) -> None:
    """A call is in the one place that its state names, and what may end it has an alarm."""
    call_id, number = call.entry.call_id, call.entry.n
    tool = hub.registry.tools.get(call.served_by)
    agent = hub.registry.by_session.get(call.session)
    runs = agent is not None and number in agent.running
    waits_for_slot = tool is not None and tool.agent is not None and number in tool.agent.queue
    waits_for_tool = hub.calls.is_parked(call)
    if agent is not None and runs and agent.agent_id != tool_agent(call.served_by):
        raise InvariantBroken(f"{call_id} runs at {agent.agent_id}, and is served by {call.served_by}")
    if call.status is Status.RUNNING and (not runs or waits_for_slot or waits_for_tool):
        raise InvariantBroken(f"{call_id} runs nowhere, or waits as well")
    if call.status is Status.QUEUED and (runs or waits_for_slot is waits_for_tool):
        raise InvariantBroken(f"{call_id} waits in no place or in two")
    if call.status is Status.QUEUED and waits_for_tool and not call.wake_at:
        raise InvariantBroken(f"{call_id} waits for its tool for ever")
    if call.status is Status.WAITING_APPROVAL:
        question = hub.state.questions.get(call.approval_id or "")
        if question is None or number not in question.calls or runs or waits_for_slot or waits_for_tool:
            raise InvariantBroken(f"{call_id} waits for no question, or for something else as well")
    elif call.approval_id is not None:
        raise InvariantBroken(f"{call_id} is {call.status} and has the open question {call.approval_id}")


def _check_agent(hub: Hub, session: int, agent: Agent) -> None:
    state, registry = hub.state, hub.registry
    if agent.session != session or registry.agents.get(agent.agent_id) is not agent:
        raise InvariantBroken(f"{agent.agent_id} has two sessions")
    if len(agent.running) > agent.max_inflight or len(agent.queue) > MAX_QUEUED:
        raise InvariantBroken(f"{agent.agent_id} has more calls than it may have")
    if agent.queue and (not agent.is_usable or len(agent.running) < agent.max_inflight):
        raise InvariantBroken(f"{agent.agent_id} has calls that wait for a slot, and a free one or none to come")
    for number in agent.running:
        running = state.by_number.get(number)
        if running is None or running.status is not Status.RUNNING or running.session != session:
            raise InvariantBroken(f"{agent.agent_id} runs {number}, which does not run there")
        if running.deadline and not (running.wake_at or 0.0 < agent.alarm_at <= running.deadline):
            raise InvariantBroken(f"{agent.agent_id} may run {number} for ever")
    for number in agent.queue:
        queued = state.by_number.get(number)
        if queued is None or queued.status is not Status.QUEUED:
            raise InvariantBroken(f"{agent.agent_id} keeps a place for {number}, which does not wait")
    for tool_id in agent.tools:
        if registry.tools[tool_id].agent is not agent:
            raise InvariantBroken(f"{tool_id} is offered by somebody else")

"""``check(hub)``: everything that must always be true of a hub, said once. Tests and the simulator call it after each step."""

from __future__ import annotations

from trunkline.errors import InvariantBroken
from trunkline.hub.hub import Hub
from trunkline.hub.registry import MAX_QUEUED
from trunkline.hub.state import body_size
from trunkline.model import Status


def check(hub: Hub) -> None:
    """Raise ``InvariantBroken`` naming the first contradiction."""
    state, registry = hub.state, hub.registry
    if len(state.calls) != len(state.by_number):
        raise InvariantBroken("open calls and their numbers differ")
    calls = size = 0
    for call_id, call in state.calls.items():
        calls += 1
        size += body_size(call.entry.input)
        if call.status.is_outcome:
            raise InvariantBroken(f"{call_id} is open with the outcome {call.status}")
        if state.by_number.get(call.entry.n) is not call:
            raise InvariantBroken(f"{call_id} is not found under its number")
        if call_id in state.recent:
            raise InvariantBroken(f"{call_id} is open and settled")
        agent = registry.by_session.get(call.session)
        if call.status is Status.RUNNING and (agent is None or call.entry.n not in agent.running):
            raise InvariantBroken(f"{call_id} runs nowhere")
        if call.status is Status.WAITING_APPROVAL:
            question = state.questions.get(call.approval_id or "")
            if question is None or call.entry.n not in question.calls:
                raise InvariantBroken(f"{call_id} waits for no question")
        if call.entry.key_id is not None and state.keys.get(call.entry.key_id) != call_id:
            raise InvariantBroken(f"{call_id} is not found under its key")
    if hub.loads.total() != (calls, size):
        raise InvariantBroken("what callers use differs from what is open")
    for session, agent in registry.by_session.items():
        if agent.session != session or registry.agents.get(agent.agent_id) is not agent:
            raise InvariantBroken(f"{agent.agent_id} has two sessions")
        if len(agent.running) > agent.max_inflight or len(agent.queue) > MAX_QUEUED:
            raise InvariantBroken(f"{agent.agent_id} has more calls than it may have")
        for number in agent.running:
            running = state.by_number.get(number)
            if running is None or running.status is not Status.RUNNING or running.session != session:
                raise InvariantBroken(f"{agent.agent_id} runs {number}, which does not run there")
        for tool_id in agent.tools:
            if registry.tools[tool_id].agent is not agent:
                raise InvariantBroken(f"{tool_id} is offered by somebody else")
    for tool_id, tool in registry.tools.items():
        if tool.agent is not None and not tool.suspended and state.pins[tool_id].fingerprint != tool.fingerprint:
            raise InvariantBroken(f"{tool_id} is callable with a definition that nobody approved")
    for approval_id, question in state.questions.items():
        if question.entry.subject == "call" and not question.calls:
            raise InvariantBroken(f"{approval_id} is about no call")

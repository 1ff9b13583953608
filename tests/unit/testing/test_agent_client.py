"""An agent's tools, called in its author's unit tests."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from trunkline import Agent, ToolError, ToolFailed
from trunkline.model import Fault, Status
from trunkline.testing.agent_client import AgentClient, CallMade


@pytest.fixture
def agent() -> Agent:
    agent = Agent("com.a")

    @agent.tool
    async def add(a: int, b: int = 1) -> dict[str, int]:
        return {"sum": a + b}

    @agent.tool
    def slowly(steps: int) -> str:
        for step in range(steps):
            agent.progress(f"step {step}")
            if agent.canceled():
                return "stopped"
            time.sleep(0.001)
        return "done"

    @agent.tool
    async def ask(key: str | None = None) -> dict[str, Any]:
        return await agent.call("com.b/answer", {"n": 1}, key=key, timeout_s=2)

    @agent.tool
    def ask_plainly() -> dict[str, Any]:
        return agent.call_sync("com.b/answer", {"n": 1})

    @agent.tool
    async def wish() -> dict[str, Any]:
        directive = await agent.request_directive("com.b/answer", reason="x")
        return await agent.call("com.b/answer", {"n": 1}, directive=directive)

    @agent.tool
    async def fail() -> None:
        agent.health("degraded", reason="tired")
        raise ToolError("no", code="a.no")

    @agent.tool(timeout_s=0.01)
    async def forever() -> None:
        await asyncio.Event().wait()

    @agent.tool
    async def lie() -> int:
        return "text"  # type: ignore[return-value]

    return agent


def failure(client: AgentClient, tool: str, *given: Any, **terms: Any) -> ToolFailed:
    with pytest.raises(ToolFailed) as failed:
        client.call(tool, *given, **terms)
    return failed.value


def test_a_tool_is_called_by_its_name_or_id(agent: Agent) -> None:
    client = AgentClient(agent)
    assert client.call("add", {"a": 1}) == {"sum": 2}
    assert client.call("com.a/add", {"a": 1, "b": 2}) == {"sum": 3}
    assert "there are: add, slowly" in failure(client, "subtract").fault.message


def test_an_input_and_an_output_that_an_exchange_would_refuse_are_refused(agent: Agent) -> None:
    client = AgentClient(agent)
    assert failure(client, "add", {"a": "x"}).fault.code == "tool.invalid_input"
    assert failure(client, "add", {"a": 1, "c": 2}).fault.message == "$: unexpected properties: c"
    assert failure(client, "lie").fault.code == "tool.invalid_output"


async def test_what_a_tool_shows_is_kept_and_it_can_be_canceled(agent: Agent) -> None:
    client = AgentClient(agent)
    assert await client.call_async("slowly", {"steps": 2}) == {"result": "done"}
    assert [(one.channel, one.data["text"]) for one in client.shown] == [("status", "step 0"), ("status", "step 1")]
    with pytest.raises(ToolFailed) as failed:
        await client.call_async("slowly", {"steps": 100_000}, cancel_after_s=0.01)
    assert failed.value.status is Status.CANCELED


def test_errors_time_limits_and_health_are_those_that_callers_see(agent: Agent) -> None:
    client = AgentClient(agent)
    assert failure(client, "fail").fault == Fault("a.no", "no")
    assert client.health == ("degraded", {"reason": "tired"})
    assert failure(client, "forever").fault.code == "tool.timeout"


@pytest.mark.parametrize("tool", ["ask", "ask_plainly"])
def test_what_the_agent_asks_of_others_is_answered_by_the_test(agent: Agent, tool: str) -> None:
    async def later(n: int) -> dict[str, int]:
        return {"n": n + 1}

    client = AgentClient(agent, {"com.b/answer": {"n": 0}})
    assert client.call(tool) == {"n": 0}
    client.answers["com.b/answer"] = lambda n: {"n": n}
    assert client.call(tool) == {"n": 1}
    client.answers["com.b/answer"] = later
    assert client.call(tool) == {"n": 2}
    client.answers["com.b/answer"] = Fault("b.tired", "later", retryable=True)
    assert failure(client, tool).fault.details == {"tool_id": "com.b/answer", "code": "b.tired"}
    del client.answers["com.b/answer"]
    assert failure(client, tool).fault.details == {"tool_id": "com.b/answer", "code": "tool.not_found"}


def test_the_calls_that_it_made_and_the_intents_that_it_wanted_can_be_looked_at(agent: Agent) -> None:
    client = AgentClient(agent, {"com.b/answer": {}})
    client.call("ask", {"key": "k"})
    client.call("wish")
    assert client.made == [
        CallMade("com.b/answer", {"n": 1}, "k", 2000),
        CallMade("com.b/answer", {"n": 1}, directive="d-test"),
    ]
    client.directive = None
    assert failure(client, "wish").fault.details == {"tool_id": "com.b/answer", "code": "policy.denied"}

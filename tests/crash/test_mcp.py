"""Calls of MCP clients across ``kill -9``: a repeat gets the one outcome, also of what waited for a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mcp import HANDSHAKE, MODERN, McpClient
from tests.running import RawAgent, Running, attached, running


def runs(exchange: Running, tool_id: str) -> int:
    return len([entry for entry in exchange.entries(kind="call.accepted") if entry["tool_id"] == tool_id])


def name_of(tool_id: str) -> str:
    agent, _, tool = tool_id.partition("/")
    return f"{agent.replace('.', '_')}__{tool}"


@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
def test_a_call_with_a_key_that_ran_when_the_exchange_was_killed_has_one_outcome(short_path: Path, era: str) -> None:
    rule = '[[policy.rule]]\ncaller = "mcp:*"\ntool = "*"\ndecision = "allow"\n'
    with running(short_path / "home", rule) as exchange:
        agent = attached(exchange)
        agent.register({"name": "change", "side_effects": True})
        tool_id = f"{agent.agent_id}/change"
        client = McpClient(exchange, era=era)
        if era == HANDSHAKE:
            client.begin()
        terms = {"name": name_of(tool_id), "arguments": {"n": 1}, "_meta": {"trunkline/idempotency_key": "k-1"}}
        connection = client.send("tools/call", terms)
        agent.wait_for("core.tool.call")
        exchange.kill()
        connection.close()
        exchange.start()
        # The session of the client goes on; nobody offers the tool, and the record answers.
        back = RawAgent(exchange, agent.agent_id, agent.token)
        back.hello()
        back.register({"name": "change", "side_effects": True})
        first = client.call(**terms)
        second = client.call(**terms)
        assert first["isError"] is True
        assert "unknown" in first["content"][0]["text"]
        assert first == second
        assert runs(exchange, tool_id) == 1


@pytest.mark.parametrize("is_approved_before", [True, False])
def test_what_waited_for_a_person_is_known_to_its_repeat_after_the_crash(
    short_path: Path, is_approved_before: bool
) -> None:
    with running(short_path / "home") as exchange:
        client = McpClient(exchange)
        arguments = {"topic": "a.b", "body": {"n": 1}}
        agent = attached(exchange)
        agent.register({"name": "change", "side_effects": True})
        tool_id = f"{agent.agent_id}/change"
        asked = client.call(name_of(tool_id), arguments)
        approval = f"/v1/approvals/{asked['_meta']['trunkline/approval_id']}"
        if is_approved_before:
            assert exchange.request("POST", approval, {"decision": "approved"})[0] == 200
            call = agent.wait_for("core.tool.call")
            payload = {"call_id": call["payload"]["call_id"], "status": "succeeded", "output": {"done": 1}}
            agent.send("agent.tool.result", payload, request_id=call["request_id"])
            exchange.wait_entry("call.settled", call_id=asked["_meta"]["trunkline/call_id"])
        exchange.kill()
        exchange.start()
        back = RawAgent(exchange, agent.agent_id, agent.token)
        back.hello()
        back.register({"name": "change", "side_effects": True})
        result = client.call(name_of(tool_id), arguments)
        if is_approved_before:
            assert result["structuredContent"] == {"done": 1}
        else:
            assert result["_meta"]["trunkline/call_id"] == asked["_meta"]["trunkline/call_id"]
            assert len(exchange.request("GET", "/v1/approvals")[1]["approvals"]) == 1
        assert runs(exchange, tool_id) == 1

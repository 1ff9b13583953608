"""What a client can read: its trajectories, large outputs, spaces; and what it cannot."""

from __future__ import annotations

import json

import pytest

from tests.unit.edges.mcp.conftest import ECHO, ECHO_NAME, Client, Served
from trunkline.edges.mcp import resources
from trunkline.model import Principal, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT


async def read(client: Client, uri: str) -> str:
    answer = await client.ask("resources/read", {"uri": uri})
    text: str = answer["result"]["contents"][0]["text"]
    return text


async def refused(client: Client, uri: str) -> int:
    found: int = (await client.ask("resources/read", {"uri": uri}))["error"]["code"]
    return found


async def test_a_trajectory_is_for_the_one_whose_calls_it_has(served: Served, client: Client) -> None:
    result = await client.call(ECHO_NAME, {"text": "mine"}, _meta={"trunkline/correlation_id": "chat 1"})
    assert result["_meta"]["trunkline/correlation_id"] == "chat 1"
    uri = "trunkline://trajectories/chat%201"
    listed = (await client.ask("resources/list"))["result"]["resources"]
    assert uri in [resource["uri"] for resource in listed]
    lines = (await read(client, uri)).splitlines()
    assert "ReplayHeader" in lines[0]
    assert any('"mine"' in line for line in lines)
    other = await served.client("other", era=client.era).begin()
    absent = -32602 if client.era == "2026-07-28" else -32002
    assert await refused(other, uri) == absent


async def test_of_a_trajectory_that_others_called_in_everybody_reads_his_own_part(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "MAX_CALLS", 3)
    other = Principal("http:x")
    uri = "trunkline://trajectories/chat%201"
    served.exchange.call(ECHO, {"text": "earlier"}, by=other, correlation_id="chat 1")
    await client.call(ECHO_NAME, {"text": "mine"}, _meta={"trunkline/correlation_id": "chat 1"})
    before = await read(client, uri)
    for number in range(5):
        served.exchange.call(ECHO, {"text": f"secret {number}"}, by=other, correlation_id="chat 1")
    assert await read(client, uri) == before
    lines = [json.loads(line) for line in before.splitlines()]
    assert [line["params"] for line in lines if line["event"] == "ToolCall"] == [{"text": "mine"}]
    assert lines[-1]["event"] == "SessionEnd"
    # What somebody may not see at all is not there, and neither is what was refused to others.
    served.exchange.call("com.example.absent/secret", {}, by=other, correlation_id="chat 2")
    absent = -32602 if client.era == "2026-07-28" else -32002
    assert await refused(client, "trunkline://trajectories/chat%202") == absent
    for _ in range(4):
        await client.call(ECHO_NAME, {"text": "mine"}, _meta={"trunkline/correlation_id": "chat 1"})
    assert await refused(client, uri) == absent  # one of more calls of his own is for the operator


async def test_addresses_that_lead_nowhere_are_refused(client: Client) -> None:
    absent = -32602 if client.era == "2026-07-28" else -32002
    for uri in (
        "file:///etc/passwd",
        "trunkline://",
        "trunkline://trajectories/",
        "trunkline://blobs/sha256:zz",
        f"trunkline://blobs/sha256:{'0' * 64}",
        "trunkline://spaces/absent",
        "trunkline://spaces/absent/file",
    ):
        assert await refused(client, uri) == absent, uri


async def test_a_large_output_is_read_by_its_address(served: Served, client: Client) -> None:
    definition = ToolDefinition("com.example.big/make", "big", ANY_OBJECT, side_effects=False)
    text = "x" * 1_500_000
    served.exchange.attach("com.example.big", definition, deliver=lambda agent, _: agent.finish({"text": text}))
    result = await client.call("com_example_big__make")
    assert json.loads(await read(client, result["content"][1]["uri"])) == {"text": text}
    other = await served.client("other", era=client.era).begin()
    assert await refused(other, result["content"][1]["uri"]) < 0

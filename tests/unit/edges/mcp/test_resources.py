"""What a client can read: its trajectories, large outputs, spaces; and what it cannot."""

from __future__ import annotations

import json

from tests.unit.edges.mcp.conftest import ECHO, ECHO_NAME, Client, Served
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
    # A call of somebody else's in it may have what this one may not see.
    served.exchange.call(ECHO, {"text": "secret"}, by=Principal("http:x"), correlation_id="chat 1")
    assert await refused(client, uri) == absent


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

"""``/mcp`` over HTTP: who comes in, which era, sessions, streams, and the status of each answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.requirement import requirement
from tests.unit.edges.mcp.conftest import ECHO_NAME, HANDSHAKE, MODERN, Client, Served, wait_until
from trunkline.model import ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, OPERATOR_TOKEN

ACCEPT = {"accept": "application/json, text/event-stream"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def post(served: Served, body: Any = PING, **headers: str) -> httpx.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    all_headers = {**ACCEPT, "content-type": "application/json", **given}
    return await served.http.post("/mcp", content=content, headers=all_headers)


@requirement("MCP-001", "MCP-002")
async def test_strangers_get_equal_bytes_and_are_told_how_to_come_in(served: Served) -> None:
    good = served.exchange.token("mcp", "gone")
    served.exchange.revoke("mcp", "gone")
    foreign = served.exchange.token("chiffon", "other")
    answers = [await post(served)]
    answers += [await post(served, authorization=f"Bearer {token}") for token in (good, foreign, OPERATOR_TOKEN, "x")]
    answers.append(await post(served, authorization="Basic eA=="))
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].headers["www-authenticate"].startswith("Bearer")


@requirement("MCP-003")
@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}], ids=str
)
async def test_other_hosts_and_pages_are_turned_away_before_the_token(served: Served, headers: dict[str, str]) -> None:
    client = await served.client(era=HANDSHAKE).begin()
    answer = await client.post("ping", headers=headers)
    assert answer.status_code == 403


@requirement("MCP-010", "MCP-011")
async def test_a_session_begins_with_initialize_and_ends_with_delete(served: Served) -> None:
    client = await served.client(era=HANDSHAKE).begin()
    assert (await client.ask("ping"))["result"] == {}
    ended = await served.http.request("DELETE", "/mcp", headers=client.headers("", {}))
    assert ended.status_code == 200
    assert (await client.post("ping")).status_code == 404


@requirement("MCP-012")
async def test_without_a_session_and_with_anothers_there_is_none(served: Served) -> None:
    client = await served.client(era=HANDSHAKE).begin()
    other = served.client("other", era=HANDSHAKE)
    assert (await other.post("ping")).status_code == 400
    other.session_id = client.session_id
    assert (await other.post("ping")).status_code == 404
    assert (await served.http.request("DELETE", "/mcp", headers=other.headers("", {}))).status_code == 404
    assert (await client.ask("ping"))["result"] == {}


@requirement("MCP-013")
@pytest.mark.parametrize(
    ("asked", "agreed"),
    [("2025-11-25", "2025-11-25"), ("2024-11-05", "2024-11-05"), ("2026-07-28", "2025-11-25"), ("x", "2025-11-25")],
)
async def test_a_version_is_agreed_on(served: Served, asked: str, agreed: str) -> None:
    answer = await served.client(era=HANDSHAKE).ask("initialize", {"protocolVersion": asked, "capabilities": {}})
    assert answer["result"]["protocolVersion"] == agreed
    assert answer["result"]["serverInfo"]["name"] == "trunkline"


@requirement("MCP-014")
async def test_notifications_and_answers_are_taken_without_a_word(served: Served, client: Client) -> None:
    answer = await client.notify("notifications/whatever")
    assert (answer.status_code, answer.content) == (202, b"")
    body = {"jsonrpc": "2.0", "id": 5, "result": {}}
    if client.era == HANDSHAKE:
        posted = await served.http.post("/mcp", json=body, headers=client.headers("", {}))
        assert posted.status_code == 202


@requirement("MCP-015")
async def test_a_client_that_takes_no_streams_is_told_so(served: Served, client: Client) -> None:
    assert (await client.post("tools/list", headers={"accept": "text/html"})).status_code == 406
    assert (await client.post("tools/list", headers={"content-type": "text/plain"})).status_code == 415
    assert (await served.http.get("/mcp", headers={**client.headers("", {}), "accept": "a/b"})).status_code in {
        405,
        406,
    }


@requirement("MCP-020")
async def test_discover_says_what_is_there(served: Served) -> None:
    result = (await served.client().ask("server/discover"))["result"]
    assert MODERN in result["supportedVersions"]
    assert result["capabilities"]["tools"] == {"listChanged": True}
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "trunkline"


@requirement("MCP-021")
@pytest.mark.parametrize(
    ("meta", "headers", "code"),
    [
        ({"io.modelcontextprotocol/protocolVersion": None}, {}, -32602),
        ({"io.modelcontextprotocol/clientCapabilities": None}, {}, -32602),
        ({"io.modelcontextprotocol/clientCapabilities": []}, {}, -32602),
        ({"io.modelcontextprotocol/protocolVersion": "2099-01-01"}, {}, -32020),
        ({"io.modelcontextprotocol/protocolVersion": "2099-01-01"}, {"mcp-protocol-version": "2099-01-01"}, -32022),
        ({}, {"mcp-method": "tools/list"}, -32020),
        ({}, {"mcp-name": "other"}, -32020),
        ({}, {"mcp-name": "=?base64?!?="}, -32020),
    ],
)
async def test_what_a_request_says_of_itself_has_to_agree(
    served: Served, meta: dict[str, Any], headers: dict[str, str], code: int
) -> None:
    answer = await served.client().post("tools/call", {"name": ECHO_NAME, "_meta": meta}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


@requirement("MCP-022")
async def test_the_later_version_has_statuses_for_errors_and_no_sessions(served: Served) -> None:
    client = served.client()
    unknown = await client.post("ping")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, -32601)
    missing = await client.post("tools/call", {"name": "nobody__nothing"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, -32602)
    for method in ("GET", "DELETE"):
        answer = await served.http.request(method, "/mcp", headers=client.headers("x", {}))
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@requirement("MCP-023")
async def test_a_name_that_no_header_holds_is_in_base64(served: Served) -> None:
    client = served.client()
    headers = {"mcp-name": "=?base64?Y29tX2V4YW1wbGVfZWNob19fZWNobw==?="}
    answer = await client.post("tools/call", {"name": ECHO_NAME, "arguments": {"n": 1}}, headers=headers)
    assert answer.json()["result"]["structuredContent"] == {"n": 1}


async def test_other_methods_and_other_paths_are_not_there(served: Served, client: Client) -> None:
    headers = client.headers("x", {})
    assert (await served.http.put("/mcp", headers=headers)).status_code == 405
    assert (await served.http.post("/mcp/more", headers=headers)).status_code == 404


@requirement("MCP-030")
@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
async def test_a_stream_tells_of_changes_until_the_exchange_closes(era: str, served: Served) -> None:
    client = await served.client(era=era).begin()
    told: list[dict[str, Any]] = []

    async def listen() -> None:
        params = {"notifications": {"toolsListChanged": True}}
        body = {"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": client.envelope(params)}
        ways = {
            MODERN: ("POST", {"json": body, "headers": client.headers("subscriptions/listen", {})}),
            HANDSHAKE: ("GET", {"headers": client.headers("", {})}),
        }
        method, options = ways[era]
        async with served.http.stream(method, "/mcp", **options) as answer:  # type: ignore[arg-type]
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                told.extend([json.loads(line.removeprefix("data: "))] if line.startswith("data: ") else [])

    listening = asyncio.create_task(listen())
    await wait_until(lambda: served.exchange.edges.status()["edges"]["mcp"]["listeners"] == 1)  # type: ignore[index]
    served.exchange.attach("com.example.new", "tool")
    await wait_until(lambda: any(m.get("method") == "notifications/tools/list_changed" for m in told))
    await served.exchange.edges.stop()
    await served.exchange.edges.stop_last()
    await listening
    if era == MODERN:
        assert told[0]["method"] == "notifications/subscriptions/acknowledged"
        assert told[0]["params"]["notifications"] == {"toolsListChanged": True}
        assert all(m["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "sub" for m in told[:-1])
        assert told[-1]["id"] == "sub"


@requirement("MCP-031")
async def test_only_what_was_asked_for_is_told(served: Served) -> None:
    client = served.client()
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "subscriptions/listen",
        "params": client.envelope({"notifications": {"promptsListChanged": True}}),
    }
    headers = client.headers("subscriptions/listen", {})
    async with served.http.stream("POST", "/mcp", json=body, headers=headers) as answer:
        lines = answer.aiter_lines()
        first = [await anext(lines) for _ in range(2)][1]
        assert json.loads(first.removeprefix("data: "))["params"]["notifications"] == {}
        assert served.exchange.edges.status()["edges"]["mcp"]["listeners"] == 0  # type: ignore[index]


async def test_whose_token_was_revoked_is_told_nothing_more(served: Served) -> None:
    client = await served.client(era=HANDSHAKE).begin()

    async def listen() -> str:
        async with served.http.stream("GET", "/mcp", headers=client.headers("", {})) as answer:
            return (await answer.aread()).decode()

    listening = asyncio.create_task(listen())
    await wait_until(lambda: served.exchange.edges.status()["edges"]["mcp"]["listeners"] == 1)  # type: ignore[index]
    served.exchange.revoke("mcp", "me")
    served.exchange.attach("com.example.new", "tool")
    assert "list_changed" not in await listening


async def test_a_large_result_of_a_tool_with_a_schema_is_whole(served: Served, client: Client) -> None:
    definition = ToolDefinition("com.example.big/make", "big", ANY_OBJECT, ANY_OBJECT, side_effects=False)
    text = "x" * 1_500_000
    served.exchange.attach("com.example.big", definition, deliver=lambda agent, _: agent.finish({"text": text}))
    result = await client.call("com_example_big__make")
    assert result["structuredContent"] == {"text": text}


async def test_a_defect_is_answered_and_on_record(served: Served, client: Client, monkeypatch: Any) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("trunkline.edges.mcp.catalogue.ToolList.page", broken)
    answer = await client.post("tools/list")
    assert answer.json()["error"]["code"] == -32603
    assert "planted" not in answer.text
    assert "defect" in "".join(served.exchange.notices())

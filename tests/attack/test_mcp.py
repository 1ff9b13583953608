"""The MCP door under attack: tokens and sessions of others, pages, floods, readers that do not read, secrets."""

from __future__ import annotations

import base64
import json
import secrets
import socket
from pathlib import Path

import psutil
import pytest

from tests.attack.secrets import forms, spellings
from tests.mcp import HANDSHAKE, MODERN, McpClient
from tests.running import EXAMPLES, Running, attached, running, wait_until

ECHO = "com_example_echo__echo"


@pytest.fixture
def town(short_path: Path) -> Running:  # type: ignore[misc]
    config = f'[[agent]]\nid = "com.example.echo"\ncommand = ["python", {json.dumps(str(EXAMPLES / "echo.py"))}]\n'
    with running(short_path / "home", config) as found:
        found.wait_tool("com.example.echo/echo")
        yield found


def test_only_a_token_of_this_edge_opens_the_door(town: Running) -> None:
    good = town.new_token("me", "mcp")
    status, made = town.request("POST", "/v1/tokens", {"edge": "mcp", "agent": "gone"})
    assert status == 201
    assert town.request("DELETE", f"/v1/tokens/{made['id']}")[0] == 200
    wrong = [town.token, town.new_token("me", "http"), town.new_token("me"), made["token"], good[:-1], good + "A", "x"]
    heard = {McpClient(town, token=token).exchange_messages("tools/list")[0] for token in wrong}
    assert heard == {401}
    assert McpClient(town, token=good).exchange_messages("tools/list")[0] == 200
    # And this token opens no other door.
    assert town.request("GET", "/v1/tools", token=good)[0] == 401


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"host": "127.0.0.1"}, {"origin": "https://evil.example"}, {"origin": "null"}],
    ids=str,
)
def test_pages_and_names_of_others_are_refused(town: Running, headers: dict[str, str]) -> None:
    client = McpClient(town)
    assert client.exchange_messages("tools/list", headers=headers)[0] == 403


def test_a_session_and_a_state_of_somebody_else_are_none(town: Running) -> None:
    mine = McpClient(town, "mine", era=HANDSHAKE).begin()
    other = McpClient(town, "other", era=HANDSHAKE)
    other.session_id = mine.session_id
    assert other.exchange_messages("tools/list")[0] == 404
    agent = attached(town)
    agent.register({"name": "change", "side_effects": True})
    name = f"{agent.agent_id.replace('.', '_')}__change"
    asked = McpClient(town, "mine").call(name)
    state = asked["_meta"]["trunkline/call_id"]
    status, said = McpClient(town, "other").exchange_messages("tools/call", {"name": name, "requestState": state})
    assert (status, said["error"]["code"]) == (400, -32602)


def test_a_caller_cannot_answer_its_own_question(town: Running) -> None:
    agent = attached(town)
    agent.register({"name": "change", "side_effects": True})
    client = McpClient(town, "eve")
    name = f"{agent.agent_id.replace('.', '_')}__change"
    asked = client.call(name)
    approval_id = asked["_meta"]["trunkline/approval_id"]
    answer = {"decision": "approved"}
    assert town.request("POST", f"/v1/approvals/{approval_id}", answer, token=client.token)[0] == 401
    accepted = {"inputResponses": {"approval": {"action": "accept", "content": answer}}}
    state = asked["_meta"]["trunkline/call_id"]
    again = client.call(name, {}, requestState=state, **accepted)
    assert again["isError"] is True
    assert [one["approval_id"] for one in town.request("GET", "/v1/approvals")[1]["approvals"]] == [approval_id]


def test_a_profile_hides_tools_from_lists_and_from_calls(short_path: Path) -> None:
    config = (
        f'[[agent]]\nid = "com.example.echo"\ncommand = ["python", {json.dumps(str(EXAMPLES / "echo.py"))}]\n'
        '[[profile]]\nname = "small"\ncaller = "mcp:small"\ntools = ["trunkline/*"]\n'
    )
    with running(short_path / "home", config) as exchange:
        exchange.wait_tool("com.example.echo/echo")
        client = McpClient(exchange, "small")
        names = [tool["name"] for tool in client.exchange_messages("tools/list")[1]["result"]["tools"]]
        assert names
        assert all(name.startswith("trunkline__") for name in names)
        assert client.exchange_messages("tools/call", {"name": ECHO})[1]["error"]["code"] == -32602


def test_a_flood_of_sessions_takes_no_memory(town: Running) -> None:
    assert town.process is not None
    process = psutil.Process(town.process.pid)
    client = McpClient(town, era=HANDSHAKE)
    for _ in range(200):
        client.begin()
    before = process.memory_info().rss
    for _ in range(1500):
        client.begin()
    assert process.memory_info().rss - before < 4_000_000
    assert McpClient(town, "other").call(ECHO, {"text": "hi"})["structuredContent"] == {"text": "hi"}


def test_readers_that_do_not_read_keep_nobody_from_answers(town: Running) -> None:
    token = town.new_token("slow", "mcp")
    host, _, port = town.ready["http"].removeprefix("http://").partition(":")
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    arguments = {"text": "x" * 400_000}
    params = {"name": ECHO, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nMCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\n"
        f"Mcp-Name: {ECHO}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    sockets = []
    try:
        for _ in range(40):
            slow = socket.create_connection((host, int(port)), timeout=20)
            sockets.append(slow)
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(head + body)
        assert McpClient(town, "quick").call(ECHO, {"text": "hi"})["structuredContent"] == {"text": "hi"}
    finally:
        for slow in sockets:
            slow.close()


def test_planted_secrets_are_in_no_file_whatever_field_they_came_through(town: Running) -> None:
    planted = []

    def secret() -> str:
        planted.append("tlk_" + secrets.token_urlsafe(32))
        return planted[-1]

    for era in (MODERN, HANDSHAKE):
        client = McpClient(town, f"plant-{era}", era=era)
        planted.append(client.token)
        if era == HANDSHAKE:
            client.begin()
        for spelled in spellings(secret()).values():
            client.call(ECHO, {"text": spelled})
        meta = {"trunkline/correlation_id": secret(), "trunkline/idempotency_key": secret(), "progressToken": secret()}
        client.call(ECHO, {"text": "x"}, _meta=meta)
        client.exchange_messages("tools/call", {"name": secret(), "arguments": {secret(): secret()}})
        client.exchange_messages("tools/call", {"name": ECHO, "requestState": secret()})
        client.exchange_messages(secret(), {secret(): secret()})
        client.exchange_messages("resources/read", {"uri": f"trunkline://trajectories/{secret()}"})
        client.exchange_messages("tools/list", {"cursor": base64.b64encode(secret().encode()).decode()})
        client.exchange_messages("tools/list", headers={"mcp-session-id": secret(), "mcp-name": secret()})
        stranger = McpClient(town, token=secret(), era=era)
        stranger.exchange_messages("tools/list")
    wait_until(lambda: town.request("GET", "/v1/status")[1]["backlog"] == 0, "the disk")
    town.stop()
    for file in town.home.rglob("*"):
        if not file.is_file() or file.name == "operator.token":
            continue
        data = file.read_bytes()
        for one in planted:
            assert not [form for form in forms(one) if form in data], (file, one)

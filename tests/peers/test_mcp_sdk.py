"""The client of MCP's official SDK against a real exchange: both eras of the protocol, over HTTP and over stdio."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.running import RawAgent, Running, wait_until

BOUND_S = 30
ECHO = "com_example_echo__echo"
WRITE = "com_example_writer__write"
WRITER = """
from trunkline import Agent

agent = Agent("com.example.writer")


@agent.tool()
def write(text: str) -> dict[str, str]:
    "Keeps a text."
    return {"kept": text}


agent.run()
"""
COUNTDOWN = "com_example_clock__countdown"


@pytest.fixture(scope="module")
def demo() -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    (folder / "writer.py").write_text(WRITER)
    command = json.dumps([sys.executable, str(folder / "writer.py")])
    exchange = Running(folder / "home", f'[[agent]]\nid = "com.example.writer"\ncommand = {command}\n')
    exchange.flags = ("--demo",)
    exchange.start()
    try:
        for tool in ("com.example.echo/echo", "com.example.clock/countdown", "com.example.writer/write"):
            exchange.wait_tool(tool)
        yield exchange
    finally:
        assert exchange.stop() == 0
        shutil.rmtree(folder)


class Way:
    """How a client reaches the exchange: in which era, over which transport."""

    def __init__(self, exchange: Running, transport: str, mode: str) -> None:
        self.exchange = exchange
        self.transport = transport
        self.mode = mode
        self.name = f"{transport}-{mode}"
        self._token = exchange.new_token(self.name, "mcp") if transport == "http" else ""

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        if self.transport == "stdio":
            words = ["-m", "trunkline", "--home", str(self.exchange.home), "mcp", "--as", self.name]
            server = StdioServerParameters(command=sys.executable, args=words, env=dict(self.exchange.env))
            async with asyncio.timeout(BOUND_S), Client(server, mode=self.mode, **options) as client:
                yield client
            return
        headers = {"authorization": f"Bearer {self._token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=BOUND_S) as http:
            transport = streamable_http_client(f"{self.exchange.ready['http']}/mcp", http_client=http)
            async with asyncio.timeout(BOUND_S), Client(transport, mode=self.mode, **options) as client:
                yield client


@pytest.fixture(params=["http", "stdio"])
def transport(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=["legacy", "2026-07-28", "auto"])
def way(demo: Running, transport: str, request: pytest.FixtureRequest) -> Way:
    return Way(demo, transport, request.param)


async def test_tools_are_listed_and_called(way: Way) -> None:
    async with way.client() as client:
        assert client.protocol_version == ("2025-11-25" if way.mode == "legacy" else "2026-07-28")
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools[ECHO].annotations is not None
        assert tools[ECHO].annotations.read_only_hint is True
        assert tools[ECHO].meta is not None
        assert tools[ECHO].meta["trunkline/tool_id"] == "com.example.echo/echo"
        result = await client.call_tool(ECHO, {"text": "hello"})
        assert result.structured_content == {"text": "hello"}
        wrong = await client.call_tool(ECHO, {"words": 1})
        assert wrong.is_error
        with pytest.raises(MCPError):
            await client.call_tool("no_such__tool", {})


async def test_progress_is_seen_as_it_happens(way: Way) -> None:
    seen: list[tuple[float, str | None]] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        del total
        seen.append((progress, message))

    async with way.client() as client:
        result = await client.call_tool(COUNTDOWN, {"start": 3, "pause_s": 0.01}, progress_callback=progressed)
        assert not result.is_error
    assert [figure for figure, _ in seen] == sorted(figure for figure, _ in seen)
    assert len(seen) >= 3


async def test_a_side_effect_waits_for_a_person_and_the_repeat_gets_its_outcome(way: Way) -> None:
    arguments = {"text": f"bread for {way.name}"}
    async with way.client() as client:
        first = await client.call_tool(WRITE, arguments)
        assert first.is_error
        assert first.meta is not None
        approval_id = first.meta["trunkline/approval_id"]
        decision = {"decision": "approved"}
        assert way.exchange.request("POST", f"/v1/approvals/{approval_id}", decision)[0] == 200
        second = await client.call_tool(WRITE, arguments)
        assert not second.is_error, second
    made = [e for e in way.exchange.entries(kind="call.accepted") if e["caller"] == f"mcp:{way.name}"]
    assert len([entry for entry in made if entry["tool_id"] == "com.example.writer/write"]) == 1


async def test_a_client_that_opens_addresses_is_sent_to_the_console(way: Way) -> None:
    opened: list[str] = []

    async def elicit(_: Any, params: Any) -> types.ElicitResult:
        opened.append(params.url)
        approval_id = params.url.rpartition("/")[2]
        answer = await asyncio.to_thread(
            way.exchange.request, "POST", f"/v1/approvals/{approval_id}", {"decision": "approved"}
        )
        assert answer[0] == 200
        return types.ElicitResult(action="accept")

    arguments = {"text": f"butter for {way.name}"}
    async with way.client(elicitation_callback=elicit) as client:
        if way.mode == "legacy":
            with pytest.raises(MCPError) as asked:
                await client.call_tool(WRITE, arguments)
            assert asked.value.code == types.URL_ELICITATION_REQUIRED
            (elicitation,) = asked.value.error.data["elicitations"]
            await elicit(None, types.ElicitRequestURLParams.model_validate(elicitation))
        result = await client.call_tool(WRITE, arguments)
        assert not result.is_error, result
    (url,) = opened
    assert url.startswith(f"{way.exchange.ready['http']}/#/approvals/")


def listeners(exchange: Running) -> int:
    found: int = exchange.request("GET", "/v1/status")[1]["edges"]["mcp"]["listeners"]
    return found


async def test_a_new_tool_is_told_of(way: Way) -> None:
    told = asyncio.Event()

    async def heard(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.set()

    async with way.client(message_handler=heard) as client:
        before = {tool.name for tool in (await client.list_tools()).tools}

        async def arrive() -> None:
            agent = RawAgent(way.exchange, f"com.example.new-{way.name}")
            await asyncio.to_thread(agent.hello)
            await asyncio.to_thread(agent.register, {"name": "newest"})

        if way.mode == "legacy":
            # The stream of the session opens beside the handshake.
            await asyncio.to_thread(wait_until, lambda: listeners(way.exchange) > 0, "a listener")
            await arrive()
            await told.wait()
        else:
            async with client.listen(tools_list_changed=True) as events:
                await arrive()
                async for _ in events:
                    break
        after = {tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools}
    assert {name for name in after - before if name.endswith("__newest")}


async def test_trajectories_and_spaces_are_resources(way: Way) -> None:
    space = f"s-{way.transport}-{way.mode}"
    assert way.exchange.request("POST", "/v1/spaces", {"name": space})[0] == 201
    created = way.exchange.call(f"space.{space}/create_file", {"path": "a b.txt", "content": "hello"})
    assert created["status"] == "succeeded", created
    async with way.client() as client:
        called = await client.call_tool(ECHO, {"text": "traced"})
        assert called.meta is not None
        correlation = called.meta["trunkline/correlation_id"]
        listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert {f"trunkline://trajectories/{correlation}", f"trunkline://spaces/{space}"} <= listed
        read = await client.read_resource(f"trunkline://trajectories/{correlation}")
        assert isinstance(read.contents[0], types.TextResourceContents)
        assert '"traced"' in read.contents[0].text
        file = await client.read_resource(f"trunkline://spaces/{space}/a%20b.txt")
        assert isinstance(file.contents[0], types.TextResourceContents)
        assert file.contents[0].text == "hello"
        assert len((await client.list_resource_templates()).resource_templates) == 2
        with pytest.raises(MCPError):
            await client.read_resource("trunkline://trajectories/somebody-elses")

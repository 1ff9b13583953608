"""Agents that use nothing of ours, against a scripted Core: the one in Node.js, and the one written from the spec."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.requirement import requirement
from tests.scripted_core import WAIT_S, Conversation, ScriptedCore

ROOT = Path(__file__).parents[2]
TOKEN = "tok-planted-secret-0815"
Start = Callable[..., Any]


@pytest.fixture
async def core(short_path: Path) -> AsyncIterator[ScriptedCore]:
    async with ScriptedCore(short_path).listening() as listening:
        yield listening


@pytest.fixture
async def start(core: ScriptedCore) -> AsyncIterator[Start]:
    started: list[asyncio.subprocess.Process] = []

    async def begin(*command: str, agent_id: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={
                "PATH": os.environ["PATH"],
                "OPENSENTIENCE_SOCKET": core.address,
                "OPENSENTIENCE_SESSION_TOKEN": TOKEN,
                "OPENSENTIENCE_AGENT_ID": agent_id,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def attached(core: ScriptedCore, **welcome: Any) -> Conversation:
    conversation = await core.accept()
    await conversation.greet(**welcome)
    return conversation


# --- Node.js ----------------------------------------------------------------------------------------------------------

NODE = "com.example.node"


@pytest.fixture
async def node_agent(core: ScriptedCore, start: Start, node: str) -> asyncio.subprocess.Process:
    process: asyncio.subprocess.Process = await start(node, str(ROOT / "examples/node/agent.js"), agent_id=NODE)
    return process


async def test_the_node_agent_registers_and_answers(core: ScriptedCore, node_agent: asyncio.subprocess.Process) -> None:
    conversation = await attached(core)
    tools = await conversation.take_tools()
    assert set(tools) == {"sha256", "lines"}
    conversation.call(f"{NODE}/sha256", {"text": "abc"}, "c-1")
    result = await conversation.expect("agent.tool.result")
    assert result["payload"]["output"]["sha256"].startswith("ba7816bf")
    assert (result["request_id"], result["correlation_id"], result["causation_id"]) == ("r-c-1", "k-1", "cause-1")
    conversation.call(f"{NODE}/sha256", {"text": 1}, "c-2")
    assert (await conversation.result("c-2"))["error"]["code"] == "tool.invalid_input"
    conversation.call(f"{NODE}/nothing", {}, "c-3")
    assert (await conversation.result("c-3"))["error"]["code"] == "tool.not_found"


async def test_the_node_agent_streams_and_can_be_canceled(
    core: ScriptedCore, node_agent: asyncio.subprocess.Process
) -> None:
    conversation = await attached(core)
    await conversation.take_tools()
    conversation.call(f"{NODE}/lines", {"count": 1000, "pause_ms": 5})
    for seq in (1, 2, 3):
        chunk = (await conversation.expect("agent.tool.stream"))["payload"]
        assert (chunk["seq"], chunk["channel"], chunk["data"]) == (seq, "stdout", {"text": f"line {seq}\n"})
    conversation.send("core.tool.cancel", {"call_id": "c-1"})
    kinds = []
    while not kinds or kinds[-1] != "agent.tool.result":
        message = await conversation.hear()
        kinds.append(message["type"])
    assert "agent.tool.cancel_ack" in kinds
    assert message["payload"]["status"] == "canceled"
    assert message["payload"]["error"]["code"] == "tool.canceled"


async def test_the_node_agent_beats_pongs_and_tolerates_what_it_does_not_know(
    core: ScriptedCore, node_agent: asyncio.subprocess.Process
) -> None:
    conversation = await attached(core, heartbeat_interval_ms=50)
    await conversation.take_tools()
    beat = (await conversation.expect("agent.heartbeat"))["payload"]
    assert (beat["session_id"], beat["inflight_calls"], beat["status"]) == ("s-1", 0, "ok")
    conversation.send("core.future", {"x": 1})
    conversation.send("core.future", {"x": 1}, request_id="r-1")
    assert (await conversation.expect("agent.error"))["error"]["code"] == "protocol.unknown_type"
    ping = conversation.send("core.ping", x_new=[1])
    assert (await conversation.expect("agent.pong"))["in_reply_to"] == ping


async def test_the_node_agent_comes_back_and_ends_on_sigterm(
    core: ScriptedCore, node_agent: asyncio.subprocess.Process
) -> None:
    first = await attached(core)
    await first.take_tools()
    first.send("core.goodbye", {"reason": "restarting", "retry_after_ms": 10})
    first.hang_up()
    second = await attached(core)
    await second.take_tools()
    second.call(f"{NODE}/sha256", {"text": "abc"})
    await second.result()
    node_agent.send_signal(signal.SIGTERM)
    async with asyncio.timeout(WAIT_S):
        output, _ = await node_agent.communicate()
    assert node_agent.returncode == 0
    assert TOKEN.encode() not in output


async def test_the_node_agent_says_why_it_was_refused(
    core: ScriptedCore, node_agent: asyncio.subprocess.Process
) -> None:
    conversation = await core.accept()
    await conversation.expect("agent.hello")
    conversation.send("core.welcome", {}, error={"code": "protocol.unauthorized", "message": "no"})
    async with asyncio.timeout(WAIT_S):
        output, _ = await node_agent.communicate()
    assert node_agent.returncode == 1
    assert b"protocol.unauthorized" in output


# --- written from the specification -----------------------------------------------------------------------------------


@requirement("OS-040", "OS-041", "OS-042")
async def test_the_raw_agent_does_what_the_specification_asks(core: ScriptedCore, start: Start) -> None:
    await start(sys.executable, str(ROOT / "tests/peers/raw_agent.py"), agent_id="raw")
    conversation = await attached(core, heartbeat_interval_ms=50)
    assert set(await conversation.take_tools()) == {"add"}
    conversation.call("raw/add", {"a": 1, "b": 2.5}, "c-1")
    chunk = await conversation.expect("agent.tool.stream")
    assert chunk["payload"]["done"] is True
    assert chunk["request_id"] == "r-c-1"
    assert (await conversation.result("c-1"))["output"] == {"sum": 3.5}
    conversation.call("raw/add", {"a": "x"}, "c-2")
    assert (await conversation.result("c-2"))["error"]["code"] == "tool.invalid_input"
    assert (await conversation.expect("agent.heartbeat"))["payload"]["session_id"] == "s-1"

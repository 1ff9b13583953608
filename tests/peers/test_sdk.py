"""The SDK on a real exchange: both ways over both transports, across a restart, and what it is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trunkline
from tests.requirement import requirement
from tests.running import ROOT, WAIT_S, Running, running, wait_until
from trunkline import Agent, NotAdmitted, ToolFailed

CONFIG = f"""
[opensentience]
tcp = "127.0.0.1:0"

[[agent]]
id = "raw"
command = [{json.dumps(sys.executable)}, {json.dumps(str(ROOT / "tests/peers/raw_agent.py"))}]
"""


@pytest.fixture(scope="module")
def exchange() -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    with running(folder / "home", CONFIG) as found:
        found.wait_tool("raw/add")
        yield found
    shutil.rmtree(folder, ignore_errors=True)


async def off_loop(function: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
    """Ask the exchange over HTTP without holding up the agent in this process."""
    return await asyncio.wait_for(asyncio.to_thread(function, *arguments, **fields), WAIT_S)


def worker(name: str) -> Agent:
    """An agent with a few tools."""
    agent = Agent(name, version="1.0.0")

    @agent.tool(side_effects=False)
    async def double(n: int) -> dict[str, int]:
        return {"n": 2 * n}

    @agent.tool(side_effects=False)
    def text(size: int) -> dict[str, Any]:
        return {"text": "x" * size}

    return agent


@requirement("OS-010", "OS-058", "OS-067", "OS-088")
def test_an_agent_written_only_from_the_specification_works(exchange: Running) -> None:
    assert exchange.call("raw/add", {"a": 1, "b": 2})["output"] == {"sum": 3}
    assert exchange.call("raw/add", {"a": 1})["error"]["code"] == "tool.invalid_input"


@requirement("OS-005", "OS-007", "OS-009")
@pytest.mark.parametrize("door", ["socket", "tcp"])
async def test_it_is_called_over_both_transports(exchange: Running, door: str) -> None:
    agent = worker(f"sdk.{door}")
    address = exchange.ready[door]
    token = exchange.new_token(agent.agent_id)
    socket = address if door == "socket" or address.startswith("tcp://") else f"tcp://{address}"
    async with agent.connected(socket=socket, token=token):
        answer = await off_loop(exchange.call, f"{agent.agent_id}/double", {"n": 21})
    assert answer["output"] == {"n": 42}


async def test_a_program_calls_and_hears_of_its_failures(exchange: Running) -> None:
    token = exchange.new_token("sdk.caller")
    async with trunkline.connect("sdk.caller", token=token, home=exchange.home) as caller:
        assert await caller.call("raw/add", {"a": 1, "b": 2}) == {"sum": 3}
        with pytest.raises(ToolFailed, match=r"tool\.not_found"):
            await caller.call("raw/subtract")
        with pytest.raises(ToolFailed, match=r"tool\.invalid_input"):
            await caller.call("raw/add", {"a": "x"})


@requirement("OS-153", "OS-152")
async def test_large_outputs_come_as_references(exchange: Running, tmp_path: Path) -> None:
    agent = worker("sdk.large")
    token = exchange.new_token(agent.agent_id)
    async with agent.connected(socket=exchange.ready["socket"], token=token, home=tmp_path):
        stored = (await off_loop(exchange.call, "sdk.large/text", {"size": 2_000_000}))["output"]
        assert stored["$ref"].startswith("sha256:")
        kept = (await off_loop(exchange.call, "sdk.large/text", {"size": 5_000_000}))["output"]
    data = await off_loop(Path(kept["$file"]).read_bytes)
    assert json.loads(data) == {"text": "x" * 5_000_000}
    assert kept["sha256"] == hashlib.sha256(data).hexdigest()


async def test_a_caller_is_given_all_of_a_large_output(exchange: Running) -> None:
    agent, caller = worker("sdk.large2"), Agent("sdk.reader")
    tokens = {name: exchange.new_token(name) for name in ("sdk.large2", "sdk.reader")}
    async with (
        agent.connected(socket=exchange.ready["socket"], token=tokens["sdk.large2"]),
        caller.connected(socket=exchange.ready["socket"], token=tokens["sdk.reader"]),
    ):
        assert await caller.call("sdk.large2/text", {"size": 3_000_000}) == {"text": "x" * 3_000_000}


@requirement("OS-158", "OS-085")
async def test_it_asks_for_a_directive_and_uses_it(exchange: Running) -> None:
    agent, other = Agent("sdk.asks"), Agent("sdk.careful")

    @other.tool(requires_directive=True)
    async def erase() -> dict[str, bool]:
        return {"erased": True}

    async with (
        other.connected(socket=exchange.ready["socket"], token=exchange.new_token("sdk.careful")),
        agent.connected(socket=exchange.ready["socket"], token=exchange.new_token("sdk.asks")),
    ):
        asking = asyncio.create_task(agent.request_directive("sdk.careful/erase", reason="spring"))
        question = await off_loop(wait_until, lambda: _question(exchange, "directive"), "a question")
        await off_loop(exchange.request, "POST", f"/v1/approvals/{question}", {"decision": "approved"})
        directive = await asyncio.wait_for(asking, WAIT_S)
        calling = asyncio.create_task(agent.call("sdk.careful/erase", directive=directive))
        # The intent is stated; that this agent may have side effects is another question.
        question = await off_loop(wait_until, lambda: _question(exchange, "call"), "a question")
        await off_loop(exchange.request, "POST", f"/v1/approvals/{question}", {"decision": "approved"})
        assert await asyncio.wait_for(calling, WAIT_S) == {"erased": True}


def _question(exchange: Running, subject: str) -> str | None:
    for one in exchange.request("GET", "/v1/approvals")[1]["approvals"]:
        if one["subject"] == subject:
            return str(one["approval_id"])
    return None


@requirement("OS-073", "OS-074")
async def test_a_wrong_token_is_refused(exchange: Running) -> None:
    with pytest.raises(NotAdmitted, match=r"protocol\.unauthorized"):
        await worker("sdk.stranger").serve(socket=exchange.ready["socket"], token="wrong")


async def test_a_second_one_takes_the_place_of_the_first(exchange: Running) -> None:
    token = exchange.new_token("sdk.twice")
    first = asyncio.create_task(worker("sdk.twice").serve(socket=exchange.ready["socket"], token=token))
    await off_loop(exchange.wait_tool, "sdk.twice/double")
    async with worker("sdk.twice").connected(socket=exchange.ready["socket"], token=token):
        with pytest.raises(NotAdmitted, match="another process"):
            await asyncio.wait_for(first, WAIT_S)
        answer = await off_loop(exchange.call, "sdk.twice/double", {"n": 1})
        assert answer["output"] == {"n": 2}


@requirement("OS-076")
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_it_comes_back_when_the_exchange_does(short_path: Path, end: str) -> None:
    with running(short_path / "home") as exchange:
        agent = worker("sdk.patient")
        token = exchange.new_token(agent.agent_id)
        async with agent.connected(socket=exchange.ready["socket"], token=token):
            await off_loop(getattr(exchange, end))
            await off_loop(exchange.start)
            await off_loop(exchange.wait_tool, "sdk.patient/double")
            answer = await off_loop(exchange.call, "sdk.patient/double", {"n": 4})
            assert answer["output"] == {"n": 8}

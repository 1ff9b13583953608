"""An agent's connection: heartbeats, bounds, coming back and going."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.requirement import requirement
from tests.scripted_core import WAIT_S, ScriptedCore
from tests.unit.sdk.conftest import TOKEN, A, Attach
from trunkline import Agent, NotAdmitted

# --- heartbeats -------------------------------------------------------------------------------------------------------


@requirement("OS-128")
async def test_heartbeats_go_on_while_a_plain_tool_works(agent: Agent, attach: Attach) -> None:
    enough = threading.Event()

    @agent.tool()
    def busy() -> None:
        assert enough.wait(WAIT_S)

    async with attach(agent, heartbeat_interval_ms=20) as core:
        core.call(f"{A}/busy")
        while True:
            beat = await core.expect("agent.heartbeat")
            if beat["payload"]["inflight_calls"] == 1:
                break
        assert beat["payload"]["session_id"] == "s-1"
        for _ in range(3):
            assert (await core.hear())["type"] == "agent.heartbeat"
        enough.set()
        await core.result()


@requirement("OS-130", "OS-131")
async def test_an_agent_says_how_it_is(agent: Agent, attach: Attach) -> None:
    async with attach(agent) as core:
        agent.health("degraded", queue=7)
        beat = (await core.expect("agent.heartbeat"))["payload"]
    assert (beat["status"], beat["details"]) == ("degraded", {"queue": 7})


async def test_how_an_agent_is_survives_a_reconnect(agent: Agent, attach: Attach, core: ScriptedCore) -> None:
    async with attach(agent) as first:
        agent.health("degraded")
        await first.expect("agent.heartbeat")
        first.hang_up()
        second = await core.accept()
        await second.greet()
        assert (await second.expect("agent.heartbeat"))["payload"]["status"] == "degraded"


# --- bounds -----------------------------------------------------------------------------------------------------------


def kept(reference: dict[str, Any], home: Path) -> bytes:
    """The bytes of a kept result, which nobody else may read."""
    file = Path(reference["$file"])
    assert file.is_relative_to(home)
    assert file.stat().st_mode & 0o077 == 0
    assert reference["bytes"] == file.stat().st_size
    return file.read_bytes()


@requirement("OS-153", "OS-152")
async def test_an_output_that_no_frame_holds_becomes_a_file_and_a_reference(
    agent: Agent, attach: Attach, tmp_path: Path
) -> None:
    @agent.tool()
    async def big(size: int) -> dict[str, Any]:
        return {"text": "x" * size}

    async with attach(agent, home=tmp_path, max_frame_bytes=65_536) as core:
        core.call(f"{A}/big", {"size": 50_000}, "c-1")
        assert len((await core.result("c-1"))["output"]["text"]) == 50_000
        core.call(f"{A}/big", {"size": 100_000}, "c-2")
        reference = (await core.result("c-2"))["output"]
    data = kept(reference, tmp_path)
    assert json.loads(data) == {"text": "x" * 100_000}
    assert reference["sha256"] == hashlib.sha256(data).hexdigest()


@requirement("OS-152", "OS-016")
async def test_without_a_home_folder_it_becomes_a_structured_failure(agent: Agent, attach: Attach) -> None:
    @agent.tool()
    async def big() -> dict[str, str]:
        return {"text": "x" * 100_000}

    async with attach(agent, max_frame_bytes=65_536) as core:
        core.call(f"{A}/big")
        error = (await core.result())["error"]
    assert error["code"] == "tool.output_too_large"
    assert error["message"].endswith("a frame of 65536 bytes ([opensentience] max_frame_bytes)")


@requirement("OS-153")
async def test_where_a_schema_says_what_the_output_is_the_reference_is_in_the_details_of_a_failure(
    agent: Agent, attach: Attach, tmp_path: Path
) -> None:
    @agent.tool()
    async def big() -> dict[str, str]:
        return {"text": "x" * 100_000}

    async with attach(agent, home=tmp_path, max_frame_bytes=65_536) as core:
        core.call(f"{A}/big")
        error = (await core.result())["error"]
    assert error["code"] == "tool.output_too_large"
    frame = "a frame of 65536 bytes ([opensentience] max_frame_bytes)"
    assert error["message"] == f"the result does not fit into {frame}; it is in the file that the details name"
    assert json.loads(kept(error["details"], tmp_path)) == {"text": "x" * 100_000}


# --- coming back, and going -------------------------------------------------------------------------------------------


@requirement("OS-076")
async def test_it_comes_back_after_the_wait_that_the_goodbye_asks_for(
    agent: Agent, attach: Attach, core: ScriptedCore
) -> None:
    loop = asyncio.get_running_loop()
    async with attach(agent) as first:
        first.send("core.goodbye", {"reason": "restarting", "retry_after_ms": 400})
        first.hang_up()
        gone = loop.time()
        second = await core.accept()
        # The wait that it would choose by itself is 0.1 s at most.
        assert loop.time() - gone > 0.35
        hello = await second.greet()
        assert hello["payload"]["session_token"] == TOKEN


async def test_who_was_replaced_does_not_come_back(agent: Agent, core: ScriptedCore) -> None:
    serving = asyncio.create_task(agent.serve(socket=core.address, token=TOKEN))
    conversation = await core.accept()
    await conversation.greet()
    conversation.send("core.goodbye", {"reason": "replaced"})
    conversation.hang_up()
    with pytest.raises(NotAdmitted, match="another process"):
        await asyncio.wait_for(serving, WAIT_S)


async def test_a_refusal_ends_it_with_the_reason(agent: Agent, core: ScriptedCore) -> None:
    serving = asyncio.create_task(agent.serve(socket=core.address, token=TOKEN))
    conversation = await core.accept()
    await conversation.expect("agent.hello")
    conversation.send("core.welcome", {}, error={"code": "protocol.unauthorized", "message": "the token is not valid"})
    with pytest.raises(NotAdmitted, match=r"protocol\.unauthorized: the token is not valid"):
        await asyncio.wait_for(serving, WAIT_S)


async def test_a_refusal_right_after_a_reconnect_is_not_the_end(
    agent: Agent, attach: Attach, core: ScriptedCore
) -> None:
    async with attach(agent) as first:
        first.hang_up()
        second = await core.accept()
        await second.expect("agent.hello")
        second.send("core.welcome", {}, error={"code": "protocol.unauthorized", "message": "not yet"})
        third = await core.accept()
        await third.greet()


async def test_it_waits_for_an_exchange_that_is_not_there_yet(
    agent: Agent, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()
    monkeypatch.setattr(logging.getLogger("trunkline.agent"), "warning", lambda *_: tried.set())
    late = ScriptedCore(short_path)
    serving = asyncio.create_task(agent.serve(socket=late.address, token=TOKEN))
    await asyncio.wait_for(tried.wait(), WAIT_S)
    async with late.listening():
        await (await late.accept()).greet()
        agent.stop()
        await asyncio.wait_for(serving, WAIT_S)


@requirement("OS-007", "OS-009")
async def test_it_speaks_the_same_over_tcp(agent: Agent, short_path: Path) -> None:
    @agent.tool()
    async def ok() -> None: ...

    async with ScriptedCore(short_path).listening(tcp=True) as core:
        serving = asyncio.create_task(agent.serve(socket=core.address, token=TOKEN))
        conversation = await core.accept()
        await conversation.greet()
        await conversation.take_tools()
        conversation.call(f"{A}/ok")
        assert (await conversation.result())["output"] == {}
        agent.stop()
        await serving


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:80", "tcp://example.org:80", "tcp://127.0.0.1", "tcp://:80"])
async def test_a_token_is_never_sent_to_another_machine(agent: Agent, address: str) -> None:
    with pytest.raises(ValueError, match="tcp://"):
        await agent.serve(socket=address, token=TOKEN)


async def test_stopping_lets_running_calls_end_and_refuses_new_ones(agent: Agent, core: ScriptedCore) -> None:
    go_on = asyncio.Event()

    @agent.tool()
    async def slow() -> str:
        agent.progress("started")
        await go_on.wait()
        return "done"

    serving = asyncio.create_task(agent.serve(socket=core.address, token=TOKEN, grace_s=WAIT_S))
    conversation = await core.accept()
    await conversation.greet()
    await conversation.take_tools()
    conversation.call(f"{A}/slow", {}, "c-1")
    await conversation.expect("agent.tool.stream")
    agent.stop()
    beat = (await conversation.expect("agent.heartbeat"))["payload"]
    assert (beat["status"], beat["details"]) == ("unhealthy", {"reason": "stopping"})
    conversation.call(f"{A}/slow", {}, "c-2")
    refused = await conversation.result("c-2")
    assert refused["error"]["code"] == "tool.unavailable"
    assert refused["error"]["retryable"] is True
    go_on.set()
    assert (await conversation.result("c-1"))["output"] == {"result": "done"}
    await conversation.closed()
    assert await asyncio.wait_for(serving, WAIT_S) is True


async def test_after_the_grace_running_calls_are_canceled_and_say_so(agent: Agent, core: ScriptedCore) -> None:
    @agent.tool()
    async def forever() -> None:
        agent.progress("started")
        await asyncio.Event().wait()

    serving = asyncio.create_task(agent.serve(socket=core.address, token=TOKEN, grace_s=0))
    conversation = await core.accept()
    await conversation.greet()
    await conversation.take_tools()
    conversation.call(f"{A}/forever")
    await conversation.expect("agent.tool.stream")
    agent.stop()
    assert (await conversation.result())["status"] == "canceled"
    assert await asyncio.wait_for(serving, WAIT_S) is True


@requirement("OS-137", "OS-143")
async def test_the_token_is_in_no_log_line_no_repr_and_no_frame_but_the_hello(
    agent: Agent, attach: Attach, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @agent.tool()
    async def fail() -> None:
        raise RuntimeError

    async with attach(agent) as core:
        core.call(f"{A}/fail")
        await core.result()
        assert TOKEN not in repr(agent) + repr(vars(agent)) + repr(vars(agent._connection))
        heard = core.heard
    assert TOKEN in json.dumps(heard[0])
    assert TOKEN not in json.dumps(heard[1:])
    assert TOKEN not in caplog.text

"""Calls of MCP clients that have no task, and what makes them have one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.unit.edges.mcp.conftest import ECHO_NAME, HANDSHAKE, MODERN, Client, Served, messages_of, wait_until
from trunkline.edges.mcp import calls
from trunkline.edges.mcp.translate import Wording
from trunkline.entries import CallSettled, Noticed
from trunkline.model import Status, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, AttachedAgent

SLOW = "com.example.slow/work"
SLOW_NAME = "com_example_slow__work"


@pytest.fixture
def slow(served: Served) -> AttachedAgent:
    """An agent whose answers the test gives."""
    definition = ToolDefinition(SLOW, "works", ANY_OBJECT, side_effects=False, capabilities=("cancellation",))
    return served.exchange.attach("com.example.slow", definition)


def requests_with_a_task() -> int:
    return sum("run_asgi" in getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())


async def test_a_call_that_runs_has_no_task(client: Client, slow: AttachedAgent) -> None:
    running = asyncio.create_task(client.call(SLOW_NAME))
    await wait_until(lambda: slow.delivered)
    assert requests_with_a_task() == 0
    slow.finish({"done": 1})
    assert (await running)["structuredContent"] == {"done": 1}


async def test_what_comes_in_pieces_is_answered_as_what_comes_whole(served: Served, client: Client) -> None:
    params = {"name": ECHO_NAME, "arguments": {"text": "hi"}}
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": client.envelope(params)}, separators=(",", ":")
    ).encode()
    headers = {**client.headers("tools/call", params), "content-type": "application/json"}

    async def pieces() -> Any:
        yield body[:20]
        await wait_until(lambda: requests_with_a_task() == 1)
        yield body[20:]

    answer = await served.http.post("/mcp", content=pieces(), headers=headers)
    assert answer.json()["result"]["structuredContent"] == {"text": "hi"}


async def test_a_call_of_which_nothing_is_heard_becomes_a_stream(
    client: Client, slow: AttachedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PING_S", 0.02)
    running = asyncio.create_task(client.post("tools/call", {"name": SLOW_NAME}))
    await wait_until(lambda: requests_with_a_task() == 1)
    slow.finish({"done": 1})
    answer = await running
    assert answer.headers["content-type"] == "text/event-stream"
    assert ": ping" in answer.text
    assert messages_of(answer)[-1]["result"]["structuredContent"] == {"done": 1}


async def test_one_timer_looks_after_all_and_the_next_one_at_its_time(
    served: Served, slow: AttachedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PING_S", 0.05)
    clients = [await served.client(f"c{number}").begin() for number in range(3)]
    running = []
    for number, one in enumerate(clients):
        running.append(asyncio.create_task(one.post("tools/call", {"name": SLOW_NAME})))
        await wait_until(lambda number=number: len(slow.delivered) > number)
    await wait_until(lambda: requests_with_a_task() == 3)
    for number in range(3):
        slow.finish({"done": number}, at=number)
    for answer in await asyncio.gather(*running):
        assert answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_large_output_is_handed_over_in_pieces(client: Client, slow: AttachedAgent, size: int) -> None:
    running = asyncio.create_task(client.call(SLOW_NAME))
    await wait_until(lambda: slow.delivered)
    slow.finish({"text": "x" * size})
    assert (await running)["structuredContent"] == {"text": "x" * size}


async def test_an_outcome_that_cannot_be_said_is_a_defect_of_one_conversation(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Wording, "outcome", _broken)
        answer = await client.ask("tools/call", {"name": ECHO_NAME})
    assert answer["error"]["code"] == -32603
    assert [one.code for one in served.exchange.recorded(Noticed)] == ["defect"]
    assert (await client.call(ECHO_NAME, {"n": 1}))["structuredContent"] == {"n": 1}


@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
async def test_who_leaves_cancels_in_one_era_and_not_in_the_other(
    served: Served, slow: AttachedAgent, era: str
) -> None:
    client = await served.client(era=era).begin()
    running = asyncio.create_task(client.post("tools/call", {"name": SLOW_NAME}))
    await wait_until(lambda: slow.delivered)
    assert requests_with_a_task() == 0
    running.cancel()
    await wait_until(lambda: not served.waiting)
    assert bool(slow.canceled) == (era == MODERN)
    slow.finish(status=Status.CANCELED if era == MODERN else Status.SUCCEEDED)
    assert len(served.exchange.recorded(CallSettled)) == 1


async def test_a_call_with_a_key_outlives_the_connection_that_began_it(served: Served, slow: AttachedAgent) -> None:
    first, second = [await served.client(era=MODERN).begin() for _ in range(2)]
    params = {"name": SLOW_NAME, "_meta": {"trunkline/idempotency_key": "K1"}}
    lost = asyncio.create_task(first.post("tools/call", params))
    await wait_until(lambda: slow.delivered)
    repeat = asyncio.create_task(second.ask("tools/call", params))
    await wait_until(lambda: len(served.waiting) == 2)
    lost.cancel()
    await wait_until(lambda: len(served.waiting) == 1)
    assert not slow.canceled
    slow.finish({"done": 1})
    assert (await repeat)["result"]["structuredContent"] == {"done": 1}


async def test_who_leaves_while_his_call_waits_for_a_place_ends_it(served: Served) -> None:
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: raised.append(found))
    definition = ToolDefinition("com.example.one/work", "works", ANY_OBJECT, side_effects=False)
    one = served.exchange.attach("com.example.one", definition, max_inflight=1)
    first, second = served.client("first"), served.client("second")
    running = asyncio.create_task(first.call("com_example_one__work"))
    await wait_until(lambda: one.delivered)
    queued = asyncio.create_task(second.post("tools/call", {"name": "com_example_one__work"}))
    await wait_until(lambda: len(served.waiting) == 2)
    queued.cancel()
    await wait_until(lambda: len(served.waiting) == 1)
    assert [entry.status for entry in served.exchange.recorded(CallSettled)] == [Status.CANCELED]
    one.finish({})
    await running
    assert not served.exchange.recorded(Noticed)
    assert not raised


def _broken(*_: object) -> bytes:
    raise RuntimeError

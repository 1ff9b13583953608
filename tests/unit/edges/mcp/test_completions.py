"""``edges.mcp.completions``: a session that was sent to a question hears that it is not open any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.edges.mcp.conftest import HANDSHAKE, SHELL_NAME, Client, Served, wait_until
from trunkline.edges.mcp import completions
from trunkline.edges.mcp import listening as looking
from trunkline.edges.mcp.completions import METHOD, Completions
from trunkline.edges.waiting import Requests


@contextlib.asynccontextmanager
async def listening(served: Served, client: Client) -> AsyncIterator[list[dict[str, Any]]]:
    """What a session is told on its stream."""
    told: list[dict[str, Any]] = []

    async def listen() -> None:
        async with served.http.stream("GET", "/mcp", headers=client.headers("", {})) as answer:
            async for line in answer.aiter_lines():
                told.extend([json.loads(line.removeprefix("data: "))] if line.startswith("data: ") else [])

    count = listeners(served)
    task = asyncio.create_task(listen())
    await wait_until(lambda: listeners(served) == count + 1)
    yield told
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await wait_until(lambda: listeners(served) == count)


def listeners(served: Served) -> int:
    status: Any = served.exchange.edges.status()
    return int(status["edges"]["mcp"]["listeners"])


async def asked(client: Client, command: str) -> str:
    answer = await client.ask("tools/call", {"name": SHELL_NAME, "arguments": {"command": command}})
    (elicitation,) = answer["error"]["data"]["elicitations"]
    return str(elicitation["elicitationId"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "LOOK_S", 0.02)


@requirement("MCP-032")
@pytest.mark.parametrize("approved", [True, False])
async def test_a_session_hears_of_the_answer_to_its_own_question_once(served: Served, approved: bool) -> None:
    mine = await served.client(era=HANDSHAKE, opens_urls=True).begin()
    beside = await served.client(era=HANDSHAKE, opens_urls=True).begin()
    async with listening(served, mine) as told, listening(served, beside) as told_beside:
        first, second = await asked(mine, "one"), await asked(beside, "two")
        third = await asked(mine, "three")
        served.exchange.answer(first, approved=approved)
        served.exchange.answer(second, approved=approved)
        await wait_until(lambda: told and told_beside)
        expected = {"jsonrpc": "2.0", "method": METHOD, "params": {"elicitationId": first}}
        assert told == [expected]
        assert [one["params"] for one in told_beside] == [{"elicitationId": second}]
        served.exchange.answer(third)
        await wait_until(lambda: len(told) == 2)
        assert told[1]["params"] == {"elicitationId": third}


async def test_who_listens_later_hears_of_it_then(served: Served) -> None:
    client = await served.client(era=HANDSHAKE, opens_urls=True).begin()
    question = await asked(client, "one")
    served.exchange.answer(question)
    async with listening(served, client) as told:
        await wait_until(lambda: told)
        assert told[0]["params"] == {"elicitationId": question}


async def test_what_is_remembered_of_one_caller_is_bounded_and_pushes_out_nothing_of_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "MAX_ASKED", 2)
    found = Completions(served.exchange.feed, served.exchange.views)
    for number in range(4):
        found.asked("mcp:greedy", "s", f"a-{number}")
    found.asked("mcp:other", "t", "b")
    with Requests(served.exchange.feed).waiting() as greedy, Requests(served.exchange.feed).waiting() as other:
        found.listen(greedy, "mcp:greedy", "s")
        found.listen(other, "mcp:other", "t")
        told: list[Any] = [await greedy.next(), await greedy.next(), await other.next()]
        found.leave(greedy)
        found.leave(other)
    assert [json.loads(line)["params"]["elicitationId"] for line in told] == ["a-2", "a-3", "b"]

"""P-D1 for Chiffon: wrong messages by HTTP, WebSocket, callback and queue. Deterministic by seed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import chiffon
from tests.fuzz.kept import judge_memory
from tests.unit.edges.chiffon.kit import Kit, reply_to
from tests.unit.edges.chiffon.test_queue import fetch, joined, publish, register, until
from trunkline.edges.chiffon import subjects
from trunkline.model import Status

SHARDS, SHARD_STEPS = 4, 2_500
# Caches of patterns, times and schemas. A message that was kept would be a dozen objects of its own.
SLACK_OBJECTS = SHARD_STEPS


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_that_is_said_is_fatal_unanswered_or_kept(shard: int) -> None:
    chiffon.fuzz(shard + 1000, SHARD_STEPS // 2)
    judge_memory(chiffon.fuzz, shard, SHARD_STEPS, SLACK_OBJECTS)


def test_the_messages_reach_the_exchange_by_every_transport_and_are_wrong_in_many_ways() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        seen += chiffon.story(seed, chiffon.STEPS)
    assert seen.keys() >= {"200", "202", "400", "401", "404", "422", "503", "frames", "letters"}
    assert min(seen[outcome] for outcome in ("succeeded", "failed", "unknown")) > 10
    assert seen["wrong"] > 500


def test_an_output_in_pieces_whose_labels_lie_is_the_output_or_is_not_joined() -> None:
    assert chiffon.pieces(0, 10_000) == 10_000


def test_the_same_seed_makes_the_same_messages() -> None:
    first, again = (chiffon.World(3) for _ in range(2))
    said = [[world.body(world.by_agent("infra")) for _ in range(100)] for world in (first, again)]
    assert said[0] == said[1]


async def test_a_real_broker_brings_anything_and_the_queue_goes_on(tmp_path: Path) -> None:
    kit, world = Kit(), chiffon.World(5)
    token = kit.token("infra-1", "infra").decode()
    async with joined(tmp_path, kit) as (_, connection):
        await register(kit, connection)
        js = connection.jetstream()
        for number in range(60):
            message = {**world.by_agent("infra"), "auth_token": token}
            await js.publish(subjects.REPLIES, json.dumps(message).encode() if number % 3 == 0 else world.body(message))
            registration = {**world.registration("infra-1", "infra"), "auth_token": token}
            if number % 10 == 0:
                async with asyncio.timeout(20):
                    answer = await connection.request(subjects.REGISTER, world.body(registration), timeout=10)
                assert json.loads(answer.data).keys() & {"registered", "payload"}
        inbox = await subjects.consumer(js, subjects.work("infra", "infra-1"), "test")
        async with asyncio.timeout(20):
            # Each that could be answered was; the agent takes the answers, and nothing is left.
            while (await js.stream_info(subjects.STREAM)).state.messages:
                with contextlib.suppress(TimeoutError):
                    for told in await inbox.fetch(50, timeout=0.2):
                        world.hear(json.loads(told.data), "the broker")
                        await told.ack()
        assert not world.scene.raised
        await register(kit, connection)
        called = kit.call("infra-1/run", {"x": 1})
        _, work = await fetch(connection)
        result = {"task_id": work["payload"]["task_id"], "status": "success", "exit_code": 0, "output": "done"}
        await publish(kit, connection, reply_to(work, "work_result", result, "infra"))
        await until(lambda: called.answer)
    assert called.outcome.status is Status.SUCCEEDED
    kit.check()
    assert "defect" not in kit.notices()

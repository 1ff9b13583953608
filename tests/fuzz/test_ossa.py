"""P-D1 for OSSA: wrong messages by POST and by WebSocket, signed and not. Deterministic by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import ossa
from tests.fuzz.kept import judge_memory

SHARDS, SHARD_STEPS, SHARE = 2, 1_000, 24
# Caches of patterns, keys and schemas.
SLACK_OBJECTS = SHARD_STEPS * 2


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_that_is_said_is_fatal_unanswered_or_kept(shard: int) -> None:
    ossa.fuzz(shard + 1000, SHARD_STEPS // 2)
    judge_memory(ossa.fuzz, shard, SHARD_STEPS, SLACK_OBJECTS)


def test_each_field_of_each_type_takes_any_value_or_refuses_it() -> None:
    assert ossa.fields(0, SHARE) > 500


def test_each_member_of_a_signatures_header_takes_any_value_or_refuses_it() -> None:
    assert ossa.signature_headers() > 200


def test_the_messages_get_in_and_are_wrong_in_many_ways() -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        seen += ossa.story(seed, ossa.STEPS)
    assert seen.keys() >= {"200", "http 200", "http 202", "400", "401", "404", "503", "frames"} - {"200"}
    assert seen.keys() >= {"request", "response", "event", "command_result", "error", "stream_data", "acknowledgment"}
    assert seen["wrong"] > 300


def test_the_same_seed_makes_the_same_messages() -> None:
    said = []
    for _ in range(2):
        world = ossa.World(3)
        agent = world.agents["bob"]
        said.append([sorted(world.message(agent)["header"]) for _ in range(100)])
        world.close()
    assert said[0] == said[1]

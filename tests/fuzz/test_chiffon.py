"""P-D1 for Chiffon: wrong messages by HTTP, WebSocket, callback and queue. Deterministic by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import chiffon
from tests.fuzz.kept import judge_memory

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


def test_the_same_seed_makes_the_same_messages() -> None:
    first, again = (chiffon.World(3) for _ in range(2))
    said = [[world.body(world.by_agent("infra")) for _ in range(100)] for world in (first, again)]
    assert said[0] == said[1]

"""What agents say of themselves and their work harms nobody who looks at it. Deterministic by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import agents
from tests.fuzz.kept import judge_memory

SHARDS, SHARD_STEPS = 3, 1_000
# Caches of patterns, times and schemas. A message that was kept would be a dozen objects of its own.
SLACK_OBJECTS = 3 * SHARD_STEPS


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_that_an_agent_says_is_fatal_unreadable_or_kept(shard: int) -> None:
    agents.fuzz(shard + 1000, SHARD_STEPS // 2)
    judge_memory(agents.fuzz, shard, SHARD_STEPS, SLACK_OBJECTS)


def test_no_manifest_makes_its_reader_raise_anything_but_a_fault_of_the_configuration() -> None:
    assert agents.manifests(0, 2000) == 2000


def test_what_they_say_reaches_calls_pages_streams_and_who_watches() -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        seen += agents.story(seed)
    assert seen.keys() >= {"200", "202", "400", "streamed", "watched"}
    assert seen["watched"] > 500

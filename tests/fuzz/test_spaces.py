"""P-D1 for spaces: wrong operations, commands, paths, edits, policies and answers. Deterministic by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import spaces
from tests.fuzz.kept import judge_memory

SHARDS, SHARD_STEPS = 3, 2_000
# Caches of patterns, times and schemas, and what spaces remember of their last runs, which goes with the exchange.
SLACK_OBJECTS = SHARD_STEPS


@pytest.mark.parametrize("seed", range(2))
def test_no_command_line_raises_or_takes_long(seed: int) -> None:
    assert spaces.commands(seed, 500) == 500


@pytest.mark.parametrize("seed", range(2))
def test_no_path_and_no_edit_raises_anything_but_a_fault_of_the_workspace(seed: int) -> None:
    assert spaces.paths(seed, 3000) == 3000


@pytest.mark.parametrize("seed", range(2))
def test_no_value_makes_a_validator_raise_or_read_differently_the_second_time(seed: int) -> None:
    assert spaces.values(seed, 3000) == 3000


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_that_is_sent_to_a_space_is_fatal_unanswered_or_kept(shard: int) -> None:
    spaces.fuzz(shard + 1000, SHARD_STEPS // 2)
    judge_memory(spaces.fuzz, shard, SHARD_STEPS, SLACK_OBJECTS)


def test_the_messages_become_runs_and_are_wrong_in_many_ways() -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        seen += spaces.story(seed)
    assert seen.keys() >= {"200", "201", "400", "403", "404", "409", "said"}
    assert seen["200"] > 100

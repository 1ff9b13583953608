"""P-D1 for mounted servers: whatever one says, nothing of ours raises and every call has one outcome."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz import mounts

SHARDS, SHARD_STEPS = 4, 2_400


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_that_a_server_says_is_a_defect_or_leaves_a_call_without_an_outcome(shard: int) -> None:
    mounts.fuzz(shard, SHARD_STEPS)


def test_the_messages_reach_what_they_are_about() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        seen += mounts.story(seed, mounts.STEPS)
    assert min(seen[outcome] for outcome in ("succeeded", "failed", "unknown")) > 0, seen
    assert seen["wrong"] > 500
    assert seen["ended"] > 0

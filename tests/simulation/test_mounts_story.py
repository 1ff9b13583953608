"""Mounted servers at their worst: see ``mounts_story``."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.mounts_story import judged, told

STORIES = 40


@pytest.mark.parametrize("first", range(0, STORIES, 10))
def test_each_call_has_one_outcome_which_is_true_and_nothing_runs_twice_or_unapproved(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 10):
        story = told(seed)
        judged(story, seed)
        seen += story.seen
        story.exchange.close()
    assert all(seen[what] for what in ("succeeded", "failed", "unknown", "dies", "killed", "lies", "changes", "person"))


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = told(7), told(7)
    assert first.exchange.log == second.exchange.log
    assert len(first.exchange.log) > 40
    first.exchange.close()
    second.exchange.close()

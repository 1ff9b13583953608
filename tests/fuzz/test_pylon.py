"""P-D1 for Pylon: whatever pages and app-servers say, nothing of ours raises, and nothing of them is left."""

from __future__ import annotations

from collections import Counter

from tests.fuzz import pylon

SEEDS = 6


def test_nothing_that_pages_and_programs_say_is_a_defect_or_leaves_something_behind() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += pylon.fuzz(seed, pylon.STEPS)
    # The words reach what they are about.
    for event in ("pylon.capabilities", "pylon.system.pong", "pylon.codex.status", "pylon.codex.response"):
        assert seen[event] > 0, seen
    for event in ("pylon.codex.error", "pylon.codex.event", "pusher:error", "pusher_internal:member_added"):
        assert seen[event] > 0, seen
    assert seen["programs"] >= SEEDS

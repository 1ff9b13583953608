"""Whether something keeps what it was given: judged by what is left after many times."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import psutil

# The allocator keeps some of what it had for the largest pieces, here and there more the second time.
SLACK_BYTES = 8 * 1_048_576
ROUNDS = 4


def judge_memory(function: Callable[[int, int], int], seed: int, pieces: int, slack_objects: int) -> None:
    """After all pieces there is nothing more than before: whoever keeps something has more of it after each round."""
    function(seed + 1_000_000, pieces // 10)
    grown: list[tuple[int, int]] = []
    for _ in range(ROUNDS):
        gc.collect()
        before, objects = psutil.Process().memory_info().rss, sys.getallocatedblocks()
        assert function(seed, pieces) >= pieces
        gc.collect()
        more = (sys.getallocatedblocks() - objects, psutil.Process().memory_info().rss - before)
        if more[0] < slack_objects and more[1] < SLACK_BYTES:
            return
        grown.append(more)
    raise AssertionError(f"objects and bytes more after each of {ROUNDS} rounds: {grown}")

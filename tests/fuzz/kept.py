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
    """After all pieces there is nothing more than after the first tenth of as many.

    Objects are counted exactly. What the process has of the machine is not: only what grows each time is kept.
    """
    function(seed + 1_000_000, pieces // 10)
    for _ in range(ROUNDS):
        gc.collect()
        before, objects = psutil.Process().memory_info().rss, sys.getallocatedblocks()
        assert function(seed, pieces) >= pieces
        gc.collect()
        assert sys.getallocatedblocks() - objects < slack_objects
        grown = psutil.Process().memory_info().rss - before
        if grown < SLACK_BYTES:
            return
    raise AssertionError(f"{grown} bytes more after each of {ROUNDS} rounds")

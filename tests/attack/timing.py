"""Whether the time a wrong token takes says how wrong it is (P-E4). A job of ``make soak``: statistics are no test.

In the manner of dudect: two classes of tokens, wrong at the beginning and wrong at the end, in random order; the
slowest samples, which the machine made, are left out; Welch's t tells whether the means differ. Above 4.5 they do. Four
letters are wrong, not one: each digest has its own place in a table and with it its own time, so each may come once.
"""

from __future__ import annotations

import gc
import hashlib
import math
import random
import statistics
import time

from tests.unit.hub.kit import Kit

MOST_T = 4.5


def t_of(first: list[int], second: list[int]) -> float:
    """Welch's t of two samples without the slowest tenth of each."""
    kept = [sorted(sample)[: len(sample) * 9 // 10] for sample in (first, second)]
    means = [statistics.fmean(sample) for sample in kept]
    errors = [statistics.variance(sample) / len(sample) for sample in kept]
    return (means[0] - means[1]) / math.sqrt(sum(errors))


def measure(seed: int, samples: int) -> tuple[int, float]:
    """So many attempts of each class on one hub with one token; how many, and t."""
    choice = random.Random(seed)
    kit = Kit()
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    good = "tlk_" + "".join(choice.choices(letters, k=43))
    kit.token("http", "somebody", hashlib.sha256(good.encode()).hexdigest())
    identify = kit.hub.credentials.identify
    assert identify("http", hashlib.sha256(good.encode()).hexdigest()) is not None
    # Made beforehand, copied in the order of their use: nothing but the token differs between two samples.
    classes = [choice.getrandbits(1) for _ in range(2 * samples)]
    four = ["".join(choice.choices(letters, k=4)) for _ in classes]
    wrong = [w + good[4:] if at_first else good[:-4] + w for at_first, w in zip(classes, four, strict=True)]
    tokens = [bytearray(token.encode()) for token in wrong]
    times: tuple[list[int], list[int]] = ([], [])
    gc.collect()
    gc.disable()
    try:
        for at_first, token in zip(classes, tokens, strict=True):
            started = time.perf_counter_ns()
            identify("http", hashlib.sha256(token).hexdigest())
            times[at_first].append(time.perf_counter_ns() - started)
    finally:
        gc.enable()
    return 2 * samples, t_of(times[0], times[1])


def judge(seed: int, samples: int) -> int:
    """Measure; one who seems to differ is measured again, up to five times. A leak is slower in the same class always.

    On a busy machine a third of all measurements is above the limit, with either sign.
    """
    count, found = 0, 0.0
    for attempt in range(5):
        before = found
        more, found = measure(seed + attempt * 1_000_000, samples)
        count += more
        if abs(found) < MOST_T or before * found < 0:
            return count
    raise AssertionError(f"tokens wrong at the beginning and at the end differ in time: t = {found:.1f}")

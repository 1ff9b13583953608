"""What agents print never ends the keeper, is bounded and shows no token. Deterministic by seed."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz import logs


@pytest.mark.parametrize("seed", range(4))
def test_no_output_ends_a_log_breaks_its_bounds_or_shows_a_token(seed: int) -> None:
    assert logs.runlog(seed, 400) == 400


def test_no_output_ends_the_keeper_or_another_run() -> None:
    assert logs.keeper(0, 40) == 40


def test_the_same_seed_makes_the_same_output() -> None:
    first, again = Random(3), Random(3)
    assert [logs.printed(first) for _ in range(50)] == [logs.printed(again) for _ in range(50)]

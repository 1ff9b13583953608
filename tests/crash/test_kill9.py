"""P-A1: `kill -9` of the exchange at a random moment under load. `make soak` does it for as long as it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kill9 import trial

RUNS = 5


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(1, 5))
def test_after_kill_9_nothing_acknowledged_is_lost_and_nothing_ran_twice(short_path: Path, seed: int) -> None:
    made = trial(short_path / "home", seed, RUNS)
    assert len(made.kills) == RUNS
    assert len(made.crowd.answers) > 50, "a load worth its name"

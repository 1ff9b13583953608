from __future__ import annotations

import pytest

from tests.fuzz.trajectories import judge


@pytest.mark.parametrize("seed", range(4))
def test_no_file_stops_the_checker_and_what_it_accepts_every_other_reader_takes(seed: int) -> None:
    assert 0 < judge(seed, 1500) < 1500

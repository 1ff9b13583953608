"""Fuzzing of the inputs of all job types."""

from __future__ import annotations

import pytest

from tests.fuzz.jobs import run


@pytest.mark.parametrize("seed", range(12))
def test_a_job_is_refused_by_name_or_done_whatever_its_inputs(seed: int) -> None:
    run(seed)

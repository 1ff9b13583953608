"""Fuzzing of what providers say to a buyer."""

from __future__ import annotations

import pytest

from tests.fuzz.market import fuzz


@pytest.mark.parametrize("seed", range(6))
def test_whatever_providers_say_each_call_has_one_outcome(seed: int) -> None:
    fuzz(seed, 300)

"""``kill -9`` at every step of a payment: the sum of balances is constant, each job is receipted or refunded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.money9 import trial


@pytest.mark.timeout(240)
def test_money_is_neither_lost_nor_made_and_each_paid_job_is_receipted_or_refunded(short_path: Path) -> None:
    last = trial(short_path / "home", seed=1, kills=6)
    assert sum(last.values()) == 6
    assert len(last) >= 3, "the kills came at the same step each time"

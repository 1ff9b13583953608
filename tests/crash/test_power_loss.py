"""P-A2: the power goes, and what was not synced is gone, torn or out of order.

5,000 disks or more: each prefix of what four runs did to theirs, and 800 losses of each. `make soak` goes on from here.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.crash.power_loss import Recorded, judge, losses, prefixes, recording, scratch
from trunkline.errors import LedgerError

SEEDS = range(1, 5)
LOSSES = 800


@pytest.mark.parametrize("seed", SEEDS)
def test_after_every_step_everything_acknowledged_is_there_and_nothing_in_halves(seed: int) -> None:
    assert prefixes(seed) > 400


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_power_loss_everything_acknowledged_is_there_and_nothing_in_halves(seed: int) -> None:
    assert losses(seed, LOSSES) == LOSSES


def test_the_runs_hold_what_makes_them_worth_judging() -> None:
    """Several checkpoints, a snapshot, a closed part, a held original, a body stored beside its entry."""
    kinds: set[str] = set()
    for seed in SEEDS:
        with recording(seed, 30) as recorded:
            lines = b"".join(line or b"" for line in recorded.lines.values())
            kinds |= {kind for kind in ("ledger.snapshot", "ledger.part_closed", "question.closed", '"moved"')
                      if kind.encode() in lines}  # fmt: skip
            kinds |= {"masked_mac"} if b"masked_mac" in lines else set()
            checkpoints = [step for step in recorded.disk.steps if (step.kind, step.name) == ("sync", "ledger.sqlite")]
            assert len(checkpoints) > 2
            assert any(step.kind == "sync names" for step in recorded.disk.steps)
    assert kinds == {"ledger.snapshot", "ledger.part_closed", "question.closed", '"moved"', "masked_mac"}


@pytest.mark.parametrize("forgotten", ["ledger.sqlite-wal", "ledger.sqlite"])
def test_a_sync_that_is_left_out_is_found_out(forgotten: str) -> None:
    with recording(1, 30) as recorded:
        recorded.disk.steps[:] = [
            step._replace(kind="nothing") if (step.kind, step.name) == ("sync", forgotten) else step
            for step in recorded.disk.steps
        ]
        assert any(_is_found_out(recorded, number) for number in range(200))


def _is_found_out(recorded: Recorded, number: int) -> bool:
    rng = Random(number)
    step = rng.randint(0, recorded.steps)
    with scratch() as folder:
        try:
            judge(recorded, recorded.disk.after_power_loss(rng, at=step), step, folder)
        except (AssertionError, LedgerError):
            return True
    return False

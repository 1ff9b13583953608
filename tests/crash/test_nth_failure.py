"""P-A3 and P-A4: the N-th operation of the disk fails, for N = 1, 2, 3 … until a run passes without meeting it.

Four kinds of failure, each once and from there on. The runs hold creation, commits, checkpoints, snapshots, a clean
stop and a second start. What a failing disk means for the process is in ``test_failing_disk``.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.crash.middle import WORKER, Middle, load
from tests.crash.power_loss import LEDGER, Recorded, judge, scratch
from trunkline.effects import Answer, Deliver
from trunkline.errors import LedgerError, LedgerFailed, LedgerFull
from trunkline.testing.disk import Failure, FaultyDisk

ROUNDS = 8
SEED = 11
# Far above the number of operations of a run.
NEVER_CLEAN = 2000


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from there on"])
@pytest.mark.parametrize("kind", list(Failure))
def test_whichever_operation_fails_what_was_acknowledged_is_there_at_the_next_start(
    kind: Failure, persistent: bool
) -> None:
    assert each_operation(SEED, kind, persistent=persistent) > 10


def each_operation(seed: int, kind: Failure, *, persistent: bool) -> int:
    """Let one operation after the other fail, until a run meets none that does; how many failed."""
    reported = 0
    for n in range(1, NEVER_CLEAN):
        with FaultyDisk(seed) as disk, scratch() as folder:
            disk.fail_at(n, kind, persistent=persistent)
            run = Recorded(seed, ROUNDS, disk)
            disk.heal()
            if not disk.has_failed:
                assert reported > n / 4, "most failures are noticed"
                assert not run.errors
                return n - 1
            try:
                reported += judge_failed(run, kind)
                # The process is gone, the machine goes on; or it does not, and what was not synced is lost.
                judge(run, disk.image(), len(disk.steps), folder)
                judge(run, disk.after_power_loss(Random(n)), len(disk.steps), folder)
            except (AssertionError, LedgerError) as exc:
                exc.add_note(f"seed {seed}, {kind}, operation {n}: {disk.failures[0]}")
                raise
    raise AssertionError("the disk never worked")


def judge_failed(run: Recorded, kind: Failure) -> bool:
    """Whether the failure was reported; and nothing was said after it but no."""
    failures = [error for middle in run.runs for error in middle.failures]
    for error in (*failures, *run.errors):
        assert isinstance(error, LedgerFull if kind in {Failure.ENOSPC, Failure.SHORT_WRITE} else LedgerFailed)
    assert len(failures) <= 1, "a failure is final"
    if kind is Failure.FSYNC:
        assert failures or run.errors, "a failed sync is never passed over"
    return bool(failures or run.errors or any(middle.dead for middle in run.runs))


@pytest.mark.parametrize("kind", [Failure.FSYNC, Failure.EIO])
def test_after_a_failed_sync_nothing_is_acknowledged_delivered_or_synced_again(kind: Failure) -> None:
    with FaultyDisk(SEED) as disk:
        middle = Middle(disk.path(LEDGER), disk.vfs, steps=lambda: len(disk.steps))
        load(middle, Random(SEED), 30)
        middle.ledger.flush()
        # One that runs and has no side effects, so that its answer would wait for nothing.
        middle.call(f"{WORKER}/read", b'{"n":1}')
        reading = middle.left[-1].what
        assert isinstance(reading, Deliver)
        middle.call(f"{WORKER}/write", b'{"n":2}')
        disk.fail_at(1, kind)
        left, done = len(middle.left), len(disk.steps)
        middle.ledger.flush()
        assert isinstance(middle.failures[0], LedgerFailed)
        assert middle.dead
        syncs = [step for step in disk.steps[done:] if step.kind == "sync"]
        # The disk would work again; nothing is tried again.
        written = len(disk.steps)
        middle.finish(reading, b'{"n":1}')
        middle.call(f"{WORKER}/read", b'{"n":3}')
        middle.call(f"{WORKER}/write", b'{"n":4}', "key")
        middle.ledger.flush()
        with pytest.raises(LedgerFailed):
            middle.ledger.close()
        assert len(disk.steps) == written
        assert not syncs
        said = [gone.what for gone in middle.left[left:]]
        assert [type(what) for what in said] == [Answer, Answer], "only those who asked since heard of it"
        for what in said:
            assert isinstance(what, Answer)
            assert what.refused
            assert what.fault is not None
            assert what.fault.code == "hub.unavailable"

"""P-A9: two exchanges on one home. One runs, the other ends at once and says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.racing import __file__ as racing
from tests.running import NO_DEFAULT_PORTS
from trunkline.ledger.store import LAST_COMMIT_S
from trunkline.ledger.verify import verify

RACES = 20
SHARDS = 2


@pytest.mark.timeout(180)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_of_two_exchanges_on_one_home_exactly_one_runs(short_path: Path, shard: int) -> None:
    assert race(short_path, shard, RACES // SHARDS) == RACES // SHARDS


def race(folder: Path, seed: int, races: int) -> int:
    """So many, half of them on a home that nobody has used, where all is still to be made; how many there were."""
    process = subprocess.Popen(
        [sys.executable, racing],
        env={**os.environ, **NO_DEFAULT_PORTS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    runs = 0
    for number in range(races):
        home = folder / f"home{number // 2}"
        home.mkdir(mode=0o700, exist_ok=True)
        process.stdin.write(f"{home}\n")
        process.stdin.flush()
        went = json.loads(process.stdout.readline())
        told = f"race {number} of {seed}: {went}"
        assert went["refused"] == 2, told
        assert "already running" in went["said"], told
        assert went["refused_after_s"] < LAST_COMMIT_S, told
        assert went["ready"], told
        assert went["ended"] == 0, told
        runs += 1
        if number % 2:
            report = verify(home / "ledger.sqlite")
            assert report.entries == report.last
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()
    return runs

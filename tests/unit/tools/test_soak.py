from __future__ import annotations

import importlib.util
import time

import pytest

from tools import soak
from tools.soak import FIRST_SEED, JOBS, Job, Tally, main, table

QUICK_S = 0.3


# At the top of the module, so that a worker process finds them.
def passes(seed: int) -> int:
    return seed % 7


def fails(seed: int) -> int:
    time.sleep(0.01)
    raise AssertionError(f"seed {seed} is unlucky\nand more")


@pytest.mark.slow
def test_each_job_gets_its_turn_no_seed_comes_twice_and_failures_do_not_stop_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tallies = [Tally(Job(passes, "cases"), 70), Tally(Job(fails, "cases"), 5)]
    soak.soak(tallies, QUICK_S, workers=2)
    good, bad = tallies
    assert good.runs == good.next - 70 > 0
    assert good.cases == sum(seed % 7 for seed in range(70, good.next))
    assert set(bad.failed) == set(range(5, bad.next))
    assert bad.failed[5] == "AssertionError: seed 5 is unlucky"
    assert good.under_way == bad.under_way == 0
    assert "fails failed with seed 5:" in capsys.readouterr().out
    said = table(tallies)
    assert f"| passes | 70–{good.next - 1} | {good.cases:,} cases | 0 |" in said
    assert "failed: fails=5: AssertionError: seed 5 is unlucky" in said
    assert said.endswith(f'FROM="passes={good.next} fails={bad.next}"')


def test_whoever_had_least_time_is_next() -> None:
    slow, quick = Tally(Job(passes, "cases"), 0), Tally(Job(fails, "cases"), 0)
    slow.seconds, slow.runs = 10.0, 2
    quick.seconds, quick.runs = 8.0, 80
    assert quick.share < slow.share
    quick.under_way = 30
    assert quick.share > slow.share


def test_what_can_be_asked_for_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--only", "kill8"], ["--from", "kill8=3"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "no job kill8; there are kill9, power" in capsys.readouterr().err
    assert main(["--minutes", "0", "--from", "kill9=3"]) == 0
    said = capsys.readouterr().out
    assert "| kill9 | none | 0 kills | 0 | 0 |" in said
    assert f"kill9=3 power={FIRST_SEED}" in said


def test_every_job_names_a_promise_and_what_it_counts() -> None:
    for job in JOBS:
        assert (job.run.__doc__ or "").startswith(("P-", "J:")), job.name
        assert job.cases
    assert len({job.name for job in JOBS}) == len(JOBS)
    assert any(job.name == "simulation" for job in JOBS) is bool(
        importlib.util.find_spec("trunkline.testing.simulation")
    )

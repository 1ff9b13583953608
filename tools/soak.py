"""``make soak MINUTES=…``: the promises of ``docs/promises.md`` at larger figures, for as long as the time allows.

Owns the budget, whose turn it is, and the table at the end. A job is a function of a seed: it judges some cases and
says how many, or raises. The same seed makes the same cases: ``FROM="JOB=SEED" ONLY=JOB`` repeats a failure.

Invariant: no job gets more of the time than another; no seed is used twice in a run.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

# CI uses the seeds below.
FIRST_SEED: Final = 1000
PROGRESS_S: Final = 15.0


@contextmanager
def _folder() -> Iterator[Path]:
    """An empty one with a short name, for a Unix socket."""
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- the jobs ---------------------------------------------------------------------------------------------------------


def kill9(seed: int) -> int:
    """P-A1: ten kills of one exchange under load."""
    from tests.crash.kill9 import trial

    with _folder() as folder:
        return len(trial(folder / "home", seed, 10).kills)


def power(seed: int) -> int:
    """P-A2: every prefix of one run's steps, and 1,500 power losses in it."""
    from tests.crash.power_loss import losses, prefixes

    return prefixes(seed) + losses(seed, 1500)


def failure(seed: int) -> int:
    """P-A3, P-A4: each operation of one run fails, in one of the four ways, once or from there on."""
    from tests.crash.test_nth_failure import each_operation
    from trunkline.testing.disk import Failure

    return each_operation(seed, list(Failure)[seed % 4], persistent=bool(seed // 4 % 2))


def damage(seed: int) -> int:
    """P-A7: every byte of 50 entries of a ledger of 2,000, one at a time, in its file; 40 seeds are all of them."""
    from tests.crash.damage import flip_all

    with _folder() as folder:
        return flip_all(folder, 2000, first=seed * 50 % 2000, count=50)


def stop(seed: int) -> int:
    """P-A10: five clean stops under load."""
    from tests.crash.test_clean_stop import clean_stops

    with _folder() as folder:
        return clean_stops(folder, seed, 5)


def churn(seed: int) -> int:
    """P-C10: 4,000 connections that come and go."""
    from tests.crash.churn import churn as come_and_go

    with _folder() as folder:
        return come_and_go(folder / "home", seed, 4000)


def simulation(seed: int) -> int:
    """J: twenty runs of the whole system on fake clock, disk and network."""
    from trunkline.testing.simulation import simulate

    for number in range(seed * 20, seed * 20 + 20):
        simulate(number)
    return 20


class Job(NamedTuple):
    """What is done, and what its cases are called."""

    run: Callable[[int], int]
    cases: str

    @property
    def name(self) -> str:
        """As ``FROM`` and ``ONLY`` say it."""
        return self.run.__name__


JOBS: Final = (
    Job(kill9, "kills"),
    Job(power, "disks"),
    Job(failure, "failed operations"),
    Job(damage, "flipped bytes"),
    Job(stop, "stops"),
    Job(churn, "connections"),
    *([Job(simulation, "seeds")] if importlib.util.find_spec("trunkline.testing.simulation") else []),
)


# --- budget and turns -------------------------------------------------------------------------------------------------


class Tally:
    """What came of one job so far."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job = job
        self.first = self.next = seed
        self.seconds = 0.0
        self.runs = 0
        self.cases = 0
        self.failed: dict[int, str] = {}
        self.under_way = 0

    @property
    def share(self) -> float:
        """The time it has had, with what is under way as long as it usually takes."""
        average = self.seconds / self.runs if self.runs else 1.0
        return self.seconds + self.under_way * average


def soak(tallies: list[Tally], seconds: float, workers: int) -> None:
    """Give each job its turn until the time is over. Those under way may finish; so may an interrupted run."""
    deadline = time.monotonic() + seconds
    progress_at = time.monotonic() + PROGRESS_S
    spawn = multiprocessing.get_context("spawn")
    running: dict[Future[int], tuple[Tally, int, float]] = {}
    # What a broken disk makes the exchange log is part of the job, not news.
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=logging.disable) as pool:
        while True:
            now = time.monotonic()
            while now < deadline and len(running) < workers:
                tally = min(tallies, key=lambda tally: tally.share)
                running[pool.submit(tally.job.run, tally.next)] = (tally, tally.next, now)
                tally.next += 1
                tally.under_way += 1
            if not running:
                return
            done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                _count(future, *running.pop(future))
            if time.monotonic() >= progress_at:
                progress_at = time.monotonic() + PROGRESS_S
                _say_progress(tallies, deadline - time.monotonic())


def _count(future: Future[int], tally: Tally, seed: int, started: float) -> None:
    tally.seconds += time.monotonic() - started
    tally.under_way -= 1
    tally.runs += 1
    error = future.exception()
    if error is None:
        tally.cases += future.result()
        return
    tally.failed[seed] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    print(f"\n{tally.job.name} failed with seed {seed}:")
    traceback.print_exception(error, file=sys.stdout)
    print(flush=True)


def _say_progress(tallies: list[Tally], left_s: float) -> None:
    figures = " · ".join(f"{tally.job.name} {tally.cases:,}" for tally in tallies)
    failed = sum(len(tally.failed) for tally in tallies)
    left = f"{max(0, left_s) / 60:.1f} min left" if left_s > 0 else "finishing"
    print(f"{left} · {figures} · {failed} failed", flush=True)


def table(tallies: list[Tally]) -> str:
    """What was done, as Markdown."""
    lines = ["| job | seeds | cases | failed | seconds |", "|---|---|---|---|---|"]
    for tally in tallies:
        seeds = f"{tally.first}–{tally.next - 1}" if tally.runs else "none"
        cases = f"{tally.cases:,} {tally.job.cases}"
        lines.append(f"| {tally.job.name} | {seeds} | {cases} | {len(tally.failed)} | {tally.seconds:.0f} |")
    lines.extend(
        f"failed: {tally.job.name}={seed}: {what}" for tally in tallies for seed, what in sorted(tally.failed.items())
    )
    following = " ".join(f"{tally.job.name}={tally.next}" for tally in tallies)
    lines.append(f'to go on: make soak MINUTES=60 FROM="{following}"')
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Soak, and say what came of it; 1 if anything failed."""
    names = [job.name for job in JOBS]
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--from", dest="seeds", default="", help='first seeds: "kill9=1200 power=1300"')
    parser.add_argument("--only", default="", help=f"some of: {' '.join(names)}")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    seeds = dict(word.split("=", 1) for word in chosen.seeds.split())
    only = chosen.only.replace(",", " ").split() or names
    if unknown := {*seeds, *only}.difference(names):
        parser.error(f"no job {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    tallies = [Tally(job, int(seeds.get(job.name, FIRST_SEED))) for job in JOBS if job.name in only]
    print(f"{chosen.minutes:g} minutes, {chosen.workers} at a time: {', '.join(only)}", flush=True)
    try:
        soak(tallies, chosen.minutes * 60, chosen.workers)
    except KeyboardInterrupt:
        print("interrupted")
    print(f"\n{table(tallies)}", flush=True)
    return 1 if any(tally.failed for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())

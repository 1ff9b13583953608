"""``make soak MINUTES=…``: the promises of ``docs/promises.md`` at larger figures, for as long as the time allows.

Owns the budget, whose turn it is, and the table at the end. A job is a function of a seed: it judges some cases and
says how many, or raises. The same seed makes the same cases: ``FROM="JOB=SEED" ONLY=JOB`` repeats a failure.

Invariant: no job gets more of the time than another; no seed is used twice in a run; whatever ends the run, a signal or
the end of the process that started it, nothing that it started outlives it.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn

from trunkline.host.processes import signal_on_parent_death

# CI uses the seeds below.
FIRST_SEED: Final = 1000
PROGRESS_S: Final = 15.0
# What a job may take to end what it started, once the run is over for a reason from outside.
CLEAN_UP_S: Final = 10.0

# Pages of the allocator and of SQLite, and what is remembered of the last few thousand strangers.
MOST_GROWTH_BYTES: Final = 16_777_216

# How many cases a job judged, and what there is to say of them.
Outcome = int | tuple[int, str]


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


def spaces9(seed: int) -> int:
    """P-F11: ten kills of an exchange at random moments of a run of a space, each then undone."""
    from tests.crash.spaces9 import trial

    with _folder() as folder:
        return trial(folder / "home", seed, 10)


def money9(seed: int) -> Outcome:
    """P-B15: fifty kills of an exchange, at each step of a payment some."""
    from tests.crash.money9 import trial

    with _folder() as folder:
        last = trial(folder / "home", seed, 50)
    return sum(last.values()), ", ".join(f"{count} after {step}" for step, count in last.most_common())


def money(seed: int) -> Outcome:
    """P-B17: ten stories of an exchange that sells and buys."""
    from tests.simulation.test_money_story import told

    found = sum((told(number) for number in range(seed * 10, seed * 10 + 10)), Counter[str]())
    return 10, ", ".join(f"{count} {end}" for end, count in sorted(found.items()))


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


def races(seed: int) -> int:
    """P-A9: fifty times two exchanges on one home."""
    from tests.crash.test_two_exchanges import race

    with _folder() as folder:
        return race(folder, seed, 50)


def churn(seed: int) -> int:
    """P-C10: 4,000 connections that come and go."""
    from tests.load.churn import churn as come_and_go

    with _folder() as folder:
        return come_and_go(folder / "home", seed, 4000)


def load(seed: int) -> Outcome:
    """P-C1: 500 agents, 1,000 calls a second, for 20 seconds, once the length of a minute."""
    from tests.load.scenes import steady

    with _folder() as folder:
        served = steady(folder / "home", agents=500, calls_a_second=1000, seconds=60 if seed % 10 == 0 else 20)
    return served.calls, str(served)


def slow(seed: int) -> int:  # noqa: ARG001  the same every time
    """P-C3: 900 slow connections while others are served."""
    from tests.load.scenes import slow as trickle

    with _folder() as folder:
        return trickle(folder / "home", strangers=600, clients=300, calls=2000)


def stuck(seed: int) -> Outcome:  # noqa: ARG001  the same every time
    """P-C4: 20 agents that do not read, with 10 MB each on their way to them."""
    from tests.load.scenes import stuck as deaf

    readers = 20
    with _folder() as folder:
        return readers, str(deaf(folder / "home", readers=readers, calls=1000))


def greedy(seed: int) -> Outcome:  # noqa: ARG001  the same every time
    """P-C12: one token with 540 requests and one agent with 150 calls of 3.9 MB, while others are served."""
    from tests.load.scenes import greedy as take_all

    with _folder() as folder:
        requests, contexts = take_all(folder / "home", requests=540, contexts=150)
    return 690, f"{requests} requests and {contexts} calls were let wait"


def fuzz(seed: int) -> int:
    """P-D1, P-D3: 100,000 frames and requests, and 1,000 streams in pieces."""
    from tests.fuzz import conversations, requests

    cases = conversations.core(seed, 60_000) + conversations.agent(seed, 20_000) + requests.http(seed, 20_000)
    return cases + conversations.cuts(seed, 1000)


def masker(seed: int) -> int:
    """P-H2, P-H3: 10,000 values and outputs of agents, in every spelling; a million in an hour by itself."""
    from tests.fuzz import masker as values

    return values.judge(seed, 10_000)


def trajectories(seed: int) -> int:
    """P-D16: 10,000 files that may be trajectories."""
    from tests.fuzz import trajectories as files

    files.judge(seed, 10_000)
    return 10_000


def rails(seed: int) -> int:
    """P-D18: 10,000 proofs of payment that are wrong."""
    from tests.fuzz import rails as proofs

    proofs.judge(seed, 10_000)
    return 10_000


def receipts(seed: int) -> int:
    """P-D18: 1,000 files of receipts that are wrong."""
    from tests.fuzz import receipt_files

    with _folder() as folder:
        receipt_files.judge(seed, 1_000, receipt_files.home_in(folder))
    return 1_000


def chiffon(seed: int) -> int:
    """P-D9: 5,000 steps of agents and orchestrators by HTTP, WebSocket, callback and queue; 5,000 outputs in pieces."""
    from tests.fuzz import chiffon as messages

    return messages.fuzz(seed, 5_000) + messages.pieces(seed, 5_000)


def routes(seed: int) -> int:
    """P-D10: 6,000 requests to every route that there is, field by field."""
    from tests.fuzz import routes as table

    return table.fuzz(seed, 6_000)


def spaces(seed: int) -> int:
    """P-D11: 3,000 steps of who uses spaces; 1,000 command lines, 5,000 paths and edits, 5,000 operations."""
    from tests.fuzz import spaces as rooms

    pure = rooms.commands(seed, 1_000) + rooms.paths(seed, 5_000) + rooms.values(seed, 5_000)
    return pure + rooms.fuzz(seed, 3_000)


def logs(seed: int) -> int:
    """P-D12: 2,000 outputs into logs by themselves, 100 of them printed by agents of a real keeper."""
    from tests.fuzz import logs as printed

    return printed.runlog(seed, 1_900) + printed.keeper(seed, 100)


def agents(seed: int) -> int:
    """P-D13: 2,500 steps of agents that say anything of themselves and their work, and 1,000 manifests."""
    from tests.fuzz import agents as sayers

    return sayers.fuzz(seed, 2_500) + sayers.manifests(seed, 1_000)


def mcp(seed: int) -> int:
    """P-D17: wrong messages and headers of MCP clients."""
    from tests.fuzz import mcp as messages

    return messages.fuzz(seed, messages.STEPS)


def ossa(seed: int) -> int:
    """P-D1 for OSSA: 2,000 steps of agents by POST and WebSocket, and a 24th of all fields with all odd values."""
    from tests.fuzz import ossa as messages

    return messages.fuzz(seed, 2_000) + messages.fields(seed, 24)


def market(seed: int) -> int:
    """P-D1 for a buyer on Nostr: 2,000 words of providers, made wrong."""
    from tests.fuzz import market as providers

    return providers.fuzz(seed, 2_000)


def mounts(seed: int) -> int:
    """P-B18: 50 stories of mounted servers at their worst."""
    from tests.simulation.mounts_story import judged, told

    for number in range(seed * 50, seed * 50 + 50):
        story = told(number)
        judged(story, number)
        story.exchange.close()
    return 50


def nostr(seed: int) -> int:
    """P-D1 for Nostr: 1,000 events of strangers, 10,000 frames of relays, 4,000 things in the place of an event, and
    4,000 nutzaps.
    """
    from tests.fuzz import nostr as strangers

    said = strangers.jobs(seed, 1_000) + strangers.nutzap_events(seed, 4_000)
    return said + strangers.frames(seed, 10_000) + strangers.bytes_of_events(seed, 4_000)


def strangers(seed: int) -> Outcome:
    """P-C20: 100,000 events of as many keys leave no more memory behind than what is remembered on purpose."""
    from tests.fuzz import nostr as relays

    count = 100_000
    early, late = relays.strangers(seed, count)
    assert late - early < MOST_GROWTH_BYTES, f"{late - early:,} bytes more after {count:,} events"
    return count, f"{early >> 20} MiB after a tenth of them, {late >> 20} MiB after all"


def lossy(seed: int) -> Outcome:
    """P-A1 for OSSA: 10,000 messages of each quality through a network that loses 0 to 50 %, with three kills."""
    import asyncio

    from tests.crash.ossa_loss import qualities

    count = 10_000
    with _folder() as folder:
        loss = seed % 6 / 10
        proxy = asyncio.run(
            qualities(folder / "home", seed=seed, count=count, loss=loss, kills=3, at_once=200, within_s=1800.0)
        )
    return 3 * count, f"{proxy.dropped} of {proxy.dropped + proxy.passed} messages lost, {proxy.cut} connections cut"


def schemas(seed: int) -> Outcome:  # noqa: ARG001  the same every time
    """P-C7: each schema that is made to be slow is judged within 50 ms."""
    import json

    from tests.unit.test_schemas import SLOW
    from trunkline.schemas import judge

    taken = {}
    for name, schema in SLOW:
        data = json.dumps(schema, separators=(",", ":")).encode()
        times = []
        for _ in range(5):
            began = time.process_time()
            judge(data)
            times.append(time.process_time() - began)
        taken[name] = min(times)
    slowest = max(taken, key=lambda name: taken[name])
    # Work beside it on the same core doubles what the kernel counts.
    assert taken[slowest] < 0.1, f"{slowest}: {taken[slowest] * 1000:.0f} ms"
    return len(SLOW), f"slowest {taken[slowest] * 1000:.0f} ms ({slowest})"


def lost(seed: int) -> int:
    """P-B11, P-B12: 72 agents killed with -9 in the middle of a call."""
    from tests.delivery.lost import trial

    with _folder() as folder:
        return trial(folder, seed, {"read": 15, "known": 15, "write": 15, "keyed": 15, "poison": 4})


def policy(seed: int) -> int:
    """P-F1: 20,000 random policies against their plain reading, and 2,000 through the hub."""
    from tests.attack.policy import call_many, judge_many

    return judge_many(seed, 20_000) + call_many(seed, 2_000)


def secrets(seed: int) -> int:
    """P-H1: fifty tokens planted in every field of 1,000 calls, then looked for in every file."""
    from tests.attack.secrets import plant

    with _folder() as folder:
        return plant(folder, seed, canaries=50, calls=1000)


def timing(seed: int) -> int:
    """P-E4: 100,000 tokens that are wrong at the beginning, and as many at the end: no difference in time."""
    from tests.attack.timing import judge

    return judge(seed, 100_000)


def pylon(seed: int) -> int:
    """P-D1 for Pylon: 5,000 words of pages and app-servers, most of them wrong."""
    from tests.fuzz import pylon as pages

    pages.fuzz(seed, 5_000)
    return 5_000


def console(seed: int) -> Outcome:  # noqa: ARG001  the same every time
    """P-C19: a page of 390 px with 500 agents and 100,000 calls: paged, searched, filtered; no view too wide."""
    from tests.browser.crowded import look, own_browser

    if shutil.which("chromium") is None and shutil.which("chromium-browser") is None:
        return 0, "no chromium here"
    with _folder() as folder, own_browser() as browser:
        looked = look(folder / "home", browser, agents=500, calls=100_000)
    return len(looked.steps), str(looked)


def simulation(seed: int) -> int:
    """J: twenty runs of the whole system on fake clock, disk and network."""
    from trunkline.testing.simulation import simulate

    for number in range(seed * 20, seed * 20 + 20):
        simulate(number)
    return 20


class Job(NamedTuple):
    """What is done, and what its cases are called."""

    run: Callable[[int], Outcome]
    cases: str

    @property
    def name(self) -> str:
        """As ``FROM`` and ``ONLY`` say it."""
        return self.run.__name__


JOBS: Final = (
    Job(kill9, "kills"),
    Job(power, "disks"),
    Job(money9, "kills"),
    Job(money, "stories"),
    Job(failure, "failed operations"),
    Job(damage, "flipped bytes"),
    Job(stop, "stops"),
    Job(races, "races"),
    Job(spaces9, "kills"),
    Job(churn, "connections"),
    Job(lost, "killed agents"),
    Job(policy, "policies"),
    Job(secrets, "calls"),
    Job(timing, "tokens"),
    Job(load, "calls"),
    Job(slow, "slow peers"),
    Job(stuck, "deaf agents"),
    Job(greedy, "greedy requests"),
    Job(schemas, "schemas"),
    Job(fuzz, "frames"),
    Job(masker, "values"),
    Job(trajectories, "trajectories"),
    Job(rails, "proofs of payment"),
    Job(receipts, "receipts"),
    Job(chiffon, "messages"),
    Job(routes, "requests"),
    Job(spaces, "operations"),
    Job(logs, "outputs"),
    Job(agents, "words of agents"),
    Job(mcp, "MCP messages"),
    Job(ossa, "OSSA messages"),
    Job(market, "words of providers"),
    Job(nostr, "words of strangers"),
    Job(strangers, "events of strangers"),
    Job(mounts, "stories of mounted servers"),
    Job(lossy, "messages over a bad network"),
    Job(pylon, "words of pages and app-servers"),
    Job(console, "steps at a full page"),
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
        # What the last run had to say.
        self.remark = ""
        self.failed: dict[int, str] = {}
        self.under_way = 0

    @property
    def share(self) -> float:
        """The time it has had, with what is under way as long as it usually takes."""
        average = self.seconds / self.runs if self.runs else 1.0
        return self.seconds + self.under_way * average


def soak(tallies: list[Tally], seconds: float, workers: int) -> None:
    """Give each job its turn until the time is over; those under way may finish. An interrupted run ends them."""
    deadline = time.monotonic() + seconds
    progress_at = time.monotonic() + PROGRESS_S
    spawn = multiprocessing.get_context("spawn")
    running: dict[Future[Outcome], tuple[Tally, int, float]] = {}
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(os.getpid(),)) as pool:
        try:
            while True:
                now = time.monotonic()
                while now < deadline and len(running) < workers:
                    tally = min(tallies, key=lambda tally: tally.share)
                    running[pool.submit(_run, tally.job.run, tally.next)] = (tally, tally.next, now)
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
        except BaseException:
            _end_workers()
            raise


def _begin(parent: int) -> None:
    """In each worker. A terminal's Ctrl-C is for the run, which then ends its workers; so does its own end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    signal_on_parent_death(signal.SIGTERM)
    if os.getppid() != parent:
        _leave()
    # What a broken disk makes the exchange log is part of the job, not news.
    logging.disable()


def _leave(_number: int = 0, _frame: FrameType | None = None) -> NoReturn:
    """An exception, so that a job ends what it started. What does not hear of it ends with us: ``running.leash``."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(1)


def _run(run: Callable[[int], Outcome], seed: int) -> Outcome:
    try:
        return run(seed)
    except SystemExit:
        # Not into the pool's hands: it would take the exception for a result, and wait for the next job.
        os._exit(1)


def _end_workers() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.terminate()
    impatience = threading.Timer(CLEAN_UP_S, _kill, (workers,))
    impatience.daemon = True
    impatience.start()


def _kill(workers: list[multiprocessing.process.BaseProcess]) -> None:
    for worker in workers:
        worker.kill()


def _count(future: Future[Outcome], tally: Tally, seed: int, started: float) -> None:
    tally.seconds += time.monotonic() - started
    tally.under_way -= 1
    tally.runs += 1
    error = future.exception()
    if error is None:
        result = future.result()
        cases, tally.remark = result if isinstance(result, tuple) else (result, tally.remark)
        tally.cases += cases
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
    lines = ["| job | seeds | cases | failed | seconds | the last |", "|---|---|---|---|---|---|"]
    for tally in tallies:
        seeds = f"{tally.first}–{tally.next - 1}" if tally.runs else "none"
        cases = f"{tally.cases:,} {tally.job.cases}"
        lines.append(
            f"| {tally.job.name} | {seeds} | {cases} | {len(tally.failed)} | {tally.seconds:.0f} | {tally.remark} |"
        )
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        soak(tallies, chosen.minutes * 60, chosen.workers)
    except KeyboardInterrupt:
        print("interrupted")
    print(f"\n{table(tallies)}", flush=True)
    return 1 if any(tally.failed for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())

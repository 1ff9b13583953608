"""Kill the exchange with -9 under load, again and again, and hold what everybody saw against what it remembers.

One ``Trial`` is a home folder with an exchange and a crowd; each ``Trial.run`` is one kill. ``test_kill9`` does a few,
``tools/soak.py`` many.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.crowd import CONFIG, WAIT_S, Answered, Crowd
from tests.running import Running
from trunkline.ledger.verify import verify

# P-A1: 20 agents; two more ask over HTTP. 16 who ask, each every 80 ms: 200 calls a second.
WORKERS, CALLERS, CLIENTS = 6, 14, 2
INTERVAL_S = 0.08
KILLED_WITHIN_S = 2.0
SETTLED_WITHIN_S = 10.0


class Trial:
    """One exchange's life with many deaths."""

    def __init__(self, home: Path, seed: int) -> None:
        self._rng = Random(seed)
        self.exchange = Running(home, CONFIG)
        self.exchange.start()
        self.crowd = Crowd(self.exchange, self._rng, workers=WORKERS, callers=CALLERS, clients=CLIENTS)
        self.kills: list[float] = []
        self.repeated = 0

    async def run(self) -> None:
        """Load, kill, restart, compare."""
        exchange, crowd = self.exchange, self.crowd
        crowd.start(interval_s=INTERVAL_S)
        moment = self._rng.uniform(0, KILLED_WITHIN_S)
        await asyncio.sleep(moment)
        exchange.kill()
        self.kills.append(moment)
        await crowd.wait_gone()
        await asyncio.to_thread(exchange.start)
        started = time.monotonic()
        working = [asyncio.create_task(worker.work(exchange.ready["socket"])) for worker in crowd.workers]
        try:
            await self._wait_settled(started)
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*(worker.is_ready.wait() for worker in crowd.workers))
            self.repeated += await crowd.repeat_unanswered()
            await self._wait_settled(time.monotonic())
            await asyncio.to_thread(self.compare)
        finally:
            for worker in crowd.workers:
                worker.close()
            await asyncio.gather(*working, return_exceptions=True)

    async def _wait_settled(self, started: float) -> None:
        while True:
            _, status = await asyncio.to_thread(self.exchange.request, "GET", "/v1/status")
            if not status["open_calls"] and not status["backlog"]:
                return
            taken = time.monotonic() - started
            assert taken < SETTLED_WITHIN_S, f"still open after {taken:.1f} s: {status['open_calls']}"
            await asyncio.sleep(0.02)

    def compare(self) -> None:
        """What was acknowledged and what ran, against the ledger, by id."""
        entries = self.exchange.entries()
        accepted = {e["call_id"]: e for e in entries if e["kind"] == "call.accepted"}
        outcomes = [e for e in entries if e["kind"] == "call.settled"]
        times = Counter(e["call_id"] for e in outcomes)
        assert not [call_id for call_id, count in times.items() if count > 1], "two outcomes"
        settled = {e["call_id"]: e for e in outcomes}
        assert accepted.keys() == settled.keys(), "a call is open, or ended without having begun"
        for answer in self.crowd.answers:
            self._compare_answer(answer, settled.get(answer.call_id))
        # One key, one call; one outcome for everybody who asked with it.
        calls = Counter(e["key_id"] for e in accepted.values() if "key_id" in e)
        assert max(calls.values(), default=1) == 1, "a key names two calls"
        for worker in self.crowd.workers:
            assert worker.harmful <= accepted.keys(), "something ran that is not on record"
            twice = [call_id for call_id in worker.harmful if worker.ran[call_id] > 1]
            assert not twice, f"ran twice: {twice}"
        harmful = {a.job for a in self.crowd.answers if a.tool != "read"}
        jobs = sum((worker.jobs for worker in self.crowd.workers), Counter[str]())
        assert not [job for job in harmful if jobs[job] > 1], "a job was done twice"
        done = {a.job for a in self.crowd.answers if a.tool != "read" and a.status == "succeeded"}
        assert not [job for job in done if jobs[job] != 1], "a job was reported done that was not"

    def _compare_answer(self, answer: Answered, entry: dict[str, Any] | None) -> None:
        if entry is not None and answer.status == entry["status"] and answer.output == entry.get("output"):
            return
        # Recorded without waiting: of what was answered after the last commit before a crash the record may have
        # nothing, or the outcome of a second run.
        assert answer.tool == "read", f"acknowledged and lost: {answer}, on record: {entry}"
        ran = sum(worker.ran[answer.call_id] for worker in self.crowd.workers)
        assert entry is None or ran > 1, f"{answer}, on record: {entry}"

    def end(self) -> None:
        """Stop in good order; the whole record is verified."""
        assert self.exchange.stop() == 0
        verify(self.exchange.home / "ledger.sqlite")

    def discard(self) -> None:
        """Leave no process behind."""
        process = self.exchange.process
        if process is not None and process.poll() is None:
            self.exchange.kill()


def trial(home: Path, seed: int, runs: int) -> Trial:
    """So many kills of one exchange; ``AssertionError`` at the first difference."""
    made = Trial(home, seed)
    try:

        async def all_runs() -> None:
            for _ in range(runs):
                await made.run()

        asyncio.run(all_runs())
        made.end()
    except AssertionError as exc:
        exc.add_note(f"seed {seed}, kill {len(made.kills)} of {runs}, at {made.kills[-1:]} s")
        raise
    finally:
        made.discard()
    return made

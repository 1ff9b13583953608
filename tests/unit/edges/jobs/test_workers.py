"""What is left of the processes that do the work, once they are told to stop: nothing."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from trunkline.edges.jobs.workers import Workers
from trunkline.errors import JobFailed
from trunkline.jobs.embedding import HASHING
from trunkline.jobs.schemas import EMBEDDING

LONG = {"texts": ["word " * 3_000] * 60, "model": HASHING, "dimensions": 4096}


async def at_work(workers: Workers, count: int = 1) -> list[asyncio.Task[object]]:
    jobs: list[asyncio.Task[object]] = [asyncio.ensure_future(workers.run(EMBEDDING, LONG, 60.0)) for _ in range(count)]
    for _ in range(2_000):
        if workers.count == min(count, 2):
            return jobs
        await asyncio.sleep(0.005)
    raise AssertionError("no worker was started")


async def test_the_worker_of_a_job_that_was_canceled_just_before_is_gone_too() -> None:
    workers = Workers()
    (job,) = await at_work(workers)
    (worker,) = workers._all
    job.cancel()
    with suppress(asyncio.CancelledError):
        await job
    await workers.stop()
    assert worker.returncode == -9
    assert worker.stdout is not None
    assert worker.stdout.at_eof()
    assert workers.count == 0


async def test_jobs_at_work_and_jobs_that_wait_for_a_place_fail_and_leave_no_process() -> None:
    workers = Workers(most=2)
    jobs = await at_work(workers, 4)
    pids = [worker.pid for worker in workers._all]
    await workers.stop()
    for job in jobs:
        with pytest.raises(JobFailed):
            await job
    assert workers.count == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

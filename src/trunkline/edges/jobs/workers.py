"""Processes that do heavy work for jobs, as many as are needed and no more than a few.

Owns their life: started when a job needs one, kept for a while, ended when a job that one of them works on is cancelled
or takes too long. Does not own what they do (``trunkline.jobs.worker``).

Invariant: a worker does one job at a time, and one whose job did not end in good order is never used again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from trunkline import children
from trunkline.errors import JobFailed, JobRefused
from trunkline.jobs.consistency import Sealed
from trunkline.jobs.worker import LENGTH

# Each may have a model in memory.
MOST: Final = 2
# After so long without work the memory is worth more than a quick start (0.5 s).
IDLE_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 67_108_864


class _Said(Struct, frozen=True):
    """An answer of a worker: one of the three."""

    sealed: Sealed | None = None
    refused: str = ""
    failed: str = ""


class Workers:
    """The workers of one exchange."""

    def __init__(self, most: int = MOST) -> None:
        self._free: list[Process] = []
        self._all: set[Process] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._is_stopping = False
        self._resting: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self._all)

    async def run(self, schema_id: str, inputs: Mapping[str, Any], timeout_s: float) -> Sealed:
        """The outputs of a job; ``JobRefused`` and ``JobFailed`` say why there are none."""
        async with self._places:
            worker = self._free.pop() if self._free else await self._start()
            is_well = False
            try:
                if self._is_stopping:
                    raise JobFailed("the exchange is stopping")
                async with asyncio.timeout(timeout_s):
                    said = await self._ask(worker, msgspec.json.encode({"schema_id": schema_id, "inputs": inputs}))
                is_well = True
            except TimeoutError:
                raise JobFailed(f"it took longer than {timeout_s:g} s") from None
            except (asyncio.IncompleteReadError, OSError):
                raise JobFailed("the process that did the work ended") from None
            finally:
                if is_well:
                    self._free.append(worker)
                    self._rest()
                else:
                    self._end(worker)
        if said.refused:
            raise JobRefused(said.refused)
        if said.sealed is None:
            raise JobFailed(said.failed)
        return said.sealed

    async def _ask(self, worker: Process, question: bytes) -> _Said:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(LENGTH.pack(len(question)) + question)
        await worker.stdin.drain()
        (size,) = LENGTH.unpack(await worker.stdout.readexactly(LENGTH.size))
        if size > MAX_ANSWER_BYTES:
            raise JobFailed("its outputs are larger than the limit")
        return msgspec.json.decode(await worker.stdout.readexactly(size), type=_Said)

    async def _start(self) -> Process:
        # -P: the folder it is started in is no place to import from. Of our environment it gets nothing.
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "trunkline.jobs.worker", str(os.getpid()),
            stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL, cwd="/", start_new_session=True,
            env={
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "LANG": "C.UTF-8",
                # One thread is enough: the machine is there for everybody.
                "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
                "HF_HUB_OFFLINE": "1",
            },
        )  # fmt: skip
        self._all.add(worker)
        return worker

    def _rest(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._resting = asyncio.get_running_loop().call_later(IDLE_S, self._end_free)

    def _end_free(self) -> None:
        while self._free:
            self._end(self._free.pop())

    def _end(self, worker: Process) -> None:
        ending = asyncio.create_task(children.end(worker))
        self._ending.add(ending)
        ending.add_done_callback(lambda _: self._ended(worker, ending))

    def _ended(self, worker: Process, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)
        self._all.discard(worker)

    async def stop(self) -> None:
        """End all of them, and wait until they are gone."""
        self._is_stopping = True
        if self._resting is not None:
            self._resting.cancel()
        for worker in self._all:
            if worker.returncode is None:
                worker.kill()
        # A job that lost its worker fails, and lets go of it.
        for _ in range(self._most):
            await self._places.acquire()
        self._end_free()
        await asyncio.gather(*self._ending)

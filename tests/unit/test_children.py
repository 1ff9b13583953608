"""A process that is ended is gone, with its pipes, whatever it does about it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from trunkline import children

UNTIL_ITS_INPUT_ENDS = "import sys; print('up', flush=True); sys.stdin.read()"
FOR_EVER = "import time; print('up', flush=True); time.sleep(600)"


async def started(program: str) -> Process:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    return process


@pytest.mark.parametrize(
    ("program", "patience_s", "code"),
    [(UNTIL_ITS_INPUT_ENDS, 30.0, 0), (FOR_EVER, 0.05, -9), (FOR_EVER, 0.0, -9)],
)
async def test_it_may_end_by_itself_and_is_killed_if_it_does_not(program: str, patience_s: float, code: int) -> None:
    process = await started(program)
    await children.end(process, patience_s)
    assert process.returncode == code
    assert process.stdout is not None
    assert process.stdout.at_eof()


async def test_one_that_is_gone_already_is_gone() -> None:
    process = await started(FOR_EVER)
    process.kill()
    await process.wait()
    await children.end(process)
    await children.end(process)
    assert process.returncode == -9

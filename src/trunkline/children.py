"""The end of a process that we started and talked to through its pipes."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process

__all__ = ["end"]


async def end(process: Process, patience_s: float = 0.0) -> None:
    """Close its standard input, kill it unless it ends by itself in time, and wait until it and its pipes are gone.

    Nobody else may be reading from its standard output. It may have no children that hold that open.
    """
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await process.wait()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    # A loop that is closed while a pipe of an ended process is open complains, and with uvloop fails.
    if process.stdout is not None:
        while await process.stdout.read(65_536):
            pass
    await process.wait()

"""Tasks that part of an agent runs beside itself, and that end with it.

Owns that each is held while it runs (asyncio alone would let one be collected) and that all are gone after ``stop``.
Does not own what they do, nor what becomes of what they raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class OwnTasks:
    """The tasks of one part."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin this."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop(self, grace_s: float | None = None) -> None:
        """Cancel what runs; with ``grace_s`` it may end by itself within so many seconds."""
        if grace_s is not None and self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

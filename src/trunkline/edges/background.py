"""Tasks that an edge runs beside its requests: senders, consumers, one look at a peer's health.

Owns the tasks that run. Started here, none dies unheard: what one raises goes to ``feed.failed``, together with the
conversation that it was run for. Being cancelled is no defect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from trunkline.edges.exchange import Feed


class Background:
    """The tasks of one edge. ``stop`` once, when nothing more is started."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], session: int = 0) -> asyncio.Task[None]:
        """Run this, for a conversation if one is named."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, session))
        return task

    def _ended(self, task: asyncio.Task[None], session: int) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._feed.failed(session, error)

    async def stop(self) -> None:
        """Cancel what runs, and wait until it is gone."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

"""What an edge awaits, in fake time: coroutines of asyncio on a loop that is driven by hand.

``TaskLoop`` is a ``ProcessLoop`` with what asyncio's tasks, futures and timeouts ask of a loop, and no more: no
sockets or processes, and what is given to a thread is done at once. While one of its callbacks runs it is the running
loop, so that the code of an edge finds it as it finds a real one. What nobody caught goes to ``failed``.

Invariant: a task goes on only when the loop is run, and never after ``kill``.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from trunkline.testing.clock import ManualLoop, ProcessLoop, Timer

T = TypeVar("T")


class TaskLoop(ProcessLoop):
    """One process's callbacks and tasks."""

    def __init__(self, loop: ManualLoop, failed: Callable[[BaseException], None]) -> None:
        super().__init__(loop)
        self._failed = failed
        self._tasks: list[asyncio.Task[Any]] = []

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        if not self._is_alive:
            return
        # asyncio has these two for whoever writes an event loop.
        before = asyncio._get_running_loop()  # noqa: SLF001
        asyncio._set_running_loop(self.as_asyncio)  # noqa: SLF001
        try:
            callback(*args)
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001

    # -- what tasks and futures ask of their loop ----------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> Timer:
        """Do this after everything that is due now."""
        if context is None:
            return super().call_soon(callback, *args)
        return super().call_soon(context.run, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        """A result that is not there yet."""
        return asyncio.Future(loop=self.as_asyncio)

    def create_task(self, work: Coroutine[Any, Any, T], **_: object) -> asyncio.Task[T]:
        """Begin this when the loop comes to it."""
        task = asyncio.Task(work, loop=self.as_asyncio)
        self._tasks = [other for other in self._tasks if not other.done()]
        self._tasks.append(task)
        return task

    def run_in_executor(self, _: object, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """There are no threads: what is given to one is done at once."""
        future = self.create_future()
        try:
            future.set_result(work(*args))
        except Exception as error:  # noqa: BLE001  (as a thread's future has it)
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        """No."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nobody caught this."""
        error = context.get("exception")
        if self._is_alive and error is not None:
            self._failed(error)

    def kill(self) -> None:
        """The process is gone, and its tasks with it, wherever they wait."""
        super().kill()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                # Closed here, not by the collector some day: whatever they do at their end, they do it now.
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
                work = task.get_coro()
                assert work is not None
                # What awaits something at its end has no loop any more.
                with suppress(RuntimeError):
                    work.close()

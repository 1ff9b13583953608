"""A request for a call that waits without a task of its own: its outcome is said as it comes, and ends it.

Fast accept, slow judge: a task, the coroutines in it and their waking take 10 µs of a call. Owns when a task is begun
after all: with the first thing to say that is not said in one write (a question, progress, a large output, that the
edge closes). The task reads on from there. Does not own what is said on a wire (its children).

Invariant: a request is over once: with what was said at once, with its task, or when its caller is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from starlette.types import Receive, Scope, Send

from trunkline.edges.exchange import Feed
from trunkline.edges.request_scope import ANSWER, Serve, when_lost
from trunkline.edges.waiting import Item, Requests, Waiting


class Unattended(Waiting, ABC):
    """One of them, from ``open`` to ``close``. Without ``serve`` a task has it in a ``with`` from the start."""

    __slots__ = ("_ended", "_is_attended", "_lost", "_scope", "_serve")

    def __init__(
        self,
        feed: Feed,
        requests: Requests,
        scope: Scope,
        serve: Serve | None,
        ended: Callable[[], None] | None,
        *,
        lost: type[when_lost] = when_lost,
        wants_progress: bool = False,
        wants_large: bool = False,
    ) -> None:
        """``ended`` is called when it is over; ``lost`` says when its caller counts as gone."""
        super().__init__(feed, requests, wants_progress=wants_progress, wants_large=wants_large)
        self._scope = scope
        self._serve = serve
        self._ended = ended
        self._lost = lost
        self._is_attended = serve is None

    @abstractmethod
    def said(self, item: Item) -> bytes | None:
        """The whole answer, if this item is the end of it and is said in one write. What it raises, the task meets."""

    @abstractmethod
    async def attend(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, from the item on that could not be said. Raises nothing."""

    def open(self) -> None:
        """Begin to wait."""
        super().__enter__()
        self._lost(self._scope, self.leave).__enter__()

    def close(self) -> None:
        """It is over."""
        self._lost(self._scope, self.leave).__exit__(None, None, None)
        super().__exit__(None, None, None)
        if self._ended is not None:
            self._ended()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def put(self, item: Item, size: int = 0) -> None:
        """Say an outcome; have everything else said."""
        if self._is_attended:
            super().put(item, size)
            return
        try:
            data = self.said(item)
        except Exception:  # noqa: BLE001  (the task meets it again, within its boundary)
            data = None
        if data is not None:
            try:
                # First: who waits for it is another process, and what follows need not be waited for.
                self._scope["extensions"][ANSWER](200, data)
            finally:
                self.close()
            return
        self._is_attended = True
        super().put(item, size)
        assert self._serve is not None
        self._serve(self._attend)

    def leave(self) -> None:
        """The caller is gone."""
        if self._is_attended:
            super().leave()
        else:
            # First: what is told may end the call, and its outcome is for nobody.
            self.close()
            self.tell_left()

    async def _attend(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.attend(scope, receive, send)
        finally:
            self.close()

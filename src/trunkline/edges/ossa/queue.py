"""What waits to be sent to one agent: by priority with ageing, and in order within a correlation. Pure.

Owns the order (OSSA-014, OSSA-083, silent point 19): the lower number goes first; whoever waits for 30 s rises by one;
of the same level the older one. Of one correlation only the first can leave, and the next when that one is done with,
whatever their priorities (contradiction 8). Does not own what is sent.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final, Generic, TypeVar

from msgspec import Struct

from trunkline.edges.ossa.messages import LOWEST_PRIORITY

AGEING_S: Final = 30.0

T = TypeVar("T")


class Waiting(Struct, Generic[T], eq=False):
    """One that waits. ``correlation`` is empty if order does not matter to it."""

    item: T
    correlation: str
    priority: int
    since: float


class SendQueue(Generic[T]):
    """All that wait for one agent."""

    def __init__(self) -> None:
        # Those that may leave, by level: the oldest first, also of one that its correlation held back until now.
        self._levels: tuple[list[tuple[float, int, Waiting[T]]], ...] = tuple([] for _ in range(LOWEST_PRIORITY + 1))
        # By correlation: what was let out or may be, then what comes after it.
        self._correlations: dict[str, deque[Waiting[T]]] = {}
        self._count = self._numbers = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: T, correlation: str, priority: int, now_mono: float) -> None:
        """One more."""
        waiting = Waiting(item, correlation, priority, now_mono)
        self._count += 1
        if correlation:
            held = self._correlations.setdefault(correlation, deque())
            held.append(waiting)
            if len(held) > 1:
                return
        self._let(waiting)

    def _let(self, waiting: Waiting[T]) -> None:
        self._numbers += 1
        heapq.heappush(self._levels[waiting.priority], (waiting.since, self._numbers, waiting))

    def rank(self, now_mono: float) -> tuple[float, float, int] | None:
        """How urgent the next one is, the lowest first; None if nobody may leave now."""
        if not self._count:
            return None
        return min(
            (
                (level - (now_mono - waiting[0][0]) // AGEING_S, waiting[0][0], level)
                for level, waiting in enumerate(self._levels)
                if waiting
            ),
            default=None,
        )

    def take(self, now_mono: float) -> T | None:
        """The next one to be sent; None if nobody may leave now."""
        best = self.rank(now_mono)
        if best is None:
            return None
        self._count -= 1
        return heapq.heappop(self._levels[best[2]])[2].item

    def done(self, correlation: str) -> None:
        """What left of this correlation is done with: the next one may leave."""
        held = self._correlations.get(correlation) if correlation else None
        if held is None:
            return
        held.popleft()
        if held:
            self._let(held[0])
        else:
            del self._correlations[correlation]

    def remove(self, item: T) -> bool:
        """Take one back that has not left; False if it has."""
        for waiting in self._levels:
            for index, (_, _, one) in enumerate(waiting):
                if one.item is item:
                    del waiting[index]
                    heapq.heapify(waiting)
                    self._count -= 1
                    self.done(one.correlation)
                    return True
        for held in self._correlations.values():
            for index, one in enumerate(held):
                if index and one.item is item:
                    del held[index]
                    self._count -= 1
                    return True
        return False

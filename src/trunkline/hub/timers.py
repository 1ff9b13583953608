"""Alarms in buckets of 50 ms, and the keys that say what an alarm is about: a call, a question, an agent, a breaker.

A heap would keep a dead entry for each settled call until its deadline: 30 s of full load is over half a million of
them. A bucket is a set of keys; settling removes the key. Deadlines are kept by the owner, so a bucket only says "look
now".

Owns which key is in which bucket. Does not own what an alarm is for.

Invariant: a key is due at its deadline or up to one bucket later, never earlier.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from msgspec import Struct

from trunkline.model import Now

BUCKET_S: Final = 0.05

K = TypeVar("K", bound=Hashable)


class OfQuestion(Struct, frozen=True):
    """The alarm of a question: its time is over."""

    approval_id: str


class OfSession(Struct, frozen=True):
    """The alarm of all that an agent runs without an alarm of its own."""

    session: int


class OfBreaker(Struct, frozen=True):
    """The alarm of an agent that rests."""

    agent_id: str


# A call's alarm has the number of the call: most alarms are of calls.
AlarmKey = int | OfQuestion | OfSession | OfBreaker


class Timers(Generic[K]):
    """Keys by the bucket in which they are due."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[K]] = {}
        self._heap: list[int] = []

    def arm(self, key: K, deadline: float) -> None:
        """Look at ``key`` at ``deadline`` or up to one bucket later, never earlier."""
        number = int(deadline / BUCKET_S) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = {key}
            heapq.heappush(self._heap, number)
        else:
            bucket.add(key)

    def disarm(self, key: K, deadline: float) -> None:
        """Forget what ``arm`` was told with the same arguments."""
        bucket = self._buckets.get(int(deadline / BUCKET_S) + 1)
        if bucket is not None:
            bucket.discard(key)

    def next_at(self) -> float | None:
        """When to call ``due`` next; empty buckets are dropped on the way."""
        while self._heap:
            number = self._heap[0]
            if self._buckets[number]:
                return number * BUCKET_S
            heapq.heappop(self._heap)
            del self._buckets[number]
        return None

    def due(self, now: float) -> list[K]:
        """All keys whose bucket has come, each once, oldest bucket first."""
        found: list[K] = []
        while self._heap and self._heap[0] * BUCKET_S <= now:
            # Sorted: the order must not depend on how a set hashes its members.
            found.extend(sorted(self._buckets.pop(heapq.heappop(self._heap)), key=repr))
        return found

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())


def seconds_left(since_ms: int, until_ms: int, now: Now) -> float:
    """What is left, after a restart, of a life that was written down: never more than all of it.

    A wall clock that was set back meanwhile must not make an old question live longer (decision 32).
    """
    return min(max(0.0, until_ms / 1000 - now.wall), (until_ms - since_ms) / 1000)

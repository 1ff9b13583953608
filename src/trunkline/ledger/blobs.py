"""Large bodies on their way to the writer: each is sent once, and only its number when it comes again soon.

The exchange's side. It alone decides which bodies the writer keeps, and tells it with each commit group, so that both
always know the same numbers. What happens to a body there, masked or not, is decided by ``writer``.

Invariant: a number means one body, for ever. Two bodies have one number only if all their bytes are equal.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

__all__ = ["SentBlobs"]

# The bodies that a few dozen calls in flight repeat; both processes hold so much.
KEPT_BYTES: Final = 4 * 1_048_576
# So that one huge body does not drive out all others.
LARGEST_KEPT: Final = 1_048_576
# So many of its bytes, and its length, find the body that this may be a repeat of: 0.4 µs. To compare 64 KiB takes 1.2,
# to hash them 38.
SAMPLES: Final = 16


class SentBlobs:
    """The large bodies that were sent and that the writer still keeps, the least recently used first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, bytes], tuple[int, Raw]] = {}
        self._bytes = 0
        self._last = 0
        self._fresh: list[tuple[int, Raw]] = []
        self._forgotten: list[int] = []

    def number(self, body: Raw) -> tuple[int, int]:
        """What to call this body, and how many bytes have to be sent for it: none if the writer has it."""
        size = len(body)
        # Two bodies with the same samples replace each other.
        key = (size, memoryview(body)[:: size // SAMPLES].tobytes())
        kept = self._kept.pop(key, None)
        if kept is not None:
            if kept[1] == body:
                self._kept[key] = kept
                return kept[0], 0
            self._forget(*kept)
        self._last += 1
        # Its own bytes: what it is a view of may be larger, or be used again.
        fresh = (self._last, body.copy())
        self._fresh.append(fresh)
        if size > LARGEST_KEPT:
            self._forgotten.append(self._last)
        else:
            self._kept[key] = fresh
            self._bytes += size
            while self._bytes > KEPT_BYTES:
                self._forget(*self._kept.pop(next(iter(self._kept))))
        return self._last, size

    def _forget(self, number: int, body: Raw) -> None:
        self._bytes -= len(body)
        self._forgotten.append(number)

    def take(self) -> tuple[list[tuple[int, Raw]], list[int]]:
        """What has to be sent before the entries that name it, and what no entry after them will name."""
        fresh, forgotten = self._fresh, self._forgotten
        self._fresh, self._forgotten = [], []
        return fresh, forgotten

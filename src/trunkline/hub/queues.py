"""Calls that wait for a free slot of one agent: in order, and each caller's share of the places.

Owns who may take a place. Does not own when a call leaves (``calls``), or calls that wait for anything but a slot.

Invariant: one caller holds at most half of the places that others leave, or one; the last places are the operator's.
A call that was taken on before, and comes back to wait, is not judged by its caller's share.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from trunkline.model import OPERATOR

# Calls that wait for a free slot of one agent (decision 21); beyond it a caller is told at once.
MAX_QUEUED: Final = 1024
# Of these nobody else gets: what a person needs while everybody else floods.
RESERVED_PLACES: Final = 32


class Queue:
    """The queue of one agent, of numbers of calls."""

    __slots__ = ("_callers", "_held")

    def __init__(self) -> None:
        self._callers: OrderedDict[int, str] = OrderedDict()
        # Places that each caller holds.
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._callers)

    def __contains__(self, number: int) -> bool:
        return number in self._callers

    @property
    def is_full(self) -> bool:
        """Whether not even a call that was taken on before can wait here."""
        return len(self._callers) >= MAX_QUEUED

    def has_place(self, caller: str) -> bool:
        """Whether a new call of this caller may wait."""
        if caller == OPERATOR:
            return len(self._callers) < MAX_QUEUED
        held = self._held.get(caller, 0)
        left = MAX_QUEUED - RESERVED_PLACES - (len(self._callers) - held)
        return held < left and held < max(1, left // 2)

    def add(self, number: int, caller: str) -> None:
        """A call waits, behind all others."""
        self._callers[number] = caller
        self._held[caller] = self._held.get(caller, 0) + 1

    def discard(self, number: int) -> None:
        """A call does not wait any more, if it did."""
        caller = self._callers.pop(number, None)
        if caller is not None:
            self._give_back(caller)

    def take_first(self) -> int:
        """The call whose turn it is."""
        number, caller = self._callers.popitem(last=False)
        self._give_back(caller)
        return number

    def _give_back(self, caller: str) -> None:
        held = self._held[caller] - 1
        if held:
            self._held[caller] = held
        else:
            del self._held[caller]

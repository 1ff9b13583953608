"""Where clients come from, and what those of one place may have together.

A page comes from its origin, which its browser says; all pages of this machine are one place, whichever port they are
of. Programs say none and are one place together, agents in a sandbox with a network included; one that says the origin
of a page counts among those. Owns how many clients of one place are connected and how often they may have a person
asked. Does not own which origins come in at all (``serve``), nor what a client may have open (``client``).

Invariant: whatever one place does, others find room, and a person is asked for it so many times a minute at most.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

PROGRAMS: Final = ""
THIS_MACHINE: Final = "this machine"
# Of all 64: the pages of one origin that somebody has open, and fewer programs.
MAX_OF_ORIGIN: Final = 24
MAX_PROGRAMS: Final = 16
# To connect a folder is a question by default. A page with four folders that is loaded three times a minute may.
ASKS_PER_MINUTE: Final = 12
MINUTE_S: Final = 60.0


def origin_of(origins: Sequence[str], configured: Sequence[str]) -> str:
    """The place of a client that says these origins, which were let in."""
    if not origins:
        return PROGRAMS
    said = origins[-1].lower()
    return said if said in {one.lower() for one in configured} else THIS_MACHINE


class Origins:
    """All places from which somebody is connected, or was in the last minute."""

    def __init__(self) -> None:
        self._here: Counter[str] = Counter()
        self._asked: dict[str, deque[float]] = {}

    def has_room(self, origin: str) -> bool:
        """Whether one more may come from there."""
        return self._here[origin] < (MAX_PROGRAMS if origin == PROGRAMS else MAX_OF_ORIGIN)

    def came(self, origin: str) -> None:
        """One more is here."""
        self._here[origin] += 1

    def left(self, origin: str) -> None:
        """One is gone."""
        self._here[origin] -= 1
        if not self._here[origin]:
            del self._here[origin]

    def try_ask(self, origin: str, now: float) -> bool:
        """Whether a person may be asked for one from there now; counted if so."""
        # Who asked long ago is forgotten.
        for other, times in list(self._asked.items()):
            while times and times[0] <= now - MINUTE_S:
                times.popleft()
            if not times:
                del self._asked[other]
        recent = self._asked.setdefault(origin, deque())
        if len(recent) >= ASKS_PER_MINUTE:
            return False
        recent.append(now)
        return True

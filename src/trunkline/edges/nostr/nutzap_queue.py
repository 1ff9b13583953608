"""Nutzaps that wait to be looked at: so many in a minute, and each buyer's in turn with the others'.

Owns their order and their bounds. Each one that is looked at is a question to its mint, so all of them together have a
pace; a buyer who sends many waits for his own, and holds back nobody else's. Does not own whose nutzaps are put here
(``till``: those of buyers with a quote that can be paid, which are few), or whether one is good.

Invariant: between two nutzaps of one sender that are looked at, everybody else who waits has had a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trunkline.edges.nostr.nutzaps import Nutzap
from trunkline.edges.nostr.pace import Pace
from trunkline.model import Now

# Of one sender: as many as he may have requests that wait to be paid.
MAX_OF_SENDER: Final = 16


class NutzapQueue:
    """What waits, by sender; whose turn it is stands first."""

    def __init__(self, per_minute: int) -> None:
        self._pace = Pace(per_minute)
        self._waiting: dict[str, list[Nutzap]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, zap: Nutzap) -> bool:
        """Put one more at the end of its sender's; False if he has too many there."""
        own = self._waiting.setdefault(zap.sender, [])
        if len(own) >= MAX_OF_SENDER:
            return False
        if zap.id not in [one.id for one in own]:
            own.append(zap)
        return True

    def drop(self, is_over: Callable[[Nutzap], bool]) -> None:
        """Forget those that nobody waits for any more."""
        kept = {sender: [zap for zap in own if not is_over(zap)] for sender, own in self._waiting.items()}
        self._waiting = {sender: own for sender, own in kept.items() if own}

    def next(self, now: Now, is_ready: Callable[[Nutzap], bool]) -> Nutzap | None:
        """The one whose turn it is; None if none is ready, or too many were looked at within a minute."""
        for sender, own in self._waiting.items():
            zap = next((one for one in own if is_ready(one)), None)
            if zap is None:
                continue
            if not self._pace.try_take(now):
                return None
            own.remove(zap)
            del self._waiting[sender]
            if own:
                self._waiting[sender] = own
            return zap
        return None

"""How fast something of strangers is looked at: so many in a minute, all of them together, as a new key costs nothing.

Invariant: within any minute no more than twice as many are let through, and after a quiet minute all of them at once.
"""

from __future__ import annotations

from trunkline.model import Now


class Pace:
    """So many in a minute."""

    def __init__(self, per_minute: int) -> None:
        self._most = float(per_minute)
        self._room = self._most
        self._at = float("-inf")

    def try_take(self, now: Now) -> bool:
        """Count one more, or say that there are too many."""
        self._room = min(self._most, self._room + (now.mono - self._at) * self._most / 60.0)
        self._at = now.mono
        if self._room < 1.0:
            return False
        self._room -= 1.0
        return True

"""How much one agent may send in a minute (section 5.3). Pure.

A sliding window of 60 s for each agent: requests and commands together, events for themselves; nothing else is counted
(silent point 18). The limit is that of the class its key was made for, whatever a message says.

Owns the counting: of bytes that are checked (``Pace``) and of messages (``Rate``). Does not own which class a key has.

Invariant: a message that is refused for its rate does not count towards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from trunkline.edges.ossa.messages import COMMAND, EVENT, RATE_LIMITED, REQUEST, Refused

WINDOW_S: Final = 60.0
# OSSA-077.
DEFAULT_LIMIT: Final = 100


# Of everything, whatever its type: to check a signature over a megabyte takes up to a tenth of a second. Who sends more
# on a socket is read more slowly.
BYTES_PER_S: Final = 2_097_152
# What a message costs however short it is.
LEAST_BYTES: Final = 512
# What may come at once before that counts.
BURST_BYTES: Final = 16_777_216


class Pace:
    """What one agent had checked lately."""

    def __init__(self) -> None:
        self._used = 0.0
        self._at = 0.0

    def wait_s(self, size: int, now_mono: float) -> float:
        """Count so many bytes; how long until the next may come."""
        self._used = max(0.0, self._used - (now_mono - self._at) * BYTES_PER_S) + max(size, LEAST_BYTES)
        self._at = now_mono
        return max(0.0, (self._used - BURST_BYTES) / BYTES_PER_S)


class Rate:
    """What one agent sent in the last minute."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._seen: dict[str, deque[float]] = {}

    def count(self, kind: str, agent_type: str, now_mono: float) -> None:
        """One more message of this type; ``Refused`` with 429 if it is too many."""
        if kind not in {REQUEST, COMMAND, EVENT}:
            return
        limit = self._limits.get(agent_type, DEFAULT_LIMIT)
        seen = self._seen.setdefault(EVENT if kind == EVENT else REQUEST, deque())
        while seen and seen[0] <= now_mono - WINDOW_S:
            seen.popleft()
        if len(seen) >= limit:
            wait_ms = int((seen[0] + WINDOW_S - now_mono) * 1000) + 1 if seen else int(WINDOW_S * 1000)
            raise Refused(RATE_LIMITED, f"at most {limit} a minute", retryAfterMs=wait_ms)
        seen.append(now_mono)

"""What an agent may have judged of the tools that it offers, counted before anything of them is looked at.

Owns the bytes that one agent may have judged, and asks the exchange first whether it would take such a list at all. For
every edge whose agents say what they offer; does not own which tools are taken (the hub), nor how a refusal is said.

Invariant: of a list that is refused here no schema is judged and nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from trunkline.model import Fault, Now, fault

# What an agent may have judged at once: the largest list twice, at 4 KiB a tool. A schema of 64 KiB takes 36 ms at
# worst, so that going on without end takes a fourteenth of the loop's time.
JUDGED_BYTES: Final = 8_388_608
JUDGED_BYTES_PER_S: Final = 131_072
# What a tool costs however short it is.
LEAST_TOOL_BYTES: Final = 1024


def _never(agent: str, tools: int) -> Fault | None:
    del agent, tools
    return None


class JudgingBudget:
    """What the agents of one edge may still have judged, by agent: it outlives a conversation.

    ``offer_refused`` is the exchange's (``Feed``).
    """

    def __init__(self, edge: str, offer_refused: Callable[[str, int], Fault | None] = _never) -> None:
        self._edge = edge
        self._offer_refused = offer_refused
        # What was used, as of when.
        self._used: dict[str, tuple[float, float]] = {}

    def refused(self, agent_id: str, tools: int) -> Fault | None:
        """Why the exchange would not look at so many tools of this agent, if it would not. Nothing is counted."""
        return self._offer_refused(f"{self._edge}:{agent_id}", tools)

    def try_take(self, agent_id: str, size: int, now: Now) -> Fault | None:
        """Count so many bytes before they are looked at, or say when to come back."""
        used, at = self._used.get(agent_id, (0.0, now.mono))
        used = max(0.0, used - (now.mono - at) * JUDGED_BYTES_PER_S)
        over = used + size - JUDGED_BYTES
        if over > 0:
            wait_ms = math.ceil(over / JUDGED_BYTES_PER_S * 1000)
            return fault("limit.rate", "too many tools were offered", details={"retry_after_ms": wait_ms})
        self._used[agent_id] = used + size, now.mono
        return None

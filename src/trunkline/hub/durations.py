"""How long calls took from when they were sent, counted by tool, by the agent that served, and by outcome.

Owns the bounds of the histogram and that the number of series is bounded: tools beyond the first ``MAX_TOOLS`` are
counted together, as ``other``. A call that was never sent has no duration. Counts begin with the start of the exchange.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

from trunkline.model import Status

# Milliseconds: from what a call costs by itself to what a person would not wait for.
BOUNDS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
# Four outcomes of each with 17 lines are 6,800 lines of figures: what a scraper takes without a thought.
MAX_TOOLS: Final = 100
OTHER: Final = "other"


class Durations:
    """Of one exchange, since its start."""

    def __init__(self) -> None:
        # By tool, server and outcome: the count below each bound, that beyond the last, and at the end the sum in ms.
        self._counts: dict[tuple[str, str, Status], list[int]] = {}
        self._tools: set[str] = set()

    def add(self, tool_id: str, served_by: str, status: Status, took_ms: int) -> None:
        """A call that was sent has ended."""
        counts = self._counts.get((tool_id, served_by, status))
        if counts is None:
            counts = self._new(tool_id, served_by, status)
        counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        # A clock that was set back meanwhile makes it negative.
        counts[-1] += max(took_ms, 0)

    def _new(self, tool_id: str, served_by: str, status: Status) -> list[int]:
        # A tool that stands for others has a server for each; those count as tools, too.
        name = tool_id if tool_id == served_by else f"{tool_id} {served_by}"
        if name not in self._tools:
            if len(self._tools) >= MAX_TOOLS:
                return self._counts.setdefault((OTHER, OTHER, status), _nothing())
            self._tools.add(name)
        return self._counts.setdefault((tool_id, served_by, status), _nothing())

    def figures(self) -> list[dict[str, Any]]:
        """Each series: its labels, how many calls took at most each bound (in seconds), all, and their sum."""
        found = []
        for (tool_id, served_by, status), counts in sorted(self._counts.items()):
            total, below = 0, {}
            for bound, count in zip(BOUNDS_MS, counts, strict=False):
                total += count
                below[f"{bound / 1000:g}"] = total
            found.append(
                {
                    "tool": tool_id,
                    "agent": served_by.partition("/")[0],
                    "outcome": status.value,
                    "below": below,
                    "count": total + counts[len(BOUNDS_MS)],
                    "sum_s": counts[-1] / 1000,
                }
            )
        return found


def _nothing() -> list[int]:
    return [0] * (len(BOUNDS_MS) + 2)

"""Accepted calls that wait until their tool is back, by what they wait for.

Owns the waiting only: why a call waits, and for how long, is its own affair (``calls``). Not durable: after a restart
every call that is open is parked anew, or goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# What a routed call waits for that nobody was found for: no tool's id.
ANYBODY: Final = ""


class Parked:
    """The numbers of parked calls."""

    def __init__(self) -> None:
        self._by_tool: dict[str, dict[int, None]] = {}
        self._tool_of: dict[int, str] = {}

    def add(self, number: int, tool_id: str) -> None:
        """Let a call wait for a tool, or for ``ANYBODY``. It must not wait already."""
        self._tool_of[number] = tool_id
        self._by_tool.setdefault(tool_id, {})[number] = None

    def remove(self, number: int) -> None:
        """It waits no longer, if it did."""
        tool_id = self._tool_of.pop(number, None)
        if tool_id is not None:
            waiting = self._by_tool[tool_id]
            del waiting[number]
            if not waiting:
                del self._by_tool[tool_id]

    def waiting_for(self, tool_ids: Iterable[str]) -> list[int]:
        """Those that one of these tools may serve, in the order in which they were accepted."""
        return sorted(number for tool_id in (*tool_ids, ANYBODY) for number in self._by_tool.get(tool_id, ()))

    def __contains__(self, number: object) -> bool:
        return number in self._tool_of

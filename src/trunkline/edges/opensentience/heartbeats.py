"""An agent's silence, measured in heartbeat intervals. Pure arithmetic over monotonic time.

Owns when something follows from silence, not what: the session says and does it.
"""

from __future__ import annotations

import enum
from typing import Final


class Step(enum.Enum):
    """What follows from silence, with the number of intervals after which it does."""

    # Ask: a peer that is alive but forgot its heartbeat can still be heard.
    PING = 2
    # No more calls until it is heard again.
    SILENT = 3
    GONE = 6


_STEPS: Final = tuple(Step)


class Heartbeats:
    """When an agent was heard last, and which steps its silence has gone through since."""

    __slots__ = ("_heard_at", "_interval_s", "_next")

    def __init__(self, interval_s: float, mono: float) -> None:
        self._interval_s = interval_s
        self._heard_at = mono
        self._next = 0

    @property
    def is_silent(self) -> bool:
        """Whether ``SILENT`` was reached and the agent not heard since."""
        return self._next > _STEPS.index(Step.SILENT)

    def heard(self, mono: float) -> None:
        """A heartbeat came."""
        self._heard_at = mono
        self._next = 0

    def excuse(self, seconds: float) -> None:
        """For so long we did not listen."""
        self._heard_at += seconds

    def due_at(self) -> float | None:
        """When the next step is due."""
        if self._next == len(_STEPS):
            return None
        return self._heard_at + self._interval_s * _STEPS[self._next].value

    def due(self, mono: float) -> Step | None:
        """The next step, if its time has come: each once, in order, however late the question."""
        at = self.due_at()
        if at is None or mono < at:
            return None
        self._next += 1
        return _STEPS[self._next - 1]

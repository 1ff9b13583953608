"""An agent's silence, measured in heartbeat intervals. Pure arithmetic over monotonic time.

Owns when something follows from silence, not what: the session says and does it.
"""

from __future__ import annotations

import enum
from typing import Final


class Step(enum.Enum):
    """What follows from silence, with the number of intervals after which it does."""

    # Ask: what comes back tells a person whether the connection or the agent is dead. It does not count as a beat.
    PING = 2
    # No more calls until it is heard again.
    SILENT = 3
    GONE = 6


_STEPS: Final = tuple(Step)


class Heartbeats:
    """When an agent was heard last, and which steps its silence has gone through since."""

    __slots__ = ("_heard_at", "_interval_s", "_next", "due_at")

    def __init__(self, interval_s: float, mono: float) -> None:
        self._interval_s = interval_s
        # When the next step is due; None after the last.
        self.due_at: float | None
        self.heard(mono)

    @property
    def is_silent(self) -> bool:
        """Whether ``SILENT`` was reached and the agent not heard since."""
        return self._next > _STEPS.index(Step.SILENT)

    def heard(self, mono: float) -> None:
        """A heartbeat came."""
        self._heard_at = mono
        self._set_next(0)

    def excuse(self, seconds: float) -> None:
        """For so long we did not listen."""
        self._heard_at += seconds
        self._set_next(self._next)

    def _set_next(self, step: int) -> None:
        self._next = step
        is_last = step == len(_STEPS)
        self.due_at = None if is_last else self._heard_at + self._interval_s * _STEPS[step].value

    def due(self, mono: float) -> Step | None:
        """The next step, if its time has come: each once, in order, however late the question."""
        if self.due_at is None or mono < self.due_at:
            return None
        step = _STEPS[self._next]
        self._set_next(self._next + 1)
        return step

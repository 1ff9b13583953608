"""When something that did not work is tried again: after a while, and each time after twice as long.

Owns the waits of several things by their names. Does not own what is tried, or a timer: whoever looks asks what is due.

Invariant: what has no wait is due; from one failure to the next a wait is never shorter, up to its longest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

FIRST_AGAIN_S: Final = 1.0
LAST_AGAIN_S: Final = 300.0


class _Wait(Struct):
    """When it is tried again, and how long after that the next time."""

    at: float
    wait_s: float = FIRST_AGAIN_S


class Later:
    """The waits. ``mono`` says how late it is, in seconds of a clock that nobody sets."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._waits: dict[str, _Wait] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._waits

    def is_due(self, name: str) -> bool:
        """Whether this is tried now."""
        wait = self._waits.get(name)
        return wait is None or self._mono() >= wait.at

    def failed(self, name: str, longest_s: float = LAST_AGAIN_S) -> None:
        """Try it again later."""
        wait = self._waits.setdefault(name, _Wait(0.0))
        wait.at = self._mono() + wait.wait_s
        wait.wait_s = min(2 * wait.wait_s, longest_s)

    def rest(self, name: str, seconds: float) -> None:
        """It worked, and is not looked at for so long."""
        self._waits[name] = _Wait(self._mono() + seconds)

    def forget(self, name: str) -> None:
        """It is due now, and a failure is its first."""
        self._waits.pop(name, None)

    def forget_all(self) -> None:
        """The same of everything."""
        self._waits.clear()

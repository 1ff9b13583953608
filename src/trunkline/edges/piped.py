"""A process with pipes: a program that an edge has started, and speaks with over its stdin and stdout.

Owns the words between an edge and the host for it. The host starts it below the keeper, so that it ends with everything
it started, also when the exchange is killed. Whether it is started again after its end is the edge's affair.

Invariant: of each process that was asked for, ``ended`` is the last that its owner hears, and is heard once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct


class PipedSpec(Struct, frozen=True):
    """Which program, where, and with what in its environment besides what every program of ours has."""

    # Its log is found under it (`trunkline logs NAME`): what it writes to stderr.
    name: str
    command: tuple[str, ...]
    # An absolute path.
    cwd: str
    env: Mapping[str, str] = {}
    # From being asked to end (SIGTERM) to being killed.
    stop_grace_s: float = 5.0
    max_log_bytes: int = 10_485_760

    def __repr__(self) -> str:
        """Without ``env`` and ``command``, which is where people put secrets."""
        return f"PipedSpec({self.name!r})"


class PipedOwner(Protocol):
    """Who had a process started."""

    def received(self, data: bytes) -> None:
        """Some bytes of its stdout, in any pieces."""

    def ended(self, reason: str) -> None:
        """Nothing of it is left, or it could not be started; in words for a person."""


class PipedProcess(Protocol):
    """A process that was asked for. What is written before it runs is kept for it."""

    def write(self, data: bytes) -> bool:
        """Write to its stdin; False if it does not read, and too much waits already: then nothing was written."""

    def pause_reading(self) -> None:
        """Leave what it says in its pipe, so that it has to wait."""

    def resume_reading(self) -> None:
        """Go on."""

    def stop(self) -> None:
        """End it, and everything it started. ``ended`` follows."""


# Raises nothing: what cannot be started ends.
StartPiped = Callable[[PipedSpec, PipedOwner], PipedProcess]


class NotStarted:
    """What is had of a process where none can be started."""

    def write(self, data: bytes) -> bool:  # noqa: ARG002  (nobody reads it)
        """Nobody reads."""
        return False

    def pause_reading(self) -> None:
        """Nothing is said."""

    def resume_reading(self) -> None:
        """Nothing is said."""

    def stop(self) -> None:
        """It has ended."""


def start_nothing(_: PipedSpec, owner: PipedOwner) -> PipedProcess:
    """For an exchange without processes."""
    owner.ended("this exchange starts no processes")
    return NotStarted()

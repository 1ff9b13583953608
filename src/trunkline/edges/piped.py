"""A process with pipes: a program that an edge has started, and speaks with over its stdin and stdout.

Owns the words between an edge and the host for it. The host starts it below the keeper, so that it ends with everything
it started, also when the exchange is killed. There are two kinds: one that was asked for once (``PipedSpec``), whose
end is the edge's affair, and one that is kept (``Programs``), which the host starts again as it does launched agents.

Invariant: of each process that was asked for, ``ended`` is the last that its owner hears, and is heard once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from trunkline.config import AgentProgram
from trunkline.model import ProcessIdentity


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


# --- programs that are kept -------------------------------------------------------------------------------------------


class KeptRun(PipedProcess, Protocol):
    """One run of a program that the host keeps running for an edge."""

    @property
    def run_id(self) -> str:
        """By which its log is found."""

    @property
    def identity(self) -> ProcessIdentity:
        """Its first process."""

    @property
    def token_sha256(self) -> str:
        """What the agent that the edge makes of this run comes in with; the program itself is given no token."""

    def hung(self, reason: str) -> None:
        """It does not do its work: end it. What follows is decided as after a crash."""


class KeptOwner(Protocol):
    """For whom a program is kept. Of each run it hears ``began`` first and ``ended`` last, each once."""

    def began(self, run: KeptRun) -> None:
        """There is a process, and the hub knows of it."""

    def received(self, data: bytes) -> None:
        """Some bytes of its stdout, in any pieces."""

    def ended(self, reason: str) -> None:
        """Nothing of this run is left. Whether another one follows is the host's affair."""


class Programs(Protocol):
    """The host's side: what is kept runs, is isolated, restarted, listed, steered and logged as a launched agent is."""

    def keep(self, program: AgentProgram, owner: KeptOwner, *, edge: str, table: str) -> str:
        """Run this from now on; one of the same id in another form is replaced. Why it cannot start, if that is known.

        ``edge`` is whose agent it is, ``table`` where it is configured, for advice to people.
        """

    def release(self, agent_id: str) -> None:
        """Run it no longer. Its owner hears ``ended`` if it ran."""


class NoPrograms:
    """For an exchange without processes."""

    def keep(self, program: AgentProgram, owner: KeptOwner, *, edge: str, table: str) -> str:  # noqa: ARG002
        """Nothing is started."""
        return ""

    def release(self, agent_id: str) -> None:
        """Nothing runs."""

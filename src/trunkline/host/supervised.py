"""One agent that the supervisor runs: how it is configured, its life over all runs, and the run that it is in.

Owns what is known of an agent at one moment. Does not own what is done with it (``supervisor``).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from trunkline.config import AgentProgram
from trunkline.host.confinement import View
from trunkline.host.isolation import Isolation, Wanted
from trunkline.host.kept import Kept, KeptPipes
from trunkline.host.launch import passed_on
from trunkline.host.restart import STOPPED_BY_HAND, Life, Restart
from trunkline.host.watched_files import FileWatch
from trunkline.model import Manifest, ProcessIdentity


class AgentSpec(Struct, frozen=True):
    """How an agent is run. All paths are absolute. ``isolation`` None is a sandbox where one holds, else none."""

    agent_id: str
    command: tuple[str, ...]
    cwd: str
    restart: Restart = "on-failure"
    manifest: str | None = None
    env: dict[str, str] = {}
    stop_grace_s: float = 5.0
    max_log_bytes: int = 10_485_760
    isolation: Wanted | None = "none"
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = True
    watch: bool = False

    @classmethod
    def of(cls, agent: AgentProgram) -> AgentSpec:
        """How a configured agent is run."""
        return cls(
            agent.id,
            agent.command,
            agent.cwd,
            agent.restart,
            agent.manifest,
            agent.env,
            agent.stop_grace_s,
            agent.max_log_bytes,
            agent.isolation,
            agent.read,
            agent.write,
            agent.network,
            agent.watch,
        )

    def __repr__(self) -> str:
        """Without ``env`` and ``command``, which is where people put secrets."""
        return f"AgentSpec({self.agent_id!r})"


class Run(Struct):
    """One run of an agent, from the command to launch it to the report of its end."""

    run_id: str
    agent: Agent
    token_sha256: str
    manifest: Manifest | None
    process: ProcessIdentity | None = None
    # What it sees in its sandbox, the user that it is if not ours, and when it began.
    view: View | None = None
    uid: int | None = None
    began_at: float = 0.0
    # Whether a process of it ever opened a connection.
    has_connected: bool = False
    # Whether it ever came in, and why it was ended by us, if it was.
    has_come: bool = False
    ended_for: str = ""
    # What its tools missed in its sandbox, and whether its log is about to be looked at for that.
    missed: str = ""
    is_looked_at: bool = False
    # Of one that is kept for an edge.
    pipes: KeptPipes | None = None


class Agent:
    """One supervised agent."""

    def __init__(self, spec: AgentSpec, kept: Kept | None = None) -> None:
        self.spec = spec
        # Set for a program that an edge speaks with over pipes, and makes an agent of.
        self.kept = kept
        self.life = Life(spec.restart)
        self.run: Run | None = None
        self.is_removed = False
        # Since when it runs and is not well; None while it is.
        self.unwell_since: float | None = None
        # What its last run got; None before the first.
        self.isolation: Isolation | None = None
        # Its files as they were when it was started last, if they are watched; None before the first look.
        self.files: FileWatch | None = None

    @property
    def is_stopped_by_hand(self) -> bool:
        """Whether a person stopped it, and nobody has started it since."""
        return self.life.note.startswith(STOPPED_BY_HAND)


def environment(
    own: Mapping[str, str], given: Mapping[str, str], ours: Mapping[str, str], *, is_ours: bool = True
) -> dict[str, str]:
    """All that an agent finds in its environment (decision 18): of ours, what its configuration sets, what is given."""
    return {**passed_on(ours, is_ours=is_ours), **own, **given}

"""Agent Spaces as an edge of the exchange: spaces are agents that live in it, behind doors of the HTTP listener.

Owns what the exchange is told of all spaces together: figures and warnings. Does not own a space (``serve``) or its
rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trunkline.edges.doors import Door
from trunkline.edges.edge import Edge, RunningEdge, Surroundings
from trunkline.edges.spaces.routes import PREFIXES, SpacesApi
from trunkline.edges.spaces.serve import Spaces
from trunkline.edges.spaces.store import SpacesFolder
from trunkline.edges.spaces.translate import EDGE
from trunkline.workspace.policy import DENIED_COMMANDS


class SpacesEdge(RunningEdge):
    """The spaces of the home folder."""

    def __init__(self, given: Surroundings) -> None:
        store = SpacesFolder(given.home / "spaces")
        self.spaces = Spaces(given.feed, given.views, store, given.process, given.version, given.entropy)
        self._door = Door(PREFIXES, SpacesApi(given.feed, given.views, self.spaces, given.stopwatch).app())

    def prepare(self) -> None:
        """Read the spaces and set their guards; ``ConfigError`` names the file of one that cannot be used."""
        self.spaces.prepare()

    def doors(self) -> Sequence[Door]:
        """``/v1/spaces`` and ``/v1/runs``."""
        return (self._door,)

    async def start(self) -> None:
        """Attach the spaces and go on with their runs."""
        await self.spaces.start()

    def reload(self) -> Sequence[str]:
        """Read the settings of all spaces again."""
        return [f"space {name}: its space.toml" for name in self.spaces.reload()]

    async def stop(self) -> None:
        """End what still runs."""
        await self.spaces.stop()

    def status(self) -> Mapping[str, object]:
        """How many spaces there are, and runs that are not done."""
        found: dict[str, object] = {"spaces": len(self.spaces.agents), "open_runs": len(self.spaces.runs.open)}
        if self.spaces.reasons.no_shell:
            found["note"] = f"no shell: {self.spaces.reasons.no_shell}"
        return found

    def warnings(self) -> Sequence[str]:
        """Spaces whose own list of denied commands has left out what every preset denies (decision 25)."""
        found = []
        for name, agent in sorted(self.spaces.agents.items()):
            denied = agent.space.policy.shell.denied
            missing = [command for command in DENIED_COMMANDS if command not in denied]
            if missing:
                found.append(
                    f"space {name}: {', '.join(missing)} not denied any more: `policy.shell.denied` in its space.toml "
                    "takes the place of the preset's list; add them to it"
                )
        return found


SPACES: Final = Edge(name=EDGE, make=SpacesEdge)

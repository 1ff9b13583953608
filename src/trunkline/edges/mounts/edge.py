"""Mounted servers as an edge of the exchange: one agent for each ``[[mcp]]`` of the configuration.

Owns which there are. It listens nowhere, and its start waits for nobody: a server's tools appear when it is ready. What
speaks the protocol is imported when the first server is configured, and no sooner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trunkline.config import Config, McpServer
from trunkline.edges.edge import Edge, RunningEdge, Surroundings
from trunkline.model import AgentView

if TYPE_CHECKING:
    from trunkline.edges.exchange import AgentAction
    from trunkline.edges.mounts.mounted import Mounted

NAME: Final = "mounts"


class MountsEdge(RunningEdge):
    """All mounted servers."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._mounted: Mounted | None = None

    async def start(self) -> None:
        """Have all started, or connected to; wait for none."""
        self._mount(self._given.config.mcp_servers)

    def configured(self, config: Config) -> Mapping[str, Sequence[str]]:
        """Mount what is new or changed, let go of what is not there any more."""
        return self._mount(config.mcp_servers)

    def _mount(self, servers: Sequence[McpServer]) -> Mapping[str, Sequence[str]]:
        if self._mounted is None and servers:
            from trunkline.edges.mounts.mounted import Mounted

            self._mounted = Mounted(self._given)
        return {} if self._mounted is None else self._mounted.set(servers)

    async def stop(self) -> None:
        """Let go of all."""
        if self._mounted is not None:
            await self._mounted.stop()

    def agents(self) -> Sequence[AgentView]:
        """Those that are reached elsewhere."""
        return () if self._mounted is None else self._mounted.agents()

    def steer(self, agent_id: str, action: AgentAction) -> bool:
        """Connect to one of these, or let go of it."""
        return self._mounted is not None and self._mounted.steer(agent_id, action)

    def status(self) -> Mapping[str, object]:
        """How many there are."""
        return {"servers": 0, "ready": 0} if self._mounted is None else self._mounted.status()


MOUNTS: Final = Edge(name=NAME, make=MountsEdge)

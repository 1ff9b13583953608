"""Mounted servers as an edge of the exchange: one agent for each ``[[mcp]]`` of the configuration.

Owns which there are. Its start waits for nobody: a server's tools appear when it is ready. It has one path behind the
HTTP listener, to which browsers come back after a person signed in at a server. What speaks the protocol is imported
when the first server is configured, and no sooner.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trunkline.config import Config, McpServer
from trunkline.edges.edge import Edge, RunningEdge, Surroundings
from trunkline.edges.mounts.names import EDGE
from trunkline.shown import AgentView

if TYPE_CHECKING:
    from trunkline.edges.doors import Door
    from trunkline.edges.exchange import AgentAction, SignInAddress
    from trunkline.edges.mounts.mounted import Mounted

# Variables that name a proxy; not followed (decision 115).
PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")


class MountsEdge(RunningEdge):
    """All mounted servers."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._mounted: Mounted | None = None
        self._servers: Sequence[McpServer] = ()

    async def start(self) -> None:
        """Have all started, or connected to; wait for none."""
        self._mount(self._given.config.mcp_servers)

    def configured(self, config: Config) -> Mapping[str, Sequence[str]]:
        """Mount what is new or changed, let go of what is not there any more."""
        return self._mount(config.mcp_servers)

    def _mount(self, servers: Sequence[McpServer]) -> Mapping[str, Sequence[str]]:
        self._servers = servers
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

    def doors(self) -> Sequence[Door]:
        """Where browsers come back to."""
        from trunkline.edges.mounts import callback

        return (callback.door(self._given.feed, self._came_back),)

    async def _came_back(self, state: str, code: str, issuer: str | None, error: str) -> str | None:
        return None if self._mounted is None else await self._mounted.came_back(state, code, issuer, error)

    async def sign_in(self, agent_id: str, base: str) -> SignInAddress | None:
        """Where a person signs in at one of these."""
        return None if self._mounted is None else await self._mounted.sign_in(agent_id, base)

    def sign_in_state(self, agent_id: str) -> str | None:
        """How that is going."""
        return None if self._mounted is None else self._mounted.sign_in_state(agent_id)

    async def sign_out(self, agent_id: str) -> bool:
        """Forget it."""
        return self._mounted is not None and await self._mounted.sign_out(agent_id)

    def status(self) -> Mapping[str, object]:
        """How many there are."""
        return {"servers": 0, "ready": 0} if self._mounted is None else self._mounted.status()

    def warnings(self) -> Sequence[str]:
        """A proxy that servers at a URL are not reached by."""
        remote = [server.agent_id for server in self._servers if server.url is not None]
        named = next((name for name in PROXIES if os.environ.get(name)), "")
        if not named or not remote:
            return ()
        return (
            f"{named} is not followed: {', '.join(remote[:3])} and whoever signs you in there are gone to directly",
        )


MOUNTS: Final = Edge(name=EDGE, make=MountsEdge)

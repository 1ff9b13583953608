"""MCP as an edge of the exchange: a door of the HTTP listener by which MCP clients call the tools of all agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trunkline.edges.doors import Door
from trunkline.edges.edge import Edge, RunningEdge, Surroundings, TokenKind
from trunkline.edges.mcp.awaiting import Awaiting
from trunkline.edges.mcp.calls import Calls
from trunkline.edges.mcp.catalogue import Catalogue
from trunkline.edges.mcp.serve import McpDoor
from trunkline.edges.mcp.session_ids import SessionIds
from trunkline.edges.mcp.translate import EDGE
from trunkline.edges.waiting import Requests
from trunkline.home import Home


class McpEdge(RunningEdge):
    """Clients of MCP."""

    def __init__(self, given: Surroundings) -> None:
        self._requests = Requests(given.feed)
        self._awaiting = Awaiting(given.feed, given.views)
        self._calls = Calls(given.feed, given.views, self._requests, self._awaiting)
        self._door = McpDoor(
            given.feed,
            given.views,
            self._requests,
            Catalogue(given.views, given.config.profile),
            self._calls,
            SessionIds(given.key, given.entropy),
            given.version,
            Home(given.home).to_name,
        )

    def doors(self) -> Sequence[Door]:
        """``/mcp``."""
        return (self._door.door,)

    async def start(self) -> None:
        """Take up what waited for a person."""
        await self._awaiting.restore()

    async def stop(self) -> None:
        """Tell everybody who waits."""
        self._requests.close()
        self._calls.stop()

    def status(self) -> Mapping[str, object]:
        """Calls that wait for a person, or whose outcome their client has not fetched, and clients that listen."""
        return {"awaited_calls": len(self._awaiting), "listeners": len(self._door.changes)}


MCP: Final = Edge(name=EDGE, make=McpEdge, section="profile", tokens=TokenKind(), stops_last=True)

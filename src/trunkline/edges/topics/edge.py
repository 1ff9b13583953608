"""Topics as an edge of the exchange: an agent that lives in it. It listens nowhere and has no section."""

from __future__ import annotations

from typing import Final

from trunkline.edges.edge import Edge, RunningEdge, Surroundings
from trunkline.edges.topics.agent import TopicsAgent


class TopicsEdge(RunningEdge):
    """The agent ``trunkline``."""

    def __init__(self, given: Surroundings) -> None:
        self.agent = TopicsAgent(given.feed, given.views, given.process, given.version, given.entropy)

    async def start(self) -> None:
        """Offer the tools."""
        await self.agent.attach()

    async def stop(self) -> None:
        """Go."""
        self.agent.leave("stopping")


TOPICS: Final = Edge(name="topics", make=TopicsEdge)

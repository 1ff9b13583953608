"""Topics as an edge of the exchange: an agent that lives in it, and routes behind the HTTP listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trunkline.edges.doors import Door
from trunkline.edges.edge import Edge, RunningEdge, Surroundings
from trunkline.edges.topics.agent import TopicsAgent
from trunkline.edges.topics.routes import PREFIXES, TopicsApi
from trunkline.model import EXCHANGE


class TopicsEdge(RunningEdge):
    """The agent ``trunkline``, and who reads events over HTTP."""

    def __init__(self, given: Surroundings) -> None:
        self.agent = TopicsAgent(given.feed, given.views, given.process, given.version, given.entropy)
        self._api = TopicsApi(given.feed)
        self._door = Door(PREFIXES, self._api.app())

    def doors(self) -> Sequence[Door]:
        """``/v1/topics``."""
        return (self._door,)

    async def start(self) -> None:
        """Offer the tools."""
        await self.agent.attach()

    async def stop(self) -> None:
        """End the streams, and go."""
        self._api.requests.close()
        self.agent.leave("stopping")

    def status(self) -> Mapping[str, object]:
        """How many streams are read."""
        return {"streams": len(self._api.readers)}


TOPICS: Final = Edge(name=EXCHANGE, make=TopicsEdge)

"""Chiffon as an edge of the exchange: doors of the HTTP listener, and a message queue where one is configured."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from trunkline.edges.chiffon.messages import AGENT_TYPES
from trunkline.edges.chiffon.serve import ChiffonListener
from trunkline.edges.chiffon.session import Settings
from trunkline.edges.doors import Door
from trunkline.edges.edge import Edge, RunningEdge, Surroundings, TokenKind


class ChiffonEdge(RunningEdge):
    """Orchestrators and agents, over HTTP, WebSocket and NATS."""

    def __init__(self, given: Surroundings) -> None:
        chosen = given.config.chiffon
        settings = Settings(chosen.timeout_s, chosen.work)
        self._listener = ChiffonListener(given.exchange, settings, given.process, nats=chosen.nats)

    def doors(self) -> Sequence[Door]:
        """``/api/agent``."""
        return (self._listener.door,)

    async def start(self) -> None:
        """Let the clock run, and look for the broker."""
        await self._listener.start()

    async def stop(self) -> None:
        """Let go of everybody."""
        await self._listener.stop()

    def status(self) -> Mapping[str, object]:
        """How many agents are registered, and whether the broker is there."""
        queue = self._listener.queue
        found: dict[str, object] = {"agents": len(self._listener.switchboard.agents)}
        return found if queue is None else {**found, "broker": "connected" if queue.is_connected else "away"}

    def warnings(self) -> Sequence[str]:
        """A queue that is configured and cannot be used."""
        missing = self._listener.missing
        return () if missing is None else (f"[chiffon] nats has no effect: {missing}",)


CHIFFON: Final = Edge(
    name="chiffon",
    make=ChiffonEdge,
    section="chiffon",
    # Chiffon wants 32 characters.
    tokens=TokenKind(AGENT_TYPES, lambda: secrets.token_hex(16), own_ids=True),
)

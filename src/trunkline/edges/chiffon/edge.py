"""Chiffon as an edge of the exchange: doors of the HTTP listener, and a message queue where one is configured.

Owns which parts there are, and in which order they start and stop. Does not own what is said (``serve``, ``queue``) or
who is registered (``peers``).

Invariant: nobody waits for a broker: without one the doors are open all the same.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trunkline.edges.background import Background
from trunkline.edges.chiffon.messages import AGENT_TYPES
from trunkline.edges.chiffon.peers import Peers
from trunkline.edges.chiffon.serve import ChiffonDoor
from trunkline.edges.chiffon.translate import EDGE
from trunkline.edges.doors import Door
from trunkline.edges.edge import TOKEN_PREFIX, Edge, RunningEdge, Surroundings, TokenKind

if TYPE_CHECKING:
    from trunkline.edges.chiffon.queue import Queue


class ChiffonEdge(RunningEdge):
    """Orchestrators and agents, over HTTP, WebSocket and NATS."""

    def __init__(self, given: Surroundings) -> None:
        url = given.config.chiffon.nats
        self.peers = Peers(given.feed, given.views, given.config.chiffon, given.process, given.key, given.entropy)
        self._background = Background(given.feed)
        self._door = ChiffonDoor(self.peers, self._background)
        self._queue: Queue | None = None
        # A broker may be configured where the client for it is not installed.
        self._is_missing = bool(url) and importlib.util.find_spec("nats") is None
        if url and not self._is_missing:
            from trunkline.edges.chiffon.queue import Queue

            self._queue = Queue(self.peers, self._background, url)

    def prepare(self) -> None:
        """Let tools of types be served by those of instances."""
        self.peers.prepare()

    def doors(self) -> Sequence[Door]:
        """``/api/agent``."""
        return (self._door.door,)

    async def start(self) -> None:
        """Look for the broker, if there is one; nobody waits for it."""
        if self._queue is not None:
            self._queue.start()

    async def stop(self) -> None:
        """Let go of everybody; what is open stays on record and goes on after the next start."""
        self.peers.stop()
        await self._background.stop()
        if self._queue is not None:
            await self._queue.stop()
        await self._door.sockets.stop()

    def status(self) -> Mapping[str, object]:
        """How many agents are registered, and whether the broker is there."""
        found: dict[str, object] = {"agents": len(self.peers.agents)}
        if self._queue is not None:
            found["broker"] = "connected" if self._queue.is_connected else "away"
        return found

    def warnings(self) -> Sequence[str]:
        """A queue that is configured and cannot be used."""
        if not self._is_missing:
            return ()
        return ("[chiffon] nats has no effect: nats-py is missing: pip install 'trunkline[nats]'",)


CHIFFON: Final = Edge(
    name=EDGE,
    make=ChiffonEdge,
    section="chiffon",
    # Chiffon wants 32 characters (CH-097); 28 of them are random, 168 bits.
    tokens=TokenKind(AGENT_TYPES, lambda: f"{TOKEN_PREFIX}{secrets.token_urlsafe(21)}"),
)

"""OSSA as an edge of the exchange: a listener of its own with TLS 1.3, and agents that are reached by a URL.

Owns which parts there are, and in which order they start and stop. Does not own what is said (``serve``, ``peers``) or
how an agent at a URL is reached (``push``).

Invariant: nothing but TLS 1.3 carries a message from elsewhere than this machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from trunkline.addresses import host_and_port
from trunkline.edges import tls
from trunkline.edges.address import Address
from trunkline.edges.background import Background
from trunkline.edges.edge import Edge, EdgeOff, RunningEdge, Surroundings
from trunkline.edges.listener import WebListener
from trunkline.edges.ossa.attachment import Way
from trunkline.edges.ossa.keys import OSSA_KEYS, AgentKeys, own_keys
from trunkline.edges.ossa.peer import OssaPeer
from trunkline.edges.ossa.peers import OssaPeers
from trunkline.edges.ossa.push import UrlWay
from trunkline.edges.ossa.serve import OssaServer
from trunkline.edges.ossa.translate import EDGE


class OssaEdge(RunningEdge):
    """Signed messages between agents."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        own = own_keys(given.keys, given.entropy)
        self.peers = OssaPeers(given.feed, given.views, given.config.ossa, own, given.key, given.entropy, ways=self)
        self._background = Background(given.feed)
        self._server = OssaServer(self.peers, self._background)
        self._listener: WebListener | None = None

    def reach(self, peer: OssaPeer, keys: AgentKeys) -> None:
        """Attach an agent by the URL of its key (``peers.Ways``)."""
        peer.attach(UrlWay(self.peers, self._background, peer, keys), keys.url)

    def send_away(self, way: Way) -> None:
        """End this way, if it is a connection (``peers.Ways``)."""
        self._server.send_away(way)

    async def start(self) -> None:
        """Listen, and go on with what is on record."""
        given = self._given
        config = given.config.ossa
        if not config.listen:
            raise EdgeOff('[ossa] listen is ""', is_chosen=True)
        host, port = host_and_port(config.listen)
        certificate = tls.own_certificate(given.keys, time.time())
        context = tls.server_context(certificate, authorities=config.client_ca or None, required=bool(config.client_ca))
        address = Address(host, port, EDGE, is_given=given.config.is_given(EDGE, "listen"))
        listener = WebListener(self._server.app, address, context)
        await listener.start()
        self._listener = listener
        self.peers.take_up()

    async def stop(self) -> None:
        """Let go of everybody; what is owed stays on record."""
        if self._listener is not None:
            self._listener.close()
        self.peers.stop()
        await self._server.stop()
        await self._background.stop()
        if self._listener is not None:
            await self._listener.stop()

    def ready(self) -> Mapping[str, str | None]:
        """The address in use."""
        return {EDGE: None if self._listener is None else self._listener.url}

    def status(self) -> Mapping[str, object]:
        """How many agents there are, and what of theirs is open."""
        return self.peers.status()


OSSA: Final = Edge(name=EDGE, make=OssaEdge, section=EDGE, ready_keys=(EDGE,), tokens=OSSA_KEYS)

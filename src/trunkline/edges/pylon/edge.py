"""Pylon as an edge of the exchange: a listener of its own, with TLS unless it is turned off, and the codex agent.

Owns which parts there are, in which order they start and stop, and the secret that private channels are signed with.
Does not own who may connect (``serve``) or what codex does (``agent``, ``workspace``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from trunkline import key_files
from trunkline.addresses import host_and_port
from trunkline.edges import tls
from trunkline.edges.address import Address
from trunkline.edges.background import Background
from trunkline.edges.edge import Edge, EdgeOff, RunningEdge, Surroundings, new_bearer
from trunkline.edges.listener import WebListener
from trunkline.edges.pylon.serve import PylonServer
from trunkline.edges.pylon.translate import AGENT, EDGE
from trunkline.model import Health
from trunkline.shown import AgentView

# What private channels are signed with; for whoever has to sign, on this machine.
SECRET_FILE: Final = "pylon.secret"  # noqa: S105  (a name)


class PylonEdge(RunningEdge):
    """The bridge for pages."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._background = Background(given.feed)
        self.server = PylonServer(given, self._background)
        self._listener: WebListener | None = None

    async def start(self) -> None:
        """Listen, and offer the tools."""
        given = self._given
        config = given.config.pylon
        if not config.listen:
            raise EdgeOff('[pylon] listen is ""', is_chosen=True)
        host, port = host_and_port(config.listen)
        context = None
        if config.tls:
            context = tls.server_context(tls.own_certificate(given.keys, time.time()))
        made = key_files.kept(given.keys / SECRET_FILE, _new_secret)
        self.server.secret = made.strip()
        address = Address(host, port, EDGE, is_given=given.config.is_given(EDGE, "listen"))
        listener = WebListener(self.server, address, context)
        await listener.start()
        self._listener = listener
        await self.server.agent.attach()

    async def stop(self) -> None:
        """End the workspaces, and let go of everybody."""
        # Before the listener says goodbye to what is left, in words that are none of Pusher's.
        await self.server.stop()
        self.server.agent.leave("stopping")
        if self._listener is not None:
            self._listener.close()
            await self._listener.stop()
        await self._background.stop()

    def ready(self) -> Mapping[str, str | None]:
        """The address in use; clients connect to ``/app/{app_key}`` there."""
        url = None if self._listener is None else self._listener.url.replace("http", "ws", 1)
        return {EDGE: url}

    def agents(self) -> Sequence[AgentView]:
        """What keeps the agent from its work, if something does: it is there all the same, and says why."""
        trouble = self.server.agent.trouble()
        if trouble is None:
            return ()
        return (AgentView(AGENT, EDGE, "ready", health=Health.DEGRADED.value, note=trouble[1], resident=True),)

    def status(self) -> Mapping[str, object]:
        """How many are connected, and to what."""
        return self.server.status()


def _new_secret() -> bytes:
    return f"{new_bearer()}\n".encode()


PYLON: Final = Edge(name=EDGE, make=PylonEdge, section=EDGE, ready_keys=(EDGE,))

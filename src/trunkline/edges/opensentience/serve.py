"""Where agents connect: the Unix socket, and loopback TCP where it is wanted.

Owns who may connect (the owner's processes, or loopback) and the socket's file. Connections are run by
``edges.driver``; what is said on them is ``session``'s.

Invariant: a process of another user is cut off before a byte of it is read, and that is on record.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trunkline.addresses import is_loopback
from trunkline.edges.address import Address
from trunkline.edges.driver import Connections, Driver, MakeSession
from trunkline.edges.exchange import Feed
from trunkline.edges.offers import JudgingBudget
from trunkline.edges.opensentience import socket_file
from trunkline.edges.opensentience.messages import ID_SEED_BYTES
from trunkline.edges.opensentience.session import CoreSession
from trunkline.edges.opensentience.settings import Settings
from trunkline.edges.opensentience.translate import EDGE
from trunkline.errors import ConfigError
from trunkline.events import Noticed
from trunkline.model import Now, Peer

# P-C2: asyncio's 100 fails at 200 simultaneous connects.
BACKLOG: Final = 1024

_PEERCRED: Final = struct.Struct("3i")


class OpenSentienceListener:
    """The Unix socket, and loopback TCP where it is wanted."""

    def __init__(
        self,
        feed: Feed,
        settings: Settings,
        *,
        path: Path,
        entropy: Callable[[int], bytes],
        tcp: tuple[str, int] | None = None,
    ) -> None:
        if tcp is not None and not is_loopback(tcp[0]):  # OS-004
            raise ConfigError("agents are only served on loopback addresses, such as 127.0.0.1", f"{tcp[0]}:{tcp[1]}")
        self._feed = feed
        self._settings = settings
        # Where the ids of our messages come from; a simulation hands in its own.
        self._entropy = entropy
        self.path = path
        # The address in use, once it listens: port 0 becomes the one that was free.
        self.tcp = tcp
        self.loop: asyncio.AbstractEventLoop
        self.connections = Connections(feed, EDGE)
        self._servers: list[asyncio.AbstractServer] = []
        self._judging = JudgingBudget(EDGE, feed.offer_refused)
        self._identity: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen; ``ConfigError`` if that cannot be done safely."""
        self.loop = asyncio.get_running_loop()
        bound = socket_file.bind(self.path)
        self._identity = socket_file.identity(self.path)
        server: asyncio.AbstractServer = await self.loop.create_unix_server(
            lambda: self.connection(is_local=True), sock=bound, backlog=BACKLOG
        )
        self._servers.append(server)
        if self.tcp is not None:
            host, port = self.tcp
            try:
                over_tcp = await self.loop.create_server(
                    lambda: self.connection(is_local=False), host, port, backlog=BACKLOG
                )
            except OSError as exc:
                await self.stop("shutdown")
                raise Address(host, port, EDGE, key="tcp", is_given=True).taken(exc) from None
            self._servers.append(over_tcp)
            self.tcp = over_tcp.sockets[0].getsockname()[:2]

    async def stop(self, reason: str) -> None:
        """Say goodbye to everybody and stop listening."""
        self.connections.is_stopping = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._identity is not None:
            socket_file.remove(self.path, self._identity)
            self._identity = None
        await self.connections.stop(reason)

    # -- who connects --------------------------------------------------------------------------------------------------

    def connection(self, *, is_local: bool) -> Driver:
        """For one more connection, by the Unix socket or by TCP."""
        return Driver(self.connections, self.loop, self._meet_local if is_local else self._meet_tcp)

    def _meet_tcp(self, transport: asyncio.Transport) -> MakeSession:
        address = transport.get_extra_info("peername")
        return self._conversation(Peer(f"tcp:{address[0]}" if address else "tcp:?"))

    def _meet_local(self, transport: asyncio.Transport) -> MakeSession | None:
        """The operating system says who it is."""
        raw = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        pid, uid, _gid = _PEERCRED.unpack(raw)
        peer = self._feed.peer_of(pid, uid)
        # An agent that we started as another user is known by its run.
        if uid != os.geteuid() and peer.run_id is None:
            self._feed.feed([Noticed("peer.refused", EDGE, f"uid:{uid}", "another user's process")])
            return None
        return self._conversation(peer)

    def _conversation(self, peer: Peer) -> MakeSession:
        def make(number: int, now: Now) -> CoreSession:
            seed = self._entropy(ID_SEED_BYTES)
            return CoreSession(number, self._settings, peer, seed=seed, now=now, judging=self._judging)

        return make

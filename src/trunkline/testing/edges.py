"""The edges of a simulated exchange: the same values as ``edges.known``, with what needs sockets or processes replaced.

What is simulated of each:

OpenSentience: sessions and connections are the real ones, on wires of ``network``; the listener's socket is left out.
Chiffon: everything behind its HTTP door (registration, messages, the long poll, peers, sessions, types), called by
``web``. WebSockets, callbacks and the message queue are left out.
Spaces: everything but what an operation does (``spaces``): files are texts in memory and commands no processes.
WebSockets are left out.
OSSA: signed messages, peers, order, repeats (``ossa``). TLS, HTTP, WebSockets, encryption and URLs are left out.
Nostr: jobs of strangers, by one relay (``nostr``). Its process, sockets, payments and buying are left out.
Jobs: the agent, with work that is done in this process (``jobs``). Sandboxes, models and endpoints are left out.
Console: the live line (``console``). Signing in and the page's files are left out.
Pylon: pages and codex (``pylon``). The listener, TLS and codex's process are left out.
HTTP: nobody listens. ``callers`` speak to the exchange as this edge does, and ``web`` to the doors of others.

Owns which of them are in a simulation. Does not own those who use them.

Invariant: they start and stop in the order of the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from trunkline.edges.chiffon.edge import CHIFFON
from trunkline.edges.console.edge import CONSOLE
from trunkline.edges.driver import Driver
from trunkline.edges.edge import Edge, RunningEdge, Surroundings
from trunkline.edges.http.edge import HTTP
from trunkline.edges.jobs.edge import JOBS
from trunkline.edges.known import EDGES
from trunkline.edges.nostr.edge import NOSTR
from trunkline.edges.opensentience.edge import OPENSENTIENCE, OpenSentienceEdge
from trunkline.edges.ossa.edge import OSSA
from trunkline.edges.pylon.edge import PYLON
from trunkline.edges.spaces.edge import SPACES
from trunkline.testing.callers import HttpCallers
from trunkline.testing.console import ConsoleOnWires, ConsolePages
from trunkline.testing.network import Network
from trunkline.testing.nostr import JobsOnRelay, NostrUsers
from trunkline.testing.ossa import OssaOnWires, OssaUsers
from trunkline.testing.pylon import PylonOnWires, PylonPages
from trunkline.testing.web import Web

# As long as the real rim waits for its last words to leave.
GOODBYE_S: Final = 2.5


class AgentsOnWires(OpenSentienceEdge):
    """OpenSentience, whose agents connect by the network of the simulation."""

    def __init__(self, given: Surroundings, network: Network) -> None:
        super().__init__(given)
        self._feed = given.feed
        self._network = network
        # In the order of their coming: that of a set is another one each time.
        self._connections: list[Driver] = []

    async def start(self) -> None:
        """Take connections."""
        self._listener.loop = asyncio.get_running_loop()
        self._network.listener = self._accept

    def _accept(self) -> Driver:
        connection = self._listener.connection(is_local=True)
        self._connections.append(connection)
        return connection

    async def stop(self) -> None:
        """Say goodbye to every agent."""
        self._network.listener = None
        now = self._feed.now()
        for connection in self._connections:
            if connection in self._listener.connections.open:
                connection.say_goodbye("shutdown", now)
        await asyncio.sleep(GOODBYE_S)


class CallersAndDoors(RunningEdge):
    """In the place of HTTP: callers of the simulation, and requests to the doors of the other edges."""

    def __init__(self, given: Surroundings, callers: HttpCallers, web: Web) -> None:
        self._given = given
        self._callers = callers
        self._web = web

    async def start(self) -> None:
        """Let them in."""
        given = self._given
        self._web.open(given.doors(), asyncio.get_running_loop())
        self._callers.open(given.feed, given.views, given.operator)

    async def stop(self) -> None:
        """Nobody is answered any more."""
        self._callers.close()
        self._web.close()


def simulated_edges(
    network: Network,
    callers: HttpCallers,
    web: Web,
    *,
    with_chiffon: bool,
    spaces: Callable[[Surroundings], RunningEdge] | None,
    ossa: OssaUsers | None,
    nostr: NostrUsers | None,
    jobs: Callable[[Surroundings], RunningEdge] | None,
    console: ConsolePages | None,
    pylon: PylonPages | None,
) -> Sequence[Edge]:
    """The edges of one simulation, in the order of the real ones."""
    makers: dict[Edge, Callable[[Surroundings], RunningEdge]] = {
        OPENSENTIENCE: lambda given: AgentsOnWires(given, network),
        HTTP: lambda given: CallersAndDoors(given, callers, web),
    }
    if spaces is not None:
        makers[SPACES] = spaces
    if with_chiffon:
        makers[CHIFFON] = CHIFFON.make
    if ossa is not None:
        makers[OSSA] = lambda given: OssaOnWires(given, ossa)
    if nostr is not None:
        makers[NOSTR] = lambda given: JobsOnRelay(given, nostr)
    if jobs is not None:
        makers[JOBS] = jobs
    if console is not None:
        makers[CONSOLE] = lambda given: ConsoleOnWires(given, console)
    if pylon is not None:
        makers[PYLON] = lambda given: PylonOnWires(given, pylon)
    return [replace(edge, make=makers[edge]) for edge in EDGES if edge in makers]

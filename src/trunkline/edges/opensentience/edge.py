"""OpenSentience as an edge of the exchange: the agents' socket, and how agents are launched.

Owns which parts there are, and in which order they start and stop. Does not own what is said (``session``) or how
processes are kept (``host.supervisor``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trunkline.addresses import host_and_port, shown
from trunkline.edges.edge import Edge, RunningEdge, Surroundings, TokenKind
from trunkline.edges.opensentience.launching import AgentLauncher
from trunkline.edges.opensentience.serve import OpenSentienceListener
from trunkline.edges.opensentience.settings import Settings
from trunkline.edges.opensentience.translate import EDGE


class OpenSentienceEdge(RunningEdge):
    """The socket, and loopback TCP where it is wanted."""

    def __init__(self, given: Surroundings) -> None:
        chosen = given.config.opensentience
        settings = Settings(
            core_version=given.version,
            instance_id=given.instance,
            heartbeat_interval_ms=chosen.heartbeat_interval_ms,
            max_frame_bytes=chosen.max_frame_bytes,
            max_inflight=chosen.max_inflight_requests,
            timeout_s=chosen.timeout_s,
            max_tool_input_bytes=chosen.max_tool_input_bytes,
            max_tool_output_bytes=chosen.max_tool_output_bytes,
            strict_types=chosen.strict_types,
            debug_errors=chosen.debug_errors,
        )
        tcp = host_and_port(chosen.tcp) if chosen.tcp else None
        self._listener = OpenSentienceListener(
            given.feed, settings, path=Path(chosen.socket), tcp=tcp, entropy=given.entropy
        )

    async def start(self) -> None:
        """Listen."""
        await self._listener.start()

    async def stop(self) -> None:
        """Say goodbye to every agent."""
        await self._listener.stop("shutdown")

    def ready(self) -> Mapping[str, str | None]:
        """The socket's path and the TCP address."""
        tcp = self._listener.tcp
        place = None if tcp is None else shown(*tcp)
        return {"socket": str(self._listener.path), "tcp": None if place is None else f"tcp://{place}"}

    def status(self) -> Mapping[str, object]:
        """How many are connected."""
        return {"connections": len(self._listener.connections.open)}


OPENSENTIENCE: Final = Edge(
    name=EDGE,
    make=OpenSentienceEdge,
    section="opensentience",
    ready_keys=("socket", "tcp"),
    tokens=TokenKind(),
    launcher=AgentLauncher.of,
)

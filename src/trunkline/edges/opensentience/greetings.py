"""The first words of a conversation: what a hello means to the hub, and what a welcome tells.

Does not own when they are said, nor what is wrong with a hello (``session``, ``translate``).
"""

from __future__ import annotations

from typing import Final

from trunkline.edges.opensentience import translate
from trunkline.edges.opensentience.messages import VERSION, Hello, Message, Server, Welcome
from trunkline.edges.opensentience.settings import Settings
from trunkline.events import AgentArrived
from trunkline.model import Peer

MAX_CAPABILITIES: Final = 64
# What this Core has beyond tools: told in core.welcome, used when the agent lists it too.
CAPABILITIES: Final = ("tools", "streaming", "cancellation", "calls", "directives")


def capabilities_of(hello: Hello) -> tuple[str, ...]:
    """What the agent says it can do, within bounds."""
    return tuple(name for name in hello.protocol.capabilities if len(name) <= 64)[:MAX_CAPABILITIES]


def arrival(session: int, message: Message[Hello], peer: Peer, settings: Settings) -> AgentArrived:
    """Who came, for the hub to decide about."""
    hello = message.payload
    return AgentArrived(
        session,
        message.id,
        translate.EDGE,
        hello.agent_id,
        hello.agent_version,
        translate.hello_token_sha256(hello),
        peer,
        capabilities_of(hello),
        translate.manifest_sha256(hello),
        settings.max_inflight,
        settings.timeout_s,
    )


def welcome(session_id: str, settings: Settings) -> Welcome:
    """What an admitted agent is told."""
    return Welcome(
        VERSION,
        session_id,
        settings.heartbeat_interval_ms,
        settings.max_frame_bytes,
        Server(settings.core_version, settings.instance_id),
        CAPABILITIES,
    )

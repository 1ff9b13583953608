"""The names on the message queue, and the two streams behind them; shared by the exchange and the agents' side.

``chiffon.work.<type>.<agent_id>`` carries work to one agent, ``chiffon.reply.<orchestrator>`` what comes back, and
``chiffon.dead.<type>`` what nobody could take. Registration and signs of life are plain requests and are not kept.

Owns these names and the settings of both streams. Does not own who reads or writes them (``queue``, the SDK).
"""

from __future__ import annotations

import re
from typing import Any, Final

from trunkline.edges.chiffon.messages import ORCHESTRATOR

STREAM: Final = "CHIFFON"
DEAD_STREAM: Final = "CHIFFON_DEAD"
REGISTER: Final = "chiffon.register"
HEARTBEAT: Final = "chiffon.heartbeat"
# Said when an orchestrator comes up: it knows nobody yet, and agents register again without waiting for their beat.
STARTED: Final = "chiffon.started"
# A lost call waits ten seconds for its agent: a beat that misses the announcement still comes in time.
HEARTBEAT_S: Final = 5.0
REPLIES: Final = f"chiffon.reply.{ORCHESTRATOR}"

# A message that is not acknowledged within this time is delivered again; whoever works on it says so every 10 s.
ACK_WAIT_S: Final = 30.0
IN_PROGRESS_S: Final = 10.0
# Redeliveries repeat the same attempt; one that was given out so often kills whoever takes it.
MAX_DELIVERIES: Final = 10
# NATS drops a message_id it has seen within this time.
DEDUPE_S: Final = 120.0
# Work that waits for an agent longer than this was given up by the hub long ago.
MAX_AGE_S: Final = 86_400.0
MAX_DEAD_MESSAGES: Final = 10_000


def work(agent_type: str, agent_id: str) -> str:
    """Where an agent gets its work."""
    return f"chiffon.work.{agent_type}.{token(agent_id)}"


def reply(orchestrator_id: str) -> str:
    """Where an orchestrator other than us gets its answers."""
    return f"chiffon.reply.{token(orchestrator_id)}"


def dead(agent_type: str) -> str:
    """Where messages of a type go that nobody could take."""
    return f"chiffon.dead.{agent_type}"


def token(agent_id: str) -> str:
    """An id as one token of a subject: a dot would make two of it."""
    return agent_id.replace(".", "_")


def durable(agent_id: str) -> str:
    """The name of an agent's consumer."""
    return "agent-" + re.sub(r"[^A-Za-z0-9_-]", "_", agent_id)


async def declare(js: Any) -> None:
    """Make the streams, or find them as they are."""
    from nats.js.api import RetentionPolicy, StreamConfig

    await js.add_stream(
        StreamConfig(
            name=STREAM,
            subjects=["chiffon.work.>", "chiffon.reply.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            duplicate_window=DEDUPE_S,
            max_age=MAX_AGE_S,
        )
    )
    await js.add_stream(
        StreamConfig(name=DEAD_STREAM, subjects=["chiffon.dead.>"], max_msgs=MAX_DEAD_MESSAGES, max_age=7 * MAX_AGE_S)
    )


async def consumer(js: Any, subject: str, name: str) -> Any:
    """A durable pull consumer with explicit acknowledgement."""
    from nats.js.api import AckPolicy, ConsumerConfig

    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S, max_ack_pending=256)
    return await js.pull_subscribe(subject, durable=name, stream=STREAM, config=config)

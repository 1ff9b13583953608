"""Which messages may make a socket an agent's: those that are new.

A signed message can be sent again by whoever saw it; that gets the reply that it had, and must get nothing more. So a
socket becomes the agent's, and is sent what is for the agent, by a message that was made within five minutes and never
came before, by any transport. Owns the ids that came. Does not own what else a message is good for: one that is not new
is handled like any other.

Invariant: an id that was forgotten is older than what is new. After a restart nothing is remembered: a message of the
five minutes before may then open one socket.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from msgspec import Struct, field

from trunkline.edges.ossa.messages import Message
from trunkline.model import Now

# As far as clocks may be ahead (silent point 16), and as far behind.
NEW_MS: Final = 300_000
# A message may be made that far ahead and is new that long after: then its time alone says that it is not.
KEPT_S: Final = 2 * NEW_MS / 1000
# Ids of one agent. It may say a hundred things that count in a minute, and acknowledge as many.
MAX_IDS: Final = 4096


class _Seen(Struct):
    """What one agent said lately: ids with when they came and were made; nothing as old as ``floor_ms`` is new."""

    ids: OrderedDict[str, tuple[float, int]] = field(default_factory=OrderedDict)
    floor_ms: int = 0


class Openings:
    """What agents said lately."""

    def __init__(self) -> None:
        self._by_agent: dict[str, _Seen] = {}

    def is_new(self, message: Message, now: Now) -> bool:
        """Whether this message makes a socket its sender's. It does so once."""
        seen = self._by_agent.setdefault(message.sender.agent_id, _Seen())
        self._forget(seen, now)
        if abs(now.ms - message.sent_ms) > NEW_MS or message.message_id in seen.ids:
            return False
        seen.ids[message.message_id] = (now.mono, message.sent_ms)
        return message.sent_ms > seen.floor_ms

    def _forget(self, seen: _Seen, now: Now) -> None:
        while seen.ids:
            first = next(iter(seen.ids))
            came, sent_ms = seen.ids[first]
            if came > now.mono - KEPT_S:
                if len(seen.ids) < MAX_IDS:
                    return
                seen.floor_ms = max(seen.floor_ms, sent_ms)
            del seen.ids[first]

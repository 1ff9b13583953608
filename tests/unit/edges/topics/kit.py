"""An exchange with topics, and somebody of no particular protocol who is told of events and keeps what he is told."""

from __future__ import annotations

import json
from typing import Any

from trunkline import events
from trunkline.edges.exchange import BaseSink
from trunkline.edges.topics.edge import TOPICS
from trunkline.effects import Notify, ToSession
from trunkline.model import Now, Policy, Principal
from trunkline.testing.memory import ALLOW_ALL, MemoryExchange


async def running(policy: Policy = ALLOW_ALL) -> MemoryExchange:
    """An exchange in memory with topics and nothing else."""
    exchange = MemoryExchange(policy, edges=(TOPICS,))
    await exchange.edges.start()
    return exchange


class Listening(BaseSink):
    """A conversation in which one identity is told; with ``takes`` it takes all at once."""

    def __init__(self, exchange: MemoryExchange, who: Principal, *, takes: bool = False) -> None:
        self._exchange = exchange
        self._takes = takes
        self.who = who
        self.told: list[Notify] = []
        self.session = exchange.feed.open_session(self)
        exchange.feed.feed([events.SubscriberArrived(self.session, who)])

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something."""
        del now
        if isinstance(effect, Notify):
            self.told.append(effect)
            if self._takes and effect.qos:
                self.take(effect)

    def take(self, told: Notify) -> None:
        """It has this one."""
        self._exchange.feed.feed([events.EventTaken(self.session, told.subscription_id, told.event)])

    def bodies(self) -> list[Any]:
        """What it was told, read."""
        return [json.loads(bytes(told.body)) for told in self.told]

    def leave(self) -> None:
        """The conversation ends."""
        self._exchange.feed.feed([events.SubscriberLeft(self.session)])
        self._exchange.feed.close_session(self.session)

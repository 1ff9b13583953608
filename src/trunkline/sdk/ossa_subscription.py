"""What an OSSA agent wants to be told of, before and after the exchange knows it.

Owns which subscriptions there are, how the exchange is asked for one, and which of them an event is for. Does not own
how the exchange is reached, nor how handlers run.

Invariant: an event goes to the handlers of the subscription that it names, and to no others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterator
from typing import Any, Protocol

import msgspec

from trunkline.edges.ossa.messages import Message
from trunkline.sdk.ossa_handling import Handler
from trunkline.sdk.ossa_message import ConnectionLost, OssaError, OssaMessage
from trunkline.sdk.ossa_retry import DEFAULT_RETRY_POLICY
from trunkline.topic_names import matches

log = logging.getLogger("trunkline.sdk")


class Subscription:
    """A wish to be told of events. ``await`` it to know that the exchange took it; ``OssaError`` if it did not."""

    def __init__(self, topic: str, handler: Handler, qos: int, *, durable: bool) -> None:
        self.topic = topic
        self.handler = handler
        self.qos = qos
        self.durable = durable
        # The exchange's name for it, while it knows it.
        self.id: str | None = None
        self._is_settled = asyncio.Event()
        self._error: OssaError | None = None

    def __repr__(self) -> str:
        return f"Subscription({self.topic!r}, qos={self.qos}, durable={self.durable})"

    def __await__(self) -> Generator[Any, None, Subscription]:
        yield from self._is_settled.wait().__await__()
        if self._error is not None:
            raise self._error
        return self

    def settle(self, given: str | OssaError) -> None:
        """The exchange took it under this name, or did not."""
        if isinstance(given, str):
            self.id = given
        else:
            self._error = given
        self._is_settled.set()


class Asks(Protocol):
    """How the exchange is asked for something: its answer, or ``OssaError``."""

    async def __call__(self, action: str, payload: Any, *, is_greeting: bool = False) -> OssaMessage:
        """Ask."""


class Subscriptions:
    """Those of one agent."""

    def __init__(self) -> None:
        self._wanted: list[Subscription] = []
        # Names of subscriptions that the exchange has and nobody here wants, so that each is told of once.
        self._unknown: set[str] = set()

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._wanted)

    def add(self, subscription: Subscription) -> None:
        """One more is wanted."""
        self._wanted.append(subscription)

    def remove(self, subscription: Subscription) -> str | None:
        """It is not wanted any more; its name, if the exchange has it for nobody else here."""
        if subscription not in self._wanted:
            return None
        self._wanted.remove(subscription)
        return None if any(one.id == subscription.id for one in self._wanted) else subscription.id

    async def establish(self, subscription: Subscription, ask: Asks, *, is_greeting: bool = False) -> None:
        """Ask the exchange for it."""
        wanted = {"topic": subscription.topic, "qos": subscription.qos, "durable": subscription.durable}
        try:
            found = await ask("subscribe", wanted, is_greeting=is_greeting)
        except OssaError as error:
            if is_greeting and error.code in DEFAULT_RETRY_POLICY.retryable_errors:
                raise  # the next connection asks again
            if isinstance(error, ConnectionLost):
                return
            log.warning("%r was not taken: %s", subscription, error)
            if subscription in self._wanted:
                self._wanted.remove(subscription)
            subscription.settle(error)
        else:
            subscription.settle(str(found.payload["subscription"]))

    def handlers_of(self, event: Message) -> list[Handler] | None:
        """Whom an event is for; None if nobody here wants it."""
        given = event.others.get("subscription")
        known = None if given is None else str(msgspec.json.decode(given))
        found = [one for one in self._wanted if known is not None and one.id == known]
        if not found:
            # The exchange may be quicker with an event than with the name of its subscription.
            waiting = [one for one in self._wanted if one.id is None or known is None]
            found = [one for one in waiting if matches(one.topic, event.topic or "")]
        if not found and known not in self._unknown:
            self._unknown.add(str(known))
            log.warning("nobody here subscribed to %s; events of %s wait", event.topic, known)
        return [one.handler for one in found] or None

    def lost(self) -> None:
        """The connection ended, and with it what is not durable."""
        for subscription in self._wanted:
            if not subscription.durable:
                subscription.id = None

"""Events on topics for an agent's author: what a handler is given, and the tool by which the exchange calls it.

Owns the shape of an event and the way from the tool's arguments to the handler. Does not own subscribing (``agent``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from msgspec import Struct


class TopicEvent(Struct, frozen=True):
    """One event. A handler may be given the same one twice, with the same ``event_id``."""

    topic: str
    payload: Any
    publisher: str
    event_id: str


class WantedTopic(Struct, frozen=True):
    """A subscription that is made each time the agent is attached."""

    topic: str
    qos: int
    durable: bool


def event_tool(handler: Callable[[TopicEvent], Any]) -> Callable[..., Any]:
    """The function that is offered as a tool: it hands an event to the handler, and takes it by returning."""
    if inspect.iscoroutinefunction(handler):

        async def handle_later(topic: str, payload: Any, publisher: str, event_id: str) -> None:
            await handler(TopicEvent(topic, payload, publisher, event_id))

        return handle_later

    def handle(topic: str, payload: Any, publisher: str, event_id: str) -> None:
        handler(TopicEvent(topic, payload, publisher, event_id))

    return handle

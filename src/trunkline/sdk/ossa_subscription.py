"""What an OSSA agent wants to be told of, before and after the exchange knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from trunkline.sdk.ossa_handling import Handler
from trunkline.sdk.ossa_message import OssaError


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

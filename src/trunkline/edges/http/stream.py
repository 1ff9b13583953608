"""``GET /v1/watch``: the live feed. How a stream looks is ``edges.server_events``."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from trunkline.edges.exchange import Operator
from trunkline.edges.request_scope import when_lost
from trunkline.edges.server_events import PING_S, aside, event, finish_stream, start_stream, write
from trunkline.edges.waiting import CLOSING, FAILED, LEFT, Requests


class WatchStream:
    """``GET /v1/watch``: ``watching`` first, then every masked ``entry`` and progress line as it happens."""

    def __init__(self, operator: Operator, requests: Requests) -> None:
        self._operator = operator
        self._requests = requests

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Feed one reader."""
        with self._requests.waiting() as reader, when_lost(scope, reader.leave):

            def watcher(line: bytes) -> None:
                reader.put(line, len(line))

            self._operator.watch(watcher)
            try:
                await start_stream(send)
                # From here on nothing is missed: who waits for something looks now whether it has happened already.
                await write(send, event("watching", b"{}"))
                while (item := await reader.next(PING_S)) is not LEFT:
                    await write(send, event("entry", item) if isinstance(item, bytes) else aside(item))
                    if item is CLOSING or item is FAILED:
                        break
            finally:
                self._operator.unwatch(watcher)
            await finish_stream(send)

"""Server-sent events: how they look, when a sign of life is due, and the live feed.

Owns the form of a stream. What is said on the stream of a call is in ``calls``.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Receive, Scope, Send

from trunkline.edges.answers import encode
from trunkline.edges.exchange import Operator
from trunkline.edges.listener import when_lost
from trunkline.edges.waiting import CLOSING, FAILED, LEFT, Dropped, Item, Requests

# A comment after so much silence, so that proxies and clients with a read timeout of 30 s or more see a living stream.
PING_S: Final = 15.0
PING: Final = b": ping\n\n"


def event(name: str, data: bytes) -> bytes:
    """One server-sent event. JSON may be written over several lines; SSE then wants each of them marked."""
    lines = data.splitlines() if b"\n" in data or b"\r" in data else [data]
    return b"event: %b\n%b\n\n" % (name.encode(), b"\n".join(b"data: " + line for line in lines))


def aside(item: Item | None) -> bytes:
    """What is not about the call: a sign of life, a count of what was dropped, a farewell."""
    if isinstance(item, Dropped):
        return event("dropped", encode({"dropped": item.count}))
    if item is CLOSING:
        return event("closing", encode({"reason": "the exchange is stopping"}))
    if item is FAILED:
        return event("closing", encode({"reason": "this stream failed; the operator's record says where"}))
    return PING


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


async def start_stream(send: Send) -> None:
    """The head of a stream."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def write(send: Send, text: bytes) -> None:
    """One more piece."""
    await send({"type": "http.response.body", "body": text, "more_body": True})


async def finish_stream(send: Send) -> None:
    """The end."""
    await send({"type": "http.response.body", "body": b""})

"""Server-sent events: how they look, and when a sign of life is due. For every edge behind the listener that streams.

Owns the form of a stream, and what is said on it that is about none of its subjects: a sign of life, a count of what
was dropped, a farewell. Does not own what is streamed.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Send

from trunkline.edges.answers import encode
from trunkline.edges.waiting import CLOSING, FAILED, Dropped, Item

# A comment after so much silence, so that proxies and clients with a read timeout of 30 s or more see a living stream.
PING_S: Final = 15.0
PING: Final = b": ping\n\n"


def event(name: str, data: bytes, event_id: str = "") -> bytes:
    """One server-sent event; without a name it is what clients call a message.

    JSON may be written over several lines; SSE then wants each of them marked.
    """
    lines = data.splitlines() if b"\n" in data or b"\r" in data else [data]
    head = (f"event: {name}\n" if name else "") + (f"id: {event_id}\n" if event_id else "")
    return b"%b%b\n\n" % (head.encode(), b"\n".join(b"data: " + line for line in lines))


def aside(item: Item | None) -> bytes:
    """What is about none of the stream's subjects."""
    if isinstance(item, Dropped):
        return event("dropped", encode({"dropped": item.count}))
    if item is CLOSING:
        return event("closing", encode({"reason": "the exchange is stopping"}))
    if item is FAILED:
        return event("closing", encode({"reason": "this stream failed; the operator's record says where"}))
    return PING


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

"""Answers that take their time: what a reader is told while a call runs, and the live feed.

Owns server-sent events and noticing that a reader left. An answer here is an ASGI application of its own, so that a
line of the session lives exactly as long as somebody reads it.

Invariant: a stream ends. With the outcome, at a question to a person (no connection waits for a person, decision 11),
when the reader leaves, or when the edge closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trunkline.edges.exchange import Exchange
from trunkline.edges.http import translate
from trunkline.edges.http.messages import CallBody
from trunkline.edges.http.session import CLOSING, Dropped, HttpSession, Item, Left, Line
from trunkline.effects import Answer, Progress, Wait
from trunkline.model import Fault, Principal, fault

# A comment after so much silence, so that proxies and clients with a read timeout of 30 s or more see a living stream.
PING_S: Final = 15.0
PING: Final = b": ping\n\n"


def event(name: str, data: bytes) -> bytes:
    """One server-sent event. JSON may be written over several lines; SSE then wants each of them marked."""
    lines = data.splitlines() if b"\n" in data or b"\r" in data else [data]
    return b"event: %b\n%b\n\n" % (name.encode(), b"\n".join(b"data: " + line for line in lines))


@asynccontextmanager
async def reading(session: HttpSession, receive: Receive, *, progress: bool = False) -> AsyncIterator[Line]:
    """A line that also hears when its reader's connection ends. The request's body must have been read."""
    with session.line(progress=progress) as line:
        watcher = asyncio.create_task(_notice_end(receive, line))
        try:
            yield line
        finally:
            watcher.cancel()


async def _notice_end(receive: Receive, line: Line) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    line.leave()


class CallStream:
    """``POST /v1/calls`` with ``Accept: text/event-stream``: accepted, progress…, then waiting_approval or outcome."""

    def __init__(self, exchange: Exchange, session: HttpSession, body: CallBody, caller: Principal) -> None:
        self._exchange = exchange
        self._session = session
        self._body = body
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the call. The first thing that happens to it decides between an ordinary refusal and a stream."""
        async with reading(self._session, receive, progress=True) as line:
            event_in = translate.call_requested(self._body, self._session.number, line.ref, self._caller)
            self._exchange.feed([event_in])
            first = await line.next()
            if isinstance(first, Answer) and first.refused:
                await refusal_of(first)(scope, receive, send)
            elif first is CLOSING:
                await refused_by_closing(self._body)(scope, receive, send)
            else:
                await _start(send)
                item: Item | None = first
                while await self._tell(item, line, send):
                    item = await line.next(PING_S)
                await send({"type": "http.response.body", "body": b""})

    async def _tell(self, item: Item | None, line: Line, send: Send) -> bool:
        """Tell one thing; whether there may be more."""
        tool_id, caller = self._body.tool_id, self._caller.identity
        if isinstance(item, Left):
            self._session.caller_left(line)
            return False
        if isinstance(item, Answer):
            text = event("outcome", translate.encode(translate.outcome(item, tool_id, caller)))
        elif isinstance(item, Wait):
            name = "accepted" if item.approval_id is None else "waiting_approval"
            text = event(name, translate.encode(translate.unfinished(item, tool_id, caller)))
        elif isinstance(item, Progress):
            text = event("progress", translate.encode(translate.progress(item)))
        else:
            text = _aside(item)
        await _write(send, text)
        ended = isinstance(item, Answer) or (isinstance(item, Wait) and item.approval_id is not None) or item is CLOSING
        return not ended


class WatchStream:
    """``GET /v1/watch``: ``watching`` first, then every masked ``entry`` and progress line as it happens."""

    def __init__(self, exchange: Exchange, session: HttpSession) -> None:
        self._exchange = exchange
        self._session = session

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Feed one reader."""
        async with reading(self._session, receive) as reader:

            def sink(line: bytes) -> None:
                reader.put(line, len(line))

            self._exchange.watch(sink)
            try:
                await _start(send)
                # From here on nothing is missed: who waits for something looks now whether it has happened already.
                await _write(send, event("watching", b"{}"))
                while not isinstance(item := await reader.next(PING_S), Left):
                    await _write(send, event("entry", item) if isinstance(item, bytes) else _aside(item))
                    if item is CLOSING:
                        break
            finally:
                self._exchange.unwatch(sink)
            await send({"type": "http.response.body", "body": b""})


def refusal_of(answer: Answer) -> Response:
    """A call that was not taken on, with the status of its fault."""
    found = answer.fault if answer.fault is not None else fault("hub.unavailable")
    return refusal(found)


def refusal(found: Fault, status: int = 0) -> Response:
    """A request that was refused."""
    status = status or translate.status_of(found)
    headers = {"retry-after": str(_retry_after_s(found))} if status in {429, 503} else None
    return Response(translate.error(found), status, headers, media_type="application/json")


def refused_by_closing(body: CallBody) -> Response:
    """The edge closed before the call had an id.

    Whether it was taken on is not known: only a key makes a repeat safe.
    """
    return refusal(fault("hub.unavailable", retryable=body.idempotency_key is not None))


def _retry_after_s(found: Fault) -> int:
    """When to come again, if the fault says so; else in a second."""
    wait_ms = (found.details or {}).get("retry_after_ms")
    return max(1, -(-int(wait_ms) // 1000)) if isinstance(wait_ms, int | float) else 1


def _aside(item: Item | None) -> bytes:
    """What is not about the call: a sign of life, a count of what was dropped, a farewell."""
    if isinstance(item, Dropped):
        return event("dropped", translate.encode({"dropped": item.count}))
    if item is CLOSING:
        return event("closing", translate.encode({"reason": "the exchange is stopping"}))
    return PING


async def _start(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _write(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})

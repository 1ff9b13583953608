"""``/v1/topics/{topic}``: publish with POST, read a stream of events with GET.

Both are calls of the agent ``trunkline``, made for whoever's token the request shows: policy, keys and the record are
those of every call. Owns the two routes and the form of an event on a stream. Does not own topics.

Invariant: a stream ends when its reader leaves, falls too far behind a subscription that is owed something, or when
the edge closes; its subscription ends with it unless it is durable.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline import strictjson
from trunkline.edges.answers import Refused, application, encode, json_answer, principal_of, refusal
from trunkline.edges.bodies import BadRequest, known_parameters, number_of, read_body
from trunkline.edges.exchange import Feed
from trunkline.edges.request_scope import when_lost
from trunkline.edges.server_events import PING_S, aside, event, finish_stream, start_stream, write
from trunkline.edges.topics.messages import PUBLISH, SUBSCRIBE
from trunkline.edges.topics.streams import IdentityReaders, Reader, Readers
from trunkline.edges.waiting import CLOSING, FAILED, LEFT, REF, Dropped, Item, Requests, Waiting
from trunkline.effects import Answer, Notify, StopTelling, Wait
from trunkline.events import CallRequested
from trunkline.model import LATEST_MS, MAX_INPUT_BYTES, MAX_NAME_CHARS, Fault, Principal, fault, stamp

PREFIXES: Final = ("/v1/topics",)
PATH: Final = "/v1/topics/{topic:path}"
# The latest moment that fits into a number of sixteen digits.
NAME: Final = re.compile(rf"[^\x00-\x1f\x7f]{{1,{MAX_NAME_CHARS}}}")


class TopicsApi:
    """The routes."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.requests = Requests(feed)
        self.readers = Readers(feed)

    def app(self) -> Starlette:
        """The ASGI application."""
        return application(self._feed, {PATH: {"GET": self.read, "POST": self.publish}})

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def publish(self, request: Request) -> ASGIApp:
        """``POST /v1/topics/{topic}?qos=&expires_ms=&key=&correlation_id=``: the body is the payload."""
        known_parameters(request, "qos", "expires_ms", "key", "correlation_id")
        body = await read_body(request.scope, request.receive, MAX_INPUT_BYTES) or b"null"
        try:
            strictjson.check(body)
        except strictjson.NotStrictJson as error:
            raise BadRequest(400, f"the body is not JSON that can be read: {error}") from None
        given: dict[str, Any] = {"topic": request.path_params["topic"], "payload": Raw(body)}
        for name, most in (("qos", 2), ("expires_ms", LATEST_MS)):
            number = number_of(request, name, 0, most)
            if number is not None:
                given[name] = number
        key, correlation_id = _name(request, "key"), _name(request, "correlation_id")
        with self.requests.waiting() as waiting, when_lost(request.scope, waiting.leave):
            asked = CallRequested(
                waiting.number,
                REF,
                principal_of(request),
                PUBLISH,
                Raw(encode(given)),
                key=key,
                correlation_id=correlation_id,
            )
            self._feed.feed([asked])
            return await self._published(waiting)

    async def _published(self, waiting: Waiting) -> ASGIApp:
        while True:
            item = await waiting.next()
            if isinstance(item, Answer):
                if item.fault is not None or item.output is None:
                    raise Refused(item.fault or fault("hub.unavailable"))
                return json_answer({**msgspec.json.decode(item.output), "call_id": item.call_id})
            if isinstance(item, Wait) and item.approval_id is not None:
                # A question holds no connection.
                waits = {"call_id": item.call_id, "status": item.status.value, "approval_id": item.approval_id}
                return json_answer(waits, 202)
            if item is LEFT:
                waiting.tell_left()
            if item is LEFT or item is CLOSING or item is FAILED:
                raise Refused(fault("hub.unavailable", retryable=False))

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, request: Request) -> ASGIApp:
        """``GET /v1/topics/{pattern}?durable=&qos=``: events as they are published, until the reader leaves."""
        known_parameters(request, "durable", "qos")
        wanted = {
            "topic": request.path_params["topic"],
            "qos": number_of(request, "qos", 0, 2) or 0,
            "durable": number_of(request, "durable", 0, 1) == 1,
        }
        who = principal_of(request)

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            readers = self.readers.enter(who)
            try:
                with self.requests.waiting() as waiting, when_lost(scope, waiting.leave):
                    await self._stream(waiting, readers, who, wanted, scope, receive, send)
            finally:
                self.readers.leave(who, readers)

        return stream

    async def _stream(
        self,
        waiting: Waiting,
        readers: IdentityReaders,
        who: Principal,
        wanted: dict[str, Any],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Subscribe, which is a call, and tell what comes; what speaks against it is an ordinary refusal."""
        self._feed.feed([CallRequested(waiting.number, REF, who, SUBSCRIBE, Raw(encode(wanted)))])
        is_begun = False
        item: Item | None
        while not isinstance(item := await waiting.next(PING_S), Answer):
            if isinstance(item, Wait) and item.approval_id is not None and not is_begun:
                is_begun = True
                await start_stream(send)
                await write(send, event("waiting_approval", encode({"approval_id": item.approval_id})))
            elif item is None and is_begun:
                await write(send, aside(None))
            elif item is LEFT or item is CLOSING or item is FAILED:
                waiting.tell_left()
                await _end(item, fault("hub.unavailable"), is_begun, scope, receive, send)
                return
        if item.fault is not None or item.output is None:
            await _end(item, item.fault or fault("hub.unavailable"), is_begun, scope, receive, send)
            return
        reader = Reader(msgspec.json.decode(item.output)["subscription"], waiting)
        readers.add(reader)
        try:
            if not is_begun:
                await start_stream(send)
            # From here on nothing is missed: who waits for something looks now whether it has happened already.
            await write(send, event("watching", encode({"subscription": reader.subscription_id})))
            await self._tell(reader, readers, wanted, send)
        finally:
            readers.discard(reader, durable=wanted["durable"])
        await finish_stream(send)

    async def _tell(self, reader: Reader, readers: IdentityReaders, wanted: dict[str, Any], send: Send) -> None:
        while (item := await reader.waiting.next(PING_S)) is not LEFT:
            if isinstance(item, Notify):
                await write(send, event("", encode(shape(item)), item.event_id))
                readers.taken(reader, item)
                continue
            if isinstance(item, StopTelling):
                await write(send, event("closing", encode({"reason": "the operator ended this subscription"})))
                return
            await write(send, aside(item))
            # What was dropped is still owed: whoever comes back is told of it, and in order.
            if item is CLOSING or item is FAILED or (isinstance(item, Dropped) and wanted["qos"]):
                return


async def _end(item: Item, problem: Fault, is_begun: bool, scope: Scope, receive: Receive, send: Send) -> None:
    if not is_begun:
        await refusal(problem)(scope, receive, send)
        return
    if item is not LEFT:
        await write(send, event("closing", encode({"reason": problem.message})))
    await finish_stream(send)


def shape(told: Notify) -> dict[str, object]:
    """An event as a stream shows it."""
    shown: dict[str, object] = {
        "event": told.event_id,
        "topic": told.topic,
        "payload": told.body,
        "publisher": told.publisher,
        "time": stamp(told.published_ms),
        "qos": told.qos,
    }
    if told.correlation_id is not None:
        shown["correlation_id"] = told.correlation_id
    return shown


def _name(request: Request, name: str) -> str | None:
    text = request.query_params.get(name)
    if text is not None and not NAME.fullmatch(text):
        raise BadRequest(400, f"{name}: expected 1 to {MAX_NAME_CHARS} characters, no control characters")
    return text

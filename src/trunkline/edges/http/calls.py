"""``POST /v1/calls``: wait for the outcome, follow what happens, or be told the call's id only.

An ASGI application of its own, past the router: this is the one route that is taken thousands of times a second. A
request is a conversation of its own for as long as somebody waits. Fast accept, slow judge: one that came whole and is
to be told an outcome needs no task (``try_take``, ``HttpCall``); all others, and all that is unusual, have one.

Invariant: a stream ends. With the outcome, at a question to a person (no connection waits for a person, decision 11),
when the reader leaves, or when the edge closes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trunkline.edges.answers import encode, refusal
from trunkline.edges.bodies import BadRequest, decode_both, read_body, says_json
from trunkline.edges.exchange import Feed, Views
from trunkline.edges.http import translate
from trunkline.edges.http.messages import MAX_BODY_BYTES, CallBody
from trunkline.edges.request_scope import ANSWER, Serve, when_lost
from trunkline.edges.server_events import PING_S, aside, event, finish_stream, start_stream, write
from trunkline.edges.shares import FREE_BYTES
from trunkline.edges.unattended import Unattended
from trunkline.edges.waiting import CLOSING, FAILED, LEFT, REF, Item, Requests, Waiting
from trunkline.effects import Answer, Progress, Wait
from trunkline.model import Fault, Principal, fault
from trunkline.traces import read_traceparent


class NewCall:
    """The route."""

    def __init__(self, feed: Feed, views: Views, requests: Requests, *, is_traced: bool = False) -> None:
        self._feed = feed
        self._views = views
        self._requests = requests
        self._is_traced = is_traced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            body, value = decode_both(CallBody, await read_body(scope, receive, MAX_BODY_BYTES))
        except BadRequest as bad:
            await refusal(fault(bad.code, bad.text), bad.status)(scope, receive, send)
            return
        if self._is_traced:
            body = _traced(body, scope)
        is_stream = _wants_stream(scope)
        waits = self._requests.waiting(wants_progress=is_stream, wants_large=False)
        with waits as waiting, when_lost(scope, waiting.leave):
            caller: Principal = scope["principal"]
            # Who does not wait for the end wants to know the id at once.
            announce = is_stream or body.wait is False
            asked = translate.call_requested(body, value["input"], waiting.number, REF, caller, announce=announce)
            try:
                self._requests.feed_soon(asked)
                if is_stream:
                    await self._stream(waiting, body, caller, scope, receive, send)
                else:
                    await self._answer(waiting, body, caller, scope, receive, send)
            except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
                # Nothing was said yet: a stream that has begun ends itself.
                self._feed.failed(waiting.number, error)
                await refusal(fault("hub.unavailable", retryable=False), 500)(scope, receive, send)

    def try_take(self, scope: Scope, data: bytes, serve: Serve, ended: Callable[[], None]) -> bool:
        """Take an ordinary request without a task: a body that can be read, for one answer at the end."""
        if not says_json(scope, MAX_BODY_BYTES) or _wants_stream(scope):
            return False
        try:
            body, value = decode_both(CallBody, data)
        except BadRequest:
            return False
        if body.wait is False:
            return False
        if self._is_traced:
            body = _traced(body, scope)
        caller: Principal = scope["principal"]
        waiting = HttpCall(self._feed, self._requests, self._answer, body, caller, scope, serve, ended)
        waiting.open()
        self._requests.feed_soon(
            translate.call_requested(body, value["input"], waiting.number, REF, caller, announce=False)
        )
        return True

    # -- one answer ----------------------------------------------------------------------------------------------------

    async def _answer(
        self, waiting: Waiting, body: CallBody, caller: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        while True:
            item = await waiting.next()
            if type(item) is Answer:
                if item.refused:
                    await refusal(item.fault or fault("hub.unavailable"))(scope, receive, send)
                else:
                    data = encode(translate.outcome(item, body.tool_id, caller.identity))
                    if len(data) > FREE_BYTES:
                        # In pieces, as they are taken, and counted until they are.
                        await Response(data, 200, media_type="application/json")(scope, receive, send)
                    else:
                        _say(scope, 200, data)
                return
            if isinstance(item, Wait):
                # A question holds no connection.
                if item.approval_id is not None or body.wait is False:
                    _say(scope, 202, encode(translate.unfinished(item, body.tool_id, caller.identity)))
                    return
            elif item is LEFT:
                waiting.tell_left()
                return
            elif item is CLOSING:
                await self._close(waiting, body, scope, receive, send)
                return
            elif item is FAILED:
                await refusal(_not_known(body))(scope, receive, send)
                return

    async def _close(self, waiting: Waiting, body: CallBody, scope: Scope, receive: Receive, send: Send) -> None:
        """A call that is on record goes on after the restart: an error would invite a second run."""
        view = self._views.awaited(waiting.number, REF)
        if view is None:
            await refusal(_not_known(body))(scope, receive, send)
        else:
            _say(scope, 202, encode(translate.call(view)))

    # -- a stream ------------------------------------------------------------------------------------------------------

    async def _stream(
        self, waiting: Waiting, body: CallBody, caller: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The first thing that happens to the call decides between an ordinary refusal and a stream."""
        first = await waiting.next()
        if isinstance(first, Answer) and first.refused:
            await refusal(first.fault or fault("hub.unavailable"))(scope, receive, send)
        elif first is CLOSING or first is FAILED:
            await refusal(_not_known(body))(scope, receive, send)
        else:
            await start_stream(send)
            item: Item | None = first
            try:
                while await self._tell(item, waiting, body, caller, send):
                    item = await waiting.next(PING_S)
            except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
                self._feed.failed(waiting.number, error)
                await write(send, aside(FAILED))
            await finish_stream(send)

    async def _tell(self, item: Item | None, waiting: Waiting, body: CallBody, caller: Principal, send: Send) -> bool:
        """Tell one thing; whether there may be more."""
        if item is LEFT:
            waiting.tell_left()
            return False
        is_last = item is CLOSING or item is FAILED
        if isinstance(item, Answer):
            is_last = True
            text = event("outcome", encode(translate.outcome(item, body.tool_id, caller.identity)))
        elif isinstance(item, Wait):
            is_last = item.approval_id is not None
            name = "waiting_approval" if is_last else "accepted"
            text = event(name, encode(translate.unfinished(item, body.tool_id, caller.identity)))
        elif isinstance(item, Progress):
            text = event("progress", encode(translate.progress(item)))
        else:
            text = aside(item)
        await write(send, text)
        return not is_last


class HttpCall(Unattended):
    """A call that was taken without a task."""

    __slots__ = ("_answer", "_body", "_caller")

    def __init__(
        self,
        feed: Feed,
        requests: Requests,
        answer: Callable[[Waiting, CallBody, Principal, Scope, Receive, Send], Awaitable[None]],
        body: CallBody,
        caller: Principal,
        scope: Scope,
        serve: Serve,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(feed, requests, scope, serve, ended)
        self._answer = answer
        self._body = body
        self._caller = caller

    def said(self, item: Item) -> bytes | None:
        """A small outcome."""
        if type(item) is not Answer or item.refused or (item.output is not None and len(item.output) > FREE_BYTES):
            return None
        data = encode(translate.outcome(item, self._body.tool_id, self._caller.identity))
        return data if len(data) <= FREE_BYTES else None

    async def attend(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything else."""
        try:
            await self._answer(self, self._body, self._caller, scope, receive, send)
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(self.number, error)
            await refusal(fault("hub.unavailable", retryable=False), 500)(scope, receive, send)


def _wants_stream(scope: Scope) -> bool:
    accepted = [value for name, value in scope["headers"] if name == b"accept"]
    return bool(accepted) and b"text/event-stream" in b",".join(accepted)


def _traced(body: CallBody, scope: Scope) -> CallBody:
    """A call that names no conversation is part of the trace that its request is part of, if it is of one."""
    if body.correlation_id is not None:
        return body
    given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"]
    if len(given) != 1 or read_traceparent(given[0]) is None:
        return body
    return replace(body, correlation_id=given[0])


def _not_known(body: CallBody) -> Fault:
    """The conversation ended before the call had an id: only a key makes a repeat safe."""
    return fault("hub.unavailable", retryable=body.idempotency_key is not None)


def _say(scope: Scope, status: int, data: bytes) -> None:
    scope["extensions"][ANSWER](status, data)

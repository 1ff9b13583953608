"""Calls of MCP clients on their way: asked for, followed while they run, told of questions, ended.

Owns what a client is told between its request and the result. Does not own whether a call may be made or what came of
it (the exchange), nor by what a repeat is known (``awaiting``).

Invariant: no connection waits for a person (decision 11). A call that a person is asked about is answered at once; the
caller makes it again to learn the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from trunkline.edges.exchange import Feed, Timer, Views
from trunkline.edges.framing import json_rpc
from trunkline.edges.framing.json_rpc import INTERNAL_ERROR, INVALID_PARAMS, Id
from trunkline.edges.mcp import messages, translate
from trunkline.edges.mcp.answering import Answering
from trunkline.edges.mcp.awaiting import Awaiting
from trunkline.edges.mcp.catalogue import Listed
from trunkline.edges.mcp.completions import Completions
from trunkline.edges.mcp.messages import BadMessage
from trunkline.edges.mcp.steps import CallTool, Client
from trunkline.edges.mcp.translate import Asked, Outcome, outcome_of
from trunkline.edges.request_scope import Serve, when_closed, when_lost
from trunkline.edges.server_events import PING_S
from trunkline.edges.shares import FREE_BYTES
from trunkline.edges.unattended import Unattended
from trunkline.edges.waiting import CLOSING, FAILED, LEFT, QUIET, REF, Item, Requests, ask
from trunkline.effects import Answer, Progress, Wait
from trunkline.events import CallRequested, CancelRequested
from trunkline.model import NOBODY, Status, fault
from trunkline.shown import CallView

# How often a call that was approved and runs is looked at for the one who made it again: at once, then less and less.
LOOK_AFTER_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5)


class Request(Struct, frozen=True):
    """One request for a call, and how its answer leaves."""

    request_id: Id
    client: Client
    step: CallTool
    tool: Listed
    out: Answering
    scope: Scope
    # The address of the console, as this client reaches it.
    console: str
    # The result for an outcome, if it is not that of a call of a tool.
    shown: Callable[[Outcome], bytes] | None = None

    @property
    def in_session(self) -> tuple[str, Id] | None:
        """By what it can be canceled; None where nothing can be."""
        return (self.client.session_id, self.request_id) if self.client.session_id else None

    def url(self, asked: Asked) -> str:
        """Where a person answers."""
        return f"{self.console}/#/approvals/{asked.approval_id}"

    def outcome_line(self, found: Outcome) -> bytes:
        """The message that tells an outcome."""
        result = self.client.wording.outcome(found, self.tool) if self.shown is None else self.shown(found)
        return json_rpc.result(self.request_id, result)

    async def say_progress(self, effect: Progress, last: float) -> float:
        """Tell a piece of progress; the figure that was told."""
        assert self.step.progress_token is not None
        params = translate.progress_params(effect, self.step.progress_token, last)
        await self.out.tell(json_rpc.notification("notifications/progress", params))
        return float(str(params["progress"]))

    async def refuse(self, code: int, text: str) -> None:
        """Answer with an error."""
        status = messages.HTTP_STATUS.get(code, 200) if self.client.is_modern else 200
        await self.out.say(json_rpc.error(self.request_id, code, text), status)


class McpCall(Unattended):
    """A new call of a client, for as long as it waits."""

    __slots__ = ("_calls", "is_canceled", "request")

    def __init__(
        self, calls: Calls, request: Request, serve: Serve | None = None, ended: Callable[[], None] | None = None
    ) -> None:
        super().__init__(
            calls.feed,
            calls.requests,
            request.scope,
            serve,
            ended,
            # A client of 2026-07-28 cancels by leaving; of one before it this says nothing.
            lost=when_closed if request.client.is_modern else when_lost,
            wants_progress=request.step.progress_token is not None and request.out.takes_stream,
            wants_large=request.tool.has_output_schema,
        )
        self._calls = calls
        self.request = request
        # The client has taken its request back.
        self.is_canceled = False

    def open(self) -> None:
        """Begin, and ask for the call."""
        super().open()
        self._calls.opened(self)
        request = self.request
        step, client = request.step, request.client
        # By position, as for a call over HTTP: by keyword it takes a microsecond more.
        asked = CallRequested(
            self.number, REF, client.principal, request.tool.tool_id, step.arguments, step.key,
            step.timeout_ms, step.correlation_id, None, None, None, None, None, False, NOBODY, step.value,
        )  # fmt: skip
        self._calls.requests.feed_soon(asked)

    def close(self) -> None:
        """It was answered, or its client is gone."""
        self._calls.closed(self)
        super().close()

    def said(self, item: Item) -> bytes | None:
        """A small outcome."""
        if type(item) is not Answer or (item.output is not None and len(item.output) > FREE_BYTES):
            return None
        line = self.line(item)
        return line if len(line) <= FREE_BYTES else None

    def line(self, answer: Answer) -> bytes:
        """The message that tells the outcome."""
        request = self.request
        if answer.status is Status.CANCELED and self.is_canceled:
            return json_rpc.error(request.request_id, messages.REQUEST_CANCELLED, "the request was canceled")
        return request.outcome_line(outcome_of(answer))

    def tell_left(self) -> None:
        """The client is gone; one of 2026-07-28 wants the call stopped by that.

        Not where it gave a key: that is there to get the outcome after a connection was lost, here or elsewhere.
        """
        client = self.request.client
        if client.is_modern and self.request.step.key is None:
            by, reason = client.principal, "the client closed its request"
            self._feed.feed([CancelRequested(self.number, "cancel", by, target=REF, reason=reason)])
        super().tell_left()

    async def attend(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say what is not said in one write."""
        del scope, receive
        self.request.out.attended(send)
        try:
            await self._calls.until_answered(self)
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(self.number, error)
            await self.request.refuse(INTERNAL_ERROR, fault("hub.unavailable").message)


class Calls:
    """Calls of all clients."""

    def __init__(self, feed: Feed, views: Views, requests: Requests, awaiting: Awaiting) -> None:
        self.feed = feed
        self.requests = requests
        self._views = views
        self._awaiting = awaiting
        self.completions = Completions(feed, views)
        # Requests of sessions that wait for an outcome: these can be canceled by their ids.
        self._open: dict[tuple[str, Id], McpCall] = {}
        # When each call that waits wants a sign of life, the first one first. One timer looks after all of them: one
        # for each takes 4 µs of a call, and another turn of the loop.
        self._quiet_until: dict[McpCall, float] = {}
        self._timer: Timer | None = None

    async def run(self, request: Request) -> None:
        """Answer a request for a call."""
        earlier = self._earlier(request)
        if earlier is not None:
            await self._follow(request, earlier)
            return
        if self._is_repeated(request):
            raise BadMessage(json_rpc.INVALID_REQUEST, "a request with this id is being answered")
        with McpCall(self, request) as call:
            await self.until_answered(call)

    def is_new(self, request: Request) -> bool:
        """Whether a request is for a call that was not made before."""
        return self._earlier(request) is None and not self._is_repeated(request)

    def take(self, request: Request, serve: Serve, ended: Callable[[], None]) -> None:
        """Make a new call without a task; ``ended`` is called when it is over."""
        McpCall(self, request, serve, ended).open()

    def stop(self) -> None:
        """Look after nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def cancel(self, client: Client, request_id: Id) -> None:
        """A client wants a call stopped that it asked for in the same session."""
        call = self._open.get((client.session_id, request_id))
        if call is not None:
            call.is_canceled = True
            by, reason = client.principal, "the client canceled its request"
            self.feed.feed([CancelRequested(call.number, "cancel", by, target=REF, reason=reason)])

    # -- a new call ----------------------------------------------------------------------------------------------------

    def _is_repeated(self, request: Request) -> bool:
        return request.in_session is not None and request.in_session in self._open

    def opened(self, call: McpCall) -> None:
        """One more waits."""
        if call.request.in_session is not None:
            self._open[call.request.in_session] = call
        self._quiet(call)

    def closed(self, call: McpCall) -> None:
        """One waits no more."""
        if call.request.in_session is not None:
            del self._open[call.request.in_session]
        self._quiet_until.pop(call, None)

    def _quiet(self, call: McpCall) -> None:
        """Nothing is to be told of this one from here on."""
        self._quiet_until[call] = self.feed.now().mono + PING_S
        if self._timer is None:
            self._timer = self.feed.call_later(PING_S, self._look_after)

    def _look_after(self) -> None:
        """Have those told of that have waited long enough, and look again when it is the next one's turn."""
        self._timer = None
        now = self.feed.now().mono
        for call, until in list(self._quiet_until.items()):
            if until > now:
                self._timer = self.feed.call_later(until - now, self._look_after)
                return
            del self._quiet_until[call]
            call.put(QUIET)

    async def until_answered(self, call: McpCall) -> None:
        """Tell a client what there is to tell of its call, to the end."""
        request = call.request
        last = 0.0
        while True:
            item = await call.next()
            if isinstance(item, Answer):
                await request.out.say(call.line(item))
                return
            if isinstance(item, Progress):
                last = await request.say_progress(item, last)
            elif isinstance(item, Wait):
                if (asked := translate.asked_of(item)) is not None:
                    await self._say_asked(request, asked)
                    return
            elif item is LEFT:
                call.tell_left()
                return
            elif item is CLOSING or item is FAILED:
                await self._say_gone(request, self._views.awaited(call.number, REF))
                return
            elif item is QUIET:
                self._quiet(call)
                await request.out.live()

    # -- a repeat ------------------------------------------------------------------------------------------------------

    def _earlier(self, request: Request) -> str | None:
        """The call that this request is about, if it was made before and waited for a person."""
        step, caller = request.step, request.client.principal.identity
        if step.state is not None:
            view = self._views.call(step.state)
            if view is None or (view.caller, view.tool_id) != (caller, request.tool.tool_id):
                raise BadMessage(INVALID_PARAMS, "requestState: not that of a call of this tool")
            return view.call_id
        return None if step.key is not None else self._awaiting.find(caller, request.tool.tool_id, step.arguments)

    async def _follow(self, request: Request, call_id: str) -> None:
        """Tell how a call stands that was made before: its outcome, if there is one or as soon as there is."""
        if request.step.is_declined:
            by, reason = request.client.principal, "the person in front of the client would not open the address"
            await ask(self.feed, lambda session, ref: CancelRequested(session, ref, by, call_id=call_id, reason=reason))
        looks = 0
        waits = self.requests.waiting()
        with waits as waiting, when_lost(request.scope, waiting.leave):
            while True:
                view = self._views.call(call_id)
                if view is None or view.status.is_outcome:
                    await request.out.say(request.outcome_line(_ended(call_id, view)))
                    caller, tool_id = request.client.principal.identity, request.tool.tool_id
                    await self._awaiting.told(caller, tool_id, request.step.arguments, call_id)
                    return
                if view.status is Status.WAITING_APPROVAL and (asked := translate.asked_of(view)) is not None:
                    await self._say_asked(request, asked)
                    return
                item = await waiting.next(LOOK_AFTER_S[min(looks, len(LOOK_AFTER_S) - 1)])
                looks += 1
                if item is LEFT:
                    return
                if item is not None:
                    await self._say_gone(request, view)
                    return
                if looks % int(PING_S / LOOK_AFTER_S[-1]) == 0:
                    await request.out.live()

    # -- what is said --------------------------------------------------------------------------------------------------

    async def _say_asked(self, request: Request, asked: Asked) -> None:
        client, step = request.client, request.step
        if step.key is None:
            caller, tool_id = client.principal.identity, request.tool.tool_id
            problem = await self._awaiting.add(caller, tool_id, step.arguments, asked.call_id)
            if problem is not None:
                # Not told to make it again: what a repeat would be known by is not on disk.
                await request.refuse(INTERNAL_ERROR, f"{problem.code}: {problem.message}")
                return
        url = request.url(asked)
        if client.opens_urls and client.is_modern:
            line = json_rpc.result(request.request_id, client.wording.input_required(asked, url))
        elif client.opens_urls:
            code, text = messages.URL_ELICITATION_REQUIRED, "a person has to approve this call first"
            line = json_rpc.error(request.request_id, code, text, client.wording.elicitations(asked, url))
            if client.session_id:
                self.completions.asked(client.principal.identity, client.session_id, asked.approval_id)
        elif request.shown is None:
            line = json_rpc.result(request.request_id, client.wording.told_to_wait(asked, url))
        else:
            text = f"a person has to approve this first: `trunkline approve {asked.approval_id}`, or {url}"
            line = json_rpc.error(request.request_id, INTERNAL_ERROR, client.wording.hinted(text))
        await request.out.say(line)

    async def _say_gone(self, request: Request, view: CallView | None) -> None:
        """The exchange stops, or this conversation failed: the call goes on if it is on record."""
        if view is None:
            why = fault("hub.unavailable", retryable=request.step.key is not None)
            await request.refuse(INTERNAL_ERROR, f"{why.code}: {why.message}")
            return
        text = f"the exchange is stopping; the call {view.call_id} is on record and goes on"
        await request.refuse(INTERNAL_ERROR, text)


def _ended(call_id: str, view: CallView | None) -> Outcome:
    if view is None:
        return Outcome(call_id, Status.FAILED, fault=fault("not_found", "the call is not on record any more"))
    return outcome_of(view)

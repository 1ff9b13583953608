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
from starlette.types import Scope

from trunkline.edges.exchange import Feed, Timer, Views
from trunkline.edges.framing import json_rpc
from trunkline.edges.framing.json_rpc import INTERNAL_ERROR, INVALID_PARAMS, Id
from trunkline.edges.mcp import messages, translate
from trunkline.edges.mcp.answering import Answering
from trunkline.edges.mcp.awaiting import Awaiting
from trunkline.edges.mcp.catalogue import Listed
from trunkline.edges.mcp.completions import Completions
from trunkline.edges.mcp.messages import BadMessage
from trunkline.edges.mcp.session import CallTool, Client
from trunkline.edges.mcp.translate import Asked, Outcome, outcome_of
from trunkline.edges.request_scope import when_closed, when_lost
from trunkline.edges.server_events import PING_S
from trunkline.edges.waiting import CLOSING, FAILED, LEFT, REF, Requests, Waiting, ask
from trunkline.effects import Answer, Progress, Wait
from trunkline.events import CallRequested, CancelRequested
from trunkline.model import NOBODY, CallView, Status, fault

# How often a call that was approved and runs is looked at for the one who made it again: at once, then less and less.
LOOK_AFTER_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5)

# Nothing was to be told for a while.
QUIET: Final = b"quiet"


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

    def url(self, asked: Asked) -> str:
        """Where a person answers."""
        return f"{self.console}/#/approvals/{asked.approval_id}"


class Calls:
    """Calls of all clients."""

    def __init__(self, feed: Feed, views: Views, requests: Requests, awaiting: Awaiting) -> None:
        self._feed = feed
        self._views = views
        self._requests = requests
        self._awaiting = awaiting
        self.completions = Completions(feed, views)
        # Requests of sessions that wait for an outcome: these can be canceled by their ids.
        self._open: dict[tuple[str, Id], Waiting] = {}
        self._canceled: set[tuple[str, Id]] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def run(self, request: Request) -> None:
        """Answer a request for a call."""
        earlier = self._earlier(request)
        if earlier is not None:
            await self._follow(request, earlier)
        else:
            await self._make(request)

    def cancel(self, client: Client, request_id: Id) -> None:
        """A client wants a call stopped that it asked for in the same session."""
        name = (client.session_id, request_id)
        waiting = self._open.get(name)
        if waiting is not None:
            self._canceled.add(name)
            by, reason = client.principal, "the client canceled its request"
            self._feed.feed([CancelRequested(waiting.number, "cancel", by, target=REF, reason=reason)])

    # -- a new call ----------------------------------------------------------------------------------------------------

    async def _make(self, request: Request) -> None:
        step, client = request.step, request.client
        name = (client.session_id, request.request_id)
        if client.session_id and name in self._open:
            raise BadMessage(json_rpc.INVALID_REQUEST, "a request with this id is being answered")
        wants_progress = step.progress_token is not None and request.out.takes_stream
        waits = self._requests.waiting(wants_progress=wants_progress, wants_large=request.tool.has_output_schema)
        # A client of 2026-07-28 cancels by leaving; of one before it this says nothing.
        lost = when_closed if client.is_modern else when_lost
        with waits as waiting, lost(request.scope, waiting.leave):
            if client.session_id:
                self._open[name] = waiting
            try:
                asked = CallRequested(
                    waiting.number, REF, client.principal, request.tool.tool_id, step.arguments, step.key,
                    step.timeout_ms, step.correlation_id, None, None, None, None, None, False, NOBODY, step.value,
                )  # fmt: skip
                self._requests.feed_soon(asked)
                await self._until_answered(request, waiting)
            finally:
                if client.session_id:
                    del self._open[name]
                    self._canceled.discard(name)

    async def _until_answered(self, request: Request, waiting: Waiting) -> None:
        last = 0.0
        timer = self._quiet_timer(waiting)
        try:
            while True:
                item = await waiting.next()
                if isinstance(item, Answer):
                    await self._say_outcome(request, outcome_of(item))
                    return
                if isinstance(item, Progress):
                    last = await self._say_progress(request, item, last)
                elif isinstance(item, Wait):
                    if (asked := translate.asked_of(item)) is not None:
                        await self._say_asked(request, asked)
                        return
                elif item is LEFT:
                    self._left(request, waiting)
                    return
                elif item is CLOSING or item is FAILED:
                    await self._say_gone(request, self._views.awaited(waiting.number, REF))
                    return
                elif item is QUIET:
                    timer = self._quiet_timer(waiting)
                    await request.out.live()
        finally:
            timer.cancel()

    def _quiet_timer(self, waiting: Waiting) -> Timer:
        """A timer beside the wait: a wait that has a bound itself takes 30 µs more."""
        return self._feed.call_later(PING_S, lambda: waiting.put(QUIET))

    async def _say_progress(self, request: Request, effect: Progress, last: float) -> float:
        """Tell a piece of progress; the figure that was told."""
        token = request.step.progress_token
        assert token is not None
        params = translate.progress_params(effect, token, last)
        await request.out.tell(json_rpc.notification("notifications/progress", params))
        return float(str(params["progress"]))

    def _left(self, request: Request, waiting: Waiting) -> None:
        if request.client.is_modern:
            by, reason = request.client.principal, "the client closed its request"
            self._feed.feed([CancelRequested(waiting.number, "cancel", by, target=REF, reason=reason)])
        waiting.tell_left()

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
            await ask(
                self._feed, lambda session, ref: CancelRequested(session, ref, by, call_id=call_id, reason=reason)
            )
        looks = 0
        waits = self._requests.waiting()
        with waits as waiting, when_lost(request.scope, waiting.leave):
            while True:
                view = self._views.call(call_id)
                if view is None or view.status.is_outcome:
                    await self._say_outcome(request, _ended(call_id, view))
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

    async def _say_outcome(self, request: Request, found: Outcome) -> None:
        name = (request.client.session_id, request.request_id)
        if found.status is Status.CANCELED and name in self._canceled:
            await self._refuse(request, messages.REQUEST_CANCELLED, "the request was canceled")
            return
        wording, shown = request.client.wording, request.shown
        result = wording.outcome(found, request.tool) if shown is None else shown(found)
        await request.out.say(json_rpc.result(request.request_id, result))
        caller, tool_id = request.client.principal.identity, request.tool.tool_id
        await self._awaiting.told(caller, tool_id, request.step.arguments, found.call_id)

    async def _say_asked(self, request: Request, asked: Asked) -> None:
        client, step = request.client, request.step
        if step.key is None:
            caller, tool_id = client.principal.identity, request.tool.tool_id
            problem = await self._awaiting.add(caller, tool_id, step.arguments, asked.call_id)
            if problem is not None:
                # Not told to make it again: what would be known by is not on disk.
                await self._refuse(request, INTERNAL_ERROR, f"{problem.code}: {problem.message}")
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
            await self._refuse(request, INTERNAL_ERROR, f"{why.code}: {why.message}")
            return
        text = f"the exchange is stopping; the call {view.call_id} is on record and goes on"
        await self._refuse(request, INTERNAL_ERROR, text)

    async def _refuse(self, request: Request, code: int, text: str) -> None:
        status = messages.HTTP_STATUS.get(code, 200) if request.client.is_modern else 200
        await request.out.say(json_rpc.error(request.request_id, code, text), status)


def _ended(call_id: str, view: CallView | None) -> Outcome:
    if view is None:
        return Outcome(call_id, Status.FAILED, fault=fault("not_found", "the call is not on record any more"))
    return outcome_of(view)

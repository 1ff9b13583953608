"""What can be asked over HTTP: one method for each route, and who may ask.

Owns the routes, their permissions, and the way from a request to an answer. Does not own identities (``gate``), field
names (``messages``) or what is decided (the exchange behind ``edges.exchange``).

Invariant: JSON that is answered has a shape of ``messages``, errors included (a page, figures, a stream and a stored
output have forms of their own); no text of an exception reaches the wire.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Final, get_args

from msgspec import Raw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline.edges.answers import Handler, application, encode, json_answer, principal_of, refusal
from trunkline.edges.bodies import BadRequest, clip, known_parameters, number_of, read_as
from trunkline.edges.client import EXPECTED_ENDPOINT, endpoint_of
from trunkline.edges.doors import Door
from trunkline.edges.edge import KeyTerms, one_of
from trunkline.edges.exchange import AgentAction, Feed, Operator, Views
from trunkline.edges.http import absent, messages, metrics, sign_ins, translate
from trunkline.edges.http.approvals import ApprovalRoutes
from trunkline.edges.http.calls import NewCall
from trunkline.edges.http.gate import Gate
from trunkline.edges.http.page import PAGE, PAGE_HEADERS
from trunkline.edges.http.searching import PARAMETERS, search_of
from trunkline.edges.http.stream import WatchStream
from trunkline.edges.turns import Turns
from trunkline.edges.waiting import Requests, ask, stored
from trunkline.errors import ConfigError, LedgerError
from trunkline.events import (
    CancelRequested,
    DirectiveStated,
    SubscriptionEnded,
    TokenIssued,
    TokenRevoked,
)
from trunkline.model import Principal, fault, identity_of, reserved_prefix
from trunkline.shown import CallSearch, CallView
from trunkline.tomlfile import suggestion

# One page of calls: what a person scrolls through, and what a program may ask for at once.
PAGE_CALLS: Final = 50
MAX_PAGE_CALLS: Final = 500
# One page of tools: as many as one agent may have.
MAX_PAGE_TOOLS: Final = 1000
# One page of subscriptions: as many as one identity may have.
MAX_PAGE_SUBSCRIPTIONS: Final = 1000
# A page of calls with long faults or outputs is shorter: it ends with the slice that reaches this.
MAX_PAGE_BYTES: Final = 1_048_576
# A page is put together in slices of so many calls, or of what is looked through for fewer; after so many slices who
# asks is told where to go on.
SLICE_CALLS: Final = 50
MAX_SLICES: Final = 200
# Lines of an agent's log: a screen or two, and what a program may ask for at once.
LOG_LINES: Final = 200
MAX_LOG_LINES: Final = 5000
# A large body is handed to the connection in pieces, as they are taken: it is in memory once.
PIECE_BYTES: Final = 65_536

ANYBODY: Final = ""
OPERATOR: Final = "operator"

_SHA256: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class Api:
    """The routes, over one exchange."""

    def __init__(
        self,
        feed: Feed,
        views: Views,
        operator: Operator,
        requests: Requests,
        doors: Sequence[Door] = (),
        *,
        is_traced: bool = False,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._is_traced = is_traced
        self._feed = feed
        self._views = views
        self._operator = operator
        self._requests = requests
        self._doors = doors
        self._turns = Turns(stopwatch)

    def app(self) -> ASGIApp:
        """The application, gate included."""
        new_call = NewCall(self._feed, self._views, self._requests, is_traced=self._is_traced)
        return Gate(self._feed, self.routes(), self._doors, {("POST", "/v1/calls"): new_call})

    def table(self) -> dict[str, dict[str, tuple[str, Handler]]]:
        """By path and method: the permission that is needed, which the operator always has, and what answers."""
        return {
            "/": {"GET": (ANYBODY, self.page)},
            "/healthz": {"GET": (ANYBODY, self.healthz)},
            "/metrics": {"GET": ("metrics", self.metrics)},
            "/v1/agents": {"GET": (ANYBODY, self.agents)},
            **{
                f"/v1/agents/{{agent_id}}/{one}": {"POST": (OPERATOR, self._steers(one))}
                for one in get_args(AgentAction)
            },
            **sign_ins.table(self._operator, OPERATOR),
            "/v1/agents/{agent_id}/tools": {"GET": (OPERATOR, self.known_tools)},
            "/v1/agents/{agent_id}/logs": {"GET": (OPERATOR, self.agent_log)},
            "/v1/tools": {"GET": (ANYBODY, self.tools)},
            "/v1/calls": {"GET": (ANYBODY, self.calls), "POST": (ANYBODY, _past_the_router)},
            "/v1/calls/{call_id}": {"GET": (ANYBODY, self.call)},
            "/v1/calls/{call_id}/cancel": {"POST": (ANYBODY, self.cancel)},
            **ApprovalRoutes(self._feed, self._views, self._operator).table("approve", OPERATOR),
            "/v1/directives": {"POST": (OPERATOR, self.new_directive)},
            "/v1/blobs/{sha256}": {"GET": (ANYBODY, self.blob)},
            "/v1/tokens": {"GET": (OPERATOR, self.tokens), "POST": (OPERATOR, self.new_token)},
            "/v1/tokens/{token_id}": {"DELETE": (OPERATOR, self.revoke_token)},
            "/v1/subscriptions": {"GET": (OPERATOR, self.subscriptions)},
            "/v1/subscriptions/{subscription_id}": {"DELETE": (OPERATOR, self.end_subscription)},
            "/v1/policy": {"GET": (OPERATOR, self.policy)},
            "/v1/policy/check": {"POST": (OPERATOR, self.check)},
            "/v1/reload": {"POST": (OPERATOR, self.reload)},
            "/v1/status": {"GET": (OPERATOR, self.status)},
            "/v1/watch": {"GET": (OPERATOR, self.watch)},
            "/v1/receipts": {"GET": (OPERATOR, self.receipts)},
            "/v1/receipts/{receipt_id}": {"GET": (OPERATOR, self.receipt)},
            "/v1/ledger": {"GET": (OPERATOR, self.ledger)},
            "/v1/ledger/verify": {"POST": (OPERATOR, self.verify)},
            "/v1/ledger/{correlation_id:path}/replay.jsonl": {"GET": (OPERATOR, self.replay)},
        }

    def routes(self) -> Starlette:
        """What the router serves."""
        allowed = {
            path: {method: _for(needed, handler) for method, (needed, handler) in methods.items()}
            for path, methods in self.table().items()
        }
        return application(self._feed, allowed)

    # -- what is there -------------------------------------------------------------------------------------------------

    async def page(self, _: Request) -> Response:
        """``GET /``: what this is."""
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)

    async def healthz(self, _: Request) -> Response:
        """``GET /healthz``: we serve, or why not."""
        trouble = self._views.storage_trouble()
        if trouble:
            return json_answer({"status": "unavailable", "reason": trouble}, 503)
        return json_answer({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """``GET /metrics``."""
        return Response(metrics.text(self._operator.status()), media_type=metrics.MEDIA_TYPE)

    async def status(self, _: Request) -> Response:
        """``GET /v1/status``."""
        # Durations are for /metrics: a person who looks at the status is not shown hundreds of counts.
        return json_answer(
            {name: figure for name, figure in self._operator.status().items() if name != "call_durations"}
        )

    async def agents(self, _: Request) -> Response:
        """``GET /v1/agents``."""
        return json_answer({"agents": self._views.agents()})

    async def tools(self, request: Request) -> Response:
        """``GET /v1/tools?limit=&after=``, by name. ``next`` is the next page's ``after``."""
        known_parameters(request, "limit", "after")
        limit = number_of(request, "limit", 1, MAX_PAGE_TOOLS) or MAX_PAGE_TOOLS
        # One more than the page has: whether there is another.
        found = self._views.tools(limit + 1, request.query_params.get("after", ""))
        last = found[limit - 1].tool_id if len(found) > limit else None
        return json_answer({"tools": found[:limit], "next": last})

    async def blob(self, request: Request) -> Response:
        """``GET /v1/blobs/{hash}``: a large output, for those who may see a call that it belongs to."""
        named = _SHA256.fullmatch(request.path_params["sha256"])
        data = None if named is None else self._views.blob(named[1], principal_of(request))
        if data is None:
            return refusal(fault("not_found", "no blob has this hash"))
        headers = {"content-length": str(len(data))}
        return StreamingResponse(_pieces(data), headers=headers, media_type="application/json")

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def calls(self, request: Request) -> Response:
        """``GET /v1/calls?limit=&before=&correlation_id=``, newest first. ``next`` is the next page's ``before``.

        With ``search``, ``tool``, ``caller``, ``status``, ``from`` or ``to`` those that are looked for (``searching``).
        """
        known_parameters(request, "limit", "before", "correlation_id", *PARAMETERS)
        limit = number_of(request, "limit", 1, MAX_PAGE_CALLS) or PAGE_CALLS
        before = number_of(request, "before", 1, 2**53)
        correlation_id = request.query_params.get("correlation_id")
        principal = principal_of(request)
        caller = None if principal.is_operator else principal.identity
        if (search := search_of(request, principal, limit, before)) is not None:
            return await self._searched(search, correlation_id)
        found: list[Raw] = []
        size = 0
        async with self._turns.of(principal.identity) as slices:
            for _ in range(MAX_SLICES):
                with slices.one():
                    wanted = min(limit - len(found), SLICE_CALLS)
                    page, before = self._views.calls(wanted, before, correlation_id, caller)
                    shapes = [encode(translate.call(view)) for view in page]
                found += map(Raw, shapes)
                size += sum(map(len, shapes))
                if before is None or len(found) >= limit or size >= MAX_PAGE_BYTES:
                    break
                await slices.pause()
        return json_answer({"calls": found, "next": before})

    async def _searched(self, wanted: CallSearch, correlation_id: str | None) -> Response:
        if correlation_id is not None:
            raise BadRequest(400, "correlation_id: the calls of one are few; leave out what is looked for in them")
        # A call that the one who searches has just made is among those on disk.
        await stored(self._feed)
        try:
            page, following = await self._views.search(wanted)
        except LedgerError:
            return refusal(fault("hub.unavailable", "the index of calls cannot be searched now"))
        return json_answer({"calls": [translate.call(view) for view in page], "next": following})

    async def call(self, request: Request) -> Response:
        """``GET /v1/calls/{id}``."""
        view = self._visible_call(request)
        return refusal(absent.CALL) if view is None else json_answer(translate.call(view))

    async def cancel(self, request: Request) -> Response:
        """``POST /v1/calls/{id}/cancel``: 202 while the call still runs, 200 when it had ended."""
        body = await read_as(request, messages.CancelBody, messages.MAX_BODY_BYTES, optional=True)
        view = self._visible_call(request)
        if view is None:
            return refusal(absent.CALL)
        if view.status.is_outcome:
            return json_answer(translate.call(view))
        by, reason = principal_of(request), body.reason or ""
        reply = await ask(
            self._feed, lambda session, ref: CancelRequested(session, ref, by, call_id=view.call_id, reason=reason)
        )
        if reply.fault is not None:
            return refusal(reply.fault)
        now = reply.call or self._views.call(view.call_id) or view
        return json_answer(translate.call(now), 200 if now.status.is_outcome else 202)

    def _visible_call(self, request: Request) -> CallView | None:
        """The call of the path. Somebody else's is not there."""
        view = self._views.call(request.path_params["call_id"])
        return view if view is not None and _may_see(principal_of(request), view) else None

    # -- people --------------------------------------------------------------------------------------------------------

    async def new_directive(self, request: Request) -> Response:
        """``POST /v1/directives``: a stated intent, for one call. Only a person states one."""
        body = await read_as(request, messages.DirectiveBody, messages.MAX_BODY_BYTES)
        by = principal_of(request)
        reply = await ask(
            self._feed,
            lambda session, ref: DirectiveStated(session, ref, by, body.tool_id, _given(body.input), body.reason),
        )
        return refusal(reply.fault) if reply.fault is not None else json_answer({"directive_id": reply.id}, 201)

    # -- the operator --------------------------------------------------------------------------------------------------

    async def tokens(self, _: Request) -> Response:
        """``GET /v1/tokens``."""
        return json_answer({"tokens": [translate.token(view) for view in self._operator.tokens()]})

    async def new_token(self, request: Request) -> Response:
        """``POST /v1/tokens``: the secret is made here, shown in this answer, and kept nowhere."""
        body = await read_as(request, messages.TokenBody, messages.MAX_BODY_BYTES)
        by, permissions = principal_of(request), body.permissions or ()
        kind = self._operator.token_kinds().get(body.edge)
        if kind is None:
            known = self._operator.token_kinds()
            raise BadRequest(400, f"edge: expected {one_of(known)}{suggestion(body.edge, known)}")
        terms = KeyTerms(body.agent, body.type or "", body.url or "", body.pin or "")
        if problem := kind.refusal(terms) or _unreachable(terms.url):
            raise BadRequest(400, problem)
        if prefix := reserved_prefix(body.agent):
            raise BadRequest(400, f"agent: ids of {prefix} are the exchange's own")
        if kind.pair is None:
            known_by, public = kind.secret(), None
            shown: Mapping[str, object] = {"token": known_by}
        else:
            pair = kind.pair(terms)
            known_by, public, shown = pair.kid, pair.public, pair.shown
        digest = hashlib.sha256(known_by.encode()).hexdigest()
        reply = await ask(
            self._feed,
            lambda session, ref: TokenIssued(
                session, ref, by, body.edge, body.agent, digest, permissions, terms.type, public
            ),
        )
        if reply.fault is not None or reply.id is None:
            return refusal(reply.fault or fault("hub.unavailable"))
        return json_answer(translate.new_token(reply.id, body, shown), 201)

    async def revoke_token(self, request: Request) -> Response:
        """``DELETE /v1/tokens/{id}``."""
        token_id: str = request.path_params["token_id"]
        by = principal_of(request)
        reply = await ask(self._feed, lambda session, ref: TokenRevoked(session, ref, by, token_id))
        return refusal(reply.fault) if reply.fault is not None else json_answer({"id": token_id, "revoked": True})

    async def subscriptions(self, request: Request) -> Response:
        """``GET /v1/subscriptions?limit=&after=``, oldest first. ``next`` is the next page's ``after``."""
        known_parameters(request, "limit", "after")
        limit = number_of(request, "limit", 1, MAX_PAGE_SUBSCRIPTIONS) or MAX_PAGE_SUBSCRIPTIONS
        # One more than the page has: whether there is another.
        found = self._operator.subscriptions(limit + 1, number_of(request, "after", 0, 2**53) or 0)
        last = found[limit - 1].number if len(found) > limit else None
        return json_answer({"subscriptions": found[:limit], "next": last})

    async def end_subscription(self, request: Request) -> Response:
        """``DELETE /v1/subscriptions/{id}``: whoever has it is told of nothing more, and owed nothing."""
        name: str = request.path_params["subscription_id"]
        by = principal_of(request)
        reply = await ask(self._feed, lambda session, ref: SubscriptionEnded(session, ref, by, name))
        return refusal(reply.fault) if reply.fault is not None else json_answer({"subscription": name, "ended": True})

    async def receipts(self, request: Request) -> Response:
        """``GET /v1/receipts?limit=&before=``, newest first. ``next`` is the next page's ``before``."""
        known_parameters(request, "limit", "before")
        limit = number_of(request, "limit", 1, MAX_PAGE_CALLS) or PAGE_CALLS
        found, following = self._views.receipts(limit, number_of(request, "before", 1, 2**53))
        return json_answer({"receipts": found, "next": following})

    async def receipt(self, request: Request) -> Response:
        """``GET /v1/receipts/{receipt_id}``: one, with every link followed and every hash computed just now."""
        name: str = request.path_params["receipt_id"]
        found = await self._views.receipt(name)
        return refusal(fault("not_found", "no such receipt")) if found is None else json_answer(found)

    async def policy(self, _: Request) -> Response:
        """``GET /v1/policy``: the rules in force, in the order in which they are tried."""
        return json_answer({**translate.plain(self._operator.policy()), "warnings": self._operator.rule_warnings()})

    async def check(self, request: Request) -> Response:
        """``POST /v1/policy/check``: what would happen, by which rule. Nothing is recorded."""
        body = await read_as(request, messages.CheckBody, messages.MAX_BODY_BYTES)
        return json_answer(self._views.check(identity_of(body.caller), body.tool_id, _given(body.input)))

    async def reload(self, _: Request) -> Response:
        """``POST /v1/reload``: the configuration re-read; a bad file changes nothing and says why."""
        try:
            done = self._operator.reload()
        except ConfigError as error:
            # Our own words about the operator's own file, for the operator only: no exception text of anybody else.
            return refusal(fault("config.invalid", clip(f"nothing changed: {error}")))
        return json_answer({"status": "reloaded", **done})

    def _steers(self, action: AgentAction) -> Handler:
        async def steer(request: Request) -> Response:
            """``POST /v1/agents/{agent_id}/start``, ``stop`` and ``restart``."""
            agent_id = request.path_params["agent_id"]
            if not self._operator.steer(agent_id, action):
                return refusal(absent.process(agent_id, self._views.agent(agent_id)))
            return json_answer({"agent_id": agent_id, "status": action}, 202)

        return steer

    async def known_tools(self, request: Request) -> Response:
        """``GET /v1/agents/{agent_id}/tools``: the ids of what an agent offers or has ever offered, here or away."""
        return json_answer({"tools": self._operator.known_tools(request.path_params["agent_id"])})

    async def agent_log(self, request: Request) -> Response:
        """``GET /v1/agents/{agent_id}/logs?lines=``: the last lines that an agent printed, through all its runs."""
        known_parameters(request, "lines")
        count = number_of(request, "lines", 1, MAX_LOG_LINES) or LOG_LINES
        lines = self._operator.agent_log(request.path_params["agent_id"], count)
        if lines is None:
            return refusal(
                fault("not_found", "no log of such an agent; those that are launched here have one once they ran")
            )
        return json_answer({"lines": lines})

    async def watch(self, _: Request) -> ASGIApp:
        """``GET /v1/watch``: the live feed."""
        return WatchStream(self._operator, self._requests)

    async def ledger(self, request: Request) -> Response:
        """``GET /v1/ledger?call_id=`` or ``?correlation_id=``: the masked entries, in order."""
        known_parameters(request, "call_id", "correlation_id")
        call_id, correlation_id = (request.query_params.get(name) for name in ("call_id", "correlation_id"))
        if (call_id is None) is (correlation_id is None):
            raise BadRequest(400, "give one of call_id and correlation_id")
        found = self._views.entries(call_id=call_id, correlation_id=correlation_id)
        return json_answer({"entries": [Raw(entry) for entry in found]})

    async def verify(self, _: Request) -> Response:
        """``POST /v1/ledger/verify``: a walk through the whole record; ``entries_verified`` of the status follows."""
        return json_answer({"begun": self._operator.verify_record()}, 202)

    async def replay(self, request: Request) -> ASGIApp:
        """``GET /v1/ledger/{correlation}/replay.jsonl``: the trajectory, one line after the other as it is read."""
        lines = self._views.trajectory(request.path_params["correlation_id"])
        first = next(lines, None)
        if first is None:
            return refusal(fault("not_found", "no call has this correlation id"))
        return _LineStream(first, lines)


class _LineStream:
    """Lines with their ends, in pieces that are worth sending, as they are read. Needs nothing but a loop that runs."""

    def __init__(self, first: bytes, rest: Iterator[bytes]) -> None:
        self._lines = itertools.chain((first,), rest)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer the request."""
        headers = [(b"content-type", b"application/jsonl")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        piece: list[bytes] = []
        size = 0
        for line in self._lines:
            piece += (line, b"\n")
            size += len(line)
            if size >= PIECE_BYTES:
                async for part in _pieces(b"".join(piece)):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                piece, size = [], 0
        await send({"type": "http.response.body", "body": b"".join(piece)})


def _for(needed: str, handler: Handler) -> Handler:
    """The same for those who may ask."""
    if needed == ANYBODY:
        return handler

    async def guarded(request: Request) -> ASGIApp:
        principal = principal_of(request)
        if not principal.is_operator and (needed == OPERATOR or needed not in principal.permissions):
            holder = "the operator" if needed == OPERATOR else f"the operator or the permission {needed!r}"
            return refusal(fault("not_allowed", f"this needs {holder}"))
        return await handler(request)

    return guarded


async def _past_the_router(_: Request) -> ASGIApp:
    """``POST /v1/calls`` is in this table for its path's other methods to be told; ``Gate`` leads it to ``NewCall``."""
    raise AssertionError


def _may_see(principal: Principal, view: CallView) -> bool:
    return principal.is_operator or view.caller == principal.identity


def _unreachable(url: str) -> str:
    """Why nothing can be sent to this address; empty if it can, or if there is none."""
    try:
        if url:
            endpoint_of(url)
    except ValueError:
        return f"url: {EXPECTED_ENDPOINT}"
    return ""


def _given(body: Raw) -> Raw | None:
    """An optional body, if there is one."""
    return None if bytes(body) == b"null" else body


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]

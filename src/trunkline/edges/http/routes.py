"""What can be asked over HTTP: one method for each route, and who may ask.

Owns the routes, their permissions, and the way from a request to an answer. Does not own identities (``gate``), field
names (``messages``) or what is decided (the exchange behind ``edges.exchange``).

Invariant: everything that is answered is in a shape of ``messages``, errors included; no text of an exception reaches
the wire.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from msgspec import Raw, Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from trunkline.edges.bodies import BadBody, read_body
from trunkline.edges.doors import Door
from trunkline.edges.exchange import Exchange
from trunkline.edges.http import messages, metrics, translate
from trunkline.edges.http.gate import Gate, principal_of
from trunkline.edges.http.page import PAGE, PAGE_HEADERS
from trunkline.edges.http.session import CLOSING, HttpSession, Left, Line
from trunkline.edges.http.stream import CallStream, WatchStream, reading, refusal, refusal_of, refused_by_closing
from trunkline.effects import Answer, Reply, Wait
from trunkline.errors import ConfigError, RemoteProtocolError
from trunkline.events import (
    ApprovalAnswered,
    CancelRequested,
    DirectiveStated,
    Event,
    TokenIssued,
    TokenRevoked,
)
from trunkline.model import RESERVED_PREFIXES, CallView, Principal, Question, fault

# Everything but a call is answered as soon as it is on disk; a disk that takes longer than this is broken.
REPLY_TIMEOUT_S: Final = 30.0
# One page of calls: what a person scrolls through, and what a program may ask for at once.
PAGE_CALLS: Final = 50
MAX_PAGE_CALLS: Final = 500
# Pages looked through for somebody who may only see their own calls; then they are told where to go on.
MAX_PAGES_SCANNED: Final = 20
# A large body is handed to the connection in pieces, as they are taken: it is in memory once.
PIECE_BYTES: Final = 65_536

ANYBODY: Final = ""
OPERATOR: Final = "operator"

_SHA256: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64})")

Handler = Callable[[Request], Awaitable[ASGIApp]]
B = TypeVar("B", bound=Struct)


class Api:
    """The routes, over one exchange and one session."""

    def __init__(self, exchange: Exchange, session: HttpSession, doors: Sequence[Door] = ()) -> None:
        self._exchange = exchange
        self._session = session
        self._doors = doors

    def app(self) -> Starlette:
        """The ASGI application, gate included. Each route names the permission it needs; the operator has all."""
        table: dict[str, dict[str, tuple[str, Handler]]] = {
            "/": {"GET": (ANYBODY, self.page)},
            "/healthz": {"GET": (ANYBODY, self.healthz)},
            "/metrics": {"GET": ("metrics", self.metrics)},
            "/v1/agents": {"GET": (ANYBODY, self.agents)},
            "/v1/tools": {"GET": (ANYBODY, self.tools)},
            "/v1/calls": {"GET": (ANYBODY, self.calls), "POST": (ANYBODY, self.new_call)},
            "/v1/calls/{call_id}": {"GET": (ANYBODY, self.call)},
            "/v1/calls/{call_id}/cancel": {"POST": (ANYBODY, self.cancel)},
            "/v1/approvals": {"GET": ("approve", self.approvals)},
            "/v1/approvals/{approval_id}": {"GET": ("approve", self.approval), "POST": ("approve", self.answer)},
            "/v1/directives": {"POST": (OPERATOR, self.new_directive)},
            "/v1/blobs/{sha256}": {"GET": (ANYBODY, self.blob)},
            "/v1/tokens": {"GET": (OPERATOR, self.tokens), "POST": (OPERATOR, self.new_token)},
            "/v1/tokens/{token_id}": {"DELETE": (OPERATOR, self.revoke_token)},
            "/v1/policy": {"GET": (OPERATOR, self.policy)},
            "/v1/policy/check": {"POST": (OPERATOR, self.check)},
            "/v1/reload": {"POST": (OPERATOR, self.reload)},
            "/v1/status": {"GET": (OPERATOR, self.status)},
            "/v1/watch": {"GET": (OPERATOR, self.watch)},
            "/v1/ledger": {"GET": (OPERATOR, self.ledger)},
            "/v1/ledger/{correlation_id:path}/replay.jsonl": {"GET": (OPERATOR, self.replay)},
        }
        app = Starlette(
            routes=[Route(path, _by_method(methods), methods=list(methods)) for path, methods in table.items()],
            middleware=[Middleware(Gate, exchange=self._exchange, doors=self._doors)],
            exception_handlers={
                HTTPException: _on_http_exception,
                RemoteProtocolError: _on_malformed,
                Exception: _on_defect,
            },
        )
        app.router.redirect_slashes = False
        return app

    # -- what is there -------------------------------------------------------------------------------------------------

    async def page(self, _: Request) -> Response:
        """``GET /``: what this is."""
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)

    async def healthz(self, _: Request) -> Response:
        """``GET /healthz``: we serve."""
        return _json({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """``GET /metrics``."""
        return Response(metrics.text(self._exchange.status()), media_type=metrics.MEDIA_TYPE)

    async def status(self, _: Request) -> Response:
        """``GET /v1/status``."""
        return _json(self._exchange.status())

    async def agents(self, _: Request) -> Response:
        """``GET /v1/agents``."""
        return _json({"agents": self._exchange.agents()})

    async def tools(self, _: Request) -> Response:
        """``GET /v1/tools``."""
        return _json({"tools": self._exchange.tools()})

    async def blob(self, request: Request) -> Response:
        """``GET /v1/blobs/{hash}``: a large output. Its hash is known to those who were given the reference."""
        named = _SHA256.fullmatch(request.path_params["sha256"])
        data = None if named is None else self._exchange.blob(named[1])
        if data is None:
            return refusal(fault("not_found", "no blob has this hash"))
        headers = {"content-length": str(len(data))}
        return StreamingResponse(_pieces(data), headers=headers, media_type="application/json")

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def calls(self, request: Request) -> Response:
        """``GET /v1/calls?limit=&before=&correlation_id=``, newest first. ``next`` is the next page's ``before``."""
        _known_parameters(request, "limit", "before", "correlation_id")
        limit = _number(request, "limit", PAGE_CALLS, MAX_PAGE_CALLS)
        before: int | None = _number(request, "before", 0, 2**53) or None
        correlation_id = request.query_params.get("correlation_id")
        principal = principal_of(request.scope)
        found: list[CallView] = []
        for _ in range(MAX_PAGES_SCANNED):
            page, before = self._exchange.calls(limit - len(found), before, correlation_id)
            found += [view for view in page if _may_see(principal, view)]
            if before is None or len(found) >= limit:
                break
        return _json({"calls": [translate.call(view) for view in found], "next": before})

    async def call(self, request: Request) -> Response:
        """``GET /v1/calls/{id}``."""
        view = self._visible_call(request)
        return refusal(_NO_CALL) if view is None else _json(translate.call(view))

    async def new_call(self, request: Request) -> ASGIApp:
        """``POST /v1/calls``: wait for the outcome, stream what happens, or be told the call's id only."""
        body = await _read(request, messages.CallBody)
        caller = principal_of(request.scope)
        if "text/event-stream" in request.headers.get("accept", ""):
            return CallStream(self._exchange, self._session, body, caller)
        async with reading(self._session, request.receive) as line:
            self._exchange.feed([translate.call_requested(body, self._session.number, line.ref, caller)])
            return await self._answer_call(line, body, caller)

    async def _answer_call(self, line: Line, body: messages.CallBody, caller: Principal) -> Response:
        known: Wait | None = None
        while True:
            item = await line.next()
            if isinstance(item, Answer):
                if item.refused:
                    return refusal_of(item)
                return _json(translate.outcome(item, body.tool_id, caller.identity))
            if isinstance(item, Left):
                self._session.caller_left(line)
                return Response()  # nobody reads it
            if isinstance(item, Wait):
                known = item
            # A question holds no connection. At closing, a call that is on record goes on after the restart: an error
            # would invite a second run.
            if known is not None and (known.approval_id is not None or body.wait is False or item is CLOSING):
                return _json(translate.unfinished(known, body.tool_id, caller.identity), 202)
            if item is CLOSING:
                return refused_by_closing(body)

    async def cancel(self, request: Request) -> Response:
        """``POST /v1/calls/{id}/cancel``: 202 while the call still runs, 200 when it had ended."""
        body = await _read(request, messages.CancelBody, optional=True)
        view = self._visible_call(request)
        if view is None:
            return refusal(_NO_CALL)
        if view.status.is_outcome:
            return _json(translate.call(view))
        by, reason = principal_of(request.scope), body.reason or ""
        reply = await self._ask(
            lambda session, ref: CancelRequested(session, ref, by, call_id=view.call_id, reason=reason)
        )
        if reply.fault is not None:
            return refusal(reply.fault)
        now = reply.call or self._exchange.call(view.call_id) or view
        return _json(translate.call(now), 200 if now.status.is_outcome else 202)

    def _visible_call(self, request: Request) -> CallView | None:
        """The call of the path. Somebody else's is not there."""
        view = self._exchange.call(request.path_params["call_id"])
        return view if view is not None and _may_see(principal_of(request.scope), view) else None

    # -- people --------------------------------------------------------------------------------------------------------

    async def approvals(self, _: Request) -> Response:
        """``GET /v1/approvals``: the open questions, with everything their answer would be about."""
        return _json({"approvals": self._exchange.questions()})

    async def approval(self, request: Request) -> Response:
        """``GET /v1/approvals/{id}``."""
        question = self._question(request.path_params["approval_id"])
        return refusal(_NO_QUESTION) if question is None else _json(question)

    async def answer(self, request: Request) -> Response:
        """``POST /v1/approvals/{id}``."""
        body = await _read(request, messages.AnswerBody)
        approval_id: str = request.path_params["approval_id"]
        question = self._question(approval_id)
        if question is None:
            return refusal(_NO_QUESTION)
        by, approved, reason = principal_of(request.scope), body.decision == "approved", body.reason or ""
        reply = await self._ask(lambda session, ref: ApprovalAnswered(session, ref, by, approval_id, approved, reason))
        if reply.fault is not None:
            return refusal(reply.fault)
        shape = {"approval_id": approval_id, "decision": body.decision, "subject": question.subject}
        if question.call_id is not None:
            shape["call_id"] = question.call_id
        return _json(shape)

    def _question(self, approval_id: str) -> Question | None:
        return next((item for item in self._exchange.questions() if item.approval_id == approval_id), None)

    async def new_directive(self, request: Request) -> Response:
        """``POST /v1/directives``: a stated intent, for one call. Only a person states one."""
        body = await _read(request, messages.DirectiveBody)
        by = principal_of(request.scope)
        reply = await self._ask(
            lambda session, ref: DirectiveStated(session, ref, by, body.tool_id, _given(body.input), body.reason)
        )
        return refusal(reply.fault) if reply.fault is not None else _json({"directive_id": reply.id}, 201)

    # -- the operator --------------------------------------------------------------------------------------------------

    async def tokens(self, _: Request) -> Response:
        """``GET /v1/tokens``."""
        return _json({"tokens": [translate.token(view) for view in self._exchange.tokens()]})

    async def new_token(self, request: Request) -> Response:
        """``POST /v1/tokens``: the secret is made here, shown in this answer, and kept nowhere."""
        body = await _read(request, messages.TokenBody)
        by, permissions, kind = principal_of(request.scope), body.permissions or (), body.type or ""
        if bool(kind) is not (body.edge == "chiffon"):
            raise RemoteProtocolError("message.malformed", "type: agents of the edge chiffon have one, others do not")
        if kind and body.agent.startswith(RESERVED_PREFIXES):
            prefix = body.agent.partition(".")[0]
            raise RemoteProtocolError("message.malformed", f"agent: ids of {prefix}. are the exchange's own")
        # Chiffon wants 32 characters.
        secret = secrets.token_hex(16) if kind else f"tlk_{secrets.token_urlsafe(32)}"
        digest = hashlib.sha256(secret.encode()).hexdigest()
        reply = await self._ask(
            lambda session, ref: TokenIssued(session, ref, by, body.edge, body.agent, digest, permissions, kind)
        )
        if reply.fault is not None or reply.id is None:
            return refusal(reply.fault or fault("hub.unavailable"))
        return _json(messages.NewTokenShape(reply.id, body.edge, body.agent, secret, permissions, kind), 201)

    async def revoke_token(self, request: Request) -> Response:
        """``DELETE /v1/tokens/{id}``."""
        token_id: str = request.path_params["token_id"]
        by = principal_of(request.scope)
        reply = await self._ask(lambda session, ref: TokenRevoked(session, ref, by, token_id))
        return refusal(reply.fault) if reply.fault is not None else _json({"id": token_id, "revoked": True})

    async def policy(self, _: Request) -> Response:
        """``GET /v1/policy``: the rules in force, in the order in which they are tried."""
        return _json(self._exchange.policy())

    async def check(self, request: Request) -> Response:
        """``POST /v1/policy/check``: what would happen, by which rule. Nothing is recorded."""
        body = await _read(request, messages.CheckBody)
        return _json(self._exchange.check(translate.identity(body.caller), body.tool_id, _given(body.input)))

    async def reload(self, _: Request) -> Response:
        """``POST /v1/reload``: the configuration re-read; a bad file changes nothing and says why."""
        try:
            self._exchange.reload()
        except ConfigError as error:
            # Our own words about the operator's own file, for the operator only: no exception text of anybody else.
            return refusal(fault("config.invalid", messages.clip(f"nothing changed: {error}")))
        return _json({"status": "reloaded"})

    async def watch(self, _: Request) -> ASGIApp:
        """``GET /v1/watch``: the live feed."""
        return WatchStream(self._exchange, self._session)

    async def ledger(self, request: Request) -> Response:
        """``GET /v1/ledger?call_id=`` or ``?correlation_id=``: the masked entries, in order."""
        _known_parameters(request, "call_id", "correlation_id")
        call_id, correlation_id = (request.query_params.get(name) for name in ("call_id", "correlation_id"))
        if (call_id is None) is (correlation_id is None):
            raise RemoteProtocolError("message.malformed", "give one of call_id and correlation_id")
        found = self._exchange.entries(call_id=call_id, correlation_id=correlation_id)
        return _json({"entries": [Raw(entry) for entry in found]})

    async def replay(self, request: Request) -> Response:
        """``GET /v1/ledger/{correlation}/replay.jsonl``: the trajectory."""
        lines = self._exchange.entries(correlation_id=request.path_params["correlation_id"])
        if not lines:
            return refusal(fault("not_found", "no call has this correlation id"))
        return Response(b"".join(line + b"\n" for line in lines), media_type="application/jsonl")

    async def _ask(self, event: Callable[[int, str], Event]) -> Reply:
        """Tell the exchange something that is not a call, and wait for its reply."""
        with self._session.line() as line:
            self._exchange.feed([event(self._session.number, line.ref)])
            item = await line.next(REPLY_TIMEOUT_S)
        return item if isinstance(item, Reply) else Reply(0, 0, line.ref, fault=fault("hub.unavailable"))


_NO_CALL: Final = fault("not_found", "no such call, or not one of yours")
_NO_QUESTION: Final = fault("not_found", "no such open question: it was answered, withdrawn, or has expired")


def _by_method(methods: dict[str, tuple[str, Handler]]) -> Handler:
    """One endpoint for a path: who may use the method, then the method."""

    async def endpoint(request: Request) -> ASGIApp:
        needed, handler = methods["GET" if request.method == "HEAD" else request.method]
        if needed != ANYBODY:
            principal = principal_of(request.scope)
            if not principal.is_operator and (needed == OPERATOR or needed not in principal.permissions):
                holder = "the operator" if needed == OPERATOR else f"the operator or the permission {needed!r}"
                return refusal(fault("not_allowed", f"this needs {holder}"))
        return await handler(request)

    return endpoint


def _may_see(principal: Principal, view: CallView) -> bool:
    return principal.is_operator or view.caller == principal.identity


def _given(body: Raw) -> Raw | None:
    """An optional body, if there is one."""
    return None if bytes(body) == b"null" else body


def _json(shape: object, status: int = 200) -> Response:
    return Response(translate.encode(shape), status, media_type="application/json")


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def _known_parameters(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            text = f"unknown parameter {messages.clip(name)!r}; known are {', '.join(known)}"
            raise RemoteProtocolError("message.malformed", text)


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    # isdecimal accepts digits of every script; int of a long text is slow.
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and 1 <= int(text) <= most):
        raise RemoteProtocolError("message.malformed", f"{name}: expected a number from 1 to {most}")
    return int(text)


async def _read(request: Request, kind: type[B], *, optional: bool = False) -> B:
    """The request's body."""
    try:
        data = await read_body(request, messages.MAX_BODY_BYTES)
    except BadBody as refused:
        raise HTTPException(refused.status, refused.text) from None
    return kind() if optional and not data else messages.decode(kind, data)


async def _on_http_exception(_: Request, error: Exception) -> Response:
    """What the router and ``_read`` refuse."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return refusal(fault("not_found", "no such route"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        answer = refusal(fault("message.malformed", f"this route takes {allowed}"), 405)
        answer.headers["allow"] = allowed
        return answer
    return refusal(fault("message.malformed", error.detail), error.status_code)


async def _on_malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, RemoteProtocolError)
    return refusal(fault(error.code, error.message))


async def _on_defect(_: Request, __: Exception) -> Response:
    """A defect of ours. The listener's log has the stack; the wire has the table's words."""
    return refusal(fault("hub.unavailable", retryable=False), 500)

"""What can be asked of spaces over HTTP and WebSocket: one function for each route, and who may ask.

Owns the routes under ``/v1/spaces`` and ``/v1/runs``, behind the HTTP listener's gate: who asks is in
``scope["principal"]``. Runs are answered in events messages, faults in a message included; everything else in JSON of
our own, with errors as on the HTTP edge.

Invariant: a run belongs to nobody's connection. Whoever leaves can come back for its events.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive
from starlette.websockets import WebSocket, WebSocketDisconnect

from trunkline import strictjson
from trunkline.edges.bodies import BadRequest, read_body
from trunkline.edges.doors import Door
from trunkline.edges.exchange import Exchange
from trunkline.edges.spaces import translate
from trunkline.edges.spaces.messages import MAX_MESSAGE_BYTES, Result, read_operations_message
from trunkline.edges.spaces.process import Run
from trunkline.edges.spaces.provider import SpaceAgent
from trunkline.edges.spaces.serve import Spaces
from trunkline.errors import ConfigError
from trunkline.model import FAULTS, Fault, Principal, fault, stamp

# Two for each operation, and one more for a run that could not go on; a question may be asked anew when rules change.
MAX_EVENTS: Final = 100_000
# The socket's word for a token that is no longer valid.
POLICY_VIOLATION: Final = 1008
# How long a look at a run that goes on may wait for its end, at most.
MAX_WAIT_S: Final = 600
# A space's name is a folder's name and part of an agent's id; lower case, so that no two differ by case only.
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
NAME_IN_WORDS: Final = "up to 63 of a-z, 0-9, - and _, and begins with a letter or digit"

PREFIXES: Final = ("/v1/spaces", "/v1/runs")
T = TypeVar("T", bound=Struct)


class NewSpace(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/spaces``. ``policy`` replaces single values of the preset: ``{"network": {"allowed": true}}``."""

    name: str
    preset: str = "standard"
    policy: dict[str, dict[str, Any]] = {}


class Approval(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The answer to what a run asked."""

    operation_id: str
    decision: Literal["approved", "denied"]
    reason: Annotated[str, Meta(max_length=2000)] | None = None


class Resume(Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/runs/{id}/resume``."""

    approval: Approval


class Refused(Exception):
    """A request that is answered with a fault."""

    def __init__(self, found: Fault, status: int = 0) -> None:
        super().__init__(found.code)
        self.fault = found
        self.status = status or FAULTS[found.code].http


def door(exchange: Exchange, spaces: Spaces) -> Door:
    """The way in, for the HTTP listener."""
    return Door(PREFIXES, Api(exchange, spaces).app())


def principal_of(connection: HTTPConnection) -> Principal:
    """Who asks; the gate put it there."""
    principal = connection.scope["principal"]
    assert isinstance(principal, Principal)
    return principal


class Api:
    """The routes, over one exchange and its spaces."""

    def __init__(self, exchange: Exchange, spaces: Spaces) -> None:
        self._exchange = exchange
        self._spaces = spaces

    def app(self) -> Starlette:
        """The ASGI application."""
        table: dict[str, dict[str, Callable[[Request], Awaitable[Response]]]] = {
            "/v1/spaces": {"GET": self.list, "POST": self.create},
            "/v1/spaces/{space}": {"GET": self.show, "DELETE": self.remove},
            "/v1/spaces/{space}/runs": {"POST": self.run},
            "/v1/spaces/{space}/check": {"POST": self.check},
            "/v1/runs/{run_id}": {"GET": self.look},
            "/v1/runs/{run_id}/resume": {"POST": self.resume},
        }
        routes: list[BaseRoute] = [
            Route(path, _by_method(methods), methods=list(methods)) for path, methods in table.items()
        ]
        app = Starlette(
            routes=[*routes, WebSocketRoute("/v1/spaces/{space}/ws", self.socket)],
            exception_handlers={Refused: _on_refused, HTTPException: _on_http_exception, Exception: _on_defect},
        )
        app.router.redirect_slashes = False
        return app

    # -- spaces --------------------------------------------------------------------------------------------------------

    async def list(self, request: Request) -> Response:
        """``GET /v1/spaces``."""
        by = principal_of(request)
        found = [self._shape(self._spaces.agents[name], by) for name in sorted(self._spaces.agents)]
        return _json({"spaces": found})

    async def show(self, request: Request) -> Response:
        """``GET /v1/spaces/{space}``: with the policy in force."""
        agent = self._agent(request)
        return _json({**self._shape(agent, principal_of(request)), "policy": agent.space.policy})

    async def create(self, request: Request) -> Response:
        """``POST /v1/spaces``: only the operator."""
        _only_operator(request)
        body = _decode(NewSpace, await _body(request))
        if not NAME.fullmatch(body.name):
            raise Refused(fault("message.malformed", f"name: a space's name is {NAME_IN_WORDS}"))
        if body.name in self._spaces.agents:
            raise Refused(fault("state.conflict", f"there is a space {body.name} already"))
        try:
            await self._spaces.create(body.name, body.preset, body.policy)
        except ConfigError as error:
            raise Refused(fault("message.malformed", str(error))) from None
        return _json(self._shape(self._spaces.agents[body.name], principal_of(request)), 201)

    async def remove(self, request: Request) -> Response:
        """``DELETE /v1/spaces/{space}``: with its files; only the operator."""
        _only_operator(request)
        name = self._agent(request).space.name
        problem = self._spaces.refusal_to_remove(name)
        if problem is not None:
            raise Refused(problem)
        await self._spaces.remove(name)
        return _json({"name": name, "removed": True})

    def _shape(self, agent: SpaceAgent, by: Principal) -> dict[str, Any]:
        space = agent.space
        runs = [run for run in self._spaces.runs.open.values() if run.space == space.name]
        shape: dict[str, Any] = {
            "name": space.name,
            "preset": space.preset,
            "agent_id": agent.agent_id,
            "shell": agent.has_shell,
            "network": space.policy.network.allowed,
            "open_runs": len(runs),
            "awaiting_approval": sum(run.state == "paused" for run in runs),
        }
        if by.is_operator:
            shape["folder"] = str(space.workspace.root)
        if not agent.has_shell:
            shape["note"] = self._spaces.no_shell
        return shape

    def _agent(self, connection: HTTPConnection) -> SpaceAgent:
        agent = self._spaces.agents.get(connection.path_params["space"])
        if agent is None:
            raise Refused(fault("not_found", "there is no such space; `trunkline space list` shows them"))
        return agent

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def run(self, request: Request) -> Response:
        """``POST /v1/spaces/{space}/runs?wait=S``: an operations message in, an events message out."""
        space = self._agent(request).space.name
        wait_s = _seconds(request)
        read = await self._message(request)
        if isinstance(read, Response):
            return read
        taken = self._take_on(space, principal_of(request), read)
        if not isinstance(taken, Run):
            category, message = taken
            return _json(message, 403 if category == "policy" else 503)
        await self._follow(taken, request.receive, wait_s)
        return self._told(taken, 0)

    async def _message(self, request: Request) -> dict[str, Any] | Response:
        """The request's operations message, or the answer to one that cannot be taken."""
        try:
            result = read_operations_message(await _body(request))
        except Refused as refused:
            at = self._now()
            event = translate.error_event("validation", refused.fault.message, at, {"code": refused.fault.code})
            return _json(translate.events_message(self._spaces.new_run_id(), "error", [event]), refused.status)
        if not result["success"]:
            return _json(self._invalid(result), 400)
        data: dict[str, Any] = result["data"]
        return data

    def _invalid(self, result: Result) -> dict[str, Any]:
        events = translate.invalid(result["error"], self._now())
        return translate.events_message(self._spaces.new_run_id(), "error", events)

    def _take_on(self, space: str, by: Principal, message: dict[str, Any]) -> Run | tuple[str, dict[str, Any]]:
        problem = self._spaces.refusal(space, by.identity, message)
        if problem is None:
            return self._spaces.submit(space, by.identity, message)
        event = translate.error_event(*problem, self._now())
        return problem[0], translate.events_message(self._spaces.new_run_id(), "error", [event])

    async def _follow(self, run: Run, receive: Receive, wait_s: float | None) -> None:
        """Until the run ended, asks a person, or goes on after the next start; or its reader is gone."""
        leaving = asyncio.ensure_future(_gone(receive))
        deadline = None if wait_s is None else asyncio.get_running_loop().time() + wait_s
        try:
            while run.is_open and not self._spaces.closing and not leaving.done():
                news = asyncio.ensure_future(self._spaces.news(run).wait())
                left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
                done, _ = await asyncio.wait({leaving, news}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                if not done:
                    return
        finally:
            leaving.cancel()

    def _told(self, run: Run, first: int) -> Response:
        more = run.state not in {"paused", "done"}
        status = "completed" if more else run.shown_status
        message = translate.events_message(run.run_id, status, run.events[first:], more=more)
        return _json(message, 202 if more else 200)

    async def look(self, request: Request) -> Response:
        """``GET /v1/runs/{id}?wait=S&after=N``: the events so far. Somebody else's run is not there.

        Whoever has seen ``after`` events, among them a question, waits for what comes of its answer.
        """
        run = self._run(request, "")
        after = _number(request, "after", MAX_EVENTS)
        wait_s = _seconds(request)
        if after is None:
            await self._follow(run, request.receive, wait_s or 0.0)
            return self._told(run, 0)
        deadline = asyncio.get_running_loop().time() + (wait_s or 0.0)
        while (left := deadline - asyncio.get_running_loop().time()) > 0 and not self._spaces.closing:
            if run.state == "paused" and len(run.events) <= after:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._spaces.news(run).wait()
            else:
                await self._follow(run, request.receive, left)
                break
        return self._told(run, after)

    def _run(self, request: Request, needed: str) -> Run:
        """The run of the path, for whoever started it, the operator, and who holds the permission ``needed``."""
        run, by = self._spaces.find(request.path_params["run_id"]), principal_of(request)
        if run is None or not (by.is_operator or run.caller == by.identity or (needed and needed in by.permissions)):
            raise Refused(fault("not_found", "there is no such run"))
        return run

    async def resume(self, request: Request) -> Response:
        """``POST /v1/runs/{id}/resume``: a person's answer; what happens from there on, under the same run."""
        run = self._run(request, "approve")
        given = _decode(Resume, await _body(request)).approval
        wait_s = _seconds(request)
        asked = run.asked
        if run.state != "paused" or asked is None:
            raise Refused(fault("state.conflict", "this run does not wait for an approval"))
        if asked.operation_id != given.operation_id:
            text = f"this run waits for an approval of the operation {asked.operation_id!r}"
            raise Refused(fault("not_found", text))
        first = len(run.events)
        by, approved = principal_of(request), given.decision == "approved"
        problem = await self._spaces.answer(asked.approval_id, by, approved=approved, reason=given.reason or "")
        if problem is not None:
            raise Refused(problem)
        while run.asked is asked and not self._spaces.closing:
            await self._spaces.news(run).wait()
        await self._follow(run, request.receive, wait_s)
        return self._told(run, first)

    async def check(self, request: Request) -> Response:
        """``POST /v1/spaces/{space}/check``: what would be decided of each operation. Nothing is done or recorded."""
        space = self._agent(request).space.name
        read = await self._message(request)
        if isinstance(read, Response):
            return read
        caller, judged = principal_of(request).identity, []
        for index, operation in enumerate(read["operations"]):
            # The longest command takes a quarter of a second to judge: others have their turn in between.
            await asyncio.sleep(0)
            if space not in self._spaces.agents:
                raise Refused(fault("not_found", "the space was removed meanwhile"))
            judged.append(self._judged(space, caller, index, operation))
        return _json({"operations": judged})

    def _judged(self, space: str, caller: str, index: int, operation: dict[str, Any]) -> dict[str, Any]:
        tool_id, body = translate.tool_id(space, operation["type"]), translate.tool_input(operation)
        verdict = self._exchange.check(caller, tool_id, body)
        shape: dict[str, Any] = {
            "index": index,
            "operationId": translate.operation_id(operation, index),
            "type": operation["type"],
            "decision": verdict.decision,
            "policy": verdict.rule,
        }
        own = self._spaces.agents[space].judge(tool_id, body)
        if own is not None and own.rule == verdict.rule and own.suggestion is not None:
            shape["suggestion"] = own.suggestion
        reason = verdict.reason
        if operation["type"] == "shell" and self._spaces.no_shell:
            reason = self._spaces.no_shell
        if reason:
            shape["reason"] = reason
        return shape

    # -- WebSocket -----------------------------------------------------------------------------------------------------

    async def socket(self, websocket: WebSocket) -> None:
        """``/v1/spaces/{space}/ws``: operations messages in, an events message out for each event as it happens."""
        try:
            space = self._agent(websocket).space.name
        except Refused as refused:
            await websocket.send_denial_response(_answer_of(refused))
            return
        await websocket.accept()
        by = principal_of(websocket)
        digest = _token_sha256(websocket)

        def is_known() -> bool:
            """A socket stays open for days; the token it came with may be revoked meanwhile."""
            return self._exchange.identify("http", digest) is not None

        # One message at a time is written; several runs may be followed.
        turn = asyncio.Lock()
        following: set[asyncio.Task[None]] = set()
        try:
            async for data in _messages(websocket):
                if not is_known():
                    await websocket.close(POLICY_VIOLATION)
                    return
                result = read_operations_message(data)
                taken = self._take_on(space, by, result["data"]) if result["success"] else ("", self._invalid(result))
                if isinstance(taken, Run):
                    task = asyncio.ensure_future(self._push(websocket, turn, taken, is_known))
                    following.add(task)
                    task.add_done_callback(following.discard)
                else:
                    await _say(websocket, turn, taken[1])
        finally:
            for task in following:
                task.cancel()

    async def _push(self, websocket: WebSocket, turn: asyncio.Lock, run: Run, is_known: Callable[[], bool]) -> None:
        """Tell each event of a run as it happens, and then how it stands; after a pause, go on."""
        told = 0
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                if not is_known():
                    await websocket.close(POLICY_VIOLATION)
                    return
                state, events = run.state, run.events
                while told < len(events):
                    told += 1
                    # The question itself is the end of what is told for now.
                    paused = state == "paused" and told == len(events)
                    status = "awaiting_approval" if paused else "completed"
                    message = translate.events_message(run.run_id, status, events[told - 1 : told], more=not paused)
                    await _say(websocket, turn, message)
                if state == "done":
                    await _say(websocket, turn, translate.events_message(run.run_id, run.status, []))
                    return
                if state == "left" or self._spaces.closing:
                    return
                if run.state == state and len(run.events) == told:
                    await self._spaces.news(run).wait()

    def _now(self) -> str:
        return stamp(self._exchange.now().ms)


# --- requests ---------------------------------------------------------------------------------------------------------


def _by_method(
    methods: dict[str, Callable[[Request], Awaitable[Response]]],
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise HTTPException(405)
        return await handler(request)

    return endpoint


def _only_operator(request: Request) -> None:
    if not principal_of(request).is_operator:
        raise Refused(fault("not_allowed", "only the operator makes and removes spaces"))


async def _body(request: Request) -> bytes:
    try:
        return await read_body(request.scope, request.receive, MAX_MESSAGE_BYTES)
    except BadRequest as refused:
        raise Refused(fault("message.malformed", refused.text), refused.status) from None


def _decode(kind: type[T], data: bytes) -> T:
    try:
        strictjson.check(data)
    except strictjson.NotStrictJson as error:
        raise Refused(fault("message.malformed", f"the body is not strict JSON: {error}")) from None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(fault("message.malformed", str(error).replace("`", "")[:300])) from None


def _seconds(request: Request) -> float | None:
    """The ``wait`` of a request: how long it may take before it is answered with what there is."""
    found = _number(request, "wait", MAX_WAIT_S)
    return None if found is None else float(found)


def _number(request: Request, name: str, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 8 and int(text) <= most):
        raise Refused(fault("message.malformed", f"{name}: expected a number up to {most}"))
    return int(text)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _messages(websocket: WebSocket) -> AsyncIterator[bytes]:
    """What the client sends, until it leaves."""
    while (event := await websocket.receive())["type"] == "websocket.receive":
        text, data = event.get("text"), event.get("bytes")
        yield text.encode() if text is not None else bytes(data or b"")


def _token_sha256(connection: HTTPConnection) -> str:
    """The hash of the bearer token that the gate let through."""
    token = connection.headers["authorization"].partition(" ")[2].strip()
    return hashlib.sha256(token.encode("latin-1")).hexdigest()


async def _say(websocket: WebSocket, turn: asyncio.Lock, message: dict[str, Any]) -> None:
    async with turn:
        await websocket.send_text(translate.encode(message).decode())


# --- answers ----------------------------------------------------------------------------------------------------------


def _json(shape: object, status: int = 200) -> Response:
    headers = {"retry-after": "1"} if status in {429, 503} else None
    return Response(translate.encode(shape), status, headers, media_type="application/json")


def _answer_of(refused: Refused) -> Response:
    found = refused.fault
    error = {
        "code": found.code,
        "message": found.message,
        "retryable": found.retryable,
        "details": found.details or {},
    }
    return _json({"error": error}, refused.status if refused.status != 200 else 500)


async def _on_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _answer_of(error)


async def _on_http_exception(_: Request, error: Exception) -> Response:
    """What the router refuses."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        answer = _answer_of(Refused(fault("message.malformed", f"this route takes {allowed}"), 405))
        answer.headers["allow"] = allowed
        return answer
    return _answer_of(Refused(fault("not_found", "no such route")))


async def _on_defect(_: Request, __: Exception) -> Response:
    """A defect of ours. The listener's log has the stack; the wire has the table's words."""
    return _answer_of(Refused(fault("hub.unavailable", retryable=False), 500))

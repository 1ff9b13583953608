"""What can be asked of spaces over HTTP: one method for each route, and who may ask.

Owns the routes under ``/v1/spaces`` and ``/v1/runs``, behind the HTTP listener's gate: who asks is in
``scope["principal"]``. Runs are answered in events messages, faults in a message included; everything else in JSON of
our own, with errors as on the HTTP edge.

Invariant: a run belongs to nobody's connection. Whoever leaves can come back for its events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from trunkline.edges.answers import Handler, Refused, application, json_answer, principal_of
from trunkline.edges.bodies import BadRequest, decode, number_of, read_body
from trunkline.edges.exchange import Feed, Views
from trunkline.edges.request_scope import when_lost
from trunkline.edges.spaces import browsing, translate, undo
from trunkline.edges.spaces.agent import SpaceAgent
from trunkline.edges.spaces.messages import MAX_MESSAGE_BYTES, NewSpace, Resume, Undo
from trunkline.edges.spaces.process import Run
from trunkline.edges.spaces.serve import NEWS, NotTaken, Spaces
from trunkline.edges.spaces.sockets import SpaceSocket
from trunkline.edges.spaces.store import NAME, NAME_IN_WORDS
from trunkline.edges.turns import Slices, Turns
from trunkline.edges.waiting import ask, stored
from trunkline.errors import ConfigError
from trunkline.events import ApprovalAnswered
from trunkline.model import Decision, Principal, fault

# Two for each operation, and one more for a run that could not go on; a question may be asked anew when rules change.
MAX_EVENTS: Final = 100_000
# What judging all operations of one message may take: the longest command takes a quarter of a second.
MAX_JUDGING_S: Final = 5.0
# How long a look at a run that goes on may wait for its end, at most.
MAX_WAIT_S: Final = 600

PREFIXES: Final = ("/v1/spaces", "/v1/runs")


class SpacesApi:
    """The routes, over one exchange and its spaces."""

    def __init__(
        self, feed: Feed, views: Views, spaces: Spaces, stopwatch: Callable[[], float] = time.perf_counter
    ) -> None:
        self._feed = feed
        self._views = views
        self._spaces = spaces
        # Messages are judged one operation at a time, whoever asks: at least half of the time is everybody else's.
        self._judging, self._slices = asyncio.Lock(), Slices(stopwatch)
        # A run's events take up to a tenth of a second to write down.
        self._looking = Turns(stopwatch)

    def app(self) -> Starlette:
        """The ASGI application."""
        table: dict[str, dict[str, Handler]] = {
            "/v1/spaces": {"GET": self.list, "POST": self.create},
            "/v1/spaces/{space}": {"GET": self.show, "DELETE": self.remove},
            "/v1/spaces/{space}/runs": {"POST": self.run},
            "/v1/spaces/{space}/files": {"GET": self.files},
            "/v1/spaces/{space}/snapshots": {"GET": self.snapshots},
            "/v1/spaces/{space}/undo": {"POST": self.undo},
            "/v1/spaces/{space}/check": {"POST": self.check},
            "/v1/runs/{run_id}": {"GET": self.look},
            "/v1/runs/{run_id}/resume": {"POST": self.resume},
            "/v1/runs/{run_id}/cancel": {"POST": self.cancel},
        }
        app = application(self._feed, table, WebSocketRoute("/v1/spaces/{space}/ws", self.socket))
        app.add_exception_handler(NotTaken, _on_not_taken)
        return app

    # -- spaces --------------------------------------------------------------------------------------------------------

    async def list(self, request: Request) -> Response:
        """``GET /v1/spaces``."""
        by = principal_of(request)
        return json_answer({"spaces": [self._shape(agent, by) for _, agent in sorted(self._spaces.agents.items())]})

    async def show(self, request: Request) -> Response:
        """``GET /v1/spaces/{space}``: with the policy in force."""
        agent = self._agent(request)
        return json_answer({**self._shape(agent, principal_of(request)), "policy": agent.space.policy})

    async def create(self, request: Request) -> Response:
        """``POST /v1/spaces``: only the operator."""
        by = _operator(request)
        body = decode(NewSpace, await _body(request))
        if not NAME.fullmatch(body.name):
            raise BadRequest(400, f"name: a space's name is {NAME_IN_WORDS}")
        try:
            agent = await self._spaces.create(body.name, body.preset, body.policy, body.at)
        except ConfigError as error:
            raise BadRequest(400, str(error)) from None
        return json_answer(self._shape(agent, by), 201)

    async def remove(self, request: Request) -> Response:
        """``DELETE /v1/spaces/{space}?force=1``: with its files, and the end of its runs; only the operator."""
        by = _operator(request)
        name = self._agent(request).space.name
        is_forced = number_of(request, "force", 0, 1) == 1
        await self._spaces.remove(name, by if is_forced else None)
        return json_answer({"name": name, "removed": True})

    async def files(self, request: Request) -> Response:
        """``GET /v1/spaces/{space}/files?path=``: what a folder holds, or how a file begins; only the operator."""
        _operator(request)
        return json_answer(await browsing.look(self._agent(request), request.query_params.get("path", "")))

    async def snapshots(self, request: Request) -> Response:
        """``GET /v1/spaces/{space}/snapshots``: what can be brought back; only the operator."""
        _operator(request)
        return json_answer(await undo.snapshots(self._agent(request)))

    async def undo(self, request: Request) -> Response:
        """``POST /v1/spaces/{space}/undo``: bring the space back to before a run; only the operator."""
        by = _operator(request)
        name = self._agent(request).space.name
        body = decode(Undo, await _body(request))
        return json_answer(await self._spaces.undo(name, by.identity, body))

    def _shape(self, agent: SpaceAgent, by: Principal) -> dict[str, Any]:
        space, has_shell = agent.space, agent.sandbox is not None
        runs = [run for run in self._spaces.runs.open.values() if run.space == space.name]
        shape: dict[str, Any] = {
            "name": space.name,
            "preset": space.preset,
            "agent_id": agent.agent_id,
            "shell": has_shell,
            "network": space.policy.network.allowed,
            "open_runs": len(runs),
            "awaiting_approval": sum(run.state == "paused" for run in runs),
        }
        if by.is_operator:
            shape["folder"] = str(space.workspace.root)
            # Made with `at`: it was there before the space, and is there after it.
            shape["on_own_folder"] = not space.workspace.root.is_relative_to(space.folder)
        if not has_shell:
            shape["note"] = self._spaces.reasons.no_shell
        return shape

    def _agent(self, request: Request) -> SpaceAgent:
        return self._spaces.agent(request.path_params["space"])

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def run(self, request: Request) -> Response:
        """``POST /v1/spaces/{space}/runs?wait=S``: an operations message in, an events message out."""
        space = self._agent(request).space.name
        wait_s = number_of(request, "wait", 0, MAX_WAIT_S)
        run = self._spaces.submit(space, principal_of(request).identity, await self._message(request))
        # Whoever is told of a run can come back for it, whatever happens to the exchange.
        await stored(self._feed)
        await self._until(request, run, lambda: not run.is_open, wait_s)
        return _told(run)

    async def _message(self, request: Request) -> dict[str, Any]:
        """The request's operations message."""
        try:
            data = await _body(request)
        except BadRequest as bad:
            raise self._spaces.not_taken(bad.status, "validation", bad.text, {"code": bad.code}) from None
        return self._spaces.read(data)

    async def _until(
        self, request: Request, run: Run, is_over: Callable[[], bool], seconds: float | None = None
    ) -> bool:
        """Wait until it is so; less if the time is over, the reader is gone, or the exchange stops. Whether it is."""
        clock = asyncio.get_running_loop().time
        deadline = None if seconds is None else clock() + seconds
        with self._spaces.following(run) as follower, when_lost(request.scope, follower.leave):
            while not is_over():
                left = None if deadline is None else max(0.0, deadline - clock())
                if await follower.next(left) is not NEWS:
                    return False
        return True

    async def look(self, request: Request) -> Response:
        """``GET /v1/runs/{id}?wait=S&after=N``: the events so far. Somebody else's run is not there.

        Whoever has seen ``after`` events, among them a question, waits for what comes of its answer.
        """
        run = self._run(request, "")
        after = number_of(request, "after", 0, MAX_EVENTS)
        wait_s = number_of(request, "wait", 0, MAX_WAIT_S) or 0

        def is_over() -> bool:
            is_seen = run.state == "paused" and after is not None and len(run.events) <= after
            return not run.is_open and not is_seen

        await self._until(request, run, is_over, wait_s)
        async with self._looking.of(principal_of(request).identity) as slices:
            with slices.one():
                answer = _told(run, after or 0)
            await slices.pause()
        return answer

    def _run(self, request: Request, needed: str) -> Run:
        """The run of the path, for whoever started it, the operator, and who holds the permission ``needed``."""
        run, by = self._spaces.find(request.path_params["run_id"]), principal_of(request)
        if run is None or not (by.is_operator or run.caller == by.identity or (needed and needed in by.permissions)):
            raise Refused(fault("not_found", "there is no such run"))
        return run

    async def resume(self, request: Request) -> Response:
        """``POST /v1/runs/{id}/resume``: a person's answer; what happens from there on, under the same run."""
        run = self._run(request, "approve")
        given = decode(Resume, await _body(request)).approval
        wait_s = number_of(request, "wait", 0, MAX_WAIT_S)
        asked = run.asked
        if run.state != "paused" or asked is None:
            raise Refused(fault("state.conflict", "this run does not wait for an approval"))
        if asked.operation_id != given.operation_id:
            text = f"this run waits for an approval of the operation {asked.operation_id!r}"
            raise Refused(fault("not_found", text))
        first, by = len(run.events), principal_of(request)
        approval_id = self._answered_name(run, asked.approval_id, given.approval_id)
        approved, reason = given.decision == "approved", given.reason or ""
        reply = await ask(
            self._feed, lambda session, ref: ApprovalAnswered(session, ref, by, approval_id, approved, reason)
        )
        if reply.fault is not None:
            raise Refused(reply.fault)
        if await self._until(request, run, lambda: run.asked is not asked):
            await self._until(request, run, lambda: not run.is_open, wait_s)
        return _told(run, first)

    def _answered_name(self, run: Run, asked: str, given: str | None) -> str:
        """The name by which a run's question is answered: as it was given, else the oldest that the run told of.

        Who names none may have read the first event only; the hub refuses that where another reason is shown by now.
        """
        if given is not None and given != asked and given not in run.told:
            raise Refused(fault("not_found", f"this run waits for an approval of {asked}"))
        if given is not None:
            return given
        names = [asked]
        for name in run.told:
            question = self._views.question(name)
            if question is not None and question.approval_id == asked:
                names.append(name)
        return min(names, key=lambda name: (len(name), name))

    async def cancel(self, request: Request) -> Response:
        """``POST /v1/runs/{id}/cancel``: whoever started it, or the operator, ends a run; all its events."""
        run = self._run(request, "")
        self._spaces.end(run, principal_of(request))
        await self._until(request, run, lambda: run.state in {"done", "left"})
        return _told(run)

    async def check(self, request: Request) -> Response:
        """``POST /v1/spaces/{space}/check``: what would be decided of each operation. Nothing is done or recorded."""
        space = self._agent(request).space.name
        message = await self._message(request)
        caller, judged, spent_s, gone = principal_of(request).identity, [], 0.0, asyncio.Event()
        with when_lost(request.scope, gone.set):
            for index, operation in enumerate(message["operations"]):
                async with self._judging:
                    if gone.is_set():
                        break
                    with self._slices.one():
                        judged.append(self._judged(self._spaces.agent(space), caller, index, operation))
                    spent_s += self._slices.took_s
                    await self._slices.pause()
                if spent_s > MAX_JUDGING_S:
                    raise BadRequest(413, f"these take more than {MAX_JUDGING_S:g} s to judge; check fewer at a time")
        return json_answer({"operations": judged})

    def _judged(self, agent: SpaceAgent, caller: str, index: int, operation: dict[str, Any]) -> dict[str, Any]:
        tool_id, body = translate.tool_id(agent.space.name, operation["type"]), translate.tool_input(operation)
        verdict = self._views.check(caller, tool_id, body)
        shape: dict[str, Any] = {
            "index": index,
            "operationId": translate.operation_id(operation, index),
            "type": operation["type"],
            "decision": verdict.decision,
            "policy": verdict.rule,
        }
        # Reading a command takes time; whom the exchange's rules deny the tool itself does not get any.
        if self._views.check(caller, tool_id, None).decision is not Decision.DENY:
            own = agent.judge(tool_id, body)
            if own is not None and own.rule == verdict.rule and own.suggestion is not None:
                shape["suggestion"] = own.suggestion
        reason = verdict.reason
        if operation["type"] == "shell" and self._spaces.reasons.no_shell:
            reason = self._spaces.reasons.no_shell
        if reason:
            shape["reason"] = reason
        return shape

    async def socket(self, websocket: WebSocket) -> None:
        """``/v1/spaces/{space}/ws``."""
        await SpaceSocket(self._feed, self._spaces, websocket).serve()


def _operator(request: Request) -> Principal:
    by = principal_of(request)
    if not by.is_operator:
        raise Refused(
            fault("not_allowed", "only the operator makes and removes spaces, and undoes what was done in them")
        )
    return by


async def _body(request: Request) -> bytes:
    return await read_body(request.scope, request.receive, MAX_MESSAGE_BYTES)


def _told(run: Run, first: int = 0) -> Response:
    """A run as it stands, from an event on."""
    more = run.state not in {"paused", "done"}
    status = "completed" if more else run.shown_status
    return json_answer(
        translate.events_message(run.run_id, status, run.events[first:], more=more), 202 if more else 200
    )


async def _on_not_taken(_: Request, error: Exception) -> Response:
    assert isinstance(error, NotTaken)
    return json_answer(error.message, error.status)

"""``POST /v1/calls``: what is asked for, and the one answer of somebody who waits for it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Self

import pytest
from msgspec import Raw

from tests.inhabited import LARGE_BYTES, MAIL, SLOW, Inhabited, answered, refused
from tests.unit.edges.http.conftest import BOUND_S, Server, wait_until
from tests.unit.edges.http.test_routes import A_CALL, is_error
from trunkline import entries
from trunkline.edges.http import gate, translate
from trunkline.edges.http.calls import HttpCall, NewCall
from trunkline.edges.http.messages import MAX_BODY_BYTES
from trunkline.edges.request_scope import LOST
from trunkline.edges.waiting import Requests
from trunkline.effects import Deliver
from trunkline.events import CallerLeft, CallRequested
from trunkline.model import FAULTS, MAX_INPUT_BYTES, LargeOutput, Status, fault
from trunkline.testing.memory import BOSS, OPERATOR_TOKEN, AttachedAgent

JSON = {"content-type": "application/json"}

# --- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tool_id": 5}, "tool_id: expected str"),
        ({"tool_id": ""}, "tool_id"),
        ({"timeout_ms": "5"}, "timeout_ms: expected int"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": True}, "timeout_ms"),
        ({"timeout_ms": 1.5}, "timeout_ms"),
        ({"timeout_ms": 2**60}, "timeout_ms"),
        ({"wait": "yes"}, "wait: expected bool"),
        ({"idempotency_key": "k" * 257}, "idempotency_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"correlation_id": "a\nb"}, "correlation_id"),
        ({"causation_id": []}, "causation_id"),
        ({"timeoutms": 5}, "unknown field 'timeoutms'; known are tool_id, input, timeout_ms"),
    ],
)
async def test_a_wrong_field_of_a_call_is_named(server: Server, change: dict[str, Any], says: str) -> None:
    answer = await server.ask("POST", "/v1/calls", json={**A_CALL, **change})
    assert says in is_error(answer, 400, "message.malformed")["message"]
    assert not server.exchange.news


@pytest.mark.parametrize("missing", ["tool_id", "input"])
async def test_a_missing_field_of_a_call_is_named(server: Server, missing: str) -> None:
    body = {name: value for name, value in A_CALL.items() if name != missing}
    error = is_error(await server.ask("POST", "/v1/calls", json=body), 400, "message.malformed")
    assert error["message"] == f"missing required field {missing}"


async def test_null_in_an_optional_field_is_the_same_as_absent(server: Server) -> None:
    optional = ("timeout_ms", "idempotency_key", "correlation_id", "causation_id", "wait")
    answer = await server.ask("POST", "/v1/calls", json={**A_CALL, **dict.fromkeys(optional)})
    assert answer.status_code == 200
    [asked] = server.exchange.answering.fed
    assert isinstance(asked, CallRequested)
    assert (asked.key, asked.timeout_ms, asked.correlation_id, asked.causation_id) == (None, None, None, None)


async def test_the_largest_body_passes_and_one_byte_more_does_not(server: Server) -> None:
    head, tail = b'{"tool_id": "com.example.echo/say", "input": {"text": "', b'"}}'
    text = b"x" * (MAX_INPUT_BYTES - len(b'{"text": ""}'))
    body = head + text + tail
    body += b" " * (MAX_BODY_BYTES - len(body))
    assert (await server.ask("POST", "/v1/calls", content=body, headers=JSON)).status_code == 200
    is_error(await server.ask("POST", "/v1/calls", content=body + b" ", headers=JSON), 413, "message.malformed")
    assert len(server.exchange.answering.fed) == 1


async def test_a_chunked_body_is_judged_while_it_is_read(server: Server) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 65_536

    is_error(await server.ask("POST", "/v1/calls", content=endless(), headers=JSON), 413, "message.malformed")
    assert not server.exchange.news


# --- one answer -------------------------------------------------------------------------------------------------------


async def test_a_call_keeps_its_bodies_byte_for_byte_and_its_fields_in_order(server: Server) -> None:
    exchange = server.exchange

    def takes_its_time(agent: AttachedAgent, effect: Deliver) -> None:
        exchange.clock.advance(0.25)
        asyncio.get_running_loop().call_soon(agent.finish, effect.input)

    exchange.echo._deliver = takes_its_time
    body = b'{"tool_id": "com.example.echo/say", "input": {"n": 12345678901234567890, "x" : 1.10}, "timeout_ms": 900, '
    body += b'"correlation_id": "chat:2"}'
    answer = await server.ask("POST", "/v1/calls", content=body, headers=JSON)
    assert answer.status_code == 200
    assert b'"output":{"n": 12345678901234567890, "x" : 1.10}' in answer.content
    assert list(answer.json()) == [
        "call_id", "status", "output", "started_at", "finished_at", "tool_id", "caller", "correlation_id",
    ]  # fmt: skip
    assert answer.json()["started_at"] == "2027-01-15T08:00:00.000Z"
    assert answer.json()["finished_at"] == "2027-01-15T08:00:00.250Z"
    assert answer.json()["correlation_id"] == "chat:2"
    [asked] = exchange.answering.fed
    assert isinstance(asked, CallRequested)
    assert asked.caller.is_operator
    assert asked.timeout_ms == 900


async def test_a_failed_call_is_still_200_and_carries_the_whole_fault(server: Server) -> None:
    problem = fault("tool.failed", "no such city", details={"city": "X"})
    server.exchange.echo._deliver = lambda agent, _: agent.finish(status=Status.FAILED, fault=problem)
    answer = await server.ask("POST", "/v1/calls", json=A_CALL)
    assert answer.status_code == 200
    error = {"code": "tool.failed", "message": "no such city", "retryable": False, "details": {"city": "X"}}
    assert answer.json()["error"] == error
    assert answer.json()["status"] == "failed"


@pytest.mark.parametrize("code", [code for code, row in FAULTS.items() if row.http != 200])
async def test_a_refused_call_has_the_status_and_retryability_of_the_table(server: Server, code: str) -> None:
    server.exchange.answering.script[CallRequested] = lambda event: [refused(event, code)]
    answer = await server.ask("POST", "/v1/calls", json=A_CALL)
    error = is_error(answer, FAULTS[code].http, code)
    assert error["retryable"] is FAULTS[code].retryable
    assert error["message"] == FAULTS[code].text
    assert ("retry-after" in answer.headers) is (answer.status_code in {429, 503})


async def test_retry_after_is_what_the_limit_says_rounded_up_to_seconds(server: Server) -> None:
    details = {"retry_after_ms": 1200}
    server.exchange.answering.script[CallRequested] = lambda event: [refused(event, "limit.rate", details=details)]
    assert (await server.ask("POST", "/v1/calls", json=A_CALL)).headers["retry-after"] == "2"


async def test_a_call_that_needs_approval_is_202_at_once_and_holds_nothing(server: Server) -> None:
    exchange = server.exchange
    body = {"tool_id": MAIL, "input": {"to": "carol"}}
    answer = await server.ask("POST", "/v1/calls", token=exchange.alice, json=body)
    assert answer.status_code == 202
    shape = answer.json()
    [question] = [found for found in exchange.views.questions() if found.approval_id != exchange.approval_id]
    assert shape["approval_id"] == question.approval_id
    assert (shape["call_id"], shape["status"]) == (question.call_id, "waiting_approval")
    assert shape["expires_at"] == "2027-01-15T09:00:00.000Z"
    # The outcome that comes later has nobody to go to, and that is fine.
    exchange.answer(question.approval_id)
    exchange.mail.finish({})
    assert exchange.views.call(shape["call_id"]).status is Status.SUCCEEDED  # type: ignore[union-attr]


async def test_a_call_that_nobody_waits_for_is_202_with_its_id(server: Server) -> None:
    exchange = server.exchange
    answer = await server.ask("POST", "/v1/calls", json={"tool_id": SLOW, "input": {}, "wait": False})
    assert answer.status_code == 202
    assert answer.json()["status"] == "running"
    assert exchange.views.call(answer.json()["call_id"]).tool_id == SLOW  # type: ignore[union-attr]
    # Being content with the id is not leaving: nothing may be canceled for it.
    assert [type(event) for event in exchange.answering.fed] == [CallRequested]


async def test_who_is_told_nothing_because_of_a_defect_hears_that(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.create_task(server.ask("POST", "/v1/calls", json={"tool_id": SLOW, "input": {}}))
    asked = await server.wait_fed(CallRequested)
    server.exchange.feed.failed(asked.session, RuntimeError())
    async with asyncio.timeout(BOUND_S):
        error = is_error(await waiting, 503, "hub.unavailable")
    assert error["retryable"] is False


async def test_a_defect_in_an_answer_is_500_on_record_and_nobody_elses(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("canary-in-the-exception")

    with monkeypatch.context() as patch:
        patch.setattr(translate, "outcome", broken)
        answer = await server.ask("POST", "/v1/calls", json=A_CALL)
    assert is_error(answer, 500, "hub.unavailable")["retryable"] is False
    assert "canary" not in answer.text
    [noticed] = server.exchange.recorded(entries.Noticed)
    assert (noticed.code, noticed.detail) == ("defect", "RuntimeError, 1 so far")
    assert (await server.ask("POST", "/v1/calls", json=A_CALL)).status_code == 200


async def test_a_large_output_is_not_held_while_its_reader_is_slow() -> None:
    exchange = Inhabited()
    data = b'"' + b"x" * LARGE_BYTES + b'"'
    exchange.answering.script[CallRequested] = lambda event: [
        answered(event, output=Raw(data), large=LargeOutput.of(Raw(data)))
    ]
    before = sys.getrefcount(data)
    given = exchange.surroundings()
    route = NewCall(given.feed, given.views, Requests(given.feed))
    body = b'{"tool_id": "com.example.echo/say", "input": {}}'
    headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
    scope = {"type": "http", "headers": headers, "principal": BOSS, "extensions": {LOST: []}}
    is_writing, may_go_on = asyncio.Event(), asyncio.Event()
    said: list[bytes] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        said.append(message.get("body", b""))
        if b"$ref" in said[-1]:
            is_writing.set()
            await may_go_on.wait()

    request = asyncio.create_task(route(scope, receive, send))
    async with asyncio.timeout(BOUND_S):
        await is_writing.wait()
        exchange.answering.fed.clear()
        exchange.effects.clear()
        assert sys.getrefcount(data) == before
        may_go_on.set()
        await request
    assert sum(map(len, said)) < 10_000


# --- requests that come whole, which need no task ---------------------------------------------------------------------


class Whole:
    """A connection on which requests are written as a whole, several at once if wanted."""

    def __init__(self, server: Server, token: str = OPERATOR_TOKEN) -> None:
        self._server = server
        self._token = token

    async def __aenter__(self) -> Self:
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def ask(self, *bodies: dict[str, Any]) -> None:
        requests = []
        for body in bodies:
            data = json.dumps(body).encode()
            lines = (
                "POST /v1/calls HTTP/1.1",
                f"Host: 127.0.0.1:{self._server.port}",
                f"Authorization: Bearer {self._token}",
                "Content-Type: application/json",
                f"Content-Length: {len(data)}",
            )
            requests.append("\r\n".join((*lines, "\r\n")).encode() + data)
        self.writer.write(b"".join(requests))

    async def heard(self) -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(BOUND_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            return int(head.split()[1]), json.loads(await self._reader.readexactly(size))


async def test_a_call_that_came_whole_waits_without_a_task_and_gives_everything_back(server: Server) -> None:
    exchange = server.exchange
    async with Whole(server, exchange.alice) as alice:
        for _ in range(2):
            exchange.slow.delivered.clear()
            alice.ask({"tool_id": SLOW, "input": {}})
            await wait_until(lambda: bool(exchange.slow.delivered))
            assert not server.connections.tasks
            exchange.slow.finish({"done": True})
            status, shape = await alice.heard()
            assert (status, shape["status"], shape["output"]) == (200, "succeeded", {"done": True})
            assert shape["caller"] == "http:alice"
    assert [type(event) for event in exchange.answering.fed] == [CallRequested, CallRequested]


async def test_calls_that_came_at_once_are_answered_in_their_order(server: Server) -> None:
    async with Whole(server) as caller:
        caller.ask(*({"tool_id": A_CALL["tool_id"], "input": {"n": n}} for n in range(20)))
        assert [(await caller.heard())[1]["output"] for _ in range(20)] == [{"n": n} for n in range(20)]


async def test_what_is_no_ordinary_answer_is_said_as_to_any_other_request(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = server.exchange
    async with Whole(server, exchange.alice) as alice:
        alice.ask({"tool_id": MAIL, "input": {"to": "carol"}})
        assert (await alice.heard())[1]["status"] == "waiting_approval"
        alice.ask({"tool_id": "com.example.echo/nothing", "input": {}})
        status, shape = await alice.heard()
        assert (status, shape["error"]["code"]) == (404, "tool.not_found")
        alice.ask({"tool_id": 5, "input": {}}, {**A_CALL, "wait": False})
        assert (await alice.heard())[0] == 400
        assert (await alice.heard())[0] == 202
        with monkeypatch.context() as patch:
            patch.setattr(translate, "outcome", _broken)
            alice.ask(A_CALL)
            status, shape = await alice.heard()
        assert (status, shape["error"]["retryable"]) == (500, False)
        large = {"text": "x" * 100_000}
        exchange.echo._deliver = lambda agent, _: agent.finish(large)
        alice.ask(A_CALL)
        assert (await alice.heard())[1]["output"] == large
        alice.ask(A_CALL)
        assert (await alice.heard())[0] == 200


async def test_who_leaves_a_call_that_came_whole_is_told_to_the_exchange(server: Server) -> None:
    async with Whole(server) as caller:
        caller.ask({"tool_id": SLOW, "input": {}})
        asked = await server.wait_fed(CallRequested)
        caller.writer.transport.abort()
    left = await server.wait_fed(CallerLeft)
    assert left.session == asked.session


async def test_a_call_that_came_whole_is_told_when_the_edge_closes(server: Server) -> None:
    async with Whole(server) as caller:
        caller.ask({"tool_id": SLOW, "input": {}})
        await server.wait_fed(CallRequested)
        server.edge._requests.close()
        status, shape = await caller.heard()
        assert (status, shape["status"]) == (202, "running")
        caller.ask({"tool_id": SLOW, "input": {}})
        status, shape = await caller.heard()
        assert (status, shape["status"]) == (202, "running"), "it was asked for, so it is on record"


async def test_calls_that_came_with_others_in_the_moment_in_which_the_edge_closes_are_on_record(server: Server) -> None:
    async with Whole(server) as first, Whole(server) as second, Whole(server) as third:
        first.ask({"tool_id": SLOW, "input": {}})
        await server.wait_fed(CallRequested)
        server.edge._requests.close()
        second.ask({"tool_id": SLOW, "input": {}})
        third.ask({"tool_id": SLOW, "input": {}})
        for caller in (first, second, third):
            status, shape = await caller.heard()
            assert (status, shape["status"]) == (202, "running")


async def test_calls_that_came_whole_count_for_their_caller(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_REQUESTS", 1)
    exchange = server.exchange
    async with Whole(server, exchange.alice) as first, Whole(server, exchange.alice) as second:
        first.ask({"tool_id": SLOW, "input": {}})
        await server.wait_fed(CallRequested)
        second.ask(A_CALL)
        assert (await second.heard())[0] == 429
        exchange.slow.finish({})
        assert (await first.heard())[0] == 200
        second.ask(A_CALL)
        assert (await second.heard())[0] == 200


async def test_a_call_that_ended_with_its_answer_is_told_nothing_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpCall, "flush", _broken)
    async with Whole(server) as caller:
        caller.ask(A_CALL)
        assert (await caller.heard())[0] == 200
    assert not server.exchange.recorded(entries.Noticed)


def _broken(*_: object) -> None:
    raise RuntimeError

"""Server-sent events of a call and of the live feed; leaving; closing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec import Raw

from tests.inhabited import ECHO, MAIL, SLOW
from tests.unit.edges.http.conftest import BOUND_S, Server, wait_until
from tests.unit.edges.http.test_routes import A_CALL
from trunkline.edges.http import calls, stream, translate
from trunkline.edges.server_events import event
from trunkline.effects import Deliver
from trunkline.entries import CallSettled, Noticed
from trunkline.events import CallerLeft, CallRequested
from trunkline.model import Status
from trunkline.testing.memory import OPERATOR_TOKEN, AttachedAgent

SLOW_CALL = {"tool_id": SLOW, "input": {}}


@asynccontextmanager
async def streamed(
    server: Server, method: str, path: str, token: str = OPERATOR_TOKEN, **more: Any
) -> AsyncIterator[httpx.Response]:
    headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
    async with asyncio.timeout(BOUND_S), server.client.stream(method, path, headers=headers, **more) as answer:
        yield answer


async def events_of(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    """What a browser's EventSource would hand out."""
    name, data = "message", []
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data.append(line[6:])
        elif not line and data:
            yield name, json.loads("\n".join(data))
            name, data = "message", []


@pytest.mark.parametrize("data", [b'{"a":\n 1}', b'{"a":\r\n 1}', b'{"a":\r 1}', b'{"a": 1}'])
def test_each_line_of_an_event_is_marked(data: bytes) -> None:
    *lines, end, last = event("x", data).split(b"\n")
    assert (lines[0], end, last) == (b"event: x", b"", b"")
    assert all(line.startswith(b"data: ") for line in lines[1:])
    assert json.loads(b"\n".join(line[6:] for line in lines[1:])) == {"a": 1}


# --- a call -----------------------------------------------------------------------------------------------------------


async def test_a_streamed_call_tells_its_id_its_progress_and_its_outcome(server: Server) -> None:
    def shows(agent: AttachedAgent, _: Deliver) -> None:
        agent.show("status", Raw(b'{"text":\n "50 %"}'))
        agent.finish(Raw(b'{"a":\r\n 1}'))

    server.exchange.echo._deliver = shows
    async with streamed(server, "POST", "/v1/calls", json=A_CALL) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = [item async for item in events_of(answer)]
    [settled] = [entry for entry in server.exchange.news if isinstance(entry, CallSettled)]
    assert [name for name, _ in told] == ["accepted", "progress", "outcome"]
    assert told[0][1]["call_id"] == settled.call_id
    assert told[0][1]["status"] == "running"
    assert told[1][1] == {"call_id": settled.call_id, "seq": 1, "channel": "status", "data": {"text": "50 %"}}
    assert told[2][1]["status"] == "succeeded"
    assert told[2][1]["output"] == {"a": 1}


async def test_a_stream_at_a_question_ends_there(server: Server) -> None:
    exchange = server.exchange
    async with streamed(server, "POST", "/v1/calls", exchange.alice, json={"tool_id": MAIL, "input": {}}) as answer:
        told = [item async for item in events_of(answer)]
    assert [name for name, _ in told] == ["waiting_approval"]
    assert exchange.views.question(told[0][1]["approval_id"]) is not None
    assert not [fed for fed in exchange.answering.fed if isinstance(fed, CallerLeft)]


async def test_a_refused_call_is_an_ordinary_error_also_when_a_stream_was_asked_for(server: Server) -> None:
    async with streamed(server, "POST", "/v1/calls", json={**A_CALL, "tool_id": "no.such/tool"}) as answer:
        assert answer.status_code == 404
        assert json.loads(await answer.aread())["error"]["code"] == "tool.not_found"


async def test_an_earlier_outcome_of_the_same_key_comes_as_the_only_event(server: Server) -> None:
    exchange = server.exchange
    earlier = exchange.call(MAIL, key="k")
    exchange.mail.leave()
    assert earlier.outcome.status is Status.UNKNOWN
    body = {"tool_id": MAIL, "input": {}, "idempotency_key": "k"}
    async with streamed(server, "POST", "/v1/calls", json=body) as answer:
        assert [(name, shape["status"]) async for name, shape in events_of(answer)] == [("outcome", "unknown")]


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_a_caller_who_leaves_is_reported_under_the_same_name(server: Server, accept: str) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = json.dumps(SLOW_CALL).encode()
    writer.write(
        f"POST /v1/calls HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAccept: {accept}\r\n"
        f"Authorization: Bearer {server.exchange.alice}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    asked = await server.wait_fed(CallRequested)
    writer.transport.abort()
    left = await server.wait_fed(CallerLeft)
    assert (left.session, left.ref) == (asked.session, asked.ref)
    # Decision 5: nobody waits for it any more.
    server.exchange.advance(11)
    assert len(server.exchange.slow.canceled) == 1


async def test_a_silent_stream_shows_signs_of_life(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PING_S", 0.01)
    async with streamed(server, "POST", "/v1/calls", json=SLOW_CALL) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if line == ": ping":
                break


async def test_what_a_slow_reader_missed_is_counted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.edges.waiting.MAX_WAITING_BYTES", 400)

    def shows(agent: AttachedAgent, _: Deliver) -> None:
        for seq in range(1, 6):
            agent.show("stdout", {"text": "x" * 100}, seq)
        agent.finish({})

    server.exchange.echo._deliver = shows
    async with streamed(server, "POST", "/v1/calls", json=A_CALL) as answer:
        told = [item async for item in events_of(answer)]
    assert [name for name, _ in told] == ["accepted", "progress", "dropped", "outcome"]
    assert told[2][1] == {"dropped": 4}


async def test_a_large_output_is_shown_as_a_reference(server: Server) -> None:
    body = {"tool_id": "com.example.echo/big", "input": {}}
    async with streamed(server, "POST", "/v1/calls", json=body) as answer:
        told = [item async for item in events_of(answer)]
    assert told[-1][1]["output"]["$ref"] == f"sha256:{server.exchange.blob}"
    assert (await server.ask("POST", "/v1/calls", json=body)).json()["output"] == told[-1][1]["output"]


async def test_a_defect_in_a_stream_ends_it_with_a_word_and_is_on_record_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("canary-in-the-exception")

    monkeypatch.setattr(translate, "progress", broken)
    server.exchange.echo._deliver = lambda agent, _: agent.show("stdout", {"text": "a"})
    async with streamed(server, "POST", "/v1/calls", json=A_CALL) as answer:
        told = [item async for item in events_of(answer)]
    assert [name for name, _ in told] == ["accepted", "closing"]
    assert "canary" not in str(told)
    [noticed] = server.exchange.recorded(Noticed)
    assert noticed.code == "defect"
    assert (await server.ask("GET", "/v1/tools")).status_code == 200


# --- the live feed ----------------------------------------------------------------------------------------------------


async def test_the_live_feed_hands_on_each_line_and_is_unhooked_when_its_reader_leaves(server: Server) -> None:
    async with streamed(server, "GET", "/v1/watch") as answer:
        told = events_of(answer)
        assert await anext(told) == ("watching", {})
        assert server.watchers == 1
        made = server.exchange.call(ECHO, {"token": "tlk_" + "secret" * 6})
        name, accepted = await anext(told)
        assert (name, accepted["kind"], accepted["call_id"]) == ("entry", "call.accepted", made.call_id)
        assert "secretsecret" not in str(accepted), "it is masked"
        name, settled = await anext(told)
        assert (name, settled["kind"], settled["call_id"]) == ("entry", "call.settled", made.call_id)
    await wait_until(lambda: server.watchers == 0)


async def test_what_a_running_call_shows_is_in_the_live_feed(server: Server) -> None:
    async with streamed(server, "GET", "/v1/watch") as answer:
        told = events_of(answer)
        assert await anext(told) == ("watching", {})
        server.exchange.call(SLOW)
        server.exchange.slow.show("stdout", {"text": "a"})
        assert (await anext(told))[1]["kind"] == "call.accepted"
        _, shown = await anext(told)
        assert (shown["kind"], shown["channel"], shown["data"]) == ("progress", "stdout", {"text": "a"})


async def test_a_silent_live_feed_shows_signs_of_life(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PING_S", 0.01)
    async with streamed(server, "GET", "/v1/watch") as answer:
        async for line in answer.aiter_lines():
            if line == ": ping":
                break


async def test_a_line_that_cannot_be_handed_on_is_a_defect_of_the_feed_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(line: bytes) -> None:
        raise RuntimeError

    server.exchange.operator.watch(broken)
    async with streamed(server, "GET", "/v1/watch") as answer:
        told = events_of(answer)
        assert await anext(told) == ("watching", {})
        assert server.exchange.call(ECHO).outcome.status is Status.SUCCEEDED
        kinds = [(await anext(told))[1]["kind"] for _ in range(3)]
    assert sorted(kinds) == ["call.accepted", "call.settled", "notice"]
    assert server.exchange.notices() == ["defect"]


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_stopping_ends_streams_and_tells_waiting_callers_where_to_look(server: Server) -> None:
    waiting = asyncio.create_task(server.ask("POST", "/v1/calls", json=SLOW_CALL))
    await server.wait_fed(CallRequested)
    async with streamed(server, "GET", "/v1/watch") as answer:
        told = events_of(answer)
        assert await anext(told) == ("watching", {})
        stopping = asyncio.create_task(server.edge.stop())
        assert [name async for name, _ in told] == ["closing"]
    async with asyncio.timeout(BOUND_S):
        unfinished = await waiting
        await stopping
    # Not an error: the call is on record, and a repeat would be a second run.
    assert unfinished.status_code == 202
    view = server.exchange.views.call(unfinished.json()["call_id"])
    assert view is not None
    assert (view.tool_id, unfinished.json()["status"]) == (SLOW, "running")
    assert server.watchers == 0
    assert not [fed for fed in server.exchange.answering.fed if isinstance(fed, CallerLeft)]


async def test_stopping_in_the_middle_of_a_streamed_call_ends_the_stream(server: Server) -> None:
    async with streamed(server, "POST", "/v1/calls", json=SLOW_CALL) as answer:
        told = events_of(answer)
        assert (await anext(told))[0] == "accepted"
        stopping = asyncio.create_task(server.edge.stop())
        assert [item async for item in told] == [("closing", {"reason": "the exchange is stopping"})]
        await stopping


async def stop_while_it_waits(server: Server, **more: Any) -> httpx.Response:
    """The answer of a call whose edge stops before it has an outcome."""
    headers = more.pop("headers", {})
    waiting = asyncio.create_task(server.ask("POST", "/v1/calls", headers=headers, json={**A_CALL, **more}))
    await server.wait_fed(CallRequested)
    async with asyncio.timeout(BOUND_S):
        await server.edge.stop()
        return await waiting


@pytest.mark.parametrize("headers", [{}, {"accept": "text/event-stream"}], ids=["answer", "stream"])
async def test_stopping_before_a_call_has_an_id_does_not_invite_a_second_run(
    server: Server, headers: dict[str, str]
) -> None:
    server.exchange.answering.script[CallRequested] = lambda _: []
    answer = await stop_while_it_waits(server, headers=headers)
    assert answer.status_code == 503
    assert answer.json()["error"]["retryable"] is False


async def test_stopping_before_a_call_with_a_key_has_an_id_invites_a_repeat(server: Server) -> None:
    server.exchange.answering.script[CallRequested] = lambda _: []
    answer = await stop_while_it_waits(server, idempotency_key="k")
    assert answer.status_code == 503
    assert answer.json()["error"]["retryable"] is True


async def test_stopping_while_an_outcome_is_on_its_way_to_the_disk_tells_of_the_call(server: Server) -> None:
    exchange = server.exchange
    waiting = asyncio.create_task(server.ask("POST", "/v1/calls", json={"tool_id": MAIL, "input": {}}))
    await server.wait_fed(CallRequested)
    exchange.disk_rests = True
    exchange.mail.finish({})
    async with asyncio.timeout(BOUND_S):
        await server.edge.stop()
        answer = await waiting
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    exchange.store()
    view = exchange.views.call(answer.json()["call_id"])
    assert view is not None
    assert view.status is Status.SUCCEEDED


async def test_stopping_before_a_call_is_on_record_promises_nothing(server: Server) -> None:
    server.exchange.disk_rests = True
    answer = await stop_while_it_waits(server, tool_id=MAIL)
    assert answer.status_code == 503
    assert answer.json()["error"]["retryable"] is False
    server.exchange.store()

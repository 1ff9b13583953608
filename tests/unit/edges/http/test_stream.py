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

from tests.unit.edges.http.conftest import Server, wait_until
from tests.unit.edges.http.scripted import (
    ALICE_TOKEN,
    CALL_ID,
    OPERATOR_TOKEN,
    accepted,
    answered,
    asks,
    progressed,
    refused,
)
from trunkline.edges.http import session, stream
from trunkline.edges.http.session import CLOSING, Dropped, Left, Line
from trunkline.effects import Progress
from trunkline.events import CallerLeft, CallRequested, Event
from trunkline.model import Status

A_CALL = {"tool_id": "com.example.echo/say", "input": {}}
BOUND_S = 5


@asynccontextmanager
async def streamed(server: Server, method: str, path: str, **more: Any) -> AsyncIterator[httpx.Response]:
    headers = {"authorization": f"Bearer {OPERATOR_TOKEN}", "accept": "text/event-stream"}
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


async def wait_fed(server: Server, kind: type[Event]) -> Event:
    """The first event of a kind, whenever it comes."""
    found: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def look(event: Event) -> None:
        if isinstance(event, kind) and not found.done():
            found.set_result(event)

    server.exchange.on_fed = look
    for event in server.exchange.fed:
        look(event)
    async with asyncio.timeout(BOUND_S):
        return await found


async def test_a_streamed_call_tells_its_id_its_progress_and_its_outcome(server: Server) -> None:
    def script(event: CallRequested) -> list[Any]:
        shown = progressed(event, 1, b'{"text":\n "50 %"}', "status")
        return [accepted(event), shown, answered(event, output=Raw(b'{"a":\r\n 1}'))]

    server.exchange.script[CallRequested] = script
    async with streamed(server, "POST", "/v1/calls", json=A_CALL) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = [item async for item in events_of(answer)]
    assert [name for name, _ in told] == ["accepted", "progress", "outcome"]
    assert told[0][1]["call_id"] == CALL_ID
    assert told[0][1]["status"] == "running"
    assert told[1][1] == {"call_id": CALL_ID, "seq": 1, "channel": "status", "data": {"text": "50 %"}}
    assert told[2][1]["status"] == "succeeded"
    assert told[2][1]["output"] == {"a": 1}


async def test_a_stream_at_a_question_ends_there(server: Server) -> None:
    server.exchange.script[CallRequested] = lambda event: [asks(event)]
    async with streamed(server, "POST", "/v1/calls", json=A_CALL) as answer:
        told = [item async for item in events_of(answer)]
    assert [name for name, _ in told] == ["waiting_approval"]
    assert told[0][1]["approval_id"] == "a42"
    assert not [event for event in server.exchange.fed if isinstance(event, CallerLeft)]


async def test_a_refused_call_is_an_ordinary_error_also_when_a_stream_was_asked_for(server: Server) -> None:
    server.exchange.script[CallRequested] = lambda event: [refused(event, "policy.denied")]
    async with streamed(server, "POST", "/v1/calls", json=A_CALL) as answer:
        assert answer.status_code == 403
        assert json.loads(await answer.aread())["error"]["code"] == "policy.denied"


async def test_an_earlier_outcome_of_the_same_key_comes_as_the_only_event(server: Server) -> None:
    server.exchange.script[CallRequested] = lambda event: [answered(event, Status.UNKNOWN)]
    async with streamed(server, "POST", "/v1/calls", json=A_CALL) as answer:
        assert [(name, shape["status"]) async for name, shape in events_of(answer)] == [("outcome", "unknown")]


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_a_caller_who_leaves_is_reported_under_the_same_name(server: Server, accept: str) -> None:
    server.exchange.script[CallRequested] = lambda event: [accepted(event)]
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = json.dumps(A_CALL).encode()
    writer.write(
        f"POST /v1/calls HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAccept: {accept}\r\n"
        f"Authorization: Bearer {ALICE_TOKEN}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    asked = await wait_fed(server, CallRequested)
    writer.transport.abort()
    left = await wait_fed(server, CallerLeft)
    assert isinstance(asked, CallRequested)
    assert isinstance(left, CallerLeft)
    assert (left.session, left.ref) == (asked.session, asked.ref)


async def test_a_silent_stream_shows_signs_of_life(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PING_S", 0.01)
    server.exchange.script[CallRequested] = lambda event: [accepted(event)]
    async with streamed(server, "POST", "/v1/calls", json=A_CALL) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if line == ": ping":
                break


async def test_the_live_feed_hands_on_each_line_and_is_unhooked_when_its_reader_leaves(server: Server) -> None:
    async with streamed(server, "GET", "/v1/watch") as answer:
        await wait_until(lambda: len(server.exchange.watchers) == 1)
        server.exchange.watchers[0](b'{"kind":"call.accepted","n":1}')
        server.exchange.watchers[0](b'{"kind":"call.settled","n":2}')
        told = events_of(answer)
        assert await anext(told) == ("watching", {})
        assert await anext(told) == ("entry", {"kind": "call.accepted", "n": 1})
        assert await anext(told) == ("entry", {"kind": "call.settled", "n": 2})
    await wait_until(lambda: not server.exchange.watchers)


async def test_stopping_ends_streams_and_tells_waiting_callers_where_to_look(server: Server) -> None:
    server.exchange.script[CallRequested] = lambda event: [accepted(event)]
    waiting = asyncio.create_task(server.ask("POST", "/v1/calls", json=A_CALL))
    await wait_fed(server, CallRequested)
    async with streamed(server, "GET", "/v1/watch") as answer:
        await wait_until(lambda: len(server.exchange.watchers) == 1)
        stopping = asyncio.create_task(server.listener.stop())
        assert [name async for name, _ in events_of(answer)] == ["watching", "closing"]
    async with asyncio.timeout(BOUND_S):
        unfinished = await waiting
        await stopping
    # Not an error: the call is on record, and a repeat would be a second run.
    assert unfinished.status_code == 202
    assert unfinished.json()["call_id"] == CALL_ID
    assert not server.exchange.watchers
    assert not [event for event in server.exchange.fed if isinstance(event, CallerLeft)]


async def test_stopping_before_a_call_has_an_id_does_not_invite_a_second_run(server: Server) -> None:
    server.exchange.script[CallRequested] = lambda event: []
    waiting = asyncio.create_task(server.ask("POST", "/v1/calls", json=A_CALL))
    await wait_fed(server, CallRequested)
    async with asyncio.timeout(BOUND_S):
        await server.listener.stop()
        answer = await waiting
    assert answer.status_code == 503
    assert answer.json()["error"]["retryable"] is False


# --- one line ---------------------------------------------------------------------------------------------------------


def piece(seq: int, size: int) -> Progress:
    return Progress(1, 0, "h1", CALL_ID, seq, "stdout", Raw(b'"' + b"x" * size + b'"'))


async def test_a_slow_reader_misses_pieces_hears_how_many_and_gets_the_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "MAX_LINE_BYTES", 1000)
    line = Line("h1", progress=True)
    event = CallRequested(1, "h1", None, "x/y", Raw(b"{}"))  # type: ignore[arg-type]
    pieces = [piece(seq, 300) for seq in range(5)]
    for item in pieces:
        line.put(item, session.size_of(item))
    outcome = answered(event)
    line.put(outcome)
    assert await line.next() is pieces[0]
    assert await line.next() is pieces[1]
    dropped = await line.next()
    assert isinstance(dropped, Dropped)
    assert dropped.count == 3
    assert await line.next() is outcome
    again = piece(9, 300)
    line.put(again, session.size_of(again))
    assert await line.next() is again, "what was read makes room again"


async def test_leaving_comes_before_everything_and_closing_after() -> None:
    line = Line("h1", progress=True)
    line.put(b"a", 1)
    line.put(CLOSING)
    line.leave()
    assert isinstance(await line.next(), Left)
    assert await line.next() == b"a"
    assert await line.next() is CLOSING
    assert await line.next(0.001) is None

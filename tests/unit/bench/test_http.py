"""The caller over HTTP and the bare answer: what they send, what they take for an answer, and the two together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from bench.bare_answer import BareAnswer, fixed_answer, listen
from bench.ends import Broken
from bench.http_caller import BODY_END, Connection, HttpCaller, answer_bytes, request_begin
from bench.loads import LARGE, SMALL, Load, Run, Target, Texts
from trunkline.edges.answers import encode
from trunkline.edges.bodies import decode
from trunkline.edges.http import messages, translate
from trunkline.effects import Answer
from trunkline.model import Status

TOOL = "bench.http-read-only/echo"
TARGET = Target("127.0.0.1:8080", "tlk_secret")
SUCCEEDED = b'{"call_id":"c","status":"succeeded"}'


def answered(body: bytes = SUCCEEDED, *, length: str = "content-length", status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} Some words\r\ncache-control: no-store\r\n{length}: {len(body)}\r\nx: y\r\n\r\n"
    return head.encode() + body


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        pass


class Told:
    """A caller that counts the answers of its connection."""

    def __init__(self) -> None:
        self.count = 0

    def answered(self, _connection: Connection) -> None:
        self.count += 1


def connected() -> tuple[Connection, Told]:
    told: Any = Told()
    transport: Any = Written()
    connection = Connection(told)
    connection.connection_made(transport)
    return connection, told


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_request_is_as_long_as_it_says_and_its_body_is_a_call(size: int) -> None:
    texts = Texts()
    texts.use(Load(1, size))
    given = texts.body()
    head, _, body = (request_begin(TARGET, TOOL, len(given)) + given + BODY_END).partition(b"\r\n\r\n")
    first, *fields = head.split(b"\r\n")
    assert first == b"POST /v1/calls HTTP/1.1"
    assert dict(field.split(b": ") for field in fields) == {
        b"host": b"127.0.0.1:8080",
        b"authorization": b"Bearer tlk_secret",
        b"content-type": b"application/json",
        b"content-length": str(len(body)).encode(),
    }
    assert decode(messages.CallBody, body) == messages.CallBody(TOOL, Raw(given))


@pytest.mark.parametrize("length", ["content-length", "Content-Length"])
def test_the_size_of_an_answer_is_known_as_soon_as_its_head_is_whole(length: str) -> None:
    data = answered(length=length)
    whole_head = len(data) - len(SUCCEEDED)
    assert [answer_bytes(data[:count]) for count in range(whole_head)] == [0] * whole_head
    assert [answer_bytes(data[:count]) for count in range(whole_head, len(data) + 1)] == [len(data)] * (
        len(SUCCEEDED) + 1
    )


def test_a_length_inside_the_body_is_not_the_answers() -> None:
    data = b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n\r\ncontent-length: 5\r\n"
    with pytest.raises(Broken, match="not an answer to a call"):
        answer_bytes(data)


@pytest.mark.parametrize("status", [202, 401, 503])
def test_another_status_than_200_is_a_failure_of_the_run(status: int) -> None:
    with pytest.raises(Broken, match=f"not an answer to a call.*{status}"):
        answer_bytes(answered(status=status))


@pytest.mark.parametrize("cut", [1, 7, 100, 10_000])
def test_an_answer_counts_once_however_its_bytes_arrive(cut: int) -> None:
    connection, told = connected()
    for count in (1, 2):
        data = answered()
        for at in range(0, len(data), cut):
            assert told.count == count - 1
            connection.data_received(data[at : at + cut])
        assert told.count == count


@pytest.mark.parametrize("data", [answered(b'{"call_id":"c","status":"failed"}'), answered() + b"H", answered() * 2])
def test_anything_but_the_one_answer_of_a_call_that_succeeded_is_a_failure_of_the_run(data: bytes) -> None:
    connection, told = connected()
    with pytest.raises(Broken, match="not the one answer"):
        connection.data_received(data)
    assert told.count == 0


def test_a_connection_that_the_server_closes_is_a_failure_of_the_run_and_one_that_we_close_is_not() -> None:
    connection, _ = connected()
    with pytest.raises(Broken, match="the connection was closed"):
        connection.connection_lost(None)
    connection.close()
    connection.connection_lost(None)


def test_the_bare_answer_is_what_a_small_call_is_answered_with() -> None:
    texts = Texts()
    texts.use(Load(1, SMALL, fresh=False))
    new_year_ms = 1_767_225_600_000
    outcome = Answer(
        session=1,
        after=0,
        ref="h1",
        call_id="00000000-0000-8000-a000-000000000000",
        status=Status.SUCCEEDED,
        output=Raw(texts.body()),
        started_ms=new_year_ms,
        finished_ms=new_year_ms,
    )
    assert fixed_answer() == encode(translate.outcome(outcome, TOOL, "http:bench.http-read-only"))


async def test_the_bare_answer_comes_after_the_whole_body_of_the_request() -> None:
    parts = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.request", "body": b"}", "more_body": True},
        {"type": "http.request", "body": b"", "more_body": False},
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        assert sent == []
        return parts.pop(0)

    async def send(message: dict[str, Any]) -> None:
        assert parts == []
        sent.append(message)

    await BareAnswer(b"{}")({}, receive, send)
    assert sent == [
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"2"), (b"content-type", b"application/json")],
        },
        {"type": "http.response.body", "body": b"{}"},
    ]


class Server:
    """Answers nobody before so many have asked, and then everybody at once."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.accepted = self.left = 0
        self.requests: list[bytes] = []
        self.waiting: list[Served] = []
        self.empty = asyncio.Event()

    def heard(self, connection: Served, request: bytes) -> None:
        self.requests.append(request)
        self.waiting.append(connection)
        if len(self.requests) >= self.expected:
            for one in self.waiting:
                one.transport.write(answered())
            self.waiting.clear()


class Served(asyncio.Protocol):
    """One connection of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.server.accepted += 1
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.server.heard(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert exc is None
        self.server.left += 1
        if self.server.left == self.server.accepted:
            self.server.empty.set()


def address_of(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"


async def test_a_load_has_a_call_in_flight_on_each_of_so_many_connections_and_closes_them_after_the_last() -> None:
    served = Server(expected=7)
    server = await asyncio.get_running_loop().create_server(lambda: Served(served), "127.0.0.1", 0)
    async with asyncio.timeout(20):
        measured = await HttpCaller(Target(address_of(server), "t")).run(Run(Load(7, SMALL), 0.0, 0.01, (TOOL,)))
        await served.empty.wait()
    server.close()
    assert served.accepted == 7
    assert len(set(served.requests)) == len(served.requests) == measured.total > 7


async def test_the_caller_takes_the_bare_answer_for_that_of_a_call_on_one_load_after_the_other() -> None:
    listener = await listen(0)
    caller = HttpCaller(Target(listener.url.removeprefix("http://"), "tlk_nobody_looks"))
    async with asyncio.timeout(20):
        for load in (Load(1, SMALL), Load(64, SMALL)):
            measured = await caller.run(Run(load, 0.0, 0.01, (TOOL,)))
            assert measured.calls > 0
            assert measured.total >= load.in_flight
            assert 0 < measured.median_us <= measured.p99_us
    await listener.stop()

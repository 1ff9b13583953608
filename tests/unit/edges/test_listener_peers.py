"""``edges.web_connection``: peers that do not read, do not end, or send more than they were asked for; order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.edges.web import BOUND_S, CLOSE, JSON, MAX_BODY_BYTES, SIZABLE_BYTES, Server, wait_until
from trunkline.edges import patience, web_connection
from trunkline.edges.web_connection import MAX_HEAD_BYTES

CHUNKED = f"{JSON}Transfer-Encoding: chunked\r\n"
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as running:
        yield running


def deaf_client(server: Server, data: bytes) -> socket.socket:
    """One that sends as much of this as is taken, and reads nothing."""
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        sock.send(data)
    return sock


# --- what comes beside a body -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "piece"),
    [(b"2\r\n{}\r\n0\r\nX: ", b"a" * 4096), (b"2\r\n{}\r\n0\r\n", b"X: a\r\n" * 600), (b"2;a=", b"b" * 4096)],
    ids=["one trailer", "many trailers", "a chunk's extension"],
)
async def test_what_does_not_end_beside_a_body_is_431(server: Server, before: bytes, piece: bytes) -> None:
    reader, writer = await server.connect()
    writer.write(server.head("POST", "/body", CHUNKED) + before)
    sent = 0
    async with asyncio.timeout(BOUND_S):
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and sent < 50 * MAX_HEAD_BYTES:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
                await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        await wait_until(lambda: not server.connections.connections)
    assert sent < 50 * MAX_HEAD_BYTES
    assert server.pages.read == []
    writer.close()


async def test_trailers_that_end_are_taken_and_are_no_headers(server: Server) -> None:
    trailers = b"Authorization: Bearer x\r\nX: y\r\n" * 10
    answer = await server.said(
        server.head("POST", "/body", CHUNKED) + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n" + server.head(more=CLOSE)
    )
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert server.pages.read == [b"{}"]
    assert server.pages.headers == [b"host", b"content-type", b"transfer-encoding"]


async def test_a_body_of_many_small_chunks_is_taken(server: Server) -> None:
    chunks = b"1;ext=value\r\n1\r\n" * 10_000
    answer = await server.said(server.head("POST", "/body", CHUNKED + CLOSE) + chunks + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert server.pages.read == [b"1" * 10_000]


# --- who does not read ------------------------------------------------------------------------------------------------


async def test_who_pipelines_and_does_not_read_is_not_answered_on(server: Server) -> None:
    sock = deaf_client(server, server.head(path="/sizable") * 200)
    await wait_until(lambda: server.pages.answered > 0)
    for _ in range(200):
        await asyncio.sleep(0)
    [connection] = server.connections.connections
    assert server.pages.answered < 20, "what the kernel takes, and what waits"
    assert connection.transport.get_write_buffer_size() < 4 * SIZABLE_BYTES
    sock.close()


async def test_who_pipelines_is_not_read_on_before_what_was_read_is_begun(server: Server) -> None:
    sock = deaf_client(server, server.head(path="/waiting") + server.head() * 2)
    await wait_until(lambda: server.pages.lasting == 1)
    [connection] = server.connections.connections
    assert isinstance(connection, web_connection.Connection)
    assert connection.flow.read_paused
    # Whoever reads the body of the first would have more read.
    connection.flow.resume_reading()
    assert connection.flow.read_paused
    server.pages.goes_on.set()
    await wait_until(lambda: not connection.flow.read_paused)
    assert not connection.pipeline
    sock.close()


async def test_more_requests_than_may_wait_are_refused_after_the_answers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_connection, "MAX_PIPELINED", 3)
    answer = await server.said(server.head() * 10)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 4 + [b"429"]
    assert b"limit.inflight" in answer


async def test_who_pipelines_and_reads_late_gets_all_answers(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(server.head(path="/sizable") * 19 + server.head(path="/sizable", more=CLOSE))
    await wait_until(lambda: server.pages.answered > 0)
    for _ in range(50):
        await asyncio.sleep(0)
    async with asyncio.timeout(BOUND_S):
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 200 ") == 20
    assert len(answers) > 20 * SIZABLE_BYTES
    writer.close()


class Closed:
    """A connection that was closed and has something left that nobody reads."""

    def __init__(self) -> None:
        self.transport: Any = self
        self.aborted = asyncio.Event()

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 1

    def abort(self) -> None:
        self.aborted.set()


async def test_a_closed_connection_whose_last_words_are_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "WRITE_TIMEOUT_S", 0.01)
    connections: set[Any]
    async with Server() as server, asyncio.timeout(BOUND_S):
        connections, closed = server.connections.connections, Closed()  # type: ignore[assignment]
        connections.add(closed)
        await closed.aborted.wait()
        connections.discard(closed)


# --- what comes behind a request that is being answered ---------------------------------------------------------------


async def behind_a_waiting_request(server: Server, *pieces: bytes) -> bytes:
    """What is answered to a request that waits, with this sent behind it while it does."""
    reader, writer = await server.connect()
    writer.write(server.head(path="/waiting"))
    await wait_until(lambda: server.pages.lasting == 1)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)
    assert server.pages.lasting == 1, "it still waits"
    server.pages.goes_on.set()
    async with asyncio.timeout(BOUND_S):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("extra", [b"\r\n", b"GET /qu"])
async def test_an_empty_line_or_half_a_head_behind_a_request_does_not_end_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, extra: bytes
) -> None:
    monkeypatch.setattr(web_connection, "HEAD_TIMEOUT_S", 0.01)
    monkeypatch.setattr(web_connection, "KEEP_ALIVE_S", 0.01)
    reader, writer = await server.connect()
    writer.write(server.head(path="/waiting"))
    await wait_until(lambda: server.pages.lasting == 1)
    writer.write(extra)
    await asyncio.sleep(0.05)
    server.pages.goes_on.set()
    async with asyncio.timeout(BOUND_S):
        assert b'{"waited":true}' in await reader.readuntil(b"}")
        writer.write(b"\r\n" if extra == b"\r\n" else b"")
    writer.close()


@pytest.mark.parametrize(
    ("behind", "status"),
    [(b"\x16\x03\x01", b"400"), (b"\r\n" * MAX_HEAD_BYTES, b"431"), (b"G" * (MAX_HEAD_BYTES + 1), b"4")],
    ids=["another protocol", "empty lines without end", "a method without end"],
)
async def test_what_cannot_be_read_behind_a_request_is_refused_after_its_answer(
    server: Server, behind: bytes, status: bytes
) -> None:
    answer = await behind_a_waiting_request(server, behind)
    first, second = answer.split(b"HTTP/1.1 ")[1:]
    assert first.endswith(b'{"waited":true}')
    assert second.startswith(status)


async def test_an_upgrade_behind_a_request_does_not_take_its_connection(server: Server) -> None:
    answer = await behind_a_waiting_request(server, server.head(path="/socket", more=UPGRADE), b"\x81\x80aaaa")
    assert answer.endswith(b'{"waited":true}')
    assert b"101" not in answer
    assert b"connection: close" in answer
    assert server.pages.sockets == []


async def test_who_offers_another_protocol_is_answered_in_this_one(server: Server) -> None:
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    answer = await server.said(server.head(more=offer))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer


async def test_who_sends_a_wrong_chunk_hears_so(server: Server) -> None:
    answer = await server.said(server.head("POST", "/body", CHUNKED) + b"2\r\n{}\r\nzz\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert server.pages.read == []


async def test_a_wrong_chunk_behind_a_stream_that_has_begun_is_not_answered_in_the_middle_of_it(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(server.head(path="/lasting", more=CHUNKED))
    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"on")
        writer.write(b"zz\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1" not in await reader.read()
        await server.pages.lost.wait()
    writer.close()


async def test_who_was_answered_before_its_body_came_can_send_what_it_likes(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(server.head("POST", "/nothing", CHUNKED))
    async with asyncio.timeout(BOUND_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        writer.write(b"zz\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1" not in await reader.read()
    writer.close()


# --- who closes its side ----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def half_closed(server: Server, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await server.connect()
    writer.write(data)
    writer.write_eof()
    async with asyncio.timeout(BOUND_S):
        yield reader
    writer.close()


async def test_who_closes_its_side_gets_its_answer(server: Server) -> None:
    async with half_closed(server, server.head()) as reader:
        answer = await reader.read()
    assert b"HTTP/1.1 200 " in answer
    assert answer.endswith(b'{"ok":true}')


async def test_who_closes_its_side_and_waits_gets_its_answers_in_order(server: Server) -> None:
    async with half_closed(server, server.head() + server.head(path="/waiting")) as reader:
        await wait_until(lambda: server.pages.lasting == 1)
        assert b'{"ok":true}' in await reader.readuntil(b"}")
        server.pages.goes_on.set()
        assert (await reader.read()).endswith(b'{"waited":true}')


async def test_who_closes_its_side_and_waits_is_asked_whether_it_reads_and_gets_its_answer(server: Server) -> None:
    async with half_closed(server, server.head(path="/waiting")) as reader:
        for _ in range(2):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert server.pages.lasting == 1, "it reads, so it is there"
        server.pages.goes_on.set()
        assert (await reader.read()).endswith(b'{"waited":true}')


async def test_who_closes_its_side_of_a_poll_is_gone_at_once(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(server.head(path="/polling"))
    await wait_until(lambda: server.pages.lasting == 1)
    writer.write_eof()
    async with asyncio.timeout(BOUND_S):
        await server.pages.lost.wait()
        assert await reader.read() == b""
    writer.close()


async def test_who_closes_all_of_it_is_noticed(server: Server) -> None:
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.sendall(server.head(path="/waiting"))
    await wait_until(lambda: server.pages.lasting == 1)
    sock.close()
    async with asyncio.timeout(BOUND_S):
        await server.pages.lost.wait()


async def test_who_left_is_noticed_also_when_the_first_of_its_requests_is_answered(server: Server) -> None:
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.sendall(server.head() + server.head(path="/waiting"))
    await wait_until(lambda: server.pages.lasting == 1)
    sock.close()
    async with asyncio.timeout(BOUND_S):
        await server.pages.lost.wait()


async def test_who_leaves_after_a_large_body_is_noticed(server: Server) -> None:
    body = b"1" * (MAX_BODY_BYTES - 1)
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.sendall(server.head("POST", "/waiting", f"{JSON}Content-Length: {len(body)}\r\n"))
    await wait_until(lambda: bool(server.connections.tasks))
    await asyncio.sleep(0.01)
    # The body's reader waits: what comes now in one read pauses reading, and nobody asks for more of it.
    [connection] = server.connections.connections
    connection.data_received(body)  # type: ignore[union-attr]
    await wait_until(lambda: server.pages.lasting == 1)
    sock.close()
    async with asyncio.timeout(BOUND_S):
        await server.pages.lost.wait()


async def test_who_closes_its_side_in_the_middle_of_a_body_is_not_waited_for(server: Server) -> None:
    part = server.head("POST", "/body", f"{JSON}Content-Length: 10\r\n") + b"12345"
    async with half_closed(server, part) as reader:
        assert b" 200 " not in await reader.read()
    assert server.pages.read == []


async def test_an_old_client_that_closes_its_side_hears_nothing_in_between(server: Server) -> None:
    old = server.head(path="/waiting").replace(b"HTTP/1.1", b"HTTP/1.0")
    async with half_closed(server, old) as reader:
        await wait_until(lambda: server.pages.lasting == 1)
        server.pages.goes_on.set()
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")

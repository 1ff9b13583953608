"""Connections: slow heads, large heads, readers who do not read, too many of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys

import pytest

from tests.unit.edges.http.conftest import Server, wait_until
from tests.unit.edges.http.scripted import OPERATOR_TOKEN, SHA256, ScriptedExchange
from trunkline.edges import bodies
from trunkline.edges.http import serve
from trunkline.edges.http.serve import HttpListener
from trunkline.errors import ConfigError

BOUND_S = 5


async def exchange_bytes(server: Server, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    async with asyncio.timeout(BOUND_S):
        answer = await reader.read()
    writer.close()
    return answer


def head(server: Server, method: str = "GET", path: str = "/v1/agents", more: str = "") -> bytes:
    host, token = f"127.0.0.1:{server.port}", OPERATOR_TOKEN
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n{more}\r\n".encode()


@pytest.mark.parametrize("start", [b"", b"\r\n", b"GET /v1/agents HTTP/1.1\r\nHost: x\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(serve, "HEAD_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(start)
    async with asyncio.timeout(BOUND_S):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_a_byte_now_and_then_does_not_move_the_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HEAD_TIMEOUT_S", 0.2)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(BOUND_S):
        for byte in head(server) * 100:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
            if writer.transport.is_closing():
                break
    assert writer.transport.is_closing()
    assert asyncio.get_running_loop().time() - started < 2
    writer.close()


async def test_a_second_request_on_the_same_connection_has_a_deadline_too(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head(server))
    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"\r\n\r\n")
        monkeypatch.setattr(serve, "HEAD_TIMEOUT_S", 0.05)
        writer.write(b"GET /v1/tools HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    writer.close()


async def test_a_head_larger_than_the_limit_is_431(server: Server) -> None:
    answer = await exchange_bytes(server, b"GET / HTTP/1.1\r\nX: " + b"x" * (serve.MAX_HEAD_BYTES + 1))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"message.malformed"' in answer


async def test_a_body_larger_than_the_head_limit_is_no_head(server: Server) -> None:
    body = b'{"tool_id":"a/b","input":"' + b"x" * 2 * serve.MAX_HEAD_BYTES + b'"}'
    more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    answer = await exchange_bytes(server, head(server, "POST", "/v1/calls", more) + body)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 50]
)
async def test_what_is_not_http_gets_an_error_in_our_shape(server: Server, data: bytes) -> None:
    answer = await exchange_bytes(server, data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":{"code":"message.malformed"' in answer


async def test_a_body_that_does_not_come_is_408(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(serve, "LINGER_S", 0.05)
    more = "Content-Type: application/json\r\nContent-Length: 50\r\n"
    answer = await exchange_bytes(server, head(server, "POST", "/v1/calls", more) + b"{")
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_declared_body_that_is_too_large_is_refused_before_it_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "LINGER_S", 0.05)
    more = "Content-Type: application/json\r\nContent-Length: 99999999999\r\n"
    answer = await exchange_bytes(server, head(server, "POST", "/v1/calls", more))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert not server.exchange.fed


async def test_a_reader_who_does_not_read_is_dropped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "WRITE_TIMEOUT_S", 0.05)
    server.exchange.blobs[SHA256] = b"x" * 60_000_000
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(head(server, path=f"/v1/blobs/{SHA256}"))
    connections = server.listener._connections
    assert connections is not None
    await wait_until(lambda: bool(connections.connections))
    async with asyncio.timeout(BOUND_S):
        await connections.gone.wait()
    sock.close()


class Draining:
    """A transport whose write buffer has these sizes, one look after the other."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = iter(sizes)
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return next(self._sizes)

    def abort(self) -> None:
        self.aborted = True


async def test_a_slow_reader_is_not_dropped_while_it_reads(server: Server) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    connections = server.listener._connections
    assert connections is not None
    await wait_until(lambda: bool(connections.connections))
    connection = next(iter(connections.connections))
    assert isinstance(connection, serve.Connection)
    real, fake = connection.transport, Draining(1000, 999, 10, 10)
    connection.transport = fake  # type: ignore[assignment]
    connection.pause_writing()
    for _ in range(2):
        connection._judge_reader()
        assert not fake.aborted, "it took something since the last look"
    connection._judge_reader()
    assert fake.aborted, "it took nothing"
    connection.transport = real
    writer.close()


async def test_an_idle_connection_makes_room_and_a_busy_one_does_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 2)
    busy = []
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head(server, path="/v1/watch"))
        await reader.readuntil(b"\r\n\r\n")
        busy.append(writer)
    answer = await exchange_bytes(server, head(server))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"limit.resource" in answer
    busy[0].transport.abort()
    await wait_until(lambda: len(server.exchange.watchers) == 1)
    idle_reader, idle = await asyncio.open_connection("127.0.0.1", server.port)
    idle.write(head(server))
    await idle_reader.readuntil(b"\r\n\r\n")
    answer = await exchange_bytes(server, head(server, more="Connection: close\r\n"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    for writer in (*busy, idle):
        writer.close()


async def test_many_requests_on_one_connection_and_pipelined_ones_are_answered_in_order(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        head(server, path="/v1/agents")
        + head(server, path="/v1/nothing")
        + head(server, path="/v1/tools", more="Connection: close\r\n")
    )
    async with asyncio.timeout(BOUND_S):
        answer = await reader.read()
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]
    writer.close()


async def test_a_taken_address_is_an_error_and_leaves_no_session() -> None:
    first = HttpListener(ScriptedExchange(), "127.0.0.1", 0)
    _, port = await first.start()
    exchange = ScriptedExchange()
    try:
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1:.*in use; choose another address in \[http\] listen"):
            await HttpListener(exchange, "127.0.0.1", port).start()
    finally:
        await first.stop()
    assert not exchange.sinks


def test_a_defect_is_logged_without_its_text() -> None:
    try:
        raise RuntimeError("canary")
    except RuntimeError:
        info = sys.exc_info()
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "Exception in ASGI application", (), info)
    assert serve.without_text(record)
    text = logging.Formatter().format(record)
    assert "canary" not in text
    assert text.startswith("a request failed: RuntimeError at ")
    assert "test_serve.py:" in text


async def test_stopping_twice_or_before_the_start_does_nothing() -> None:
    listener = HttpListener(ScriptedExchange(), "127.0.0.1", 0)
    await listener.stop()
    await listener.start()
    await listener.stop()
    await listener.stop()


async def test_stopping_does_not_wait_for_one_who_sits_there(server: Server) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET")
    await server.ask("GET", "/healthz")
    async with asyncio.timeout(2):
        await server.listener.stop()
    writer.close()

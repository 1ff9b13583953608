"""``edges.listener``, ``edges.web_connection``: slow and large heads, readers who do not read, lost ones; TLS 1.3."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import ipaddress
import logging
import re
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.types import Scope, Send

from tests.unit.edges.web import BOUND_S, CLOSE, JSON, Pages, Server, wait_until
from trunkline.edges import listener, log_lines, patience, web_connection
from trunkline.edges.address import Address
from trunkline.edges.edge import EdgeOff
from trunkline.edges.listener import WebListener
from trunkline.edges.request_scope import ANSWER
from trunkline.edges.tls import server_context
from trunkline.edges.web_connection import Connection
from trunkline.errors import ConfigError


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as running:
        yield running


async def test_nothing_of_an_answered_request_is_left_to_the_collector() -> None:
    cycles: list[ref[Any]] = []

    async def app(scope: Scope, receive: Any, _: Send) -> None:
        cycles.append(ref(receive.__self__))
        scope["extensions"][ANSWER](200, b"{}")

    serving = WebListener(app, Address("127.0.0.1", 0, "test"))
    await serving.start()
    reader, writer = await asyncio.open_connection(*serving.url.removeprefix("http://").split(":"))
    gc.disable()
    try:
        async with asyncio.timeout(BOUND_S):
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n{}")
        assert len(cycles) == 2
        assert cycles[0]() is None
    finally:
        gc.enable()
        writer.close()
        await serving.stop()


# --- heads and bodies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"", b"\r\n", b"GET /quick HTTP/1.1\r\nHost: x\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(web_connection, "HEAD_TIMEOUT_S", 0.05)
    reader, writer = await server.connect()
    writer.write(start)
    async with asyncio.timeout(BOUND_S):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_a_byte_now_and_then_does_not_move_the_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connection, "HEAD_TIMEOUT_S", 0.2)
    _, writer = await server.connect()
    started = asyncio.get_running_loop().time()
    async with asyncio.timeout(BOUND_S):
        for byte in server.head() * 100:
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
    reader, writer = await server.connect()
    writer.write(server.head())
    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"\r\n\r\n")
        monkeypatch.setattr(web_connection, "HEAD_TIMEOUT_S", 0.05)
        writer.write(b"GET /quick HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    writer.close()


async def test_a_head_larger_than_the_limit_is_431(server: Server) -> None:
    answer = await server.said(b"GET / HTTP/1.1\r\nX: " + b"x" * (web_connection.MAX_HEAD_BYTES + 1))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"message.malformed"' in answer


async def test_a_whole_head_in_one_read_is_judged_by_its_own_size(server: Server) -> None:
    most = web_connection.MAX_HEAD_BYTES - len(server.head(more=f"{CLOSE}X: \r\n"))
    assert (await server.said(server.head(more=f"{CLOSE}X: {'x' * most}\r\n"))).startswith(b"HTTP/1.1 200 ")
    for large in (f"X: {'x' * 100_000}\r\n", "X: y\r\n" * 10_000):
        answer = await server.said(server.head(more=large))
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_large_head_right_behind_another_request_is_431(server: Server) -> None:
    large = server.head(more=f"{CLOSE}X: {'x' * 100_000}\r\n")
    answer = await server.said(server.head() + large)
    assert b"HTTP/1.1 431 " in answer
    assert answer.count(b'"ok"') <= 1


async def test_a_body_larger_than_the_head_limit_is_no_head(server: Server) -> None:
    body = b'"' + b"x" * 2 * web_connection.MAX_HEAD_BYTES + b'"'
    more = f"{JSON}Content-Length: {len(body)}\r\n{CLOSE}"
    answer = await server.said(server.head("POST", "/body", more) + body)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert server.pages.read == [body]


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 50]
)
async def test_what_is_not_http_gets_an_error_in_our_shape(server: Server, data: bytes) -> None:
    answer = await server.said(data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":{"code":"message.malformed"' in answer


async def test_a_body_that_does_not_come_is_408(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connection, "BODY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(web_connection, "LINGER_S", 0.05)
    answer = await server.said(server.head("POST", "/body", f"{JSON}Content-Length: 50\r\n") + b"{")
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_declared_body_that_is_too_large_is_refused_before_it_is_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_connection, "LINGER_S", 0.05)
    answer = await server.said(server.head("POST", "/body", f"{JSON}Content-Length: 99999999999\r\n"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert not server.pages.read


async def test_every_answer_says_that_nothing_is_to_be_kept_or_guessed(server: Server) -> None:
    answer = (await server.said(server.head(more=CLOSE))).lower()
    assert b"cache-control: no-store\r\n" in answer
    assert b"x-content-type-options: nosniff\r\n" in answer
    assert b"\r\nserver:" not in answer
    assert b"\r\ndate:" not in answer


# --- readers ----------------------------------------------------------------------------------------------------------


async def test_a_reader_who_does_not_read_is_dropped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "WRITE_TIMEOUT_S", 0.05)
    sock = socket.create_connection(("127.0.0.1", server.port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(server.head(path="/large"))
    await wait_until(lambda: bool(server.connections.connections))
    async with asyncio.timeout(BOUND_S):
        await server.connections.gone.wait()
    sock.close()


async def test_a_connection_on_which_nothing_is_asked_any_more_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_connection, "KEEP_ALIVE_S", 0.02)
    reader, writer = await server.connect()
    writer.write(server.head())
    async with asyncio.timeout(BOUND_S):
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        await server.connections.gone.wait()
    writer.close()


async def test_each_rest_of_a_connection_counts_for_itself(server: Server) -> None:
    reader, writer = await server.connect()
    await wait_until(lambda: bool(server.connections.connections))
    (connection,) = server.connections.connections
    assert isinstance(connection, Connection)
    for _ in range(2):
        writer.write(server.head())
        async with asyncio.timeout(BOUND_S):
            assert b"200" in await reader.readuntil(b"\r\n\r\n")
        await wait_until(lambda: connection.is_idle)
        # The timer of an earlier rest is due in the middle of this one.
        assert connection._rest_timer is not None
        connection._rest_timer.cancel()
        connection._look_at_rest()
        assert not connection.transport.is_closing()
        assert connection._rest_timer is not None
    writer.close()


async def test_an_idle_connection_makes_room_and_a_busy_one_does_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_connection, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(web_connection, "RESERVED_CONNECTIONS", 0)
    busy = []
    for _ in range(2):
        reader, writer = await server.connect()
        writer.write(server.head(path="/lasting"))
        await reader.readuntil(b"\r\n\r\n")
        busy.append(writer)
    answer = await server.said(server.head())
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"limit.resource" in answer
    busy[0].transport.abort()
    await wait_until(lambda: server.pages.lasting == 1)
    idle_reader, idle = await server.connect()
    idle.write(server.head())
    await idle_reader.readuntil(b"\r\n\r\n")
    answer = await server.said(server.head(more=CLOSE))
    assert answer.startswith(b"HTTP/1.1 200 ")
    for writer in (*busy, idle):
        writer.close()


async def test_many_requests_on_one_connection_and_pipelined_ones_are_answered_in_order(server: Server) -> None:
    answer = await server.said(server.head() + server.head(path="/nothing") + server.head(path="/quick", more=CLOSE))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


async def test_who_waits_for_something_is_told_when_its_reader_is_lost(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(server.head(path="/lasting"))
    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"on")
        writer.transport.abort()
        await server.pages.lost.wait()


async def test_who_was_answered_is_not_told_of_the_end_of_the_connection(server: Server) -> None:
    server.pages.goes_on.set()
    answer = await server.said(server.head(path="/lasting", more=CLOSE))
    assert answer.endswith(b"off\r\n0\r\n\r\n")
    await server.connections.gone.wait()
    assert not server.pages.lost.is_set()


# --- start and stop ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "kind"),
    [({"is_given": True}, ConfigError), ({"is_needed": True}, ConfigError), ({}, EdgeOff)],
    ids=["chosen", "needed", "default"],
)
async def test_a_taken_address_is_an_error_where_it_was_chosen_or_is_needed_and_else_turns_the_edge_off(
    server: Server, terms: dict[str, bool], kind: type[Exception]
) -> None:
    address = Address("127.0.0.1", server.port, "pylon", "http_listen", **terms)
    second = WebListener(server.pages.app(), address)
    place = re.escape(f"127.0.0.1:{server.port}")
    with pytest.raises(kind, match=f"{place}: cannot listen here: .*in use; .* address in \\[pylon\\] http_listen"):
        await second.start()
    await second.stop()


async def test_the_address_in_use_is_told(server: Server) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", server.listener.url)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
async def test_an_address_of_version_6_stands_in_brackets() -> None:
    async with Server(host="::1") as server:
        assert re.fullmatch(r"http://\[::1\]:[1-9]\d*", server.listener.url)


async def test_stopping_twice_or_before_the_start_does_nothing() -> None:
    stopped = WebListener(Pages().app(), Address("127.0.0.1", 0, "http"))
    stopped.close()
    await stopped.stop()
    await stopped.start()
    await stopped.stop()
    await stopped.stop()


async def test_stopping_does_not_wait_for_one_who_sits_there(server: Server) -> None:
    _, writer = await server.connect()
    writer.write(b"GET")
    await server.said(server.head(more=CLOSE))
    async with asyncio.timeout(2):
        await server.listener.stop()
    writer.close()


async def test_stopping_lets_an_answer_that_is_on_its_way_leave(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(server.head(path="/lasting"))
    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"on")
        stopping = asyncio.create_task(server.listener.stop())
        await asyncio.sleep(0)
        server.pages.goes_on.set()
        assert (await reader.read()).endswith(b"off\r\n0\r\n\r\n")
        await stopping
    with pytest.raises(OSError):
        await server.connect()
    writer.close()


async def test_stopping_cuts_off_an_answer_that_does_not_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "STOP_S", 0.05)
    reader, writer = await server.connect()
    writer.write(server.head(path="/lasting"))
    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"on")
        await server.listener.stop()
        with contextlib.suppress(ConnectionResetError):
            assert not (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()


def test_a_request_that_the_end_of_the_exchange_canceled_is_no_defect() -> None:
    try:
        raise asyncio.CancelledError
    except asyncio.CancelledError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "x", (), sys.exc_info())
    assert not listener.without_text(record)


def test_of_many_lines_in_a_minute_only_some_are_written() -> None:
    few = log_lines.FewLines()

    def written(at: float) -> bool:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "x", (), None)
        record.created = at
        return few.filter(record)

    assert [written(1000 + n / 100) for n in range(500)].count(True) == log_lines.LOG_LINES_A_MINUTE
    assert written(1061)
    assert written(5), "a clock that was set back is no reason to be silent"


async def test_a_peer_that_finds_a_defect_cannot_fill_the_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("uvicorn.error")
    for _ in range(3 * log_lines.LOG_LINES_A_MINUTE):
        log.error("a defect")
    assert len(caplog.records) == log_lines.LOG_LINES_A_MINUTE
    await server.listener.stop()
    log.error("after the listener")
    assert caplog.records[-1].message == "after the listener"


def test_a_defect_is_logged_without_its_text() -> None:
    try:
        raise RuntimeError("canary")
    except RuntimeError:
        info = sys.exc_info()
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "Exception in ASGI application", (), info)
    assert listener.without_text(record)
    text = logging.Formatter().format(record)
    assert "canary" not in text
    assert text.startswith("a request failed: RuntimeError at ")
    assert "test_listener.py:" in text


# --- TLS --------------------------------------------------------------------------------------------------------------


class Certificates:
    """A certificate for this machine that vouches for itself, and its key, as files."""

    def __init__(self, folder: Path, name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(here, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.certificate, self.key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
        Path(self.certificate).write_bytes(made.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        Path(self.key).write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))

    def client(self) -> ssl.SSLContext:
        """Somebody who knows this certificate."""
        return ssl.create_default_context(cafile=self.certificate)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"), "theirs")


async def over_tls(server: Server, client: ssl.SSLContext) -> bytes:
    async with asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=client)
        try:
            writer.write(server.head(more=CLOSE))
            return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_over_tls_the_same_is_said(ours: Certificates) -> None:
    async with Server(server_context(ours.certificate, ours.key)) as server:
        assert server.listener.url.startswith("https://127.0.0.1:")
        client = ours.client()
        client.minimum_version = ssl.TLSVersion.TLSv1_3
        answer = await over_tls(server, client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"ok":true}')


async def test_a_client_that_offers_less_than_1_3_is_refused(ours: Certificates) -> None:
    defects: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(context))
    old = ours.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with Server(server_context(ours.certificate, ours.key)) as server:
        with pytest.raises(OSError):
            await over_tls(server, old)
        assert (await over_tls(server, ours.client())).startswith(b"HTTP/1.1 200 "), "others are served as before"
    lenient = server_context(ours.certificate, ours.key)
    lenient.minimum_version = ssl.TLSVersion.TLSv1_2
    async with Server(lenient) as server:
        assert (await over_tls(server, old)).startswith(b"HTTP/1.1 200 "), "nothing else is wrong with that client"
    assert defects == []


async def test_where_clients_have_to_show_a_certificate_none_and_a_strangers_are_refused(
    ours: Certificates, theirs: Certificates
) -> None:
    async with Server(server_context(ours.certificate, ours.key, theirs.certificate, required=True)) as server:
        known = ours.client()
        known.load_cert_chain(theirs.certificate, theirs.key)
        assert (await over_tls(server, known)).startswith(b"HTTP/1.1 200 ")
        stranger = ours.client()
        stranger.load_cert_chain(ours.certificate, ours.key)
        for client in (ours.client(), stranger):
            answer = b""
            with contextlib.suppress(OSError):
                answer = await over_tls(server, client)
            assert answer == b""


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"])
async def test_a_handshake_that_does_not_come_ends_the_connection(
    ours: Certificates, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(web_connection, "HEAD_TIMEOUT_S", 0.05)
    async with Server(server_context(ours.certificate, ours.key)) as server:
        reader, writer = await server.connect()
        writer.write(said)
        async with asyncio.timeout(BOUND_S):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()


async def test_who_speaks_plain_http_to_a_tls_listener_is_not_answered(ours: Certificates) -> None:
    async with Server(server_context(ours.certificate, ours.key)) as server:
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = await server.said(server.head())
        assert not answer.startswith(b"HTTP")


def test_a_file_that_cannot_be_used_is_named(ours: Certificates, theirs: Certificates, tmp_path: Path) -> None:
    noise = tmp_path / "noise.pem"
    noise.write_text("noise")
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match=f"{re.escape(missing)}: cannot be read: No such file"):
        server_context(missing, ours.key)
    with pytest.raises(ConfigError, match=f"{re.escape(ours.certificate)}: cannot be used for TLS: "):
        server_context(ours.certificate, theirs.key)
    for wrong in (missing, str(noise)):
        with pytest.raises(ConfigError, match=re.escape(wrong)):
            server_context(ours.certificate, ours.key, wrong)

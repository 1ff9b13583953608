"""``edges.tls``: our certificate is made once, nothing older than 1.3 is spoken, and a pin lets nobody else in."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect

from tests.unit.edges.web import BOUND_S, Server, wait_until
from trunkline.edges import client, tls, web_connection
from trunkline.edges.address import Address
from trunkline.edges.answers import application, json_answer
from trunkline.edges.client import Answer, Unreachable
from trunkline.edges.listener import WebListener
from trunkline.edges.request_scope import peer_pin
from trunkline.errors import ConfigError
from trunkline.testing.memory import MemoryExchange

WALL = 1_800_000_000.0


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tls.own_certificate(tmp_path_factory.mktemp("ours"), time.time())


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tls.own_certificate(tmp_path_factory.mktemp("theirs"), time.time())


def pin_in(path: Path) -> str:
    """The pin of the certificate in a file, by OpenSSL's own reading of it."""
    return tls.pin_of(ssl.PEM_cert_to_DER_cert(tls.shown_certificate(path).decode()))


def trusting(path: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=tls.shown_certificate(path).decode())


# --- our own ----------------------------------------------------------------------------------------------------------


def test_our_certificate_is_made_once_for_this_machine_and_ten_years(tmp_path: Path) -> None:
    path = tls.own_certificate(tmp_path / "keys", WALL)
    assert path.stat().st_mode & 0o777 == 0o600
    made = path.read_bytes()
    assert tls.own_certificate(tmp_path / "keys", WALL + 1e6) == path
    assert path.read_bytes() == made, "the same after a restart"
    assert tls.own_certificate(tmp_path / "others", WALL).read_bytes() != made
    shown = tls.shown_certificate(path)
    assert b"PRIVATE" not in shown
    found = x509.load_pem_x509_certificate(shown)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in names] == ["127.0.0.1", "::1", "localhost"]
    assert found.public_key().curve.name == "secp256r1"  # type: ignore[union-attr]
    now = dt.datetime.fromtimestamp(WALL, dt.UTC)
    assert found.not_valid_before_utc < now
    assert dt.timedelta(days=3650) < found.not_valid_after_utc - now < dt.timedelta(days=3660)


def test_a_certificate_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    tls.own_certificate(tmp_path, WALL).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        tls.own_certificate(tmp_path, WALL)


def test_a_pin_is_the_hash_of_the_public_key_as_openssl_computes_it(own: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    command = f"openssl x509 -pubkey -noout -in {own} | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary"
    digest = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=BOUND_S).stdout
    assert pin_in(own) == base64.b64encode(digest).decode()


# --- who comes to us --------------------------------------------------------------------------------------------------


async def asked(port: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> bytes:
    request = b"GET /quick HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_who_trusts_our_certificate_reaches_us_by_each_name(own: Path, host: str) -> None:
    async with Server(tls.server_context(own)) as server:
        assert (await asked(server.port, trusting(own), host)).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ssl.SSLCertVerificationError):
            await asked(server.port, trusting(own), "example.com")


@pytest.mark.parametrize(("flag", "is_taken"), [("-tls1_2", False), ("-tls1_3", True)])
async def test_openssl_gets_through_with_1_3_only(own: Path, flag: str, is_taken: bool) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    async with Server(tls.server_context(own)) as server:
        process = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", flag, "-connect", f"127.0.0.1:{server.port}", "-CAfile", str(own)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        async with asyncio.timeout(BOUND_S):
            said, _ = await process.communicate()
    assert (process.returncode == 0) is is_taken
    assert (b"TLSv1.3" in said and b"Verify return code: 0" in said) is is_taken


@pytest.fixture
async def secured(own: Path, other: Path) -> AsyncIterator[tuple[int, list[str]]]:
    """An edge's own listener: one route and one WebSocket, over TLS. Its port, and whom it has seen."""
    seen: list[str] = []

    async def route(request: Request) -> Response:
        seen.append(peer_pin(request.scope))
        return json_answer({"ok": True})

    async def talk(websocket: WebSocket) -> None:
        seen.append(peer_pin(websocket.scope))
        await websocket.accept()
        await websocket.send_text(websocket.url.scheme)
        await websocket.close()

    app = application(MemoryExchange().feed, {"/quick": {"GET": route}}, WebSocketRoute("/ws", talk))
    context = tls.server_context(own, authorities=other)
    listening = WebListener(app, Address("127.0.0.1", 0, "ossa"), context)
    await listening.start()
    yield int(listening.url.rpartition(":")[2]), seen
    await listening.stop()


async def test_an_edge_has_http_and_websockets_over_tls_and_knows_who_showed_a_certificate(
    own: Path, other: Path, secured: tuple[int, list[str]]
) -> None:
    port, seen = secured
    known = trusting(own)
    known.load_cert_chain(other)
    for context in (trusting(own), known):
        assert (await asked(port, context)).startswith(b"HTTP/1.1 200 ")
        async with asyncio.timeout(BOUND_S), connect(f"wss://127.0.0.1:{port}/ws", ssl=context, proxy=None) as talk:
            assert await talk.recv() == "wss"
    assert seen == ["", "", pin_in(other), pin_in(other)]


async def test_a_certificate_that_nobody_vouches_for_is_refused(own: Path, secured: tuple[int, list[str]]) -> None:
    stranger = trusting(own)
    stranger.load_cert_chain(own)
    answer = b""
    with contextlib.suppress(OSError):
        answer = await asked(secured[0], stranger)
    assert answer == b""
    assert secured[1] == []


# --- handshakes that do not come --------------------------------------------------------------------------------------


def bare(port: int) -> socket.socket:
    """Somebody who connects and says nothing."""
    return socket.create_connection(("127.0.0.1", port), BOUND_S)


async def test_a_handshake_that_never_ends_counts_as_a_connection_until_it_is_cut_off(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert web_connection.HEAD_TIMEOUT_S <= 10
    monkeypatch.setattr(web_connection, "HEAD_TIMEOUT_S", 0.3)
    async with Server(tls.server_context(own)) as server:
        with bare(server.port) as silent:
            await wait_until(lambda: len(server.connections.handshakes) == 1)
            await wait_until(lambda: not server.connections.handshakes)
            silent.settimeout(BOUND_S)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(silent.recv, 1) == b""


async def test_the_oldest_of_too_many_handshakes_makes_room(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connection, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(web_connection, "RESERVED_CONNECTIONS", 1)
    async with Server(tls.server_context(own)) as server:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(bare(server.port)) for _ in range(4)]
            await wait_until(lambda: len(server.connections.handshakes) == 4)
            assert (await asked(server.port, trusting(own))).startswith(b"HTTP/1.1 200 ")
            assert len(server.connections.handshakes) == 3
            silent[0].settimeout(BOUND_S)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(silent[0].recv, 1) == b""
            silent[1].setblocking(False)
            with pytest.raises(BlockingIOError):
                silent[1].recv(1)


async def test_a_listener_that_stops_waits_for_no_handshake(own: Path) -> None:
    async with Server(tls.server_context(own)) as server:
        silent = bare(server.port)
        await wait_until(lambda: len(server.connections.handshakes) == 1)
    with silent:
        silent.settimeout(BOUND_S)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(silent.recv, 1) == b""


# --- whom we go to ----------------------------------------------------------------------------------------------------


async def test_a_pin_stands_for_the_chain_of_trust_and_another_key_is_nobody(own: Path, other: Path) -> None:
    async with Server(tls.server_context(own)) as server:
        url = f"https://localhost:{server.port}/quick"
        trusted = tls.client_context(pin_in(own))
        assert await client.request(url, "GET", timeout_s=BOUND_S, tls=trusted) == Answer(200, b'{"ok":true}')
        for nobody in (tls.client_context(pin_in(other)), tls.client_context("A" * 43 + "="), tls.client_context()):
            with pytest.raises(Unreachable, match=r"its certificate is not trusted"):
                await client.request(url, "GET", timeout_s=BOUND_S, tls=nobody)
        assert server.pages.exchange.died is None


async def test_a_pin_holds_for_sockets_without_a_loop_too(own: Path, other: Path) -> None:
    async with Server(tls.server_context(own)) as server:

        def version(pin: str) -> str | None:
            with bare(server.port) as plain, tls.client_context(pin).wrap_socket(plain) as wrapped:
                return wrapped.version()

        assert await asyncio.to_thread(version, pin_in(own)) == "TLSv1.3"
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(version, pin_in(other))


async def test_we_do_not_speak_anything_older_to_others_either(own: Path) -> None:
    old = tls.server_context(own)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with Server(old) as server:
        url = f"https://127.0.0.1:{server.port}/quick"
        with pytest.raises(Unreachable):
            await client.request(url, "GET", timeout_s=BOUND_S, tls=tls.client_context(pin_in(own)))

"""Who may connect to the bridge, and how connections end."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
import time
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.pylon import CODEX, SYSTEM, pusher
from tests.requirement import requirement
from tests.unit.edges.pylon.kit import OPEN, started
from trunkline.edges import tls
from trunkline.edges.pylon import serve
from trunkline.edges.pylon.serve import is_allowed_origin


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://localhost:5173", True),
        ("https://127.0.0.1:8443", True),
        ("http://[::1]:3000", True),
        ("https://app.example", True),
        ("HTTPS://APP.EXAMPLE", True),
        ("https://app.example:8443", False),
        ("http://app.example", False),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://localhost@evil.example", False),
        ("http://evil.example#localhost", False),
        ("http://x@localhost", False),
        ("http://localhost/path", False),
        ("http://localhost:port", False),
        ("http://[::1", False),
        ("file://", False),
        ("null", False),
        ("", False),
        ("chrome-extension://localhost", False),
    ],
)
def test_pages_of_this_machine_and_those_that_are_named_may_connect(origin: str, allowed: bool) -> None:
    assert is_allowed_origin(origin, ("https://app.example",)) is allowed


async def test_a_page_of_another_origin_or_under_another_name_is_turned_away(tmp_path: Path) -> None:
    async with started(tmp_path, allowed_origins=("https://app.example",)) as kit:
        port = kit.url.rpartition(":")[2]
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Host": "evil.example"},
            {"Host": f"evil.example:{port}"},
            {"Host": "127.0.0.1:1"},
            {"Host": f"rebound.localhost:{port}"},
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with pusher(kit.url, additional_headers=headers):
                    raise AssertionError("it was let in")
            assert refused.value.response.status_code == 403
        assert kit.edge.status()["turned_away"] == 6
        for headers in ({"Origin": "https://app.example"}, {"Origin": "http://localhost:5173"}, {}):
            async with pusher(kit.url, additional_headers=headers) as client:
                assert client.socket_id


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/app/other-key?protocol=7", 4001),
        ("/app/LOCAL-KEY?protocol=7", 4001),
        ("/app/?protocol=7", 4005),
        ("/app/local-key/x?protocol=7", 4005),
        ("/app/local-key?protocol=4", 4007),
        ("/app/local-key?protocol=8", 4007),
        ("/app/local-key?protocol=", 4006),
        ("/app/local-key?protocol=seven", 4006),
    ],
)
@requirement("OA-018")
async def test_a_wrong_key_or_version_is_told_and_ends_the_connection(tmp_path: Path, path: str, code: int) -> None:
    async with started(tmp_path) as kit, pusher(kit.url, path, welcome=False) as client:
        assert (await client.frame())["data"]["code"] == code
        assert await client.closed() == code
        assert kit.edge.server.clients == {}


@pytest.mark.parametrize("path", ["/app/local-key", "/app/local-key?protocol=5", "/app/local-key?x=%ff&protocol=7"])
async def test_a_client_that_names_no_version_or_an_older_one_is_welcome(tmp_path: Path, path: str) -> None:
    async with started(tmp_path) as kit, pusher(kit.url, path) as client:
        assert client.socket_id.count(".") == 1


async def test_another_path_is_not_there_and_the_root_is_for_a_browser(tmp_path: Path) -> None:
    async with started(tmp_path) as kit, httpx.AsyncClient(base_url=kit.url.replace("ws", "http", 1)) as http:
        assert (await http.get("/")).text == serve.PAGE
        for path in ("/app/local-key", "/apps", "/v1/status"):
            assert (await http.get(path)).status_code == 404
        assert (await http.post("/")).status_code == 404
        assert (await http.get("/", headers={"Origin": "https://evil.example"})).status_code == 403
        with pytest.raises(InvalidStatus) as refused:
            async with pusher(kit.url, "/other"):
                raise AssertionError("it was let in")
        assert refused.value.response.status_code == 404


async def test_no_more_than_so_many_clients_are_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_CLIENTS", 2)
    async with started(tmp_path) as kit, kit.client():
        async with kit.client(), pusher(kit.url, welcome=False) as third:
            assert await third.closed() == 4100
        await kit.until(lambda: len(kit.edge.server.clients) == 1)
        async with kit.client() as fourth:
            assert fourth.socket_id


async def test_private_and_presence_channels_work_for_whoever_can_sign(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit:
        file = tmp_path / "keys" / "pylon.secret"
        assert file.stat().st_mode & 0o077 == 0
        secret = file.read_bytes().strip()
        assert secret.startswith(b"tlk_")

        def auth(socket_id: str, channel: str, *more: str) -> str:
            signed = ":".join([socket_id, channel, *more]).encode()
            return "local-key:" + hmac.new(secret, signed, hashlib.sha256).hexdigest()

        async with kit.client() as ann, kit.client() as bob:
            private = "private-pylon.codex"
            await ann.subscribe(private, auth=auth(ann.socket_id, private))
            await ann.send("client-codex.connect", {"workspaceId": "ws", "cwd": "/w"}, private)
            await ann.next("pylon.codex.status", status="connected")
            presence = "presence-pylon.system"
            about = json.dumps({"user_id": "ann", "user_info": {"name": "Ann"}})
            roster = await ann.subscribe(presence, auth=auth(ann.socket_id, presence, about), channel_data=about)
            assert roster["presence"] == {"count": 1, "ids": ["ann"], "hash": {"ann": {"name": "Ann"}}}
            about = json.dumps({"user_id": "bob"})
            await bob.subscribe(presence, auth=auth(bob.socket_id, presence, about), channel_data=about)
            assert (await ann.next("pusher_internal:member_added"))["user_id"] == "bob"
            await bob.send("pusher:unsubscribe", {"channel": presence})
            assert (await ann.next("pusher_internal:member_removed")) == {"user_id": "bob"}
            await bob.send("pusher:subscribe", {"channel": private, "auth": auth(ann.socket_id, private)})
            assert (await bob.next("pusher:subscription_error"))["status"] == 401


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_cut_off_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.edges.pylon.serve.MAX_WAITING_BYTES", 2_000_000)
    async with started(tmp_path, OPEN) as kit, kit.connected() as (slow, program), kit.connected() as (other, same):
        assert same is program
        slow.socket.transport.pause_reading()
        text = "x" * 500_000
        for n in range(60):
            program.say({"method": "item/delta", "params": {"n": n, "text": text}})
            assert (await other.next("pylon.codex.event"))["message"]["params"]["n"] == n
            if len(kit.edge.server.clients) == 1:
                break
        await kit.until(lambda: len(kit.edge.server.clients) == 1)
        await other.send("client-codex.request", {"workspaceId": "ws_1", "requestId": 1, "method": "x"}, CODEX)
        assert (await program.next())["method"] == "x"
        slow.socket.transport.abort()


async def test_a_flood_of_events_costs_nobody_else(tmp_path: Path) -> None:
    async with started(tmp_path) as kit, kit.client(SYSTEM) as flooder, kit.client(SYSTEM) as other:
        for _ in range(3000):
            await flooder.send("client-pylon.discover", {}, SYSTEM)
        await other.send("client-pylon.ping", {}, SYSTEM)
        assert await other.next("pylon.system.pong")
        assert (await flooder.next("pusher:error"))["code"] == 4301
        shown = [frame for frame in flooder.seen if frame["event"] == "pylon.capabilities"]
        assert len(shown) <= 40


async def test_a_defect_ends_one_connection_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(tmp_path) as kit, kit.client(SYSTEM) as victim, kit.client(SYSTEM) as other:
        await other.next("pylon.capabilities")
        client = kit.edge.server.clients[victim.socket_id]

        def broken(_: object) -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr(client, "_take", broken)
        await victim.send("client-pylon.ping", {}, SYSTEM)
        assert await victim.closed() == 4200
        await other.send("client-pylon.ping", {}, SYSTEM)
        assert await other.next("pylon.system.pong")
        kit.defects = 1


async def test_a_defect_in_one_workspace_ends_it_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        started(tmp_path, OPEN) as kit,
        kit.connected("ws_1") as (client, program),
        kit.connected("ws_2") as (other, well),
    ):
        workspace = kit.edge.server.agent._workspaces["ws_1", "/w"]

        def broken(_: object) -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr(workspace, "_heard", broken)
        program.say({"method": "x"})
        assert (await client.next("pylon.codex.status"))["status"] == "failed"
        assert program.is_stopped
        well.say({"method": "y"})
        assert (await other.next("pylon.codex.event"))["message"] == {"method": "y"}
        assert not well.is_stopped
        kit.defects = 1


async def test_clients_are_told_when_the_exchange_stops_and_codex_ends_with_it(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        stopping = asyncio.ensure_future(kit.exchange.edges.stop())
        assert await client.closed() == 4101
        await stopping
        assert program.is_over


@requirement("OA-017")
async def test_it_speaks_tls_with_the_exchanges_own_certificate(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    shown = tls.shown_certificate(tls.own_certificate(tmp_path / "keys", time.time()))
    context = ssl.create_default_context(cadata=shown.decode())
    async with started(tmp_path, tls=True) as kit:
        assert kit.url.startswith("wss://127.0.0.1:")
        async with pusher(kit.url, context=context) as client:
            await client.subscribe(SYSTEM)
        with pytest.raises(ssl.SSLCertVerificationError):
            async with pusher(kit.url, context=ssl.create_default_context()):
                raise AssertionError("it was trusted")
        old = ssl.create_default_context(cadata=shown.decode())
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with pusher(kit.url, context=old):
                raise AssertionError("it spoke TLS 1.2")

"""Pylon as a whole: a real exchange, a stand-in for codex as a real process, and a client over TLS."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pylon import CODEX, SYSTEM, Pusher, pusher
from tests.requirement import requirement
from tests.running import Running, running, wait_until
from trunkline.config import Config
from trunkline.config_file import load
from trunkline.edges import tls
from trunkline.errors import ConfigError
from trunkline.home import Home

STAND_IN = Path(__file__).parent.parent / "codex_app_server.py"
COMMAND = "item/commandExecution/requestApproval"
CONFIG = f"""
[pylon]
listen = "127.0.0.1:0"
codex = ["{sys.executable}", "{STAND_IN}"]

[ossa]
listen = ""
"""
LETS_IN = """
[[policy.rule]]
caller = "pylon:local-key"
tool = "pylon.codex/connect"
decision = "allow"
"""


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("pylon") / "home", CONFIG + LETS_IN) as found:
        yield found


def trusting(exchange: Running) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=tls.shown_certificate(exchange.home / "keys" / tls.OWN_FILE).decode())


@asynccontextmanager
async def client(exchange: Running, *channels: str) -> AsyncIterator[Pusher]:
    async with pusher(exchange.ready["pylon"], context=trusting(exchange)) as found:
        for channel in channels:
            await found.subscribe(channel)
        yield found


@asynccontextmanager
async def connected(exchange: Running, cwd: Path, workspace: str = "ws_1") -> AsyncIterator[Pusher]:
    async with client(exchange, CODEX) as found:
        await found.codex("connect", workspaceId=workspace, cwd=str(cwd))
        await found.next("pylon.codex.status", status="connected")
        yield found


async def asked(client: Pusher, method: str, params: object = None, **more: Any) -> Any:
    request = {"workspaceId": "ws_1", "requestId": "r", "method": method, "params": params or {}, **more}
    await client.codex("request", **request)
    return await client.next("pylon.codex.response")


def stand_ins() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if str(STAND_IN) in (one.info["cmdline"] or [])]


@requirement("OA-015", "OA-017", "OA-018")
def test_the_default_address_is_loopback_and_another_is_refused(tmp_path: Path) -> None:
    pylon = Config().pylon
    assert (pylon.listen, pylon.app_key, pylon.tls) == ("127.0.0.1:8081", "local-key", True)
    for listen in ("0.0.0.0:8081", "192.168.1.1:8081", "[::]:8081"):
        with pytest.raises(ConfigError, match="not loopback"):
            load(Home(tmp_path), None, {"TRUNKLINE_PYLON_LISTEN": listen})


@requirement("OA-015")
def test_it_is_not_reached_by_another_address_of_this_machine(exchange: Running) -> None:
    port = int(exchange.ready["pylon"].rpartition(":")[2])
    pid = exchange.ready["pid"]
    bound = [one.laddr for one in psutil.Process(pid).net_connections("inet") if one.laddr.port == port]
    assert {address.ip for address in bound} == {"127.0.0.1"}
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port), 5):
        pass


@requirement("OA-017", "OA-019", "OA-021", "OA-022", "OA-023", "OA-035")
async def test_a_client_over_tls_sees_the_tools_and_sees_them_change(exchange: Running) -> None:
    assert exchange.ready["pylon"].startswith("wss://127.0.0.1:")
    async with client(exchange, SYSTEM) as found:
        first = await found.next("pylon.capabilities")
        assert {"timestamp", "pylon", "codex", "tools"} <= set(first)
        assert first["codex"] == {"enabled": True, "available": True}
        await found.send("client-pylon.ping", {}, SYSTEM)
        assert "timestamp" in await found.next("pylon.system.pong")
        made = await asyncio.to_thread(exchange.request, "POST", "/v1/spaces", {"name": "shown"})
        assert made[0] in {200, 201}
        wanted = "space.shown/"
        pushed = await found.next("pylon.capabilities")
        assert any(tool["tool_id"].startswith(wanted) for tool in pushed["tools"])
        await found.send("client-pylon.discover", {}, SYSTEM)
        again = await found.next("pylon.capabilities")
        assert any(tool["tool_id"].startswith(wanted) for tool in again["tools"])


@requirement("OA-020", "OA-024", "OA-025", "OA-026", "OA-027", "OA-029", "OA-031", "OA-033")
async def test_requests_are_answered_by_codex_in_the_folder_and_notifications_are_forwarded(
    exchange: Running, tmp_path: Path
) -> None:
    async with connected(exchange, tmp_path) as found:
        said = await asked(found, "thread/start")
        assert said == {"workspace_id": "ws_1", "request_id": "r", "ok": True, "result": {"thread": {"id": "thread_1"}}}
        event = await found.next("pylon.codex.event")
        assert event["workspace_id"] == "ws_1"
        assert event["message"] == {"method": "thread/started", "params": {"thread": {"id": "thread_1"}}}
        failed = await asked(found, "no/such", requestId=7)
        assert (failed["request_id"], failed["ok"], "result" in failed) == (7, False, False)
        assert failed["error"]["code"] == -32601
        assert (await asked(found, "initialize"))["result"]["cwd"] == str(tmp_path)
        large = {"text": "é" * 100_000}
        assert (await asked(found, "echo", large))["result"] == large


@requirement("OA-028", "OA-029")
async def test_what_cannot_be_used_is_told_as_an_error(exchange: Running) -> None:
    async with client(exchange, CODEX) as found:
        for payload, word in (({"workspaceId": "ws_1"}, "cwd"), ({"cwd": "/"}, "workspaceId")):
            await found.codex("connect", **payload)
            said = await found.next("pylon.codex.error")
            assert set(said) == {"workspace_id", "message"}
            assert word in said["message"]


@requirement("OA-027", "OA-030")
async def test_after_disconnect_a_request_fails_and_the_process_is_gone(exchange: Running, tmp_path: Path) -> None:
    async with connected(exchange, tmp_path) as found:
        [process] = [one for one in stand_ins() if one.cwd() == str(tmp_path)]
        await found.codex("disconnect", workspaceId="ws_1")
        assert (await found.next("pylon.codex.status"))["status"] == "disconnected"
        said = await asked(found, "echo")
        assert (said["ok"], said["error"]["code"]) == (False, "not_found")
        await asyncio.to_thread(wait_until, lambda: not process.is_running(), "the end of codex")


@requirement("OA-032")
async def test_an_approval_is_resolved_by_the_client(exchange: Running, tmp_path: Path) -> None:
    async with connected(exchange, tmp_path) as found:
        await asked(found, "ask", {"id": 0, "method": COMMAND, "params": {"command": "ls"}})
        event = await found.next("pylon.codex.event")
        assert event["message"] == {"id": 0, "method": COMMAND, "params": {"command": "ls"}}
        await found.codex("respond", workspaceId="ws_1", requestId=0, result={"decision": "accept"})
        answered = await found.next("pylon.codex.event")
        assert answered["message"]["params"] == {"id": 0, "result": {"decision": "accept"}}


@requirement("OA-032")
async def test_or_by_a_person_at_the_exchange(exchange: Running, tmp_path: Path) -> None:
    async with connected(exchange, tmp_path) as found:
        await asked(found, "ask", {"id": "q", "method": COMMAND, "params": {"command": "rm"}})
        await found.next("pylon.codex.event")
        [question] = (await asyncio.to_thread(exchange.request, "GET", "/v1/approvals"))[1]["approvals"]
        assert (question["tool_id"], question["asked_by"]) == ("pylon.codex/approve", "pylon:local-key")
        path = f"/v1/approvals/{question['approval_id']}"
        await asyncio.to_thread(exchange.request, "POST", path, {"decision": "denied"})
        answered = await found.next("pylon.codex.event")
        assert answered["message"]["params"] == {"id": "q", "result": {"decision": "decline"}}


@requirement("OA-027", "OA-026")
async def test_when_codex_crashes_that_is_told_and_what_waited_is_answered(exchange: Running, tmp_path: Path) -> None:
    async with connected(exchange, tmp_path) as found:
        await found.codex("request", workspaceId="ws_1", requestId="waits", method="hang")
        await found.codex("request", workspaceId="ws_1", requestId="ends", method="die")
        ids = {(await found.next("pylon.codex.response", ok=False))["request_id"] for _ in range(2)}
        assert ids == {"waits", "ends"}
        status = await found.next("pylon.codex.status")
        assert (status["status"], status["detail"]) == ("failed", "exit code 3")
    logs = [log.read_text() for log in (exchange.home / "logs" / "pylon.codex").glob("*.log")]
    assert "it is over\n" in logs


async def test_status_and_metrics_show_the_bridge(exchange: Running, tmp_path: Path) -> None:
    async with connected(exchange, tmp_path):
        figures = (await asyncio.to_thread(exchange.request, "GET", "/v1/status"))[1]["edges"]["pylon"]
        assert {name: figures[name] for name in ("state", "clients", "workspaces", "codex")} == {
            "state": "on",
            "clients": 1,
            "workspaces": 1,
            "codex": "available",
        }
        metrics = (await asyncio.to_thread(exchange.request, "GET", "/metrics"))[1]
        assert 'trunkline_edge{edge="pylon",figure="clients"} 1' in metrics


async def test_under_the_default_key_nothing_is_started_before_a_person_agreed(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        async with client(exchange, CODEX) as found:
            await found.codex("connect", workspaceId="ws_1", cwd=str(short_path))
            await found.next("pylon.codex.status", status="disconnected")
            assert [one for one in stand_ins() if one.cwd() == str(short_path)] == []
            [question] = (await asyncio.to_thread(exchange.request, "GET", "/v1/approvals"))[1]["approvals"]
            assert (question["tool_id"], question["asked_by"]) == ("pylon.codex/connect", "pylon:local-key")
            path = f"/v1/approvals/{question['approval_id']}"
            await asyncio.to_thread(exchange.request, "POST", path, {"decision": "approved"})
            await found.next("pylon.codex.status", status="connected")


async def test_no_codex_is_left_when_the_exchange_is_killed(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + LETS_IN) as exchange:
        async with client(exchange, CODEX) as found:
            await found.codex("connect", workspaceId="ws_1", cwd=str(short_path))
            await found.next("pylon.codex.status", status="connected")
            [process] = [one for one in stand_ins() if one.cwd() == str(short_path)]
            exchange.kill()
            await asyncio.to_thread(wait_until, lambda: not process.is_running(), "the end of codex")


def test_an_exchange_that_is_told_to_stop_ends_codex_and_leaves_with_zero(short_path: Path) -> None:
    async def talk(exchange: Running) -> tuple[psutil.Process, int]:
        async with client(exchange, CODEX) as found:
            await found.codex("connect", workspaceId="ws_1", cwd=str(short_path))
            await found.next("pylon.codex.status", status="connected")
            [process] = [one for one in stand_ins() if one.cwd() == str(short_path)]
            stopping = asyncio.get_running_loop().run_in_executor(None, exchange.stop)
            assert await found.closed() == 4101
            return process, await stopping

    with running(short_path / "home", CONFIG + LETS_IN) as exchange:
        process, code = asyncio.run(talk(exchange))
        assert code == 0
        assert not process.is_running()


# No account and no network are needed.
CODEX_PROGRAM = shutil.which(os.environ.get("TRUNKLINE_CODEX", "codex"))


@pytest.mark.skipif(CODEX_PROGRAM is None, reason="codex is neither on PATH nor where TRUNKLINE_CODEX says")
async def test_the_real_app_server_answers(short_path: Path) -> None:
    codex = CODEX_PROGRAM
    own = short_path / "codex-home"
    own.mkdir()
    config = CONFIG.replace(f'["{sys.executable}", "{STAND_IN}"]', json.dumps([codex, "app-server"])) + LETS_IN
    with running(short_path / "home", config, env={"CODEX_HOME": str(own)}) as exchange:
        async with connected(exchange, short_path) as found:
            said = await asked(found, "thread/start", {"cwd": str(short_path)})
            assert said["ok"], said
            thread = said["result"]["thread"]["id"]
            started = await found.next("pylon.codex.event")
            while started["message"]["method"] != "thread/started":
                started = await found.next("pylon.codex.event")
            assert started["message"]["params"]["thread"]["id"] == thread
            assert (await asked(found, "no/such/method"))["ok"] is False

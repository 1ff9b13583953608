"""Clients of Pusher's protocol as they are published, against a real exchange: pusher-js, laravel-echo and pysher."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.npm import installed, npm_of
from tests.requirement import requirement
from tests.running import Running, running
from trunkline.edges import tls

pytestmark = pytest.mark.timeout(150)
FOLDER = Path(__file__).parent
PACKAGES = FOLDER / "pusher"
STAND_IN = FOLDER.parent / "codex_app_server.py"
CONFIG = f"""
[pylon]
listen = "127.0.0.1:0"
tls = TLS
codex = ["{sys.executable}", "{STAND_IN}"]

[ossa]
listen = ""

[[policy.rule]]
caller = "pylon:local-key"
tool = "pylon.codex/connect"
decision = "allow"
"""
THREAD = {"thread": {"id": "thread_1"}}


@pytest.fixture(scope="module", params=["wss", "ws"])
def exchange(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = CONFIG.replace("TLS", "true" if request.param == "wss" else "false")
    with running(tmp_path_factory.mktemp(f"pylon-{request.param}") / "home", config) as found:
        if request.param == "wss":
            own = found.home / "keys" / tls.OWN_FILE
            (found.home / "ca.pem").write_bytes(tls.shown_certificate(own))
        yield found


@pytest.fixture(scope="module")
def packages(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages that the lock names, as they were published; left out where no registry can be reached."""
    return installed(npm_of(node), PACKAGES, tmp_path_factory.mktemp("npm"), "pusher-js")


class Talk:
    """What a client tells, a line each."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def next(self) -> tuple[str, Any]:
        assert self._process.stdout is not None
        while True:
            line = await asyncio.wait_for(self._process.stdout.readline(), 30)
            assert line, "it ended"
            [(name, value)] = json.loads(line).items()
            if name != "state":
                return name, value

    async def rest(self) -> list[str]:
        """Its states from here to its end."""
        assert self._process.stdout is not None
        said = await asyncio.wait_for(self._process.stdout.read(), 30)
        return [found["state"] for line in said.splitlines() if "state" in (found := json.loads(line))]


@asynccontextmanager
async def talking(exchange: Running, *command: str, cwd: Path | None = None) -> AsyncIterator[Talk]:
    ca = str(exchange.home / "ca.pem")
    trust = {"NODE_EXTRA_CA_CERTS": ca, "WEBSOCKET_CLIENT_CA_BUNDLE": ca}
    env = {**os.environ, **(trust if exchange.ready["pylon"].startswith("wss") else {})}
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, env=env, stdout=asyncio.subprocess.PIPE)
    try:
        yield Talk(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def arguments(exchange: Running) -> tuple[str, str]:
    return str(exchange.home), str(exchange.home / "keys" / "pylon.secret")


@pytest.mark.parametrize("library", ["pusher-js", "laravel-echo"])
@requirement("OA-035", "OA-024", "OA-025", "OA-031")
async def test_a_page_connects_sees_the_tools_and_uses_codex(
    exchange: Running, node: str, packages: Path, library: str
) -> None:
    cwd, secret = arguments(exchange)
    command = (node, str(PACKAGES / "client.mjs"), library, exchange.ready["pylon"], "local-key", cwd, secret)
    async with talking(exchange, *command, cwd=packages) as page:
        name, tools = await page.next()
        assert (name, "pylon.codex/connect" in tools) == ("tools", True)
        if library == "pusher-js":
            assert await page.next() == ("pong", ["timestamp"])
        assert await page.next() == ("status", "connected")
        said = {"workspace_id": "ws_1", "request_id": "r1", "ok": True, "result": THREAD}
        assert await page.next() == ("response", said)
        event = {"workspace_id": "ws_1", "message": {"method": "thread/started", "params": THREAD}}
        assert await page.next() == ("event", event)
        assert await page.next() == ("done", True)


@requirement("OA-018")
async def test_a_page_with_another_key_is_told_and_does_not_try_again(
    exchange: Running, node: str, packages: Path
) -> None:
    cwd, secret = arguments(exchange)
    command = (node, str(PACKAGES / "client.mjs"), "pusher-js", exchange.ready["pylon"], "other-key", cwd, secret)
    async with talking(exchange, *command, cwd=packages) as page:
        assert await page.next() == ("error", 4001)
        # It was connecting when it was made; then it lets go, and has nothing left to wait for.
        assert await page.rest() == ["disconnected"]


@requirement("OA-035")
async def test_pysher_connects_sees_the_tools_and_uses_codex(exchange: Running) -> None:
    host, _, port = exchange.ready["pylon"].partition("//")[2].partition(":")
    secure = "yes" if exchange.ready["pylon"].startswith("wss") else "no"
    command = (sys.executable, str(FOLDER / "pysher_client.py"), host, port, secure)
    async with talking(exchange, *command, "local-key", *arguments(exchange)) as client:
        assert await client.next() == ("established", True)
        name, tools = await client.next()
        assert (name, "pylon.codex/connect" in tools) == ("tools", True)
        assert await client.next() == ("pong", {})
        assert await client.next() == ("system_pong", ["timestamp"])
        assert await client.next() == ("status", "connected")
        name, said = await client.next()
        assert (name, said["ok"], said["result"]) == ("response", True, THREAD)
        assert await client.next() == ("done", True)
    async with talking(exchange, *command, "other-key", *arguments(exchange)) as client:
        name, data = await client.next()
        assert (name, data["code"]) == ("error", 4001)
        assert await client.next() == ("gave_up", True)

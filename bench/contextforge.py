"""MCP through the exchange beside ContextForge, a gateway for MCP with accounts and a database.

Runs only when it is asked for: ContextForge is installed into an environment of its own first (``.venv/contextforge``,
versions and hashes in ``peers/contextforge.txt``), which takes a minute or two: some 90 packages. The server behind
both speaks HTTP, since ContextForge mounts no other. Its limits on rates and its refusal of private addresses are off,
and it logs errors only; everything else is as it comes. Both ask their caller for a token.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Mapping
from typing import Any, Final

import uvloop

from bench.children import ROOT, Child, Children, Failed, free_port
from bench.exchange import Exchange
from bench.loads import Done
from bench.mounts import McpCaller, Measured, in_turns, wait_tool
from bench.plan import Stage
from bench.results import Mounts

PLACE: Final = ROOT / ".venv" / "contextforge"
PINNED: Final = ROOT / "bench" / "peers" / "contextforge.txt"
OWNER: Final = "admin@example.com"
# It makes its database first, one migration after the other.
READY_S: Final = 180.0
WARM: Final = 20
_CONFIG: Final = """
[[mcp]]
id = "bench"
url = "http://127.0.0.1:{port}/mcp"
trust_annotations = true
untrusted = false

[[policy.rule]]
caller = "*"
tool = "mcp.bench/*"
decision = "allow"
"""


def measure(stage: Stage) -> Mounts | None:
    """Nothing where it cannot be installed."""
    if not _is_installed(stage):
        return None
    with Children(stage.room("contextforge")) as children:
        found = uvloop.run(_measured(stage, children))
    stage.say(f"MCP beside ContextForge: {found.ratios_to('contextforge')}")
    return found


def _is_installed(stage: Stage) -> bool:
    python, done = PLACE / "bin" / "python", PLACE / ".installed"
    if done.exists() and done.read_bytes() == PINNED.read_bytes():
        return True
    stage.say("installing ContextForge into an environment of its own")
    venv.create(PLACE, clear=True, with_pip=True)
    words = ["-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--require-hashes", "-r", str(PINNED)]
    made = subprocess.run([python, *words], capture_output=True, text=True, check=False)
    if made.returncode:
        stage.say(f"ContextForge is left out: it cannot be installed: {made.stderr[-500:]}")
        return False
    done.write_bytes(PINNED.read_bytes())
    return True


async def _measured(stage: Stage, children: Children) -> Mounts:
    port = free_port()
    server = children.ours("server", "bench.peers.mcp_http_echo", str(port))
    server.wait(Done)
    exchange = Exchange(children, children.folder / "home", "exchange", _CONFIG.format(port=port))
    with exchange.operator() as operator:
        token = operator.token("mcp", "bench")
    await wait_tool(exchange)
    ours = McpCaller(exchange.address, {"authorization": f"Bearer {token}"}, "mcp_bench__echo")
    other = _Gateway(children, port)
    await ours.begin()
    await other.caller.begin()
    callers = {
        "mcp": Measured(ours, exchange.pid, stage.plan.mounted),
        "contextforge": Measured(other.caller, other.child.pid, stage.plan.forged),
    }
    return await in_turns(callers, exchange, stage.plan.rounds, WARM)


class _Gateway:
    """ContextForge with the server behind it."""

    def __init__(self, children: Children, server: int) -> None:
        self._folder = children.folder / "contextforge"
        self._folder.mkdir()
        self._port = free_port()
        self._environment = self._settings()
        program = PLACE / "bin" / "mcpgateway"
        words = ("--host", "127.0.0.1", "--port", str(self._port))
        self.child: Child = children.start("contextforge", str(program), *words, environment=self._environment)
        self._wait_ready()
        self._token = self._new_token()
        self._post(
            "/gateways", {"name": "bench", "url": f"http://127.0.0.1:{server}/mcp", "transport": "STREAMABLEHTTP"}
        )
        headers = {"authorization": f"Bearer {self._token}"}
        self.caller = McpCaller(f"127.0.0.1:{self._port}", headers, "bench-echo", "/mcp/")

    def _settings(self) -> Mapping[str, str]:
        return {
            "PATH": f"{PLACE / 'bin'}{os.pathsep}{os.defpath}",
            "HOME": str(self._folder),
            "DATABASE_URL": f"sqlite:///{self._folder / 'mcp.db'}",
            "CACHE_TYPE": "memory",
            "JWT_SECRET_KEY": secrets.token_urlsafe(48),
            "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(48),
            "PLATFORM_ADMIN_PASSWORD": f"Aa1-{secrets.token_urlsafe(24)}",
            "MCPGATEWAY_UI_ENABLED": "false",
            "LOG_LEVEL": "ERROR",
            "SSRF_PROTECTION_ENABLED": "false",
            "RATE_LIMITING_ENABLED": "false",
        }

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5):
                    return
            except OSError:
                if self.child.has_ended() or time.monotonic() > deadline:
                    raise self.child.failure("it did not come up") from None
                time.sleep(0.2)

    def _new_token(self) -> str:
        words = ["-m", "mcpgateway.utils.create_jwt_token", "--username", OWNER, "--admin", "--exp", "600"]
        words += ["--secret", self._environment["JWT_SECRET_KEY"]]
        made = subprocess.run(
            [PLACE / "bin" / "python", *words], capture_output=True, text=True, check=False, env=dict(self._environment)
        )
        if made.returncode:
            raise Failed(f"contextforge: no token: {made.stderr[-500:]}")
        return made.stdout.split()[-1]

    def _post(self, path: str, body: Any) -> None:
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60):  # noqa: S310 - the address is our own
                return
        except urllib.error.HTTPError as error:
            raise self.child.failure(f"POST {path}: {error.code} {error.read()[:300]!r}") from None

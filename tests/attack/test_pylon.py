"""Pylon against pages that it should not trust: secrets that pass through it, and what a page can reach of another."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.attack.secrets import forms
from tests.attack.test_private_keys import files_with
from tests.pylon import CODEX, SYSTEM, pusher
from tests.running import running

pytestmark = pytest.mark.timeout(120)
STAND_IN = Path(__file__).parent.parent / "codex_app_server.py"
CONFIG = f"""
[pylon]
listen = "127.0.0.1:0"
tls = false
codex = ["{sys.executable}", "{STAND_IN}"]

[ossa]
listen = ""

[[policy.rule]]
caller = "pylon:*"
tool = "pylon.codex/*"
decision = "allow"
"""


def canary(name: str) -> str:
    return f"tlk_{name}-5f0e71c01d77aa93b25f0e71c01d77aa93b2"


async def test_secrets_that_pass_through_each_field_are_in_no_file(short_path: Path) -> None:
    names = ("workspace", "request", "method", "params", "result", "notified", "skipped", "event")
    with running(short_path / "home", CONFIG) as exchange:
        async with pusher(exchange.ready["pylon"]) as page:
            await page.subscribe(SYSTEM)
            await page.subscribe(CODEX)
            workspace = canary("workspace")
            await page.codex("connect", workspaceId=workspace, cwd=str(short_path))
            await page.next("pylon.codex.status", status="connected")
            for method, params in (
                (canary("method"), {}),
                ("echo", {canary("params"): canary("params")}),
                ("say", {"lines": [f"{canary('skipped')}", '{"method": "x", "params": "' + canary("notified") + '"}']}),
                ("ask", {"id": 1, "method": "item/tool/requestUserInput", "params": {}}),
            ):
                request = {"workspaceId": workspace, "requestId": canary("request"), "method": method, "params": params}
                await page.codex("request", **request)
                assert (await page.next("pylon.codex.response"))["request_id"] == canary("request")
            await page.codex("respond", workspaceId=workspace, requestId=1, result={"x": canary("result")})
            while "answered" not in str(await page.next("pylon.codex.event")):
                pass
            await page.send(f"client-{canary('event')}", canary("event"), CODEX)
            await page.send(canary("event"), canary("event"), canary("event"))
            await page.raw(f"[{canary('event')}]")
            await page.send("pusher:subscribe", {"channel": canary("event"), "auth": canary("event")})
            for _ in range(4):
                await page.next("pusher:error")
        planted = [form for name in names for form in forms(canary(name))]
        assert files_with(exchange, planted) == [], "while it runs"
        assert exchange.stop() == 0
        assert files_with(exchange, planted) == [], "after its end"
        secret = (exchange.home / "keys" / "pylon.secret").read_text().strip()
        assert files_with(exchange, forms(secret)) == ["pylon.secret"]


async def test_a_page_cannot_use_the_connection_of_another_by_its_name(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        async with pusher(exchange.ready["pylon"]) as page, pusher(exchange.ready["pylon"]) as evil:
            await page.subscribe(CODEX)
            await evil.subscribe(CODEX)
            await page.codex("connect", workspaceId="ws_1", cwd=str(short_path))
            await page.next("pylon.codex.status", status="connected")
            stolen = {"workspaceId": "ws_1", "requestId": 1, "method": "echo", "client": page.socket_id}
            await evil.codex("request", **stolen)
            assert (await evil.next("pylon.codex.response"))["error"]["code"] == "not_found"
            # Nor by the operator's own door: the tools are for connections, not for callers.
            body = {"workspace_id": "ws_1", "client": page.socket_id, "method": "echo", "params": {}}
            made = {"tool_id": "pylon.codex/request", "input": body}
            _, answer = await asyncio.to_thread(exchange.request, "POST", "/v1/calls", made)
            assert answer["error"]["code"] == "not_allowed"

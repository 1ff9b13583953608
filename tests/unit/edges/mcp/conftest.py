"""The MCP edge behind a real loopback listener, in front of an exchange in memory with some agents in it."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import httpx
import pytest

from trunkline.config import Config
from trunkline.edges.exchange import Timer
from trunkline.edges.http.edge import HTTP
from trunkline.edges.mcp.edge import MCP
from trunkline.edges.waiting import Waiting
from trunkline.model import Decision, Policy, Rule, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, AttachedAgent, Deliver, MemoryExchange

BOUND_S = 10
ECHO = "com.example.echo/echo"
SHELL = "com.example.shell/run"
ECHO_NAME = "com_example_echo__echo"
SHELL_NAME = "com_example_shell__run"
MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
# Calls of the shell ask a person; everything else may be called.
ASKS = Policy(
    (Rule("ask", "mcp:*", SHELL, Decision.ASK, "runs commands"), Rule("all", "*", "*", Decision.ALLOW)), "asks"
)


def echo(agent: AttachedAgent, effect: Deliver) -> None:
    """Say what was said."""
    agent.finish(effect.input)


class Served:
    """An exchange with both edges, and a client that writes messages itself."""

    def __init__(self, exchange: MemoryExchange) -> None:
        self.exchange = exchange
        self.echo: AttachedAgent
        self.shell: AttachedAgent
        self._ids = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.exchange.edges.start()
        definition = ToolDefinition(ECHO, "says it", ANY_OBJECT, side_effects=False)
        self.echo = self.exchange.attach("com.example.echo", definition, deliver=echo)
        self.shell = self.exchange.attach("com.example.shell", "run")
        self.url = str(self.exchange.edges.ready()["http"])
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.http = httpx.AsyncClient(base_url=self.url, timeout=BOUND_S, verify=plain)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        await self.exchange.edges.stop()
        await self.exchange.edges.stop_last()
        await wait_until(lambda: not self.waiting)
        assert self.exchange.died in {None, "killed"}

    @property
    def waiting(self) -> list[Waiting]:
        """Requests that were not given back: each ends by itself."""
        return [sink for sink in self.exchange.feed._sinks.values() if isinstance(sink, Waiting)]

    def client(self, name: str = "me", *, era: str = MODERN, opens_urls: bool = False) -> Client:
        return Client(self, self.exchange.token("mcp", name), era, opens_urls=opens_urls)

    def next_id(self) -> int:
        return next(self._ids)


class Client:
    """A client of one era."""

    def __init__(self, served: Served, token: str, era: str, *, opens_urls: bool) -> None:
        self._served = served
        self.token = token
        self.era = era
        self.capabilities: dict[str, Any] = {"elicitation": {"url": {}}} if opens_urls else {}
        self.session_id = ""

    def headers(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        found = {"authorization": f"Bearer {self.token}", "accept": "application/json, text/event-stream"}
        if self.era == MODERN:
            found |= {"mcp-protocol-version": MODERN, "mcp-method": method}
            name = params.get("name", params.get("uri"))
            if isinstance(name, str):
                found["mcp-name"] = name
        elif self.session_id:
            found |= {"mcp-session-id": self.session_id, "mcp-protocol-version": self.era}
        return found

    def envelope(self, params: dict[str, Any]) -> dict[str, Any]:
        if self.era != MODERN:
            return params
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        }
        return {**params, "_meta": {**meta, **params.get("_meta", {})}}

    async def begin(self) -> Self:
        """The handshake, where there is one."""
        if self.era != MODERN:
            params = {
                "protocolVersion": self.era,
                "capabilities": self.capabilities,
                "clientInfo": {"name": "test", "version": "1"},
            }
            answer = await self.post("initialize", params)
            self.session_id = answer.headers["mcp-session-id"]
            await self.notify("notifications/initialized")
        return self

    async def post(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> httpx.Response:
        """The HTTP answer to a request."""
        given = params or {}
        body = {"jsonrpc": "2.0", "id": self._served.next_id(), "method": method, "params": self.envelope(given)}
        headers = {**self.headers(method, given), **more.pop("headers", {})}
        return await self._served.http.post("/mcp", json=body, headers=headers, **more)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> httpx.Response:
        body = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        return await self._served.http.post("/mcp", json=body, headers=self.headers(method, {}))

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The message that answers a request."""
        return last_message(await self.post(method, params))

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        answer = await self.ask("tools/call", {"name": name, "arguments": arguments or {}, **more})
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found


def messages_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """All messages of an answer, stream or not."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]
    return [answer.json()]


def last_message(answer: httpx.Response) -> dict[str, Any]:
    return messages_of(answer)[-1]


async def wait_until(condition: Callable[[], object]) -> None:
    """Until something that nobody announces is so; bounded."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.005)


class Timers:
    """The timers that were asked of an exchange since, and neither rang nor were canceled."""

    def __init__(self, exchange: MemoryExchange, monkeypatch: pytest.MonkeyPatch) -> None:
        self._later = exchange.feed.call_later
        self._asked: list[tuple[str, Any]] = []
        monkeypatch.setattr(exchange.feed, "call_later", self._call_later)

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        def ring() -> None:
            self._asked.remove(asked)
            callback()

        asked = (callback.__qualname__, self._later(delay_s, ring))
        self._asked.append(asked)
        return asked[1]  # type: ignore[no-any-return]

    def of(self, name: str) -> int:
        """Those that call a method."""
        return sum(called == name and not timer.cancelled() for called, timer in self._asked)


def memory_exchange(**terms: Any) -> MemoryExchange:
    given = {"policy": ASKS, "edges": (MCP, HTTP), "config": Config(), **terms}
    return MemoryExchange(live=asyncio.get_running_loop(), **given)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served(memory_exchange()) as found:
        yield found


@pytest.fixture(params=[MODERN, HANDSHAKE])
async def client(served: Served, request: pytest.FixtureRequest) -> Client:
    """A client of each era."""
    return await served.client(era=request.param).begin()

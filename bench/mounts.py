"""MCP through the exchange: a tool of a mounted server, called over ``/mcp``, beside FastMCP's proxy.

The same caller here and the same server behind, neither with an SDK, so that what differs is what is between them. The
caller keeps one request in flight on each of its connections. CPU is that of the process in the middle; of the exchange
also for the same calls over ``/v1/calls``, which tells what the protocol itself costs.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import sys
import time
from typing import Final

from bench.children import Children, Failed, cpu_s, free_port, wait_port
from bench.exchange import Exchange
from bench.loads import SMALL, Done
from bench.plan import Stage
from bench.results import Middle, Mounts

IN_FLIGHT: Final = (1, 16)
WARM: Final = 50
WITHIN_S: Final = 60.0
VERSION: Final = "2025-11-25"
_CONFIG: Final = """
[[mcp]]
id = "bench"
command = ["{python}", "-m", "bench.peers.mcp_echo"]
cwd = "{root}"
isolation = "none"
trust_annotations = true
untrusted = false
env = {{PYTHONPATH = "{root}"}}

[[policy.rule]]
caller = "*"
tool = "mcp.bench/*"
decision = "allow"
"""


class Caller:
    """So many connections to one address, a request on each."""

    def __init__(self, address: str, path: str, headers: dict[str, str]) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        lines = [f"POST {path} HTTP/1.1", f"host: {address}", "content-type: application/json"]
        self._head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())])

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection."""
        return await asyncio.open_connection(self._host, self._port, limit=1024 * 1024)

    async def ask(
        self, line: tuple[asyncio.StreamReader, asyncio.StreamWriter], body: bytes, more: str = ""
    ) -> tuple[bytes, bytes]:
        """Head and body of the answer."""
        reader, writer = line
        writer.write(f"{self._head}{more}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        names = head.lower()
        if b"transfer-encoding: chunked" in names:
            return head, await reader.readuntil(b"\r\n0\r\n\r\n")
        at = names.find(b"content-length:")
        size = int(head[at + 15 : head.index(b"\r\n", at)]) if at >= 0 else 0
        return head, await reader.readexactly(size)

    async def rate(self, bodies: list[bytes], in_flight: int, *, more: str, wanted: bytes) -> float:
        """Requests a second; each answer has to hold ``wanted``."""
        left = iter(bodies)

        async def one_after_the_other() -> None:
            line = await self.open()
            for body in left:
                _, answer = await self.ask(line, body, more)
                if wanted not in answer:
                    raise Failed(f"not the answer to a call: {answer[:300]!r}")
            line[1].close()

        begun = time.perf_counter()
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
        return len(bodies) / (time.perf_counter() - begun)


class McpCaller(Caller):
    """One session, on as many connections as there are requests in flight."""

    def __init__(self, address: str, headers: dict[str, str], tool: str) -> None:
        super().__init__(address, "/mcp", {"accept": "application/json, text/event-stream", **headers})
        self._tool = tool
        self._ids = itertools.count(1)
        self._session = ""

    async def begin(self) -> None:
        """The handshake."""
        line = await self.open()
        client = {"name": "bench", "version": "1"}
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        head, _ = await self.ask(line, self._message("initialize", params))
        name = b"mcp-session-id:"
        if name in head.lower():
            at = head.lower().index(name) + len(name)
            session = head[at : head.index(b"\r\n", at)].strip().decode()
            self._session = f"\r\nmcp-session-id: {session}"
        self._session += f"\r\nmcp-protocol-version: {VERSION}"
        await self.ask(line, b'{"jsonrpc":"2.0","method":"notifications/initialized"}', self._session)
        line[1].close()

    def _message(self, method: str, params: object) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}).encode()

    async def called(self, count: int, in_flight: int) -> float:
        """Calls a second."""
        texts = (f"{number:012}".ljust(SMALL, "x") for number in range(count))
        bodies = [self._message("tools/call", {"name": self._tool, "arguments": {"text": text}}) for text in texts]
        return await self.rate(bodies, in_flight, more=self._session, wanted=b"xxxxxxxx")


class HttpCaller(Caller):
    """The same tool over ``/v1/calls``."""

    def __init__(self, address: str, token: str, tool: str) -> None:
        # Who names streams here gets one for each call, which is another thing than an answer.
        super().__init__(address, "/v1/calls", {"accept": "application/json", "authorization": f"Bearer {token}"})
        self._tool = tool

    async def called(self, count: int, in_flight: int) -> float:
        """Calls a second."""
        texts = (f"{number:012}".ljust(SMALL, "y") for number in range(count))
        bodies = [json.dumps({"tool_id": self._tool, "input": {"text": text}}).encode() for text in texts]
        return await self.rate(bodies, in_flight, more="", wanted=b'"status":"succeeded"')


def measure(stage: Stage) -> Mounts:
    """The exchange alone where FastMCP is not installed."""
    with Children(stage.room("mounts")) as children:
        found = asyncio.run(_measured(stage, children))
    over = found.added_us
    stage.say(f"MCP: {found.mcp_us:.0f} µs of CPU a call, {over:.0f} µs over /v1/calls; FastMCP {found.ratios}")
    return found


async def _measured(stage: Stage, children: Children) -> Mounts:
    exchange, ours, plain = _exchange(children)
    await _wait_tool(exchange)
    await ours.begin()
    callers: dict[str, tuple[McpCaller | HttpCaller, int]] = {
        "mcp": (ours, exchange.pid),
        "http": (plain, exchange.pid),
    }
    if importlib.util.find_spec("fastmcp") is None:
        stage.say("FastMCP is left out: fastmcp is not installed")
    else:
        port = free_port()
        proxy = children.ours("fastmcp", "bench.peers.fastmcp_proxy", str(port))
        proxy.wait(Done)
        wait_port(port)
        other = McpCaller(f"127.0.0.1:{port}", {}, "echo")
        await other.begin()
        callers["fastmcp"] = other, proxy.pid
    cells: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    for in_flight in IN_FLIGHT:
        for name, (caller, _) in callers.items():
            await caller.called(WARM, in_flight)
            cells[name, in_flight] = [], []
        for _ in range(stage.plan.rounds):
            for name, (caller, pid) in callers.items():
                rates, cpu = cells[name, in_flight]
                begun = cpu_s(pid)
                rates.append(await caller.called(stage.plan.mounted, in_flight))
                cpu.append((cpu_s(pid) - begun) * 1e6 / stage.plan.mounted)
                exchange.wait_quiet()
    middles = [Middle(name, in_flight, tuple(r), tuple(c)) for (name, in_flight), (r, c) in cells.items()]
    return Mounts(tuple(middles))


def _exchange(children: Children) -> tuple[Exchange, McpCaller, HttpCaller]:
    from bench.children import ROOT

    config = _CONFIG.format(python=sys.executable, root=ROOT)
    exchange = Exchange(children, children.folder / "home", "exchange", config)
    with exchange.operator() as operator:
        token = operator.token("mcp", "bench")
        plain = operator.token("http", "bench")
    ours = McpCaller(exchange.address, {"authorization": f"Bearer {token}"}, "mcp_bench__echo")
    return exchange, ours, HttpCaller(exchange.address, plain, "mcp.bench/echo")


async def _wait_tool(exchange: Exchange) -> None:
    deadline = time.monotonic() + WITHIN_S
    with exchange.operator() as operator:
        while not any(tool["tool_id"] == "mcp.bench/echo" for tool in operator.ask("GET", "/v1/tools")["tools"]):
            if time.monotonic() > deadline:
                raise operator.failure("the mounted server did not come")
            await asyncio.sleep(0.02)

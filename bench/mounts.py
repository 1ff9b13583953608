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
from collections.abc import Callable, Iterator, Mapping
from typing import Final, cast

import uvloop
from msgspec import Struct

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


def answer_end(data: bytes) -> int:
    """Where the answer that begins here ends; 0 while it is not whole."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = data[: end + 2].lower()
    if b"transfer-encoding: chunked" in head:
        last = data.find(b"\r\n0\r\n\r\n", end)
        return last + 7 if last >= 0 else 0
    at = head.find(b"content-length:")
    size = end + 4 + (int(head[at + 15 : head.index(b"\r\n", at)]) if at >= 0 else 0)
    return size if len(data) >= size else 0


class Connection(asyncio.Protocol):
    """One request after the other: ``on_answer`` hears each answer, head and body."""

    def __init__(self, on_answer: Callable[[Connection, bytes], None]) -> None:
        self._on_answer = on_answer
        self._heard = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait to be told what to ask."""
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of one."""
        self._heard += data
        end = answer_end(self._heard)
        if end:
            answer, self._heard = self._heard[:end], self._heard[end:]
            self._on_answer(self, answer)

    def close(self) -> None:
        """End it."""
        self._transport.close()


class Caller:
    """So many connections to one address, a request on each."""

    def __init__(self, address: str, path: str, headers: dict[str, str]) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        lines = [f"POST {path} HTTP/1.1", f"host: {address}", "content-type: application/json"]
        self._head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())])

    def request(self, body: bytes, more: str = "") -> bytes:
        """A request; ``more`` are further lines of its head."""
        return f"{self._head}{more}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    async def ask(self, *requests: bytes) -> list[bytes]:
        """The answers to these, on a connection of their own."""
        answers: list[bytes] = []
        await self._run(iter(requests), 1, answers.append)
        return answers

    async def rate(self, requests: list[bytes], in_flight: int, *, wanted: bytes) -> float:
        """Requests a second; each answer has to hold ``wanted``."""

        def look(answer: bytes) -> None:
            if wanted not in answer:
                raise Failed(f"not the answer to a call: {answer[:300]!r}")

        begun = time.perf_counter()
        await self._run(iter(requests), in_flight, look)
        return len(requests) / (time.perf_counter() - begun)

    async def _run(self, requests: Iterator[bytes], in_flight: int, on_answer: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        connections: set[Connection] = set()

        def go_on(connection: Connection) -> None:
            request = next(requests, None)
            if request is not None:
                connection.ask(request)
                return
            connection.close()
            connections.discard(connection)
            if not connections and not ended.done():
                ended.set_result(None)

        def answered(connection: Connection, answer: bytes) -> None:
            try:
                on_answer(answer)
            except Failed as error:
                if not ended.done():
                    ended.set_exception(error)
                return
            go_on(connection)

        try:
            async with asyncio.timeout(WITHIN_S):
                for _ in range(in_flight):
                    made = await loop.create_connection(lambda: Connection(answered), self._host, self._port)
                    connections.add(made[1])
                for connection in tuple(connections):
                    go_on(connection)
                await ended
        finally:
            for connection in connections:
                connection.close()


class McpCaller(Caller):
    """One session, on as many connections as there are requests in flight."""

    def __init__(self, address: str, headers: dict[str, str], tool: str, path: str = "/mcp") -> None:
        super().__init__(address, path, {"accept": "application/json, text/event-stream", **headers})
        self._tool = tool
        self._ids = itertools.count(1)
        self._session = ""

    async def begin(self) -> None:
        """The handshake."""
        client = {"name": "bench", "version": "1"}
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        (answer,) = await self.ask(self.request(self._message("initialize", params)))
        name = b"mcp-session-id:"
        if name in answer.lower():
            at = answer.lower().index(name) + len(name)
            session = answer[at : answer.index(b"\r\n", at)].strip().decode()
            self._session = f"\r\nmcp-session-id: {session}"
        self._session += f"\r\nmcp-protocol-version: {VERSION}"
        await self.ask(self.request(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', self._session))

    def _message(self, method: str, params: object) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}).encode()

    async def called(self, count: int, in_flight: int) -> float:
        """Calls a second."""
        texts = (f"{number:012}".ljust(SMALL, "x") for number in range(count))
        bodies = (self._message("tools/call", {"name": self._tool, "arguments": {"text": text}}) for text in texts)
        return await self.rate([self.request(body, self._session) for body in bodies], in_flight, wanted=b"xxxxxxxx")


class HttpCaller(Caller):
    """The same tool over ``/v1/calls``."""

    def __init__(self, address: str, token: str, tool: str) -> None:
        # Who names streams here gets one for each call, which is another thing than an answer.
        super().__init__(address, "/v1/calls", {"accept": "application/json", "authorization": f"Bearer {token}"})
        self._tool = tool

    async def called(self, count: int, in_flight: int) -> float:
        """Calls a second."""
        texts = (f"{number:012}".ljust(SMALL, "y") for number in range(count))
        bodies = (json.dumps({"tool_id": self._tool, "input": {"text": text}}).encode() for text in texts)
        return await self.rate([self.request(body) for body in bodies], in_flight, wanted=b'"status":"succeeded"')


def measure(stage: Stage) -> Mounts:
    """The exchange alone where FastMCP is not installed."""
    with Children(stage.room("mounts")) as children:
        found = uvloop.run(_measured(stage, children))
    over = found.added_us
    stage.say(f"MCP: {found.mcp_us:.0f} µs of CPU a call, {over:.0f} µs over /v1/calls; FastMCP {found.ratios}")
    return found


async def _measured(stage: Stage, children: Children) -> Mounts:
    exchange, ours, plain = _exchange(children)
    await wait_tool(exchange)
    await ours.begin()
    count = stage.plan.mounted
    callers = {"mcp": Measured(ours, exchange.pid, count), "http": Measured(plain, exchange.pid, count)}
    if importlib.util.find_spec("fastmcp") is None:
        stage.say("FastMCP is left out: fastmcp is not installed")
    else:
        port = free_port()
        proxy = children.ours("fastmcp", "bench.peers.fastmcp_proxy", str(port))
        proxy.wait(Done)
        wait_port(port)
        other = McpCaller(f"127.0.0.1:{port}", {}, "echo")
        await other.begin()
        callers["fastmcp"] = Measured(other, proxy.pid, count)
    return await in_turns(callers, exchange, stage.plan.rounds, WARM)


class Measured(Struct, frozen=True):
    """Somebody's calls: who makes them, whose CPU is counted, and how many there are in a round."""

    caller: McpCaller | HttpCaller
    pid: int
    count: int


async def in_turns(callers: Mapping[str, Measured], exchange: Exchange, rounds: int, warm: int) -> Mounts:
    """Each in each round, one after the other."""
    cells: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    for in_flight in IN_FLIGHT:
        for name, one in callers.items():
            await one.caller.called(warm, in_flight)
            cells[name, in_flight] = [], []
        for _ in range(rounds):
            for name, one in callers.items():
                rates, cpu = cells[name, in_flight]
                begun = cpu_s(one.pid)
                rates.append(await one.caller.called(one.count, in_flight))
                cpu.append((cpu_s(one.pid) - begun) * 1e6 / one.count)
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


async def wait_tool(exchange: Exchange) -> None:
    """Until the mounted server's tool is there."""
    deadline = time.monotonic() + WITHIN_S
    with exchange.operator() as operator:
        while not any(tool["tool_id"] == "mcp.bench/echo" for tool in operator.ask("GET", "/v1/tools")["tools"]):
            if time.monotonic() > deadline:
                raise operator.failure("the mounted server did not come")
            await asyncio.sleep(0.02)

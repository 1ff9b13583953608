"""Many peers in one process, as light as can be: raw frames over asyncio, no code of the exchange.

What a load test needs to know is counted here: which calls were asked, how each was answered, how long it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.running import Running, wait_until

WAIT_S = 60.0
CONFIG = """
[[policy.rule]]
caller = "*"
tool = "*"
decision = "allow"
"""


class Guest(asyncio.Protocol):
    """One agent: greets, offers one tool that says its input again if it is a worker, and calls."""

    def __init__(self, agent_id: str, token: str) -> None:
        self.agent_id = agent_id
        self._token = token
        self._data = bytearray()
        self._transport: asyncio.Transport
        self._waiting: dict[str, tuple[float, asyncio.Future[dict[str, Any]]]] = {}
        self._heard: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._ids = 0
        self.ran: Counter[str] = Counter()
        self.latencies: list[float] = []
        self.is_lost = asyncio.get_running_loop().create_future()

    async def connect(self, address: str) -> None:
        """Greet, and be welcome."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, address)
        await self.greet()

    async def greet(self) -> dict[str, Any]:
        """Say hello; the welcome."""
        protocol = {"supported_versions": [1], "capabilities": ["tools", "calls"]}
        hello = {
            "session_token": self._token,
            "agent_id": self.agent_id,
            "agent_version": "1.0.0",
            "protocol": protocol,
        }
        self.send("agent.hello", hello)
        welcome = await self.hear("core.welcome")
        assert "error" not in welcome, welcome
        self._beat(welcome["payload"]["session_id"], welcome["payload"]["heartbeat_interval_ms"] / 1000)
        return welcome

    def _beat(self, session_id: str, interval_s: float) -> None:
        if not self._transport.is_closing():
            figures = {"session_id": session_id, "uptime_ms": 1, "inflight_calls": 0}
            self.send("agent.heartbeat", {"status": "ok", **figures})
            self._beating = asyncio.get_running_loop().call_later(interval_s, self._beat, session_id, interval_s)

    async def offer(self, **terms: Any) -> None:
        """The tool ``echo``."""
        schema = {"type": "object"}
        tool = {"tool_id": f"{self.agent_id}/echo", "name": "echo", "description": "A tool.", "input_schema": schema}
        self.send("agent.tools.register", {"tools": [{**tool, **terms}]})
        await self.hear("core.tools.registered")

    def send(self, kind: str, payload: dict[str, Any], **envelope: Any) -> None:
        """One message."""
        self._ids += 1
        message = {"v": 1, "type": kind, "id": f"m{self._ids}", "ts": "2026-01-16T12:00:00Z", "payload": payload}
        self.send_frame(json.dumps({**message, **envelope}).encode())

    def send_frame(self, data: bytes) -> None:
        """One frame."""
        self._transport.write(struct.pack(">I", len(data)) + data)

    async def hear(self, kind: str) -> dict[str, Any]:
        """The next message of a kind."""
        heard: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._heard[kind] = heard
        async with asyncio.timeout(WAIT_S):
            return await heard

    async def call(self, tool_id: str, value: dict[str, Any], **more: Any) -> dict[str, Any]:
        """One call; its result's payload."""
        self._ids += 1
        name = f"c{self._ids}"
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[name] = (time.perf_counter(), answered)
        self.send("agent.tool.call", {"call_id": name, "tool_id": tool_id, "input": value, **more}, request_id=name)
        async with asyncio.timeout(WAIT_S):
            return await answered

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_lost.done():
            self.is_lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._data += data
        at = 0
        while len(self._data) - at >= 4:
            (size,) = struct.unpack_from(">I", self._data, at)
            if len(self._data) < at + 4 + size:
                break
            self._take(json.loads(bytes(self._data[at + 4 : at + 4 + size])))
            at += 4 + size
        del self._data[:at]

    def _take(self, message: dict[str, Any]) -> None:
        kind, payload = message["type"], message["payload"]
        if kind == "core.tool.call":
            self.ran[payload["call_id"]] += 1
            echoed = {name: message[name] for name in ("request_id", "correlation_id") if name in message}
            result = {"call_id": payload["call_id"], "status": "succeeded", "output": payload["input"]}
            self.send("agent.tool.result", result, **echoed)
        elif kind == "core.tool.result":
            began, answered = self._waiting.pop(payload["call_id"])
            self.latencies.append(time.perf_counter() - began)
            answered.set_result(payload)
        elif kind == "core.ping":
            self.send("agent.pong", {})
        elif kind in self._heard:
            self._heard.pop(kind).set_result(message)


def guests(exchange: Running, kind: str, count: int) -> list[Guest]:
    """So many, with tokens of their own; inside a running loop."""
    names = [f"com.test.{kind}{number}" for number in range(count)]
    return [Guest(name, exchange.new_token(name)) for name in names]


async def join(exchange: Running, kind: str, count: int, **tool: Any) -> list[Guest]:
    """So many, connected; with a tool if its terms are given."""
    made = await asyncio.to_thread(lambda: [exchange.new_token(f"com.test.{kind}{n}") for n in range(count)])
    found = [Guest(f"com.test.{kind}{number}", token) for number, token in enumerate(made)]
    for guest in found:
        await guest.connect(exchange.ready["socket"])
        if tool:
            await guest.offer(**tool)
    return found


async def ask(caller: Guest, workers: list[Guest], calls: int, interval_s: float = 0.0, first: int = 0) -> int:
    """So many calls, at most one in the time given; each must succeed with what was sent. How many."""
    loop = asyncio.get_running_loop()
    at = loop.time()
    for number in range(first, first + calls):
        value = {"n": number, "by": caller.agent_id}
        worker = workers[number % len(workers)]
        result = await caller.call(f"{worker.agent_id}/echo", value)
        assert result["status"] == "succeeded", result
        assert result["output"] == value, result
        at += interval_s
        if at > loop.time():
            await asyncio.sleep(at - loop.time())
    return calls


def rss(exchange: Running) -> int:
    """The exchange's own memory, without its writer and keeper."""
    assert exchange.process is not None
    return int(psutil.Process(exchange.process.pid).memory_info().rss)


def percentile(values: list[float], part: float) -> float:
    """In milliseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1000


def with_exchange(home: Path, test: Callable[[Running], Any], config: str = CONFIG) -> Any:
    """An exchange for one loop; it must stop in good order, and is killed otherwise."""
    exchange = Running(home, config).start()
    try:
        outcome = asyncio.run(test(exchange))
        assert exchange.stop() == 0
        return outcome
    finally:
        if exchange.process is not None and exchange.process.poll() is None:
            exchange.kill()
        for peer in exchange.peers:
            with contextlib.suppress(OSError):
                peer.close()


def sessions(exchange: Running) -> int:
    """How many there are; some are the exchange's own."""
    return int(exchange.request("GET", "/v1/status")[1]["sessions"])


def wait_sessions(exchange: Running, count: int) -> None:
    """Until there are no more than so many."""
    wait_until(lambda: sessions(exchange) <= count, f"{count} sessions", WAIT_S)

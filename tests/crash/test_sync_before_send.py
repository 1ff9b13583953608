"""P-A5: no byte that delivers or acknowledges a call with side effects leaves before its record was synced.

Judged from outside: the entry is found in what was written to the log, and a sync of that file has to begin after
that write and return before the byte is handed to the kernel. No code of the exchange takes part.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from random import Random

import pytest

from tests.crash.crowd import CONFIG, Agent, HttpClient, Job, Worker
from tests.crash.tracing import Event, events, strace, tracer_of, wait_traced
from tests.running import Running

# Each call is two sends: to the agent, and back to the one who asked.
CALLS = 5000
OVER_HTTP = 250
IN_FLIGHT = 48

_ID = r'[^{}]{0,200}?\\"call_id\\":\\"([0-9a-f-]{36})'
_ENTRY = re.compile(r'\{\\"kind\\":\\"(call\.accepted|call\.settled)\\",\\"n\\":\d+,' + _ID)
_SAID = re.compile(
    r'\\"type\\":\\"core\.tool\.call\\".*?\\"payload\\":\{\\"call_id\\":\\"(?P<delivered>[0-9a-f-]{36})'
    r'|\\"type\\":\\"core\.tool\.result\\".*?\\"exchange_call_id\\":\\"(?P<answered>[0-9a-f-]{36})'
    r'|\{\\"call_id\\":\\"(?P<posted>[0-9a-f-]{36})\\"[^{}]*?\\"status\\":\\"succeeded\\"'
)


class Order:
    """Follows a trace, and counts what left in time and what did not."""

    def __init__(self) -> None:
        self._written: set[tuple[str, str]] = set()
        self._syncing: dict[int, set[tuple[str, str]]] = {}
        self._synced: set[tuple[str, str]] = set()
        self.sends = 0
        self.early: list[str] = []

    def follow(self, event: Event) -> None:
        if event.file.endswith("ledger.sqlite-wal"):
            if event.call == "pwrite64" and event.begins:
                self._written.update((kind, call_id) for kind, call_id in _ENTRY.findall(event.data))
            elif event.call in {"fdatasync", "fsync"}:
                if event.begins:
                    self._syncing[event.process] = self._written - self._synced
                if event.ends and event.result == 0:
                    self._synced |= self._syncing.pop(event.process)
        elif event.begins and event.file.startswith(("socket:", "UNIX", "TCP", "unix", "tcp")):
            for match in _SAID.finditer(event.data):
                kind = "call.accepted" if match["delivered"] else "call.settled"
                call_id = match["delivered"] or match["answered"] or match["posted"]
                self.sends += 1
                if (kind, call_id) not in self._synced:
                    self.early.append(f"{kind} {call_id}")


@pytest.mark.timeout(180)
@pytest.mark.skipif(os.geteuid() != 0, reason="what the exchange says it shows to no strace but root's")
def test_nothing_leaves_before_its_record_is_on_the_disk(short_path: Path) -> None:
    log = short_path / "trace"
    exchange = Running(short_path / "home", CONFIG, under=strace(log))
    exchange.start()
    assert exchange.process is not None
    tracer = tracer_of(exchange.process.pid)
    try:
        worker = Worker("com.test.worker", exchange.new_token("com.test.worker"), Random(1))
        caller = Agent("com.test.caller", exchange.new_token("com.test.caller"))
        asyncio.run(load(exchange, worker, caller))
    finally:
        assert exchange.stop() == 0
    wait_traced(tracer)
    order = Order()
    for event in events(log):
        order.follow(event)
    assert order.sends == 2 * (CALLS + OVER_HTTP)
    assert not order.early, f"{len(order.early)} of {order.sends}: {order.early[:3]}"


async def load(exchange: Running, worker: Worker, caller: Agent) -> None:
    """So many calls with side effects, a number of them in flight at any time."""
    address = exchange.ready["socket"]
    working = asyncio.create_task(worker.work(address))
    await caller.connect(address)
    await asyncio.to_thread(exchange.wait_tool, "com.test.worker/write")
    posting = asyncio.create_task(post(exchange))
    asked = answered = 0
    while answered < CALLS:
        while asked < CALLS and asked - answered < IN_FLIGHT:
            asked += 1
            call = {"call_id": f"c{asked}", "tool_id": "com.test.worker/write", "input": {"job": f"job-{asked}"}}
            caller.send("agent.tool.call", call, request_id=f"r{asked}")
        result = await caller.hear("core.tool.result")
        assert result["payload"]["status"] == "succeeded", result
        answered += 1
    await posting
    caller.close()
    worker.close()
    await working


async def post(exchange: Running) -> None:
    client = await HttpClient.connect(exchange.ready["http"], exchange.token)
    for number in range(OVER_HTTP):
        job: Job = ("com.test.worker/write", f"posted-{number}", None)
        status, answer = await client.call(job)
        assert (status, answer["status"]) == (200, "succeeded"), answer
    client.close()

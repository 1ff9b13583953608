"""Connections that come and go at every stage of a conversation, and what they leave behind: nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random

import psutil

from tests.crash.crowd import CONFIG, Agent
from tests.running import Running, wait_until

# Once around before the memory is weighed: caches fill, and the allocator takes what it keeps.
WARM_UP = 300
TOGETHER = 20
GROWTH_BYTES = 5 * 1_048_576
# The exchange's own, which are always there: trunkline and trunkline.jobs.
OWN_AGENTS = 2
GONE_WITHIN_S = 10.0


def _descriptors(process: psutil.Process) -> int:
    """How many the exchange has open, which it shows to nobody but root."""
    return process.num_fds() if os.geteuid() == 0 else 0


def churn(home: Path, seed: int, connections: int) -> int:
    """So many connections to one exchange, and as many: descriptors are as before, sessions too, memory nearly."""
    exchange = Running(home, CONFIG).start()
    try:
        assert exchange.process is not None
        at_rest = exchange.request("GET", "/v1/status")[1]["sessions"]
        tokens = [(f"com.test.guest{n}", exchange.new_token(f"com.test.guest{n}")) for n in range(TOGETHER)]
        process = psutil.Process(exchange.process.pid)
        rng = Random(seed)
        asyncio.run(_come_and_go(exchange, tokens, rng, WARM_UP))
        _wait_alone(exchange, at_rest)
        descriptors, memory = _descriptors(process), process.memory_info().rss
        asyncio.run(_come_and_go(exchange, tokens, rng, connections))
        _wait_alone(exchange, at_rest)
        # The connection that asked for the status may still be closing.
        wait_until(lambda: _descriptors(process) <= descriptors, "no descriptor is left", GONE_WITHIN_S)
        grown = process.memory_info().rss - memory
        assert grown < GROWTH_BYTES, f"{grown / 1_048_576:.1f} MiB more after {connections} connections"
        assert exchange.stop() == 0
    finally:
        if exchange.process is not None and exchange.process.poll() is None:
            exchange.kill()
    return connections


async def _come_and_go(exchange: Running, tokens: list[tuple[str, str]], rng: Random, connections: int) -> None:
    async def one_after_another(name: str, token: str) -> None:
        for _ in range(connections // TOGETHER):
            await _visit(exchange.ready["socket"], Agent(name, token), rng)

    await asyncio.gather(*(one_after_another(name, token) for name, token in tokens))


async def _visit(address: str, agent: Agent, rng: Random) -> None:
    """Come, and leave in the middle of something."""
    stage = rng.randrange(4)
    if stage == 0:
        _, writer = await asyncio.open_unix_connection(address)
        writer.write(b"\0\0\1\0{"[: rng.randrange(6)])
        writer.close()
        return
    await agent.connect(address)
    if stage > 1:
        tool = {"tool_id": f"{agent.agent_id}/do", "name": "do", "description": "A tool.", "input_schema": {}}
        agent.send("agent.tools.register", {"tools": [tool]})
    if stage > 2:
        await agent.hear("core.tools.registered")
    agent.close()


def _wait_alone(exchange: Running, at_rest: int) -> None:
    """Only the exchange's own sessions are there, and everything is on the disk."""

    def is_alone() -> bool:
        status = exchange.request("GET", "/v1/status")[1]
        return status["sessions"] <= at_rest and status["agents"] <= OWN_AGENTS and not status["backlog"]

    wait_until(is_alone, "everybody has left", GONE_WITHIN_S)

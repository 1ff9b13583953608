"""Hostile servers that are mounted: wrong messages, wrong bytes, in any pieces, at any moment, as the seed says."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

from msgspec import Raw

from tests.fuzz.mutations import Mutator, corpus
from tests.unit.edges.mounts.kit import ECHO, Server, mounted
from trunkline.entries import CallAccepted, CallSettled
from trunkline.testing.memory import MemoryExchange

STEPS = 120
MESSAGES = corpus("mounts.jsonl")
ECHO_OF_ANYTHING = {**ECHO, "inputSchema": {"type": "object"}}


def fuzz(seed: int, steps: int) -> Counter[str]:
    """Stories of hostile servers, so many steps in all."""
    seen: Counter[str] = Counter()
    while seen["steps"] < steps:
        seen += story(seed * 1000 + seen["steps"], STEPS)
    return seen


def story(seed: int, steps: int) -> Counter[str]:
    """One server over some runs, and calls of its tools; what became of them."""
    return asyncio.run(_story(seed, steps))


async def _story(seed: int, steps: int) -> Counter[str]:
    rng, mutator = Random(seed), Mutator(seed, MESSAGES)
    exchange, server = await mounted()
    seen: Counter[str] = Counter(steps=steps)
    _begin(server, rng)
    for _ in range(steps):
        action = rng.random()
        if action < 0.72:
            data = mutator.body() if rng.random() < 0.7 else _aimed(server, rng, mutator)
            seen["wrong"] += 1
            _say(server, data + b"\n" * (rng.random() < 0.95), rng)
        elif action < 0.87:
            exchange.call("mcp.x/echo", Raw(b'{"a": "b"}'))
        elif action < 0.95:
            exchange.advance(rng.choice((0.01, 0.2, 2.0, 70.0)))
        else:
            server.end()
            _begin(server, rng)
            seen["runs"] += 1
        if server.run.endings:
            seen["ended"] += 1
            server.end()
            _begin(server, rng)
    server.end()
    exchange.advance(100)
    await exchange.edges.stop()
    _judge(exchange, seed)
    for settled in exchange.recorded(CallSettled):
        seen[settled.status.value] += 1
    exchange.close()
    return seen


def _begin(server: Server, rng: Random) -> None:
    """Some runs go well up to the tools, so that what follows meets an agent that is there."""
    if rng.random() < 0.7:
        server.comes_in(ECHO_OF_ANYTHING)
    else:
        server.begin()


def _aimed(server: Server, rng: Random, mutator: Mutator) -> bytes:
    """An answer of any kind, with the id of something that was asked."""
    asked = [message["id"] for message in server.read() if isinstance(message.get("id"), int)]
    number = asked[-1] if asked else rng.randrange(1, 12)
    body = mutator.body()
    return body.replace(b'"id": 4', b'"id": %d' % number).replace(b'"id":4', b'"id":%d' % number)


def _say(server: Server, data: bytes, rng: Random) -> None:
    while data:
        size = rng.choice((1, 7, 100, 100_000))
        piece, data = data[:size], data[size:]
        server.owner.received(piece)
        if server.run.endings:
            return


def _judge(exchange: MemoryExchange, seed: int) -> None:
    status: dict[str, Any] = exchange.operator.status()
    assert (exchange.died, status["defects"]) == (None, 0), seed
    accepted = {entry.call_id for entry in exchange.recorded(CallAccepted)}
    settled = [entry.call_id for entry in exchange.recorded(CallSettled)]
    assert sorted(accepted) == sorted(settled), seed

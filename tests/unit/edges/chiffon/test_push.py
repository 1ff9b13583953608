"""Callbacks: work is posted, a dead one is a failed attempt, and ``GET /health`` is its health check."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.edges.chiffon.kit import Kit, request, tool
from trunkline.edges.background import Background
from trunkline.edges.chiffon.push import Callback
from trunkline.model import Health


@asynccontextmanager
async def listening(status: int = 202) -> AsyncIterator[tuple[str, list[tuple[str, bytes]]]]:
    """A callback; its address and what it was sent."""
    heard: list[tuple[str, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length"))
        heard.append((head.split(" HTTP")[0], await reader.readexactly(size)))
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", heard


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (what is waited for rings no bell)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def background(kit: Kit) -> AsyncIterator[Background]:
    """Where callbacks are run."""
    found = Background(kit.exchange.feed)
    yield found
    await found.stop()


async def test_work_is_posted_and_a_refusal_is_a_failed_attempt() -> None:
    kit = Kit()
    agent = await kit.agent()
    async with background(kit) as tasks:
        async with listening() as (url, heard):
            Callback(tasks, agent.conversation, url, "token").start()
            kit.call("infra-1/run")
            await until(lambda: heard)
            assert heard[0][0] == "POST /hook"
            assert json.loads(heard[0][1])["type"] == "work_request"
            assert kit.notes() == []
        async with listening(500) as (url, heard):
            Callback(tasks, agent.conversation, url, "token").start()
            kit.call("infra-1/run")
            await until(kit.notes)
            assert kit.notes() == ["attempt.failed"]


async def test_health_is_asked_for_beside_the_callback() -> None:
    kit = Kit()
    agent = await kit.agent()
    hub_agent = kit.exchange.hub.registry.agents["infra-1"]
    async with background(kit) as tasks:
        async with listening(200) as (url, heard):
            Callback(tasks, agent.conversation, url, "token").start()
            kit.advance(16.0)
            await until(lambda: heard)
            assert heard[0][0] == "GET /health"
        await until(lambda: agent.session.wake_at() == kit.exchange.clock.mono + 15)
        Callback(tasks, agent.conversation, "http://127.0.0.1:1/hook", "token").start()
        kit.advance(16.0)
        await until(lambda: hub_agent.health is Health.SILENT)


async def test_an_agent_that_is_gone_has_no_sender_any_more() -> None:
    kit = Kit()
    agent = await kit.agent()
    async with background(kit) as tasks:
        Callback(tasks, agent.conversation, "http://127.0.0.1:1/hook", "token").start()
        conversation = agent.conversation
        kit.advance(31.0)
        assert conversation.is_over
        assert conversation.carrier is None


async def test_an_orchestrator_may_have_a_callback_too() -> None:
    kit = Kit()
    kit.offer("com.a", tool("com.a/deploy"))
    boss = kit.orchestrator()
    async with background(kit) as tasks, listening(500) as (url, heard):
        Callback(tasks, kit.peers.heard(boss.caller), url, "token").start()
        boss.say(request("deploy"))
        await until(lambda: heard)
    assert json.loads(heard[0][1])["type"] == "work_status"

"""Attacks on a buyer: a relay that forges, and strangers who answer for others, flood and send what is too large."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from msgspec import Raw
from msgspec.structs import replace
from websockets.asyncio.server import Server, ServerConnection, serve

from tests.nostr import KINDS
from tests.running import Running, calling, wait_until
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import Announcement, Capabilities, Capacity, Pricing, Provenance
from trunkline.jobs import embedding
from trunkline.jobs.schemas import EMBEDDING, job_types

pytestmark = pytest.mark.timeout(120)
ANNA, EVE = (Signer(bytes(30) + b"\x03" + bytes([number])) for number in (1, 2))
INPUTS = {"texts": ["hello"], "model": embedding.HASHING, "dimensions": 4}
GOOD = embedding.embed(INPUTS["texts"], embedding.HASHING, dimensions=4)  # type: ignore[arg-type]
BAD = {**GOOD, "embeddings": [[1.0, 0.0, 0.0, 0.0]]}
TOOL = f"nostr.jobs/{EMBEDDING}"


class BadRelay:
    """A relay that sends what a test says, to whoever subscribed, whether it fits or not."""

    def __init__(self) -> None:
        self.connections: set[ServerConnection] = set()
        self.subscriptions: set[str] = set()
        self.requests: list[Event] = []
        self.changed = asyncio.Event()

    async def talk(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        try:
            async for frame in connection:
                words = json.loads(frame)
                if words[0] == "REQ":
                    self.subscriptions.add(words[1])
                elif words[0] == "EVENT":
                    await connection.send(json.dumps(["OK", words[1]["id"], True, ""]))
                    if words[1]["kind"] == KINDS.request:
                        self.requests.append(events.read(msgspec.json.encode(words[1])))
                self.changed.set()
        finally:
            self.connections.discard(connection)

    async def send(self, subscription: str, event: Event | bytes) -> None:
        data = event if isinstance(event, bytes) else events.encoded(event)
        for connection in list(self.connections):
            await connection.send(b'["EVENT","%b",%b]' % (subscription.encode(), data), text=True)

    async def request(self) -> Event:
        async with asyncio.timeout(30):
            while not self.requests:
                self.changed.clear()
                await self.changed.wait()
        return self.requests[-1]


def address(server: Server) -> str:
    return f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def announced(by: Signer, name: str = "d") -> Event:
    said = Announcement("SingleNode", Capabilities((EMBEDDING,), ()), Pricing(0, 0, 0), Capacity(4, 1000))
    return events.signed(messages.announcement_draft(KINDS, name, said, created_at=int(time.time())), by)


def result(request: Event, outputs: dict[str, Any], by: Signer, **changes: Any) -> Event:
    job = job_types()[EMBEDDING]
    body = Raw(msgspec.json.encode(outputs))
    given = {"output_hash": job.output_hash(outputs), "created_at": int(time.time()), **changes}
    return events.signed(messages.result_draft(KINDS, request, body, Provenance("m", by.npub), **given), by)


@asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[tuple[BadRelay, Running]]:
    """An exchange at a bad relay, on which Anna is an honest provider."""
    relay = BadRelay()
    async with serve(relay.talk, "127.0.0.1", 0, max_size=None) as server:
        config = f'[ossa]\nlisten = ""\n[nostr]\nrelay = ""\nrelays = ["{address(server)}"]\n'
        allowed = '[[policy.rule]]\ncaller = "*"\ntool = "nostr.jobs/*"\ndecision = "allow"\n'
        exchange = Running(folder / "home", config + allowed)
        await asyncio.to_thread(exchange.start)
        try:
            await asyncio.to_thread(wait_until, lambda: "announcements" in relay.subscriptions, "the subscription")
            await relay.send("announcements", announced(ANNA))
            await asyncio.to_thread(
                wait_until, lambda: exchange.call("nostr.jobs/providers")["output"]["count"] == 1, "the provider"
            )
            yield relay, exchange
        finally:
            await asyncio.to_thread(exchange.stop)


def notices(exchange: Running) -> list[str]:
    return [entry["code"] for entry in exchange.entries(kind="notice")]


async def test_no_forged_foreign_or_oversize_result_counts_and_the_honest_one_does(short_path: Path) -> None:
    async with attacked(short_path) as (relay, exchange):
        answer = calling(exchange, TOOL, INPUTS)
        request = await relay.request()
        bad = result(request, BAD, ANNA)
        forged = [
            # In Anna's name, signed by Eve; with another content under Anna's signature; with no signature at all.
            replace(result(request, BAD, EVE), pubkey=ANNA.public),
            replace(result(request, GOOD, ANNA), content=bad.content),
            replace(bad, sig="0" * 128),
            replace(bad, id="0" * 64),
            # By Eve, for a request that Anna was asked.
            result(request, BAD, EVE),
            result(request, GOOD, EVE),
        ]
        for event in forged:
            await relay.send("answers", event)
        huge = Draft(KINDS.result, "x" * 300_000, (("e", request.id), ("p", request.pubkey)), int(time.time()))
        await relay.send("answers", events.signed(huge, ANNA))
        await relay.send("answers", b'{"id": 1}')
        await relay.send("answers", b"[" * 100_000 + b"]" * 100_000)
        await relay.send("answers", result(request, GOOD, ANNA))
        found = await asyncio.wrap_future(answer)
        assert found["status"] == "succeeded", found
        assert found["output"]["embeddings"] == GOOD["embeddings"]
        assert found["output"]["verification"]["rejected"] == []
        codes = await asyncio.to_thread(notices, exchange)
        assert codes.count("nostr.forged") == 4
        assert codes.count("nostr.not_asked") == 2
        assert "nostr.malformed" in codes


async def test_a_wrong_hash_under_a_good_signature_is_a_lie_on_record(short_path: Path) -> None:
    async with attacked(short_path) as (relay, exchange):
        answer = calling(exchange, TOOL, INPUTS, timeout_ms=20_000)
        request = await relay.request()
        await relay.send("answers", result(request, GOOD, ANNA, output_hash="sha256:" + "0" * 64))
        found = await asyncio.wrap_future(answer)
        assert found["status"] == "failed"
        assert found["error"]["details"]["verification"]["rejected"] == [ANNA.npub]
        [lie] = [entry for entry in exchange.entries(kind="notice") if entry["code"] == "nostr.lied"]
        assert (lie["who"], lie["detail"]) == (ANNA.npub, "output_hash: does not compute")


async def test_a_flood_of_announcements_and_answers_leaves_memory_bounded_and_calls_served(short_path: Path) -> None:
    async with attacked(short_path) as (relay, exchange):
        assert exchange.process is not None
        process = psutil.Process(exchange.process.pid)
        strangers = [Signer(bytes(28) + number.to_bytes(2, "big") + b"\x04\x01") for number in range(150)]
        pads = [f"{number:0400}" for number in range(20)]
        said = Announcement("SingleNode", Capabilities((EMBEDDING,), tuple(pads)), Pricing(9, 9, 9), Capacity(4, 1000))
        flood = [
            events.signed(messages.announcement_draft(KINDS, str(name), said, created_at=int(time.time())), stranger)
            for stranger in strangers
            for name in range(10)
        ]
        before = process.memory_info().rss
        for event in flood:
            await relay.send("announcements", event)
        answer = calling(exchange, TOOL, INPUTS, timeout_ms=60_000)
        request = await relay.request()
        author = next((one for one in (ANNA, *strangers) if one.public == request.value("p")), ANNA)
        others = [one for one in strangers if one is not author]
        for number in range(300):
            stranger = others[number % len(others)]
            await relay.send("answers", result(request, BAD, stranger, created_at=int(time.time())))
        await relay.send("answers", result(request, GOOD, author))
        found = await asyncio.wrap_future(answer)
        assert found["status"] == "succeeded", found
        assert process.memory_info().rss - before < 100_000_000
        assert len(await asyncio.to_thread(notices, exchange)) < 1000

"""Jobs that others do for us across ``kill -9``: no request is posted twice, and what came meanwhile counts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.nostr import CONFIG
from tests.nostr_sellers import Seller, selling
from tests.running import Running, running, wait_until
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.events import Event
from trunkline.jobs import embedding

pytestmark = pytest.mark.timeout(180)
TOOL = "nostr.jobs/oa.embedding.v1"
ALLOWED = '[[policy.rule]]\ncaller = "*"\ntool = "nostr.jobs/*"\ndecision = "allow"\n'


def inputs(number: int) -> dict[str, Any]:
    return {"texts": [f"text {number}"], "model": embedding.HASHING, "dimensions": 4}


def embeds(given: dict[str, Any]) -> dict[str, Any]:
    return embedding.embed(given["texts"], given["model"], dimensions=given["dimensions"])


def inputs_of(request: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(messages.read_request(request).inputs))
    return found


def buying(relay: Running) -> str:
    return f'[ossa]\nlisten = ""\n[nostr]\nrelay = ""\nrelays = ["{relay.ready["relay"]}"]\n{ALLOWED}'


def outcome(exchange: Running, number: int) -> dict[str, Any]:
    """The call with this key: made at first, joined afterwards."""
    return exchange.call(TOOL, inputs(number), idempotency_key=f"job-{number}")


def known(exchange: Running, count: int) -> None:
    wait_until(lambda: exchange.call("nostr.jobs/providers")["output"]["count"] >= count, "the provider")


async def test_a_result_that_came_while_we_were_dead_is_taken_and_nothing_is_asked_twice(short_path: Path) -> None:
    with running(short_path / "relay", CONFIG) as relay, running(short_path / "home", buying(relay)) as exchange:
        seller = Seller(relay.ready["relay"], 1, lambda _: None, max_concurrent_jobs=100)
        async with selling(seller):
            await asyncio.to_thread(known, exchange, 2)
            waiting = [asyncio.ensure_future(asyncio.to_thread(outcome, exchange, number)) for number in range(5)]
            await seller.until(lambda: len(seller.asked) == 5, "all requests")
            await asyncio.to_thread(exchange.kill)
            await asyncio.gather(*waiting, return_exceptions=True)
            for request in seller.asked[:3]:
                await seller.give(request, messages.read_request(request), embeds(inputs_of(request)))
            await asyncio.to_thread(exchange.start)
            # The other two are not posted again: who has them does them now.
            for request in seller.asked[3:5]:
                await seller.give(request, messages.read_request(request), embeds(inputs_of(request)))
            for number in range(5):
                found = await asyncio.to_thread(outcome, exchange, number)
                assert found["status"] == "succeeded", found
                assert found["output"]["embeddings"] == embeds(inputs(number))["embeddings"]
        assert len({request.id for request in seller.asked}) == len(seller.asked) == 5
        settled = exchange.entries(kind="call.settled")
        assert len([entry for entry in settled if entry["status"] == "succeeded"]) >= 5
        accepted = [entry for entry in exchange.entries(kind="call.accepted") if entry["tool_id"] == TOOL]
        assert len(accepted) == 5


@pytest.mark.parametrize("moment", [0, 2])
async def test_killed_at_any_moment_each_call_has_one_outcome(short_path: Path, moment: int) -> None:
    with running(short_path / "relay", CONFIG) as relay, running(short_path / "home", buying(relay)) as exchange:
        seller = Seller(relay.ready["relay"], 1, embeds, max_concurrent_jobs=100)
        async with selling(seller):
            await asyncio.to_thread(known, exchange, 2)
            calls = [asyncio.ensure_future(asyncio.to_thread(outcome, exchange, number)) for number in range(12)]
            await seller.until(lambda: len(seller.asked) >= 1 + 4 * moment, "some requests")
            await asyncio.to_thread(exchange.kill)
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.to_thread(exchange.start)
            for number in range(12):
                found = await asyncio.to_thread(outcome, exchange, number)
                assert found["status"] == "succeeded", found
        # One request for each call, however often it was told.
        assert len(seller.asked) == 12
        accepted = [entry["call_id"] for entry in exchange.entries(kind="call.accepted") if entry["tool_id"] == TOOL]
        assert len(accepted) == 12

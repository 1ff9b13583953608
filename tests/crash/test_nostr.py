"""Jobs of strangers across ``kill -9``: no relay is left behind, and each job has one last event."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.nostr import CONFIG, Buyer
from tests.running import Running, running, wait_until

EMBEDDING = "oa.embedding.v1"
INPUTS = {"texts": ["hello"], "model": "trunkline-hashing-v1"}


def relays(exchange: Running) -> list[psutil.Process]:
    """The relay's processes of this home."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "trunkline.edges.nostr.relay" in words and str(exchange.home) in words[-1]:
            found.append(process)
    return found


def test_no_relay_outlives_the_exchange_however_it_ends(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        wait_until(lambda: len(relays(exchange)) == 1, "the relay to begin")
        exchange.kill()
        wait_until(lambda: not relays(exchange), "the relay to end")
        exchange.start()
        wait_until(lambda: len(relays(exchange)) == 1, "the relay to begin")
        assert exchange.stop() == 0
        assert relays(exchange) == []


async def test_jobs_that_were_answered_are_not_run_again_and_open_ones_end_once(short_path: Path) -> None:
    config = CONFIG + f'offer = ["{EMBEDDING}"]\nmax_jobs = 100\n'
    with running(short_path / "home", config) as exchange:
        async with Buyer(exchange.ready["relay"]) as buyer:
            first = await buyer.ask(EMBEDDING, INPUTS, nonce="first")
            before = await buyer.result(first)
            # Not waited for: some are taken on when the exchange is killed, some answered, some not looked at.
            others = [await buyer.ask(EMBEDDING, INPUTS, nonce=str(number)) for number in range(12)]
        exchange.kill()
        wait_until(lambda: not relays(exchange), "the relay to end")
        exchange.start()
        async with Buyer(exchange.ready["relay"]) as buyer:

            def last(request: object) -> set[str]:
                found = buyer.about(request, 6050)  # type: ignore[arg-type]
                failed = [event for event in buyer.about(request, 7000) if event.value("status") == "error"]  # type: ignore[arg-type]
                return {event.id for event in (*found, *failed)}

            await buyer.until(lambda: all(last(request) for request in others), "the end of each job")
            assert [len(last(request)) for request in others] == [1] * len(others)
            assert [event.id for event in buyer.about(first, 6050)] == [before.id]
        _, found = exchange.request("GET", "/v1/calls?limit=100")
        keys = [call["correlation_id"] for call in found["calls"]]
        assert sorted(keys) == sorted({first.id, *(request.id for request in others)})

"""Jobs over Nostr as a buyer sees them: a real exchange, its embedded relay, signed events."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from tests.nostr import CONFIG, Buyer
from tests.requirement import requirement
from tests.running import Running, running, wait_until
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.keys import npub_of
from trunkline.jobs.schemas import job_types

EMBEDDING = "oa.embedding.v1"
INPUTS = {"texts": ["hello", "wörld"], "model": "trunkline-hashing-v1"}
OFFERS = CONFIG + f'offer = ["{EMBEDDING}"]\n'


def recorded(exchange: Running) -> list[str]:
    """The tools of all calls on record."""
    _, found = exchange.request("GET", "/v1/calls")
    return [call["tool_id"] for call in found["calls"]]


@requirement("OA-001", "OA-002", "OA-004", "OA-005", "OA-107", "OA-109")
async def test_a_job_is_announced_asked_for_done_and_its_hashes_compute(short_path: Path) -> None:
    with running(short_path / "home", OFFERS) as exchange:
        async with Buyer(exchange.ready["relay"]) as buyer:
            provider = await buyer.provider()
            announced = messages.read_announcement(next(e for e in buyer.seen if e.kind == 31_990))
            assert announced.announcement.capabilities.supported_jobs == (EMBEDDING,)
            assert "trunkline-hashing-v1" in announced.announcement.capabilities.models
            request = await buyer.ask(EMBEDDING, INPUTS)
            result = await buyer.result(request)
            assert result.provider == provider
            assert result.provenance.provider_id == npub_of(provider)
            assert result.provenance.model == "trunkline-hashing-v1"
            outputs = json.loads(bytes(result.outputs))
            assert result.output_hash == job_types()[EMBEDDING].output_hash(outputs)
            assert len(outputs["embeddings"]) == 2
            await buyer.until(lambda: "success" in buyer.statuses(request), "the end")
            assert buyer.statuses(request) == ["processing", "success"]
        assert recorded(exchange) == [f"trunkline.jobs/{EMBEDDING}"]
        status, found = exchange.request("GET", "/v1/status")
        assert status == 200
        assert found["edges"]["nostr"]["npub"] == npub_of(provider)


async def test_wrong_jobs_are_errors_and_no_calls(short_path: Path) -> None:
    with running(short_path / "home", OFFERS) as exchange:
        async with Buyer(exchange.ready["relay"]) as buyer:
            wrong = [
                await buyer.ask("oa.retrieval_rerank.v1", {"user_task": "x", "candidates": []}),
                await buyer.ask(EMBEDDING, INPUTS, job_hash="sha256:" + "0" * 64),
                await buyer.ask(EMBEDDING, {"model": "trunkline-hashing-v1"}),
            ]
            for request in wrong:
                assert await buyer.until(lambda request=request: buyer.statuses(request), "a word") == ["error"]
            silent = [
                await buyer.ask(EMBEDDING, INPUTS, provider="ab" * 32),
                await buyer.ask("oa.retrieval_rerank.v1", {"user_task": "x", "candidates": []}, provider=""),
                await buyer.ask(EMBEDDING, INPUTS, created_at=int(time.time()) - 3700, nonce="old"),
            ]
            # One more that is answered: what came before it was looked at.
            await buyer.result(await buyer.ask(EMBEDDING, INPUTS, nonce="last"))
            assert [buyer.statuses(request) for request in silent] == [[], [], []]
        assert len(recorded(exchange)) == 1


async def test_a_model_that_nobody_knows_is_an_error(short_path: Path) -> None:
    with running(short_path / "home", OFFERS) as exchange:
        async with Buyer(exchange.ready["relay"]) as buyer:
            request = await buyer.ask(EMBEDDING, {**INPUTS, "model": "gpt-9"})
            await buyer.until(lambda: "error" in buyer.statuses(request), "an error")
            assert buyer.about(request, 6050) == []


async def test_a_private_job_is_answered_to_its_buyer_only(short_path: Path) -> None:
    with running(short_path / "home", OFFERS) as exchange:
        async with Buyer(exchange.ready["relay"]) as buyer:
            request = await buyer.ask(EMBEDDING, INPUTS, encrypt=buyer.signer.encrypt)
            result = await buyer.result(request)
            assert len(json.loads(bytes(result.outputs))["embeddings"]) == 2
            with pytest.raises(messages.BadMessage):
                messages.read_result(buyer.about(request, 6050)[0])
        assert b"w\xc3\xb6rld" not in (exchange.home / "ledger.sqlite").read_bytes()


async def test_nothing_is_served_or_announced_unless_it_is_offered(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        async with Buyer(exchange.ready["relay"]) as buyer:
            await buyer.ask(EMBEDDING, INPUTS, provider="")
            refused = await buyer.ask(EMBEDDING, INPUTS)
            await buyer.until(lambda: buyer.statuses(refused), "a word")
            [announced, error] = buyer.seen
            found = messages.read_announcement(announced).announcement
            assert found.capabilities.supported_jobs == ()
            assert error.tag("status") == ("status", "error", "this job is not offered here")
        assert recorded(exchange) == []


def test_a_chosen_port_that_is_taken_is_an_error(short_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        exchange = Running(short_path / "chosen", f'[ossa]\nlisten = ""\n[nostr]\nrelay = "127.0.0.1:{port}"\n')
        with pytest.raises(AssertionError, match=f"127.0.0.1:{port}: cannot listen here"):
            exchange.start()


def test_without_a_relay_the_edge_is_off(short_path: Path) -> None:
    with running(short_path / "home", '[ossa]\nlisten = ""\n[nostr]\nrelay = ""\n') as exchange:
        assert exchange.ready["relay"] is None
        wait_until(lambda: exchange.request("GET", "/v1/status")[1]["edges"]["nostr"]["state"] == "off", "off")

"""Jobs that others do for us, as a caller sees them: a real exchange, a real relay, providers of several kinds."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nostr import CONFIG
from tests.nostr_sellers import Seller, Work, selling
from tests.requirement import requirement
from tests.running import RawAgent, Running, calling, running, wait_until
from trunkline.jobs import embedding

pytestmark = pytest.mark.timeout(120)
EMBEDDING, RERANK = "oa.embedding.v1", "oa.retrieval_rerank.v1"
EMBED = {"texts": ["hello"], "model": embedding.HASHING, "dimensions": 4}
RANK = {"user_task": "cats", "candidates": [{"id": name, "content": name} for name in ("cat", "dog", "cow")], "k": 2}
ALLOWED = '[[policy.rule]]\ncaller = "*"\ntool = "nostr.jobs/*"\ndecision = "allow"\n'


def ranking(*ids: str) -> dict[str, Any]:
    return {"topk": [{"rank": at, "id": name, "score": 1 / at} for at, name in enumerate(ids, start=1)]}


def honest(_: dict[str, Any]) -> dict[str, Any]:
    return ranking("cat", "dog")


def lying(_: dict[str, Any]) -> dict[str, Any]:
    return ranking("cow", "dog")


def embeds(inputs: dict[str, Any]) -> dict[str, Any]:
    return embedding.embed(inputs["texts"], inputs["model"], dimensions=inputs["dimensions"])


async def known(exchange: Running, count: int) -> None:
    """All providers are known: announcements come in on their own."""
    await asyncio.to_thread(
        wait_until, lambda: exchange.call("nostr.jobs/providers")["output"]["count"] >= count, f"{count} providers"
    )


async def called(exchange: Running, schema_id: str, inputs: dict[str, Any], **remote: Any) -> dict[str, Any]:
    answer = calling(exchange, f"nostr.jobs/{schema_id}", {**inputs, "remote": remote} if remote else inputs)
    return await asyncio.wrap_future(answer)  # type: ignore[no-any-return]


@requirement("OA-060", "OA-061")
async def test_three_providers_do_a_job_and_the_one_that_lies_is_found_and_named(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + ALLOWED) as exchange:
        url = exchange.ready["relay"]
        liar = Seller(url, 1, lying)
        others = [Seller(url, number, honest) for number in (2, 3)]
        async with selling(liar, *others):
            await known(exchange, 4)  # the exchange announces itself, too
            answer = await called(exchange, RERANK, RANK, providers=3)
        assert answer["status"] == "succeeded", answer
        assert [one["id"] for one in answer["output"]["topk"]] == ["cat", "dog"]
        verification = answer["output"]["verification"]
        assert verification["dissented"] == [liar.npub]
        assert sorted(verification["to_be_paid"]) == sorted(seller.npub for seller in others)
        [verdict] = [step["data"] for step in exchange.entries(kind="process.step") if step["step"] == "verdict"]
        assert verdict["dissented"] == [liar.npub]


@requirement("OA-062")
async def test_a_judge_is_a_tool_that_decides_which_results_mean_the_same(short_path: Path) -> None:
    config = CONFIG + '[nostr.buyer]\njudge = "com.judge/compare"\n' + ALLOWED
    with running(short_path / "home", config) as exchange:
        agent = RawAgent(exchange, "com.judge")
        agent.hello()
        agent.register({"name": "compare", "side_effects": False})
        url = exchange.ready["relay"]
        async with selling(Seller(url, 1, honest), Seller(url, 2, lying)):
            await known(exchange, 3)
            answer = calling(exchange, f"nostr.jobs/{RERANK}", RANK)
            asked = await asyncio.to_thread(agent.wait_for, "core.tool.call")
            assert len(asked["payload"]["input"]["results"]) == 2
            agent.result(asked, output={"groups": [1, 1]})
            found = await asyncio.wrap_future(answer)
        assert found["status"] == "succeeded", found
        assert len(found["output"]["verification"]["agreed"]) == 2


@requirement("OA-107", "OA-109", "OA-113")
async def test_a_job_goes_to_those_who_announce_it_and_have_room_for_it(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + ALLOWED) as exchange:
        url = exchange.ready["relay"]
        small, large = Seller(url, 1, embeds, max_context_tokens=1), Seller(url, 2, embeds)
        async with selling(small, large):
            await known(exchange, 3)
            for _ in range(3):
                answer = await called(exchange, EMBEDDING, EMBED)
                assert answer["output"]["provenance"]["provider_id"] == large.npub
        assert (len(small.asked), len(large.asked)) == (0, 3)


async def test_a_provider_that_is_silent_is_replaced_within_the_time_of_the_call(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + "[nostr.buyer]\nsilence_s = 1\n" + ALLOWED) as exchange:
        url = exchange.ready["relay"]
        asked: list[int] = []

        def work(number: int) -> Work:
            """Whoever is asked first says nothing; the choice between equals is by chance."""

            def done(inputs: dict[str, Any]) -> dict[str, Any] | None:
                asked.append(number)
                return None if asked[0] == number else embeds(inputs)

            return done

        sellers = [Seller(url, number, work(number)) for number in (1, 2)]
        async with selling(*sellers):
            await known(exchange, 3)
            answer = await called(exchange, EMBEDDING, EMBED)
            silent, good = sellers if asked[0] == 1 else reversed(sellers)
            assert answer["output"]["provenance"]["provider_id"] == good.npub
            await silent.until(lambda: silent.taken_back == [silent.asked[0].id], "the deletion")


async def test_a_call_that_is_canceled_takes_its_request_back(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + ALLOWED) as exchange:
        seller = Seller(exchange.ready["relay"], 1, lambda _: None)
        async with selling(seller):
            await known(exchange, 2)
            answer = calling(exchange, f"nostr.jobs/{EMBEDDING}", EMBED)
            [request] = await seller.until(lambda: seller.asked, "the request")
            [call] = [call for call in exchange.request("GET", "/v1/calls")[1]["calls"] if call["status"] == "running"]
            exchange.request("POST", f"/v1/calls/{call['call_id']}/cancel", {})
            assert (await asyncio.wrap_future(answer))["status"] == "canceled"
            await seller.until(lambda: seller.taken_back == [request.id], "the deletion")


async def test_a_private_job_is_bought_and_nobody_on_the_relay_can_read_it(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + ALLOWED) as exchange:
        seller = Seller(exchange.ready["relay"], 1, embeds)
        async with selling(seller):
            await known(exchange, 2)
            answer = await called(exchange, EMBEDDING, {**EMBED, "texts": ["a secret of ours"]}, private=True)
        assert answer["status"] == "succeeded"
        [request] = seller.asked
        assert "secret" not in request.content + json.dumps(request.tags)


async def test_one_exchange_buys_what_another_one_offers(short_path: Path) -> None:
    offers = CONFIG + f'offer = ["{EMBEDDING}", "{RERANK}"]\n'
    with running(short_path / "a", offers) as provider:
        outside = f'[ossa]\nlisten = ""\n[nostr]\nrelay = ""\nrelays = ["{provider.ready["relay"]}"]\n'
        with running(short_path / "b", outside + ALLOWED) as buyer:
            await known(buyer, 1)
            npub = provider.request("GET", "/v1/status")[1]["edges"]["nostr"]["npub"]
            for remote in ({}, {"private": True}, {"provider": npub, "bid_msats": 5}):
                answer = await called(buyer, EMBEDDING, EMBED, **remote)
                assert answer["output"]["embeddings"] == embeds(EMBED)["embeddings"]
                assert answer["output"]["verification"]["to_be_paid"] == [npub]
            answer = await called(buyer, RERANK, RANK)
            assert (answer["status"], answer["error"]["code"]) == ("failed", "tool.unavailable")
            # The provider's own refusal of what it does not have.
            answer = await called(buyer, EMBEDDING, {**EMBED, "model": "gpt-9"}, provider=npub)
            assert "inputs.model" in json.dumps(answer["error"]["details"])


async def test_what_is_offered_here_is_bought_here_if_that_is_configured(short_path: Path) -> None:
    own = CONFIG + f'offer = ["{EMBEDDING}"]\n[nostr.buyer]\nfrom_ourselves = true\n'
    with running(short_path / "home", own + ALLOWED) as exchange:
        await known(exchange, 1)
        answer = await called(exchange, EMBEDDING, EMBED)
        assert answer["status"] == "succeeded", answer


async def test_the_command_line_buys_jobs_and_lists_who_does_them(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + ALLOWED) as exchange:
        home = str(exchange.home)

        async def said(*words: str) -> tuple[int, str]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "trunkline", "jobs", *words, "--home", home, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode is not None
            return process.returncode, out.decode()

        seller = Seller(exchange.ready["relay"], 1, embeds)
        async with selling(seller):
            await known(exchange, 2)
            submit = ("submit", EMBEDDING, json.dumps(EMBED), "--remote")
            code, out = await said(*submit, "--provider", seller.npub, "--bid", "10", "--private")
            assert code == 0, out
            assert json.loads(out)["verification"]["agreed"] == [seller.npub]
            assert seller.asked[0].value("bid") == "10"
            _, listed = await said("providers", "--schema", EMBEDDING)
            assert seller.npub in listed
            assert "1 succeeded" in listed
            found = json.loads((await said("providers", "--json"))[1])["providers"]
            assert seller.npub in [one["provider"] for one in found]
            assert (await said("submit", EMBEDDING, "{}", "--bid", "1"))[0] == 2
            assert (await said("submit", "oa.nobody.v1", "{}", "--remote"))[0] == 2
            both = json.dumps({**EMBED, "remote": {"private": True}})
            assert (await said("submit", EMBEDDING, both, "--remote", "--private"))[0] == 2

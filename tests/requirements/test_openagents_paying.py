"""Jobs that we buy: paying is a call that a person approves, money is held until the verdict, who was right is paid."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.nostr import CONFIG, KINDS, WAIT_S
from tests.nostr_sellers import Seller, Work, selling
from tests.requirement import requirement
from tests.requirements.test_openagents_money import PRICED, account, balances, printed, trunkline
from tests.running import Running, calling, running, wait_until
from tests.wallets import WalletClient
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.messages import Status
from trunkline.jobs import embedding

pytestmark = pytest.mark.timeout(120)
EMBEDDING, RERANK = "oa.embedding.v1", "oa.retrieval_rerank.v1"
RANK = {"user_task": "cats", "candidates": [{"id": name, "content": name} for name in ("cat", "dog", "cow")], "k": 2}
BUYING = '[[policy.rule]]\ncaller = "*"\ntool = "nostr.jobs/*"\ndecision = "allow"\n'
PAYING = '[[policy.rule]]\ncaller = "*"\ntool = "nostr.wallet/pay"\ndecision = "allow"\n'


def ranking(*ids: str) -> Work:
    found = {"topk": [{"rank": at, "id": name, "score": 1 / at} for at, name in enumerate(ids, start=1)]}
    return lambda _: found


class PaidSeller(Seller):
    """Does a job when the money for it is held in the exchange's wallet, where it has an account."""

    def __init__(self, url: str, number: int, work: Work, wallet: WalletClient, msats: int = 1000) -> None:
        super().__init__(url, number, work)
        self.wallet = wallet
        self.msats = msats
        self.tasks: list[asyncio.Task[None]] = []

    async def _work(self, request: Event) -> None:
        self.tasks.append(asyncio.ensure_future(self._when_paid(request)))

    async def _when_paid(self, request: Event) -> None:
        job_hash = messages.read_request(request, self.signer.decrypt).job_hash
        made = (await self.wallet.ask("make_invoice", amount=self.msats, description=job_hash))["result"]
        draft = messages.feedback_draft(
            KINDS, request, Status.PAYMENT_REQUIRED, created_at=int(time.time()), amount_msats=self.msats,
            invoice=made["invoice"],
        )  # fmt: skip
        await self.say(draft)
        deadline = time.monotonic() + WAIT_S
        while (await self.wallet.ask("lookup_invoice", payment_hash=made["payment_hash"]))["result"]["state"] == (
            "pending"
        ):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        await super()._work(request)


async def known(exchange: Running, count: int) -> None:
    await asyncio.to_thread(
        wait_until, lambda: exchange.call("nostr.jobs/providers")["output"]["count"] >= count, f"{count} providers"
    )


@requirement("OA-058", "OA-063")
async def test_only_providers_in_the_agreement_are_paid_and_each_has_a_receipt(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + BUYING + PAYING) as exchange:
        url = exchange.ready["relay"]
        printed(exchange.home, "wallet", "fund", "exchange", "50000")
        connections = [account(exchange, f"seller-{number}", 1) for number in (1, 2, 3)]
        async with (
            WalletClient(connections[0]) as one,
            WalletClient(connections[1]) as two,
            WalletClient(connections[2]) as three,
        ):
            liar = PaidSeller(url, 1, ranking("cow", "dog"), one)
            others = [
                PaidSeller(url, 2, ranking("cat", "dog"), two),
                PaidSeller(url, 3, ranking("cat", "dog"), three),
            ]
            async with selling(liar, *others):
                await known(exchange, 4)
                answer = calling(exchange, f"nostr.jobs/{RERANK}", {**RANK, "remote": {"providers": 3}})
                found = await asyncio.wrap_future(answer)
            assert found["status"] == "succeeded", found
            assert sorted(found["output"]["verification"]["to_be_paid"]) == sorted(one.npub for one in others)
            await asyncio.to_thread(
                wait_until, lambda: len(printed(exchange.home, "receipts")["receipts"]) == 2, "two receipts"
            )
        assert balances(exchange) == {"exchange": 48_000, "seller-1": 1, "seller-2": 1001, "seller-3": 1001}
        receipts = printed(exchange.home, "receipts")["receipts"]
        assert sorted(one["provider_id"] for one in receipts) == sorted(one.npub for one in others)
        for receipt in receipts:
            assert receipt["session_id"] == found["call_id"]
            done = trunkline(exchange.home, "receipts", "verify", receipt["receipt_id"])
            assert done.returncode == 0, done.stdout + done.stderr


@requirement("OA-063")
async def test_without_a_quorum_nobody_is_paid(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + BUYING + PAYING) as exchange:
        url = exchange.ready["relay"]
        printed(exchange.home, "wallet", "fund", "exchange", "50000")
        connections = [account(exchange, f"seller-{number}", 1) for number in (1, 2)]
        async with WalletClient(connections[0]) as one, WalletClient(connections[1]) as two:
            sellers = [PaidSeller(url, 1, ranking("cow", "dog"), one), PaidSeller(url, 2, ranking("cat", "dog"), two)]
            async with selling(*sellers):
                await known(exchange, 3)
                answer = calling(exchange, f"nostr.jobs/{RERANK}", RANK)
                found = await asyncio.wrap_future(answer)
        assert found["status"] == "failed", found
        assert balances(exchange) == {"exchange": 50_000, "seller-1": 1, "seller-2": 1}
        assert printed(exchange.home, "receipts")["receipts"] == []


@requirement("OA-075", "OA-079")
async def test_a_payment_is_asked_about_with_amount_payee_job_and_what_was_paid_before(short_path: Path) -> None:
    with running(short_path / "home", CONFIG + BUYING) as exchange:
        printed(exchange.home, "wallet", "fund", "exchange", "50000")
        connection = account(exchange, "seller", 1)
        async with WalletClient(connection) as wallet:
            seller = PaidSeller(exchange.ready["relay"], 1, embeds, wallet)
            async with selling(seller):
                await known(exchange, 2)
                for paid in (0, 1):
                    answer = calling(exchange, f"nostr.jobs/{EMBEDDING}", EMBED)
                    question = await asyncio.to_thread(wait_until, lambda: questions(exchange), "a question")
                    asked = question[0]["input"]
                    assert question[0]["tool_id"] == "nostr.wallet/pay"
                    assert (asked["amount_msats"], asked["payee"]) == (1000, seller.npub)
                    assert asked["job"]["schema_id"] == EMBEDDING
                    assert asked["invoice_names_job"] is True
                    assert asked["paid_before"] == {"count": paid, "msats": 1000 * paid}
                    assert balances(exchange)["exchange"] == 50_000 - 1000 * paid  # nothing moves before the answer
                    trunkline(exchange.home, "approve", question[0]["approval_id"])
                    found = await asyncio.wrap_future(answer)
                    assert found["status"] == "succeeded", found
                    count = paid + 1
                    await asyncio.to_thread(
                        wait_until,
                        lambda count=count: len(printed(exchange.home, "receipts")["receipts"]) == count,
                        "a receipt",
                    )
                answer = calling(exchange, f"nostr.jobs/{EMBEDDING}", EMBED)
                question = await asyncio.to_thread(wait_until, lambda: questions(exchange), "a question")
                trunkline(exchange.home, "deny", question[0]["approval_id"])
                found = await asyncio.wrap_future(answer)
                assert found["status"] == "failed", found
        assert balances(exchange) == {"exchange": 48_000, "seller": 2001}
        rules = {one["approval_rule_id"] for one in printed(exchange.home, "receipts")["receipts"]}
        assert rules == {"builtin-untrusted"}


def questions(exchange: Running) -> list[Any]:
    _, found = exchange.request("GET", "/v1/approvals")
    return list(found["approvals"])


async def test_nobody_can_approve_what_is_beyond_the_budget(short_path: Path) -> None:
    config = CONFIG + "[nostr.wallet]\nmax_msats_per_job = 1500\nmax_msats_per_day = 2500\n" + BUYING + PAYING
    with running(short_path / "home", config) as exchange:
        printed(exchange.home, "wallet", "fund", "exchange", "50000")
        connection = account(exchange, "seller", 1)
        async with WalletClient(connection) as wallet:
            seller = PaidSeller(exchange.ready["relay"], 1, embeds, wallet, msats=1501)
            async with selling(seller):
                await known(exchange, 2)
                found = await asyncio.wrap_future(calling(exchange, f"nostr.jobs/{EMBEDDING}", EMBED))
                assert found["status"] == "failed"
                assert "max_msats_per_job is 1500" in json.dumps(found)
                seller.msats = 1500
                statuses = []
                for _ in range(2):
                    found = await asyncio.wrap_future(calling(exchange, f"nostr.jobs/{EMBEDDING}", EMBED))
                    statuses.append(found["status"])
                assert statuses == ["succeeded", "failed"]
                assert "max_msats_per_day is 2500" in json.dumps(found)
        assert balances(exchange) == {"exchange": 48_500, "seller": 1501}


EMBED = {"texts": ["hello"], "model": embedding.HASHING, "dimensions": 4}


def embeds(inputs: dict[str, Any]) -> dict[str, Any]:
    return embedding.embed(inputs["texts"], inputs["model"], dimensions=inputs["dimensions"])


async def test_a_wallet_elsewhere_pays_at_once_and_the_receipt_says_so(short_path: Path) -> None:
    with running(short_path / "seller", PRICED) as seller:
        connection = account(seller, "buyer", 100_000)
        (short_path / "buyer").mkdir(mode=0o700)
        (short_path / "buyer" / "connection").write_text(connection)
        config = (
            CONFIG.replace("[nostr]\n", f'[nostr]\nrelays = ["{seller.ready["relay"]}"]\n')
            + '[nostr.wallet]\nconnection = "file:connection"\nprepay = true\n'
            + BUYING
            + PAYING
        )
        with running(short_path / "buyer", config) as buyer:
            await known(buyer, 2)
            found = await asyncio.wrap_future(calling(buyer, f"nostr.jobs/{EMBEDDING}", EMBED))
            assert found["status"] == "succeeded", found
            await asyncio.to_thread(
                wait_until, lambda: printed(buyer.home, "receipts")["receipts"], "a receipt of the buyer"
            )
            [ours] = printed(buyer.home, "receipts")["receipts"]
            [theirs] = printed(seller.home, "receipts")["receipts"]
            assert ours["prepaid"] is True
            assert ours["payment_proof"] == theirs["payment_proof"]
            for home, receipt in ((buyer.home, ours), (seller.home, theirs)):
                assert trunkline(home, "receipts", "verify", receipt["receipt_id"]).returncode == 0
        assert balances(seller)["buyer"] == 100_000 - ours["amount_msats"]

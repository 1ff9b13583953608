"""``kill -9`` in the middle of a payment in ecash, of who pays and of who is paid: the sum of the money is constant."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.mints import MintServer, running_mint
from tests.nostr import CONFIG, OnRelay
from tests.requirements.test_openagents_money import EMBED, EMBEDDING
from tests.requirements.test_openagents_paying import BUYING, PAYING
from tests.running import Running, calling, running, wait_until
from trunkline.edges.nostr.keys import Signer
from trunkline.ledger import receipts, wallets
from trunkline.ledger.reader import Reader
from trunkline.money import proving
from trunkline.money.verifying import verifiers
from trunkline.money.wallet import Wallet

FUNDED = 100
LOCKED, PUBLISHED, REDEEMED = "lock", "publish", "redeem"


def fold(exchange: Running) -> Wallet:
    reader = Reader(exchange.home / "ledger.sqlite")
    try:
        return wallets.fold(reader)
    finally:
        reader.close()


def money(exchange: Running, mint: MintServer) -> tuple[int, int]:
    found = fold(exchange).ecash.get(mint.url)
    return (0, 0) if found is None else (found.sats, found.locked)


def proved(exchange: Running) -> int:
    """How many receipts there are; each of them verifies."""
    reader = Reader(exchange.home / "ledger.sqlite")
    try:
        found = list(receipts.listed(reader))
        for one in found:
            proving.prove(receipts.evidence(reader, one), verifiers("regtest", (), 1))
        return len(found)
    finally:
        reader.close()


class Killing:
    """Kills an exchange when the mint is asked for a certain swap: before it does it, or before it answers."""

    def __init__(self, mint: MintServer, exchange: Running, step: str, *, is_done: bool) -> None:
        self._exchange = exchange
        self._is_redeeming = step == REDEEMED
        self.killed = threading.Event()
        self._is_done = is_done
        setattr(mint, "after" if is_done else "before", self._asked)

    def _asked(self, path: str, body: Any) -> None:
        if path != "/v1/swap" or self.killed.is_set():
            return
        if any("witness" in one for one in body["inputs"]) is not self._is_redeeming:
            return
        self._exchange.kill()
        self.killed.set()
        if not self._is_done:
            raise ConnectionError("the mint never hears of it")


def config(mint: MintServer, relay: str = "", *, is_seller: bool) -> str:
    text = CONFIG.replace("[nostr]\n", f'[nostr]\nrelays = ["{relay}"]\n') if relay else CONFIG
    if is_seller:
        text += f'offer = ["{EMBEDDING}"]\n[nostr.pricing]\ninput_tokens_per_1k_msats = 1000000\n'
    text += f'[nostr.wallet]\nmints = ["{mint.url}"]\nprepay = true\n'
    return text if is_seller else text + BUYING + PAYING


def ready_to_pay(buyer: Running, seller: Running, mint: MintServer) -> None:
    assert buyer.call("nostr.wallet/mint", {"mint": mint.url, "msats": FUNDED * 1000})["status"] == "succeeded"
    mint.pay_all()
    wait_until(lambda: money(buyer, mint) == (FUNDED, 0), "the ecash")
    wait_until(lambda: buyer.call("nostr.jobs/providers")["output"]["count"] >= 2, "both to be announced")
    wait_until(lambda: "1 of 1 known" in str(seller.request("GET", "/v1/status")[1]), "the seller to know the mint")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("step", "is_done"), [(LOCKED, False), (LOCKED, True), (PUBLISHED, True)])
async def test_a_payer_that_is_killed_has_his_ecash_or_his_receipt(short_path: Path, step: str, is_done: bool) -> None:
    with (
        running_mint() as mint,
        running(short_path / "seller", config(mint, is_seller=True)) as seller,
        running(short_path / "buyer", config(mint, seller.ready["relay"], is_seller=False)) as buyer,
    ):
        await asyncio.to_thread(ready_to_pay, buyer, seller, mint)
        if step == LOCKED:
            killing = Killing(mint, buyer, step, is_done=is_done)
            calling(buyer, f"nostr.jobs/{EMBEDDING}", EMBED)
            assert await asyncio.to_thread(killing.killed.wait, 60)
        else:
            signer = Signer(bytes(31) + b"\x0b")
            async with OnRelay(seller.ready["relay"], signer, {"kinds": [9321]}) as watcher:
                calling(buyer, f"nostr.jobs/{EMBEDDING}", EMBED)
                await watcher.until(lambda: watcher.seen, "a nutzap")
                buyer.kill()
        await asyncio.to_thread(buyer.start)
        # Never told: at once ours again if the mint did not sign it, else locked until its time is over.
        if step == PUBLISHED:
            await asyncio.to_thread(wait_until, lambda: proved(buyer) == 1, "the buyer's receipt")
            await asyncio.to_thread(wait_until, lambda: sum(money(buyer, mint)) < FUNDED, "the end of the payment")
            assert proved(seller) == 1
            assert sum(money(seller, mint)) > 0
        elif is_done:
            await asyncio.to_thread(wait_until, lambda: money(buyer, mint)[1] > 0, "what is locked")
        else:
            await asyncio.to_thread(wait_until, lambda: money(buyer, mint) == (FUNDED, 0), "the ecash to be back")
        assert sum(money(buyer, mint)) + sum(money(seller, mint)) == FUNDED
        assert proved(buyer) == (step == PUBLISHED)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_done", [False, True])
async def test_a_payee_that_is_killed_as_it_redeems_has_it_once_and_gives_the_result(
    short_path: Path, is_done: bool
) -> None:
    with (
        running_mint() as mint,
        running(short_path / "buyer", config(mint, is_seller=False)) as buyer,
        running(short_path / "seller", config(mint, buyer.ready["relay"], is_seller=True)) as seller,
    ):
        await asyncio.to_thread(ready_to_pay, buyer, seller, mint)
        killing = Killing(mint, seller, REDEEMED, is_done=is_done)
        answer = calling(buyer, f"nostr.jobs/{EMBEDDING}", EMBED)
        assert await asyncio.to_thread(killing.killed.wait, 60)
        await asyncio.to_thread(seller.start)
        found = await asyncio.wrap_future(answer)
        assert found["status"] == "succeeded", found
        await asyncio.to_thread(wait_until, lambda: proved(buyer) == 1, "the buyer's receipt")
        await asyncio.to_thread(wait_until, lambda: money(buyer, mint)[1] == 0, "nothing to be locked")
        assert proved(seller) == 1
        assert money(buyer, mint)[0] + money(seller, mint)[0] == FUNDED

"""Jobs paid in ecash (NIP-61, NUT-11): two real exchanges, a mint between them, and receipts that verify."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mints import MintServer, running_mint
from tests.nostr import CONFIG
from tests.requirement import requirement
from tests.requirements.test_openagents_money import EMBED, EMBEDDING, PRICED, printed, trunkline
from tests.requirements.test_openagents_paying import BUYING, PAYING, known
from tests.running import Running, calling, running, wait_until

pytestmark = pytest.mark.timeout(120)
# What the job costs: 7 tokens at a satoshi each.
PRICE = 7000


@pytest.fixture
def mint() -> Iterator[MintServer]:
    with running_mint() as found:
        yield found


def seller_config(*mints: MintServer) -> str:
    return PRICED + f"[nostr.wallet]\nmints = {json.dumps([one.url for one in mints])}\n"


def buyer_config(seller: Running, *mints: MintServer, rules: str = BUYING + PAYING, more: str = "") -> str:
    wallet = f"[nostr.wallet]\nprepay = true\nmints = {json.dumps([one.url for one in mints])}\n{more}"
    return CONFIG.replace("[nostr]\n", f'[nostr]\nrelays = ["{seller.ready["relay"]}"]\n') + wallet + rules


def ecash(exchange: Running, mint: MintServer) -> tuple[int, int]:
    """What there is of a mint's ecash by the record: to spend, and locked."""
    found = {one["mint"]: one for one in printed(exchange.home, "wallet", "balance")["ecash"]}
    one = found.get(mint.url, {"balance_msats": 0, "locked_msats": 0})
    return one["balance_msats"], one["locked_msats"]


def fund(exchange: Running, mint: MintServer, msats: int) -> None:
    """Have a mint's invoice paid, as a person does."""
    made = printed(exchange.home, "wallet", "fund", "exchange", str(msats), "--mint", mint.url)
    assert made["invoice"].startswith("lnbcrt")
    before = sum(ecash(exchange, mint))
    mint.pay_all()
    wait_until(lambda: sum(ecash(exchange, mint)) == before + msats, "the ecash")


def asks_in_ecash(exchange: Running) -> None:
    """Until the seller knows its mint."""
    wait_until(lambda: "1 of 1 known" in json.dumps(exchange.request("GET", "/v1/status")[1]), "the mint to be known")


async def bought(buyer: Running, **inputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = await asyncio.wrap_future(calling(buyer, f"nostr.jobs/{EMBEDDING}", {**EMBED, **inputs}))
    return found


@requirement("OA-058", "OA-063", "OA-069", "OA-070", "OA-080", "OA-081", "OA-082")
async def test_a_job_is_paid_in_ecash_and_both_have_a_receipt_that_verifies(short_path: Path, mint: MintServer) -> None:
    with running(short_path / "seller", seller_config(mint)) as seller:
        asks_in_ecash(seller)
        with running(short_path / "buyer", buyer_config(seller, mint)) as buyer:
            fund(buyer, mint, 100_000)
            await known(buyer, 2)
            found = await bought(buyer)
            assert found["status"] == "succeeded", found
            await asyncio.to_thread(wait_until, lambda: printed(buyer.home, "receipts")["receipts"], "a receipt")
            [ours] = printed(buyer.home, "receipts")["receipts"]
            [theirs] = printed(seller.home, "receipts")["receipts"]
            assert (ours["rail"], ours["asset_id"]) == ("cashu", f"BTC_CASHU({mint.url})")
            assert ours["payment_proof"] == theirs["payment_proof"]
            assert ours["prepaid"] is True
            for home, receipt in ((buyer.home, ours), (seller.home, theirs)):
                done = trunkline(home, "receipts", "verify", receipt["receipt_id"])
                assert done.returncode == 0, done.stdout + done.stderr
            price = ours["amount_msats"]
            await asyncio.to_thread(wait_until, lambda: ecash(buyer, mint) == (100_000 - price, 0), "nothing locked")
            assert ecash(seller, mint) == (price, 0)
            exported = trunkline(buyer.home, "receipts", "export", ours["receipt_id"]).stdout
            file = short_path / "receipt.json"
            file.write_text(exported)
            assert trunkline(short_path / "nowhere", "receipts", "verify", str(file)).returncode == 0
            value = ours["payment_proof"]["value"]
            changed = value[:200] + ("A" if value[200] != "A" else "B") + value[201:]
            file.write_text(exported.replace(value, changed))
            assert trunkline(short_path / "nowhere", "receipts", "verify", str(file)).returncode == 1

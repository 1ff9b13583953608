"""Money for jobs as a foreign buyer sees it: a real exchange, its relay, its wallet, and receipts that verify."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nostr import CONFIG, Buyer
from tests.requirement import requirement
from tests.running import Running, running
from tests.wallets import WalletClient
from trunkline.edges.nostr.keys import npub_of
from trunkline.jobs import embedding

pytestmark = pytest.mark.timeout(120)
EMBEDDING, SANDBOX = "oa.embedding.v1", "oa.sandbox_run.v1"
EMBED = {"texts": ["hello wide world"], "model": embedding.HASHING, "dimensions": 4}
PRICED = (
    CONFIG
    + f'offer = ["{EMBEDDING}", "{SANDBOX}"]\n'
    + "[nostr.pricing]\ninput_tokens_per_1k_msats = 1000000\nsandbox_per_minute_msats = 6000\n"
)


def trunkline(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline", "--home", str(home), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def printed(home: Path, *words: str) -> Any:
    done = trunkline(home, *words, "--json")
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return json.loads(done.stdout)


def account(exchange: Running, name: str, msats: int) -> str:
    """A new account with money in it; its connection."""
    connection: str = printed(exchange.home, "wallet", "new", name)["connection"]
    printed(exchange.home, "wallet", "fund", name, str(msats))
    return connection


def balances(exchange: Running) -> dict[str, int]:
    listed = printed(exchange.home, "wallet", "balance")
    assert sum(one["balance_msats"] + one["held_msats"] for one in listed["wallets"]) == listed["total_msats"]
    return {one["name"]: one["balance_msats"] for one in listed["wallets"]}


async def invoice_of(buyer: Buyer, request: Any) -> tuple[int, str]:
    """What the provider asks for."""

    def asked() -> list[Any]:
        return [event for event in buyer.about(request, 7000) if event.value("status") == "payment-required"]

    [event] = await buyer.until(asked, "an invoice")
    _, msats, invoice = event.tag("amount")
    return int(msats), invoice


@requirement("OA-003", "OA-078", "OA-079", "OA-080", "OA-081", "OA-082", "OA-112")
async def test_a_foreign_buyer_pays_gets_a_verified_result_and_a_receipt_that_verifies(short_path: Path) -> None:
    with running(short_path / "home", PRICED) as exchange:
        connection = account(exchange, "alice", 100_000)
        async with Buyer(exchange.ready["relay"]) as buyer, WalletClient(connection) as wallet:
            request = await buyer.ask(EMBEDDING, EMBED)
            msats, invoice = await invoice_of(buyer, request)
            assert not exchange.entries(kind="call.accepted", correlation_id=request.id)
            answer = await wallet.ask("pay_invoice", invoice=invoice)
            assert answer["error"] is None, answer
            preimage = answer["result"]["preimage"]
            result = await buyer.result(request)
            [event] = buyer.about(request, 6050)
            assert (result.amount_msats, result.invoice) == (msats, invoice)
            receipt = json.loads(event.value("receipt"))
            assert (await wallet.ask("get_balance"))["result"] == {"balance": 100_000 - msats}
        assert receipt["payment_proof"] == {"type": "lightning_preimage", "value": preimage}
        assert receipt["provider_id"] == npub_of(event.pubkey)
        assert receipt["session_id"] == request.id
        assert balances(exchange) == {"exchange": msats, "alice": 100_000 - msats}
        home = exchange.home
        assert printed(home, "receipts")["receipts"] == [receipt]
        name = receipt["receipt_id"]
        assert printed(home, "receipts", "verify", name)["links"] == [
            "receipt", "payment", "job", "trajectory", "policy",
        ]  # fmt: skip
    # Also without a running exchange, and from a file alone.
    assert trunkline(home, "receipts", "verify", name).returncode == 0
    exported = trunkline(home, "receipts", "export", name)
    file = short_path / "receipt.json"
    file.write_text(exported.stdout)
    assert trunkline(short_path / "elsewhere", "receipts", "verify", str(file)).returncode == 0
    assert hashlib.sha256(bytes.fromhex(preimage)).hexdigest()

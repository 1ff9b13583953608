"""A buyer in Node.js with ``nostr-tools`` pays an invoice over NIP-47 and gets a preimage that hashes to it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.peers.test_nostr_node import bundle_of_nostr_tools
from tests.requirement import requirement
from tests.requirements.test_openagents_money import PRICED, account, balances, trunkline
from tests.running import running
from trunkline.money import bolt11

pytestmark = pytest.mark.timeout(120)
PAYER = Path(__file__).with_name("nostr_payer.mjs")


@requirement("OA-080", "OA-082")
async def test_a_foreign_buyer_pays_with_his_own_wallet_and_gets_the_preimage(short_path: Path, node: str) -> None:
    bundle = bundle_of_nostr_tools(node, short_path)
    with running(short_path / "home", PRICED) as exchange:
        connection = account(exchange, "foreigner", 100_000)
        process = await asyncio.create_subprocess_exec(
            node, str(PAYER), str(bundle), connection, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            out, complaints = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, complaints.decode()
        found = json.loads(out)
        assert {"pay_invoice", "get_balance"} <= set(found["info"].split())
        assert found["isInfoSigned"]
        assert found["isSigned"]
        invoice = bolt11.read(found["invoice"])
        assert (invoice.amount_msats, invoice.payment_hash) == (found["msats"], found["payment_hash"])
        assert found["spent"] == found["msats"]
        assert len(found["outputs"]["embeddings"]) == 1
        assert found["receipt"]["payment_proof"]["value"] == found["preimage"]
        assert balances(exchange) == {"exchange": found["msats"], "foreigner": 100_000 - found["msats"]}
        assert trunkline(exchange.home, "receipts", "verify", found["receipt"]["receipt_id"]).returncode == 0

"""An exchange that is killed with -9 in the middle of payments, and what its wallet and receipts say afterwards.

One case is one kill: a job is quoted, its payment is on its way, held, released or refunded when the kill comes. After
the next start no money may be held for a job that is over, the sum of all balances is what was funded, and each payment
that was held is refunded, or released with a receipt that verifies.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from tests.nostr import CONFIG, Buyer
from tests.running import Running, running, wait_until
from tests.wallets import WalletClient
from trunkline.edges.nostr.events import Event
from trunkline.ledger import receipts, wallets
from trunkline.ledger.reader import Reader
from trunkline.money import bolt11, proving
from trunkline.money.wallet import Wallet

EMBEDDING, SANDBOX = "oa.embedding.v1", "oa.sandbox_run.v1"
PRICED = (
    CONFIG
    + f'offer = ["{EMBEDDING}", "{SANDBOX}"]\n'
    + "[nostr.pricing]\ninput_tokens_per_1k_msats = 1000000\nsandbox_per_minute_msats = 6000\n"
)
FUNDED = 10_000_000
# A payment takes some tenths of a second, and most of its steps are in the first.
LONGEST_S = 0.5
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    (EMBEDDING, {"texts": ["hello"], "model": "trunkline-hashing-v1", "dimensions": 4}),
    (SANDBOX, {"commands": [{"cmd": "echo hello"}]}),
    (SANDBOX, {"commands": [{"cmd": "exit 3"}]}),
)


def trial(home: Path, seed: int, kills: int) -> int:
    """So many kills of one exchange; how many of them came after the money was held."""
    with running(home, PRICED) as exchange:
        return asyncio.run(_trial(exchange, random.Random(seed), kills))


async def _trial(exchange: Running, chance: random.Random, kills: int) -> int:
    secret = chance.randbytes(32)
    client = WalletClient.of(exchange.ready["relay"], secret, "0" * 64)
    opened = exchange.call("nostr.wallet/new", {"name": "alice", "client": client.signer.public})["output"]
    exchange.call("nostr.wallet/fund", {"name": "alice", "msats": FUNDED})
    paid: list[str] = []
    for number in range(kills):
        schema_id, inputs = chance.choice(JOBS)
        async with (
            Buyer(exchange.ready["relay"]) as buyer,
            WalletClient.of(exchange.ready["relay"], secret, opened["wallet"]) as wallet,
        ):
            request = await buyer.ask(schema_id, inputs, nonce=str(number))
            invoice = await _invoice_of(buyer, request)
            await wallet.send("pay_invoice", {"invoice": invoice})
            await asyncio.sleep(chance.random() * LONGEST_S)
            exchange.kill()
        paid.append(bolt11.read(invoice).payment_hash)
        exchange.start()
        await asyncio.to_thread(wait_until, lambda: _is_settled(exchange), "nothing to be held any more")
    return sum(_judged(exchange, payment_hash) for payment_hash in paid)


async def _invoice_of(buyer: Buyer, request: Event) -> str:
    [asked] = await buyer.until(lambda: buyer.about(request, 7000), "an invoice")
    return str(asked.tag("amount")[2])


def _fold(exchange: Running) -> Wallet:
    reader = Reader(exchange.home / "ledger.sqlite")
    try:
        return wallets.fold(reader)
    finally:
        reader.close()


def _is_settled(exchange: Running) -> bool:
    found = _fold(exchange)
    assert found.total == FUNDED
    return not found.held and not found.unreceipted


def _judged(exchange: Running, payment_hash: str) -> bool:
    """Whether money was held for it; then it has a receipt that verifies, or went back."""
    reader = Reader(exchange.home / "ledger.sqlite")
    try:
        steps = [told for _, told in wallets.history(reader, "", 10_000) if told.get("payment_hash") == payment_hash]
        names = sorted(str(told["step"]) for told in steps)
        invoiced = [
            one for one in receipts.listed(reader) if bolt11.read(one.issued.request).payment_hash == payment_hash
        ]
        assert names in ([], ["held", "released"], ["held", "refunded"]), names
        assert len(invoiced) == ("released" in names)
        for one in invoiced:
            proving.prove(receipts.evidence(reader, one))
        return bool(names)
    finally:
        reader.close()

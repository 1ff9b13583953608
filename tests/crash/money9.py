"""An exchange that is killed with -9 in the middle of payments, and what its wallet and receipts say afterwards.

One case is one kill, as soon as a certain step of a payment is on record: each step has its turn. After the next start
no money may be held for a job that is over, the sum of all balances is what was funded, and each payment that was held
is refunded, or released with a receipt that verifies.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import msgspec

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
EMBED: tuple[str, dict[str, Any]] = (
    EMBEDDING,
    {"texts": ["hello"], "model": "trunkline-hashing-v1", "dimensions": 4},
)
SUCCEEDS: tuple[str, dict[str, Any]] = (SANDBOX, {"commands": [{"cmd": "echo hello"}]})
FAILS: tuple[str, dict[str, Any]] = (SANDBOX, {"commands": [{"cmd": "exit 3"}]})
SENT = "sent"
# What the record has of a payment, in its order: the kill comes when the named one is there. Nothing is on record when
# the payment was sent and not looked at.
STEPS = (SENT, "held", "taken", "call.accepted", "call.settled", "released", "issued", "receipted", "answered")
MOMENTS = (*((step, (EMBED, SUCCEEDS)) for step in STEPS), ("refunded", (FAILS,)), ("call.settled", (FAILS,)))
# After the step that was waited for: what follows at once is met, too.
LONGEST_S = 0.02
# Within this a job is done, on a machine that has other things to do as well.
PATIENCE_S = 30.0


def trial(home: Path, seed: int, kills: int) -> Counter[str]:
    """So many kills of one exchange; how often each step was the last one on record of its payment."""
    with running(home, PRICED) as exchange:
        return asyncio.run(_trial(exchange, random.Random(seed), kills))


async def _trial(exchange: Running, chance: random.Random, kills: int) -> Counter[str]:
    secret = chance.randbytes(32)
    client = WalletClient.of(exchange.ready["relay"], secret, "0" * 64)
    opened = exchange.call("nostr.wallet/new", {"name": "alice", "client": client.signer.public})["output"]
    exchange.call("nostr.wallet/fund", {"name": "alice", "msats": FUNDED})
    paid: list[str] = []
    last: Counter[str] = Counter()
    moments = chance.sample(MOMENTS, len(MOMENTS))
    for number in range(kills):
        step, jobs = moments[number % len(moments)]
        schema_id, inputs = chance.choice(jobs)
        async with (
            Buyer(exchange.ready["relay"]) as buyer,
            WalletClient.of(exchange.ready["relay"], secret, opened["wallet"]) as wallet,
        ):
            request = await buyer.ask(schema_id, inputs, nonce=str(number))
            invoice = await _invoice_of(buyer, request)
            before = _steps(exchange)[0]
            await wallet.send("pay_invoice", {"invoice": invoice})
            await asyncio.to_thread(_kill_after, exchange, step, before, chance.random() * LONGEST_S)
        last[next(reversed(_steps(exchange, before)[1]), SENT)] += 1
        paid.append(bolt11.read(invoice).payment_hash)
        exchange.start()
        await asyncio.to_thread(wait_until, lambda: _is_settled(exchange), "nothing to be held any more")
    assert sum(_judged(exchange, payment_hash) for payment_hash in paid) == kills - last[SENT]
    return last


def _kill_after(exchange: Running, step: str, before: int, delay_s: float) -> None:
    """The kill, a moment after this step is there. Not by asyncio: others have their turns there."""
    if step != SENT:
        wait_until(lambda: step in _steps(exchange, before)[1], f"{step} on record", PATIENCE_S)
        time.sleep(delay_s)
    exchange.kill()


def _steps(exchange: Running, before: int = 0) -> tuple[int, list[str]]:
    """The number of the last entry, and what the record has of payments after one, by the names of ``STEPS``."""
    connection = apsw.Connection(str(exchange.home / "ledger.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(5000)
        rows: list[Any] = connection.execute("SELECT n, data FROM entries WHERE n > ? ORDER BY n", (before,)).fetchall()
    finally:
        connection.close()
    entries = [msgspec.json.decode(data, type=dict[str, Any]) for _, data in rows if data is not None]
    names = [str(entry.get("step", entry["kind"])) for entry in entries]
    last: int = rows[-1][0] if rows else before
    return last, [name for name in names if name in STEPS or name == "refunded"]


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

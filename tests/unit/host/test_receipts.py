from __future__ import annotations

import json

import pytest

from tests.unit.edges.nostr.kit import BUYER, TOOL, Bench
from trunkline.config import NostrPricing
from trunkline.money import wallet
from trunkline.money.proving import LINKS


@pytest.fixture
def bench() -> Bench:
    made = Bench(pricing=NostrPricing(input_tokens_per_1k_msats=1000))
    made.payments.take(wallet.Opened("buyer", BUYER.public))
    made.payments.take(wallet.Funded("buyer", 1_000_000))
    return made


def paid(bench: Bench) -> str:
    """A job that was paid and done; the id of its receipt."""
    bench.ask({"text": "hi"}, nonce="n")
    invoice = bench.payments.issued(bench.feedback()[-1].invoice, bench.exchange.now())
    bench.till.pay(invoice.payment_hash, "buyer", "provider", bench.exchange.now())
    [receipt] = [event.value("receipt") for event in bench.said[-2:] if event.value("receipt")]
    bench.exchange.store()
    return str(json.loads(receipt)["receipt_id"])


async def test_a_receipt_is_shown_with_the_call_that_was_paid_for_and_all_links_that_hold(bench: Bench) -> None:
    name = paid(bench)
    found = await bench.exchange.views.receipt(name)
    assert found is not None
    assert (found.status, found.links, found.link) == ("whole", LINKS, "")
    assert json.loads(bytes(found.receipt))["receipt_id"] == name
    job = next(entry for entry in bench.exchange.views.calls(10, None)[0] if entry.tool_id == TOOL)
    assert found.call_id == job.call_id
    assert await bench.exchange.views.receipt("rcpt_none") is None


async def test_a_receipt_whose_payment_nobody_can_judge_is_broken_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = paid(bench)
    monkeypatch.setattr(bench.exchange.views, "_judges", dict)
    found = await bench.exchange.views.receipt(name)
    assert found is not None
    assert (found.status, found.link, found.links) == ("broken", "payment", ())
    assert "lightning cannot be checked here" in found.reason

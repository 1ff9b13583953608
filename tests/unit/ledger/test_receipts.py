"""Receipts on record: listed, found, with all that they point to, and kept as long as they are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.unit.edges.nostr.kit import BUYER, TOOL, Bench
from trunkline.config import NostrPricing
from trunkline.ledger import receipts
from trunkline.ledger.reader import Reader
from trunkline.ledger.receipts import OnRecord
from trunkline.money import wallet
from trunkline.money.proving import Broken, prove
from trunkline.testing.memory import MemoryExchange


def paid(bench: Bench, inputs: object = None, nonce: str = "n") -> str:
    """A job that was paid and done; the id of its receipt."""
    bench.ask(inputs, nonce=nonce)
    invoice = bench.payments.issued(bench.feedback()[-1].invoice, bench.exchange.now())
    bench.till.pay(invoice.payment_hash, "buyer", "provider", bench.exchange.now())
    [receipt] = [event.value("receipt") for event in bench.said[-2:] if event.value("receipt")]
    return str(json.loads(receipt)["receipt_id"])


@pytest.fixture
def bench() -> Bench:
    made = Bench(pricing=NostrPricing(input_tokens_per_1k_msats=1000))
    made.payments.take(wallet.Opened("buyer", BUYER.public))
    made.payments.take(wallet.Funded("buyer", 1_000_000))
    return made


def reader_of(exchange: MemoryExchange) -> Reader:
    exchange.store()
    return exchange.ledger.reader


def found(reader: Reader, name: str) -> OnRecord:
    one = receipts.find(reader, name)
    assert one is not None
    return one


def test_receipts_are_listed_newest_first_found_by_their_id_and_hold(bench: Bench) -> None:
    names = [paid(bench, {"text": f"hi {number}"}, nonce=str(number)) for number in range(3)]
    reader = reader_of(bench.exchange)
    listed = list(receipts.listed(reader))
    assert [json.loads(bytes(one.issued.receipt))["receipt_id"] for one in listed] == names[::-1]
    assert [one.number for one in receipts.listed(reader, before=listed[0].number)] == [
        one.number for one in listed[1:]
    ]
    for name in names:
        assert prove(receipts.evidence(reader, found(reader, name))).receipt.receipt_id == name
    assert receipts.find(reader, "rcpt_none") is None


def test_a_later_call_under_the_same_correlation_does_not_break_a_receipt(bench: Bench) -> None:
    name = paid(bench)
    session = json.loads(bytes(found(reader_of(bench.exchange), name).issued.receipt))["session_id"]
    bench.exchange.call(TOOL, {"text": "later"}, correlation_id=session)
    reader = reader_of(bench.exchange)
    prove(receipts.evidence(reader, found(reader, name)))


def test_retention_keeps_what_receipts_point_to_and_nothing_else(bench: Bench) -> None:
    for number in range(5):
        bench.exchange.call(TOOL, {"text": f"before {number}"})
    name = paid(bench)
    for number in range(5):
        bench.exchange.call(TOOL, {"text": f"after {number}"})
    exchange = bench.exchange
    exchange.store()
    data, digest = exchange.ledger.snapshot(exchange.hub.state.open_entries(exchange.now().ms, 0))
    del data
    exchange.feed.feed([_snapshot(exchange, digest)])
    exchange.store()
    later = exchange.now().ms + 100 * 86_400_000
    closing = exchange.ledger.close_part(later, exchange.hub.state.open_entries(exchange.now().ms, 0))
    assert closing is not None
    exchange.feed.feed([closing])
    reader = reader_of(exchange)
    calls = [line for line in reader.lines(1, closing.last) if b'"call.accepted"' in line]
    assert len(calls) == 1  # of eleven
    prove(receipts.evidence(reader, found(reader, name)))


def _snapshot(exchange: MemoryExchange, digest: str) -> Any:
    from trunkline.events import SnapshotTaken

    return SnapshotTaken(exchange.ledger.last, digest)


def test_what_is_not_on_record_is_named(bench: Bench) -> None:
    name = paid(bench)
    reader = reader_of(bench.exchange)
    one = found(reader, name)
    values = [*one.issued.values]
    values[1] = "0" * 64
    other = msgspec.structs.replace(one, issued=msgspec.structs.replace(one.issued, values=values))
    with pytest.raises(Broken) as broken:
        receipts.evidence(reader, other)
    assert broken.value.link == "trajectory"
    with pytest.raises(Broken, match="no receipt"):
        receipts.read(reader, 1)

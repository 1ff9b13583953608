"""Receipts on record: listed, found, with all that they point to, and kept as long as they are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.unit.edges.nostr.kit import BUYER, TOOL, Bench
from trunkline.config import NostrPricing
from trunkline.entries import CallAccepted
from trunkline.ledger import receipts
from trunkline.ledger.reader import Reader
from trunkline.ledger.receipts import OnRecord
from trunkline.model import Principal, ToolDefinition
from trunkline.money import wallet
from trunkline.money.proving import Broken, prove
from trunkline.testing.memory import ANY_OBJECT, MemoryExchange


def paid(bench: Bench, inputs: object = None, nonce: str = "n") -> str:
    """A job that was paid and done; the id of its receipt."""
    bench.ask(inputs, nonce=nonce)
    invoice = bench.payments.issued(bench.feedback()[-1].invoice, bench.exchange.now())
    bench.till.pay(invoice.payment_hash, "buyer", "provider", bench.exchange.now())
    [receipt] = [event.value("receipt") for event in bench.said[-2:] if event.value("receipt")]
    return str(json.loads(receipt)["receipt_id"])


def made_bench(**options: Any) -> Bench:
    made = Bench(pricing=NostrPricing(input_tokens_per_1k_msats=1000), **options)
    made.payments.take(wallet.Opened("buyer", BUYER.public))
    made.payments.take(wallet.Funded("buyer", 1_000_000))
    return made


@pytest.fixture
def bench() -> Bench:
    return made_bench()


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


MALLORY = Principal("http:mallory")
SLOW = "com.example.slow/wait"


def begun(bench: Bench, nonce: str = "n") -> str:
    """A job that was paid and runs; its session."""
    session = bench.ask(nonce=nonce).id
    invoice = bench.payments.issued(bench.feedback()[-1].invoice, bench.exchange.now())
    bench.till.pay(invoice.payment_hash, "buyer", "provider", bench.exchange.now())
    return session


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_a_strangers_call_under_a_jobs_correlation_is_no_part_of_its_receipt(is_before: bool, ends: bool) -> None:
    bench = made_bench(answers=False)
    slow = bench.exchange.attach("com.example.slow", ToolDefinition(SLOW, "slow", ANY_OBJECT, side_effects=False))
    session = bench.request().id  # public before anybody has paid

    def interfere() -> None:
        # The same key, too: keys are their callers' own.
        bench.exchange.call(SLOW, {"text": "foreign"}, by=MALLORY, correlation_id=session, key=session)

    if is_before:
        interfere()
    assert begun(bench) == session
    if not is_before:
        interfere()
    if ends:
        slow.finish({"text": "foreign"})
    bench.agent.finish({"text": "hi"})
    # At once: nobody waits for what a stranger calls.
    [result] = bench.results()
    reader = reader_of(bench.exchange)
    [one] = receipts.listed(reader)
    given = receipts.evidence(reader, one)
    assert prove(given).receipt.session_id == result.request_id == session
    assert not any(b"foreign" in line for line in given.trajectory)
    calls = [number for number in receipts.pointed_to(reader) if isinstance(reader.entry(number), CallAccepted)]
    assert len(calls) == 1


def test_what_a_job_caused_before_it_ended_is_part_of_its_receipt() -> None:
    bench = made_bench(answers=False, offer=(TOOL, SLOW))
    bench.exchange.attach(
        "com.example.slow",
        ToolDefinition(SLOW, "slow", ANY_OBJECT, side_effects=False),
        deliver=lambda agent, call: agent.finish({}) if b"ends" in bytes(call.input) else None,
    )
    begun(bench)
    by = Principal("opensentience:com.example.echo")
    for text in ("ends", "is left behind"):
        bench.exchange.call(SLOW, {"text": text}, by=by)
    bench.agent.finish({"text": "hi"})
    reader = reader_of(bench.exchange)
    [one] = receipts.listed(reader)
    given = receipts.evidence(reader, one)
    prove(given)
    params = [line for line in map(json.loads, given.trajectory) if line["event"] == "ToolCall"]
    assert [line["params"] for line in params] == [{"text": "hi"}, {"text": "ends"}]


def test_a_receipt_of_a_time_when_none_named_its_call_still_holds(bench: Bench) -> None:
    name = paid(bench)
    reader = reader_of(bench.exchange)
    one = found(reader, name)
    before = msgspec.structs.replace(one, issued=msgspec.structs.replace(one.issued, call_id=""))
    assert prove(receipts.evidence(reader, before)).receipt.receipt_id == name


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

"""The wallet on record is that of the exchange which wrote it, also when retention has removed what came before."""

from __future__ import annotations

import pytest

from tests.unit.edges.nostr.kit import BUYER, Bench
from trunkline.events import SnapshotTaken
from trunkline.ledger import wallets
from trunkline.money import wallet


def retained(bench: Bench) -> None:
    """All that is not needed any more is removed."""
    exchange = bench.exchange
    exchange.store()
    open_numbers = exchange.hub.state.open_entries(exchange.now().ms, 0)
    _, digest = exchange.ledger.snapshot(open_numbers)
    exchange.feed.feed([SnapshotTaken(exchange.ledger.last, digest)])
    exchange.store()
    closing = exchange.ledger.close_part(exchange.now().ms + 1000, open_numbers)
    assert closing is not None
    exchange.feed.feed([closing])
    exchange.store()


def test_balances_are_those_of_the_newest_generation_though_older_ones_were_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wallet, "MAX_STEPS", 4)
    bench = Bench()
    bench.payments.take(wallet.Opened("buyer", BUYER.public))
    reader = bench.exchange.ledger.reader
    for number in range(1, 21):
        bench.payments.take(wallet.Funded("buyer", number))
        bench.exchange.store()
        assert wallets.fold(reader).carried() == bench.payments.wallet.carried()
    retained(bench)
    assert not reader.steps(wallet.subject_of(2))
    assert wallets.fold(reader).carried() == bench.payments.wallet.carried()
    last = [told["msats"] for _, told in wallets.history(reader, "buyer", 2)]
    assert last == [20, 19]

"""A payment that a person denies, and the same job bought again while the provider's quote would still hold.

A buyer and a provider, each in an exchange of its own, and a wallet elsewhere that pays the provider's invoices.
"""

from __future__ import annotations

import pytest

from tests.unit.edges.nostr import market
from tests.unit.edges.nostr.kit import BUYER, ECHO, OURS, Bench
from tests.unit.edges.nostr.market import Market, announcement
from tests.unit.edges.nostr.test_wallet_agent import Shop, turns
from trunkline.config import Config, NostrPricing, NostrWallet
from trunkline.edges.nostr import messages
from trunkline.model import Status
from trunkline.money import bolt11, wallet
from trunkline.money.rail import RailFailed, Way
from trunkline.money.wallet import Held
from trunkline.testing.memory import MadeCall, MemoryExchange

WISH = {"text": "hi"}


class Trade:
    """Both sides. ``carry`` takes what one said to the other, as a relay does."""

    def __init__(self) -> None:
        self.provider = Bench(pricing=NostrPricing(input_tokens_per_1k_msats=1_000_000))
        self.provider.payments.take(wallet.Opened("buyer", "key"))
        self.provider.payments.take(wallet.Funded("buyer", 1_000_000))
        config = Config()
        terms = {"prepay": True, "connection": "env:X"}
        exchange = MemoryExchange(policy=config.policy(), config=config)
        self.market = Market(exchange=exchange, wallet=NostrWallet(**terms))
        self.shop = Shop(self.market, outside=self, **terms)
        self.market.announce(OURS, said=announcement(ECHO))
        self._carried = [0, 0]
        self.refuses = False
        self.paid: list[str] = []

    # -- the wallet elsewhere ------------------------------------------------------------------------------------------

    def reaches(self, _request: str) -> bool:
        return True

    def need_ready(self, wish: Held, way: Way) -> None:
        """It has enough."""

    async def pay(self, wish: Held, way: Way) -> str:
        if self.refuses:
            raise RailFailed("it does not pay")
        payment_hash = bolt11.read(wish.invoice).payment_hash
        self.provider.till.pay(payment_hash, "buyer", "provider", self.provider.exchange.now())
        self.paid.append(wish.invoice)
        return self.provider.payments.wallet.over[payment_hash].preimage

    # -- a relay -------------------------------------------------------------------------------------------------------

    def carry(self) -> None:
        for event in self.market.said[self._carried[0] :]:
            self._carried[0] += 1
            now = self.provider.exchange.now()
            if event.kind == messages.DELETION:
                self.provider.provider.deleted(event, now)
            else:
                self.provider.provider.requested(event, now)
        for event in self.provider.said[self._carried[1] :]:
            self._carried[1] += 1
            self.market.tell("answers", event)

    def buy(self) -> MadeCall:
        call = self.market.call(ECHO, WISH, providers=1)
        self.carry()
        return call


@pytest.mark.parametrize("who", ["a person", "the wallet"])
async def test_a_denied_payment_ends_its_quote_and_the_same_job_is_asked_for_and_paid_anew(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(market, "US", BUYER)
    monkeypatch.setattr(market, "WALLET_SECRET", b"\x12" * 32)
    trade = Trade()
    trade.refuses = who == "the wallet"
    first = trade.buy()
    trade.shop.answer_question(approved=trade.refuses)
    await turns()
    trade.market.exchange.advance(6)
    assert first.outcome.status is Status.FAILED
    assert "were not paid" in str(first.outcome.fault)
    assert ("it does not pay" in str(first.outcome.fault)) is trade.refuses
    trade.carry()
    trade.refuses = False
    second = trade.buy()
    trade.shop.answer_question()
    await turns()
    trade.carry()
    assert second.outcome.status is Status.SUCCEEDED, second.outcome.fault
    invoices = [one.invoice for one in trade.provider.feedback() if one.status == "payment-required"]
    assert len(set(invoices)) == 2
    assert trade.paid == invoices[1:]

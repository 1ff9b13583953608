"""The wallet of those who have an account: each has its share, an invoice is paid once, and no request is fatal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.edges.nostr.kit import BUYER, OTHER, WALLET_SECRET, Bench
from trunkline.edges.nostr import nip47
from trunkline.edges.nostr.events import Draft, Event, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.wallet_service import WalletService
from trunkline.money import wallet
from trunkline.money.bolt11 import MAX_DESCRIPTION_BYTES

WALLET = Signer(WALLET_SECRET)
STRANGER = Signer(bytes(31) + b"\x66")
FUNDED = 10_000


class Desk:
    """A wallet with two accounts, ``alice`` (the key ``BUYER``, who has money) and ``shop`` (the key ``OTHER``)."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.exchange = self.bench.exchange
        self.payments = self.bench.payments
        self.payments.take(wallet.Opened("alice", BUYER.public))
        self.payments.take(wallet.Opened("shop", OTHER.public))
        self.payments.take(wallet.Funded("alice", FUNDED))
        self.said: list[Event] = []
        self._asked = 0
        self.service = WalletService(
            self.exchange.surroundings().feed, WALLET, self.payments, self.bench.till, self.said.append
        )

    def tell(self, client: Signer, method: str, **params: Any) -> None:
        now = self.exchange.now()
        self._asked += 1
        draft = nip47.request_draft(client, WALLET.public, method, params, int(now.wall), int(now.wall) + 600)
        tags = (*draft.tags, ("n", str(self._asked)))  # two requests of the same words are two
        self.service.heard(signed(Draft(draft.kind, draft.content, tags, draft.created_at), client), now)

    def ask(self, client: Signer, method: str, **params: Any) -> Any:
        """The answer, as JSON; None if there was none."""
        self.said.clear()
        self.tell(client, method, **params)
        if not self.said:
            return None
        return json.loads(client.decrypt(self.said[-1].content, self.said[-1].pubkey))

    def invoice(self, **params: Any) -> str:
        return str(self.ask(OTHER, "make_invoice", **{"amount": 1000, **params})["result"]["invoice"])


@pytest.mark.parametrize("sign", ["x", "é", "\U0001f600"])
def test_a_description_is_bounded_in_bytes(sign: str) -> None:
    desk = Desk()
    most = MAX_DESCRIPTION_BYTES // len(sign.encode())
    assert desk.ask(BUYER, "make_invoice", amount=5, description=sign * most)["result"]["description"] == sign * most
    refused = desk.ask(BUYER, "make_invoice", amount=5, description=sign * (most + 1))
    assert "639 bytes" in refused["error"]["message"]


@pytest.mark.parametrize("expiry_s", [1, 3600, 86_400])
def test_an_invoice_is_paid_once_however_long_it_can_be_paid(expiry_s: int) -> None:
    desk = Desk()
    text = desk.invoice(expiry=expiry_s)
    first = desk.ask(BUYER, "pay_invoice", invoice=text)
    assert first["error"] is None
    for hours in range(1, 27):
        desk.exchange.advance(3600)
        # What is over is forgotten when the next payment is.
        assert desk.ask(BUYER, "pay_invoice", invoice=desk.invoice(amount=1))["error"] is None
        again = desk.ask(BUYER, "pay_invoice", invoice=text)
        assert again["result"] == first["result"] or "expired" in again["error"]["message"]
        assert desk.payments.wallet.balances["alice"] == FUNDED - 1000 - hours
    assert len(desk.payments.wallet.over) < 10  # and after that it need not be known


def test_a_request_for_an_invoice_that_is_told_again_later_is_another_invoice() -> None:
    desk = Desk()
    now = desk.exchange.now()
    draft = nip47.request_draft(OTHER, WALLET.public, "make_invoice", {"amount": 7}, int(now.wall), int(now.wall) + 600)
    event = signed(draft, OTHER)
    hashes = []
    for _ in range(2):
        desk.exchange.advance(1)
        desk.service.heard(event, desk.exchange.now())
        hashes.append(json.loads(OTHER.decrypt(desk.said[-1].content, WALLET.public))["result"]["payment_hash"])
    assert len(set(hashes)) == 2

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

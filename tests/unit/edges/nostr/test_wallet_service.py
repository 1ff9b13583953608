"""The wallet of those who have an account: each has its share, an invoice is paid once, and no request is fatal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.edges.nostr.kit import BUYER, OTHER, WALLET_SECRET, Bench
from trunkline.edges.nostr import nip47
from trunkline.edges.nostr import wallet_service as module
from trunkline.edges.nostr.events import Draft, Event, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.wallet_service import WalletService
from trunkline.entries import ProcessStep
from trunkline.events import DrainStarted, SettingsChanged, StorageChanged
from trunkline.model import HubSettings, Limits
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_stranger_who_floods_the_wallet_silences_nobody_with_an_account() -> None:
    desk = Desk()
    for second in range(60):
        desk.exchange.advance(1)
        now = desk.exchange.now()
        for number in range(50):
            tags = (("p", WALLET.public), ("n", f"{second} {number}"))
            desk.service.heard(signed(Draft(nip47.REQUEST, "x" * 10, tags, int(now.wall)), STRANGER), now)
        assert desk.ask(BUYER, "get_balance")["result"]["balance"] == FUNDED


@pytest.mark.slow
def test_an_account_that_asks_too_much_silences_no_other() -> None:
    desk = Desk()
    for _ in range(module.REQUESTS_PER_MINUTE):
        assert desk.ask(BUYER, "get_balance") is not None
    assert desk.ask(BUYER, "get_balance") is None
    assert desk.ask(OTHER, "get_balance") is not None
    assert desk.ask(STRANGER, "get_balance")["error"]["code"] == "UNAUTHORIZED"
    desk.exchange.advance(1)
    assert desk.ask(BUYER, "get_balance") is not None


@pytest.mark.slow
def test_payments_of_an_account_are_bounded_by_the_minute() -> None:
    desk = Desk()
    for _ in range(module.PAYMENTS_PER_MINUTE):
        assert desk.ask(BUYER, "pay_invoice", invoice=desk.invoice(amount=1))["error"] is None
    text = desk.invoice(amount=1)
    assert desk.ask(BUYER, "pay_invoice", invoice=text)["error"]["code"] == "RATE_LIMITED"
    desk.exchange.advance(60 / module.PAYMENTS_PER_MINUTE)
    assert desk.ask(BUYER, "pay_invoice", invoice=text)["error"] is None


def test_what_payments_write_counts_for_the_account_that_pays() -> None:
    desk = Desk()
    limits = Limits(ledger_bytes_per_hour=5000)
    desk.exchange.feed.feed([SettingsChanged(HubSettings(desk.exchange.policy, limits=limits))])
    ends = [desk.ask(BUYER, "pay_invoice", invoice=desk.invoice(amount=1))["error"] for _ in range(10)]
    assert ends[0] is None
    assert ends[-1]["code"] == "RATE_LIMITED"
    assert "written on record for wallet:alice" in ends[-1]["message"]
    assert desk.ask(BUYER, "make_invoice", amount=1)["error"]["code"] == "RATE_LIMITED"
    assert desk.ask(OTHER, "make_invoice", amount=1)["error"] is None  # another account
    desk.exchange.advance(3601)
    assert desk.ask(BUYER, "pay_invoice", invoice=desk.invoice(amount=1))["error"] is None


def test_the_record_grows_by_what_is_paid_and_not_by_what_was_paid_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wallet, "MAX_STEPS", 16)
    desk = Desk()
    rounds, count = 5, 200
    for number in range(rounds * count):
        at_ms = desk.exchange.now().ms
        moved = wallet.Moved(f"{number:064x}", "alice", "alice", 1, "0" * 64, at_ms, at_ms + wallet.DAY_MS)
        desk.payments.take(desk.payments.wallet.try_move(moved))
    assert len(desk.payments.wallet.over) == rounds * count
    steps = [step for step in desk.exchange.recorded(ProcessStep) if step.process == wallet.PROCESS]
    carried = [len(bytes(step.data)) for step in steps if step.step == "carried"]
    paid = [len(bytes(step.data)) for step in steps if step.step == "moved"]
    assert len(paid) == rounds * count
    assert len(carried) > 3
    # All carrying over together costs about what the payments did: every 16 steps it would be 20 times that.
    assert sum(carried) < 2 * sum(paid)
    again = desk.bench.restarted()
    assert again.payments.wallet.over == desk.payments.wallet.over
    assert again.payments.wallet.balances == desk.payments.wallet.balances


@pytest.mark.parametrize("why", ["low", "draining"])
def test_nothing_new_is_paid_or_asked_for_while_nothing_is_taken_on(why: str) -> None:
    desk = Desk()
    paid, text = desk.invoice(), desk.invoice()
    first = desk.ask(BUYER, "pay_invoice", invoice=paid)
    desk.exchange.feed.feed([StorageChanged(low=True) if why == "low" else DrainStarted()])
    assert desk.exchange.views.closed() is not None
    before = len(desk.exchange.recorded(ProcessStep))
    for method, params in (("pay_invoice", {"invoice": text}), ("make_invoice", {"amount": 5})):
        assert desk.ask(BUYER, method, **params)["error"]["code"] == "RATE_LIMITED"
    assert len(desk.exchange.recorded(ProcessStep)) == before
    assert desk.payments.wallet.balances["alice"] == FUNDED - 1000
    # What was paid is still told.
    assert desk.ask(BUYER, "pay_invoice", invoice=paid) == first
    assert desk.ask(BUYER, "get_balance")["result"]["balance"] == FUNDED - 1000

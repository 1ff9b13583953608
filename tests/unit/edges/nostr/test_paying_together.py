"""Payments that are made at the same time: whatever comes first, budgets hold and no invoice is paid twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
from random import Random
from typing import Any

import pytest

from tests.unit.edges.nostr.market import EMBEDDING, PROVIDERS
from tests.unit.edges.nostr.test_wallet_agent import Shop, turns
from trunkline.edges.nostr import events
from trunkline.edges.nostr.names import PAY
from trunkline.model import Status as CallStatus
from trunkline.model import ToolDefinition
from trunkline.money import bolt11
from trunkline.money.rail import RailFailed, Way
from trunkline.money.wallet import Held
from trunkline.testing.memory import ANY_OBJECT, MadeCall

JOB_HASH = "sha256:" + "0" * 64
MSATS = 1000


class Outside:
    """A wallet elsewhere that answers when the test says so; ``asked`` has each request that left, with its end."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, asyncio.Future[str]]] = []

    def reaches(self, request: str) -> bool:
        return not request.startswith("creq")

    def need_ready(self, wish: Held, way: Way) -> None:
        pass

    async def pay(self, wish: Held, way: Way) -> str:
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.asked.append((wish.invoice, waiting))
        return await waiting

    def answer(self, number: int, end: str) -> None:
        still = [one for _, one in self.asked if not one.done()]
        if not still:
            return
        waiting = still[number % len(still)]
        if end == "paid":
            waiting.set_result("00" * 32)
        else:
            waiting.set_exception(RailFailed(end, is_unknown=end == "unknown"))

    def may_have_paid(self) -> list[str]:
        """Invoices that left and of which the wallet did not say that it did not pay."""
        return [
            invoice
            for invoice, waiting in self.asked
            if not waiting.done() or waiting.exception() is None or getattr(waiting.exception(), "is_unknown", True)
        ]


class Till:
    """A shop, its orders (open calls) and wishes to pay for them, each by a provider of its own."""

    def __init__(self, per_job: int, per_day: int) -> None:
        self.outside = Outside()
        self.terms: dict[str, Any] = {"max_msats_per_job": per_job, "max_msats_per_day": per_day, "prepay": True}
        self.shop = Shop(outside=self.outside, **self.terms)
        self._shared: dict[int, str] = {}
        self.orders = self._made_orders()

    def _made_orders(self) -> list[str]:
        exchange = self.shop.market.exchange
        exchange.attach("com.example.slow", ToolDefinition("com.example.slow/wait", "", ANY_OBJECT))
        return [exchange.call("com.example.slow/wait", {}).call_id for _ in range(2)]

    def wish(self, number: int, order: int, *, is_foreign: bool) -> dict[str, Any]:
        """To pay a provider, who has one invoice here and one elsewhere, for an order."""
        now, signer = self.shop.market.exchange.now(), PROVIDERS[number]
        if is_foreign:
            payment_hash = hashlib.sha256(b"%d" % number).hexdigest()
            made = self._shared.setdefault(
                number, bolt11.written(b"\x09" * 32, MSATS, payment_hash, JOB_HASH, int(now.wall), 600)
            )
        else:
            made = self.shop.payments.invoice("seller", MSATS, f"q{number}", JOB_HASH, now, 600).text
        request_id = f"{number:064x}"
        tags = (("e", request_id), ("amount", str(MSATS), made))
        asked = events.signed(events.Draft(7000, "", tags, int(now.wall)), signer)
        job = {"schema_id": EMBEDDING, "job_hash": JOB_HASH, "request_id": request_id, "order": self.orders[order]}
        return {
            "amount_msats": MSATS, "payee": signer.npub, "job": job, "invoice": made,
            "asked": json.loads(events.encoded(asked)),
        }  # fmt: skip

    def pay(self, number: int, order: int = 0, *, is_foreign: bool = False) -> MadeCall:
        return self.shop.market.exchange.call(PAY, self.wish(number, order, is_foreign=is_foreign))

    def end_held(self, number: int, *, is_right: bool) -> None:
        held = list(self.shop.payments.wallet.held)
        if held:
            name, now = held[number % len(held)], self.shop.market.exchange.now()
            if is_right:
                self.shop.payments.release(name, now)
            else:
                self.shop.payments.refund(name, "no", now)

    def kill(self) -> None:
        """The process dies at once: what is not on disk is gone, and what the wallet elsewhere was asked is not."""
        for _, waiting in self.outside.asked:
            if not waiting.done():
                waiting.set_exception(RailFailed("killed", is_unknown=True))
        market = self.shop.market.restarted()
        self.shop = Shop(market, outside=self.outside, **self.terms)
        self.orders = self._made_orders()

    def spent(self) -> int:
        """What is gone, or may be, of which nobody said that it came back."""
        wallet = self.shop.payments.wallet
        released = [one.msats for one in wallet.over.values() if one.preimage]
        held = [one.msats for one in wallet.held.values()]
        return sum(released) + sum(held) + MSATS * len(self.outside.may_have_paid())


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("limits", [(1000, 10_000), (10_000, 1000)])
async def test_calls_that_are_made_together_stay_within_the_budget(is_foreign: bool, limits: tuple[int, int]) -> None:
    till = Till(*limits)
    exchange = till.shop.market.exchange
    exchange.disk_rests = True
    calls = [till.pay(number, is_foreign=is_foreign) for number in range(9)]
    exchange.disk_rests = False
    exchange.store()
    await turns()
    till.outside.answer(0, "paid")
    await turns()
    assert till.spent() == 1000
    ends = [call.outcome for call in calls]
    assert [one.status for one in ends].count(CallStatus.SUCCEEDED) == 1
    refused = [one.fault for one in ends if one.fault is not None]
    assert {one.code for one in refused} == {"policy.denied"}
    assert all("max_msats_per" in one.message for one in refused)


async def test_an_invoice_that_is_asked_for_three_times_at_once_is_sent_once() -> None:
    till = Till(100_000, 100_000)
    exchange = till.shop.market.exchange
    exchange.disk_rests = True
    calls = [till.pay(1, is_foreign=True) for _ in range(3)]
    exchange.disk_rests = False
    exchange.store()
    await turns()
    assert len(till.outside.asked) == 1
    till.outside.answer(0, "unknown")
    await turns()
    assert [call.outcome.status.value for call in calls] == ["unknown", "failed", "failed"]


async def test_money_that_did_not_leave_can_be_spent_again() -> None:
    till = Till(1000, 1000)
    first = till.pay(1, is_foreign=True)
    await turns()
    assert till.pay(2, is_foreign=True).code == "policy.denied"
    till.outside.answer(0, "failed")
    await turns()
    assert first.outcome.status is CallStatus.FAILED
    again = till.pay(2, is_foreign=True)
    await turns()
    till.outside.answer(0, "paid")
    await turns()
    assert again.outcome.status is CallStatus.SUCCEEDED


@pytest.mark.parametrize("expiry_s", [600, 40 * 86_400])
async def test_an_invoice_that_was_sent_is_not_sent_again_while_it_can_be_paid(expiry_s: int) -> None:
    till = Till(10_000, 10_000)
    exchange = till.shop.market.exchange
    now = exchange.now()
    till._shared[1] = bolt11.written(b"\x09" * 32, MSATS, "ab" * 32, JOB_HASH, int(now.wall), expiry_s)
    till.pay(1, is_foreign=True)
    await turns()
    till.outside.answer(0, "unknown")
    await turns()
    for day in range(42):
        exchange.advance(86_400)
        till.pay(2 + day % 5, is_foreign=True)  # what is forgotten is forgotten when another is sent
        await turns()
        till.outside.answer(0, "failed")
        again = till.pay(1, is_foreign=True)
        await turns()
        assert again.outcome.status is CallStatus.FAILED
    assert [invoice for invoice, _ in till.outside.asked].count(till._shared[1]) == 1


async def test_a_defect_while_the_wallet_elsewhere_is_asked_leaves_the_payment_unknown() -> None:
    till = Till(10_000, 10_000)
    call = till.pay(1, is_foreign=True)
    await turns()
    till.outside.asked[0][1].set_exception(KeyError("planted"))
    await turns()
    assert call.outcome.status is CallStatus.UNKNOWN
    assert till.shop.market.exchange.notices().count("defect") == 1


@pytest.mark.parametrize("seed", range(8))
async def test_no_order_of_payments_answers_and_deaths_exceeds_a_budget_or_pays_twice(seed: int) -> None:
    chance, till = Random(seed), Till(2 * MSATS, 3 * MSATS)
    till.shop.market.exchange.disk_rests = True
    for _ in range(40):
        # Mostly payments: they are what meets before the disk answers.
        match chance.choices(("pay", "store", "answer", "end", "kill"), (12, 3, 4, 3, 1))[0]:
            case "pay":
                till.pay(chance.randrange(5), chance.randrange(2), is_foreign=chance.random() < 0.5)
            case "store":
                till.shop.market.exchange.store()  # once: what is recorded after it waits again
            case "answer":
                till.outside.answer(chance.randrange(4), chance.choice(["paid", "failed", "failed", "unknown"]))
            case "end":
                till.end_held(chance.randrange(4), is_right=chance.random() < 0.3)
            case _:
                till.kill()
                till.shop.market.exchange.disk_rests = True
        await turns()
        _holds(till)
    till.shop.market.exchange.close()


def _holds(till: Till) -> None:
    assert till.spent() <= 3 * MSATS
    maybe = till.outside.may_have_paid()
    assert len(maybe) == len(set(maybe))
    for order in till.orders:
        spent = till.shop.payments.wallet.spent.values()
        assert sum(one.msats for one in spent if one.order == order) <= 2 * MSATS

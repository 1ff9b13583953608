"""What of a job that is being bought is on record, and how the job goes on from there after a restart.

Pure. Owns the form of the steps, which are written in this order: a provider was asked, it is to be paid, it will not
be waited for any more, the verdict, and that what was paid at once has its receipts. The call itself is delivered again
by the exchange. What came from relays is not on record: they tell it again. Does not own what is done about a step
(``buyer``).

Invariant: whatever is taken up from the record is as it was written: the same request, the same payment by the same
call, and the same moment at which the job's time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.orders import Order, Paying, Request
from trunkline.edges.nostr.provider_records import Fate
from trunkline.entries import ProcessStep
from trunkline.model import Now
from trunkline.money.wallet import Paid

PROCESS: Final = "nostr.request"
ASKED: Final = "asked"
PAYING: Final = "paying"
OVER: Final = "over"
VERDICT: Final = "verdict"
# All receipts are made of what was paid at once.
RECEIPTED: Final = "receipted"
# A job whose time was over while the exchange was off, or nearly: relays may have a result, and tell it soon. So long,
# or a quarter of its time if that is less.
CATCH_UP_S: Final = 30.0


class AskedStep(Struct, frozen=True):
    """On record before a provider is asked."""

    request: Event
    provider: str


class PayingStep(Struct, frozen=True):
    """On record before anybody is asked to pay a provider: all that the call of the wallet is made of."""

    request: str
    msats: int
    invoice: str
    payment_hash: str
    asked: Event
    names_job: bool
    salt: str
    mint: str
    fee_msats: int
    paid_before: Paid


class OverStep(Struct, frozen=True):
    """On record when a provider will not be waited for."""

    request: str
    provider: str
    fate: Fate
    reason: str
    # It was to be paid, and nobody knows whether it was.
    is_unpaid_unknown: bool = False


read_asked: Final = msgspec.json.Decoder(AskedStep).decode
_read_paying: Final = msgspec.json.Decoder(PayingStep).decode
_read_over: Final = msgspec.json.Decoder(OverStep).decode


def asked_step(request: Request) -> Raw:
    """A provider is about to be asked."""
    return Raw(msgspec.json.encode(AskedStep(request.event, request.provider)))


def paying_step(request: Request, paying: Paying) -> Raw:
    """Somebody is about to be asked to pay a provider."""
    step = PayingStep(
        request.event.id, paying.msats, paying.invoice, paying.payment_hash, paying.asked, paying.names_job,
        paying.salt, paying.mint, paying.fee_msats, paying.paid_before,
    )  # fmt: skip
    return Raw(msgspec.json.encode(step))


def over_step(request: Request, fate: Fate, reason: str) -> Raw:
    """A provider will not be waited for any more."""
    is_unknown = request.paying is not None and request.paying.is_unknown
    return Raw(msgspec.json.encode(OverStep(request.event.id, request.provider, fate, reason, is_unknown)))


def take_up(order: Order, steps: Sequence[ProcessStep], now: Now) -> None:
    """Fill an order with what is on record of it. Its time goes on from when the first provider was asked."""
    asked_at = [step.at for step in steps if step.step == ASKED]
    if asked_at:
        budget_s = order.deadline - now.mono
        passed_s = max(0.0, (now.ms - asked_at[0]) / 1000)
        order.is_late = passed_s >= budget_s
        order.deadline = now.mono + max(budget_s - passed_s, min(CATCH_UP_S, budget_s / 4))
    for step in steps:
        if step.step == ASKED:
            asked = read_asked(step.data)
            request = Request(asked.request, asked.provider, "posted", now.mono + order.patience_s, now.mono)
            order.requests[asked.request.id] = request
        elif step.step == PAYING:
            _take_up_payment(order, _read_paying(step.data))
        elif step.step == OVER:
            over = _read_over(step.data)
            found = order.requests.get(over.request)
            if found is not None:
                _end(found, over)


def _take_up_payment(order: Order, step: PayingStep) -> None:
    found = order.requests.get(step.request)
    if found is not None:
        found.paying = Paying(
            step.msats, step.invoice, step.payment_hash, step.asked, names_job=step.names_job, salt=step.salt,
            mint=step.mint, fee_msats=step.fee_msats, paid_before=step.paid_before, is_taken_up=True,
        )  # fmt: skip


def _end(request: Request, over: OverStep) -> None:
    request.state, request.fate, request.reason = "over", over.fate, over.reason
    if request.paying is not None:
        request.paying.state, request.paying.why = "over", over.reason
        request.paying.is_unknown = over.is_unpaid_unknown


def asked(steps: Sequence[ProcessStep]) -> list[AskedStep]:
    """Who was asked, by what is on record."""
    return [read_asked(step.data) for step in steps if step.step == ASKED]


def asked_ids(steps: Sequence[ProcessStep]) -> list[str]:
    """The requests of a job that may still be under way, by what is on record."""
    found: dict[str, None] = {}
    for step in steps:
        if step.step == ASKED:
            found[read_asked(step.data).request.id] = None
        elif step.step == OVER:
            found.pop(_read_over(step.data).request, None)
    return list(found)


def payments(steps: Sequence[ProcessStep]) -> list[PayingStep]:
    """What was to be paid for a job, by what is on record."""
    return [_read_paying(step.data) for step in steps if step.step == PAYING]

"""What becomes of money that is held for jobs we buy: released to who was right, refunded from everybody else.

Owns the end of a payment of ours, when the verdict on a job is known, and after a restart that came between the verdict
and the end. Does not own the verdict (``buyer``) or holding money (``wallet_agent``).

Invariant: what is held for a job that has an outcome is released or refunded, and only providers whom the verdict names
are paid. What was paid at once to one of them has its receipt before the job is closed on record.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.exchange import Feed, Views
from trunkline.edges.nostr import order_record
from trunkline.edges.nostr.events import encoded
from trunkline.edges.nostr.keys import npub_of
from trunkline.edges.nostr.order_record import PROCESS, RECEIPTED
from trunkline.edges.nostr.orders import EndPayments, Prepaid
from trunkline.edges.nostr.payments import Payments
from trunkline.edges.nostr.receipting import Receipting
from trunkline.events import ProcessStepped
from trunkline.model import Now, Status
from trunkline.money import demands, lightning
from trunkline.money.demands import NotADemand
from trunkline.money.job_names import with_salt
from trunkline.money.rail import Way
from trunkline.money.receipts import Issued
from trunkline.money.wallet import Held, Paid

NOT_RIGHT: Final = "the result was not found right"


def is_open(views: Views, call_id: str) -> bool:
    """Whether a call has no outcome yet."""
    call = views.call(call_id)
    return call is not None and not call.status.is_outcome


class HandedOver(Protocol):
    """Ecash that was handed over for jobs: its payee has it, or it comes back."""

    def look_soon(self) -> None:
        """A job has its verdict: see how its payments stand."""

    def way(self, request: str) -> Way | None:
        """Of which mint, and for what fee, this would be paid; None if there is not enough at any."""

    def paid_by(self, payment_hash: str, order: str) -> str:
        """The call that handed ecash over for an order; empty if none did."""


class Settling:
    """Ends payments of ours."""

    def __init__(
        self, feed: Feed, views: Views, payments: Payments, receipting: Receipting, ecash: HandedOver | None = None
    ) -> None:
        self._ecash = ecash
        self._feed = feed
        self._views = views
        self._payments = payments
        self._receipting = receipting

    def end(self, payments: EndPayments) -> None:
        """Release or refund all that is held for an order; of what was paid at once only receipts are left to make."""
        now = self._feed.now()
        is_lost = payments.to_be_paid is None
        prepaid = self._prepaid_by_record(payments.order) if is_lost else payments.prepaid or None
        if prepaid is not None:
            self._feed.when_stored(partial(self._receipt_prepaid, payments.order, prepaid, now))
        for held in self._held_for(payments.order):
            if payments.to_be_paid is None:
                self._end_by_record(held, now)
            elif held.provider in payments.to_be_paid:
                # What the receipt points to has to be on disk before it.
                self._feed.when_stored(partial(self._release, held))
            else:
                self._payments.refund(held.payment_hash, payments.reasons.get(held.provider, NOT_RIGHT), now)
        if self._ecash is not None:
            # By the outcome on record, which is there before it is looked at.
            self._feed.when_stored(self._ecash.look_soon)

    def _held_for(self, order: str) -> list[Held]:
        wallet = self._payments.wallet
        return [held for held in wallet.held.values() if held.judge == "buyer" and held.order == order]

    def _release(self, held: Held) -> None:
        preimage = self._payments.release(held.payment_hash, self._feed.now())
        self._issue(held, preimage)

    def _issue(self, held: Held, preimage: str) -> None:
        proven = lightning.proven(preimage, held.asked)
        self._receipting.issue(held, proven, held.order, _issued, rule_of=held.call_id)

    def _receipt_prepaid(self, order: str, left: tuple[Prepaid, ...], now: Now) -> None:
        """Make receipts of what was paid at once, one after the other; after the last the job is closed on record."""
        if not left:
            closed = ProcessStepped(0, "", PROCESS, order, RECEIPTED, Raw(b"{}"), done=True)
            self._feed.feed([closed])
            return
        payment = left[0]

        def issued(_issued: Issued | None) -> None:
            self._receipt_prepaid(order, left[1:], now)

        if self._receipting.known(payment.payment_hash, payment.job_hash) is not None:
            issued(None)
            return
        held = Held(
            payment_hash=payment.payment_hash,
            payer="outside",
            payee="outside",
            msats=payment.msats,
            invoice=payment.invoice,
            asked=payment.asked,
            quote_id="",
            request_id=payment.request_id,
            schema_id=payment.schema_id,
            job_hash=payment.job_hash,
            provider=payment.provider,
            at_ms=now.ms,
            judge="buyer",
            order=payment.order,
        )
        proven = lightning.proven(payment.preimage, payment.asked)
        self._receipting.issue(held, proven, payment.order, issued, rule_of=payment.call_id, prepaid=True)

    def _prepaid_by_record(self, order: str) -> tuple[Prepaid, ...] | None:
        """What was paid at once for a job that ended while nobody looked, to those who were right; None if nothing was
        to be paid for it.
        """
        steps, call = self._views.open_steps(PROCESS).get(order, []), self._views.call(order)
        payments = order_record.payments(steps)
        if not payments or call is None:
            return None
        asked = {one.request.id: one.provider for one in order_record.asked(steps)}
        found = _verdict(call.output) if call.status is Status.SUCCEEDED else _Verdict()
        prepaid = []
        for one in payments:
            provider = npub_of(asked[one.request])
            preimage = "" if one.mint else self.preimage_of(one.payment_hash)
            if not preimage or provider not in found.to_be_paid:
                continue
            prepaid.append(
                Prepaid(
                    payment_hash=one.payment_hash,
                    order=order,
                    call_id=self.held_by(one.payment_hash, order),
                    request_id=one.request,
                    schema_id=call.tool_id.partition("/")[2],
                    job_hash=found.job_hash,
                    provider=provider,
                    msats=one.msats,
                    invoice=one.invoice,
                    asked=with_salt(encoded(one.asked), one.salt),
                    preimage=preimage,
                )
            )
        return tuple(prepaid)

    def paid_before(self, provider: str) -> Paid:
        """What a provider, an npub, was paid by this exchange before."""
        return self._payments.wallet.paid.get(provider, Paid())

    def held_by(self, payment_hash: str, order: str) -> str:
        """The call that had this money held, handed over or paid for an order; empty if none did."""
        held = self._payments.wallet.held.get(payment_hash)
        if held is not None and held.order == order:
            return held.call_id
        spent = self._payments.wallet.spent.get(payment_hash)
        if spent is not None and spent.order == order and spent.preimage:
            return spent.call_id
        return "" if self._ecash is None else self._ecash.paid_by(payment_hash, order)

    def preimage_of(self, payment_hash: str) -> str:
        """What proves that an invoice was paid at once by a wallet elsewhere; empty if that is not known."""
        spent = self._payments.wallet.spent.get(payment_hash)
        return "" if spent is None else spent.preimage

    def way(self, text: str) -> Way | None:
        """How what somebody asks to be paid by would be paid with the money that is here; None if it cannot be."""
        if demands.is_ecash(text):
            return None if self._ecash is None else self._ecash.way(text)
        try:
            return Way() if demands.read(text, "").node == self._payments.node else None
        except NotADemand:
            return None

    def take_up(self, now: Now) -> None:
        """After a restart: end what is held for jobs that have an outcome, and make receipts that are missing."""
        for held in list(self._payments.wallet.held.values()):
            if held.judge == "buyer":
                self._end_by_record(held, now)
        for held in list(self._payments.wallet.unreceipted.values()):
            if held.judge == "buyer":
                over = self._payments.wallet.over.get(held.payment_hash)
                preimage = self._payments.preimage(held.quote_id).hex() if over is None else over.preimage
                self._issue(held, preimage)

    def _end_by_record(self, held: Held, now: Now) -> None:
        """What the outcome on record says. A job without one is delivered again, and goes on."""
        call = self._views.call(held.order) if held.order else None
        if call is not None and not call.status.is_outcome:
            return
        if call is not None and call.status is Status.SUCCEEDED and held.provider in to_be_paid(call.output):
            self._release(held)
        else:
            self._payments.refund(held.payment_hash, "the job has no result that counts", now)


def _issued(_issued: Issued | None) -> None:
    """It is on record, or said there to be impossible, and nobody is told: a provider has his money."""


class _Verdict(Struct, frozen=True):
    to_be_paid: tuple[str, ...] = ()
    job_hash: str = ""


class _Output(Struct, frozen=True):
    verification: _Verdict = _Verdict()


def to_be_paid(output: Raw | None) -> tuple[str, ...]:
    """The providers, npubs, that a job's outcome on record says are to be paid."""
    return _verdict(output).to_be_paid


def _verdict(output: Raw | None) -> _Verdict:
    try:
        return msgspec.json.decode(bytes(output or b"{}"), type=_Output).verification
    except msgspec.DecodeError:
        return _Verdict()

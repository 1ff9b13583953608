"""What strangers pay for jobs done here: a quote by our announced prices, money held, released or refunded.

Theory of operation, of one priced job::

    request ──> quote, invoice ──paid by a wallet──> held ──> the job is called ──> verified: released, receipt, result
                     └── time over, taken back: expired             └── failed, canceled, lost: refunded

Owns which job has which quote and which payment. The states are ``trunkline.money.quotes``'s, the money is moved by
``payments``, the job is done by ``provider``. Does not own how somebody pays (``wallet_service``, ``wallet_agent``).

Invariant: a priced job is called only while its money is held, and what is held for it is released only if its result
was verified; else it is refunded. However a quote ends, the requests that waited for it are told, and wait no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Raw, Struct

from trunkline.config import Nostr
from trunkline.edges.exchange import Feed, Timer
from trunkline.edges.nostr.events import Event, encoded
from trunkline.edges.nostr.keys import npub_of
from trunkline.edges.nostr.messages import JobRequest
from trunkline.edges.nostr.payments import Invoiced, Payments
from trunkline.edges.nostr.receipting import Receipting
from trunkline.model import Now
from trunkline.money import quotes
from trunkline.money.lightning import ASSET
from trunkline.money.quotes import NoRoom, Prices, Quoted, Quotes, QuoteState
from trunkline.money.rail import Due, Quote
from trunkline.money.receipts import Issued
from trunkline.money.wallet import OWN, Held, Over, Refused

# How often it is looked whether a quote's time is over.
LOOK_S: Final = 5.0
RESTARTED: Final = "the exchange was started anew before the job began"


class Paid(Struct, frozen=True):
    """A job that was paid: what its result says of it."""

    msats: int
    invoice: str
    receipt: Issued


class Priced(Struct, frozen=True):
    """A job as its price is found: inputs with their defaults, and its hash."""

    schema_id: str
    msats: int
    job_hash: str


class Till:
    """All quotes of this provider. ``public`` is its key; ``on_held`` and ``on_unpaid`` hear of requests."""

    def __init__(self, feed: Feed, settings: Nostr, public: str, payments: Payments, receipting: Receipting) -> None:
        self._feed = feed
        self._settings = settings
        self._npub = npub_of(public)
        self._payments = payments
        self._receipting = receipting
        self.quotes = Quotes()
        pricing = settings.pricing
        self.prices = Prices(
            pricing.input_tokens_per_1k_msats, pricing.output_tokens_per_1k_msats, pricing.sandbox_per_minute_msats
        )
        # By payment hash: the quote, its invoice, and the event in which we asked for it.
        self._offers: dict[str, _Offer] = {}
        self.on_held: Callable[[str], None] = _nobody
        self.on_unpaid: Callable[[str, str], None] = _nobody
        self._timer: Timer | None = None

    # -- asking for money ----------------------------------------------------------------------------------------------

    def quote(self, request: JobRequest, priced: Priced, now: Now) -> Invoiced | None:
        """What a job costs, as an invoice; None: nothing. The same key gives the same one while it is open.

        ``KeyTaken`` if the key of the request was used for another job, or for this one and it was paid; ``NoRoom`` if
        too many quotes are open.
        """
        if not priced.msats:
            return None
        self._end_expired()
        key = request.key or priced.job_hash
        found = self.quotes.known(request.buyer, key, priced.job_hash, now.ms)
        if found is not None:
            offer = next(one for one in self._offers.values() if one.quoted is found)
            if request.id != found.request_id:
                found.repeats.append(request.id)
            return offer.invoiced
        expiry_s = self._settings.wallet.quote_s
        quote_id = quotes.quote_id_of(request.buyer, key, f"{request.id} {now.ms}")
        description = f"{priced.schema_id} {priced.job_hash}"
        self.quotes.need_room(request.buyer)
        try:
            invoiced = self._payments.invoice(OWN, priced.msats, quote_id, description, now, expiry_s)
        except Refused as error:
            raise NoRoom(str(error)) from None
        due = Due(priced.msats, self._npub, ASSET, invoiced.text, priced.job_hash)
        quote = Quote(quote_id, key, priced.job_hash, "lightning", due, now.ms + expiry_s * 1000)
        quoted = self.quotes.add(request.buyer, request.id, quote)
        self._offers[invoiced.payment_hash] = _Offer(quoted, invoiced, priced.schema_id)
        if self._timer is None:
            self._timer = self._feed.call_later(LOOK_S, self._expire)
        return invoiced

    def asked(self, payment_hash: str, event: Event) -> None:
        """We told the buyer, in this event, what to pay and by which invoice."""
        offer = self._offers[payment_hash]
        if offer.asked is None:
            offer.asked = event
            offer.quoted.become(QuoteState.UNPAID)

    def request_of(self, payment_hash: str) -> str:
        """The request that an invoice was made for; empty if it is none of ours."""
        offer = self._offers.get(payment_hash)
        return "" if offer is None else offer.quoted.request_id

    def withdraw(self, request_id: str) -> None:
        """A request that waits for its payment was taken back: others with the same key still wait for the quote, and
        without any nobody can pay it any more.
        """
        found = next((one for one in self._offers.values() if request_id in one.quoted.requests), None)
        if found is None or not found.quoted.can_be_paid:
            return
        left = [one for one in found.quoted.requests if one != request_id]
        if left:
            found.quoted.request_id, found.quoted.repeats = left[0], left[1:]
            return
        found.quoted.become(QuoteState.EXPIRED)
        self._payments.withdraw(found.invoiced.payment_hash)
        del self._offers[found.invoiced.payment_hash]

    def _expire(self) -> None:
        self._timer = None
        self._end_expired()
        if self._offers:
            self._timer = self._feed.call_later(LOOK_S, self._expire)

    def _end_expired(self) -> None:
        expired = self.quotes.expire(self._feed.now().ms)
        self._offers = {name: one for name, one in self._offers.items() if one.quoted.state in quotes.OPEN}
        for quoted in expired:
            for request_id in quoted.requests:
                self.on_unpaid(request_id, "it was not paid in time")

    def stop(self) -> None:
        """Look at nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    # -- being paid ----------------------------------------------------------------------------------------------------

    def is_offer(self, payment_hash: str) -> bool:
        """Whether a job waits for this payment."""
        offer = self._offers.get(payment_hash)
        return offer is not None and offer.quoted.state is QuoteState.UNPAID

    def pay(
        self, payment_hash: str, payer: str, judge: str, now: Now, *,
        nip47: tuple[str, str, str] = ("", "", ""), order: str = "", call_id: str = "",
        then: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Hold the money of a quote, and have its job done. ``Refused`` if that cannot be."""
        offer = self._offers[payment_hash]
        quoted = offer.quoted
        assert offer.asked is not None
        held = Held(
            payment_hash=payment_hash,
            payer=payer,
            payee=OWN,
            msats=offer.invoiced.msats,
            invoice=offer.invoiced.text,
            asked=Raw(encoded(offer.asked)),
            quote_id=quoted.quote.quote_id,
            request_id=quoted.request_id,
            schema_id=offer.schema_id,
            job_hash=quoted.quote.job_hash,
            provider=self._npub,
            at_ms=now.ms,
            judge=judge,
            nip47=nip47,
            order=order,
            call_id=call_id,
        )

        def stored() -> None:
            if then is not None:
                then()
            self.on_held(quoted.request_id)
            for request_id in quoted.repeats:
                self.on_unpaid(request_id, f"what it asks for was paid as {quoted.request_id}")

        self._payments.hold(held, stored)
        quoted.become(QuoteState.PENDING)
        # Whoever ends the payment: this exchange itself may be the buyer.
        self._payments.when_over(payment_hash, self._over)

    def _over(self, over: Over) -> None:
        """A payment has ended: its quote has, too."""
        offer = self._offers.pop(over.payment_hash, None)
        if offer is not None and offer.quoted.state is QuoteState.PENDING:
            offer.quoted.become(QuoteState.PAID if over.preimage else QuoteState.FAILED)

    # -- the end of a job ----------------------------------------------------------------------------------------------

    def held_for(self, request_id: str) -> Held | None:
        """What is held for a job, or was released for it without a receipt yet."""
        wallet = self._payments.wallet
        return next(
            (
                held
                for held in (*wallet.held.values(), *wallet.unreceipted.values())
                if held.request_id == request_id and held.payee == OWN
            ),
            None,
        )

    def settle(
        self, request_id: str, problem: str, now: Now, done: Callable[[Paid | None], None], call_id: str = ""
    ) -> None:
        """A job has ended: release what is held for it if there is no problem, else refund it. ``call_id`` is its call,
        which the receipt is about; a job that was never called has a problem.
        """
        held = self.held_for(request_id)
        if held is None:
            done(None)
            return
        if problem:
            self._payments.refund(held.payment_hash, problem, now, lambda: done(None))
        elif held.judge != "provider":
            done(None)  # the buyer is this exchange: it looks at the result itself
        else:
            # What the receipt points to has to be on disk before it.
            self._feed.when_stored(lambda: self._release(held, call_id, done))

    def _release(self, held: Held, call_id: str, done: Callable[[Paid | None], None]) -> None:
        preimage = self._payments.release(held.payment_hash, self._feed.now())

        def issued(receipt: Issued) -> None:
            done(Paid(held.msats, held.invoice, receipt))

        self._receipting.issue(held, preimage, held.request_id, issued, call_id=call_id)

    def paid_before(self, request_id: str, job_hash: str) -> Paid | None:
        """A job whose payment and receipt are on record: a crash came before its result was told."""
        for over in self._payments.wallet.over.values():
            if not over.preimage:
                continue
            issued = self._receipting.known(over.payment_hash, job_hash)
            if issued is not None and f'"session_id":"{request_id}"'.encode() in bytes(issued.receipt):
                return Paid(over.msats, issued.request, issued)
        return None

    def take_up(self, is_taken: Callable[[str], bool], now: Now) -> None:
        """After a restart: what is held for a job that was never taken on goes back."""
        for held in list(self._payments.wallet.held.values()):
            if held.payee == OWN and held.judge == "provider" and not is_taken(held.request_id):
                self._payments.refund(held.payment_hash, RESTARTED, now)


class _Offer(Struct, eq=False):
    quoted: Quoted
    invoiced: Invoiced
    schema_id: str
    asked: Event | None = None


def _nobody(_request_id: str, _why: str = "") -> None:
    """Nobody listens yet."""

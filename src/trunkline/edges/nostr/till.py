"""What strangers pay for jobs done here: a quote by our announced prices, money held, released or refunded.

Theory of operation, of one priced job::

    request ──> quote, invoice ──paid by a wallet──> held ──> the job is called ──> verified: released, receipt, result
                     └── time over, taken back: expired             └── failed, canceled, lost: refunded

Owns which job has which quote and which payment. A quote can be paid by a Lightning invoice of the embedded wallet,
and by a request for ecash where mints are listed; one of the two, once. The states are ``trunkline.money.quotes``'s,
the money is moved by ``payments`` and ``ecash``, the job is done by ``provider``. Does not own how somebody pays
(``wallet_service``, ``wallet_agent``, ``nutzaps``).

Invariant: a priced job is called only while its money is held, and what is held for it is released only if its result
was verified; else it is refunded. However a quote ends, the requests that waited for it are told, and wait no longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.config import Nostr
from trunkline.edges.background import Background
from trunkline.edges.exchange import Feed, Timer
from trunkline.edges.nostr import nutzaps
from trunkline.edges.nostr.ecash import Ecash
from trunkline.edges.nostr.embedded_rail import EmbeddedRail
from trunkline.edges.nostr.events import Event, Tags, encoded
from trunkline.edges.nostr.keys import npub_of
from trunkline.edges.nostr.messages import BadMessage, JobRequest
from trunkline.edges.nostr.names import EDGE
from trunkline.edges.nostr.nutzap_queue import NutzapQueue
from trunkline.edges.nostr.nutzaps import Nutzap
from trunkline.edges.nostr.payments import Invoiced, Payments
from trunkline.edges.nostr.receipting import Receipting
from trunkline.events import Noticed
from trunkline.model import Now
from trunkline.money import quotes
from trunkline.money.cashu.requests import payment_hash_of
from trunkline.money.job_names import job_name, with_salt
from trunkline.money.lightning import ASSET
from trunkline.money.quotes import NoRoom, Prices, Quoted, Quotes, QuoteState
from trunkline.money.rail import Due, Payee, Proven, Quote, RailFailed
from trunkline.money.receipts import Issued
from trunkline.money.refusals import ProofRefused
from trunkline.money.wallet import OUTSIDE, OWN, Held, Over, Refused

log = logging.getLogger("trunkline")

# How often it is looked whether a quote's time is over.
LOOK_S: Final = 5.0
# What an amount and a receipt add to a result, without what it was paid by and proofs of ecash.
RECEIPT_BYTES: Final = 4096
RESTARTED: Final = "the exchange was started anew before the job began"


# Nutzaps of all buyers together that are looked at in a minute: a new key costs nothing, and each good one is a
# question to its mint. Those that came faster are looked at later.
NUTZAPS_PER_MINUTE: Final = 60
NUTZAPS_AGAIN_S: Final = 1.0
# A mint that does not say whether a nutzap is unspent is asked again after so long, while its quote holds.
CHECK_AGAIN_S: Final = 5.0
# By what somebody finds the nutzap that a refusal is about.
SHOWN_ID_CHARS: Final = 8
NOT_HAD: Final = "the ecash for it could not be redeemed"


class Earned(Struct, frozen=True):
    """What a job brought: what its result says of that."""

    msats: int
    invoice: str
    # None: it could not be made.
    receipt: Issued | None


class Unpaid(Struct, frozen=True):
    """What was held for a job could not be had any more: it is not given either."""

    why: str = NOT_HAD


class Price(Struct, frozen=True):
    """What a job costs, and by what it can be paid."""

    msats: int
    invoice: str
    payment_hash: str
    # Tags of our event besides: the same in ecash, and the keys of mints that we take.
    also: Tags = ()


class Priced(Struct, frozen=True):
    """A job as its price is found: inputs with their defaults, and its hash."""

    schema_id: str
    msats: int
    job_hash: str
    # Of a private job: what its name in public is made with.
    salt: str = ""


class Till:
    """All quotes of this provider. ``public`` is its key; ``on_held`` and ``on_unpaid`` hear of requests."""

    def __init__(
        self,
        feed: Feed,
        settings: Nostr,
        public: str,
        payments: Payments,
        receipting: Receipting,
        ecash: Ecash,
        background: Background,
    ) -> None:
        self._ecash = ecash
        self._background = background
        self._rails: tuple[Payee, ...] = (EmbeddedRail(feed, payments), ecash)
        self._nutzaps = NutzapQueue(NUTZAPS_PER_MINUTE)
        self._public = public
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
        # A payment for a request was refused, and why.
        self.on_refused: Callable[[str, str], None] = _nobody
        self._timer: Timer | None = None
        self._nutzap_timer: Timer | None = None

    # -- asking for money ----------------------------------------------------------------------------------------------

    def quote(self, request: JobRequest, priced: Priced, now: Now) -> Price | None:
        """What a job costs, and by what it is paid; None: nothing. The same key gives the same while it is open.

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
            return self._price(offer)
        expiry_s = self._settings.wallet.quote_s
        quote_id = quotes.quote_id_of(request.buyer, key, f"{request.id} {now.ms}")
        name = job_name(priced.job_hash, priced.salt)
        description = f"{priced.schema_id} {name}"
        self.quotes.need_room(request.buyer)
        try:
            invoiced = self._payments.invoice(OWN, priced.msats, quote_id, description, now, expiry_s)
        except Refused as error:
            raise NoRoom(str(error)) from None
        due = Due(priced.msats, self._npub, ASSET, invoiced.text, priced.job_hash)
        quote = Quote(quote_id, key, priced.job_hash, "lightning", due, now.ms + expiry_s * 1000)
        quoted = self.quotes.add(request.buyer, request.id, quote)
        ecash = self._ecash.asking(priced.msats, self._npub, name, self._payments.ecash_id(quote_id))
        offer = self._offers[invoiced.payment_hash] = _Offer(quoted, invoiced, priced.schema_id, priced.salt, ecash)
        if self._timer is None:
            self._timer = self._feed.call_later(LOOK_S, self._expire)
        return self._price(offer)

    def _price(self, offer: _Offer) -> Price:
        also: Tags = ()
        if offer.ecash is not None:
            asked = ("amount", str(offer.ecash.amount_msats), offer.ecash.request)
            also = (asked, *self._ecash.keyset_tags(offer.ecash.request))
        return Price(offer.invoiced.msats, offer.invoiced.text, offer.invoiced.payment_hash, also)

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
        for timer in (self._timer, self._nutzap_timer):
            if timer is not None:
                timer.cancel()

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
        held = msgspec.structs.replace(
            self._held(offer, offer.asked, now), payer=payer, judge=judge, nip47=nip47, order=order, call_id=call_id
        )

        def stored() -> None:
            if then is not None:
                then()
            self._begin(quoted)

        self._payments.hold(held, stored)
        quoted.become(QuoteState.PENDING)
        # Whoever ends the payment: this exchange itself may be the buyer.
        self._payments.when_over(payment_hash, self._over)

    def _held(self, offer: _Offer, asked: Event, now: Now) -> Held:
        """The money of a quote, as its invoice says it."""
        return Held(
            payment_hash=offer.invoiced.payment_hash,
            payer="",
            payee=OWN,
            msats=offer.invoiced.msats,
            invoice=offer.invoiced.text,
            asked=with_salt(encoded(asked), offer.salt),
            quote_id=offer.quoted.quote.quote_id,
            request_id=offer.quoted.request_id,
            schema_id=offer.schema_id,
            job_hash=offer.quoted.quote.job_hash,
            provider=self._npub,
            at_ms=now.ms,
            judge="provider",
        )

    def _begin(self, quoted: Quoted) -> None:
        """Its money is held: the job may be done, once."""
        self.on_held(quoted.request_id)
        for request_id in quoted.repeats:
            self.on_unpaid(request_id, f"what it asks for was paid as {quoted.request_id}")

    def _over(self, over: Over) -> None:
        """A payment has ended: its quote has, too."""
        self._ended(over.payment_hash, is_paid=bool(over.preimage))

    def _ended(self, payment_hash: str, *, is_paid: bool) -> None:
        offer = self._offers.pop(payment_hash, None)
        if offer is not None and offer.quoted.state is QuoteState.PENDING:
            offer.quoted.become(QuoteState.PAID if is_paid else QuoteState.FAILED)

    def nutzapped(self, event: Event) -> None:
        """Somebody hands ecash over to us (NIP-61): for a job that waits for it, it is looked at."""
        if not nutzaps.is_for(event, self._public):
            return
        try:
            zap = nutzaps.read_nutzap(event)
        except BadMessage as error:
            self._note(str(error))
            return
        offer = self._unpaid_offer(zap.request_id)
        if offer is None:
            return
        if zap.sender != offer.quoted.buyer:
            # Nutzaps are public: a stranger could hand somebody else's proofs on, or keep the buyer's own waiting.
            self._note("a nutzap for a request of somebody else")
        elif not self._nutzaps.add(zap):
            self._note("nutzaps of one buyer came faster than they are looked at")
        else:
            self._look_at_nutzaps()

    def _unpaid_offer(self, request_id: str) -> _Offer | None:
        """What a request waits to be paid, if that can be in ecash."""
        offer = next((one for one in self._offers.values() if request_id in one.quoted.requests), None)
        is_awaited = offer is not None and offer.ecash is not None and offer.quoted.state is QuoteState.UNPAID
        return offer if is_awaited else None

    def _look_at_nutzaps(self) -> None:
        """Look at those whose turn it is; at the others later."""
        self._nutzaps.drop(lambda zap: self._unpaid_offer(zap.request_id) is None)
        while (zap := self._nutzaps.next(self._feed.now(), self._can_be_looked_at)) is not None:
            offer = self._unpaid_offer(zap.request_id)
            assert offer is not None and offer.ecash is not None  # noqa: PT018  (it was asked just now)
            offer.is_taking = True
            self._background.spawn(self._take(offer, offer.ecash, zap))
        if self._nutzaps and self._nutzap_timer is None:
            self._nutzap_timer = self._feed.call_later(NUTZAPS_AGAIN_S, self._look_at_nutzaps_again)

    def _look_at_nutzaps_again(self) -> None:
        self._nutzap_timer = None
        self._look_at_nutzaps()

    def _can_be_looked_at(self, zap: Nutzap) -> bool:
        offer = self._unpaid_offer(zap.request_id)
        return offer is not None and not offer.is_taking

    async def _take(self, offer: _Offer, due: Due, zap: Nutzap) -> None:
        try:
            await self._check(offer, due, zap)
        except ProofRefused as refused:
            self._note(str(refused))
            if offer.quoted.state is QuoteState.UNPAID:
                self.on_refused(zap.request_id, f"nutzap {zap.id[:SHOWN_ID_CHARS]}: {refused}")
            return
        finally:
            offer.is_taking = False
        is_awaited = offer.quoted.state is QuoteState.UNPAID and zap.request_id in offer.quoted.requests
        if not is_awaited or offer.asked is None:
            return  # taken back, expired, or paid otherwise meanwhile: its payer has it back when its lock ends
        payment_hash = payment_hash_of(due.request)
        # A nutzap says which of the requests with this key it pays for: that one is done.
        others = [one for one in offer.quoted.requests if one != zap.request_id]
        offer.quoted.request_id, offer.quoted.repeats = zap.request_id, others
        held = self._held(offer, offer.asked, self._feed.now())
        self._ecash.take(
            msgspec.structs.replace(
                held, payment_hash=payment_hash, payer=OUTSIDE, msats=due.amount_msats, invoice=due.request
            ),
            zap.token,
        )
        # Nobody pays it a second time.
        self._payments.withdraw(offer.invoiced.payment_hash)
        self._offers[payment_hash] = self._offers.pop(offer.invoiced.payment_hash)
        offer.quoted.become(QuoteState.PENDING)
        self._begin(offer.quoted)

    async def _check(self, offer: _Offer, due: Due, zap: Nutzap) -> None:
        """Until it is known that a nutzap is good, or nobody waits for it any more; its mint may take its time.
        ``ProofRefused`` if it is not good.
        """
        while offer.quoted.state is QuoteState.UNPAID:
            try:
                await self._ecash.check(zap.token, due.request)
            except RailFailed as failed:
                log.info("nostr: a nutzap waits for its mint: %s", failed.why)
                await asyncio.sleep(CHECK_AGAIN_S)
            else:
                return

    def _note(self, why: str) -> None:
        self._feed.feed([Noticed("nostr.nutzap", EDGE, "", why)])

    # -- the end of a job ----------------------------------------------------------------------------------------------

    def held_for(self, request_id: str) -> Held | None:
        """What is held for a job, or was released for it without a receipt yet."""
        return next((held for _, held in self._held_on(request_id)), None)

    def _held_on(self, request_id: str) -> Iterator[tuple[Payee, Held]]:
        for rail in self._rails:
            held = rail.held_for(request_id)
            if held is not None:
                yield rail, held

    def receipt_bytes(self, request_id: str) -> int:
        """What amount, request and receipt add to the result of a job; nothing if nothing is held for it."""
        for rail, held in self._held_on(request_id):
            return RECEIPT_BYTES + len(held.invoice) + rail.proof_chars(held)
        return 0

    def settle(
        self, request_id: str, problem: str, done: Callable[[Earned | Unpaid | None], None], call_id: str = ""
    ) -> None:
        """A job has ended: release what is held for it if there is no problem, else refund it. ``call_id`` is its call,
        which the receipt is about; a job that was never called has a problem.
        """
        for rail, held in self._held_on(request_id):
            if problem:
                rail.refund(held, problem, lambda: done(None))
                self._ended(held.payment_hash, is_paid=False)
            elif held.judge != "provider":
                done(None)  # the buyer is this exchange: it looks at the result itself
            else:
                self._release(rail, held, call_id, done)
            return
        done(None)

    def _release(self, rail: Payee, held: Held, call_id: str, done: Callable[[Earned | Unpaid | None], None]) -> None:
        def issued(receipt: Issued | None) -> None:
            done(Earned(held.msats, held.invoice, receipt))

        known = rail.receipt_of(held)
        if known is not None:
            issued(known)
            return

        def released(proven: Proven | None) -> None:
            self._ended(held.payment_hash, is_paid=proven is not None)
            if proven is None:
                rail.forget(held)
                done(Unpaid())
            else:
                self._receipting.issue(held, proven, held.request_id, issued, call_id=call_id)

        rail.release(held, released)

    def told(self, request_id: str) -> None:
        """A job's last event is told, or never will be: nothing more is done about its money."""
        for rail, held in self._held_on(request_id):
            rail.forget(held)

    def paid_before(self, request_id: str, job_hash: str) -> Earned | None:
        """A job whose payment and receipt are on record: a crash came before its result was told."""
        for over in self._payments.wallet.over.values():
            if not over.preimage:
                continue
            issued = self._receipting.known(over.payment_hash, job_hash)
            if issued is not None and f'"session_id":"{request_id}"'.encode() in bytes(issued.receipt):
                return Earned(over.msats, issued.request, issued)
        return None

    def take_up(self, is_taken: Callable[[str], bool]) -> None:
        """After a restart: what is held for a job that was never taken on goes back."""
        for rail in self._rails:
            for held in rail.all_held():
                if not is_taken(held.request_id):
                    rail.refund(held, RESTARTED)


class _Offer(Struct, eq=False):
    quoted: Quoted
    invoiced: Invoiced
    schema_id: str
    salt: str = ""
    # The same in ecash, if a mint can be asked for it.
    ecash: Due | None = None
    asked: Event | None = None
    # A nutzap for it is being looked at.
    is_taking: bool = False


def _nobody(_request_id: str, _why: str = "") -> None:
    """Nobody listens yet."""

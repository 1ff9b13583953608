"""The embedded wallet at work: its steps on record, invoices that it issued, money held, released, refunded.

Owns the fold of ``trunkline.money.wallet`` in a running exchange, the invoices that can be paid, and who is told when a
payment is over. Preimages follow from the wallet's key and are on no record before they prove something. Does not own
who may pay (``wallet_service``, ``wallet_agent``), what a job costs (``till``) or receipts (``receipting``).

Invariant: nobody is told of a step before it is on disk. Each payment ends once, as released or as refunded.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.exchange import Feed, Views
from trunkline.events import ProcessStepped
from trunkline.model import Now
from trunkline.money import bolt11, wallet
from trunkline.money.wallet import Carried, Held, Over, Refunded, Refused, Released, Step, Wallet

# Invoices that are known. Half of them are for jobs that are done here (``till`` bounds them by buyer), half for the
# accounts together; and such of one account that nobody has paid yet.
MAX_INVOICES: Final = 4096
MAX_OPEN_OF_ACCOUNT: Final = 64
# 128 bits; a secret with all of it stays below what every mint spends.
ECASH_ID_CHARS: Final = 32

Told = Callable[[Over], None]


class Invoiced(Struct, frozen=True):
    """An invoice that can be paid."""

    text: str
    payment_hash: str
    msats: int
    # The account that gets it.
    payee: str
    quote_id: str
    created_s: int
    expires_s: int
    description: str = ""


class Payments:
    """The wallet of this exchange. ``secret`` signs invoices, and preimages follow from it."""

    def __init__(self, feed: Feed, views: Views, secret: bytes) -> None:
        self._feed = feed
        self._views = views
        self._secret = secret
        self.node = bolt11.node_of(secret)
        self.wallet = Wallet()
        self._invoices: dict[str, Invoiced] = {}
        self._generation = 1
        self._steps = 0
        # How much there was when it was carried over last.
        self._carried_size = 0
        self._told: dict[str, list[Told]] = {}

    # -- the record ----------------------------------------------------------------------------------------------------

    def take_up(self) -> None:
        """Fold what is on record. Of two generations the newer has everything; the older was about to be closed."""
        found = self._views.open_steps(wallet.PROCESS)
        subjects = sorted(found, key=wallet.generation_of)
        if subjects:
            self._generation = wallet.generation_of(subjects[-1])
            for step in found[subjects[-1]]:
                taken = wallet.decode(step.data)
                self.wallet.apply(taken)
                self._steps += 1
                if isinstance(taken, Carried):
                    self._carried_size = self.wallet.size

    def close_older(self) -> None:
        """Close what a crash left open beside the newest generation."""
        for subject in self._views.open_steps(wallet.PROCESS):
            if subject != self._subject:
                self._write(subject, "closed", Raw(b"{}"), done=True)

    def take(self, step: Step, then: Callable[[], None] | None = None) -> None:
        """Take a step: it counts at once, and ``then`` is done when it is on disk."""
        self.wallet.apply(step)
        self._write(self._subject, _name_of(step), Raw(wallet.encode(step)), caller=identity_of(wallet.payer_of(step)))
        self._steps += 1
        if self._steps >= max(wallet.MAX_STEPS, self._carried_size):
            self._carry_over()
        if then is not None:
            self._feed.when_stored(then)

    def _carry_over(self) -> None:
        """Begin anew with everything in one step. The old ones are closed after that: a crash between loses nothing."""
        before = self._subject
        self._generation += 1
        self._steps, self._carried_size = 1, self.wallet.size
        carried: Carried = self.wallet.carried()
        self._write(self._subject, "carried", Raw(wallet.encode(carried)))
        self._write(before, "closed", Raw(b"{}"), done=True)

    @property
    def _subject(self) -> str:
        return wallet.subject_of(self._generation)

    def _write(self, subject: str, step: str, data: Raw, *, done: bool = False, caller: str = "") -> None:
        self._feed.feed([ProcessStepped(0, "", wallet.PROCESS, subject, step, data, done, caller)])

    def need_open(self, account: str) -> None:
        """``Refused`` while the exchange takes nothing new on, or wrote too much for this account within an hour."""
        problem = self._views.closed() or self._feed.write_refused(identity_of(account))
        if problem is not None:
            raise Refused("RATE_LIMITED", problem.message)

    # -- invoices ------------------------------------------------------------------------------------------------------

    def invoice(self, payee: str, msats: int, quote_id: str, description: str, now: Now, expiry_s: int) -> Invoiced:
        """A signed invoice in favour of an account; ``Refused`` if that has its share of such that nobody has paid."""
        created_s = int(now.wall)
        payment_hash = hashlib.sha256(self.preimage(quote_id)).hexdigest()
        if payment_hash not in self._invoices:
            self._need_room(payee, now)
        text = bolt11.written(self._secret, msats, payment_hash, description, created_s, expiry_s)
        made = Invoiced(text, payment_hash, msats, payee, quote_id, created_s, created_s + expiry_s, description)
        self._invoices[payment_hash] = made
        return made

    def _need_room(self, payee: str, now: Now) -> None:
        """See that one more invoice can be kept. What can still be paid is never forgotten for another's sake."""
        is_own = payee == wallet.OWN
        beside = [one for one in self._invoices.values() if (one.payee == wallet.OWN) == is_own]
        still_open = [one for one in beside if self._is_open(one, now)]
        if not is_own and sum(one.payee == payee for one in still_open) >= MAX_OPEN_OF_ACCOUNT:
            raise Refused("QUOTA_EXCEEDED", f"{MAX_OPEN_OF_ACCOUNT} invoices of yours wait to be paid")
        if len(beside) < MAX_INVOICES // 2:
            return
        gone = next((one for one in beside if not self._is_open(one, now)), None)
        if gone is None:
            raise Refused("QUOTA_EXCEEDED", "too many invoices wait to be paid; try again later")
        del self._invoices[gone.payment_hash]

    def _is_open(self, one: Invoiced, now: Now) -> bool:
        """Whether an invoice can still be paid, or is being paid."""
        return one.payment_hash in self.wallet.held or (
            now.wall < one.expires_s and one.payment_hash not in self.wallet.over
        )

    def withdraw(self, payment_hash: str) -> None:
        """Nobody can pay this invoice any more."""
        self._invoices.pop(payment_hash, None)

    def preimage(self, quote_id: str) -> bytes:
        """What proves that an invoice was paid; nobody can say it who does not have the wallet's key."""
        return hmac.digest(self._secret, f"preimage {quote_id}".encode(), "sha256")

    def ecash_id(self, quote_id: str) -> str:
        """What stands in each proof of ecash that pays a quote. It is public, and nobody learns from it whose quote it
        is: that would follow from the job's hash.
        """
        return hmac.digest(self._secret, f"ecash {quote_id}".encode(), "sha256").hex()[:ECASH_ID_CHARS]

    def issued(self, text: str, now: Now) -> Invoiced:
        """The invoice of ours that this is; ``Refused`` says why it cannot be paid here."""
        try:
            read = bolt11.read(text)
        except bolt11.NotAnInvoice as error:
            raise Refused("OTHER", f"invoice: {error}") from None
        if read.node != self.node:
            raise Refused("PAYMENT_FAILED", "this wallet reaches nobody but its own accounts: the invoice is another's")
        found = self._invoices.get(read.payment_hash)
        if found is None or found.text != text.lower():
            raise Refused("PAYMENT_FAILED", "this invoice is not known any more; ask for another one")
        if now.wall >= found.expires_s:
            raise Refused("PAYMENT_FAILED", "this invoice has expired")
        return found

    def invoice_of(self, payment_hash: str) -> Invoiced | None:
        """An invoice by its payment hash."""
        return self._invoices.get(payment_hash)

    # -- holding, and the end of it ------------------------------------------------------------------------------------

    def hold(self, wish: Held, then: Callable[[], None]) -> None:
        """Lock money; ``Refused`` if it is not there. ``then`` is done when that is on disk."""
        self.take(self._lockable(wish), then)

    def _lockable(self, wish: Held) -> Held:
        """The same, with the moment until which its invoice could be used a second time."""
        invoiced = self._invoices.get(wish.payment_hash)
        expires_ms = 0 if invoiced is None else invoiced.expires_s * 1000
        return self.wallet.try_hold(msgspec.structs.replace(wish, expires_ms=expires_ms))

    def move(self, invoiced: Invoiced, payer: str, now: Now) -> None:
        """Pay what is for no job of ours: nothing has to be waited for. ``Refused`` if the money is not there."""
        preimage = self.preimage(invoiced.quote_id).hex()
        wish = wallet.Moved(
            invoiced.payment_hash, payer, invoiced.payee, invoiced.msats, preimage, now.ms, invoiced.expires_s * 1000
        )
        self.take(self.wallet.try_move(wish))

    def release(self, payment_hash: str, now: Now, then: Callable[[], None] | None = None) -> str:
        """Let the payee have it; the preimage. A second time changes nothing."""
        held = self.wallet.held.get(payment_hash)
        if held is None:
            over = self.wallet.over.get(payment_hash)
            if then is not None:
                self._feed.when_stored(then)
            return "" if over is None else over.preimage
        preimage = self.preimage(held.quote_id).hex()
        self.take(
            Released(payment_hash, preimage, now.ms, held.payer, held.payee, held.msats),
            self._ended(payment_hash, then),
        )
        return preimage

    def refund(self, payment_hash: str, reason: str, now: Now, then: Callable[[], None] | None = None) -> None:
        """Let the payer have it back. What was released stays released."""
        held = self.wallet.held.get(payment_hash)
        if held is not None:
            step = Refunded(payment_hash, reason, now.ms, held.payer, held.payee, held.msats)
            self.take(step, self._ended(payment_hash, then))
        elif then is not None:
            self._feed.when_stored(then)

    def _ended(self, payment_hash: str, then: Callable[[], None] | None) -> Callable[[], None]:
        def stored() -> None:
            over = self.wallet.over.get(payment_hash)
            for told in self._told.pop(payment_hash, ()):
                if over is not None:
                    # Each for itself: a defect of one is not the others'.
                    self._feed.when_stored(partial(told, over))
            if then is not None:
                then()

        return stored

    def when_over(self, payment_hash: str, told: Told) -> None:
        """Say how a payment ended, once that is on disk; at once if it is over."""
        over = self.wallet.over.get(payment_hash)
        if over is not None:
            self._feed.when_stored(lambda: told(over))
        else:
            self._told.setdefault(payment_hash, []).append(told)


def identity_of(account: str) -> str:
    """Under which name what is written for an account is counted; empty for the exchange's own."""
    return f"wallet:{account}" if account and account != wallet.OWN else ""


def _name_of(step: Step) -> str:
    return str(type(step).__struct_config__.tag)

"""The embedded wallet as a way to be paid for jobs (``money.rail.Payee``): what is held, released or refunded.

Owns nothing of its own: the money and its steps are ``payments``'s.

Invariant: whoever is told that something was released or refunded is told when it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable

from trunkline.edges.exchange import Feed
from trunkline.edges.nostr.payments import Payments
from trunkline.money import lightning
from trunkline.money.rail import Proven
from trunkline.money.receipts import Issued
from trunkline.money.wallet import OWN, Held


class EmbeddedRail:
    """What accounts of the embedded wallet pay for jobs done here."""

    def __init__(self, feed: Feed, payments: Payments) -> None:
        self._feed = feed
        self._payments = payments

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

    def release(self, held: Held, done: Callable[[Proven | None], None]) -> None:
        """Take it; what the receipt points to has to be on disk before."""

        def stored() -> None:
            preimage = self._payments.release(held.payment_hash, self._feed.now())
            done(lightning.proven(preimage, held.asked))

        self._feed.when_stored(stored)

    def refund(self, held: Held, reason: str, done: Callable[[], None] | None = None) -> None:
        """Let the payer have it back."""
        self._payments.refund(held.payment_hash, reason, self._feed.now(), done)

    def receipt_of(self, held: Held) -> Issued | None:  # noqa: ARG002  (of none that has one)
        """None: what has its receipt is held no more."""
        return None

    def proof_chars(self, held: Held) -> int:  # noqa: ARG002  (the same for all)
        """None: a preimage is as long as what every receipt has."""
        return 0

    def forget(self, held: Held) -> None:
        """The fold knows by itself what is over."""

    def all_held(self) -> list[Held]:
        """All that is held for jobs done here."""
        return [one for one in self._payments.wallet.held.values() if one.payee == OWN and one.judge == "provider"]

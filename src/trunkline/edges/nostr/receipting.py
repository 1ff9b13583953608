"""Receipts of payments that were released: made when the job's session is closed on record, and put there themselves.

Owns when a receipt is made and where its fields come from. Its form is ``trunkline.money.receipts``'s. Does not decide
whether a job is paid (``till``, ``settling``).

Invariant: one released payment has one receipt, whatever crashes between: what is released and not receipted is taken
up at the next start. If none can be made, that is on record, and whoever waits for it goes on without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.exchange import Feed, Views
from trunkline.edges.nostr.names import EDGE
from trunkline.edges.nostr.payments import Payments
from trunkline.events import Noticed, ProcessStepped
from trunkline.model import stamp
from trunkline.money import receipts
from trunkline.money.budget import UNTIED_RULE
from trunkline.money.rail import Proven
from trunkline.money.receipts import Issued, Receipt
from trunkline.money.wallet import Held, Receipted
from trunkline.trajectory import check

# A session is closed when its call has ended on record, which may be a moment after its money was released: that is
# looked for so often, so long. Nobody waits for anything else that has the same correlation (decision 121).
LOOKS: Final = 30
LOOK_S: Final = 1.0
# None: no receipt can be made of it.
Done = Callable[[Issued | None], None]


class Session(Struct, frozen=True):
    """What the record says of a job's session."""

    trajectory_hash: str
    policy_bundle_id: str
    is_closed: bool
    # The rule that let the job's call through.
    rule: str | None


class _Wish(Struct, frozen=True):
    """A receipt that is to be made."""

    held: Held
    proven: Proven
    session_id: str
    call_id: str
    done: Done
    rule_of: str
    prepaid: bool


class _Accepted(Struct):
    kind: str
    call_id: str = ""
    rule: str = ""


class Receipting:
    """Makes receipts."""

    def __init__(self, feed: Feed, views: Views, payments: Payments) -> None:
        self._feed = feed
        self._views = views
        self._payments = payments

    def issue(
        self, held: Held, proven: Proven, session_id: str, done: Done, rule_of: str = "", *,
        call_id: str = "", prepaid: bool = False,
    ) -> None:  # fmt: skip
        """Make the receipt of a payment that was released, and say so when it is on disk.

        ``call_id`` is the call that was paid for; it is the session's name if it is empty. ``rule_of`` is the call
        whose rule approved the payment; the one that was paid for if it is empty.
        """
        call_id = call_id or session_id
        self._look(_Wish(held, proven, session_id, call_id, done, rule_of or call_id, prepaid), LOOKS)

    def _look(self, wish: _Wish, left: int) -> None:
        held, session_id = wish.held, wish.session_id
        session = self._session(wish)
        if not session.is_closed and left:
            self._feed.call_later(LOOK_S, lambda: self._look(wish, left - 1))
            return
        receipt = Receipt(
            receipt_id=receipts.receipt_id_of(held.payment_hash, held.job_hash),
            session_id=session_id,
            trajectory_hash=session.trajectory_hash,
            policy_bundle_id=session.policy_bundle_id,
            job_hash=held.job_hash,
            payment_proof=wish.proven.proof,
            rail=wish.proven.rail,
            asset_id=wish.proven.asset_id,
            amount_msats=held.msats,
            provider_id=held.provider,
            approval_rule_id=session.rule,
            timestamp=stamp(self._feed.now().ms),
        )
        try:
            issued = receipts.issued(
                receipt, held.invoice, wish.proven.evidence, prepaid=wish.prepaid, call_id=wish.call_id
            )
        except receipts.NotAReceipt as error:
            # The money has moved, and that stays so: the job has its outcome all the same, and so does the payment.
            self._feed.feed([Noticed("nostr.receipt", EDGE, held.provider, f"no receipt can be made: {error}")])
            self._payments.take(Receipted(held.payment_hash, ""), lambda: wish.done(None))
            return
        self.put(issued)
        self._payments.take(Receipted(held.payment_hash, receipt.receipt_id), lambda: wish.done(issued))

    def put(self, issued: Issued) -> None:
        """Write a receipt. Nothing of it is held in memory: it is done with this step."""
        data = Raw(msgspec.json.encode(issued))
        self._feed.feed([ProcessStepped(0, "", receipts.PROCESS, receipts.SUBJECT, receipts.ISSUED, data, done=True)])

    def known(self, payment_hash: str, job_hash: str) -> Issued | None:
        """The receipt of a payment, if it is on record."""
        wanted = receipts.receipt_id_of(payment_hash, job_hash)
        for step in reversed(self._views.steps(receipts.PROCESS, receipts.SUBJECT)):
            if wanted.encode() in bytes(step.data):
                return receipts.issued_of(step.data)
        return None

    def _session(self, wish: _Wish) -> Session:
        lines = list(self._views.trajectory(wish.session_id, call_id=wish.call_id))
        rule = self._rule(wish.rule_of)
        try:
            found = check.check(iter(lines))
            return Session(found.trajectory_hash, found.policy_bundle_id, True, rule)
        except check.NotATrajectory:
            from trunkline.trajectory.build import trajectory_hash

            return Session(trajectory_hash(wish.session_id, lines), "unknown", False, rule)

    def _rule(self, call_id: str) -> str | None:
        """The rule by which a call was let through."""
        for line in self._views.entries(call_id=call_id):
            entry = msgspec.json.decode(line, type=_Accepted)
            if entry.kind == "call.accepted":
                # The wallet's own judgement is no rule of the bundle that the receipt names.
                return None if entry.rule in {"", UNTIED_RULE} else entry.rule
        return None

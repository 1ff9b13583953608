"""Why a proof of Cashu or of a chain does not count: one exception, one table of reasons.

Owns the words by which such a proof is refused. Does not own the checks. A reason is a word that a program can compare;
the sentence beside it is for people and quotes nothing of what was refused.

Invariant: whatever bytes a stranger hands in as a proof, ``cashu`` and ``onchain`` accept it or raise ``ProofRefused``,
and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trunkline.money.rail import NotPaid

REASONS: Final = {
    "malformed": "This cannot be read",
    "other_asset": "This is another asset than the rail has",
    "not_asked": "The payee did not ask for this, in an event that he signed",
    "other_job": "The payee asked for it for another job",
    "other_payment": "The token is for another payment than this one",
    "too_large": "The proof is larger than any that is needed",
    "other_mint": "The token is of another mint",
    "other_unit": "The token is in another unit",
    "unknown_keyset": "The token names a keyset that is not known of this mint",
    "wrong_amount": "The amount is not the one that was asked for",
    "counted_twice": "One proof stands in the token twice",
    "unsigned": "The mint's signature is not proven: there is no DLEQ proof",
    "forged": "The mint did not sign this",
    "not_locked": "The token is locked to nobody: whoever sees it first can spend it",
    "other_lock": "The token is locked to somebody else",
    "other_hash": "The token is locked to another hash",
    "lock_too_short": "The lock ends too early",
    "not_released": "The lock was not opened: a signature is missing or wrong",
    "wrong_preimage": "The preimage does not hash to what the payment is locked to",
    "spent": "The token was spent before",
    "pending": "The token is being spent",
    "refused_by_mint": "The mint does not take the token",
    "other_transaction": "The transaction has another id",
    "pays_another": "The transaction pays somebody else",
    "other_block": "The transaction is not in this block",
    "not_enough_work": "The header does not have the work that it claims, or claims too little",
    "broken_chain": "A header does not follow the one before it",
    "no_checkpoint": "The headers do not start at a checkpoint of this exchange",
    "unconfirmed": "Too few blocks stand on top of the payment",
}


class ProofRefused(NotPaid):
    """A proof does not count. ``reason`` is a key of ``REASONS``; ``detail`` says where, without quoting the proof.

    ``field`` is the part of a receipt that is wrong, and stands first.
    """

    def __init__(self, reason: str, detail: str = "", field: str = "") -> None:
        super().__init__(": ".join(filter(None, (field, REASONS[reason], detail))))
        self.reason = reason
        self.detail = detail


@contextmanager
def about(field: str) -> Iterator[None]:
    """What is refused inside is refused in this part of a receipt."""
    try:
        yield
    except ProofRefused as refused:
        raise ProofRefused(refused.reason, refused.detail, field) from None


def malformed(detail: str) -> ProofRefused:
    """What cannot be read, to be raised."""
    return ProofRefused("malformed", detail)

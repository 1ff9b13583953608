"""Ways to pay, behind one interface: a quote, a hold, its release or refund, and a proof that verifies.

Owns the values that all rails share and what a rail has to be able to do. Each rail is a module of its own: its
``verify`` is pure arithmetic, its other methods are carried out by an edge. Does not own quotes' states (``quotes``) or
receipts (``receipts``).

Invariant: nothing counts as paid before ``verify`` took its proof. A proof of one rail is none of another
(``PROOF_OF_RAIL``).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Protocol

from msgspec import Meta, Struct

RailName = Literal["lightning", "cashu", "onchain", "taproot_assets"]
ProofType = Literal["lightning_preimage", "cashu_proof", "onchain_txid"]
# Contradiction 5 of OpenAgents: four rails and three types of proof. An asset's transfer is a transaction.
PROOF_OF_RAIL: Final[dict[RailName, ProofType]] = {
    "lightning": "lightning_preimage",
    "cashu": "cashu_proof",
    "onchain": "onchain_txid",
    "taproot_assets": "onchain_txid",
}
# All there will ever be.
MAX_MSATS: Final = 2_100_000_000_000_000_000
Msats = Annotated[int, Meta(ge=1, le=MAX_MSATS)]


class NotPaid(ValueError):
    """A proof that proves nothing; the text says why, beginning with the part that is wrong, and may be shown."""


class RailFailed(Exception):
    """A rail could not do what it was asked. ``is_unknown``: nobody can say whether it did.

    ``why`` is a text of ours that may be shown: it quotes nobody.
    """

    def __init__(self, why: str, *, is_unknown: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_unknown = is_unknown


class PaymentProof(Struct, frozen=True):
    """What shows that something was paid; what ``value`` is, its rail says."""

    type: ProofType
    value: str


class Due(Struct, frozen=True):
    """What is to be paid, to whom, and what a proof of it is judged by."""

    amount_msats: Msats
    # An npub.
    payee: str
    asset_id: str
    # What the payee asks to be paid by: a signed invoice (BOLT11), a Cashu payment request, an on-chain script in hex.
    request: str
    # The hash of the job that is paid for.
    job_hash: str = ""
    # What else a proof is judged by, as JSON in the rail's own form: a mint's keyset, a header with a Merkle proof.
    evidence: str = ""


class Quote(Struct, frozen=True):
    """An offer to do a job for a price, until a moment. ``key`` tells one wish from another: the same key, the same
    quote.
    """

    quote_id: str
    key: str
    job_hash: str
    rail: RailName
    due: Due
    expires_ms: int


class Hold(Struct, frozen=True):
    """Money that its payer cannot spend any more and its payee not yet."""

    quote_id: str
    rail: RailName
    amount_msats: Msats
    # What the rail itself calls it: a payment hash, the secret of a lock, an output of a transaction.
    reference: str


class Rail(Protocol):
    """One way to pay."""

    name: RailName
    # Whether money can be held; one that cannot pays at once, and only where ``prepay`` is set.
    can_hold: bool

    def verify(self, proof: PaymentProof, due: Due) -> None:
        """``NotPaid`` unless this proof shows that ``due`` was paid: to this payee, this amount, for this request.

        Pure: whoever has the proof and what is due comes to the same, today and in ten years.
        """

    async def quote(self, amount_msats: int, payee: str, job_hash: str, expires_ms: int) -> Due:
        """Ask to be paid."""

    async def hold(self, quote: Quote, payer: str) -> Hold:
        """Lock the money of a quote. ``RailFailed`` if it is not there; then nothing is locked."""

    async def release(self, hold: Hold) -> PaymentProof:
        """Let the payee have it; the proof verifies. The same hold twice gives the same proof."""

    async def refund(self, hold: Hold) -> None:
        """Let the payer have it back. What was released cannot be refunded."""

"""Ways to pay: the values that all rails share, and what is asked of one by those who pay and who are paid.

Each rail has a judge of its proofs, which is pure arithmetic (``verifying``). Those that an exchange pays with are
``Payer`` (a wallet elsewhere, ecash); those that it is paid by are ``Payee`` (the embedded wallet, ecash); both are
carried out by an edge. Does not own quotes' states (``quotes``) or receipts (``receipts``).

Invariant: nothing counts as paid before its judge took its proof. A proof of one rail is none of another
(``PROOF_OF_RAIL``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

from msgspec import Meta, Raw, Struct

if TYPE_CHECKING:
    from trunkline.money.receipts import Issued
    from trunkline.money.wallet import Held

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


class Proven(Struct, frozen=True):
    """A payment that was made, as a receipt has it. ``evidence`` is what the proof is judged by (``Due.evidence``)."""

    rail: RailName
    asset_id: str
    proof: PaymentProof
    evidence: Raw


class Way(Struct, frozen=True):
    """Whose ecash something is paid with, empty for Lightning, and the most that this mint may take for it."""

    mint: str = ""
    fee_msats: int = 0


class Payer(Protocol):
    """A way to have somebody paid at once, whatever becomes of his work: used only where ``prepay`` is set."""

    def reaches(self, request: str) -> bool:
        """Whether what a payee asks to be paid by is of this kind, and can be paid from here."""

    def need_ready(self, wish: Held, way: Way) -> None:
        """``Refused`` if it is certain that this cannot be paid: nothing was asked of anybody then."""

    async def pay(self, wish: Held, way: Way) -> str:
        """Pay it in this way and in no other; what proves it, or empty if that is known only later. ``RailFailed`` says
        why it was not paid, or that nobody knows.
        """


class Payee(Protocol):
    """A way in which strangers' money for jobs done here is held until a job has ended."""

    def held_for(self, request_id: str) -> Held | None:
        """What is held for a job, or was released for it without a receipt yet."""

    def release(self, held: Held, done: Callable[[Proven | None], None]) -> None:
        """Take it, and say what proves that. None: it could not be had any more, whatever was tried."""

    def refund(self, held: Held, reason: str, done: Callable[[], None] | None = None) -> None:
        """Leave it to its payer. What was released stays released."""

    def receipt_of(self, held: Held) -> Issued | None:
        """The receipt of what is held still, if a crash came between that and the result; None if there is none."""

    def proof_chars(self, held: Held) -> int:
        """How much of a receipt of this the proofs will be, beside what every receipt has."""

    def forget(self, held: Held) -> None:
        """Its receipt is on record, and the buyer has his result."""

    def all_held(self) -> list[Held]:
        """All that is held for jobs done here."""

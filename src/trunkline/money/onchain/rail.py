"""Bitcoin's chain as a way to pay (``money.rail``): asked for by a script, paid by whatever wallet the payer has.

Owns what is asked for and how a proof is judged. Does not own keys or transactions: an exchange sends nothing itself,
and what is on the chain cannot be held or given back.

Invariant: what is asked for names the payee and the job by itself: nobody has to be believed about it.
"""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.money.onchain.headers import Checkpoint, Network
from trunkline.money.onchain.proof import ASSET, job_script_of, verifier
from trunkline.money.rail import Due, Hold, PaymentProof, Quote, RailFailed, RailName

NO_HOLD = "what is on the chain cannot be held, released or given back"


class OnchainRail:
    """Payments on one chain, proven from the operator's checkpoints on."""

    name: RailName = "onchain"
    can_hold = False

    def __init__(self, network: Network, checkpoints: Sequence[Checkpoint], confirmations: int) -> None:
        self._verify = verifier(network, checkpoints, confirmations)

    def verify(self, proof: PaymentProof, due: Due) -> None:
        """``NotPaid`` unless the transaction paid what was due, under enough blocks."""
        self._verify(proof, due)

    async def quote(self, amount_msats: int, payee: str, job_hash: str, expires_ms: int) -> Due:  # noqa: ARG002  (a script does not end)
        """Ask to be paid, in whole satoshis, to the script of payee and job."""
        due = Due(-(-amount_msats // 1000) * 1000, payee, ASSET, "", job_hash)

        return Due(due.amount_msats, payee, ASSET, job_script_of(due).hex(), job_hash)

    async def hold(self, quote: Quote, payer: str) -> Hold:  # noqa: ARG002  (whatever it is)
        """Not here."""
        raise RailFailed(NO_HOLD)

    async def release(self, hold: Hold) -> PaymentProof:  # noqa: ARG002  (whatever it is)
        """Not here."""
        raise RailFailed(NO_HOLD)

    async def refund(self, hold: Hold) -> None:  # noqa: ARG002  (whatever it is)
        """Not here."""
        raise RailFailed(NO_HOLD)

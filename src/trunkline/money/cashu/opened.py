"""Who opened the locks of proofs, by what their mint shows of them (NUT-07), and when the first of them ends.

Pure. Does not own the form of a lock (``locks``) or the mint's words (``mint``).

Invariant: a lock counts as opened by a key only if the mint says that the proof is spent, and shows that key's
signature.
"""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.money.cashu.curve import is_schnorr_signed
from trunkline.money.cashu.locks import check_released, read_lock, read_witness
from trunkline.money.cashu.mint import ProofState
from trunkline.money.cashu.tokens import Proof
from trunkline.money.refusals import ProofRefused


def is_opened_by(key: bytes, opened: Sequence[Proof], states: Sequence[ProofState]) -> bool:
    """Whether the mint shows of each that this key opened it."""
    for proof, state in zip(opened, states, strict=True):
        lock = read_lock(proof.secret)
        if state.state != "SPENT" or lock is None or [one[1:] for one in lock.keys] != [key[1:]]:
            return False
        try:
            check_released(proof.secret, lock, read_witness(state.witness or ""))
        except ProofRefused:
            return False
    return True


def is_signed_by(key: bytes, proof: Proof, state: ProofState) -> bool:
    """Whether the mint shows that this key was among those who opened it."""
    try:
        signatures = read_witness(state.witness or "").signatures
    except ProofRefused:
        return False
    return any(is_schnorr_signed(key, proof.secret.encode(), signature) for signature in signatures)


def earliest_end(opened: Sequence[Proof]) -> int:
    """When the first of these locks ends, in seconds since 1970; 0 for never."""
    ends = [lock.locktime for proof in opened if (lock := read_lock(proof.secret)) is not None and lock.locktime]
    return min(ends, default=0)

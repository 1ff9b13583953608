"""Whether a token pays what was asked: by this mint, in this unit, so much, to this key. All of it without the mint.

Owns the judgement, in steps that each have their reason. What cannot be known without the mint is whether the token was
spent already: that is asked of the mint (``mint``) before a payment is taken on, and shown by a signature of the payee
afterwards, since only he could have spent it before the lock ends.

Invariant: what ``check_payment`` accepts was signed by the mint's keys and opened with the payee's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from trunkline.money.cashu.curve import is_signed
from trunkline.money.cashu.keysets import Keyset, find_keyset
from trunkline.money.cashu.locks import Lock, check_released, read_lock, read_witness
from trunkline.money.cashu.tokens import Proof, Token
from trunkline.money.refusals import ProofRefused


class Asked(Struct, frozen=True):
    """What a token has to be. ``key`` is the payee's, without its sign: 32 bytes, as Nostr has them."""

    mint: str
    unit: str
    amount: int
    key: bytes
    # SHA-256 that it has to be locked to as well; empty if to the key alone.
    hash: str = ""
    # The job that has to stand in each secret; empty if none has to.
    job_hash: str = ""
    # The payment that has to stand in each secret; empty if none has to.
    payment_id: str = ""


def check_hold(token: Token, asked: Asked, keysets: Iterable[Keyset], until: int) -> None:
    """Refuse unless the money is locked to the payee at least until this second (since 1970)."""
    for _, lock in _checked(token, asked, keysets):
        if lock.locktime and lock.locktime < until:
            raise ProofRefused("lock_too_short")


def check_payment(token: Token, asked: Asked, keysets: Iterable[Keyset]) -> None:
    """Refuse unless the payee could open it, and did: this is what a receipt has as its proof."""
    for proof, lock in _checked(token, asked, keysets):
        check_released(proof.secret, lock, read_witness(proof.witness))


def check_signatures(token: Token, keysets: Iterable[Keyset]) -> None:
    """Refuse unless the mint signed each proof, for its amount and in the token's unit, and none stands there twice."""
    known = tuple(keysets)
    if len({proof.secret for proof in token.proofs}) != len(token.proofs):
        raise ProofRefused("counted_twice")
    for at, proof in enumerate(token.proofs):
        keyset = find_keyset(proof.keyset_id, known)
        if keyset.unit != token.unit:
            raise ProofRefused("other_unit")
        if proof.amount not in keyset.keys:
            raise ProofRefused("forged", f"proof {at}: the mint has no key for its amount")
        if proof.dleq is None:
            raise ProofRefused("unsigned", f"proof {at}")
        dleq = proof.dleq
        message = proof.secret.encode()
        if not is_signed(keyset.keys[proof.amount], message, proof.signature, dleq.e, dleq.s, dleq.r):
            raise ProofRefused("forged", f"proof {at}")


def _checked(token: Token, asked: Asked, keysets: Iterable[Keyset]) -> list[tuple[Proof, Lock]]:
    """Each proof and its lock, if the token is what was asked for."""
    if token.mint != asked.mint:
        raise ProofRefused("other_mint")
    if token.unit != asked.unit:
        raise ProofRefused("other_unit")
    if token.amount != asked.amount:
        raise ProofRefused("wrong_amount")
    locks = [_lock_to(asked, proof.secret) for proof in token.proofs]
    check_signatures(token, keysets)
    return list(zip(token.proofs, locks, strict=True))


def _lock_to(asked: Asked, secret: str) -> Lock:
    lock = read_lock(secret)
    if lock is None:
        raise ProofRefused("not_locked")
    if [key[1:] for key in lock.keys] != [asked.key]:
        raise ProofRefused("other_lock")
    if lock.signs_all:
        # Such a signature is over a whole swap: nobody else could check it.
        raise ProofRefused("other_lock", "its signatures are not over the secrets")
    if lock.hash != asked.hash:
        raise ProofRefused("other_hash")
    if asked.job_hash and lock.job_hash != asked.job_hash:
        # Else one token could be shown for every job of the same price.
        raise ProofRefused("other_job")
    if asked.payment_id and lock.payment_id != asked.payment_id:
        # Else who copies a token that is handed over in public could show it for his own request of the same job.
        raise ProofRefused("other_payment")
    return lock

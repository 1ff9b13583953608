"""Proofs that their payee has opened, as a receipt holds them: they pay nobody any more, and are no token.

Owns that form: ``cashu-spent:`` and base64 of the same CBOR that a token of version 4 is. It has a beginning of its own
because a token is a bearer's: the record masks whatever begins like one, since an unlocked token in it would be money
for every reader. What is locked to a payee and was opened by him is of no use to anybody else.

Invariant: ``write_spent`` refuses a proof that is not locked, or whose lock nobody opened; so does ``read_spent``. What
is written has of each witness what opens the lock, and nothing else.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trunkline.money.cashu.locks import least_witness, read_lock, read_witness
from trunkline.money.cashu.tokens import Proof, Token, read_token, write_token
from trunkline.money.refusals import ProofRefused, malformed

PREFIX: Final = "cashu-spent:"
_TOKEN: Final = "cashuB"  # noqa: S105  (what a token begins with)
# What spent proofs may come to in a receipt: half of what a relay carries in one event, so that a result has the rest.
MAX_SPENT_CHARS: Final = 32_768
# One proof with a lock of ours, its signature and what opens it; measured: 1,107.
PROOF_CHARS: Final = 1536
# In the place of the payee's signature, before he has signed.
_STAND_IN: Final = msgspec.json.encode({"signatures": ["00" * 64]}).decode()


def write_spent(token: Token) -> str:
    """The text of proofs that were spent by who they were locked to."""
    proofs = tuple(msgspec.structs.replace(proof, witness=_least_witness(proof)) for proof in token.proofs)
    return PREFIX + write_token(msgspec.structs.replace(token, proofs=proofs)).removeprefix(_TOKEN)


def spent_chars(token: Token) -> int:
    """How much the text of these proofs will be, once one signature has opened each of them."""
    # Keysets are named in full then.
    proofs = tuple(
        msgspec.structs.replace(proof, witness=_STAND_IN, keyset_id=proof.keyset_id.ljust(66, "0"))
        for proof in token.proofs
    )
    return len(PREFIX) + len(write_token(msgspec.structs.replace(token, proofs=proofs)))


def check_size(token: Token) -> None:
    """Refuse what no receipt could hold once it is spent: who takes it would have the money, and nothing to show."""
    if spent_chars(token) > MAX_SPENT_CHARS:
        raise ProofRefused("too_large")


def _least_witness(proof: Proof) -> str:
    lock = read_lock(proof.secret)
    if lock is None:
        raise ProofRefused("not_locked")
    return least_witness(proof.secret, lock, proof.witness)


def read_spent(text: str) -> Token:
    """The proofs that this text is."""
    if not text.startswith(PREFIX):
        raise malformed(f"spent proofs begin with {PREFIX}")
    token = read_token(_TOKEN + text.removeprefix(PREFIX))
    _need_opened(token)
    return token


def _need_opened(token: Token) -> None:
    for proof in token.proofs:
        if read_lock(proof.secret) is None:
            raise ProofRefused("not_locked")
        if not read_witness(proof.witness).signatures:
            raise ProofRefused("not_released")

"""Proofs that their payee has opened, as a receipt holds them: they pay nobody any more, and are no token.

Owns that form: ``cashu-spent:`` and base64 of the same CBOR that a token of version 4 is. It has a beginning of its own
because a token is a bearer's: the record masks whatever begins like one, since an unlocked token in it would be money
for every reader. What is locked to a payee and was opened by him is of no use to anybody else.

Invariant: ``write_spent`` refuses a proof that is not locked, or whose lock nobody opened; so does ``read_spent``.
"""

from __future__ import annotations

from typing import Final

from trunkline.money.cashu.locks import read_lock, read_witness
from trunkline.money.cashu.tokens import Token, read_token, write_token
from trunkline.money.refusals import ProofRefused, malformed

PREFIX: Final = "cashu-spent:"
_TOKEN: Final = "cashuB"  # noqa: S105  (what a token begins with)


def write_spent(token: Token) -> str:
    """The text of proofs that were spent by who they were locked to."""
    _need_opened(token)
    return PREFIX + write_token(token).removeprefix(_TOKEN)


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

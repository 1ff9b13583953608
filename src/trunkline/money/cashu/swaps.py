"""New proofs for old ones: what is asked of a mint in a swap (NUT-03), and what is made of its answer.

Owns splitting an amount, blinding secrets and checking what the mint signed. Does not own the request (``mint``) nor
chance: secrets and factors come in. Outputs of a swap are on disk before it is asked for: after a crash the same ones
are asked for again, and only who has their factors can use what the mint signed.

Invariant: ``proofs_of`` gives proofs that the mint signed for exactly what was asked, or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from trunkline.money.cashu.curve import blinded, is_blindly_signed, unblinded
from trunkline.money.cashu.keysets import Keyset
from trunkline.money.cashu.tokens import MAX_PROOFS, Dleq, Proof
from trunkline.money.refusals import ProofRefused, malformed

SECRET_BYTES: Final = 32
RandomBytes = Callable[[int], bytes]


class Output(Struct, frozen=True):
    """One proof that is asked for: what it is worth, its secret, and the factor that hides the secret."""

    keyset_id: str
    amount: int
    secret: str
    factor: bytes

    @property
    def blinded(self) -> bytes:
        """What the mint is asked to sign."""
        return blinded(self.secret.encode(), self.factor)


class Promise(Struct, frozen=True):
    """What a mint answers for one output: its blind signature, and the proof that its own key made it."""

    keyset_id: str
    amount: int
    signature: bytes
    e: bytes
    s: bytes


def split(amount: int, keyset: Keyset) -> tuple[int, ...]:
    """The fewest amounts of this keyset that make this one, the smallest first: the order tells nobody anything."""
    parts: list[int] = []
    if amount < 0:
        raise malformed("an amount below nothing")
    for part in sorted(keyset.keys, reverse=True):
        count, amount = divmod(amount, part)
        if len(parts) + count > MAX_PROOFS:
            raise malformed("an amount that this keyset cannot make")
        parts += [part] * count
    if amount:
        raise malformed("an amount that this keyset cannot make")
    return tuple(sorted(parts))


def outputs_of(amount: int, keyset: Keyset, secret: Callable[[str], str], random_bytes: RandomBytes) -> list[Output]:
    """Outputs that are worth so much; ``secret`` makes the secret of each from a nonce."""
    return [
        Output(keyset.id, part, secret(random_bytes(SECRET_BYTES).hex()), random_bytes(SECRET_BYTES))
        for part in split(amount, keyset)
    ]


def proofs_of(outputs: Sequence[Output], promises: Sequence[Promise], keyset: Keyset) -> tuple[Proof, ...]:
    """The proofs that a mint's answer makes of the outputs; refused unless it signed each of them as it was asked."""
    asked = [(output.keyset_id, output.amount) for output in outputs]
    if asked != [(promise.keyset_id, promise.amount) for promise in promises]:
        raise ProofRefused("forged", "the mint signed something else than it was asked")
    found = []
    for output, promise in zip(outputs, promises, strict=True):
        key = keyset.keys[output.amount]
        if not is_blindly_signed(key, output.blinded, promise.signature, promise.e, promise.s):
            raise ProofRefused("forged", "the mint's own answer")
        signature = unblinded(promise.signature, output.factor, key)
        dleq = Dleq(promise.e, promise.s, output.factor)
        found.append(Proof(output.keyset_id, output.amount, output.secret, signature, dleq))
    return tuple(found)

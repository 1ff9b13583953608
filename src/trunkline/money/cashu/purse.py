"""Ecash that is ours: proofs, and swaps that were begun. Whoever reads it has the money: it is kept in a private file.

Owns which proofs are taken for a payment and what is known of a swap before its answer comes. Does not own the file,
nor the mint. Pure: a change is a new purse, which is on disk before the mint is asked.

Invariant: each proof is in one place: among those that can be spent, or in one swap that was begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from trunkline.errors import ConfigError
from trunkline.money.cashu.swaps import Output
from trunkline.money.cashu.tokens import Proof
from trunkline.money.rail import RailFailed

# Some 400 bytes each.
MAX_PROOFS: Final = 4096
MAX_PURSE_BYTES: Final = 8_388_608


class Begun(Struct, frozen=True):
    """A swap whose answer is not on disk yet."""

    inputs: tuple[Proof, ...]
    outputs: tuple[Output, ...]
    # The first so many outputs are locked to somebody else; the others are ours.
    locked: int = 0


class Purse(Struct, frozen=True):
    """Proofs that can be spent, and swaps that were begun."""

    proofs: Annotated[tuple[Proof, ...], Meta(max_length=MAX_PROOFS)] = ()
    begun: tuple[Begun, ...] = ()

    @property
    def amount(self) -> int:
        """What can be spent."""
        return sum(proof.amount for proof in self.proofs)

    def enough(self, amount: int, fee_ppk: int) -> tuple[Proof, ...]:
        """Proofs that are worth so much and the fee for spending them; ``RailFailed`` if there are none."""
        # The largest first: fewer proofs, less of a fee.
        taken: list[Proof] = []
        for proof in sorted(self.proofs, key=lambda one: -one.amount):
            if _worth(taken, fee_ppk) >= amount:
                break
            taken.append(proof)
        if _worth(taken, fee_ppk) < amount:
            raise RailFailed("there is not enough ecash")
        return tuple(taken)

    def begin(self, begun: Begun) -> Purse:
        """A swap is about to be asked for."""
        secrets = {proof.secret for proof in begun.inputs}
        return Purse(tuple(one for one in self.proofs if one.secret not in secrets), (*self.begun, begun))

    def end(self, begun: Begun, proofs: Sequence[Proof]) -> Purse:
        """A swap is over: these proofs are ours."""
        return Purse((*self.proofs, *proofs), tuple(one for one in self.begun if one != begun))


def read_purse(data: bytes) -> Purse:
    """The purse in a file."""
    try:
        return msgspec.json.decode(data, type=Purse)
    except msgspec.MsgspecError:
        raise ConfigError("the purse cannot be read: it was damaged or is something else") from None


def write_purse(purse: Purse) -> bytes:
    """The purse as it stands in a file."""
    return msgspec.json.encode(purse)


def _worth(proofs: Sequence[Proof], fee_ppk: int) -> int:
    return sum(proof.amount for proof in proofs) - (len(proofs) * fee_ppk + 999) // 1000

"""Ecash that is ours at one mint: proofs, and where each of them is.

Owns which proofs are taken for a payment and what is known of a swap before its answer comes. Does not own the file,
nor the mint. Pure: a change is a new purse, which is on disk before the mint is asked. Whoever reads a purse has the
money: it is kept encrypted (``purse_file`` of the edge).

Invariant: each proof is in one place: among those that can be spent, locked to a payee, taken for a job, in a token
that was made to be given away, or in a swap that was begun.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.errors import ConfigError
from trunkline.money.cashu.swaps import Output
from trunkline.money.cashu.tokens import Proof
from trunkline.money.rail import RailFailed
from trunkline.money.wallet import Held

# Some 400 bytes each, a locked one 900. From ``MANY`` on small ones are swapped for large ones, from ``MAX_PROOFS`` on
# nothing new is bought or asked for. Neither bounds what is read: whatever was written is money.
MANY_PROOFS: Final = 512
MAX_PROOFS: Final = 4096
MAX_PURSE_BYTES: Final = 8_388_608
# Tokens that are locked to payees, or that strangers locked to us, at a time; each has the payee's event with it.
MAX_LOCKED: Final = 256
# Tokens that were made to be given away and that nobody has received yet.
MAX_SENT: Final = 64


class Begun(Struct, frozen=True):
    """A swap, or what a paid quote is to give, whose answer is not on disk yet."""

    name: str
    inputs: tuple[Proof, ...]
    outputs: tuple[Output, ...]
    # What the first so many outputs pay for: they are locked to somebody else until ``locktime``. The others are ours.
    locked: int = 0
    held: Held | None = None
    locktime: int = 0
    # The quote of the mint that was paid, in the place of inputs.
    quote: str = ""
    # Another one, of which nobody knows whether the mint heard of it: one of all that are in its place is signed.
    instead_of: str = ""
    # The payment whose lock has ended and that is had back.
    reclaims: str = ""
    # The name of the token that the first ``locked`` outputs are, if they are to be given away and not locked.
    token: str = ""
    # Whoever gave us the inputs has them as well: they are ours only when they are swapped.
    is_received: bool = False


class Locked(Struct, frozen=True):
    """Proofs of ours that are locked to a payee until a second since 1970, and what they pay for."""

    held: Held
    proofs: tuple[Proof, ...]
    locktime: int
    # The event that told the payee; empty if he was never told.
    nutzap: str = ""
    # What came back of it; the proofs are those that did not.
    back: int = 0

    @property
    def amount(self) -> int:
        """What they are worth."""
        return sum(proof.amount for proof in self.proofs)


class Taken(Struct, frozen=True):
    """Proofs that a stranger locked to us, for a job that is being done."""

    held: Held
    proofs: tuple[Proof, ...]


class SentToken(Struct, frozen=True):
    """Proofs that anybody can spend who is given them: kept until somebody has, so that they can be shown again."""

    name: str
    proofs: tuple[Proof, ...]

    @property
    def amount(self) -> int:
        """What they are worth."""
        return sum(proof.amount for proof in self.proofs)


class Funding(Struct, frozen=True):
    """An invoice of the mint that somebody was given to pay. Whoever knows ``quote`` can have what was paid."""

    quote: str
    amount: int
    # Seconds since 1970; 0 if the mint does not say.
    expires_s: int


class Purse(Struct, frozen=True):
    """All of it."""

    proofs: tuple[Proof, ...] = ()
    begun: tuple[Begun, ...] = ()
    locked: tuple[Locked, ...] = ()
    taken: tuple[Taken, ...] = ()
    funding: tuple[Funding, ...] = ()
    sent: tuple[SentToken, ...] = ()

    def __repr__(self) -> str:
        """Without anything that could be spent."""
        return f"Purse({self.amount}, {self.amount_locked} locked)"

    @property
    def amount(self) -> int:
        """What can be spent."""
        return sum(proof.amount for proof in self.proofs)

    @property
    def amount_locked(self) -> int:
        """What is locked to payees, and what is on its way from one proof to another."""
        on_its_way = sum(proof.amount for one in self.begun if not one.instead_of for proof in self._own_of(one))
        return sum(one.amount for one in self.locked) + on_its_way

    def _own_of(self, begun: Begun) -> tuple[Proof, ...]:
        """Inputs that are ours already: those that a stranger gave us are his until they are swapped."""
        if begun.is_received:
            return ()
        held = {proof.secret for one in self.taken for proof in one.proofs}
        held |= {proof.secret for one in self.locked for proof in one.proofs}
        return tuple(proof for proof in begun.inputs if proof.secret not in held)

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
        left = tuple(one for one in self.proofs if one.secret not in secrets)
        return msgspec.structs.replace(self, proofs=left, begun=(*self.begun, begun))

    def end(
        self,
        begun: Begun,
        proofs: Sequence[Proof],
        locked: Locked | None = None,
        sent: SentToken | None = None,
    ) -> Purse:
        """A swap is over, with the one in whose place it was: these proofs are ours, these locked to a payee, and these
        to be given away.
        """
        first = begun.instead_of or begun.name
        return msgspec.structs.replace(
            self,
            proofs=(*self.proofs, *proofs),
            begun=tuple(one for one in self.begun if first not in (one.name, one.instead_of)),
            locked=self.locked if locked is None else (*self.locked, locked),
            sent=self.sent if sent is None else (*self.sent, sent),
        )

    def without_sent(self, spent: Collection[str]) -> Purse:
        """Proofs with these secrets are spent: tokens of which nothing is left are over."""
        left = tuple(one for one in self.sent if not all(proof.secret in spent for proof in one.proofs))
        return msgspec.structs.replace(self, sent=left)

    def with_locked(self, changed: Locked) -> Purse:
        """What is locked for a payment is known better."""
        found = tuple(changed if one.held.payment_hash == changed.held.payment_hash else one for one in self.locked)
        return msgspec.structs.replace(self, locked=found)

    def with_back(self, payment_hash: str, proofs: Sequence[Proof]) -> Purse:
        """Of what was locked for a payment, these are the payee's no more."""
        secrets = {proof.secret for proof in proofs}
        for one in self.locked:
            if one.held.payment_hash == payment_hash:
                left = tuple(proof for proof in one.proofs if proof.secret not in secrets)
                back = one.back + one.amount - sum(proof.amount for proof in left)
                return self.with_locked(msgspec.structs.replace(one, proofs=left, back=back))
        return self

    def without_locked(self, payment_hash: str) -> Purse:
        """What was locked is its payee's, or ours again."""
        return msgspec.structs.replace(
            self, locked=tuple(one for one in self.locked if one.held.payment_hash != payment_hash)
        )

    def with_taken(self, taken: Taken) -> Purse:
        """A stranger's proofs are taken for a job."""
        return msgspec.structs.replace(self, taken=(*self.taken, taken))

    def without_taken(self, payment_hash: str) -> Purse:
        """They are redeemed and receipted, or left to their payer."""
        return msgspec.structs.replace(
            self, taken=tuple(one for one in self.taken if one.held.payment_hash != payment_hash)
        )

    def with_funding(self, funding: Funding) -> Purse:
        """Somebody was given an invoice to pay."""
        return msgspec.structs.replace(self, funding=(*self.funding, funding))

    def without_funding(self, quote: str) -> Purse:
        """It was paid and had, or nobody paid it in its time."""
        return msgspec.structs.replace(self, funding=tuple(one for one in self.funding if one.quote != quote))


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

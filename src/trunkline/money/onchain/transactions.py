"""A Bitcoin transaction: read strictly from its bytes, with or without witnesses (BIP 144), and its id.

Owns the form and what of it matters for a payment: who gets how much. Does not own whether it is valid (that its inputs
exist and are signed): that it stands in a block with enough work on top says so.

Invariant: a ``Transaction`` that ``read_transaction`` gave is the only reading of its bytes. Whatever the bytes are, it
gives one or raises ``ProofRefused``.
"""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec import Struct

from trunkline.money.refusals import ProofRefused, malformed

# What nodes pass on (400,000 units of weight, BIP 141): a larger one would have to be mined by its maker.
MAX_TRANSACTION_BYTES: Final = 400_000
# Satoshis: all that there will ever be.
MAX_AMOUNT: Final = 2_100_000_000_000_000
# As many bytes as two hashes have: a node of a block's tree could be passed off as such a transaction (CVE-2017-12842).
_TWO_HASHES: Final = 64
_LEAST_INPUT, _LEAST_OUTPUT, _OUTPOINT = 41, 9, 36


class PaidOutput(Struct, frozen=True):
    """So many satoshis, to whoever can satisfy the script."""

    amount: int
    script: bytes


class Transaction(Struct, frozen=True):
    """What of a transaction matters: its id, and whom it pays."""

    # As people write it: the hash's bytes backwards, in hexadecimal digits.
    txid: str
    outputs: tuple[PaidOutput, ...]

    def paid_to(self, script: bytes) -> int:
        """Satoshis that go to this script."""
        return sum(output.amount for output in self.outputs if output.script == script)


def double_sha256(data: bytes) -> bytes:
    """Bitcoin's hash."""
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


def read_transaction(data: bytes) -> Transaction:
    """The transaction that these bytes are, all of them."""
    if len(data) > MAX_TRANSACTION_BYTES:
        raise ProofRefused("too_large")
    reader = _Reader(data)
    version = reader.take(4)
    has_witnesses = data[4:6] == b"\x00\x01"
    if has_witnesses:
        reader.take(2)
    start = reader.at
    inputs = reader.count(_LEAST_INPUT)
    for _ in range(inputs):
        reader.take(_OUTPOINT)
        reader.take(reader.number())
        reader.take(4)
    outputs = tuple(reader.output() for _ in range(reader.count(_LEAST_OUTPUT)))
    body = data[start : reader.at]
    if has_witnesses and not sum([reader.witness() for _ in range(inputs)]):
        raise malformed("a transaction that promises witnesses and has none")
    stripped = version + body + reader.take(4)
    if reader.at != len(data):
        raise malformed("bytes after the end of the transaction")
    if not inputs or not outputs or sum(output.amount for output in outputs) > MAX_AMOUNT:
        raise malformed("a transaction without inputs or outputs, or with more than there is")
    if len(stripped) == _TWO_HASHES:
        raise malformed("a transaction of 64 bytes, which could be two hashes of a block's tree")
    return Transaction(double_sha256(stripped)[::-1].hex(), outputs)


class _Reader:
    """Where reading has come to. Nothing is reserved before its bytes are seen to be there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self.at:
            raise malformed("a transaction that ends too early")
        self.at += size
        return self._data[self.at - size : self.at]

    def number(self) -> int:
        """A number of one to nine bytes, in its shortest form."""
        first = self.take(1)[0]
        if first < 0xFD:
            return first
        size = 2 << first - 0xFD
        found = int.from_bytes(self.take(size), "little")
        if found < (0xFD if size == 2 else 1 << 4 * size):
            raise malformed("a number that is not in its shortest form")
        return found

    def count(self, least: int) -> int:
        """How many parts follow, each of so many bytes at least."""
        found = self.number()
        if found * least > len(self._data) - self.at:
            raise malformed("a transaction that ends too early")
        return found

    def output(self) -> PaidOutput:
        amount = int.from_bytes(self.take(8), "little")
        if amount > MAX_AMOUNT:
            raise malformed("an output of more than there is")
        return PaidOutput(amount, self.take(self.number()))

    def witness(self) -> int:
        """Go past what opens one input; how many parts it has."""
        parts = self.count(1)
        for _ in range(parts):
            self.take(self.number())
        return parts

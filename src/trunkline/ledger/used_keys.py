"""Which keys may be on record, told without the disk: nearly every key that comes is new.

A Bloom filter. To look for a key on disk takes 20 µs, since each commit makes the reader look at its pages anew; to ask
here takes one. Where a key falls is told by Python's own hash of it, whose secret is another in each process.

Owns the bits. Does not own the keys, which are in the record.

Invariant: a key that is on record, or was appended, is never told to be new. What is on record is read a little at a
time; until all of it was, every key may be on record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Of a hundred thousand keys on record, and as many that are new, two hundred of the new ones are looked for on disk.
BITS: Final = 22
_MASK: Final = (1 << BITS) - 1
# Read at a time: some 5 ms.
MORE: Final = 4096


class UsedKeys:
    """``following`` gives so many keys of the record that come after one, in order."""

    def __init__(self, following: Callable[[str, int], list[str]]) -> None:
        self._following = following
        self._bits = bytearray(1 << BITS - 3)
        self._read_to = ""
        self._is_complete = False

    def add(self, key_id: str) -> None:
        """Remember that this key is used from here on."""
        number = hash(key_id)
        for place in (number & _MASK, number >> BITS & _MASK):
            self._bits[place >> 3] |= 1 << (place & 7)

    def may_have(self, key_id: str) -> bool:
        """Whether this key may be on record."""
        number, bits = hash(key_id), self._bits
        one, other = number & _MASK, number >> BITS & _MASK
        return not self._is_complete or bool(bits[one >> 3] >> (one & 7) & bits[other >> 3] >> (other & 7) & 1)

    def read_more(self) -> bool:
        """Read some more of the record; whether there may be more still."""
        found = self._following(self._read_to, MORE)
        for key_id in found:
            self.add(key_id)
        self._is_complete = len(found) < MORE
        if found:
            self._read_to = found[-1]
        return not self._is_complete

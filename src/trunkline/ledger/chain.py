"""The hash chain: each entry's hash covers its bytes and the hash before it, so no entry changes alone.

Pure. It does not know where entries are stored, and proves nothing about entries cut off at the end: for that the last
hash has to be kept somewhere else.

Invariant: ``hash[n] = SHA-256(hash[n-1] || data[n])``, with ``GENESIS`` before entry 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final

from trunkline.errors import LedgerCorrupt

__all__ = ["GENESIS", "Row", "link", "verified"]

GENESIS: Final = sha256(b"trunkline ledger 1").digest()


def link(before: bytes, data: bytes) -> bytes:
    """The hash of the entry ``data`` that follows the entry with hash ``before``."""
    return sha256(before + data).digest()


Row = tuple[int, bytes | None, bytes]


def verified(rows: Iterable[Row], number: int, before: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """These ``(number, data, hash)`` rows, each once it is proved; ``LedgerCorrupt`` at the first that is not.

    ``number`` is the one expected first, ``before`` the hash of its predecessor.
    """
    try:
        for n, data, stored in rows:
            if n != number:
                raise LedgerCorrupt(number, f"missing; the next one stored is {n}")
            # A row may hold anything after damage.
            if type(data) is not bytes or sha256(before + data).digest() != stored:
                raise LedgerCorrupt(number, "does not match its hash")
            yield n, data, stored
            before = stored
            number += 1
    except UnicodeDecodeError:
        raise LedgerCorrupt(number, "does not match its hash: its bytes became text") from None

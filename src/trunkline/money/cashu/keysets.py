"""The public keys of a mint: one key for each amount, and an id that is the hash of them (NUT-01, NUT-02).

Owns keysets and finding the one that a proof names. Does not own fetching them. An id is computed anew from the keys,
so a mint, or whoever stands between, cannot give other keys under a known id.

Invariant: a ``Keyset`` that ``read_keyset`` gave has the id that its keys have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from trunkline.money.cashu.curve import is_point
from trunkline.money.refusals import ProofRefused, malformed

# One for each power of two of 64 bits.
MAX_KEYS: Final = 64
# What a mint may charge for spending one proof, in thousandths: more than a whole unit each is not meant.
MAX_FEE_PPK: Final = 100_000
SHORT_ID_CHARS: Final = 16


class Keyset(Struct, frozen=True):
    """Keys by amount, in one unit."""

    id: str
    unit: str
    keys: dict[int, bytes]
    active: bool = True
    input_fee_ppk: int = 0
    # Seconds since 1970 from which on the mint need not honour it; 0 if there is no such time.
    final_expiry: int = 0


def read_keyset(
    keyset_id: str,
    unit: str,
    keys: Mapping[str, str],
    *,
    active: bool = True,
    input_fee_ppk: int = 0,
    final_expiry: int = 0,
) -> Keyset:
    """A keyset as a mint says it, refused unless its id follows from it."""
    if not 0 < len(keys) <= MAX_KEYS or not 0 <= input_fee_ppk <= MAX_FEE_PPK:
        raise malformed(f"a keyset has 1 to {MAX_KEYS} keys and a fee below {MAX_FEE_PPK}")
    found = {_amount(amount): _key(key) for amount, key in keys.items()}
    read = Keyset(keyset_id, unit, dict(sorted(found.items())), active, input_fee_ppk, final_expiry)
    if keyset_id not in {first_version_id(read), second_version_id(read)}:
        raise ProofRefused("unknown_keyset", "the id is not the hash of the keys")
    return read


def first_version_id(keyset: Keyset) -> str:
    """``00`` and 7 bytes of the hash of the keys: ids of older mints."""
    return "00" + hashlib.sha256(b"".join(keyset.keys[amount] for amount in sorted(keyset.keys))).hexdigest()[:14]


def second_version_id(keyset: Keyset) -> str:
    """``01`` and the hash of keys, unit, fee and expiry."""
    text = ",".join(f"{amount}:{keyset.keys[amount].hex()}" for amount in sorted(keyset.keys))
    text += f"|unit:{keyset.unit.lower()}"
    if keyset.input_fee_ppk:
        text += f"|input_fee_ppk:{keyset.input_fee_ppk}"
    if keyset.final_expiry:
        text += f"|final_expiry:{keyset.final_expiry}"
    return "01" + hashlib.sha256(text.encode()).hexdigest()


def find_keyset(keyset_id: str, known: Iterable[Keyset]) -> Keyset:
    """The known keyset that an id names, in its long or its short form; refused if none or more than one."""
    found = [keyset for keyset in known if _is_named(keyset.id, keyset_id)]
    if len(found) != 1:
        raise ProofRefused("unknown_keyset")
    return found[0]


def fee(keysets: Iterable[Keyset]) -> int:
    """What it costs to spend proofs of these keysets, one for each proof, in whole units."""
    return (sum(keyset.input_fee_ppk for keyset in keysets) + 999) // 1000


def _is_named(full: str, named: str) -> bool:
    # Only ids of the second version have a short form.
    return named == full or (full.startswith("01") and len(named) == SHORT_ID_CHARS and full.startswith(named))


def _amount(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 20 or text.startswith("0"):
        raise malformed("an amount of a keyset is no number")
    return int(text)


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if not is_point(key):
        raise malformed("a key of a keyset is no point of the curve")
    return key

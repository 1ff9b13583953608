"""Keys that somebody knows to be a mint's: its own answer to ``GET /v1/keys`` (NUT-01), as a file.

A receipt brings the keys that its token is judged by, and they are the payee's word: he could name a keyset of his own
under the name of any mint. Whoever has asked the mint himself can compare. Owns reading the file and the comparison.

Invariant: keys are the same only if each amount has the same key, in the same unit; ids and fees are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.money.cashu.keysets import Keyset
from trunkline.money.refusals import ProofRefused, malformed

MAX_FILE_BYTES: Final = 8_388_608


class KnownKeys(Struct, frozen=True):
    """One keyset in a mint's answer."""

    unit: str
    keys: dict[str, str]


class _Answer(Struct):
    keysets: tuple[KnownKeys, ...]


def read_known_keys(data: bytes) -> tuple[KnownKeys, ...]:
    """The keysets in a mint's answer; ``ProofRefused`` if it is none."""
    if len(data) > MAX_FILE_BYTES:
        raise ProofRefused("too_large")
    try:
        strictjson.check(data)
        return msgspec.json.decode(data, type=_Answer).keysets
    except (strictjson.NotStrictJson, msgspec.MsgspecError):
        raise malformed("expected what a mint answers to GET /v1/keys") from None


def check_known(keyset: Keyset, known: Iterable[KnownKeys]) -> None:
    """Refuse a keyset that is none of these."""
    keys = {str(amount): key.hex() for amount, key in keyset.keys.items()}
    if not any(one.unit == keyset.unit and one.keys == keys for one in known):
        raise ProofRefused("unknown_keyset", "the mint's own answer does not have it")

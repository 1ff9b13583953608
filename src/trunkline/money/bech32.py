"""Bech32 (BIP-173) as Nostr and Lightning use it: texts of any length, a name before the last ``1``, a checksum.

Owns the alphabet and the checksum. Does not own what the five-bit words mean (``bolt11``, ``npub``).

Invariant: what ``encoded`` wrote ``decoded`` gives back, and a text with one sign changed is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

CHARSET: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_VALUES: Final = {sign: value for value, sign in enumerate(CHARSET)}
_GENERATORS: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
CHECKSUM_WORDS: Final = 6
# What the checksum of a text comes to: for all of it, but for addresses of taproot and later (BIP-350).
BECH32, BECH32M = 1, 0x2BC830A3
# An invoice has some hundred signs; a text that is longer than this is something else.
MAX_CHARS: Final = 8192


class NotBech32(ValueError):
    """A text that is not bech32; the message says why without quoting it."""


def _polymod(words: Iterable[int]) -> int:
    check = 1
    for word in words:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ word
        for bit, generator in enumerate(_GENERATORS):
            if top >> bit & 1:
                check ^= generator
    return check


def _expanded(name: str) -> list[int]:
    return [ord(sign) >> 5 for sign in name] + [0] + [ord(sign) & 31 for sign in name]


def encoded(name: str, words: Sequence[int]) -> str:
    """A name and five-bit words as text."""
    rest = _polymod([*_expanded(name), *words, *([0] * CHECKSUM_WORDS)]) ^ BECH32
    checksum = [rest >> 5 * (CHECKSUM_WORDS - 1 - index) & 31 for index in range(CHECKSUM_WORDS)]
    return f"{name}1{''.join(CHARSET[word] for word in (*words, *checksum))}"


def decoded(text: str, checksum: int = BECH32) -> tuple[str, list[int]]:
    """The name and the five-bit words of a text; ``NotBech32`` if it is none."""
    if len(text) > MAX_CHARS or not text.isascii():
        raise NotBech32("it is too long, or has signs that bech32 does not")
    if text != text.lower() and text != text.upper():
        raise NotBech32("it mixes upper and lower case")
    name, separator, data = text.lower().rpartition("1")
    if not separator or not name or len(data) < CHECKSUM_WORDS:
        raise NotBech32("it has no name, or no checksum")
    try:
        words = [_VALUES[sign] for sign in data]
    except KeyError:
        raise NotBech32("it has signs that bech32 does not") from None
    if _polymod([*_expanded(name), *words]) != checksum:
        raise NotBech32("its checksum is wrong")
    return name, words[:-CHECKSUM_WORDS]


def to_words(data: bytes) -> list[int]:
    """Bytes as five-bit words, the last one filled up with zeros."""
    bits, count, words = 0, 0, []
    for byte in data:
        bits, count = bits << 8 | byte, count + 8
        while count >= 5:
            count -= 5
            words.append(bits >> count & 31)
        bits &= (1 << count) - 1
    return [*words, bits << 5 - count & 31] if count else words


def to_bytes(words: Iterable[int]) -> bytes:
    """The whole bytes of five-bit words; what is left over is dropped."""
    bits, count, data = 0, 0, bytearray()
    for word in words:
        bits, count = bits << 5 | word, count + 5
        if count >= 8:
            count -= 8
            data.append(bits >> count & 255)
            bits &= (1 << count) - 1
    return bytes(data)


def public_of(npub: str) -> str:
    """The public key that an ``npub`` shows (NIP-19), in hexadecimal; ``NotBech32`` if it is none."""
    name, words = decoded(npub)
    data = to_bytes(words)
    if name != "npub" or len(data) != 32 or len(words) != 52 or to_words(data) != words:
        raise NotBech32("expected npub1 and a key of 32 bytes")
    return data.hex()

"""Which script an address stands for, and which one is a provider's for one job.

Owns addresses (BIP 13, BIP 173, BIP 350) and the taproot output (BIP 341) that follows from a provider's Nostr key and
a job's hash. Does not own spending it: the provider's own wallet does, with its key tweaked as BIP 341 has it.

Invariant: nobody but the owner of the Nostr key can spend what was paid to ``job_script``; everybody can compute it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from coincurve import PublicKeyXOnly

from trunkline.money.bech32 import BECH32, BECH32M, CHARSET, NotBech32, decoded, to_bytes, to_words
from trunkline.money.cashu.curve import SCALAR_BYTES
from trunkline.money.onchain.headers import Network
from trunkline.money.onchain.transactions import double_sha256
from trunkline.money.refusals import malformed

MAX_ADDRESS_CHARS: Final = 90
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def job_script(key: bytes, job_hash: bytes) -> bytes:
    """What pays the owner of a Nostr key (32 bytes) for this job and no other: a taproot output."""
    # The library reads 32 bytes, however many there are.
    if len(key) != SCALAR_BYTES:
        raise malformed("32 bytes that are no key")
    try:
        point = PublicKeyXOnly(key)
        point.tweak_add(_tweak(key, job_hash))
    except ValueError:
        raise malformed("32 bytes that are no key") from None
    return b"\x51\x20" + point.format()


def address_script(address: str, network: Network) -> bytes:
    """The script that an address of this network stands for."""
    if not address.isascii() or len(address) > MAX_ADDRESS_CHARS:
        raise malformed("an address that is none")
    if address.lower().startswith(network.segwit_prefix + "1"):
        return _segwit_script(address, network.segwit_prefix)
    data = _base58_bytes(address)
    if len(data) == 21 and data[0] == network.key_prefix:
        return b"\x76\xa9\x14" + data[1:] + b"\x88\xac"
    if len(data) == 21 and data[0] == network.script_prefix:
        return b"\xa9\x14" + data[1:] + b"\x87"
    raise malformed("an address of another network")


def _tweak(key: bytes, job_hash: bytes) -> bytes:
    tag = hashlib.sha256(b"TapTweak").digest()
    return hashlib.sha256(tag + tag + key + job_hash).digest()


def _base58_bytes(text: str) -> bytes:
    number = 0
    for character in text:
        if (digit := _BASE58.find(character)) < 0:
            raise malformed("an address that is none")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip("1"))
    data = bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8)
    if double_sha256(data[:-4])[:4] != data[-4:] or len(data) < 5:
        raise malformed("an address with a typing error")
    return data[:-4]


def _segwit_script(address: str, prefix: str) -> bytes:
    # The first version has one checksum, all later ones another.
    is_first = address[len(prefix) + 1 : len(prefix) + 2].lower() == CHARSET[0]
    try:
        name, words = decoded(address, BECH32 if is_first else BECH32M)
    except NotBech32 as error:
        raise malformed(f"an address: {error}") from None
    program = to_bytes(words[1:])
    # What is left over behind the last byte has to be zero, and less than a word.
    if name != prefix or not words or to_words(program) != words[1:]:
        raise malformed("an address that is none")
    version = words[0]
    if version > 16 or not 2 <= len(program) <= 40 or (version == 0 and len(program) not in {20, 32}):
        raise malformed("an address that is none")
    return bytes([version and 0x50 + version, len(program)]) + program

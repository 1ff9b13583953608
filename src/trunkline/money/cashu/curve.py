"""Blind signatures on secp256k1 (NUT-00) and the proof that one was made with the mint's key (NUT-12).

Owns the arithmetic, on bytes: points are 33 bytes (compressed), scalars 32. Does not own what is signed, or by which
key. libsecp256k1 does the work.

Invariant: bytes that are no point, or no scalar, are refused with ``ProofRefused``; nothing else is raised.
"""

from __future__ import annotations

import hashlib
from typing import Final

from coincurve import PrivateKey, PublicKey, PublicKeyXOnly

from trunkline.money.refusals import malformed

# The number of points of the curve.
ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
POINT_BYTES: Final = 33
SCALAR_BYTES: Final = 32
_DOMAIN: Final = b"Secp256k1_HashToCurve_Cashu_"
# Each try finds a point half of the time: not to find one in so many has never happened and never will.
_MOST_TRIES: Final = 2**16


def hash_to_curve(message: bytes) -> bytes:
    """The point that stands for a message: nobody knows its discrete logarithm."""
    start = hashlib.sha256(_DOMAIN + message).digest()
    for counter in range(_MOST_TRIES):
        candidate = b"\x02" + hashlib.sha256(start + counter.to_bytes(4, "little")).digest()
        try:
            PublicKey(candidate)
        except ValueError:
            continue
        return candidate
    raise malformed("a message without a point")


def blinded(message: bytes, factor: bytes) -> bytes:
    """``B_ = Y + rG``: what the mint signs without knowing the message."""
    return _sum(_point(hash_to_curve(message)), _times_generator(factor))


def unblinded(signature: bytes, factor: bytes, mint_key: bytes) -> bytes:
    """``C = C_ - rK``: the mint's signature on the message itself."""
    return _sum(_point(signature), _times(_point(mint_key), _negated(factor)))


def is_signed(mint_key: bytes, message: bytes, signature: bytes, e: bytes, s: bytes, factor: bytes) -> bool:
    """Whether the mint's key made this signature: NUT-12 for somebody who was given the proof and the factor ``r``."""
    blinded_signature = _sum(_point(signature), _times(_point(mint_key), factor))
    return is_blindly_signed(mint_key, blinded(message, factor), blinded_signature, e, s)


def is_blindly_signed(mint_key: bytes, blinded_message: bytes, blinded_signature: bytes, e: bytes, s: bytes) -> bool:
    """Whether the mint's key made this blind signature: NUT-12 for the one who asked for it."""
    key, message, signature = _point(mint_key), _point(blinded_message), _point(blinded_signature)
    minus_e = _negated(e)
    first = _sum(_times_generator(s), _times(key, minus_e))
    second = _sum(_times(message, s), _times(signature, minus_e))
    return challenge(first, second, mint_key, blinded_signature) == e


def challenge(*points: bytes) -> bytes:
    """The hash that ties the points of a proof together: over their uncompressed form, in hexadecimal digits."""
    text = "".join(_point(point).format(compressed=False).hex() for point in points)
    return hashlib.sha256(text.encode()).digest()


def is_schnorr_signed(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether this key, of which the sign does not count, signed the SHA-256 of a message (BIP 340)."""
    # The library reads 32 bytes, however many there are.
    if len(public_key) != POINT_BYTES:
        return False
    try:
        return PublicKeyXOnly(public_key[1:]).verify(signature, hashlib.sha256(message).digest())
    except ValueError:
        return False


def schnorr_signature(private_key: bytes, message: bytes, randomness: bytes) -> bytes:
    """A signature over the SHA-256 of a message (BIP 340)."""
    return PrivateKey(private_key).sign_schnorr(hashlib.sha256(message).digest(), randomness)


def public_key(private_key: bytes) -> bytes:
    """The point of a private key."""
    return _times_generator(private_key).format()


def is_point(data: bytes) -> bool:
    """Whether these bytes are a point of the curve in compressed form."""
    if len(data) != POINT_BYTES or data[0] not in {2, 3}:
        return False
    try:
        PublicKey(data)
    except ValueError:
        return False
    return True


def _point(data: bytes) -> PublicKey:
    if not is_point(data):
        raise malformed("33 bytes that are no point of the curve")
    return PublicKey(data)


def _checked(scalar: bytes) -> bytes:
    if len(scalar) != SCALAR_BYTES or not 0 < int.from_bytes(scalar) < ORDER:
        raise malformed("32 bytes that are no number of the curve")
    return scalar


def _negated(scalar: bytes) -> bytes:
    return (ORDER - int.from_bytes(_checked(scalar))).to_bytes(SCALAR_BYTES)


def _times(point: PublicKey, scalar: bytes) -> PublicKey:
    return point.multiply(_checked(scalar))


def _times_generator(scalar: bytes) -> PublicKey:
    return PublicKey.from_valid_secret(_checked(scalar))


def _sum(first: PublicKey, second: PublicKey) -> bytes:
    """The sum of two points; refused where they cancel each other out, which only who chose them so brings about."""
    try:
        return PublicKey.combine_keys([first, second]).format()
    except ValueError:
        raise malformed("two points that cancel each other out") from None

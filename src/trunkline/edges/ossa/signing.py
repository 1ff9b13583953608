"""Signatures of OSSA messages: a detached JWS (RFC 7515, appendix F) over the canonical form of the message.

The protected header names the key (``kid``) and is ``EdDSA`` or, by its newer name, ``Ed25519`` (RFC 9864); what is
signed is the RFC 8785 form of the message without its ``signature``. Whose key that is, and whether it may be used, is
the registry's to say: here a signature fits a key or it does not.

The curve is libsodium's, which checks a signature in half of OpenSSL's time and takes no key of small order.

Invariant: nothing but Ed25519 is ever tried, whatever a header says; a header with anything that would have to be
understood (``crit``, ``b64``) is refused.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import re
from typing import Any, Final

import msgspec
import orjson
from msgspec import Struct
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError, CryptoError
from nacl.signing import SigningKey, VerifyKey

from trunkline.canonical import canonical, has_exact_numbers, without_floats
from trunkline.edges.ossa import messages
from trunkline.edges.ossa.messages import BAD_REQUEST, MAX_INTEGER, UNAUTHORIZED, Message, Refused

ALGORITHMS: Final = frozenset({"EdDSA", "Ed25519"})
TYPE: Final = "ossa+jws"
SIGNATURE_BYTES: Final = 64
# A header has three short words; a kid that somebody made up has at most as many characters as any name.
MAX_HEADER_CHARS: Final = 1024
# Headers that are remembered with the key they name: those of one agent are all the same.
READ_HEADERS: Final = 1024
# Of the last character of 64 bytes only two bits say something: the others are zero.
_SIGNATURE: Final = re.compile(r"([A-Za-z0-9_-]+)\.\.([A-Za-z0-9_-]{85}[AQgw])")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")
# Integers that RFC 8785 may not be able to hold have so many digits.
_LONG_NUMBER: Final = b"0" * 16
_DIGITS: Final = bytes.maketrans(b"123456789", b"0" * 9)


class Key(Struct, frozen=True):
    """A key pair of ours. ``kid`` is its thumbprint (RFC 7638)."""

    kid: str
    private: SigningKey

    @property
    def public(self) -> VerifyKey:
        """What others check with."""
        return self.private.verify_key


def key_of(seed: bytes) -> Key:
    """The key pair that follows from 32 secret bytes."""
    private = SigningKey(seed)
    return Key(thumbprint(public_jwk(private.verify_key)), private)


def public_jwk(key: VerifyKey) -> dict[str, str]:
    """A public key as a JWK, without a name."""
    return {"kty": "OKP", "crv": "Ed25519", "x": encoded(bytes(key))}


def thumbprint(jwk: dict[str, str]) -> str:
    """The name that a key has by itself (RFC 7638)."""
    needed = {name: jwk[name] for name in ("crv", "kty", "x")}
    return encoded(hashlib.sha256(canonical(msgspec.json.encode(needed))).digest())


def read_public(jwk: object) -> VerifyKey:
    """The key of a JWK; ``ValueError`` says what is wrong with it."""
    if not isinstance(jwk, dict) or jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519":
        raise ValueError('expected a JWK with "kty": "OKP" and "crv": "Ed25519"')
    try:
        return VerifyKey(decoded(str(jwk.get("x"))))
    except (ValueError, CryptoError):
        raise ValueError('"x" is not a public key of Ed25519') from None


# --- signing ----------------------------------------------------------------------------------------------------------


def sign(message: Message, key: Key) -> bytes:
    """The message as it leaves, with our signature behind all else. ``Refused`` if it has no canonical form."""
    data = msgspec.json.encode(messages.write(message))
    header = _header(key.kid)
    made = key.private.sign(b"%b.%b" % (header, _base64url(signed_form(data)))).signature
    return b'%b,"signature":"%b..%b"}' % (data[:-1], header, _base64url(made))


@functools.lru_cache(maxsize=READ_HEADERS)
def _header(kid: str) -> bytes:
    """The header of our signatures: we have one key."""
    return _base64url(msgspec.json.encode({"alg": "EdDSA", "kid": kid, "typ": TYPE}))


def signed_form(data: bytes) -> bytes:
    """What is signed of a message: its canonical form without its signature. ``Refused`` if there is none."""
    return _signed(data)[0]


def _signed(data: bytes) -> tuple[bytes, bool]:
    """The signed form, and whether there are numbers in it that can be written in several ways."""
    # A search for a run of digits takes five times as long.
    if _LONG_NUMBER in data.translate(_DIGITS):
        _check_numbers(json.loads(data))
    form = without_floats(data, "signature")
    return (canonical(data, "signature"), True) if form is None else (form, False)


def _check_numbers(value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif type(one) is int and abs(one) > MAX_INTEGER:
            raise Refused(BAD_REQUEST, "an integer beyond 2^53 has no canonical form; write it as a string")


# --- checking ---------------------------------------------------------------------------------------------------------


class Claim(Struct, frozen=True):
    """What a signature says of itself: which key made it. Nothing of it is known to be true yet."""

    kid: str
    header: str
    signature: bytes


def read_claim(signature: str) -> Claim:
    """What a signature claims; ``Refused`` with 401 if it cannot be one."""
    found = _SIGNATURE.fullmatch(signature) if len(signature) <= MAX_HEADER_CHARS + SIGNATURE_BYTES * 2 else None
    if found is None:
        raise Refused(UNAUTHORIZED, "the signature is not a detached JWS")
    header, made = found.groups()
    return Claim(named_key(header), header, binascii.a2b_base64(made.encode().translate(_FROM_URL) + b"=="))


@functools.lru_cache(maxsize=READ_HEADERS)
def named_key(text: str) -> str:
    """The key that a signature's header names."""
    try:
        header = json.loads(decoded(text), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.keys() - {"alg", "kid", "typ"}:
        raise Refused(UNAUTHORIZED, "the signature's header has to be alg, kid and typ")
    algorithm, kid = header.get("alg"), header.get("kid")
    is_known = isinstance(algorithm, str) and algorithm in ALGORITHMS and header.get("typ", TYPE) == TYPE
    if not is_known or not isinstance(kid, str) or not kid.isprintable():
        raise Refused(UNAUTHORIZED, f"expected a signature with alg EdDSA, a kid, and typ {TYPE}")
    return kid


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


class Checked(Struct, frozen=True):
    """What the check of a signature found besides."""

    # Whether there are numbers with a fraction or an exponent, which take several times as long as any others.
    has_floats: bool = False
    # The message with its numbers as they were signed, if one was written as another number: ``0.49999999999999999`` is
    # signed as ``0.5`` and ``1e-999`` as ``0``.
    rounded: bytes | None = None


_PLAIN: Final = Checked()


def check(data: bytes, claim: Claim, key: VerifyKey) -> Checked:
    """``Refused`` with 401 unless this key signed the message in these bytes."""
    form, has_floats = _signed(data)
    try:
        crypto_sign_open(b"%b%b.%b" % (claim.signature, claim.header.encode(), _base64url(form)), bytes(key))
    except BadSignatureError:
        raise Refused(UNAUTHORIZED, "the signature does not fit the message") from None
    if not has_floats:
        return _PLAIN
    return Checked(has_floats=True, rounded=None if has_exact_numbers(data) else orjson.dumps(orjson.loads(data)))


# --- base64url without padding (RFC 7515) -----------------------------------------------------------------------------


def encoded(data: bytes) -> str:
    """Bytes as JOSE writes them."""
    return _base64url(data).decode()


def _base64url(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL).rstrip(b"=")


def decoded(text: str) -> bytes:
    """Bytes that JOSE wrote; ``ValueError`` for any other spelling of them."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if encoded(data) != text:
        raise ValueError("not the one way to write these bytes")
    return data

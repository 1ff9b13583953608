"""Keys of Nostr: our own pair, signatures (BIP-340), encryption between two keys (NIP-44), and ``npub`` texts.

Everybody else has hexadecimal texts. Our pair is made at the first start and stays in ``keys/`` of the home folder,
because a provider is known by it. The curve is libsecp256k1 (coincurve); nostr-sdk, which is slow to import and large,
is for the embedded relay's process alone (decision 127).

Invariant: the private half is in that file and in a ``Signer``, whose text shows the public one only.
"""

from __future__ import annotations

import functools
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coincurve import PrivateKey, PublicKeyXOnly

from trunkline import key_files
from trunkline.edges.nostr import encryption
from trunkline.errors import ConfigError
from trunkline.money import bech32

OWN_FILE: Final = "nostr.key"
SEED_BYTES: Final = 32
# Public keys whose other spelling is remembered; a stranger who was here is often here again.
REMEMBERED: Final = 1024

Entropy = Callable[[int], bytes]


class CannotDecrypt(ValueError):
    """What was encrypted is not for us, was changed, or is no NIP-44."""


class CannotEncrypt(ValueError):
    """NIP-44 does not carry nothing, nor this much."""


class Signer:
    """A pair of keys. Made from 32 secret bytes; ``ValueError`` if they are no private key. ``entropy`` is where it
    draws what signatures and encryption want to be chance.
    """

    def __init__(self, secret: bytes, entropy: Entropy = secrets.token_bytes) -> None:
        if len(secret) != SEED_BYTES:
            raise ValueError(f"expected {SEED_BYTES} bytes")
        self._private = PrivateKey(secret)
        self._entropy = entropy
        self.public = PublicKeyXOnly.from_secret(secret).format().hex()
        self.npub = npub_of(self.public)

    def __repr__(self) -> str:
        return f"Signer({self.npub})"

    def sign(self, event_id: str) -> str:
        """A signature of the bytes that this id is."""
        return self._private.sign_schnorr(bytes.fromhex(event_id), self._entropy(SEED_BYTES)).hex()

    def encrypt(self, text: str, to: str) -> str:
        """For the holder of that public key only (NIP-44, version 2)."""
        size = len(text.encode())
        if not 1 <= size <= encryption.MAX_TEXT_BYTES:
            raise CannotEncrypt(f"NIP-44 carries 1 to {encryption.MAX_TEXT_BYTES} bytes, not {size}")
        return encryption.encrypt(self._shared(to), text, self._entropy(encryption.NONCE_BYTES))

    def decrypt(self, payload: str, by: str) -> str:
        """What the holder of that public key wrote to us."""
        try:
            return encryption.decrypt(self._shared(by), payload)
        except ValueError:
            raise CannotDecrypt("it is not NIP-44 for this key by its author") from None

    def encrypt_old(self, text: str, to: str) -> str:
        """The same in the older form (NIP-04), for wallets' clients that know no other."""
        return encryption.encrypt_old(self._shared(to), text, self._entropy(encryption.AES_BLOCK_BYTES))

    def decrypt_old(self, payload: str, by: str) -> str:
        """What the holder of that public key wrote to us in the older form."""
        try:
            return encryption.decrypt_old(self._shared(by), payload)
        except ValueError:
            raise CannotDecrypt("it is not NIP-04 for this key by its author") from None

    def job_salt(self, public: str, job_hash: str) -> str:
        """What a private job's name is made with, between us and the holder of that public key: both compute the same,
        and nobody else can.
        """
        return hmac.digest(self._shared(public), f"job salt {job_hash}".encode(), "sha256").hex()[:32]

    def _shared(self, public: str) -> bytes:
        return encryption.shared_point(self._private.secret, public)


def own_signer(folder: Path, entropy: Entropy = secrets.token_bytes) -> Signer:
    """Our pair, made in ``folder`` when there is none yet. ``ConfigError`` names a file that cannot be used."""
    return Signer(kept_secret(folder / OWN_FILE, entropy), entropy)


def kept_secret(path: Path, entropy: Entropy = secrets.token_bytes) -> bytes:
    """The private key in a file, made when there is none yet. ``ConfigError`` names one that cannot be used."""
    secret = key_files.kept(path, lambda: _new_secret(entropy))
    try:
        Signer(secret)
    except ValueError:
        raise ConfigError(f"is damaged: it should have {SEED_BYTES} bytes that are a key", str(path)) from None
    return secret


def _new_secret(entropy: Entropy) -> bytes:
    """Bytes that are a private key: all but one of 2^128 are."""
    while True:
        secret = entropy(SEED_BYTES)
        try:
            Signer(secret)
        except ValueError:
            continue
        return secret


def is_signature(public: str, event_id: str, signature: str) -> bool:
    """Whether the holder of that public key signed this id; all three are hexadecimal."""
    key, signed, of = (bytes.fromhex(text) for text in (public, signature, event_id))
    if (len(key), len(signed), len(of)) != (32, 64, 32):
        return False
    try:
        return PublicKeyXOnly(key).verify(signed, of)
    except ValueError:
        # Not a point of the curve.
        return False


@functools.lru_cache(maxsize=REMEMBERED)
def npub_of(public: str) -> str:
    """A public key as people show it (bech32, NIP-19)."""
    return bech32.encoded("npub", bech32.to_words(bytes.fromhex(public)))


def public_of(npub: str) -> str:
    """The public key in hexadecimal; ``ValueError`` if the text is no ``npub``."""
    if not npub.startswith("npub1"):
        raise ValueError("expected npub1…")
    try:
        return bech32.public_of(npub)
    except bech32.NotBech32:
        raise ValueError("expected npub1…") from None

"""Keys of Nostr: our own pair, signatures (BIP-340), encryption between two keys (NIP-44), and ``npub`` texts.

The one module that knows nostr-sdk's cryptography: everybody else has hexadecimal texts. Our pair is made at the first
start and stays in ``keys/`` of the home folder, because a provider is known by it.

Invariant: the private half is in that file and in a ``Signer``, whose text shows the public one only.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson

from trunkline import key_files
from trunkline.errors import ConfigError

OWN_FILE: Final = "nostr.key"
SEED_BYTES: Final = 32
# Public keys whose other spelling is remembered; a stranger who was here is often here again.
REMEMBERED: Final = 1024
# NIP-44 pads to powers of two and has 65,535 bytes at most.
MAX_SECRET_BYTES: Final = 65_535


def _sdk() -> Any:
    """nostr-sdk, from its first use on: its import takes 0.1 s, and an exchange without Nostr does not need it."""
    import nostr_sdk  # type: ignore[import-untyped]

    return nostr_sdk


class CannotDecrypt(ValueError):
    """What was encrypted is not for us, was changed, or is no NIP-44."""


class CannotEncrypt(ValueError):
    """NIP-44 does not carry nothing, nor this much."""


class Signer:
    """A pair of keys. Made from 32 secret bytes."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret.hex()
        self.public = str(self._keys.public_key().to_hex())
        self.npub = npub_of(self.public)

    @property
    def _keys(self) -> Any:
        # Made for each use, 50 µs: one that lives until the interpreter ends complains in its finalizer.
        return _sdk().Keys.parse(self._secret)

    def __repr__(self) -> str:
        return f"Signer({self.npub})"

    def sign(self, event_id: str) -> str:
        """A signature of the bytes that this id is."""
        return str(self._keys.sign_schnorr(bytes.fromhex(event_id)))

    def encrypt(self, text: str, to: str) -> str:
        """For the holder of that public key only (NIP-44, version 2)."""
        size = len(text.encode())
        if not 1 <= size <= MAX_SECRET_BYTES:
            raise CannotEncrypt(f"NIP-44 carries 1 to {MAX_SECRET_BYTES} bytes, not {size}")
        return str(self._keys.nip44_encrypt(_sdk().PublicKey.parse(to), text))

    def decrypt(self, payload: str, by: str) -> str:
        """What the holder of that public key wrote to us."""
        try:
            return str(self._keys.nip44_decrypt(_sdk().PublicKey.parse(by), payload))
        except (_sdk().NostrSdkError, ValueError, UnicodeError):
            raise CannotDecrypt("it is not NIP-44 for this key by its author") from None

    def encrypt_old(self, text: str, to: str) -> str:
        """The same in the older form (NIP-04), for wallets' clients that know no other."""
        return str(self._keys.nip04_encrypt(_sdk().PublicKey.parse(to), text))

    def decrypt_old(self, payload: str, by: str) -> str:
        """What the holder of that public key wrote to us in the older form."""
        try:
            return str(self._keys.nip04_decrypt(_sdk().PublicKey.parse(by), payload))
        except (_sdk().NostrSdkError, ValueError, UnicodeError):
            raise CannotDecrypt("it is not NIP-04 for this key by its author") from None


def own_signer(folder: Path, entropy: Callable[[int], bytes] = secrets.token_bytes) -> Signer:
    """Our pair, made in ``folder`` when there is none yet. ``ConfigError`` names a file that cannot be used."""
    return Signer(kept_secret(folder / OWN_FILE, entropy))


def kept_secret(path: Path, entropy: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    """The private key in a file, made when there is none yet. ``ConfigError`` names one that cannot be used."""
    secret = key_files.kept(path, lambda: _new_secret(entropy))
    try:
        if len(secret) != SEED_BYTES:
            raise ValueError
        Signer(secret)
    except (_sdk().NostrSdkError, ValueError):
        raise ConfigError(f"is damaged: it should have {SEED_BYTES} bytes that are a key", str(path)) from None
    return secret


def _new_secret(entropy: Callable[[int], bytes]) -> bytes:
    """Bytes that are a private key: all but one of 2^128 are."""
    while True:
        secret = entropy(SEED_BYTES)
        try:
            Signer(secret)
        except _sdk().NostrSdkError:
            continue
        return secret


def is_signature(public: str, event_id: str, signature: str) -> bool:
    """Whether the holder of that public key signed this id. About 0.2 ms, most of it the curve."""
    event = {"id": event_id, "pubkey": public, "created_at": 0, "kind": 0, "tags": [], "content": "", "sig": signature}
    try:
        return bool(_sdk().Event.from_json(orjson.dumps(event).decode()).verify_signature())
    except (_sdk().NostrSdkError, ValueError):
        return False


@functools.lru_cache(maxsize=REMEMBERED)
def npub_of(public: str) -> str:
    """A public key as people show it (bech32, NIP-19)."""
    return str(_sdk().PublicKey.parse(public).to_bech32())


def public_of(npub: str) -> str:
    """The public key in hexadecimal; ``ValueError`` if the text is no ``npub``."""
    if not npub.startswith("npub1"):
        raise ValueError("expected npub1…")
    try:
        return str(_sdk().PublicKey.parse(npub).to_hex())
    except _sdk().NostrSdkError:
        raise ValueError("expected npub1…") from None

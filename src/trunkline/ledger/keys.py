"""The ledger's one secret, ``keys/ledger.key``, and what is made of it: keys for MACs, held originals, signed heads.

It does not own what is sealed or for how long (``writer``). AES-GCM and Ed25519 come from ``cryptography``,
imported on first use because it costs 7 MB and 90 ms: the writer has it for heads, the exchange only once somebody
wants an original. HKDF is six lines of ``hmac``.

Invariant: the file is 32 random bytes, readable by its owner only, and is never made anew beside an existing ledger.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trunkline.errors import LedgerError
from trunkline.key_files import write_private

__all__ = ["FILE_NAME", "LedgerKeys", "derived"]

FILE_NAME: Final = "ledger.key"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


def derived(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose (RFC 5869 with SHA-256, no salt, one block)."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, purpose + b"\x01", "sha256")


class LedgerKeys:
    """The keys made of the secret, and what they do: MACs, sealing and opening of held originals.

    ``entropy`` gives nonces; a simulation hands in its own.
    """

    def __init__(self, secret: bytes, entropy: Callable[[int], bytes]) -> None:
        self.mac_key: Final = derived(secret, b"trunkline ledger mac 1")
        # Says whether a ledger belongs to this key, and nothing about the key.
        self.check: Final = derived(secret, b"trunkline ledger check 1")[:8]
        # Of the Ed25519 key that heads are signed with (``heads``).
        self.head_seed: Final = derived(secret, b"trunkline ledger heads 1")
        self._seal_key: Final = derived(secret, b"trunkline ledger seal 1")
        self._entropy = entropy

    @classmethod
    def load(cls, folder: Path, *, create: bool) -> LedgerKeys:
        """Read the key; with ``create`` make it if it is missing. ``LedgerError`` names what is wrong with the file."""
        path = folder / FILE_NAME
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            if not create:
                raise LedgerError(f"{path} is missing: put back the key that belongs to this ledger") from None
            return cls(_create(path), os.urandom)
        except OSError as exc:
            raise LedgerError(f"{path} cannot be read: {exc.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(_KEY_BYTES + 1)
        if mode & 0o077:
            raise LedgerError(f"{path} can be read by others: chmod 600 it")
        if len(secret) != _KEY_BYTES:
            raise LedgerError(f"{path} is damaged: it should have {_KEY_BYTES} bytes")
        return cls(secret, os.urandom)

    def mac(self, data: bytes) -> str:
        """A keyed hash: whoever has only the ledger cannot try out guesses against it."""
        return hmac.digest(self.mac_key, data, "sha256").hex()

    def seal(self, data: bytes, place: bytes, own_key: bytes) -> bytes:
        """Encrypt. ``place`` is where the result will be stored, and it opens nowhere else; nor without ``own_key``,
        which is this original's alone (``held_keys``).
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = self._entropy(_NONCE_BYTES)
        return nonce + AESGCM(self._both(own_key)).encrypt(nonce, data, place)

    def _both(self, own_key: bytes) -> bytes:
        return hmac.digest(self._seal_key, own_key, "sha256")

    def unseal(self, sealed: bytes, place: bytes, own_key: bytes) -> bytes | None:
        """Decrypt; None if it was changed, moved, or sealed with other keys."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(self._both(own_key)).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
        except (InvalidTag, ValueError):
            return None


def _create(path: Path) -> bytes:
    secret = secrets.token_bytes(_KEY_BYTES)
    write_private(path, secret)
    return secret

"""What is kept of a sign-in at a mounted server, encrypted, in ``keys/mcp-sign-ins`` of the home.

The key is derived from the home's own (``Surroundings.key``, which follows from ``ledger.key``): a copy of the file
alone, in a backup or elsewhere, opens nothing. A file belongs to one server at one address; under another name or for
another address it cannot be read, so that moving a file gives nobody's tokens to somebody else.

Invariant: a file that cannot be read is none: the person signs in again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from trunkline import key_files

FOLDER: Final = "mcp-sign-ins"
NONCE_BYTES: Final = 12
_LABEL: Final = b"trunkline sign-ins at mounted servers 1"


class Kept(Struct, frozen=True):
    """Who we are to which authorization server, and what we were given there; empty where we were given nothing."""

    issuer: str
    token_endpoint: str
    resource: str
    client_id: str
    client_secret: str = ""
    auth_method: str = "none"
    # For which address of ours a client was registered; empty for a configured one.
    redirect_uri: str = ""
    access_token: str = ""
    refresh_token: str = ""
    # By the wall clock; None: it was not said.
    expires_at: float | None = None
    scope: str = ""

    def __repr__(self) -> str:
        """Without anything secret."""
        return f"Kept(issuer={self.issuer!r})"


class SignInFile:
    """The file of one server."""

    def __init__(self, home: Path, key: bytes, name: str, url: str, entropy: Callable[[int], bytes]) -> None:
        self._path = home / "keys" / FOLDER / name
        self._key = hmac.new(key, _LABEL, hashlib.sha256).digest()
        self._bound_to = f"{name}\0{url}".encode()
        self._entropy = entropy

    def read(self) -> Kept | None:
        """What is kept; ``ConfigError`` if others can read the file."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        try:
            data = key_files.read_private(self._path)
            opened = ChaCha20Poly1305(self._key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], self._bound_to)
            return msgspec.json.decode(opened, type=Kept)
        except (FileNotFoundError, InvalidTag, ValueError):
            return None

    def write(self, kept: Kept) -> None:
        """Keep this instead."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        nonce = self._entropy(NONCE_BYTES)
        sealed = ChaCha20Poly1305(self._key).encrypt(nonce, msgspec.json.encode(kept), self._bound_to)
        key_files.write_private(self._path, nonce + sealed)

    def remove(self) -> None:
        """Keep nothing."""
        self._path.unlink(missing_ok=True)

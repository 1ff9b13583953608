"""Where ecash of ours is kept: one encrypted file for each mint, in ``keys/ecash`` of the home.

The key is derived from the home's own (``Surroundings.key``, which follows from ``ledger.key``), and the file is bound
to the mint's address: a copy of the file alone opens nothing, and moved under another name it is not read. Does not own
what is in a purse (``money.cashu.purse``).

Invariant: what ``write`` was given is on the disk when it returns. A file that cannot be read is money that somebody
may still save: it is never written over, and the exchange says so instead of beginning anew.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trunkline import key_files
from trunkline.errors import ConfigError
from trunkline.money.cashu.purse import MAX_PURSE_BYTES, Purse, read_purse, write_purse

FOLDER: Final = "ecash"
NONCE_BYTES: Final = 12
# Of the SHA-256 of the mint's address, in hexadecimal digits.
NAME_CHARS: Final = 32
_LABEL: Final = b"trunkline ecash 1"


class PurseFile:
    """The file of one mint."""

    def __init__(self, home: Path, key: bytes, mint: str, entropy: Callable[[int], bytes]) -> None:
        self.path = home / "keys" / FOLDER / hashlib.sha256(mint.encode()).hexdigest()[:NAME_CHARS]
        self._key = hmac.new(key, _LABEL, hashlib.sha256).digest()
        self._bound_to = mint.encode()
        self._entropy = entropy

    def read(self) -> Purse:
        """What is kept, nothing if there is no file yet. ``ConfigError`` names a file that cannot be read."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        try:
            data = key_files.read_private(self.path, MAX_PURSE_BYTES)
            opened = ChaCha20Poly1305(self._key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], self._bound_to)
        except FileNotFoundError:
            return Purse()
        except (InvalidTag, ValueError):
            raise ConfigError(
                "holds ecash and cannot be opened: it was damaged, or is of another home's ledger.key; "
                "restore both from one backup, or move it away to begin anew",
                str(self.path),
            ) from None
        return read_purse(opened)

    def write(self, purse: Purse) -> None:
        """Keep this instead. ``ConfigError`` if it is more than can be kept."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        nonce = self._entropy(NONCE_BYTES)
        sealed = nonce + ChaCha20Poly1305(self._key).encrypt(nonce, write_purse(purse), self._bound_to)
        if len(sealed) > MAX_PURSE_BYTES:
            raise ConfigError(f"would be larger than {MAX_PURSE_BYTES} bytes", str(self.path))
        key_files.write_private(self.path, sealed)

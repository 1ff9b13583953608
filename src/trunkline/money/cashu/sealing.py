"""A token of ecash on its way between the command line and the exchange of one home: sealed, so that no record has it.

What a call is given and gives is on record, and whoever reads a token has the money. Both sides have the home's folder,
so both know the wallet's key (``keys/wallet.key``), and what is on record is of use to nobody without it. Owns the
sealed form. Does not own the token's own (``tokens``) or the key.

Invariant: what ``unsealed`` gives was sealed with the same key and not changed since; else it is a ``ValueError``.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final

# In ``keys/`` of the home.
WALLET_FILE: Final = "wallet.key"
NONCE_BYTES: Final = 12
# A token has 262,144 characters at most, and base64 makes a third more of them.
MAX_SEALED_CHARS: Final = 524_288
_LABEL: Final = b"trunkline token on its way 1"


def sealed(wallet_key: bytes, text: str, nonce: bytes) -> str:
    """The text, for who has the wallet's key. A nonce is drawn for each."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    box = ChaCha20Poly1305(_key(wallet_key)).encrypt(nonce, text.encode(), _LABEL)
    return base64.urlsafe_b64encode(nonce + box).decode()


def unsealed(wallet_key: bytes, box: str) -> str:
    """What was sealed; ``ValueError`` if it was not, or with another key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    if len(box) > MAX_SEALED_CHARS:
        raise ValueError("too long")
    data = base64.b64decode(box.encode(), altchars=b"-_", validate=True)
    if len(data) < NONCE_BYTES:
        raise ValueError("too short")
    try:
        text = ChaCha20Poly1305(_key(wallet_key)).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _LABEL)
    except InvalidTag:
        raise ValueError("sealed with another key, or damaged") from None
    return text.decode()


def _key(wallet_key: bytes) -> bytes:
    return hmac.digest(wallet_key, _LABEL, "sha256")

"""What one key of Nostr writes to another: NIP-44 (version 2), and the older NIP-04 for wallets' clients.

Owns the two forms. Curve, cipher and MAC are OpenSSL's (``cryptography``), which multiplies by a secret in constant
time; nothing here branches on what was decrypted before its MAC was compared. Does not own keys (``keys``), nor what
may be told to whom.

Invariant: what is decrypted by NIP-44 was written by a holder of one of the two keys and not changed since; everything
else is a ``ValueError``, whatever the text is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.algorithms import AES256, ChaCha20

VERSION: Final = b"\x02"
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
# Its length stands in two bytes.
MAX_TEXT_BYTES: Final = 65_535
# A version, a nonce, the least and the most that a text is padded to, a MAC; and as base64.
MIN_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES = 99, 65_603
MIN_PAYLOAD_CHARS, MAX_PAYLOAD_CHARS = 132, 87_472
# An older message has no bound of its own: no event that we read is larger.
MAX_OLD_CHARS: Final = 2_097_152
AES_BLOCK_BYTES: Final = 16


def shared_point(secret: bytes, public: str) -> bytes:
    """What only the holders of these two keys can compute: the first coordinate of the point between them."""
    theirs = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), b"\x02" + bytes.fromhex(public))
    return ec.derive_private_key(int.from_bytes(secret), ec.SECP256K1()).exchange(ec.ECDH(), theirs)


# --- NIP-44 -----------------------------------------------------------------------------------------------------------


def encrypt(shared: bytes, text: str, nonce: bytes) -> str:
    """The text, for the holders of two keys. ``nonce`` was drawn for it, and is used for no other."""
    data = text.encode()
    cipher_key, cipher_nonce, mac_key = _message_keys(shared, nonce)
    padded = len(data).to_bytes(2) + data + bytes(padded_size(len(data)) - len(data))
    sealed = nonce + _chacha20(cipher_key, cipher_nonce, padded)
    return base64.b64encode(VERSION + sealed + _mac(mac_key, sealed)).decode()


def decrypt(shared: bytes, payload: str) -> str:
    """The text; ``ValueError`` if it is not one by the holders of these two keys."""
    if not MIN_PAYLOAD_CHARS <= len(payload) <= MAX_PAYLOAD_CHARS:
        raise ValueError("too short or too long")
    data = base64.b64decode(payload, validate=True)
    if not MIN_PAYLOAD_BYTES <= len(data) <= MAX_PAYLOAD_BYTES or data[:1] != VERSION:
        raise ValueError("another version")
    sealed, mac = data[1:-MAC_BYTES], data[-MAC_BYTES:]
    cipher_key, cipher_nonce, mac_key = _message_keys(shared, sealed[:NONCE_BYTES])
    if not hmac.compare_digest(_mac(mac_key, sealed), mac):
        raise ValueError("changed, or for somebody else")
    padded = _chacha20(cipher_key, cipher_nonce, sealed[NONCE_BYTES:])
    size = int.from_bytes(padded[:2])
    if size == 0 or len(padded) != 2 + padded_size(size):
        raise ValueError("padded in another way")
    return padded[2 : 2 + size].decode()


def padded_size(size: int) -> int:
    """To how many bytes so many are filled up: powers of two and eighths of them, so that little is told."""
    if size <= 32:
        return 32
    power = 1 << (size - 1).bit_length()
    piece = 32 if power <= 256 else power // 8
    return piece * ((size - 1) // piece + 1)


def _message_keys(shared: bytes, nonce: bytes) -> tuple[bytes, bytes, bytes]:
    """Keys for one message (HKDF with SHA-256): of the cipher, its nonce, and of the MAC."""
    conversation = hmac.digest(b"nip44-v2", shared, "sha256")
    keys, block = b"", b""
    for count in (1, 2, 3):
        block = hmac.digest(conversation, block + nonce + bytes([count]), "sha256")
        keys += block
    return keys[:32], keys[32:44], keys[44:76]


def _chacha20(key: bytes, nonce: bytes, data: bytes) -> bytes:
    # RFC 8439's nonce of 12 bytes behind a counter that begins with 0.
    return Cipher(ChaCha20(key, bytes(4) + nonce), None).encryptor().update(data)


def _mac(key: bytes, sealed: bytes) -> bytes:
    return hmac.digest(key, sealed, hashlib.sha256)


# --- NIP-04 -----------------------------------------------------------------------------------------------------------


def encrypt_old(shared: bytes, text: str, start: bytes) -> str:
    """The text in the older form, which tells nobody whether it was changed. ``start`` was drawn for it."""
    padder = padding.PKCS7(AES_BLOCK_BYTES * 8).padder()
    encryptor = Cipher(AES256(shared), modes.CBC(start)).encryptor()
    sealed = encryptor.update(padder.update(text.encode()) + padder.finalize()) + encryptor.finalize()
    return f"{base64.b64encode(sealed).decode()}?iv={base64.b64encode(start).decode()}"


def decrypt_old(shared: bytes, payload: str) -> str:
    """The text of the older form; ``ValueError`` if it cannot be one."""
    if len(payload) > MAX_OLD_CHARS:
        raise ValueError("too long")
    sealed, _, start = payload.partition("?iv=")
    decryptor = Cipher(AES256(shared), modes.CBC(base64.b64decode(start, validate=True))).decryptor()
    padded = decryptor.update(base64.b64decode(sealed, validate=True)) + decryptor.finalize()
    unpadder = padding.PKCS7(AES_BLOCK_BYTES * 8).unpadder()
    return (unpadder.update(padded) + unpadder.finalize()).decode()

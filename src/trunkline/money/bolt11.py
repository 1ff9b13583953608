"""Invoices of Lightning (BOLT 11): written and signed, read and checked.

Owns the form of an invoice: amount, moment, tagged fields, and the signature from which its author's key follows. Does
not own who may issue one, nor whether it was paid (``lightning``). Written here because the package for it does not
install on all versions of Python that we run on; the signature itself is libsecp256k1's.

Invariant: an ``Invoice`` that ``read`` gave was signed by its ``node``, over every sign of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from trunkline.money import bech32
from trunkline.money.bech32 import CHARSET, NotBech32
from trunkline.money.rail import MAX_MSATS

# Money of a test network that everybody makes for himself.
REGTEST: Final = "bcrt"
CURRENCIES: Final = ("bcrt", "bc", "tbs", "tb")
# A field's length is a number of two words, so no field is longer than this; and bytes that fit into it.
MAX_FIELD_WORDS: Final = 32 * 32 - 1
MAX_DESCRIPTION_BYTES: Final = MAX_FIELD_WORDS * 5 // 8
SIGNATURE_BYTES: Final = 65
SIGNATURE_WORDS: Final = 104
TIMESTAMP_WORDS: Final = 7
DEFAULT_EXPIRY_S: Final = 3600
# Blocks that the last node has to settle in: what BOLT 11 takes where nothing is said.
FINAL_CLTV: Final = 18
# Thousandths of a satoshi in one unit of the amount, times ten: a `p` is a tenth of one.
_MULTIPLIERS: Final = {"m": 1_000_000_000, "u": 1_000_000, "n": 1000, "p": 1}
_BITCOIN_TENTHS: Final = 1_000_000_000_000
# var_onion_optin and payment_secret, both compulsory (BOLT 9): bits 8 and 14.
_FEATURES: Final = (16, 8, 0)


class NotAnInvoice(ValueError):
    """A text that is no invoice, or one that nobody signed; the message says why without quoting it."""


class Invoice(Struct, frozen=True):
    """One invoice, as it was read."""

    currency: str
    # None: any amount.
    amount_msats: int | None
    created_s: int
    expiry_s: int
    payment_hash: str
    description: str
    description_hash: str
    # The public key of who signed it, in hexadecimal.
    node: str

    @property
    def expires_s(self) -> int:
        """When it is worth nothing any more."""
        return self.created_s + self.expiry_s


def written(
    secret: bytes, amount_msats: int, payment_hash: str, description: str, created_s: int, expiry_s: int
) -> str:
    """A signed invoice on the test network. The same values give the same text. ``NotAnInvoice``: it would be none,
    since the description has more than ``MAX_DESCRIPTION_BYTES``.
    """
    from coincurve import PrivateKey

    name = f"ln{REGTEST}{_amount_text(amount_msats)}"
    # What the payer shows the last node, so that nobody on the way can try the payment; it follows from the hash.
    payment_secret = hashlib.sha256(b"payment secret" + secret + bytes.fromhex(payment_hash)).digest()
    words = [
        *_number(created_s, TIMESTAMP_WORDS),
        *_tagged("p", bech32.to_words(bytes.fromhex(payment_hash))),
        *_tagged("s", bech32.to_words(payment_secret)),
        *_tagged("d", bech32.to_words(description.encode())),
        *_tagged("x", _number(expiry_s)),
        *_tagged("c", _number(FINAL_CLTV)),
        *_tagged("9", _FEATURES),
    ]
    signature = PrivateKey(secret).sign_recoverable(_signed_bytes(name, words))
    return bech32.encoded(name, [*words, *bech32.to_words(signature)])


def read(text: str) -> Invoice:
    """The invoice in this text; ``NotAnInvoice`` says why it is none."""
    try:
        name, words = bech32.decoded(text)
    except NotBech32 as error:
        raise NotAnInvoice(str(error)) from None
    currency, amount_msats = _read_name(name)
    if len(words) < TIMESTAMP_WORDS + SIGNATURE_WORDS:
        raise NotAnInvoice("it is too short to be signed")
    data, signature = words[:-SIGNATURE_WORDS], bech32.to_bytes(words[-SIGNATURE_WORDS:])
    fields = _fields(data[TIMESTAMP_WORDS:])
    if "p" not in fields:
        raise NotAnInvoice("it has no payment hash")
    node = _signer_of(signature, _signed_bytes(name, data))
    if "n" in fields and bech32.to_bytes(fields["n"])[:33].hex() != node:
        raise NotAnInvoice("it was not signed by the node that it names")
    try:
        description = bech32.to_bytes(fields.get("d", [])).decode()
    except UnicodeDecodeError:
        raise NotAnInvoice("its description is not text") from None
    return Invoice(
        currency=currency,
        amount_msats=amount_msats,
        created_s=_value(data[:TIMESTAMP_WORDS]),
        expiry_s=_value(fields["x"]) if "x" in fields else DEFAULT_EXPIRY_S,
        payment_hash=bech32.to_bytes(fields["p"]).hex(),
        description=description,
        description_hash=bech32.to_bytes(fields.get("h", [])).hex(),
        node=node,
    )


def node_of(secret: bytes) -> str:
    """The public key that invoices of this secret are signed by."""
    from coincurve import PrivateKey

    return PrivateKey(secret).public_key.format().hex()


def _signer_of(signature: bytes, message: bytes) -> str:
    from coincurve import PublicKey

    try:
        return PublicKey.from_signature_and_message(signature, message).format().hex()
    except (ValueError, Exception) as error:
        # coincurve raises a plain Exception where no key fits.
        if type(error) not in {ValueError, Exception}:
            raise
        raise NotAnInvoice("its signature is nobody's") from None


def _signed_bytes(name: str, words: Sequence[int]) -> bytes:
    """What is signed: the name as text, and the words filled up to whole bytes."""
    count = -(-len(words) * 5 // 8)
    return name.encode() + bech32.to_bytes([*words, 0, 0])[:count]


# --- the parts --------------------------------------------------------------------------------------------------------


def _amount_text(msats: int) -> str:
    """An amount in the largest unit that has it whole."""
    tenths = msats * 10
    for letter in "mun":
        if tenths % _MULTIPLIERS[letter] == 0:
            return f"{tenths // _MULTIPLIERS[letter]}{letter}"
    return f"{tenths}p"


def _read_name(name: str) -> tuple[str, int | None]:
    currency = next((one for one in CURRENCIES if name.startswith(f"ln{one}")), "")
    if not currency:
        raise NotAnInvoice("it is no invoice of a network that is known here")
    text = name.removeprefix(f"ln{currency}")
    if not text:
        return currency, None
    digits, unit = (text[:-1], _MULTIPLIERS.get(text[-1], 0)) if not text[-1].isdigit() else (text, _BITCOIN_TENTHS)
    if not unit or not digits.isdecimal() or digits.startswith("0") or len(digits) > 20:
        raise NotAnInvoice("its amount is no number")
    tenths = int(digits) * unit
    if tenths % 10 or not 0 < tenths // 10 <= MAX_MSATS:
        raise NotAnInvoice("its amount is no whole number of millisatoshis that there can be")
    return currency, tenths // 10


def _fields(words: list[int]) -> dict[str, list[int]]:
    """The tagged fields by their letters; the first of each counts, and one of another length than its own is none."""
    found: dict[str, list[int]] = {}
    lengths = {"p": 52, "h": 52, "s": 52, "n": 53}
    at = 0
    while at < len(words):
        if len(words) < at + 3:
            raise NotAnInvoice("a field is cut")
        letter, length = CHARSET[words[at]], words[at + 1] * 32 + words[at + 2]
        value, at = words[at + 3 : at + 3 + length], at + 3 + length
        if len(value) != length:
            raise NotAnInvoice("a field is cut")
        if lengths.get(letter, length) == length and letter not in found:
            found[letter] = value
    return found


def _tagged(letter: str, words: Sequence[int]) -> list[int]:
    if len(words) > MAX_FIELD_WORDS:
        raise NotAnInvoice(f"a field of it is longer than {MAX_FIELD_WORDS} words")
    return [CHARSET.index(letter), *divmod(len(words), 32), *words]


def _number(value: int, length: int = 0) -> list[int]:
    words: list[int] = []
    while value or not words:
        value, word = divmod(value, 32)
        words.append(word)
    return [0] * (length - len(words)) + words[::-1]


def _value(words: Sequence[int]) -> int:
    value = 0
    for word in words:
        value = value * 32 + word
    return value

"""A payment request (NUT-18): what a payee wants to be paid, as the text that he gives to a payer.

Owns the text ``creqA…``, read and written. Does not own how the token is sent back: that is said beside it, so the
request names no transport.

Invariant: as for tokens; whatever the text is, ``read_request`` gives a request or raises ``ProofRefused``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

from msgspec import Struct

from trunkline.money import cbor
from trunkline.money.cashu.locks import CONDITIONS, JOB_TAG, PAYMENT_TAG
from trunkline.money.cashu.tokens import MAX_AMOUNT, base64_bytes, field, mint_url
from trunkline.money.refusals import ProofRefused, malformed

MAX_REQUEST_CHARS: Final = 8192
MAX_MINTS: Final = 16
MAX_TAGS: Final = 16
_PREFIX: Final = "creqA"
_KEY: Final = re.compile(r"0[23][0-9a-f]{64}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


Tags = tuple[tuple[str, ...], ...]


class PaymentRequest(Struct, frozen=True):
    """So much, in this unit, of one of these mints, locked to this key (33 bytes in hexadecimal digits)."""

    amount: int
    unit: str
    mints: tuple[str, ...]
    key: str
    # SHA-256 that the token has to be locked to as well; empty if to the key alone.
    hash: str = ""
    payment_id: str = ""
    # What has to stand in each secret besides: the job (``job_hash``), and the payment (``payment_id``).
    tags: Tags = ()

    @property
    def job_hash(self) -> str:
        """The job that is asked to be paid for; empty if none is named."""
        return self._named(JOB_TAG)

    @property
    def secret_payment_id(self) -> str:
        """The payment that each secret has to name; empty if none has to."""
        return self._named(PAYMENT_TAG)

    def _named(self, name: str) -> str:
        return next((tag[1] for tag in self.tags if tag[0] == name and len(tag) == 2), "")


def write_request(request: PaymentRequest) -> str:
    """The text of a request. It is used once."""
    value: dict[str, cbor.Value] = {}
    if request.payment_id:
        value["i"] = request.payment_id
    tags: list[cbor.Value] = [list(tag) for tag in request.tags]
    lock: dict[str, cbor.Value] = {"k": "P2PK", "d": request.key}
    if request.hash:
        lock, tags = {"k": "HTLC", "d": request.hash}, [["pubkeys", request.key], *tags]
    if tags:
        lock["t"] = tags
    value |= {"a": request.amount, "u": request.unit, "s": True, "m": list(request.mints), "nut10": lock}
    return _PREFIX + base64.urlsafe_b64encode(cbor.encode(value)).decode().rstrip("=")


def read_request(text: str) -> PaymentRequest:
    """The request that this text is; refused if it wants nothing in particular, or a lock that we do not make."""
    if len(text) > MAX_REQUEST_CHARS:
        raise ProofRefused("too_large")
    if not text.startswith(_PREFIX):
        raise malformed("a payment request begins with creqA")
    value = field(cbor.decode(base64_bytes(text[len(_PREFIX) :])), dict, "the request")
    amount = field(value.get("a"), int, "a")
    mints = tuple(mint_url(field(mint, str, "m")) for mint in field(value.get("m"), list, "m"))
    if not 0 < amount <= MAX_AMOUNT or not 0 < len(mints) <= MAX_MINTS:
        raise malformed("a payment request has an amount and a mint")
    key, lock_hash, tags = _lock(field(value.get("nut10"), dict, "nut10"))
    payment_id = value.get("i")
    return PaymentRequest(
        amount,
        field(value.get("u"), str, "u"),
        mints,
        key,
        lock_hash,
        "" if payment_id is None else field(payment_id, str, "i"),
        tags,
    )


def payment_hash_of(text: str) -> str:
    """By what a payment in ecash is known: its payee and the id that stands in each secret, however the request is
    written besides; the text itself if it wants no such id.
    """
    request = read_request(text)
    named = f"{request.key} {request.secret_payment_id}" if request.secret_payment_id else text
    return hashlib.sha256(named.encode()).hexdigest()


def _lock(value: dict[str, cbor.Value]) -> tuple[str, str, Tags]:
    """Key, hash and the tags that the payee wants besides."""
    kind, data = field(value.get("k"), str, "nut10.k"), field(value.get("d"), str, "nut10.d")
    tags = _tags(value.get("t"))
    key, lock_hash = data, ""
    if kind == "HTLC" and tags and len(tags[0]) == 2 and tags[0][0] == "pubkeys":
        key, lock_hash, tags = tags[0][1], data, tags[1:]
    if kind not in {"P2PK", "HTLC"} or not _KEY.fullmatch(key) or (kind == "HTLC") != bool(_HASH.fullmatch(lock_hash)):
        raise malformed("a lock that is not made here")
    if any(tag[0] in CONDITIONS for tag in tags):
        raise malformed("a lock that others than the payee could open")
    return key, lock_hash, tags


def _tags(value: cbor.Value) -> Tags:
    if value is None:
        return ()
    found = [
        tuple(field(part, str, "nut10.t") for part in field(tag, list, "nut10.t")) for tag in field(value, list, "t")
    ]
    if len(found) > MAX_TAGS or any(not tag or not all(tag) for tag in found):
        raise malformed("tags that no lock has")
    return tuple(found)

"""Receipts: the twelve fields that tie a payment to a job, its trajectory and the rules it was done under.

Owns the form of a receipt and its hash. Does not own following its links (``proving``), nor the record that holds it.

Invariant: a ``Receipt`` that ``read`` gave has all twelve fields in their form, and a proof of its own rail. What
stands beside them in somebody's file is kept and hashed with them.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline import strictjson
from trunkline.canonical import openagents_hash
from trunkline.money.bech32 import NotBech32, public_of
from trunkline.money.rail import PROOF_OF_RAIL, Msats, PaymentProof, RailName

# The process on record that receipts are steps of, all under one subject: they are listed in their order.
PROCESS: Final = "money.receipt"
SUBJECT: Final = "receipts"
ISSUED: Final = "issued"
MAX_RECEIPT_BYTES: Final = 65_536
Sha256 = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
_STAMP: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})")


class NotAReceipt(ValueError):
    """A text that is no receipt; the message begins with the field."""


class Receipt(Struct, frozen=True, kw_only=True):
    """OA-064 to OA-076, in the order of the specification. Every field is always there; one may be null."""

    receipt_id: Text
    session_id: Text
    trajectory_hash: Sha256
    policy_bundle_id: Text
    job_hash: Sha256
    payment_proof: PaymentProof
    rail: RailName
    # An open set: `BTC_LN`, `BTC_CASHU(<mint>)`, `USD_CASHU(<mint>)` and whatever comes.
    asset_id: Text
    amount_msats: Msats
    provider_id: str
    approval_rule_id: str | None
    timestamp: str


FIELDS: Final = Receipt.__struct_fields__
_decode: Final = msgspec.json.Decoder(Receipt).decode


def read(data: bytes | Raw) -> Receipt:
    """The receipt in these bytes; ``NotAReceipt`` names the field that is missing or wrong."""
    data = bytes(data)
    if len(data) > MAX_RECEIPT_BYTES:
        raise NotAReceipt(f"a receipt has {MAX_RECEIPT_BYTES} bytes at most")
    try:
        strictjson.check(data, want_object=True)
        found = _decode(data)
    except strictjson.NotStrictJson as error:
        raise NotAReceipt(f"not strict JSON: {error}") from None
    except msgspec.DecodeError as error:
        raise NotAReceipt(_plain(str(error))) from None
    if found.payment_proof.type != PROOF_OF_RAIL[found.rail]:
        raise NotAReceipt(f"payment_proof.type: {found.payment_proof.type} is no proof of the rail {found.rail}")
    try:
        public_of(found.provider_id)
    except NotBech32 as error:
        raise NotAReceipt(f"provider_id: {error}") from None
    _need_stamp(found.timestamp)
    return found


def _need_stamp(text: str) -> None:
    try:
        if not _STAMP.fullmatch(text):
            raise ValueError
        dt.datetime.fromisoformat(text)
    except ValueError:
        raise NotAReceipt("timestamp: expected ISO 8601 with a time zone") from None


def receipt_hash(data: bytes | Raw) -> str:
    """The hash of a receipt, whatever else stands in it (silent point 13 of OpenAgents). It is no field of it."""
    return openagents_hash(bytes(data))


def receipt_id_of(payment_hash: str, job_hash: str) -> str:
    """The name of a receipt: one payment for one job has one, however often it is written."""
    return f"rcpt_{hashlib.sha256(f'{payment_hash} {job_hash}'.encode()).hexdigest()[:32]}"


class Issued(Struct, frozen=True, omit_defaults=True):
    """What stands on record with a receipt: its hash, and what its payment is judged by."""

    # The values in the order of ``FIELDS``, without their names: the record masks what is called a session's id.
    values: list[Any]
    receipt_hash: str
    # The signed invoice, and the signed event of the payee that names it.
    request: str
    evidence: Raw
    # It was paid before the job was done, by a rail that cannot hold; the receipt says so.
    prepaid: bool = False
    # The call that was paid for. Its part of the session is what the receipt is about; receipts of earlier versions do
    # not name it, and are about all of the session that was before them.
    call_id: str = ""

    @property
    def receipt(self) -> Raw:
        """The receipt as it is shown and hashed."""
        written = dict(zip(FIELDS, self.values, strict=False))
        if self.prepaid:
            written["prepaid"] = True
        return Raw(msgspec.json.encode(written))


def issued_of(data: bytes | Raw) -> Issued:
    """What a step on record says; ``NotAReceipt`` if it was changed into something else."""
    try:
        return msgspec.json.decode(bytes(data), type=Issued)
    except msgspec.DecodeError as error:
        raise NotAReceipt(_plain(str(error))) from None


def issued(receipt: Receipt, request: str, evidence: Raw, *, prepaid: bool = False, call_id: str = "") -> Issued:
    """A receipt as it goes on record."""
    fields: dict[str, Any] = msgspec.to_builtins(receipt)
    made = Issued([fields[name] for name in FIELDS], "", request, evidence, prepaid, call_id)
    read(made.receipt)
    return msgspec.structs.replace(made, receipt_hash=receipt_hash(made.receipt))


def _plain(error: str) -> str:
    """What the reader of a type says, with the field first."""
    fault, _, place = error.partition(" - at `$.")
    missing = re.search(r"required field `(\w+)`", fault)
    if missing is not None:
        place = f"{place.rstrip('`')}.{missing[1]}" if place else missing[1]
        return f"{place}: is missing"
    fault = fault[:1].lower() + fault[1:]
    return f"{place.rstrip('`')}: {fault}" if place else fault

"""Whether a Lightning payment was made: a preimage that hashes to the payment hash of a signed invoice.

Pure arithmetic. Owns the proof ``lightning_preimage``: the preimage, the amount of the invoice, and that the payee
asked to be paid by it, which his signed event says (``Due.evidence``). Does not own making invoices (``bolt11``) or
moving money.

Invariant: ``verify`` takes a proof only if every part that could be exchanged for another was compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Final

from msgspec import Raw

from trunkline.money import bolt11, signed_events
from trunkline.money.bech32 import NotBech32, public_of
from trunkline.money.job_names import names_of, salt_of
from trunkline.money.rail import Due, NotPaid, PaymentProof, Proven

ASSET: Final = "BTC_LN"
TYPE: Final = "lightning_preimage"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_JOB: Final = re.compile(r"\b[0-9a-f]{64}\b")


def payment_hash_of(preimage: str) -> str:
    """The hash that an invoice with this preimage names."""
    return hashlib.sha256(bytes.fromhex(preimage)).hexdigest()


def names_job(description: str, job_hash: str) -> bool | None:
    """Whether an invoice with this description is for this job; None if it says nothing of any: what others write there
    is theirs. Ours name the job.
    """
    return is_named(description, {job_hash})


def is_named(description: str, names: Collection[str]) -> bool | None:
    """The same, of a job with several names."""
    found = set(_JOB.findall(description))
    return found in [{name.removeprefix("sha256:")} for name in names] if found else None


def proven(preimage: str, asked: Raw) -> Proven:
    """A payment with this preimage, as a receipt has it; ``asked`` is the payee's event that names the invoice."""
    return Proven("lightning", ASSET, PaymentProof(TYPE, preimage), asked)


def verify(proof: PaymentProof, due: Due) -> None:
    """``NotPaid`` unless the preimage is that of the invoice, the invoice is over this amount and for no other job, and
    the payee's own event asks to be paid by it.
    """
    if proof.type != TYPE:
        raise NotPaid(f"payment_proof.type: {proof.type} is no proof of a Lightning payment")
    if due.asset_id != ASSET:
        raise NotPaid(f"asset_id: what is paid over Lightning is {ASSET}")
    if not _HEX.fullmatch(proof.value):
        raise NotPaid("payment_proof.value: a preimage has 64 hexadecimal digits")
    try:
        invoice = bolt11.read(due.request)
    except bolt11.NotAnInvoice as error:
        raise NotPaid(f"invoice: {error}") from None
    if payment_hash_of(proof.value) != invoice.payment_hash:
        raise NotPaid("payment_proof.value: the preimage does not hash to the payment hash of the invoice")
    if invoice.amount_msats != due.amount_msats:
        raise NotPaid(f"amount_msats: the invoice is over {invoice.amount_msats}, and {due.amount_msats} are claimed")
    if is_named(invoice.description, names_of(due.job_hash, salt_of(due.evidence.encode()))) is False:
        raise NotPaid("job_hash: the invoice is for another job")
    _asked_by_payee(due)


def _asked_by_payee(due: Due) -> None:
    try:
        event = signed_events.read(due.evidence.encode())
    except signed_events.NotSigned as error:
        raise NotPaid(f"invoice: the event of the payee that names it: {error}") from None
    try:
        payee = public_of(due.payee)
    except NotBech32 as error:
        raise NotPaid(f"provider_id: {error}") from None
    if event.pubkey != payee:
        raise NotPaid("provider_id: the event that names the invoice was signed by somebody else")
    if ("amount", str(due.amount_msats), due.request) not in event.tags:
        raise NotPaid("invoice: the payee's event asks for another amount, or by another invoice")

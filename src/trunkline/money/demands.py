"""What a payee asks to be paid by, of whichever rail: a Lightning invoice, or a payment request for ecash.

Pure. Owns telling the two apart, the few facts about one that whoever pays it needs, and whether a way to pay fits it.
Does not own reading either (``bolt11``, ``cashu.requests``), nor whether it is paid.

Invariant: the same payment has the same ``payment_hash``, and no other has it: what was paid once is known by it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from trunkline.money import bolt11, lightning
from trunkline.money.cashu import proof
from trunkline.money.cashu.requests import payment_hash_of, read_request
from trunkline.money.job_names import names_of
from trunkline.money.rail import RailName, Way
from trunkline.money.refusals import ProofRefused

# What a payment request for ecash begins with (NUT-18).
REQUEST_PREFIX: Final = "creqA"


class NotADemand(ValueError):
    """Nothing that can be paid; the text says why."""


class Demand(Struct, frozen=True):
    """What is asked for."""

    rail: RailName
    # None: an invoice that leaves it open.
    amount_msats: int | None
    payment_hash: str
    # Whether it says itself that it is for this job; None if it names none.
    names_job: bool | None
    # Of a Lightning invoice: who signed it, and until which second since 1970 it can be paid.
    node: str = ""
    expires_s: int = 0
    # Of ecash: the mints whose ecash is taken.
    mints: tuple[str, ...] = ()


def is_ecash(text: str) -> bool:
    """Whether this is, or wants to be, a payment request for ecash."""
    return text.startswith(REQUEST_PREFIX)


def read(text: str, job_hash: str, salt: str = "") -> Demand:
    """What this text asks for, about a job, private if there is a salt; ``NotADemand`` if it is nothing of both."""
    names = names_of(job_hash, salt)
    return _ecash(text, names) if is_ecash(text) else _lightning(text, names)


def problem(demand: Demand, way: Way) -> tuple[str, str] | None:
    """Which part of a payment in this way does not fit what is asked for, and why; None if all of it does. That an
    invoice names no job is no problem here: somebody may be asked about it.
    """
    if demand.names_job is False:
        return "invoice", "is for another job"
    if (way.mint not in demand.mints) if demand.rail == "cashu" else bool(way.mint):
        return "mint", "is none whose ecash the invoice asks for"
    if demand.rail != "cashu" and way.fee_msats:
        return "fee_msats", "is what a mint takes, and there is none"
    if demand.rail == "cashu" and demand.names_job is None:
        return "invoice", "names no job, so no receipt of it would hold"
    return None


def _lightning(text: str, names: Collection[str]) -> Demand:
    try:
        invoice = bolt11.read(text)
    except bolt11.NotAnInvoice as error:
        raise NotADemand(str(error)) from None
    names_job = lightning.is_named(invoice.description, names)
    return Demand("lightning", invoice.amount_msats, invoice.payment_hash, names_job, invoice.node, invoice.expires_s)


def _ecash(text: str, names: Collection[str]) -> Demand:
    try:
        request = read_request(text)
    except ProofRefused as refused:
        raise NotADemand(str(refused)) from None
    if request.unit not in proof.MSATS:
        raise NotADemand("ecash in a unit that is not bitcoin")
    if request.hash:
        # Nobody who pays at once has what such a lock wants to be shown.
        raise NotADemand("ecash that is locked to a hash as well")
    named = request.job_hash
    return Demand(
        "cashu",
        request.amount * proof.MSATS[request.unit],
        payment_hash_of(text),
        named in names if named else None,
        mints=request.mints,
    )

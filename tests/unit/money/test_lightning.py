"""Proofs of Lightning payments: forged preimages, other amounts, other payees, other invoices."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from msgspec import structs

from trunkline.edges.nostr import events
from trunkline.edges.nostr.events import Draft
from trunkline.edges.nostr.keys import Signer
from trunkline.money import bolt11, lightning, signed_events
from trunkline.money.rail import Due, NotPaid, PaymentProof

WALLET = hashlib.sha256(b"a wallet").digest()
PAYEE, OTHER = Signer(bytes(31) + b"\x05"), Signer(bytes(31) + b"\x06")
PREIMAGE = hashlib.sha256(b"secret").hexdigest()
INVOICE = bolt11.written(WALLET, 5000, lightning.payment_hash_of(PREIMAGE), "job", 1_700_000_000, 600)
ANOTHER = bolt11.written(WALLET, 5000, lightning.payment_hash_of("11" * 32), "job", 1_700_000_000, 600)


def asked(signer: Signer = PAYEE, msats: str = "5000", invoice: str = INVOICE) -> str:
    draft = Draft(7000, "", (("status", "payment-required"), ("amount", msats, invoice)), 1_700_000_000)
    return events.encoded(events.signed(draft, signer)).decode()


DUE = Due(5000, PAYEE.npub, "BTC_LN", INVOICE, "", asked())


def verify(preimage: str = PREIMAGE, **changes: Any) -> None:
    lightning.verify(PaymentProof("lightning_preimage", preimage), structs.replace(DUE, **changes))


def test_a_payment_that_was_made_verifies() -> None:
    verify()


@pytest.mark.parametrize(
    ("preimage", "changes", "part"),
    [
        ("00" * 32, {}, "payment_proof.value"),
        (PREIMAGE[:-1] + ("0" if PREIMAGE[-1] != "0" else "1"), {}, "payment_proof.value"),
        (PREIMAGE.upper(), {}, "payment_proof.value"),
        ("", {}, "payment_proof.value"),
        (PREIMAGE, {"amount_msats": 4999}, "amount_msats"),
        (PREIMAGE, {"amount_msats": 5001}, "amount_msats"),
        (PREIMAGE, {"asset_id": "USD_CASHU(x)"}, "asset_id"),
        (PREIMAGE, {"request": ANOTHER}, "payment_proof.value"),
        (PREIMAGE, {"request": INVOICE[:-1]}, "invoice"),
        (PREIMAGE, {"payee": OTHER.npub}, "provider_id"),
        (PREIMAGE, {"payee": "npub1"}, "provider_id"),
        (PREIMAGE, {"evidence": asked(OTHER)}, "provider_id"),
        (PREIMAGE, {"evidence": asked(msats="4999")}, "invoice"),
        (PREIMAGE, {"evidence": asked(invoice=ANOTHER)}, "invoice"),
        (PREIMAGE, {"evidence": asked().replace("payment-required", "payment_required")}, "invoice"),
        (PREIMAGE, {"evidence": "{}"}, "invoice"),
    ],
)
def test_what_was_not_paid_is_refused_and_the_part_named(preimage: str, changes: dict[str, Any], part: str) -> None:
    with pytest.raises(NotPaid) as refused:
        verify(preimage, **changes)
    assert str(refused.value).startswith(part)


def test_an_invoice_that_names_its_job_pays_for_no_other() -> None:
    job_hash, other = f"sha256:{'ab' * 32}", f"sha256:{'cd' * 32}"
    hashed = lightning.payment_hash_of(PREIMAGE)
    invoice = bolt11.written(WALLET, 5000, hashed, f"oa.x.v1 {job_hash}", 1_700_000_000, 600)
    verify(request=invoice, evidence=asked(invoice=invoice), job_hash=job_hash)
    with pytest.raises(NotPaid, match="job_hash: the invoice is for another job"):
        verify(request=invoice, evidence=asked(invoice=invoice), job_hash=other)


def test_a_proof_of_another_rail_is_none() -> None:
    with pytest.raises(NotPaid, match=r"payment_proof\.type"):
        lightning.verify(PaymentProof("cashu_proof", PREIMAGE), DUE)


def test_an_event_counts_as_signed_only_by_its_author_over_all_of_it() -> None:
    whole = asked()
    assert signed_events.read(whole.encode()).pubkey == PAYEE.public
    for changed in (whole.replace("1700000000", "1700000001"), whole.replace(PAYEE.public, OTHER.public), "", "[]"):
        with pytest.raises(signed_events.NotSigned):
            signed_events.read(changed.encode())
    forged = msgspec_forged()
    with pytest.raises(signed_events.NotSigned, match="signature"):
        signed_events.read(forged)


def msgspec_forged() -> bytes:
    """The right id for its content, and somebody else's signature."""
    draft = Draft(7000, "", (("amount", "1", "x"),), 1)
    theirs, ours = events.signed(draft, OTHER), events.signed(draft, PAYEE)
    return events.encoded(structs.replace(ours, sig=theirs.sig))

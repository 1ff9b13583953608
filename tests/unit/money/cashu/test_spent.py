from __future__ import annotations

import json

import msgspec
import pytest

from tests.unit.money.cashu.toy_mint import PAYEE, PAYER, ToyMint, released
from tests.unit.money.paid import cashu_paid, job_locked
from trunkline.ledger.masking import Masker
from trunkline.money.cashu import proof
from trunkline.money.cashu.locks import lock_secret
from trunkline.money.cashu.spent import check_size, read_spent, spent_chars, write_spent
from trunkline.money.cashu.tokens import Proof, write_token
from trunkline.money.rail import NotPaid, PaymentProof
from trunkline.money.refusals import ProofRefused

MINT = ToyMint()
SPENT = released(MINT.locked(13))
LONG = "x" * 2500


def test_spent_proofs_are_read_as_they_were_and_prove_what_a_token_does() -> None:
    assert read_spent(write_spent(SPENT)) == SPENT
    paid = cashu_paid()
    value = write_spent(released(job_locked(13)))
    proof.verify(PaymentProof(proof.TYPE, value), paid.due)
    with pytest.raises(NotPaid):
        proof.verify(PaymentProof(proof.TYPE, write_spent(released(job_locked(12)))), paid.due)


def test_the_record_keeps_spent_proofs_and_masks_a_token() -> None:
    masker = Masker()
    kept = json.dumps({"values": [{"type": proof.TYPE, "value": write_spent(SPENT)}]}).encode()
    assert masker.mask(kept) == kept
    token = json.dumps({"values": [{"type": proof.TYPE, "value": write_token(MINT.token(13))}]}).encode()
    assert b"[masked:cashu-token]" in masker.mask(token)


def test_what_could_still_be_spent_is_neither_written_nor_read() -> None:
    for token, reason in ((MINT.token(13), "not_locked"), (MINT.locked(13), "not_released")):
        with pytest.raises(ProofRefused) as refused:
            write_spent(token)
        assert refused.value.reason == reason
        with pytest.raises(ProofRefused) as refused:
            read_spent("cashu-spent:" + write_token(token)[6:])
        assert refused.value.reason == reason
    mixed = msgspec.structs.replace(SPENT, proofs=(*SPENT.proofs, *MINT.proofs(1)))
    with pytest.raises(ProofRefused):
        write_spent(mixed)


@pytest.mark.parametrize("padding", [10, 60_000])
def test_of_a_witness_that_was_padded_only_what_opens_the_lock_is_written(padding: int) -> None:
    def padded(proof: Proof) -> Proof:
        shown = json.loads(proof.witness)
        shown["signatures"] = ["00" * 64, *shown["signatures"] * 2, "ab" * padding]
        return msgspec.structs.replace(proof, witness=json.dumps(shown | {"note": "x" * padding}))

    token = msgspec.structs.replace(SPENT, proofs=tuple(map(padded, SPENT.proofs)))
    assert write_spent(token) == write_spent(SPENT)


def test_the_size_of_spent_proofs_is_known_before_they_are_opened_and_bounded() -> None:
    assert len(write_spent(SPENT)) <= spent_chars(MINT.locked(13)) <= len(write_spent(SPENT)) + 20
    check_size(MINT.locked(2047, job_hash="sha256:" + "ab" * 32, payment_id="cd" * 16))
    large = MINT.token(2047, lambda nonce: lock_secret(nonce, PAYEE, locktime=9, refund_key=PAYER, tags=[["n", LONG]]))
    with pytest.raises(ProofRefused) as refused:
        check_size(large)
    assert refused.value.reason == "too_large"


@pytest.mark.parametrize("text", ["", "cashu-spent:", "cashu-spent:!", "cashuBxx", "spent"])
def test_what_is_no_such_text_is_refused(text: str) -> None:
    with pytest.raises(ProofRefused):
        read_spent(text)

from __future__ import annotations

import json

import msgspec
import pytest

from tests.unit.money.cashu.toy_mint import ToyMint, released
from tests.unit.money.paid import cashu_paid, job_locked
from trunkline.ledger.masking import Masker
from trunkline.money.cashu import proof
from trunkline.money.cashu.spent import read_spent, write_spent
from trunkline.money.cashu.tokens import write_token
from trunkline.money.rail import NotPaid, PaymentProof
from trunkline.money.refusals import ProofRefused

MINT = ToyMint()
SPENT = released(MINT.locked(13))


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


@pytest.mark.parametrize("text", ["", "cashu-spent:", "cashu-spent:!", "cashuBxx", "spent"])
def test_what_is_no_such_text_is_refused(text: str) -> None:
    with pytest.raises(ProofRefused):
        read_spent(text)

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.money.cashu.toy_mint import PAYER_SECRET
from tests.unit.money.onchain.chain import OTHER_SCRIPT, SCRIPT
from tests.unit.money.paid import JOB_HASH, Paid, chain_of, onchain_paid, signed_event
from trunkline.money.onchain.headers import REGTEST
from trunkline.money.onchain.proof import JOB_TAG, MAX_EVIDENCE_BYTES, job_script_of, verifier
from trunkline.money.rail import NotPaid, PaymentProof
from trunkline.money.refusals import ProofRefused

CHECKPOINT = chain_of(1, SCRIPT).checkpoint
verify = verifier(REGTEST, [CHECKPOINT], confirmations=3)
ASKED = signed_event([["amount", "13000", SCRIPT.hex()], [JOB_TAG, JOB_HASH]])


def why(paid: Paid, judge: Any = verify, **due: Any) -> tuple[str, str]:
    """The part of the receipt that is wrong, and the reason."""
    with pytest.raises(NotPaid) as refused:
        judge(paid.proof, msgspec.structs.replace(paid.due, **due))
    assert isinstance(refused.value, ProofRefused)
    return str(refused.value).partition(":")[0], refused.value.reason


def test_what_was_paid_to_the_script_of_payee_and_job_is_paid() -> None:
    verify(*onchain_paid())
    verify(*onchain_paid(14))


def test_what_was_paid_to_a_script_that_the_payee_named_for_this_job_is_paid() -> None:
    verify(*onchain_paid(13, SCRIPT, request=SCRIPT.hex(), asked=ASKED))


def test_a_script_that_nobody_asked_for_is_none() -> None:
    assert why(onchain_paid(13, SCRIPT, request=SCRIPT.hex())) == ("request", "not_asked")
    for tags, secret in (
        ([["amount", "13000", OTHER_SCRIPT.hex()], [JOB_TAG, JOB_HASH]], None),
        ([["amount", "12000", SCRIPT.hex()], [JOB_TAG, JOB_HASH]], None),
        ([["amount", "13000", SCRIPT.hex()], [JOB_TAG, JOB_HASH]], PAYER_SECRET),
    ):
        event = signed_event(tags) if secret is None else signed_event(tags, secret)
        assert why(onchain_paid(13, SCRIPT, request=SCRIPT.hex(), asked=event)) == ("request", "not_asked")


def test_a_payment_for_one_job_is_none_for_another() -> None:
    other = "sha256:" + "00" * 32
    assert why(onchain_paid(), job_hash=other) == ("request", "not_asked")
    paid = onchain_paid(13, SCRIPT, request=SCRIPT.hex(), asked=ASKED)
    assert why(paid, job_hash=other) == ("request", "other_job")
    assert why(onchain_paid(), job_hash="") == ("request", "malformed")


def test_a_transaction_that_pays_another_or_too_little_is_no_payment() -> None:
    assert why(onchain_paid(13, OTHER_SCRIPT)) == ("payment_proof.value", "pays_another")
    assert why(onchain_paid(12)) == ("payment_proof.value", "wrong_amount")
    assert why(onchain_paid(), amount_msats=13_001) == ("payment_proof.value", "wrong_amount")
    verify(onchain_paid(14).proof, msgspec.structs.replace(onchain_paid(14).due, amount_msats=13_001))


def test_a_chain_that_who_verifies_does_not_know_proves_nothing() -> None:
    for checkpoints in ([], [msgspec.structs.replace(CHECKPOINT, hash="00" * 32)]):
        judge = verifier(REGTEST, checkpoints, confirmations=1)
        assert why(onchain_paid(), judge) == ("payment_proof.value", "no_checkpoint")


def test_a_payment_under_too_few_blocks_is_not_proven_yet() -> None:
    assert why(onchain_paid(), verifier(REGTEST, [CHECKPOINT], confirmations=4))[1] == "unconfirmed"


def test_a_proof_of_another_kind_or_asset_is_refused() -> None:
    paid = onchain_paid()
    assert why(Paid(PaymentProof("cashu_proof", paid.proof.value), paid.due)) == ("payment_proof.type", "malformed")
    assert why(paid, asset_id="BTC_LN") == ("asset_id", "other_asset")
    for text in ("", "x" * 64, paid.proof.value.upper(), "00" * 33):
        wrong = Paid(PaymentProof("onchain_txid", text), paid.due)
        assert why(wrong) == ("payment_proof.value", "malformed")


@pytest.mark.parametrize("text", ["", "x", "{}", "[]", '{"found":{}}', "\ud800"])
def test_evidence_in_another_form_is_refused(text: str) -> None:
    assert why(onchain_paid(), evidence=text) == ("evidence", "malformed")
    assert why(onchain_paid(), evidence=" " * (MAX_EVIDENCE_BYTES + 1)) == ("evidence", "too_large")


@pytest.mark.parametrize("request_", ["", "zz", "00" * 257, "bc1pw5dgrnzv", "1"])
def test_what_is_no_script_and_no_address_is_refused(request_: str) -> None:
    assert why(onchain_paid(), request=request_) == ("request", "malformed")


def test_the_script_of_a_job_follows_from_payee_and_job() -> None:
    due = onchain_paid().due
    assert job_script_of(due).hex() == due.request

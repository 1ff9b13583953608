from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from tests.unit.money.cashu.toy_mint import PAYER, PAYER_SECRET, URL, ToyMint, released
from tests.unit.money.paid import JOB_HASH, MINT, PAYMENT_ID, Paid, cashu_paid, job_locked
from trunkline.money.cashu.locks import JOB_TAG, PAYMENT_TAG
from trunkline.money.cashu.proof import MAX_EVIDENCE_BYTES, asset_of, verify
from trunkline.money.cashu.tokens import write_token
from trunkline.money.rail import NotPaid, PaymentProof
from trunkline.money.refusals import ProofRefused

OTHER = ToyMint("another")
PREIMAGE = "07" * 32
HASH = hashlib.sha256(bytes.fromhex(PREIMAGE)).hexdigest()


def why(paid: Paid, **due: Any) -> tuple[str, str]:
    """The part of the receipt that is wrong, and the reason."""
    with pytest.raises(NotPaid) as refused:
        verify(paid.proof, msgspec.structs.replace(paid.due, **due))
    assert isinstance(refused.value, ProofRefused)
    return str(refused.value).partition(":")[0], refused.value.reason


def evidence_but(paid: Paid, **changed: Any) -> str:
    return json.dumps(json.loads(paid.due.evidence) | changed)


def test_a_token_that_the_payee_asked_for_and_opened_proves_the_payment() -> None:
    verify(*cashu_paid())


def test_a_lock_to_a_hash_that_the_payee_asked_for_proves_it_with_the_preimage() -> None:
    held = job_locked(13, lock_hash=HASH)
    verify(*cashu_paid(released(held, preimage=PREIMAGE), hash=HASH))
    assert why(cashu_paid(released(held, preimage="08" * 32), hash=HASH)) == ("payment_proof.value", "wrong_preimage")


def test_a_token_of_another_mint_is_refused_whoever_named_it() -> None:
    token = released(job_locked(13, OTHER))
    assert why(cashu_paid(token)) == ("payment_proof.value", "unknown_keyset")
    assert why(cashu_paid(token, keysets=[OTHER.keyset])) == ("evidence", "unknown_keyset")
    assert why(cashu_paid(), asset_id=asset_of("https://other.example")) == ("asset_id", "other_mint")
    moved = msgspec.structs.replace(token, mint="https://other.example")
    assert why(cashu_paid(moved, mints=(URL, moved.mint))) == ("payment_proof.value", "other_mint")


@pytest.mark.parametrize("amount", [12, 14])
def test_one_satoshi_more_or_less_is_refused(amount: int) -> None:
    assert why(cashu_paid(released(job_locked(amount)))) == ("payment_proof.value", "wrong_amount")
    assert why(cashu_paid(amount=amount)) == ("amount_msats", "wrong_amount")
    assert why(cashu_paid(), amount_msats=amount * 1000) == ("evidence", "not_asked")


def test_what_is_no_bitcoin_has_no_fixed_worth() -> None:
    assert why(cashu_paid(unit="usd")) == ("amount_msats", "wrong_amount")
    assert why(cashu_paid(), asset_id=f"USD_CASHU({URL})") == ("asset_id", "other_asset")
    assert why(cashu_paid(), asset_id="BTC_LN") == ("asset_id", "other_asset")


def test_a_token_that_somebody_else_could_spend_is_no_payment() -> None:
    assert why(cashu_paid(released(job_locked(13, key=PAYER), PAYER_SECRET))) == ("payment_proof.value", "other_lock")
    assert why(cashu_paid(job_locked(13))) == ("payment_proof.value", "not_released")


def test_what_the_payee_did_not_ask_for_in_an_event_of_his_own_is_no_payment() -> None:
    assert why(cashu_paid(signer=PAYER_SECRET)) == ("evidence", "not_asked")
    assert why(cashu_paid(tags=lambda tags: tags[1:])) == ("evidence", "not_asked")
    assert why(cashu_paid(tags=lambda tags: [["amount", "14000", tags[0][2]], *tags[1:]])) == ("evidence", "not_asked")
    assert why(cashu_paid(tags=lambda tags: tags[:1])) == ("evidence", "unknown_keyset")
    event = json.loads(cashu_paid().due.evidence)["asked"]
    assert why(cashu_paid(), evidence=evidence_but(cashu_paid(), asked=event | {"content": "x"})) == (
        "evidence", "not_asked",
    )  # fmt: skip
    assert why(cashu_paid(), payee="npub1x") == ("evidence", "malformed")


def test_a_payment_for_one_job_is_none_for_another() -> None:
    other = "sha256:" + "00" * 32
    assert why(cashu_paid(), job_hash=other) == ("request", "other_job")
    assert why(cashu_paid(lock_tags=())) == ("request", "other_job")
    # The payee asked for as much for two jobs; what was paid for the one is shown for the other.
    token = MINT.locked(13, job_hash=other, payment_id=PAYMENT_ID)
    assert why(cashu_paid(released(token))) == ("payment_proof.value", "other_job")


def test_a_token_counts_for_one_payment_and_for_no_other_of_the_same_job() -> None:
    other = ((JOB_TAG, JOB_HASH), (PAYMENT_TAG, "0f" * 16))
    assert why(cashu_paid(lock_tags=other)) == ("payment_proof.value", "other_payment")
    without = released(job_locked(13, payment_id=""))
    assert why(cashu_paid(without)) == ("payment_proof.value", "other_payment")
    assert why(cashu_paid(released(MINT.locked(13)))) == ("payment_proof.value", "other_job")
    assert other != JOB_HASH


@pytest.mark.parametrize("text", ["", "x", "{}", "[]", '{"asked":{},"keysets":[]}', "\ud800"])
def test_evidence_in_another_form_is_refused(text: str) -> None:
    assert why(cashu_paid(), evidence=text) == ("evidence", "malformed")


def test_evidence_without_end_is_refused() -> None:
    assert why(cashu_paid(), evidence=" " * (MAX_EVIDENCE_BYTES + 1)) == ("evidence", "too_large")


def test_keys_that_are_not_those_of_the_keyset_are_refused() -> None:
    paid = cashu_paid()
    line = json.loads(paid.due.evidence)["keysets"][0]
    forged = {str(amount): key.hex() for amount, key in OTHER.keyset.keys.items()}
    assert why(paid, evidence=evidence_but(paid, keysets=[line | {"keys": forged}])) == ("evidence", "unknown_keyset")


def test_a_proof_of_another_kind_is_refused() -> None:
    paid = cashu_paid()
    wrong = Paid(PaymentProof("onchain_txid", paid.proof.value), paid.due)
    assert why(wrong) == ("payment_proof.type", "malformed")
    assert why(Paid(PaymentProof("cashu_proof", write_token(MINT.token(13))), paid.due))[1] == "not_locked"

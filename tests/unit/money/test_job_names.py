"""The name of a private job where strangers read it."""

from __future__ import annotations

import json

import pytest

from tests.unit.money.paid import JOB_HASH, NPUB, PAYMENT_ID, cashu_paid, lightning_paid, released, signed_event
from tests.unit.money.paid import MINT as PAID_MINT
from trunkline.money import demands, lightning, signed_events
from trunkline.money.cashu import proof as cashu
from trunkline.money.cashu.locks import JOB_TAG, PAYMENT_TAG
from trunkline.money.job_names import MAX_SALT_CHARS, job_name, names_of, salt_of, with_salt
from trunkline.money.rail import Due, NotPaid

SALT = "5a" * 16
NAME = job_name(JOB_HASH, SALT)


def test_a_name_says_nothing_of_the_job_without_its_salt_and_there_is_one_for_each() -> None:
    assert NAME not in {JOB_HASH, job_name(JOB_HASH, "5b" * 16), job_name("sha256:" + "00" * 32, SALT)}
    assert len(NAME) == len(JOB_HASH)
    assert job_name(JOB_HASH, "") == JOB_HASH
    assert names_of(JOB_HASH, SALT) == {JOB_HASH, NAME}


def test_the_salt_stands_beside_what_was_signed_and_changes_nothing_of_that() -> None:
    event = signed_event([["amount", "1", "x"]])
    salted = bytes(with_salt(event, SALT))
    assert signed_events.read(salted) == signed_events.read(event)
    assert salt_of(salted) == SALT
    assert bytes(with_salt(event, "")) == event
    for text in (event, b"", b"[]", b"\xff", json.dumps({"job_salt": 7}).encode(), b"null"):
        assert salt_of(text) == ""
    assert salt_of(json.dumps({"job_salt": "x" * (MAX_SALT_CHARS + 1)}).encode()) == ""


@pytest.mark.parametrize("salt", ["", "5b" * 16])
def test_a_payment_over_lightning_for_a_private_job_is_proven_with_its_salt_only(salt: str) -> None:
    paid = lightning_paid(names=f"schema {NAME}")

    def due(salt: str) -> Due:
        evidence = bytes(with_salt(paid.due.evidence.encode(), salt)).decode()
        return Due(13_000, NPUB, lightning.ASSET, paid.due.request, JOB_HASH, evidence)

    lightning.verify(paid.proof, due(SALT))
    with pytest.raises(NotPaid, match="another job"):
        lightning.verify(paid.proof, due(salt))
    assert demands.read(paid.due.request, JOB_HASH, SALT).names_job is True
    assert demands.read(paid.due.request, JOB_HASH, salt).names_job is False


def test_a_payment_in_ecash_for_a_private_job_is_proven_with_its_salt_only() -> None:
    token = released(PAID_MINT.locked(13, job_hash=NAME, payment_id=PAYMENT_ID))
    paid = cashu_paid(token, lock_tags=((JOB_TAG, NAME), (PAYMENT_TAG, PAYMENT_ID)))
    with pytest.raises(NotPaid, match="another job"):
        cashu.verify(paid.proof, paid.due)
    evidence = json.loads(paid.due.evidence)
    evidence["asked"]["job_salt"] = SALT
    due = Due(13_000, NPUB, paid.due.asset_id, paid.due.request, JOB_HASH, json.dumps(evidence))
    cashu.verify(paid.proof, due)
    assert demands.read(paid.due.request, JOB_HASH, SALT).names_job is True

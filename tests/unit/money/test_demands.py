from __future__ import annotations

import hashlib

import pytest

from tests.unit.money.cashu.toy_mint import PAYEE, URL
from tests.unit.money.paid import JOB_HASH, cashu_paid, lightning_paid
from trunkline.money import bolt11, demands
from trunkline.money.cashu.locks import JOB_TAG
from trunkline.money.cashu.requests import PaymentRequest, write_request
from trunkline.money.demands import NotADemand
from trunkline.money.rail import Way


def test_an_invoice_and_a_request_for_ecash_are_told_apart_and_read() -> None:
    invoice, request = lightning_paid().due.request, cashu_paid().due.request
    found = demands.read(invoice, JOB_HASH)
    assert (found.rail, found.amount_msats, found.names_job) == ("lightning", 13_000, True)
    assert (found.node, found.payment_hash) == (bolt11.read(invoice).node, bolt11.read(invoice).payment_hash)
    found = demands.read(request, JOB_HASH)
    assert (found.rail, found.amount_msats, found.names_job, found.mints) == ("cashu", 13_000, True, (URL,))
    # However else it is written: the same payment of the same payee.
    assert found.payment_hash == demands.read(cashu_paid(mints=(URL, "https://b.example")).due.request, "").payment_hash
    old = cashu_paid(lock_tags=((JOB_TAG, JOB_HASH),)).due.request
    assert demands.read(old, JOB_HASH).payment_hash == hashlib.sha256(old.encode()).hexdigest()


def test_it_is_said_whether_it_is_for_this_job_for_another_or_for_none() -> None:
    other = "sha256:" + "00" * 32
    for text in (lightning_paid().due.request, cashu_paid().due.request):
        assert demands.read(text, other).names_job is False
    for text in (lightning_paid(names="lunch").due.request, cashu_paid(lock_tags=()).due.request):
        assert demands.read(text, JOB_HASH).names_job is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "invoice"),
        ("lnbc1", "invoice"),
        ("creqA", "cannot be read"),
        (write_request(PaymentRequest(1, "usd", (URL,), PAYEE.hex())), "not bitcoin"),
        (write_request(PaymentRequest(1, "sat", (URL,), PAYEE.hex(), hash="ab" * 32)), "a hash as well"),
    ],
)
def test_what_cannot_be_paid_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(NotADemand) as refused:
        demands.read(text, JOB_HASH)
    assert why in str(refused.value) or text in {"", "lnbc1"}


@pytest.mark.parametrize(
    ("text", "way", "part"),
    [
        (lightning_paid().due.request, Way(), None),
        (lightning_paid(names="lunch").due.request, Way(), None),
        (lightning_paid().due.request, Way(URL), "mint"),
        (lightning_paid().due.request, Way("", 1), "fee_msats"),
        (lightning_paid(names="sha256:" + "00" * 32).due.request, Way(), "invoice"),
        (cashu_paid().due.request, Way(URL, 1), None),
        (cashu_paid().due.request, Way(), "mint"),
        (cashu_paid().due.request, Way("https://b.example"), "mint"),
        (cashu_paid(lock_tags=()).due.request, Way(URL), "invoice"),
        (cashu_paid(lock_tags=((JOB_TAG, "sha256:" + "00" * 32),)).due.request, Way(URL), "invoice"),
    ],
)
def test_a_way_to_pay_that_does_not_fit_what_is_asked_for_is_named_by_its_part(
    text: str, way: Way, part: str | None
) -> None:
    found = demands.problem(demands.read(text, JOB_HASH), way)
    assert (None if found is None else found[0]) == part

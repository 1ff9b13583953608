from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.money.paid import Paid, cashu_paid, checkpoint, onchain_paid, receipt_file
from trunkline.money.proving import LINKS, Broken, Evidence, Proved, prove
from trunkline.money.verifying import verifiers

RAILS = verifiers("regtest", [checkpoint()], 1)


def proved(file: dict[str, Any], rails: Any = RAILS) -> Proved:
    def raw(name: str) -> Raw:
        return Raw(json.dumps(file[name]).encode())

    lines = tuple(line.encode() for line in file["trajectory"])
    given = Evidence(raw("receipt"), file["receipt_hash"], file["request"], raw("evidence"), lines, raw("policy"))
    return prove(given, rails)


@pytest.mark.parametrize(("paid", "rail"), [(cashu_paid(), "cashu"), (onchain_paid(), "onchain")])
def test_a_receipt_of_each_rail_is_proven_from_a_file_alone(paid: Paid, rail: str) -> None:
    assert proved(receipt_file(paid, rail)).links == LINKS


@pytest.mark.parametrize(("paid", "rail"), [(cashu_paid(), "cashu"), (onchain_paid(), "onchain")])
@pytest.mark.parametrize(
    "changed",
    [
        {"amount_msats": 12_999},
        {"amount_msats": 14_000},
        {"asset_id": "BTC_LN"},
        {"provider_id": "npub180cvv07tjdrrgpa0j7j7tmnyl2yr6yr7l8j4s3evf6u64th6gkwsyjh6w6"},
        {"job_hash": "sha256:" + "00" * 32},
    ],
)
def test_a_receipt_that_says_something_else_breaks_at_its_payment(
    paid: Paid, rail: str, changed: dict[str, Any]
) -> None:
    if rail == "onchain" and changed == {"amount_msats": 12_999}:
        changed = {"amount_msats": 13_001}  # 13 satoshis are what 12.999 are rounded up to
    with pytest.raises(Broken) as broken:
        proved(receipt_file(paid, rail, **changed))
    assert broken.value.link == "payment"


def test_the_proof_of_one_rail_is_none_of_another() -> None:
    for rail, paid in (("cashu", onchain_paid()), ("onchain", cashu_paid())):
        with pytest.raises(Broken) as broken:
            proved(receipt_file(paid, rail))
        assert broken.value.link == "receipt"


def test_without_a_checkpoint_no_payment_on_the_chain_is_believed() -> None:
    with pytest.raises(Broken, match="checkpoint"):
        proved(receipt_file(onchain_paid(), "onchain"), verifiers("regtest", [], 1))


def test_a_transfer_of_an_asset_is_not_believed() -> None:
    with pytest.raises(Broken, match="cannot be checked"):
        proved(receipt_file(onchain_paid(), "taproot_assets"))

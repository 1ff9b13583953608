"""Receipts: twelve fields, each in its form, none missing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.requirement import requirement
from trunkline.edges.nostr.keys import Signer
from trunkline.money import receipts
from trunkline.money.rail import PROOF_OF_RAIL
from trunkline.money.receipts import FIELDS, NotAReceipt

PROVIDER = Signer(bytes(31) + b"\x05")
EXAMPLE: dict[str, Any] = {
    "receipt_id": "rcpt_abc123",
    "session_id": "sess_123",
    "trajectory_hash": "sha256:" + "ab" * 32,
    "policy_bundle_id": "pol_v1",
    "job_hash": "sha256:" + "cd" * 32,
    "payment_proof": {"type": "lightning_preimage", "value": "ef" * 32},
    "rail": "lightning",
    "asset_id": "BTC_LN",
    "amount_msats": 5000,
    "provider_id": PROVIDER.npub,
    "approval_rule_id": None,
    "timestamp": "2026-01-13T10:00:00Z",
}


def read(**changes: Any) -> receipts.Receipt:
    return receipts.read(json.dumps({**EXAMPLE, **changes}).encode())


@requirement("OA-077", "OA-064", "OA-065", "OA-067", "OA-070")
def test_a_receipt_with_all_twelve_fields_round_trips_and_one_without_any_of_them_is_refused() -> None:
    found = read()
    assert msgspec.json.decode(msgspec.json.encode(found)) == EXAMPLE
    assert tuple(EXAMPLE) == FIELDS
    assert len(FIELDS) == 12
    for name in EXAMPLE:
        less = {field: value for field, value in EXAMPLE.items() if field != name}
        with pytest.raises(NotAReceipt, match=f"{name}: is missing"):
            receipts.read(json.dumps(less).encode())
    with pytest.raises(NotAReceipt, match=r"payment_proof.value: is missing"):
        read(payment_proof={"type": "lightning_preimage"})


@requirement(
    "OA-064", "OA-065", "OA-066", "OA-067", "OA-068", "OA-069", "OA-070", "OA-071", "OA-073", "OA-074", "OA-076"
)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("receipt_id", ""),
        ("receipt_id", 7),
        ("session_id", 7),
        ("trajectory_hash", "ab" * 32),
        ("trajectory_hash", "sha256:" + "AB" * 32),
        ("policy_bundle_id", None),
        ("job_hash", "sha256:ab"),
        ("payment_proof", {"type": "word_of_honour", "value": "x"}),
        ("payment_proof", {"type": "lightning_preimage", "value": 7}),
        ("rail", "cash"),
        ("asset_id", 7),
        ("amount_msats", "5000"),
        ("amount_msats", 0),
        ("amount_msats", -1),
        ("provider_id", PROVIDER.public),
        ("provider_id", PROVIDER.npub[:-1] + "q"),
        ("approval_rule_id", 7),
        ("timestamp", "yesterday"),
        ("timestamp", "2026-13-01T00:00:00Z"),
        ("timestamp", "2026-01-01 00:00:00"),
    ],
)
def test_a_field_in_another_form_is_refused_and_named(field: str, value: Any) -> None:
    with pytest.raises(NotAReceipt, match=field.partition("_")[0]):
        read(**{field: value})


@requirement("OA-069", "OA-071")
def test_each_rail_has_its_own_proof() -> None:
    for rail, proof in PROOF_OF_RAIL.items():
        for other in set(PROOF_OF_RAIL.values()):
            value = {"type": other, "value": "x"}
            if other == proof:
                assert read(rail=rail, payment_proof=value).rail == rail
            else:
                with pytest.raises(NotAReceipt, match="is no proof of the rail"):
                    read(rail=rail, payment_proof=value)


@requirement("OA-072", "OA-075")
def test_assets_are_an_open_set_and_the_rule_may_be_null_but_not_missing() -> None:
    for asset in ("BTC_LN", "BTC_CASHU(https://mint.example)", "USD_CASHU(https://mint.example)", "SHELLS"):
        assert read(asset_id=asset).asset_id == asset
    assert read(approval_rule_id=None).approval_rule_id is None
    assert read(approval_rule_id="rule-1").approval_rule_id == "rule-1"


def test_what_stands_on_record_gives_back_the_bytes_that_were_hashed() -> None:
    for prepaid in (False, True):
        made = receipts.issued(read(), "lnbcrt1", Raw(b"{}"), prepaid=prepaid)
        again = receipts.issued_of(msgspec.json.encode(made))
        assert again.receipt == made.receipt
        assert receipts.receipt_hash(again.receipt) == made.receipt_hash
        assert json.loads(bytes(again.receipt)) == {**EXAMPLE, **({"prepaid": True} if prepaid else {})}
        # The record masks what is called a session's id, so no name stands there.
        assert b"session_id" not in msgspec.json.encode(made)


def test_the_id_of_a_receipt_follows_from_payment_and_job() -> None:
    assert receipts.receipt_id_of("a", "b") == "rcpt_c8687a08aa5d6ed2044328fa6a697ab8"
    assert len({receipts.receipt_id_of(*pair) for pair in (("a", "b"), ("b", "a"), ("a", "a"), ("a b", ""))}) == 4


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"receipt_id": 1, "receipt_id": 2}', b"\xff", b"0" * 70_000])
def test_what_is_no_receipt_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(NotAReceipt):
        receipts.read(data)

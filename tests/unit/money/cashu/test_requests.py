from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.money.cashu.toy_mint import PAYEE
from trunkline.money import cbor
from trunkline.money.cashu.requests import MAX_REQUEST_CHARS, PaymentRequest, read_request, write_request
from trunkline.money.refusals import ProofRefused

# NUT-18, test vectors: the one with all fields.
COMPLETE = (
    "creqAqGF0gaNhdGRwb3N0YWF4G2h0dHBzOi8vYXBpLmV4YW1wbGUuY29tL3BheWFn92FpaDQ4NDBmNTFlYWEZA+hhdWNzYXRhbYF4GGh0dHBzO"
    "i8vbWludC5leGFtcGxlLmNvbWFkcFByb2R1Y3QgcHVyY2hhc2Vhc/VlbnV0MTCjYWtkUDJQS2FkeEIwM2JhZjBjM2FjMjIwMzY2YzJjMzk3YmY"
    "5MzA1NzljNDE2MzQzNTU4NGY1NzNiMTA5MTA5ODdjNTQ0YzU5ZTYxZjFhdIGCZ3B1cnBvc2Vnb2ZmbGluZQ=="
)
KEY = PAYEE.hex()
GOOD = PaymentRequest(8, "sat", ("https://mint.example",), KEY, "", "job-1")
JOB = (("job_hash", "sha256:ab"), ("purpose", "offline"))
HASHED = PaymentRequest(8, "sat", ("https://mint.example", "https://other.example"), KEY, "ab" * 32, "", JOB)


def changed(request: PaymentRequest = GOOD, **parts: Any) -> str:
    value: Any = cbor.decode(base64.urlsafe_b64decode(write_request(request).removeprefix("creqA") + "=="))
    value = {name: part for name, part in (value | parts).items() if part != "gone"}
    return "creqA" + base64.urlsafe_b64encode(cbor.encode(value)).decode()


def test_the_complete_request_of_the_specification_is_read() -> None:
    key = "03baf0c3ac220366c2c397bf930579c4163435584f573b10910987c544c59e61f1"
    tags = (("purpose", "offline"),)
    assert read_request(COMPLETE) == PaymentRequest(
        1000, "sat", ("https://mint.example.com",), key, "", "4840f51e", tags
    )


def test_the_job_is_named_by_a_tag() -> None:
    assert (HASHED.job_hash, GOOD.job_hash) == ("sha256:ab", "")


@pytest.mark.parametrize("request_", [GOOD, HASHED])
def test_a_request_that_we_write_is_read_as_it_was_meant(request_: PaymentRequest) -> None:
    assert read_request(write_request(request_)) == request_


@given(st.integers(1, 2**60), st.sampled_from(["", "cd" * 32]), st.text(max_size=40))
def test_every_request_that_can_be_made_is_read_back(amount: int, lock_hash: str, payment_id: str) -> None:
    request = PaymentRequest(amount, "msat", ("http://localhost:3338",), KEY, lock_hash, payment_id)
    assert read_request(write_request(request)) == request


@pytest.mark.parametrize(
    "text",
    [
        "", "creqA", "creqB" + write_request(GOOD)[5:], "creqA!", changed(a=0), changed(a="1"), changed(a="gone"),
        changed(m=[]), changed(m="gone"), changed(m=["x"]), changed(m=["https://a.example"] * 17), changed(u="gone"),
        changed(nut10="gone"), changed(nut10={"k": "P2PK"}), changed(nut10={"k": "P2PK", "d": "x"}), changed(i=7),
        changed(nut10={"k": "HTLC", "d": "ab" * 32}), changed(nut10={"k": "NEW", "d": KEY}),
        changed(nut10={"k": "HTLC", "d": KEY, "t": [["pubkeys", KEY]]}),
        changed(nut10={"k": "HTLC", "d": "ab" * 32, "t": [["pubkeys", KEY, KEY]]}),
        # What would let somebody else open the lock, or is no tag.
        *(changed(nut10={"k": "P2PK", "d": KEY, "t": [[name, KEY]]}) for name in ("pubkeys", "refund", "locktime")),
        changed(nut10={"k": "HTLC", "d": "ab" * 32, "t": [["pubkeys", KEY], ["n_sigs", "2"]]}),
        changed(nut10={"k": "P2PK", "d": KEY, "t": [[]]}), changed(nut10={"k": "P2PK", "d": KEY, "t": [["a", ""]]}),
        changed(nut10={"k": "P2PK", "d": KEY, "t": [["a"]] * 17}), changed(nut10={"k": "P2PK", "d": KEY, "t": "a"}),
    ],
)  # fmt: skip
def test_what_is_no_request_or_asks_for_a_lock_that_is_not_made_here_is_refused(text: str) -> None:
    with pytest.raises(ProofRefused) as refused:
        read_request(text)
    assert refused.value.reason == "malformed"


def test_a_request_without_end_is_refused() -> None:
    with pytest.raises(ProofRefused) as refused:
        read_request("creqA" + "A" * MAX_REQUEST_CHARS)
    assert refused.value.reason == "too_large"

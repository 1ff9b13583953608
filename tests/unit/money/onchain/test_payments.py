from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.money.onchain.chain import OTHER_SCRIPT, SCRIPT, Chain, hash_of, transaction
from trunkline.money.evidence import read_evidence
from trunkline.money.onchain.headers import MAX_DEPTH, REGTEST, Checkpoint
from trunkline.money.onchain.payments import (
    MAX_EVIDENCE_BYTES,
    Evidence,
    check_payment,
)
from trunkline.money.refusals import ProofRefused

PAID = transaction((1000, SCRIPT), (77, OTHER_SCRIPT))
CHAIN = Chain(PAID)
HEX = "0123456789abcdef"
HASHES = st.text(HEX, min_size=64, max_size=64)


def read(text: str) -> Evidence:
    return read_evidence(text, Evidence, MAX_EVIDENCE_BYTES)


def check(evidence: Evidence = CHAIN.evidence, **changed: Any) -> None:
    given_: dict[str, Any] = {
        "txid": CHAIN.txid, "script": SCRIPT, "amount": 1000, "checkpoints": [CHAIN.checkpoint], "network": REGTEST,
        "confirmations": 3,
    }  # fmt: skip
    check_payment(evidence=evidence, **(given_ | changed))


def reason(evidence: Evidence = CHAIN.evidence, **changed: Any) -> str:
    with pytest.raises(ProofRefused) as refused:
        check(evidence, **changed)
    return refused.value.reason


def but(**changed: Any) -> Evidence:
    return msgspec.structs.replace(CHAIN.evidence, **changed)


def test_a_payment_under_enough_blocks_is_proven() -> None:
    check()
    check(amount=999)
    check(confirmations=1)


def test_a_payment_to_somebody_else_is_none() -> None:
    assert reason(script=OTHER_SCRIPT + b"\0") == "pays_another"
    assert reason(script=OTHER_SCRIPT) == "wrong_amount"


def test_one_satoshi_less_is_too_little() -> None:
    assert reason(amount=1001) == "wrong_amount"


def test_the_id_of_another_transaction_is_refused() -> None:
    assert reason(txid="00" * 32) == "other_transaction"
    assert reason(but(transaction=transaction((1000, SCRIPT), marker=9).hex())) == "other_transaction"


def test_a_transaction_that_is_in_no_block_or_in_another_one_is_refused() -> None:
    unmined = transaction((10_000, SCRIPT), marker=9)
    assert reason(but(transaction=unmined.hex()), txid=hash_of(unmined)) == "other_block"
    assert reason(but(block=0)) == "other_block"
    assert reason(but(block=2)) == "other_block"
    assert reason(but(block=40)) == "other_block"
    assert reason(but(position=0)) == "other_block"
    assert reason(but(siblings=CHAIN.evidence.siblings[::-1])) == "other_block"


def test_headers_of_another_chain_are_refused() -> None:
    assert reason(checkpoints=[Checkpoint(100, "00" * 32)]) == "no_checkpoint"
    other = Chain(PAID, neighbours=6)
    assert reason(but(headers=other.evidence.headers)) == "other_block"


def test_a_payment_under_too_few_blocks_is_not_proven_yet() -> None:
    assert reason(confirmations=4) == "unconfirmed"


def test_a_header_without_work_is_refused() -> None:
    headers = bytearray.fromhex(CHAIN.evidence.headers)
    for nonce in range(256):
        headers[-1] = nonce
        try:
            check(but(headers=headers.hex()))
        except ProofRefused as refused:
            if refused.reason == "not_enough_work":
                return
    pytest.fail("every nonce had enough work")


@given(
    st.builds(
        Evidence,
        st.binary(max_size=60).map(bytes.hex),
        st.binary(max_size=160).map(bytes.hex),
        st.integers(0, 50),
        st.integers(0, 1000),
        st.lists(HASHES, max_size=4).map(tuple),
    )
)
def test_evidence_is_read_as_it_was_written(evidence: Evidence) -> None:
    assert read(msgspec.json.encode(evidence).decode()) == evidence


@pytest.mark.parametrize(
    "changed",
    [
        {"transaction": "0"}, {"transaction": "0G"}, {"transaction": "AB"}, {"headers": 7}, {"block": -1},
        {"block": "0"}, {"block": 10_000}, {"position": -1}, {"position": 1 << MAX_DEPTH}, {"siblings": ["00"]},
        {"siblings": "00"}, {"siblings": ["00" * 32] * (MAX_DEPTH + 1)}, {"more": 1},
    ],
)  # fmt: skip
def test_evidence_in_another_form_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProofRefused) as refused:
        read(msgspec.json.encode(msgspec.to_builtins(CHAIN.evidence) | changed).decode())
    assert refused.value.reason == "malformed"


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"a":1,"a":1}', "\ud800"])
def test_what_is_no_evidence_is_refused(text: str) -> None:
    with pytest.raises(ProofRefused):
        read(text)
    with pytest.raises(ProofRefused) as refused:
        read(" " * (MAX_EVIDENCE_BYTES + 1))
    assert refused.value.reason == "too_large"

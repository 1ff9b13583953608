from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.money.cashu.toy_mint import AMOUNTS, ToyMint
from trunkline.money.cashu.checking import check_signatures
from trunkline.money.cashu.keysets import Keyset
from trunkline.money.cashu.swaps import outputs_of, proofs_of, split
from trunkline.money.cashu.tokens import MAX_PROOFS, Token
from trunkline.money.refusals import ProofRefused

MINT = ToyMint()


@given(st.integers(1, sum(AMOUNTS)))
def test_an_amount_is_made_of_the_fewest_parts(amount: int) -> None:
    parts = split(amount, MINT.keyset)
    assert sum(parts) == amount
    assert len(parts) == amount.bit_count()
    assert list(parts) == sorted(parts)


def test_an_amount_that_a_keyset_cannot_make_is_refused() -> None:
    with pytest.raises(ProofRefused, match="cannot make"):
        split(3, Keyset("", "sat", {2: b""}))
    with pytest.raises(ProofRefused, match="cannot make"):
        split(MAX_PROOFS + 1, Keyset("", "sat", {1: b""}))
    with pytest.raises(ProofRefused, match="cannot make"):
        split(2**80, MINT.keyset)


def test_what_the_mint_signed_are_proofs_that_others_can_check() -> None:
    outputs = outputs_of(13, MINT.keyset, lambda nonce: f"secret {nonce}", MINT.chance)
    proofs = MINT.signed(outputs)
    assert [proof.amount for proof in proofs] == [1, 4, 8]
    assert len({proof.secret for proof in proofs}) == 3
    check_signatures(Token("https://mint.example", "sat", proofs), [MINT.keyset])


@pytest.mark.parametrize("wrong", [{"amount": 2}, {"keyset_id": "00"}, {"e": bytes(31) + b"\1"}, {"signature": None}])
def test_a_mint_that_signs_something_else_than_it_was_asked_is_caught(wrong: dict[str, Any]) -> None:
    outputs = outputs_of(1, MINT.keyset, str, MINT.chance)
    promise = MINT.promise(outputs[0].keyset_id, 1, outputs[0].blinded)
    other = MINT.promise(outputs[0].keyset_id, 2, outputs[0].blinded)
    changed = msgspec.structs.replace(
        promise, **(wrong if "signature" not in wrong else {"signature": other.signature})
    )
    with pytest.raises(ProofRefused) as refused:
        proofs_of(outputs, [changed], MINT.keyset)
    assert refused.value.reason == "forged"


def test_a_mint_that_signs_less_or_more_is_caught() -> None:
    outputs = outputs_of(3, MINT.keyset, str, MINT.chance)
    promises = [MINT.promise(output.keyset_id, output.amount, output.blinded) for output in outputs]
    for answer in ([], promises[:1], [*promises, promises[0]], promises[::-1]):
        with pytest.raises(ProofRefused) as refused:
            proofs_of(outputs, answer, MINT.keyset)
        assert refused.value.reason == "forged"

from __future__ import annotations

import pytest

from trunkline.money.rail import NotPaid
from trunkline.money.refusals import REASONS, ProofRefused, about


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_is_a_sentence_and_a_proof_that_is_refused_for_it_was_not_paid(reason: str) -> None:
    refused = ProofRefused(reason)
    assert isinstance(refused, NotPaid)
    assert str(refused)[0].isupper()
    assert str(ProofRefused(reason, "proof 3")) == f"{refused}: proof 3"
    assert ProofRefused(reason, "proof 3").reason == reason


def test_what_is_refused_in_a_part_of_a_receipt_names_that_part_first() -> None:
    with (
        pytest.raises(ProofRefused, match=r"^evidence: The token was spent before: proof 3$") as refused,
        about("evidence"),
    ):
        raise ProofRefused("spent", "proof 3")
    assert refused.value.reason == "spent"

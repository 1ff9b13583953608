from __future__ import annotations

import pytest

from trunkline.money.rail import NotPaid
from trunkline.money.refusals import REASONS, ProofRefused


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_is_a_sentence_and_a_proof_that_is_refused_for_it_was_not_paid(reason: str) -> None:
    refused = ProofRefused(reason)
    assert isinstance(refused, NotPaid)
    assert str(refused)[0].isupper()
    assert str(ProofRefused(reason, "proof 3")) == f"{refused}: proof 3"
    assert ProofRefused(reason, "proof 3").reason == reason

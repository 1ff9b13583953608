from __future__ import annotations

import json

import pytest

from tests.unit.money.cashu.toy_mint import PAYEE, PAYER_SECRET
from tests.unit.money.paid import NPUB, signed_event
from trunkline.money.asked import asked_by_payee, payee_key
from trunkline.money.rail import Due
from trunkline.money.refusals import ProofRefused

DUE = Due(13_000, NPUB, "BTC", "request")
TAGS = [["p", "x"], ["amount", "13000", "request"]]


def reason(event: bytes, due: Due = DUE) -> str:
    with pytest.raises(ProofRefused) as refused:
        asked_by_payee(due, event)
    return refused.value.reason


def test_an_event_of_the_payee_that_names_amount_and_request_counts() -> None:
    assert asked_by_payee(DUE, signed_event(TAGS)).value("p") == "x"
    assert payee_key(DUE) == PAYEE[1:]


def test_an_event_of_somebody_else_or_one_that_was_changed_does_not() -> None:
    assert reason(signed_event(TAGS, PAYER_SECRET)) == "not_asked"
    assert reason(json.dumps(json.loads(signed_event(TAGS)) | {"content": "more"}).encode()) == "not_asked"
    assert reason(b"{}") == "not_asked"


@pytest.mark.parametrize("tag", [["amount", "13001", "request"], ["amount", "13000", "other"], ["amount", "13000"]])
def test_an_event_about_something_else_does_not(tag: list[str]) -> None:
    assert reason(signed_event([tag])) == "not_asked"


def test_a_payee_without_a_key_has_asked_for_nothing() -> None:
    assert reason(signed_event(TAGS), Due(13_000, "npub1x", "BTC", "request")) == "malformed"

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.money.cashu.toy_mint import ToyMint
from trunkline.money.cashu import mint
from trunkline.money.cashu.curve import hash_to_curve
from trunkline.money.cashu.swaps import outputs_of, proofs_of
from trunkline.money.refusals import ProofRefused

MINT = ToyMint(fee_ppk=100)
PROOFS = MINT.proofs(5)
YS = [hash_to_curve(proof.secret.encode()).hex() for proof in PROOFS]
LINE = {"id": MINT.keyset.id, "unit": "sat", "active": True, "input_fee_ppk": 100, "final_expiry": None}
NEEDED = ["7", "9", "10", "11", "12", "14"]
KEYS = {str(amount): key.hex() for amount, key in MINT.keyset.keys.items()}


def body(**value: Any) -> bytes:
    return json.dumps(value).encode()


def test_keysets_are_read_and_their_keys_have_their_id() -> None:
    (line,) = mint.read_keyset_lines(body(keysets=[LINE]))
    assert mint.read_keys(body(keysets=[{"id": line.id, "unit": "sat", "keys": KEYS}]), line) == MINT.keyset


def test_keys_that_are_not_those_of_the_id_are_refused() -> None:
    (line,) = mint.read_keyset_lines(body(keysets=[LINE]))
    other = {str(amount): key.hex() for amount, key in ToyMint("another").keyset.keys.items()}
    for keysets in ([], [{"id": line.id, "keys": other}], [{"id": "00", "keys": KEYS}]):
        with pytest.raises(ProofRefused) as refused:
            mint.read_keys(body(keysets=keysets), line)
        assert refused.value.reason == "unknown_keyset"


def test_a_swap_says_inputs_and_outputs_and_nothing_that_ties_them_to_a_payer() -> None:
    outputs = outputs_of(4, MINT.keyset, str, MINT.chance)
    said = json.loads(mint.swap_body(PROOFS, outputs))
    assert said["outputs"] == [{"amount": 4, "id": MINT.keyset.id, "B_": outputs[0].blinded.hex()}]
    assert [set(one) for one in said["inputs"]] == [{"amount", "id", "secret", "C"}] * 2


def test_what_a_mint_signed_becomes_proofs() -> None:
    outputs = outputs_of(4, MINT.keyset, str, MINT.chance)
    promise = MINT.promise(MINT.keyset.id, 4, outputs[0].blinded)
    dleq = {"e": promise.e.hex(), "s": promise.s.hex()}
    answer = {"id": promise.keyset_id, "amount": 4, "C_": promise.signature.hex(), "dleq": dleq}
    assert len(proofs_of(outputs, mint.read_promises(body(signatures=[answer])), MINT.keyset)) == 1
    with pytest.raises(ProofRefused):
        mint.read_promises(body(signatures=[answer | {"dleq": None}]))


def test_the_question_whether_proofs_are_spent_does_not_tell_their_secrets() -> None:
    said = mint.states_body(PROOFS)
    assert json.loads(said) == {"Ys": YS}
    assert PROOFS[0].secret.encode() not in said


@pytest.mark.parametrize(
    ("states", "reason"),
    [(["UNSPENT", "UNSPENT"], None), (["UNSPENT", "SPENT"], "spent"), (["PENDING", "UNSPENT"], "pending")],
)
def test_a_token_of_which_something_was_spent_is_refused(states: list[str], reason: str | None) -> None:
    answer = [{"Y": y, "state": state, "witness": None} for y, state in zip(YS, states, strict=True)]
    found = mint.read_states(body(states=answer), PROOFS)
    if reason is None:
        mint.check_unspent(found)
    else:
        with pytest.raises(ProofRefused) as refused:
            mint.check_unspent(found)
        assert refused.value.reason == reason


def test_an_answer_about_other_proofs_is_refused() -> None:
    answer = [{"Y": y, "state": "UNSPENT"} for y in YS]
    for states in (answer[:1], answer[::-1], [*answer, answer[0]], []):
        with pytest.raises(ProofRefused, match="other proofs"):
            mint.read_states(body(states=states), PROOFS)


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({}, []),
        ({"7": None}, ["7"]),
        ({"9": {"supported": False}, "12": True}, ["9", "12"]),
        (dict.fromkeys(NEEDED), NEEDED),
    ],
)
def test_a_mint_says_what_it_does_of_all_that_is_needed(changed: dict[str, Any], missing: list[str]) -> None:
    nuts = {nut: {"supported": True} for nut in NEEDED} | changed
    assert mint.missing_nuts(body(nuts=nuts)) == missing
    assert mint.missing_nuts(body(nuts={nut: one for nut, one in nuts.items() if one is not None})) == missing


def test_a_refusal_has_a_number_or_none() -> None:
    assert mint.refusal_code(body(detail="Token already spent.", code=11001)) == 11001
    assert mint.refusal_code(b"<html>") == 0


@pytest.mark.parametrize(
    "answer", [b"", b"x", b"[]", b'{"keysets":7}', b'{"a":1,"a":1}', b'{"states":[{"Y":"x"}]}', b"\xff"]
)
def test_whatever_a_mint_answers_is_read_or_refused(answer: bytes) -> None:
    for read in (mint.read_keyset_lines, mint.read_promises, lambda data: mint.read_states(data, PROOFS)):
        with pytest.raises(ProofRefused):
            read(answer)

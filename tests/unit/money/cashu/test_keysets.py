from __future__ import annotations

from typing import Any

import pytest

from tests.unit.money.cashu.toy_mint import ToyMint
from trunkline.money.cashu.keysets import (
    MAX_FEE_PPK,
    MAX_KEYS,
    Keyset,
    fee,
    find_keyset,
    first_version_id,
    read_keyset,
    second_version_id,
)
from trunkline.money.refusals import ProofRefused

# NUT-02, test vectors: four keys, and the ids that they have.
FOUR = {
    "1": "03a40f20667ed53513075dc51e715ff2046cad64eb68960632269ba7f0210e38bc",
    "2": "03fd4ce5a16b65576145949e6f99f445f8249fee17c606b688b504a849cdc452de",
    "4": "02648eccfa4c026960966276fa5a4cae46ce0fd432211a4f449bf84f13aa5f8303",
    "8": "02fdfd6796bfeac490cbee12f778f867f0a2c68f6508d17c649759ea0dc3547528",
}
FIRST_ID = "00456a94ab4e1c46"
SECOND_ID = "015ba18a8adcd02e715a58358eb618da4a4b3791151a4bee5e968bb88406ccf76a"
EXPIRY = 2059210353


def second(**changed: Any) -> Keyset:
    given = {"keyset_id": SECOND_ID, "unit": "sat", "keys": FOUR, "input_fee_ppk": 100, "final_expiry": EXPIRY}
    return read_keyset(**(given | changed))


def test_the_ids_of_the_specification_follow_from_its_keys() -> None:
    assert first_version_id(read_keyset(FIRST_ID, "sat", FOUR)) == FIRST_ID
    assert second_version_id(second()) == SECOND_ID


def test_the_order_in_which_keys_come_does_not_count() -> None:
    assert second(keys=dict(reversed(FOUR.items()))) == second()


@pytest.mark.parametrize(
    "changed",
    [
        {"unit": "usd"},
        {"input_fee_ppk": 0},
        {"final_expiry": EXPIRY + 1},
        {"keys": {name: key for name, key in FOUR.items() if name != "8"}},
        {"keys": FOUR | {"8": FOUR["4"]}},
        {"keyset_id": SECOND_ID[:-1] + "b"},
        {"keyset_id": FIRST_ID[:-1] + "7"},
    ],
)
def test_a_keyset_whose_id_is_not_that_of_its_content_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProofRefused) as refused:
        second(**changed)
    assert refused.value.reason == "unknown_keyset"


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": {}},
        {"keys": {str(number + 1): FOUR["1"] for number in range(MAX_KEYS + 1)}},
        {"keys": {"0": FOUR["1"]}},
        {"keys": {"-1": FOUR["1"]}},
        {"keys": {"\u0661": FOUR["1"]}},
        {"keys": {"1" * 30: FOUR["1"]}},
        {"keys": {"1": "x"}},
        {"keys": {"1": "02" + "ff" * 32}},
        {"input_fee_ppk": -1},
        {"input_fee_ppk": MAX_FEE_PPK + 1},
    ],
)
def test_what_no_mint_has_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProofRefused) as refused:
        second(**changed)
    assert refused.value.reason == "malformed"


def test_a_keyset_is_found_by_its_id_and_by_the_short_form_of_one() -> None:
    known = [second(), read_keyset(FIRST_ID, "sat", FOUR)]
    assert find_keyset(SECOND_ID, known) is known[0]
    assert find_keyset(SECOND_ID[:16], known) is known[0]
    assert find_keyset(FIRST_ID, known) is known[1]


def test_a_short_form_that_two_keysets_have_names_neither() -> None:
    twin = Keyset(SECOND_ID[:16] + "0" * 50, "sat", {})
    for known in ([], [second(), twin], [second(), second()]):
        with pytest.raises(ProofRefused) as refused:
            find_keyset(SECOND_ID[:16], known)
        assert refused.value.reason == "unknown_keyset"
    assert find_keyset(SECOND_ID, [second(), twin]) == second()


def test_a_fee_is_rounded_up_once_for_all_proofs() -> None:
    keyset = ToyMint(fee_ppk=100).keyset
    assert [fee([keyset] * count) for count in (0, 1, 3, 10, 11, 20, 21)] == [0, 1, 1, 1, 2, 2, 3]

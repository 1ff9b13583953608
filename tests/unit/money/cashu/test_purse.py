from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.unit.money.cashu.toy_mint import ToyMint
from trunkline.errors import ConfigError
from trunkline.money.cashu.purse import Begun, Funding, Locked, Purse, Taken, read_purse, write_purse
from trunkline.money.cashu.swaps import outputs_of
from trunkline.money.cashu.tokens import Proof
from trunkline.money.rail import RailFailed
from trunkline.money.wallet import Held

MINT = ToyMint()
HELD = Held(
    payment_hash="ab", payer="exchange", payee="p", msats=3000, invoice="creqA", asked=Raw(b"{}"), quote_id="q",
    request_id="r", schema_id="s", job_hash="j", provider="n", at_ms=1, judge="buyer",
)  # fmt: skip


def purse_of(*amounts: int) -> Purse:
    return Purse(tuple(Proof("00" * 8, amount, f"secret {at}", bytes(33)) for at, amount in enumerate(amounts)))


@given(st.lists(st.integers(1, 64), max_size=12), st.integers(1, 200), st.sampled_from([0, 100, 1000]))
def test_what_is_taken_is_enough_with_its_fee_and_nothing_of_it_could_be_left_out(
    amounts: list[int], wanted: int, fee_ppk: int
) -> None:
    def worth(proofs: list[Proof]) -> int:
        return sum(proof.amount for proof in proofs) - -(-len(proofs) * fee_ppk // 1000)

    purse = purse_of(*amounts)
    try:
        taken = list(purse.enough(wanted, fee_ppk))
    except RailFailed:
        assert all(worth([one for one in purse.proofs if one.amount > least]) < wanted for least in range(64))
        return
    assert worth(taken) >= wanted
    assert all(worth([one for one in taken if one is not proof]) < wanted for proof in taken)


def test_a_swap_that_was_begun_has_its_proofs_until_it_is_over() -> None:
    purse = purse_of(4, 2, 1)
    begun = Begun("b", purse.proofs[:2], tuple(outputs_of(6, MINT.keyset, str, MINT.chance)))
    during = purse.begin(begun)
    assert (during.amount, during.begun) == (1, (begun,))
    after = during.end(begun, MINT.proofs(6))
    assert (after.amount, after.begun) == (7, ())


def test_a_purse_is_read_from_its_file_as_it_was() -> None:
    begun = Begun("b", MINT.proofs(3), tuple(outputs_of(3, MINT.keyset, str, MINT.chance)), 1, HELD, 5)
    locked, taken = Locked(HELD, MINT.locked(3).proofs, 5, "e"), Taken(HELD, MINT.locked(5).proofs)
    purse = Purse(MINT.proofs(13), (begun,), (locked,), (taken,), (Funding("q", 21, 7),))
    assert read_purse(write_purse(purse)) == purse


@pytest.mark.parametrize("data", [b"", b"[]", b'{"proofs":7}', b"\xff"])
def test_a_file_that_is_no_purse_is_not_taken_for_an_empty_one(data: bytes) -> None:
    with pytest.raises(ConfigError, match="purse"):
        read_purse(data)


def test_a_purse_shows_how_much_there_is_and_nothing_that_could_be_spent() -> None:
    purse = Purse(MINT.proofs(13), (), (Locked(HELD, MINT.locked(3).proofs, 5),))
    assert repr(purse) == "Purse(13, 3 locked)"


def test_money_on_its_way_is_counted_once_and_that_of_strangers_not_before_it_is_ours() -> None:
    purse = Purse(MINT.proofs(13))
    outputs = tuple(outputs_of(13, MINT.keyset, str, MINT.chance))
    begun = Begun("b", purse.proofs, outputs)
    during = purse.begin(begun)
    assert (during.amount, during.amount_locked) == (0, 13)
    instead = during.begin(Begun("c", begun.inputs, outputs, instead_of="b"))
    assert (instead.amount, instead.amount_locked) == (0, 13)
    assert instead.end(begun, ()).begun == ()
    assert instead.end(instead.begun[1], MINT.proofs(13)).begun == ()
    taken = Taken(HELD, MINT.locked(5).proofs)
    redeeming = Purse().with_taken(taken).begin(Begun("d", taken.proofs, outputs))
    assert (redeeming.amount, redeeming.amount_locked) == (0, 0)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.money.onchain.chain import FIRST_PAYMENT, ITS_ID, OTHER_SCRIPT, SCRIPT, hash_of, transaction
from trunkline.money.onchain.transactions import (
    MAX_AMOUNT,
    MAX_TRANSACTION_BYTES,
    PaidOutput,
    read_transaction,
)
from trunkline.money.refusals import ProofRefused

# BIP 143: a transaction with one old input, which has no witness, and one that has.
SIGNED = (
    "01000000000102fff7f7881a8099afa6940d42d1e7f6362bec38171ea3edf433541db4e4ad969f00000000494830450221008b9d1dc26ba6a9cb"
    "62127b02742fa9d754cd3bebf337f7a55d114c8e5cdd30be022040529b194ba3f9281a99f2b1c0a19c0489bc22ede944ccf4ecbab4cc618ef3ed"
    "01eeffffffef51e1b804cc89d182d279655c3aa89e815b1b309fe287d9b2b55d57b90ec68a0100000000ffffffff02202cb206000000001976a9"
    "148280b37df378db99f66f85c95a783a76ac7a6d5988ac9093510d000000001976a9143bde42dbee7e4dbe6a21b2d50ce2f0167faa815988ac00"
    "0247304402203609e17b84f6a7d30c80bfa610b5b4542f32a8a0d5447a12fb1366d7f01cc44a0220573a954c4518331561406f90300e8f3358f5"
    "1928d43c212a8caed02de67eebee0121025476c2e83188368da1ff3e292e7acafcdb3566bb0ad253f62fc70f07aeee635711000000"
)
ITS_WITNESSES = (
    "000247304402203609e17b84f6a7d30c80bfa610b5b4542f32a8a0d5447a12fb1366d7f01cc44a0220573a954c4518331561406f90300e8f3358"
    "f51928d43c212a8caed02de67eebee0121025476c2e83188368da1ff3e292e7acafcdb3566bb0ad253f62fc70f07aeee6357"
)
GOOD = transaction((1000, SCRIPT), (5, OTHER_SCRIPT))
OUTPUTS = st.lists(st.tuples(st.integers(0, 2**40), st.binary(min_size=20, max_size=80)), min_size=1, max_size=5)


def test_the_first_payment_ever_has_its_id_and_pays_what_everybody_knows() -> None:
    found = read_transaction(bytes.fromhex(FIRST_PAYMENT))
    assert found.txid == ITS_ID
    assert [output.amount for output in found.outputs] == [1_000_000_000, 4_000_000_000]


def test_witnesses_are_no_part_of_an_id() -> None:
    found = read_transaction(bytes.fromhex(SIGNED))
    old_form = SIGNED.replace("0001", "", 1).replace(ITS_WITNESSES, "")
    assert found == read_transaction(bytes.fromhex(old_form))
    assert [output.amount for output in found.outputs] == [112_340_000, 223_450_000]


@given(OUTPUTS)
def test_whom_a_transaction_pays_is_read_with_witnesses_and_without(outputs: list[tuple[int, bytes]]) -> None:
    plain, with_witness = transaction(*outputs), transaction(*outputs, witness=True)
    found = read_transaction(plain)
    assert found.outputs == tuple(PaidOutput(amount, script) for amount, script in outputs)
    assert found.txid == hash_of(plain)
    assert read_transaction(with_witness) == found


def test_what_goes_to_one_script_is_added_up() -> None:
    found = read_transaction(transaction((1, SCRIPT), (5, OTHER_SCRIPT), (2, SCRIPT)))
    assert (found.paid_to(SCRIPT), found.paid_to(OTHER_SCRIPT), found.paid_to(b"")) == (3, 5, 0)


def test_a_transaction_that_ends_too_early_is_refused_wherever_it_ends() -> None:
    for cut in range(len(GOOD)):
        with pytest.raises(ProofRefused):
            read_transaction(GOOD[:cut])


@pytest.mark.parametrize(
    "data",
    [
        GOOD + b"\0",
        transaction(),
        transaction((MAX_AMOUNT + 1, SCRIPT)),
        transaction((MAX_AMOUNT, SCRIPT), (1, SCRIPT)),
        # Numbers in a longer form than they need, and ones that promise more than there is.
        GOOD[:4] + b"\xfd\x01\x00" + GOOD[5:],
        GOOD[:4] + b"\xfe\x01\x00\x00\x00" + GOOD[5:],
        GOOD[:4] + b"\xff" + b"\xff" * 8 + GOOD[5:],
        # Witnesses that are promised and all empty; none for an input; a flag that nobody knows.
        transaction((1, SCRIPT), witness=True)[:-70] + b"\0" + b"\0" * 4,
        transaction((1, SCRIPT), witness=True)[:-70] + b"\0" * 4,
        GOOD[:4] + b"\0\x02" + GOOD[4:],
        # No inputs.
        GOOD[:4] + b"\0" + GOOD[46:],
    ],
)
def test_what_could_be_read_in_another_way_is_refused(data: bytes) -> None:
    with pytest.raises(ProofRefused) as refused:
        read_transaction(data)
    assert refused.value.reason == "malformed"


def test_a_transaction_that_could_be_two_hashes_of_a_tree_is_refused() -> None:
    sixty_four = transaction((1, b"\x6a\x02\x00\x00"))
    assert len(sixty_four) == 64
    with pytest.raises(ProofRefused, match="64 bytes"):
        read_transaction(sixty_four)


def test_a_transaction_that_no_node_passes_on_is_refused() -> None:
    with pytest.raises(ProofRefused) as refused:
        read_transaction(bytes(MAX_TRANSACTION_BYTES + 1))
    assert refused.value.reason == "too_large"

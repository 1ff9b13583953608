from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.money.onchain.chain import (
    BLOCK_1,
    BLOCK_170,
    GENESIS,
    HEADER_170,
    ITS_ID,
    ITS_NEIGHBOUR,
    hash_of,
    mined,
    tree,
)
from trunkline.money.onchain.headers import (
    MAIN,
    MAX_DEPTH,
    MAX_HEADERS,
    PERIOD,
    REGTEST,
    Checkpoint,
    Header,
    bits_of,
    check_in_block,
    read_chain,
    read_header,
    target_of,
)
from trunkline.money.refusals import ProofRefused

EASY = bits_of(REGTEST.easiest)
HARDER = bits_of(REGTEST.easiest // 2)
# As the real network, but with blocks that a test can mine.
ADAPTING = msgspec.structs.replace(REGTEST, adapts=True)


def chain_of(
    count: int, *, bits: Any = lambda _at: EASY, time: Any = lambda at: 1_700_000_000 + 600 * at
) -> list[bytes]:
    headers = [mined("00" * 32, "11" * 32, time(0), bits(0))]
    while len(headers) < count:
        headers.append(mined(hash_of(headers[-1]), "22" * 32, time(len(headers)), bits(len(headers))))
    return headers


def read(headers: list[bytes], network: Any = REGTEST, height: int = 1) -> list[Header]:
    return read_chain(b"".join(headers), [Checkpoint(height, hash_of(headers[0]))], network)


def reason(headers: list[bytes], network: Any = REGTEST, height: int = 1) -> str:
    with pytest.raises(ProofRefused) as refused:
        read(headers, network, height)
    return refused.value.reason


def test_the_first_blocks_have_their_hashes_and_follow_each_other() -> None:
    first, second = read([GENESIS, BLOCK_1], MAIN, 0)
    assert first.hash[::-1].hex() == "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"
    assert second.hash[::-1].hex() == "00000000839a8e6886ab5951d76f411475428afc90947ee320161bbf18eb6048"


def test_the_first_payment_ever_is_in_its_block() -> None:
    header = read_header(HEADER_170)
    assert header.hash[::-1].hex() == BLOCK_170
    check_in_block(ITS_ID, 1, [bytes.fromhex(ITS_NEIGHBOUR)[::-1]], header)


@pytest.mark.parametrize(
    ("txid", "position", "siblings"),
    [
        (ITS_ID, 0, [ITS_NEIGHBOUR]),
        (ITS_NEIGHBOUR, 1, [ITS_ID]),
        (ITS_ID, 1, [ITS_ID]),
        (ITS_ID, 0, []),
        (ITS_ID, 1, [ITS_NEIGHBOUR, ITS_NEIGHBOUR]),
    ],
)
def test_a_transaction_is_in_no_other_place(txid: str, position: int, siblings: list[str]) -> None:
    with pytest.raises(ProofRefused) as refused:
        check_in_block(txid, position, [bytes.fromhex(one)[::-1] for one in siblings], read_header(HEADER_170))
    assert refused.value.reason == "other_block"


@pytest.mark.parametrize(("position", "siblings"), [(2, [bytes(32)]), (-1, [bytes(32)]), (0, [bytes(31)]), (1, [])])
def test_a_place_that_a_tree_does_not_have_is_refused(position: int, siblings: list[bytes]) -> None:
    with pytest.raises(ProofRefused) as refused:
        check_in_block(ITS_ID, position, siblings, read_header(HEADER_170))
    assert refused.value.reason == "malformed"
    with pytest.raises(ProofRefused):
        check_in_block(ITS_ID, 0, [bytes(32)] * (MAX_DEPTH + 1), read_header(HEADER_170))


@given(st.integers(1, 20).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))))
def test_each_transaction_of_a_block_of_any_size_is_found_in_its_place(place: tuple[int, int]) -> None:
    count, position = place
    txids = [f"{at:064x}" for at in range(count)]
    root, siblings = tree(txids, position)
    header = msgspec.structs.replace(read_header(HEADER_170), merkle_root=bytes.fromhex(root)[::-1])
    check_in_block(txids[position], position, [bytes.fromhex(one) for one in siblings], header)


def test_a_header_with_any_byte_changed_has_no_work() -> None:
    for at in range(80):
        changed = HEADER_170[:at] + bytes([HEADER_170[at] ^ 1]) + HEADER_170[at + 1 :]
        with pytest.raises(ProofRefused) as refused:
            read_header(changed)
        assert refused.value.reason == "not_enough_work"


@pytest.mark.parametrize("size", [0, 79, 81])
def test_a_header_has_eighty_bytes(size: int) -> None:
    with pytest.raises(ProofRefused, match="80 bytes"):
        read_header(bytes(size))


@pytest.mark.parametrize(
    "bits", [0, 0x01000000, 0x1D800001, 0x20800000, 0x23000001, 0xFF7FFFFF, 0x00123456, 0x01003456]
)
def test_a_target_that_is_no_number_above_zero_is_refused(bits: int) -> None:
    with pytest.raises(ProofRefused) as refused:
        target_of(bits)
    assert refused.value.reason == "not_enough_work"


@given(st.integers(1, 2**255 - 1))
def test_a_target_loses_only_what_four_bytes_cannot_hold(target: int) -> None:
    found = target_of(bits_of(target))
    assert found <= target
    assert target - found < max(1, target >> 14)
    assert bits_of(found) == bits_of(target)


def test_headers_have_to_start_at_a_checkpoint() -> None:
    headers = chain_of(3)
    known = [Checkpoint(7, "00" * 32), Checkpoint(8, hash_of(headers[0]))]
    assert len(read_chain(b"".join(headers), known, REGTEST)) == 3
    for data in (headers[1:], headers[::-1]):
        with pytest.raises(ProofRefused) as refused:
            read_chain(b"".join(data), known, REGTEST)
        assert refused.value.reason == "no_checkpoint"
    with pytest.raises(ProofRefused):
        read_chain(b"".join(headers), [], REGTEST)


def test_headers_have_to_follow_each_other() -> None:
    headers = chain_of(4)
    assert reason([headers[0], headers[2], headers[3]]) == "broken_chain"
    assert reason([headers[0], headers[1], headers[1]]) == "broken_chain"


def test_a_block_is_later_than_most_of_those_before_it() -> None:
    assert len(read(chain_of(13, time=lambda at: 1_700_000_000 + (600 * at if at < 12 else 600 * 7)))) == 13
    assert reason(chain_of(13, time=lambda at: 1_700_000_000 + (600 * at if at < 12 else 600 * 6))) == "broken_chain"


def test_a_block_that_is_easier_than_any_may_be_is_refused() -> None:
    assert reason(chain_of(2), MAIN) == "not_enough_work"


def test_the_difficulty_does_not_change_in_between() -> None:
    for network in (REGTEST, ADAPTING):
        assert reason(chain_of(4, bits=lambda at: HARDER if at < 2 else EASY), network) == "not_enough_work"
        assert reason(chain_of(4, bits=lambda at: EASY if at < 2 else HARDER), network) == "not_enough_work"


@pytest.mark.parametrize(("factor", "is_taken"), [(1, True), (2, True), (4, True), (5, False), (8, False)])
def test_the_difficulty_falls_by_four_at_most_where_it_may_change(factor: int, is_taken: bool) -> None:
    hard = target_of(bits_of(REGTEST.easiest // 16))
    headers = chain_of(4, bits=lambda at: bits_of(hard if at < 2 else hard * factor))
    if is_taken:
        assert len(read(headers, ADAPTING, PERIOD - 2)) == 4
    else:
        assert reason(headers, ADAPTING, PERIOD - 2) == "not_enough_work"


def test_the_difficulty_of_a_new_period_follows_from_a_whole_one_before_it() -> None:
    hard = target_of(bits_of(REGTEST.easiest // 8))

    def easier_after(at: int) -> int:
        return bits_of(hard * (2 if at >= PERIOD else 1))

    # So many seconds that blocks took twice as long as they should.
    slow = chain_of(PERIOD + 1, bits=easier_after, time=lambda at: 1_000_000_000 + 14 * 86_400 * 2 * at // (PERIOD - 1))
    assert len(read(slow, ADAPTING, PERIOD * 3)) == PERIOD + 1
    fast = chain_of(PERIOD + 1, bits=easier_after, time=lambda at: 1_000_000_000 + 600 * at)
    assert reason(fast, ADAPTING, PERIOD * 3) == "not_enough_work"


def test_more_headers_than_two_weeks_have_are_refused() -> None:
    for data in (b"", GENESIS[:-1], GENESIS * (MAX_HEADERS + 1)):
        with pytest.raises(ProofRefused) as refused:
            read_chain(data, [], MAIN)
        assert refused.value.reason == "malformed"

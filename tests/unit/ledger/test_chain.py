from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import LedgerCorrupt
from trunkline.ledger.chain import GENESIS, Row, link, verified

DATA = st.lists(st.binary(max_size=20), min_size=1, max_size=8)


def chained(entries: list[bytes]) -> list[Row]:
    rows: list[Row] = []
    before = GENESIS
    for number, data in enumerate(entries, 1):
        before = link(before, data)
        rows.append((number, data, before))
    return rows


def test_a_hash_covers_the_entry_and_the_hash_before_it() -> None:
    assert link(b"\x01" * 32, b"data") == hashlib.sha256(b"\x01" * 32 + b"data").digest()
    # Written down once: a ledger of any version begins here.
    assert GENESIS.hex() == hashlib.sha256(b"trunkline ledger 1").hexdigest()


@given(DATA)
def test_what_was_chained_is_proved(entries: list[bytes]) -> None:
    assert [data for _, data, _ in verified(chained(entries), 1, GENESIS)] == entries


@given(DATA, st.data())
def test_any_flipped_bit_is_named_by_its_entry(entries: list[bytes], data: st.DataObject) -> None:
    rows = chained(entries)
    which = data.draw(st.integers(0, len(rows) - 1))
    number, body, stored = rows[which]
    assert body is not None
    if body and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(body) * 8 - 1))
        body = bytes(byte ^ (1 << at % 8 if place == at // 8 else 0) for place, byte in enumerate(body))
    else:
        at = data.draw(st.integers(0, 255))
        stored = bytes(byte ^ (1 << at % 8 if place == at // 8 else 0) for place, byte in enumerate(stored))
    rows[which] = (number, body, stored)
    proved = []
    with pytest.raises(LedgerCorrupt) as caught:
        proved.extend(verified(rows, 1, GENESIS))
    assert caught.value.number == number
    assert len(proved) == which


@given(st.lists(st.binary(max_size=20), min_size=3, max_size=8, unique=True), st.data())
def test_removed_repeated_and_swapped_entries_are_noticed(entries: list[bytes], data: st.DataObject) -> None:
    rows = chained(entries)
    which = data.draw(st.integers(0, len(rows) - 2))
    how = data.draw(st.sampled_from(["removed", "repeated", "swapped", "swapped contents"]))
    if how == "removed":
        del rows[which]
    elif how == "repeated":
        rows.insert(which, rows[which])
    elif how == "swapped":
        rows[which], rows[which + 1] = rows[which + 1], rows[which]
    else:
        one, other = rows[which], rows[which + 1]
        rows[which], rows[which + 1] = (one[0], *other[1:]), (other[0], *one[1:])
    with pytest.raises(LedgerCorrupt) as caught:
        list(verified(rows, 1, GENESIS))
    assert caught.value.number == which + (2 if how == "repeated" else 1)


def test_a_row_that_is_no_longer_bytes_is_damaged() -> None:
    for broken in (None, "text", 7):
        with pytest.raises(LedgerCorrupt, match="entry 1"):
            list(verified([(1, broken, b"")], 1, GENESIS))  # type: ignore[list-item]

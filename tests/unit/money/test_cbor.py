from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.money.cbor import decode, encode
from trunkline.money.refusals import ProofRefused

LEAVES = st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.binary(max_size=80) | st.text(max_size=40)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
# Appendix A of RFC 8949, the part of it that tokens have.
EXAMPLES: list[tuple[Any, str]] = [
    (0, "00"), (10, "0a"), (23, "17"), (24, "1818"), (100, "1864"), (1000, "1903e8"), (1000000, "1a000f4240"),
    (1000000000000, "1b000000e8d4a51000"), (18446744073709551615, "1bffffffffffffffff"), (False, "f4"), (True, "f5"),
    (None, "f6"), (b"", "40"), (bytes.fromhex("01020304"), "4401020304"), ("", "60"), ("IETF", "6449455446"),
    ("\u00fc", "62c3bc"), ("\u6c34", "63e6b0b4"), ([], "80"), ([1, [2, 3], [4, 5]], "8301820203820405"), ({}, "a0"),
    ({"a": 1, "b": [2, 3]}, "a26161016162820203"), (["a", {"b": "c"}], "826161a161626163"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "data"), EXAMPLES)
def test_the_examples_of_the_standard_are_read_and_written(value: Any, data: str) -> None:
    assert decode(bytes.fromhex(data)) == value
    assert encode(value).hex() == data


@given(VALUES)
def test_what_is_written_is_read_as_the_same_value(value: Any) -> None:
    assert decode(encode(value)) == value


def test_what_was_left_out_in_the_javascript_way_is_null() -> None:
    assert decode(b"\xf7") is None


@pytest.mark.parametrize(
    "data",
    [
        "", "18", "1901", "20", "39ffff", "41", "5f42010243030405ff", "61ff", "62c3", "7f657374726561646d696e67ff",
        "81",
        "9f01ff", "a1", "a161", "a10102", "a2616101616102", "bf61610161629f0203ffff", "c074", "f0", "f90000",
        "fb3ff199999999999a", "ff", "0000", "9bffffffffffffffff", "5bffffffffffffffff", "bbffffffffffffffff",
        "81" * 12 + "80", "1c", "1f", "f8ff",
    ],
)  # fmt: skip
def test_what_no_token_has_or_what_ends_too_early_is_refused(data: str) -> None:
    with pytest.raises(ProofRefused) as refused:
        decode(bytes.fromhex(data))
    assert refused.value.reason == "malformed"


def test_a_number_of_more_than_64_bits_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        encode(2**64)

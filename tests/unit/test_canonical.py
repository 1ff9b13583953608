from __future__ import annotations

import json
import math
import struct

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from trunkline import canonical as module
from trunkline.canonical import canonical

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SMALL = st.integers(-(2**53) + 1, 2**53 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def values(leaves: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12)


DOUBLES = values(st.none() | st.booleans() | SMALL | FLOATS | TEXT)
ANY = values(st.none() | st.booleans() | st.integers() | FLOATS | TEXT)


@given(DOUBLES)
def test_every_value_of_the_rfc_is_written_as_the_reference_writes_it(value: object) -> None:
    assert canonical(json.dumps(value).encode()) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(ANY)
def test_the_canonical_form_of_a_canonical_form_is_itself(value: object) -> None:
    once = canonical(json.dumps(value).encode())
    assert canonical(once) == once
    # A double may be written like an integer that is not equal to it, but always reads back as that double.
    assert json.loads(once, parse_int=float) == json.loads(json.dumps(value), parse_int=float)


@given(st.dictionaries(TEXT, ANY), st.randoms())
def test_the_order_and_spelling_in_which_a_value_was_written_do_not_matter(
    value: dict[str, object], random: object
) -> None:
    names = list(value)
    random.shuffle(names)  # type: ignore[attr-defined]
    other = json.dumps({name: value[name] for name in names}, ensure_ascii=False, indent=3)
    assert canonical(other.encode()) == canonical(json.dumps(value).encode())


@given(st.integers())
def test_an_integer_of_any_size_stays_as_written(number: int) -> None:
    assert canonical(b'{"id": %d}' % number) == b'{"id":%d}' % number


def test_two_ids_that_are_one_double_keep_two_forms() -> None:
    assert float(2**53) == float(2**53 + 1)
    assert canonical(b"9007199254740992") != canonical(b"9007199254740993")
    assert canonical(b"[18446744073709551617]") == b"[18446744073709551617]"


def test_the_example_of_the_rfc() -> None:
    given_text = rb"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    wanted = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(given_text) == wanted.encode()


def test_keys_are_ordered_by_utf_16_code_units() -> None:
    # U+1F600 is D83D DE00 in UTF-16, before U+FB33; its code point is after it.
    assert canonical('{"\ufb33":1,"\U0001f600":2}'.encode()) == '{"\U0001f600":2,"\ufb33":1}'.encode()


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (b"-0", b"0"),
        (b"-0.0", b"0"),
        (b"1.0", b"1"),
        (b"1e2", b"100"),
        (b"[1e2]", b"[100]"),
        (b' "a:1.5" ', b'"a:1.5"'),
        (b'"\\u007f\\/\\u2028"', '"\x7f/\u2028"'.encode()),
        (b'{"b":1,"a":{"d":[],"c":{}}}', b'{"a":{"c":{},"d":[]},"b":1}'),
    ],
)
def test_one_spelling_for_each_value(written: bytes, wanted: bytes) -> None:
    assert canonical(written) == wanted
    assert canonical(Raw(written)) == wanted


@given(st.integers(0, 2**64 - 1))
def test_every_double_is_written_so_that_it_reads_back_as_itself(bits: int) -> None:
    number = struct.unpack(">d", struct.pack(">Q", bits))[0]
    if not math.isfinite(number):
        return
    form = canonical(orjson.dumps(number))
    assert float(form) == number


@pytest.mark.parametrize("broken", [b"", b"{", b"NaN", b"[1,]", b"1e999", b'"\\ud800"', b"\xff"])
def test_what_is_not_json_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError):
        canonical(broken)


def test_a_time_with_a_fraction_of_a_second_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: object) -> bytes:
        raise AssertionError("the slow path")

    monkeypatch.setattr(module, "_written", slow)
    assert canonical(b'{"z": "2026-01-16T12:00:48.123Z", "a": [1, "12:00:48.5"]}') == (
        b'{"a":[1,"12:00:48.5"],"z":"2026-01-16T12:00:48.123Z"}'
    )
    for number in (b"1.5", b"[1.5]", b"[1,1.5]", b'{"a":1.5}', b'{"a":{"b":-1e30}}', b"[36893488147419103232]"):
        with pytest.raises(AssertionError, match="the slow path"):
            canonical(number)

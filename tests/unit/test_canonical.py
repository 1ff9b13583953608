from __future__ import annotations

import hashlib
import json
import math
import struct
from decimal import Decimal

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.requirement import requirement
from trunkline import canonical as module
from trunkline.canonical import canonical, exact, openagents, openagents_hash
from trunkline.strictjson import NotStrictJson

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


@pytest.mark.slow
@given(st.dictionaries(TEXT, ANY), st.randoms())
def test_the_order_and_spelling_in_which_a_value_was_written_do_not_matter(
    value: dict[str, object], random: object
) -> None:
    names = list(value)
    random.shuffle(names)  # type: ignore[attr-defined]
    other = json.dumps({name: value[name] for name in names}, ensure_ascii=False, indent=3)
    assert canonical(other.encode()) == canonical(json.dumps(value).encode())


@given(st.dictionaries(TEXT, ANY, min_size=1))
def test_a_member_that_is_left_out_is_as_one_that_was_never_there(value: dict[str, object]) -> None:
    name = next(iter(value))
    data, rest = json.dumps(value).encode(), {other: value[other] for other in value if other != name}
    assert canonical(data, without=name) == canonical(json.dumps(rest).encode())
    assert canonical(json.dumps(rest).encode(), without=name) == canonical(json.dumps(rest).encode())


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


# The six values whose forms RFC 8785's authors publish (the files `input` and `output` of its test data).
PUBLISHED = {
    "arrays": (b'[ 56, { "d": true, "10": null, "1": [ ] } ]', b'[56,{"1":[],"10":null,"d":true}]'),
    "french": (
        '{"peach": "This sorting order", "p\u00e9ch\u00e9": "is wrong according to French",'
        '"p\u00eache": "but canonicalization MUST", "sin": "ignore locale"}'.encode(),
        '{"peach":"This sorting order","p\u00e9ch\u00e9":"is wrong according to French",'
        '"p\u00eache":"but canonicalization MUST","sin":"ignore locale"}'.encode(),
    ),
    "structures": (
        (
            b'{"1": {"f": {"f": "hi","F": 5} ,"\\n": 56.0}, "10": { }, "": "empty", "a": { },'
            b'"111": [ {"e": "yes","E": "no" } ], "A": { } }'
        ),
        b'{"":"empty","1":{"\\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}',
    ),
    "unicode": (b'{"Unnormalized Unicode":"A\\u030a"}', '{"Unnormalized Unicode":"A\u030a"}'.encode()),
    "values": (
        (
            b'{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
            b'"string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/", "literals": [null, true, false]}'
        ),
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'.encode(),
    ),
    "weird": (
        (
            b'{"\\u20ac": "Euro Sign", "\\r": "Carriage Return", "\\u000a": "Newline", "1": "One",'
            b'"\\u0080": "Control\\u007f", "\\ud83d\\ude02": "Smiley", "\\u00f6": "Latin", "\\ufb33": "Hebrew",'
            b'"</script>": "Browser Challenge"}'
        ),
        '{"\\n":"Newline","\\r":"Carriage Return","1":"One","</script>":"Browser Challenge","\u0080":"Control\u007f",'
        '"\u00f6":"Latin","\u20ac":"Euro Sign","\U0001f602":"Smiley","\ufb33":"Hebrew"}'.encode(),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_vectors_of_rfc_8785(name: str) -> None:
    written, wanted = PUBLISHED[name]
    assert canonical(written) == wanted


# The doubles of RFC 8785's appendix B, by their bits.
@pytest.mark.parametrize(
    ("bits", "wanted"),
    [
        ("0000000000000000", b"0"),
        ("8000000000000000", b"0"),
        ("0000000000000001", b"5e-324"),
        ("8000000000000001", b"-5e-324"),
        ("7fefffffffffffff", b"1.7976931348623157e+308"),
        ("4340000000000000", b"9007199254740992"),
        ("4430000000000000", b"295147905179352830000"),
        ("44b52d02c7e14af5", b"9.999999999999997e+22"),
        ("44b52d02c7e14af6", b"1e+23"),
        ("444b1ae4d6e2ef4e", b"999999999999999700000"),
        ("444b1ae4d6e2ef4f", b"999999999999999900000"),
        ("444b1ae4d6e2ef50", b"1e+21"),
        ("3eb0c6f7a0b5ed8c", b"9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", b"0.000001"),
        ("41b3de4355555553", b"333333333.3333332"),
        ("becbf647612f3696", b"-0.0000033333333333333333"),
        ("43143ff3c1cb0959", b"1424953923781206.2"),
    ],
)
def test_the_numbers_of_rfc_8785(bits: str, wanted: bytes) -> None:
    number = struct.unpack(">d", bytes.fromhex(bits))[0]
    assert canonical(orjson.dumps(number)) == wanted


# --- the form of OpenAgents -------------------------------------------------------------------------------------------

IN_64_BITS = st.integers(-(2**63), 2**64 - 1)
ANY_OPENAGENTS = values(st.none() | st.booleans() | IN_64_BITS | FLOATS | TEXT)
BMP = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF))
SAFE = st.recursive(
    st.none() | st.booleans() | SMALL | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(BMP, inner),
    max_leaves=12,
)


def carefully(data: bytes) -> bytes:
    return module._written_carefully(json.loads(data, parse_int=module._integer))


@requirement("OA-096", "OA-098", "OA-100")
@given(ANY_OPENAGENTS)
def test_the_fast_and_the_careful_path_of_openagents_give_the_same_bytes(value: object) -> None:
    for written in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert openagents(written.encode()) == carefully(written.encode())


@given(st.integers(0, 2**64 - 1))
def test_every_double_reads_back_from_its_openagents_form_and_stays_a_float(bits: int) -> None:
    number = struct.unpack(">d", struct.pack(">Q", bits))[0]
    if not math.isfinite(number):
        return
    form = openagents(json.dumps(number).encode())
    assert form == carefully(json.dumps(number).encode())
    assert struct.pack(">d", float(form)) == struct.pack(">d", number)
    assert b"." in form or b"e" in form
    assert b"+" not in form


@given(ANY_OPENAGENTS)
def test_the_openagents_form_of_such_a_form_is_itself(value: object) -> None:
    once = openagents(json.dumps(value).encode())
    assert openagents(once) == once
    assert json.loads(once) == value


@pytest.mark.slow
@requirement("OA-096", "OA-098")
@given(st.dictionaries(TEXT, ANY_OPENAGENTS), st.randoms())
def test_permuted_members_have_one_openagents_form(value: dict[str, object], random: object) -> None:
    names = list(value)
    random.shuffle(names)  # type: ignore[attr-defined]
    other = json.dumps({name: value[name] for name in names}, indent=2)
    assert openagents(other.encode()) == openagents(json.dumps(value).encode())


@given(SAFE)
def test_strings_and_safe_integers_have_one_form_in_both_profiles(value: object) -> None:
    data = json.dumps(value).encode()
    assert openagents(data) == canonical(data)


# Each case in which the two profiles differ.
@pytest.mark.parametrize(
    ("written", "in_openagents", "in_rfc8785"),
    [
        (b"1.0", b"1.0", b"1"),
        (b"-0.0", b"-0.0", b"0"),
        (b"-0", b"-0.0", b"0"),
        (b'{"a": [-0 ,-0]}', b'{"a":[-0.0,-0.0]}', b'{"a":[0,0]}'),
        (b"1e2", b"100.0", b"100"),
        (b"1e15", b"1000000000000000.0", b"1000000000000000"),
        (b"9007199254740993.0", b"9007199254740992.0", b"9007199254740992"),
        (b"1e16", b"1e16", b"10000000000000000"),
        (b"-1.5e16", b"-1.5e16", b"-15000000000000000"),
        (b"1e21", b"1e21", b"1e+21"),
        (b"1e-6", b"1e-6", b"0.000001"),
        (b"0.0000012", b"1.2e-6", b"0.0000012"),
        (
            '{"\U0001f600":2,"\ufb33":1}'.encode(),
            '{"\ufb33":1,"\U0001f600":2}'.encode(),
            '{"\U0001f600":2,"\ufb33":1}'.encode(),
        ),
    ],
)
def test_the_two_profiles_differ_exactly_here(written: bytes, in_openagents: bytes, in_rfc8785: bytes) -> None:
    assert openagents(written) == in_openagents
    assert canonical(written) == in_rfc8785


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (b"0.00001", b"0.00001"),
        (b"-9.5e-5", b"-0.000095"),
        (b"0.0001", b"0.0001"),
        (b"1.5e-7", b"1.5e-7"),
        (b"9999999999999998.0", b"9999999999999998.0"),
        (b"5e-324", b"5e-324"),
        (b"1.7976931348623157e308", b"1.7976931348623157e308"),
        (b"18446744073709551615", b"18446744073709551615"),
        (b"-9223372036854775808", b"-9223372036854775808"),
        (b"[9007199254740993, 0.1e1]", b"[9007199254740993,1.0]"),
        (b'"e-5, e+5, -0, 1e+5 and [-0]"', b'"e-5, e+5, -0, 1e+5 and [-0]"'),
        (b"[true, false, null, [], {}]", b"[true,false,null,[],{}]"),
    ],
)
@requirement("OA-100")
def test_one_openagents_spelling_for_each_scalar(written: bytes, wanted: bytes) -> None:
    assert openagents(written) == wanted
    assert openagents(Raw(written)) == wanted


@requirement("OA-100")
def test_strings_and_keys_are_escaped_as_serde_json_does() -> None:
    text = "".join(map(chr, range(0x20))) + '"\\/\x7f\x80\u2028\u00e9\U0001f600'
    escaped = (
        r"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f"
        r"\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c\u001d\u001e\u001f"
        '\\"\\\\/\x7f\x80\u2028\u00e9\U0001f600'
    )
    written = json.dumps({text: [text, 1e300]}).encode()
    assert openagents(written) == f'{{"{escaped}":["{escaped}",1e300]}}'.encode()
    # A key with a quote is no second way to write another object.
    assert openagents(b'{"a\\":1,\\"b": 2}') != openagents(b'{"a": 1, "b": 2}')


@requirement("OA-099")
def test_the_order_of_an_array_is_part_of_the_hash() -> None:
    assert openagents(b"[2, 1]") == b"[2,1]"
    assert openagents_hash(b"[2,1]") != openagents_hash(b"[1,2]")


@requirement("OA-095", "OA-101")
def test_a_hash_is_sha256_of_the_form_with_its_prefix() -> None:
    empty = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert openagents_hash(b" { } ") == empty
    assert openagents_hash(Raw(b"{}")) == f"sha256:{hashlib.sha256(b'{}').hexdigest()}" == empty
    nested = b'{"b": {"d": 1, "c": [2.0, "\xc3\xa9"]}, "a": null}'
    form = b'{"a":null,"b":{"c":[2.0,"\xc3\xa9"],"d":1}}'
    assert openagents_hash(nested) == f"sha256:{hashlib.sha256(form).hexdigest()}"


@requirement("OA-097")
def test_the_whole_of_a_large_value_is_hashed() -> None:
    large = json.dumps({"text": "x" * 10 * 1_048_576}).encode()
    assert openagents_hash(large) == f"sha256:{hashlib.sha256(large.replace(b': ', b':')).hexdigest()}"
    assert openagents_hash(large[:-2] + b'y"}') != openagents_hash(large)


@pytest.mark.parametrize(
    "refused",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b'"\\ud800"',
        b"\xff",
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":1}',
        b"18446744073709551616",
        b"-9223372036854775809",
        b"[" + b"9" * 5000 + b"]",
        b"[" * 200 + b"]" * 200,
    ],
)
def test_what_others_might_read_otherwise_has_no_openagents_form(refused: bytes) -> None:
    with pytest.raises(NotStrictJson):
        openagents(refused)


def test_an_ordinary_value_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: object) -> bytes:
        raise AssertionError("the careful path")

    monkeypatch.setattr(module, "_written_carefully", slow)
    ordinary = b'{"when":"2026-01-05T10:00:00.5Z","id":9007199254740993,"score":0.25,"note":"re-do, free-for-all"}'
    assert json.loads(openagents(ordinary)) == json.loads(ordinary)
    for other in (b"1e16", b"[1.5e-7]", b"-0", b"[-0]"):
        with pytest.raises(AssertionError, match="the careful path"):
            openagents(other)


# --- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("123456789012345680000", "123456789012345678901.0"),
        ("123456789012345680000.0", "123456789012345678901.0"),
        ("1", "1.0000000000000000001"),
        ("1", "1e-99999999"),
        ("0", "1e-400"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("9007199254740993.0", "9007199254740992.0"),
        ("1.5e-9" + "9" * 30, "1.5e-9" + "9" * 31),
        ("0." + "1" * 5000, "0." + "1" * 5001),
    ],
)
def test_two_numbers_that_differ_as_they_are_written_never_have_one_exact_form(one: str, other: str) -> None:
    assert exact(b'{"n":%s}' % one.encode()) != exact(b'{"n":%s}' % other.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "10e-1"),
        ("0", "-0.0"),
        ("0.10", "1e-1"),
        ("123456789012345678901", "123456789012345678901.0"),
    ],
)
def test_one_number_has_one_exact_form_however_it_is_written(one: str, other: str) -> None:
    assert exact(one.encode()) == exact(other.encode())


@given(ANY)
def test_what_a_double_holds_has_its_canonical_form(value: object) -> None:
    written = json.dumps(value).encode()
    assert exact(written) == canonical(written)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
def test_exact_forms_are_equal_only_where_the_numbers_are(one: Decimal, other: Decimal) -> None:
    texts = [f"{number:E}" for number in (one, other)]
    try:
        forms = [exact(text.encode()) for text in texts]
    except ValueError:  # no double is so large
        return
    assert (forms[0] == forms[1]) <= (one == other)

"""What passes and what is refused as JSON, and that judging it never gets out of hand."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from trunkline import strictjson
from trunkline.strictjson import MAX_CONTAINERS, MAX_DEPTH, NotStrictJson, check, load

# name, bytes, a word of the fault
TRAPS: list[tuple[str, bytes, str]] = [
    ("empty", b"", "empty"),
    ("only spaces", b"   ", ""),
    ("NaN", b'{"a":NaN}', "unexpected"),
    ("Infinity", b'{"a":Infinity}', "unexpected"),
    ("minus Infinity", b'{"a":-Infinity}', ""),
    ("a number no double holds", b'{"a":1e999}', "infinity"),
    ("a negative number no double holds", b'{"a":-1e999}', "infinity"),
    ("5,000 digits", b'{"a":' + b"9" * 5000 + b"}", "infinity"),
    ("duplicate key", b'{"a":1,"a":2}', "twice"),
    ("duplicate key with spaces", b'{"a": 1, "a": 2}', "twice"),
    ("duplicate key below", b'{"x":[{"a":1,"b":2,"a":3}]}', "twice"),
    ("duplicate key by an escape", b'{"a":1,"\\u0061":2}', "twice"),
    ("duplicate key that an escaped colon makes up for", b'{"a": 1, "a": "\\u003a"}', "twice"),
    ("duplicate key beside colons in strings", b'{"a": ":", "b": ":", "a": 1}', "twice"),
    ("duplicate empty key", b'{"":1,"":2}', "twice"),
    ("duplicate key with a quote in it", b'{"\\"":1,"\\"":2}', "twice"),
    ("duplicate key with equal values", b'{"a":1,"a":1}', "twice"),
    ("duplicate key that drops a whole branch", b'{"a":{"b":{"c":1}},"a":{}}', "twice"),
    ("deeper than the limit, arrays", b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deeper"),
    ("deeper than the limit, objects", b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "deeper"),
    ("deeper than what the writer can", b"[" * 300 + b"]" * 300, "deeper"),
    ("100,000 deep", b"[" * 100_000 + b"]" * 100_000, ""),
    ("100,000 deep and open", b"[" * 100_000, ""),
    ("lone high surrogate", b'{"a":"\\ud800"}', "surrogate"),
    ("lone low surrogate", b'{"a":"\\udc00"}', "surrogate"),
    ("surrogates in the wrong order", b'{"a":"\\udc00\\ud800"}', "surrogate"),
    ("surrogate as UTF-8", b'{"a":"\xed\xa0\x80"}', "UTF-8"),
    ("byte order mark", b"\xef\xbb\xbf{}", "byte order mark"),
    ("UTF-16 with mark", '{"a":1}'.encode("utf-16"), "UTF-16"),
    ("UTF-16 without mark", '{"a":1}'.encode("utf-16-le"), "UTF-16"),
    ("UTF-32", '{"a":1}'.encode("utf-32-be"), "UTF-16"),
    ("invalid UTF-8", b'{"a":"\xff"}', "UTF-8"),
    ("overlong UTF-8", b'{"a":"\xc0\xaf"}', "UTF-8"),
    ("cut UTF-8", b'{"a":"\xc3"}', "UTF-8"),
    ("NUL in a string", b'{"a":"\x00"}', "control"),
    ("NUL after the value", b"{}\x00", ""),
    ("line end in a string", b'{"a":"\n"}', "control"),
    ("text after the value", b"{} x", "after"),
    ("two values", b"{}{}", "after"),
    ("trailing comma", b'{"a":1,}', "comma"),
    ("comment", b'{"a":1/*x*/}', ""),
    ("single quotes", b"{'a':1}", ""),
    ("leading zero", b'{"a":01}', "zero"),
    ("plus sign", b'{"a":+1}', ""),
    ("bare point", b'{"a":.5}', ""),
    ("hexadecimal", b'{"a":0x10}', ""),
    ("unknown escape", b'{"a":"\\x41"}', ""),
    ("cut in the middle", b'{"a":[1,2', ""),
    ("unquoted key", b"{a:1}", ""),
    ("True of Python", b'{"a":True}', ""),
]

GOOD: list[tuple[str, bytes]] = [
    ("empty object", b"{}"),
    ("pretty printed", b'{\r\n\t"a": [1, 2],\n\t"b": {"c": null}\n}\n'),
    ("minus zero", b'{"a":-0,"b":-0.0}'),
    ("beyond 2^53", b'{"a":9007199254740993}'),
    ("beyond 2^64", b'{"a":123456789012345678901234567890}'),
    ("small exponent", b'{"a":1E-999,"b":1.50,"c":1e2}'),
    ("same key in other objects", b'{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}'),
    ("brackets and colons in strings", b'{"a":"}{:\\":{[","b:":"::"}'),
    ("backslashes before quotes", rb'{"a\\":"\\\\","b":"\\\"","c\\\"":1}'),
    ("surrogate pair", b'{"a":"\\ud83d\\ude00"}'),
    ("astral characters", '{"a":"😀","ключ":"é"}'.encode()),
    ("escaped slash and NUL", b'{"a":"\\/\\u0000"}'),
    ("exactly as deep as allowed", b"[" * MAX_DEPTH + b"]" * MAX_DEPTH),
    ("many brackets, none deep", b"[" + b"[],{}," * 5000 + b"[]]"),
]


@requirement("OS-014")
@pytest.mark.parametrize(("data", "word"), [trap[1:] for trap in TRAPS], ids=[trap[0] for trap in TRAPS])
def test_traps_are_refused_with_a_reason(data: bytes, word: str) -> None:
    with pytest.raises(NotStrictJson) as caught:
        check(data)
    assert word in caught.value.fault
    assert caught.value.fault
    assert caught.value.at is None or 0 <= caught.value.at <= len(data)


def test_the_table_has_the_thirty_traps_that_are_promised() -> None:
    assert len(TRAPS) >= 30


@pytest.mark.parametrize("data", [good[1] for good in GOOD], ids=[good[0] for good in GOOD])
def test_good_json_passes_in_any_spelling(data: bytes) -> None:
    check(data)


@pytest.mark.parametrize("data", [b"[]", b'"{}"', b"1", b"null", b"true"])
def test_only_objects_pass_where_an_object_is_wanted(data: bytes) -> None:
    check(data)
    with pytest.raises(NotStrictJson, match="not a JSON object"):
        check(data, want_object=True)


def test_the_place_of_a_fault_is_counted_in_bytes() -> None:
    with pytest.raises(NotStrictJson) as caught:
        check('{"é😀":1x}'.encode())
    assert caught.value.at == len('{"é😀":1'.encode())
    with pytest.raises(NotStrictJson) as caught:
        check(b'{"b":{"a":1}, "c":[{"a":1, "a":2}]}')
    assert caught.value.at == 27


def test_a_fault_never_quotes_the_data() -> None:
    for data in (b'{"a":"hunter2"x}', b'{"hunter2":1,"hunter2":2}', b'{"a":hunter2}', b'"hunter2\xff"'):
        with pytest.raises(NotStrictJson) as caught:
            check(data)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("limit", [2, 3, 31, 32, 64])
def test_depth_is_judged_exactly_at_the_limit(limit: int) -> None:
    shapes = [
        lambda n: b"[" * n + b"]" * n,
        lambda n: b'{"a":' * n + b"1" + b"}" * n,
        lambda n: b"[" + b",".join([b"[" * (n - 1) + b"]" * (n - 1)] * 9 + [b"[]"] * 99) + b"]",
        lambda n: b'[{"]":"' + b"[" * 99 + b'"},' + b"[" * (n - 1) + b"]" * (n - 1) + b"]",
    ]
    for shape in shapes:
        check(shape(limit), max_depth=limit)
        with pytest.raises(NotStrictJson, match="deeper"):
            check(shape(limit + 1), max_depth=limit)


@pytest.mark.parametrize("size", [10_000, 100_000])
@pytest.mark.parametrize("opened", [b"[", b'{"a":'])
def test_depth_is_judged_exactly_beside_a_long_text_too(size: int, opened: bytes) -> None:
    def shape(depth: int) -> bytes:
        closed = b"]" if opened == b"[" else b"}"
        return b'["%b",%b1%b]' % (b"x" * size, opened * (depth - 1), closed * (depth - 1))

    check(shape(100))
    check(b'["%b[",%b]' % (b"[{" * size, b"[" * 99 + b"]" * 99))
    with pytest.raises(NotStrictJson, match="deeper than 100"):
        check(shape(101))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)
spellings = st.sampled_from(
    [{"ensure_ascii": True}, {"ensure_ascii": False}, {"indent": 2}, {"separators": (",", ":")}, {"indent": "\t"}]
)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


@pytest.mark.slow
@given(json_values, spellings)
def test_whatever_the_standard_library_writes_passes(value: object, spelling: dict[str, Any]) -> None:
    data = json.dumps(value, **spelling).encode()
    check(data)
    assert load(data) == orjson.loads(data)


@given(st.dictionaries(texts, st.integers(0, 9), min_size=1))
def test_a_key_repeated_anywhere_is_found_in_any_spelling(pairs: dict[str, int]) -> None:
    for ascii_only in (True, False):
        lines = [f"{json.dumps(key, ensure_ascii=ascii_only)}: {value}" for key, value in pairs.items()]
        for sep in (", ", ","):
            once = "{" + sep.join(lines) + "}"
            check(f"[{once}, {once}]".encode())
            for line in lines:
                with pytest.raises(NotStrictJson, match="twice"):
                    check(f"[{{}}, {{{sep.join([*lines, line])}}}]".encode())


@given(json_values, st.integers(1, 8))
def test_depth_agrees_with_a_simple_walk(value: object, limit: int) -> None:
    data = json.dumps(value).encode()
    if _depth(value) > limit:
        with pytest.raises(NotStrictJson, match="deeper"):
            check(data, max_depth=limit)
    else:
        check(data, max_depth=limit)


@given(st.binary(max_size=200) | st.text('{}[]":,\\ue0178 ', max_size=60).map(str.encode))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        value = load(data)
    except NotStrictJson:
        return
    assert json.loads(data) is not None or value is None


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"[" + b",".join([b"[]"] * 1_398_000) + b"]",
        lambda: b"[" + b",".join([b"[" * 63 + b"]" * 63] * 33_000) + b"]",
        lambda: b"[" * 2_097_152 + b"]" * 2_097_152,
        lambda: b"[" + b",".join([b"[" * 1023 + b"]" * 1023] * 2_000) + b"]",
        lambda: b'["' + b'\\"' * 2_097_000 + b'", 1]',
        lambda: b"{" + b", ".join(b'"%d":1' % i for i in range(300_000)) + b"}",
        lambda: b"{" + b", ".join([*(b'"%d":1' % i for i in range(300_000)), b'"7":1']) + b"}",
        lambda: b'["' + b"\\" * 4_194_000 + b'"]',
        lambda: b"\xc3\xa9" * 2_000_000,
    ],
    ids=["arrays", "64 deep", "all open", "1024 deep", "quotes", "keys", "a duplicate at the end", "backslashes", "é"],
)
def test_four_mebibytes_made_to_be_slow_are_judged_in_linear_time(made: Callable[[], bytes]) -> None:
    data = made()
    # A quadratic step over this size would take minutes; the bound only tells the two apart on a busy machine.
    began = time.process_time()
    with contextlib.suppress(NotStrictJson):
        check(data)
    assert time.process_time() - began < 5.0


def test_the_number_of_arrays_and_objects_is_bounded_exactly() -> None:
    text = json.dumps("[{" * 300_000).encode()
    most = b"[" + text + b"," + b"[]," * (MAX_CONTAINERS - 2) + b"[]]"
    check(most)
    with pytest.raises(NotStrictJson, match="arrays and objects"):
        check(most[:-1] + b",{}]")


def test_the_collector_is_left_as_it_was_found() -> None:
    large = b"[" + b"1," * 70_000 + b"1]"
    check(large)
    assert gc.isenabled()
    with pytest.raises(NotStrictJson):
        check(large + b"x")
    assert gc.isenabled()
    gc.disable()
    try:
        check(large)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_may_come_in_is_less_than_what_is_carried() -> None:
    assert strictjson.MAX_DEPTH + 8 <= strictjson.CARRIED_DEPTH < 254, "orjson writes no deeper"
    assert strictjson.MAX_CONTAINERS + 1000 <= strictjson.CARRIED_CONTAINERS
    body = b"[" * strictjson.MAX_DEPTH + b"]" * strictjson.MAX_DEPTH
    check(body)
    frame = b'{"payload":{"input":{"a":' + body + b"}}}"
    with pytest.raises(NotStrictJson, match="deeper"):
        check(frame)
    check(frame, max_depth=strictjson.CARRIED_DEPTH, max_containers=strictjson.CARRIED_CONTAINERS)


@pytest.mark.parametrize("number", [2, 64])
def test_depth_is_judged_also_where_several_are_read_at_once(number: int) -> None:
    deep = b"[" * strictjson.MAX_DEPTH + b"]" * strictjson.MAX_DEPTH
    assert len(strictjson.load_all([deep] * number)) == number
    with pytest.raises(NotStrictJson):
        strictjson.load_all([deep] * (number - 1) + [b"[" + deep + b"]"])

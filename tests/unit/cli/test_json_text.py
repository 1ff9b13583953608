"""JSON that people write by hand: read, and changed in one place only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli import json_text
from trunkline.cli.json_text import NotJson, with_member, without_member

PATH = ("servers", "trunkline")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
COMMENTED = """// Mine, and I like it so.
{
    /* all
       of them */
    "servers": {
        "one": { "command": "x" }, // the first
        "two": { "url": "https://example.com/a//b" },
    },
    "inputs": [1, 2, ],
}
"""


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.sampled_from([None, 2, "\t"]))
def test_what_is_plain_json_is_read_as_such(value: dict[str, Any], indent: Any) -> None:
    assert json_text.read(json.dumps(value, indent=indent)) == value


def test_comments_and_commas_at_the_end_are_no_matter() -> None:
    assert json_text.read(COMMENTED) == {
        "servers": {"one": {"command": "x"}, "two": {"url": "https://example.com/a//b"}},
        "inputs": [1, 2],
    }


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), VALUES, st.sampled_from([None, 2, 4, "\t"]))
def test_a_member_that_is_added_and_removed_leaves_the_text_as_it_was(
    others: dict[str, Any], value: Any, indent: Any
) -> None:
    others.pop("trunkline", None)
    for before in ({"servers": {"x": 1, **others}}, {"servers": {"x": 1, **others}, "more": others}):
        text = json.dumps(before, indent=indent) + "\n"
        added = with_member(text, PATH, value)
        assert json_text.read(added)["servers"] == {**before["servers"], "trunkline": value}
        assert without_member(added, PATH) == text


def test_the_same_holds_with_comments() -> None:
    added = with_member(COMMENTED, PATH, {"command": "t"})
    assert json_text.read(added)["servers"]["trunkline"] == {"command": "t"}
    assert "// the first" in added
    assert without_member(added, PATH) == COMMENTED


def test_a_member_that_is_there_is_replaced_in_its_place() -> None:
    changed = with_member(COMMENTED, ("servers", "one"), {"command": "y"})
    assert json_text.read(changed)["servers"]["one"] == {"command": "y"}
    assert changed.splitlines()[-4:] == COMMENTED.splitlines()[-4:]


@pytest.mark.parametrize("text", ["", "{}", "{ }\n", '{"a": 1}', '{"servers": {}}', "// nothing\n{\n}\n"])
def test_what_is_missing_on_the_way_is_made(text: str) -> None:
    found = json_text.read(with_member(text, PATH, {"command": "t"}))
    assert found["servers"] == {"trunkline": {"command": "t"}}
    removed = json_text.read(without_member(with_member(text, PATH, 1), PATH))
    assert removed["servers"] == {}


def test_a_member_before_others_is_removed_alone() -> None:
    text = '{"servers": {"trunkline": 1, "two": 2}}'
    assert without_member(text, PATH) == '{"servers": {"two": 2}}'
    assert without_member('{"servers": 1}', ("absent", "x")) == '{"servers": 1}'


@pytest.mark.parametrize(
    "text", ["{", "[1 2]", '{"a" 1}', '{"a": 1 "b": 2}', "{} {}", "nul", '{"a": }', "'x'", "[" * 200, "/* open"]
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(NotJson):
        json_text.read(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n  "a": 1,\n  b: 2\n}', "a name in double quotes and a colon are missing at line 3, column 3"),
        ('{"a": 1\n "b": 2}', "a comma is missing before line 2, column 2"),
        ('{"a":\n}', "a value is missing at line 2, column 1"),
        ('{"a": nul}', "what stands at line 1, column 7 is no value"),
        ("{}\n{}", "there is more than one value: the second is at line 2, column 1"),
    ],
)
def test_what_is_wrong_has_a_line(text: str, said: str) -> None:
    with pytest.raises(NotJson, match=f"^{said}$"):
        json_text.read(text)


def test_an_object_that_is_none_is_not_changed() -> None:
    for text in ("[]", '{"servers": []}'):
        with pytest.raises(NotJson):
            with_member(text, PATH, 1)

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.toml_lines import KeyPath, key_lines

EVERYTHING = '''\
title = "a # no comment"   # a comment = with a key
b."c d".'e.f' = [1, {x = 2, y = [3]}, """
]} # not the end
""", ]

[t.u]                      # two tables in one header
v = \'\'\'it's\'\'\'\'
when = 1979-05-27 07:32:00
empty = ""
[[g]]
id = "\\"#["
[[g]]
id = 'two'
  [[g.h]]
  k = """"quoted""""
  [[g.h]]
  k = { deep = { deeper = true } }
[g.i]
z = [
  "one",   # [
  [ "two", "three" ],
]
[ "quoted table" . x ]
last = -1.5e3
'''


def paths(value: Any, at: KeyPath = ()) -> Iterator[KeyPath]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        yield (*at, step)
        yield from paths(child, (*at, step))


def test_every_path_that_tomllib_reads_has_a_line_and_no_other() -> None:
    assert set(key_lines(EVERYTHING)) == set(paths(tomllib.loads(EVERYTHING)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("title",), 'title = "a'),
        (("b", "c d", "e.f"), "b."),
        (("b", "c d", "e.f", 1, "y", 0), "b."),
        (("t",), "[t.u]"),
        (("t", "u"), "[t.u]"),
        (("t", "u", "v"), "v ="),
        (("t", "u", "empty"), "empty ="),
        (("g",), "[[g]]"),
        (("g", 1, "id"), "id = 'two'"),
        (("g", 1, "h", 0, "k"), 'k = """"'),
        (("g", 1, "h", 1, "k", "deep", "deeper"), "k = {"),
        (("g", 1, "i", "z", 1, 1), '[ "two"'),
        (("quoted table", "x", "last"), "last ="),
    ],
)
def test_a_path_is_found_on_the_line_where_it_is_written(path: KeyPath, text: str) -> None:
    line = EVERYTHING.splitlines()[key_lines(EVERYTHING)[path] - 1]
    assert line.strip().startswith(text)


def test_tables_of_an_array_are_told_apart_by_their_index() -> None:
    lines = key_lines(EVERYTHING)
    assert lines["g", 0] < lines["g", 0, "id"] < lines["g", 1] < lines["g", 1, "id"]


TRICKY = st.text(st.sampled_from("\"'\\#[]{}=,. \nab\t"), max_size=12)


@given(st.lists(TRICKY, min_size=1, max_size=4), st.booleans())
def test_no_text_in_a_value_hides_the_key_after_it(values: list[str], multiline: bool) -> None:
    text = ""
    for number, value in enumerate(values):
        escaped = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")[1:-1]
        quoted = f'"""\n{escaped}\n"""' if multiline else f'"{escaped}"'
        text += f"k{number} = {quoted}\n"
    read = tomllib.loads(text)
    lines = key_lines(text)
    assert set(lines) == set(paths(read))
    for number in range(len(values)):
        assert text.splitlines()[lines[f"k{number}",] - 1].startswith(f"k{number} = ")

from __future__ import annotations

from typing import Any

import pytest

from trunkline.input_conditions import MAX_CONDITIONS, compiled, fulfilled, shown


def fits(wanted: dict[str, object], value: Any, *, allows: bool = False) -> bool:
    return fulfilled(compiled(wanted), value, allows=allows)


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        ({"path": "docs/*"}, {"path": "docs/a/b"}, True),
        ({"path": "docs/*"}, {"path": "docs"}, False),
        ({"path": "docs/*"}, {"path": 7}, False),
        ({"path": "docs/*"}, {}, False),
        ({"path": "docs/*"}, [], False),
        ({"/path": "docs/*"}, {"path": "docs/a"}, True),
        ({"/files/0/name": "*.md"}, {"files": [{"name": "a.md"}]}, True),
        ({"/files/1/name": "*.md"}, {"files": [{"name": "a.md"}]}, False),
        ({"/files/-1/name": "*"}, {"files": [{"name": "a.md"}]}, False),
        ({"/a~1b~0c": "x"}, {"a/b~c": "x"}, True),
        ({"n": 5}, {"n": 5.0}, True),
        ({"n": 5}, {"n": "5"}, False),
        ({"n": 1}, {"n": True}, False),
        ({"on": True}, {"on": True}, True),
        ({"on": True}, {"on": 1}, False),
        ({"n": {">=": 1, "<": 10}}, {"n": 9}, True),
        ({"n": {">=": 1, "<": 10}}, {"n": 10}, False),
        ({"n": {"<=": 3}}, {"n": "2"}, False),
        ({"n": {"!=": 3}}, {"n": 4}, True),
        ({"n": {"!=": 3}}, {}, False),
        ({"day": {">": "2026-01-01"}}, {"day": "2026-05-01"}, True),
        ({"a": "x", "b": "y"}, {"a": "x", "b": "z"}, False),
    ],
)
def test_an_input_is_what_all_conditions_say(wanted: dict[str, object], value: Any, expected: bool) -> None:
    assert fits(wanted, value) is expected


@pytest.mark.parametrize("path", ["docs/../x", "docs/..", "../docs/x", "docs/a\\..\\x"])
def test_a_rule_that_allows_what_lies_below_a_folder_does_not_allow_the_way_out(path: str) -> None:
    wanted: dict[str, object] = {"path": "*docs*"}
    assert not fits(wanted, {"path": path}, allows=True)
    assert fits(wanted, {"path": path})
    assert fits(wanted, {"path": "docs/..a/b..c"}, allows=True)


@pytest.mark.parametrize(
    "path", ["secret/key", "./secret/key", "secret//key", "a/../secret/key", ".//secret/./key", "secret\\key"]
)
def test_a_rule_that_denies_a_path_denies_it_however_it_is_spelled(path: str) -> None:
    assert fits({"path": "secret/*"}, {"path": path})
    assert fits({"path": "secret/*"}, {"path": path}, allows=True) is (path in {"secret/key", "secret//key"})


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({}, "at least one"),
        ({"": "x"}, "no JSON pointer"),
        ({"a/b": "x"}, "no JSON pointer"),
        ({"/a~2": "x"}, "no JSON pointer"),
        ({"/" + "a/" * 16: "x"}, "deeper than 16"),
        ({"n": {}}, "expected a pattern"),
        ({"n": ["x"]}, "expected a pattern"),
        ({"n": {"=~": "x"}}, "is no comparison"),
        ({"n": {"<": True}}, "compares numbers"),
        ({"n": {"<": [1]}}, "expected a text, a number"),
        ({f"a{n}": 1 for n in range(MAX_CONDITIONS + 1)}, "at most 16"),
    ],
)
def test_what_cannot_be_a_condition_is_refused_with_what_is_wrong(wanted: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        compiled(wanted)


def test_a_person_is_shown_a_condition_as_a_pointer_and_a_comparison() -> None:
    assert [shown(one) for one in compiled({"a": "x*", "/b/c": {"<=": 3}, "d": True})] == [
        "/a like 'x*'",
        "/b/c <= 3",
        "/d == true",
    ]

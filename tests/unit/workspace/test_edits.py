"""Edits on a text, against a slow reference."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from trunkline.errors import WorkspaceError
from trunkline.workspace.edits import MAX_TEXT_CHARACTERS, Edit, apply_edits


@requirement("SP-030")
def test_each_edit_works_on_the_result_of_the_one_before() -> None:
    assert apply_edits("one", [Edit("one", "two"), Edit("two", "three")]) == "three"


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ([Edit("x", "y")], "Edit 1: oldContent not found"),
        ([Edit("a", "b"), Edit("a", "b")], "Edit 2: oldContent not found"),
        ([Edit("b", "c")], "Edit 1: oldContent occurs 3 times"),
    ],
)
def test_a_passage_that_is_missing_or_ambiguous_fails_with_its_number(edits: list[Edit], text: str) -> None:
    with pytest.raises(WorkspaceError) as failed:
        apply_edits("abbb", edits)
    assert failed.value.message == text
    assert failed.value.kind == "execution"


def test_overlapping_places_are_ambiguous_too() -> None:
    with pytest.raises(WorkspaceError, match="occurs 2 times"):
        apply_edits("aaa", [Edit("aa", "b")])


@pytest.mark.parametrize("edits", [[], [Edit("", "x")], [Edit("a", "b"), Edit("", "x")]])
def test_no_edit_and_an_edit_without_a_passage_are_invalid(edits: list[Edit]) -> None:
    with pytest.raises(WorkspaceError) as failed:
        apply_edits("a", edits)
    assert failed.value.kind == "validation"


def test_an_edit_that_changes_nothing_counts_and_line_endings_are_matched_as_they_are() -> None:
    assert apply_edits("a\r\nb", [Edit("a", "a")]) == "a\r\nb"
    with pytest.raises(WorkspaceError, match="not found"):
        apply_edits("a\r\nb", [Edit("a\nb", "x")])


def test_replace_all_replaces_all_and_still_wants_one() -> None:
    assert apply_edits("a-a-a", [Edit("a", "bb", replace_all=True)]) == "bb-bb-bb"
    with pytest.raises(WorkspaceError, match="not found"):
        apply_edits("b", [Edit("a", "x", replace_all=True)])


def test_a_text_cannot_be_blown_up_by_doubling() -> None:
    with pytest.raises(WorkspaceError, match="grow beyond"):
        apply_edits("a" * 1000, [Edit("a", "aa", replace_all=True)] * 40)
    with pytest.raises(WorkspaceError, match="Edit 1: the file would grow"):
        apply_edits("a", [Edit("a", "x" * (MAX_TEXT_CHARACTERS + 1))])


def test_counting_places_takes_linear_time() -> None:
    began = time.process_time()
    with pytest.raises(WorkspaceError):
        apply_edits("a" * 2_000_000, [Edit("a" * 1_000_000, "b")])
    assert time.process_time() - began < 5


@given(
    st.text("abc", max_size=12),
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), st.text("abcd", max_size=3))),
)
def test_it_is_what_replacing_the_one_place_by_hand_gives(text: str, pairs: list[tuple[str, str]]) -> None:
    expected: str | None = text
    for old, new in pairs:
        assert expected is not None
        places = [at for at in range(len(expected)) if expected.startswith(old, at)]
        if len(places) != 1:
            expected = None
            break
        expected = expected[: places[0]] + new + expected[places[0] + len(old) :]
    edits = [Edit(old, new) for old, new in pairs]
    if expected is None or not edits:
        with pytest.raises(WorkspaceError):
            apply_edits(text, edits)
    else:
        assert apply_edits(text, edits) == expected

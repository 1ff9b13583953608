"""``edges.framing.lines``."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.framing.lines import Lines


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_any_cutting_of_a_stream_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    whole, pieces = Lines(50), Lines(50)
    expected = whole.receive(data)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found = [line for start, end in itertools.pairwise(places) for line in pieces.receive(data[start:end])]
    assert (found, pieces.is_broken) == (expected, whole.is_broken)


def test_a_line_that_is_too_long_ends_the_reading_after_those_before_it() -> None:
    lines = Lines(4)
    assert lines.receive(b"ab\nabcde\nab\n") == [b"ab"]
    assert lines.trouble == "a line has more than 4 bytes"
    assert lines.receive(b"ab\n") == []


def test_what_has_not_ended_is_not_kept_beyond_the_bound() -> None:
    lines = Lines(4)
    assert lines.receive(b"abc") == []
    assert not lines.is_broken
    assert lines.receive(b"de") == []
    assert lines.is_broken

"""Names of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.topic_names import is_pattern, is_topic, matches

segment = st.sampled_from(["a", "b", "*"])
pattern = st.lists(segment, min_size=1, max_size=3).map(".".join) | st.just("#") | st.just("a.#")


@given(pattern, st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(".".join))
def test_matching_is_what_a_plain_reading_of_the_rule_says(pattern: str, topic: str) -> None:
    wanted, have = pattern.split("."), topic.split(".")

    def is_match(left: list[str], right: list[str]) -> bool:
        if left[:1] == ["#"]:
            return True
        if not left or not right:
            return left == right
        return left[0] in {"*", right[0]} and is_match(left[1:], right[1:])

    assert matches(pattern, topic) is is_match(wanted, have)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a b", "a.*", "#", "a\x7f", "a\x00", "a" * 256])
def test_nothing_is_published_on_what_is_no_topic(text: str) -> None:
    assert not is_topic(text)


@pytest.mark.parametrize("text", ["a", "a.b-c.d_1", "é", "a" * 255])
def test_a_topic_is_a_pattern_for_itself(text: str) -> None:
    assert is_topic(text)
    assert is_pattern(text)
    assert matches(text, text)


@pytest.mark.parametrize("text", ["", "#.a", "a.#.b", "a*", "a.", "*#", "a" * 256])
def test_nobody_subscribes_to_what_is_no_pattern(text: str) -> None:
    assert not is_pattern(text)

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.console.messages import CHANNELS, BadFollow, Follow, read_follow

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(["after", "kinds", "call_id", "output", "more"])


def test_what_a_page_follows_is_read() -> None:
    assert read_follow({}) == Follow()
    read = read_follow({"after": 7, "kinds": ["call.*", "notice"], "call_id": "c", "output": False, "more": 1})
    assert read == Follow(7, frozenset({"notice"}), ("call.",), "c", wants_output=False)
    assert read_follow({"after": None, "kinds": None, "call_id": None, "output": None}) == Follow()


@given(VALUES | st.dictionaries(NAMES, VALUES))
def test_nothing_that_a_page_says_raises_anything_else(data: Any) -> None:
    try:
        found = read_follow(data)
    except BadFollow:
        return
    # It is looked up by what it is.
    assert {found: 1}[found]
    assert isinstance(data, dict)


def test_all_channels_are_private() -> None:
    assert CHANNELS.names == ("private-feed", "private-registry", "private-figures")
    assert all(not CHANNELS.base_of(base) for base in CHANNELS.events)

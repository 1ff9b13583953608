"""Sessions whose ids carry all that was agreed on."""

from __future__ import annotations

import base64
import itertools

from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.mcp.session_ids import MAX_ENDED, MAX_FOUND, SessionIds

COUNT = itertools.count(1)


def ids(key: bytes = b"k" * 32) -> SessionIds:
    return SessionIds(key, lambda size: next(COUNT).to_bytes(size, "big"))


def test_an_id_says_what_was_agreed_on() -> None:
    made = ids()
    found = made.find(made.new("mcp:me", "2025-06-18", opens_urls=False), "mcp:me")
    assert found is not None
    assert (found.version, found.opens_urls) == ("2025-06-18", False)
    found = made.find(made.new("mcp:me", "2025-11-25", opens_urls=True), "mcp:me")
    assert found is not None
    assert (found.version, found.opens_urls) == ("2025-11-25", True)


def test_another_callers_id_is_no_session() -> None:
    made = ids()
    session_id = made.new("mcp:me", "2025-11-25", opens_urls=False)
    assert made.find(session_id, "mcp:me") is not None
    assert made.find(session_id, "mcp:other") is None


def test_only_so_many_sessions_are_kept_in_memory() -> None:
    made = ids()
    for _ in range(MAX_FOUND + 10):
        made.find(made.new("mcp:me", "2025-11-25", opens_urls=False), "mcp:me")
    assert len(made._found) <= MAX_FOUND


def test_a_session_goes_on_in_the_next_process_of_the_same_home_only() -> None:
    session_id = ids().new("mcp:me", "2025-11-25", opens_urls=False)
    assert ids().find(session_id, "mcp:me") is not None
    assert ids(b"other").find(session_id, "mcp:me") is None


@given(st.integers(0, 29), st.integers(1, 255))
def test_an_id_that_was_changed_is_no_session(at: int, change: int) -> None:
    made = ids()
    data = bytearray(base64.urlsafe_b64decode(made.new("mcp:me", "2025-11-25", opens_urls=False)))
    data[at] ^= change
    assert made.find(base64.urlsafe_b64encode(data).decode(), "mcp:me") is None


@given(st.text())
def test_no_text_of_a_stranger_is_a_session(text: str) -> None:
    assert ids().find(text, "mcp:me") is None


def test_a_session_that_ended_is_gone_and_only_so_many_ends_are_kept() -> None:
    made = ids()
    session_id = made.new("mcp:me", "2025-11-25", opens_urls=False)
    assert made.find(session_id, "mcp:me") is not None
    made.end(session_id)
    assert made.find(session_id, "mcp:me") is None
    for other in (session_id.rstrip("="), f"{session_id}=", session_id.replace("-", "+").replace("_", "/")):
        assert other == session_id or made.find(other, "mcp:me") is None
    for _ in range(MAX_ENDED + 10):
        made.end(made.new("mcp:me", "2025-11-25", opens_urls=False))
    assert len(made._ended) == MAX_ENDED

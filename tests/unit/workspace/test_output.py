"""What is kept of a command's output."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from trunkline.workspace.output import KEPT_BYTES, Capture


@given(st.lists(st.binary(max_size=7)))
def test_pieces_give_the_text_and_the_hash_of_the_whole(pieces: list[bytes]) -> None:
    capture = Capture()
    streamed = "".join(capture.take(piece) for piece in pieces)
    whole = b"".join(pieces)
    output = capture.finish()
    assert output.text == whole.decode(errors="replace")
    assert output.text.startswith(streamed)
    assert (output.size, output.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert not output.truncated


def test_at_the_bound_nothing_is_cut_and_one_byte_more_is() -> None:
    capture = Capture()
    capture.take(b"x" * KEPT_BYTES)
    assert not capture.finish().truncated
    capture = Capture()
    capture.take(b"x" * (KEPT_BYTES - 1))
    assert capture.take("ä".encode()) == ""
    assert capture.take(b"more") == ""
    output = capture.finish()
    assert output.truncated
    assert output.size == KEPT_BYTES + 5
    # The character that the bound cuts in two is left out, not replaced.
    assert output.text == "x" * (KEPT_BYTES - 1)

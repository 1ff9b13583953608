"""Bech32: what is written is read back, and what was changed is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.nostr.keys import Signer
from trunkline.money import bech32
from trunkline.money.bech32 import NotBech32


@given(st.binary(max_size=200))
def test_bytes_come_back(data: bytes) -> None:
    assert bech32.to_bytes(bech32.to_words(data)) == data
    assert bech32.decoded(bech32.encoded("x", bech32.to_words(data))) == ("x", bech32.to_words(data))


def test_an_npub_is_the_key_that_the_library_of_nostr_says() -> None:
    signer = Signer(bytes(31) + b"\x05")
    assert bech32.public_of(signer.npub) == signer.public


@pytest.mark.parametrize(
    "text",
    ["", "npub1", "npub1qqqqqq", "nsec" + Signer(bytes(31) + b"\x05").npub[4:], "NPUB1abC", "é1qqqqqq", "q" * 9000],
)
def test_what_is_no_npub_is_refused(text: str) -> None:
    with pytest.raises(NotBech32):
        bech32.public_of(text)

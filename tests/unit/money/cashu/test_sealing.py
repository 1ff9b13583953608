"""Tokens on their way: sealed for one home, and of no use to anybody else."""

from __future__ import annotations

import pytest

from trunkline.money.cashu.sealing import MAX_SEALED_CHARS, NONCE_BYTES, sealed, unsealed

KEY, NONCE = b"\x01" * 32, b"\x02" * NONCE_BYTES


@pytest.mark.parametrize("text", ["", "cashuB" + "o2F0" * 1000, "ü\n"])
def test_what_is_sealed_is_read_with_the_same_key_and_is_not_to_be_seen(text: str) -> None:
    box = sealed(KEY, text, NONCE)
    assert unsealed(KEY, box) == text
    assert "cashu" not in box
    assert sealed(KEY, text, b"\x03" * NONCE_BYTES) != box


@pytest.mark.parametrize("change", ["another key", "cut", "changed", "nothing", "no base64", "too long"])
def test_anything_else_is_a_value_error(change: str) -> None:
    box = sealed(KEY, "cashuBxx", NONCE)
    key = b"\x09" * 32 if change == "another key" else KEY
    changed = {
        "cut": box[:-8], "changed": ("A" if box[20] != "A" else "B").join((box[:20], box[21:])), "nothing": "",
        "no base64": "cashuB!?", "too long": "A" * (MAX_SEALED_CHARS + 4),
    }.get(change, box)  # fmt: skip
    with pytest.raises(ValueError, match=r".+"):
        unsealed(key, changed)

"""What one key of Nostr writes to another, held against nostr-sdk; the published vectors are in ``test_keys``."""

from __future__ import annotations

import base64
import contextlib

import nostr_sdk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.nostr import encryption
from trunkline.edges.nostr.keys import CannotDecrypt, Signer

ONE, TWO = bytes(31) + b"\x07", b"\x55" * 32
OURS, THEIRS = Signer(ONE), Signer(TWO)
SHARED = encryption.shared_point(ONE, THEIRS.public)


def of_sdk(secret: bytes) -> nostr_sdk.Keys:
    return nostr_sdk.Keys.parse(secret.hex())


def test_both_sides_compute_the_same_point() -> None:
    assert encryption.shared_point(TWO, OURS.public) == SHARED


# NIP-44's own table.
@pytest.mark.parametrize(
    ("size", "padded"),
    [
        (1, 32), (32, 32), (33, 64), (37, 64), (64, 64), (65, 96), (100, 128), (111, 128), (200, 224), (250, 256),
        (320, 320), (383, 384), (384, 384), (400, 448), (500, 512), (515, 640), (700, 768), (900, 1024), (1020, 1024),
        (65_535, 65_536),
    ],
)  # fmt: skip
def test_texts_are_filled_up_as_nip_44_says(size: int, padded: int) -> None:
    assert encryption.padded_size(size) == padded


@pytest.mark.parametrize("text", ["a", "é" * 33, "x" * 60_000, '{"method":"get_info"}'])
def test_another_implementation_reads_what_we_wrote_and_we_what_it_wrote(text: str) -> None:
    sdk, ours = of_sdk(TWO), nostr_sdk.PublicKey.parse(OURS.public)
    assert sdk.nip44_decrypt(ours, OURS.encrypt(text, THEIRS.public)) == text
    assert OURS.decrypt(sdk.nip44_encrypt(ours, text), THEIRS.public) == text
    assert sdk.nip04_decrypt(ours, OURS.encrypt_old(text, THEIRS.public)) == text
    assert OURS.decrypt_old(sdk.nip04_encrypt(ours, text), THEIRS.public) == text


def test_a_message_is_encrypted_otherwise_each_time() -> None:
    assert len({OURS.encrypt("same", THEIRS.public) for _ in range(3)}) == 3
    assert len({OURS.encrypt_old("same", THEIRS.public) for _ in range(3)}) == 3


@pytest.mark.parametrize("at", [0, 1, 20, 33, 60, -33, -1])
def test_a_byte_that_was_changed_is_noticed(at: int) -> None:
    data = bytearray(base64.b64decode(OURS.encrypt("hello", THEIRS.public)))
    data[at] ^= 1
    with pytest.raises(CannotDecrypt):
        THEIRS.decrypt(base64.b64encode(data).decode(), OURS.public)


def test_a_message_for_somebody_else_is_not_read() -> None:
    third = Signer(bytes(31) + b"\x09")
    with pytest.raises(CannotDecrypt):
        third.decrypt(OURS.encrypt("hello", THEIRS.public), OURS.public)


@pytest.mark.parametrize("public", ["", "00" * 32, "ff" * 32, "zz" * 32, "ab" * 31])
def test_who_writes_by_a_key_that_is_none_is_not_read(public: str) -> None:
    payload = OURS.encrypt("hello", THEIRS.public)
    for decrypt in (THEIRS.decrypt, THEIRS.decrypt_old):
        with pytest.raises(CannotDecrypt):
            decrypt(payload, public)


@given(st.text(max_size=400) | st.binary(max_size=300).map(lambda data: base64.b64encode(data).decode()))
def test_whatever_somebody_sends_is_read_or_refused(payload: str) -> None:
    for decrypt in (THEIRS.decrypt, THEIRS.decrypt_old):
        for text in (payload, f"{payload}?iv={base64.b64encode(bytes(16)).decode()}"):
            with contextlib.suppress(CannotDecrypt):
                assert isinstance(decrypt(text, OURS.public), str)

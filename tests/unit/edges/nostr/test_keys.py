"""Keys of Nostr: the published vectors of BIP-340 and NIP-44, and our own pair in its file."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.unit.edges.nostr.vectors import BIP_340, NIP_44, NIP_44_INVALID
from trunkline.edges.nostr import keys
from trunkline.edges.nostr.keys import CannotDecrypt, Signer
from trunkline.errors import ConfigError


@pytest.mark.parametrize(("public", "message", "signature", "is_good"), BIP_340)
def test_signatures_are_judged_as_bip_340_says(public: str, message: str, signature: str, is_good: bool) -> None:
    assert keys.is_signature(public.lower(), message.lower(), signature.lower()) is is_good


def test_the_public_key_follows_from_the_secret_one() -> None:
    secret = bytes.fromhex("B7E151628AED2A6ABF7158809CF4F3C762E7160F38B4DA56A784D9045190CFEF")
    signer = Signer(secret)
    assert signer.public == "dff1d77f2a671c5f36183726db2341be58feae1da2deced843240f7b502ba659"
    assert keys.is_signature(signer.public, "ab" * 32, signer.sign("ab" * 32))
    assert not keys.is_signature(signer.public, "ac" * 32, signer.sign("ab" * 32))


@pytest.mark.parametrize(("secret_1", "secret_2", "text", "payload"), NIP_44)
def test_what_was_encrypted_by_nip_44_is_decrypted(secret_1: str, secret_2: str, text: str, payload: str) -> None:
    one, two = Signer(bytes.fromhex(secret_1)), Signer(bytes.fromhex(secret_2))
    assert one.decrypt(payload, two.public) == text
    assert two.decrypt(payload, one.public) == text
    assert one.decrypt(two.encrypt(text, one.public), two.public) == text


@pytest.mark.parametrize(("secret_1", "secret_2", "text", "payload"), NIP_44)
def test_what_is_encrypted_follows_from_the_entropy_that_a_signer_was_given(
    secret_1: str, secret_2: str, text: str, payload: str
) -> None:
    nonce = base64.b64decode(payload)[1:33]
    one, two = Signer(bytes.fromhex(secret_1), lambda size: nonce[:size]), Signer(bytes.fromhex(secret_2))
    assert one.encrypt(text, two.public) == payload
    assert one.encrypt_old(text, two.public).endswith(f"?iv={base64.b64encode(nonce[:16]).decode()}")
    assert one.sign("ab" * 32) == one.sign("ab" * 32)
    assert two.sign("ab" * 32) != two.sign("ab" * 32)


@pytest.mark.parametrize("payload", NIP_44_INVALID)
def test_what_is_not_for_us_is_not_decrypted(payload: str) -> None:
    with pytest.raises(CannotDecrypt):
        Signer(bytes(31) + b"\x01").decrypt(payload, Signer(bytes(31) + b"\x02").public)


def test_nothing_and_too_much_cannot_be_encrypted() -> None:
    signer = Signer(bytes(31) + b"\x01")
    for text in ("", "a" * 65_536, "é" * 32_768):
        with pytest.raises(ValueError, match="NIP-44 carries"):
            signer.encrypt(text, signer.public)


def test_an_npub_and_its_key_are_two_spellings_of_one() -> None:
    # NIP-19's own example.
    public, npub = (
        "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e",
        "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg",
    )
    assert keys.npub_of(public) == npub
    assert keys.public_of(npub) == public
    for wrong in ("", public, npub[:-1], "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"):
        with pytest.raises(ValueError, match="npub1"):
            keys.public_of(wrong)


def test_our_pair_is_made_once_and_kept_for_its_owner_only(tmp_path: Path) -> None:
    first = keys.own_signer(tmp_path)
    path = tmp_path / keys.OWN_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.own_signer(tmp_path).public == first.public
    assert path.read_bytes().hex() not in repr(first)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="read by others"):
        keys.own_signer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\1" * 31, bytes(32), b"\xff" * 32])
def test_a_damaged_key_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / keys.OWN_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="damaged"):
        keys.own_signer(tmp_path)


def test_bytes_that_are_no_key_are_not_kept(tmp_path: Path) -> None:
    given = [bytes(32), b"\xff" * 32, bytes(31) + b"\x05"]
    assert keys.own_signer(tmp_path, lambda size: given.pop(0)).public == Signer(bytes(31) + b"\x05").public

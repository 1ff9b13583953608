from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import LedgerError
from trunkline.ledger.keys import LedgerKeys, derived


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=30))
def test_keys_are_derived_by_hkdf(secret: bytes, purpose: bytes) -> None:
    assert derived(secret, purpose) == HKDF(SHA256(), 32, None, purpose).derive(secret)


def test_the_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    first = LedgerKeys.load(folder, create=True)
    again = LedgerKeys.load(folder, create=True)
    assert first.mac_key == again.mac_key
    assert stat.S_IMODE((folder / "ledger.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == ["ledger.key"]


def test_each_ledger_has_a_key_of_its_own(tmp_path: Path) -> None:
    one = LedgerKeys.load(tmp_path / "a", create=True)
    other = LedgerKeys.load(tmp_path / "b", create=True)
    assert one.mac_key != other.mac_key
    assert one.mac(b"x") != other.mac(b"x")


def test_a_missing_damaged_or_readable_key_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"ledger\.key is missing: put back"):
        LedgerKeys.load(tmp_path, create=False)
    path = tmp_path / "ledger.key"
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(LedgerError, match="should have 32 bytes"):
        LedgerKeys.load(tmp_path, create=True)
    path.write_bytes(bytes(32))
    path.chmod(0o640)
    with pytest.raises(LedgerError, match="chmod 600"):
        LedgerKeys.load(tmp_path, create=True)


@given(st.binary(max_size=100), st.binary(max_size=10))
def test_what_is_sealed_opens_only_where_it_was_put(data: bytes, place: bytes) -> None:
    keys = LedgerKeys(bytes(32), os.urandom)
    own = b"o" * 32
    sealed = keys.seal(data, place, own)
    assert data not in sealed or len(data) < 4
    assert keys.unseal(sealed, place, own) == data
    assert keys.unseal(sealed, place + b"x", own) is None
    assert keys.unseal(sealed, place, bytes(32)) is None
    assert keys.unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]), place, own) is None
    assert keys.unseal(b"", place, own) is None
    assert LedgerKeys(b"\x01" * 32, os.urandom).unseal(sealed, place, own) is None

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.unit.money.cashu.toy_mint import ToyMint
from trunkline.edges.nostr.purse_file import PurseFile
from trunkline.errors import ConfigError
from trunkline.money.cashu.purse import MAX_PROOFS, Purse

MINT = "https://mint.example"
PURSE = Purse(ToyMint().proofs(13))


def file_of(home: Path, key: bytes = bytes(32), mint: str = MINT) -> PurseFile:
    return PurseFile(home, key, mint, os.urandom)


def test_a_purse_is_kept_for_its_owner_only_and_in_no_form_that_others_could_read(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    assert file.read() == Purse()
    file.write(PURSE)
    assert file_of(tmp_path).read() == PURSE
    assert file.path.stat().st_mode & 0o077 == 0
    data = file.path.read_bytes()
    for proof in PURSE.proofs:
        for form in (
            proof.secret.encode(),
            bytes.fromhex(proof.secret),
            proof.signature,
            proof.signature.hex().encode(),
        ):
            assert form not in data


@pytest.mark.slow
def test_a_large_purse_is_read_whole(tmp_path: Path) -> None:
    mint = ToyMint()
    large = Purse(tuple(proof for _ in range(40) for proof in mint.proofs(4095)))
    file_of(tmp_path).write(large)
    assert file_of(tmp_path).path.stat().st_size > 65_536
    assert file_of(tmp_path).read() == large


def test_whatever_was_written_is_read_however_many_proofs_it_has(tmp_path: Path) -> None:
    [one] = ToyMint().proofs(1)
    many = Purse(tuple(msgspec.structs.replace(one, secret=f"{number:064}") for number in range(MAX_PROOFS + 1)))
    file_of(tmp_path).write(many)
    assert file_of(tmp_path).read() == many


@pytest.mark.parametrize("change", ["key", "mint", "damage", "cut", "empty"])
def test_a_purse_that_cannot_be_opened_is_said_and_never_written_over(tmp_path: Path, change: str) -> None:
    file = file_of(tmp_path)
    file.write(PURSE)
    data = file.path.read_bytes()
    other = file_of(tmp_path, bytes(31) + b"\1") if change == "key" else file
    if change == "mint":
        other = file_of(tmp_path, mint="https://other.example")
        file.path.rename(other.path)
    elif change != "key":
        file.path.write_bytes({"damage": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:9], "empty": b""}[change])
    before = other.path.read_bytes()
    with pytest.raises(ConfigError, match="cannot be opened"):
        other.read()
    assert other.path.read_bytes() == before


def test_a_purse_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    file.write(PURSE)
    file.path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        file.read()

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline import key_files
from trunkline.errors import ConfigError


def test_a_key_is_made_once_for_its_owner_only_and_is_the_same_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "some.key"
    assert key_files.kept(path, lambda: b"first") == b"first"
    assert key_files.kept(path, lambda: b"second") == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [found.name for found in path.parent.iterdir()] == ["some.key"], "nothing half made is left"


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "some.key"
    key_files.write_private(path, b"secret")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        key_files.kept(path, lambda: b"other")
    assert path.read_bytes() == b"secret"


def test_a_link_in_the_place_of_a_key_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"x")
    (tmp_path / "elsewhere").chmod(0o600)
    (tmp_path / "some.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be read"):
        key_files.kept(tmp_path / "some.key", lambda: b"other")


def test_a_folder_that_takes_no_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"a file")
    with pytest.raises(ConfigError, match=r"keys/some\.key"):
        key_files.kept(tmp_path / "keys" / "some.key", lambda: b"x")

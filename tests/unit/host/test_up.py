from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trunkline.config import Home
from trunkline.errors import ConfigError
from trunkline.host.up import _operator_token


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.create()
    return made


def test_the_operators_token_is_made_once_and_for_the_owner_only(home: Home) -> None:
    token = _operator_token(home)
    assert token.startswith("tlk_")
    assert _operator_token(home) == token
    assert home.operator_token_file.read_text() == token + "\n"
    assert stat.S_IMODE(home.operator_token_file.stat().st_mode) == 0o600
    assert [path.name for path in home.path.iterdir() if "token" in path.name] == ["operator.token"]


def test_a_token_that_somebody_else_made_meanwhile_is_the_one(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def slow(source: Path, target: Path) -> None:
        target.write_text("tlk_" + "another-exchange" * 2)
        link(source, target)

    monkeypatch.setattr(os, "link", slow)
    assert _operator_token(home) == "tlk_" + "another-exchange" * 2


@pytest.mark.parametrize("left", ["", "\n", "tlk_cut"])
def test_a_token_file_that_was_cut_off_lets_nobody_in(home: Home, left: str) -> None:
    home.operator_token_file.write_text(left)
    with pytest.raises(ConfigError, match=r"operator\.token: is damaged: remove it"):
        _operator_token(home)


def test_a_home_that_cannot_be_written_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        _operator_token(home)
    assert not home.operator_token_file.exists()

"""The beginning of ``trunkline up``: what is there, and what is left, when it goes no further."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import NO_DEFAULT_PORTS
from trunkline.errors import ConfigError
from trunkline.home import Home
from trunkline.host import begin
from trunkline.host.begin import load_config
from trunkline.ledger.ledger import Ledger


def up(home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline", "up", "--home", str(home)]
    environ = {**os.environ, **NO_DEFAULT_PORTS}
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environ)


@pytest.mark.slow
def test_a_configuration_that_cannot_be_used_starts_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.config_file.write_text("[http\n")
    ended = up(home.path)
    assert ended.returncode != 0
    assert "trunkline.toml" in ended.stderr
    assert not home.ledger_file.exists()
    assert list(home.keys_folder.iterdir()) == []


@pytest.mark.slow
def test_a_start_that_fails_after_the_writer_was_started_leaves_none(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.operator_token_file.write_text("short")
    ended = up(home.path)
    assert ended.returncode != 0
    assert "operator.token" in ended.stderr
    # The writer holds the lock for as long as it lives.
    Ledger.begin(home.ledger_file, home.keys_folder).abandon()


def test_a_demonstration_has_the_example_agents_beside_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.create()
    plain = load_config(home, None, demo=False)
    shown = load_config(home, None, demo=True)
    assert {agent.id for agent in shown.agents} - {agent.id for agent in plain.agents}
    monkeypatch.setattr(begin, "EXAMPLES", (tmp_path / "nowhere",))
    with pytest.raises(ConfigError, match="not installed"):
        load_config(home, None, demo=True)

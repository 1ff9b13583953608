"""``trunkline service``: a unit that systemd takes, whatever the names in it are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import trunkline


def lines(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)


def test_the_unit_runs_this_interpreter_on_this_home_and_stops_the_exchange_alone(short_path: Path) -> None:
    said = trunkline("service", "--home", str(short_path))
    assert said.code == 0
    unit = lines(said.out)
    assert unit["ExecStart"] == f'"{sys.executable}" "-P" "-m" "trunkline" "up" "--home" "{short_path}"'
    assert unit["KillMode"] == "mixed", "agents are the exchange's to end"
    assert unit["RestartPreventExitStatus"] == "1 2", "a damaged record is for a person"
    assert "systemctl --user" in said.err


def test_names_that_mean_something_to_systemd_are_quoted(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/a b/100%")
    home = short_path / 'my "home" 5% $HOME'
    unit = lines(trunkline("service", "--home", str(home)).out)
    assert unit["ExecStart"].endswith(f'"{short_path}/my \\"home\\" 5%% $$HOME"')
    assert unit["Environment"] == '"PATH=/a b/100%%"'


def test_settings_of_the_environment_that_are_in_use_are_in_the_unit_and_named(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNKLINE_HTTP_LISTEN", "127.0.0.1:7500")
    monkeypatch.setenv("TRUNKLINE_HOME", "/elsewhere")
    said = trunkline("service", "--home", str(short_path))
    assert 'Environment="TRUNKLINE_HTTP_LISTEN=127.0.0.1:7500"\n' in said.out
    assert "TRUNKLINE_HOME" not in said.out, "the unit names its home"
    assert "as you have them set now: TRUNKLINE_HTTP_LISTEN" in said.err


@pytest.mark.parametrize("name", ["a b", "a/b", "", "$x", "a\nb", "ä"])
def test_a_name_that_no_unit_can_have_is_refused(short_path: Path, name: str) -> None:
    said = trunkline("service", "--name", name, "--home", str(short_path))
    assert (said.code, said.out) == (2, "")
    assert "as systemd names its units" in said.err


def test_the_line_that_saves_the_unit_makes_the_same_one_again(short_path: Path) -> None:
    config = short_path / "my config.toml"
    said = trunkline("service", "--name", "second.service", "--config", str(config), "--home", str(short_path))
    assert f"service --config '{config}' --home {short_path} > ~/.config/systemd/user/second.service" in said.err


def test_for_a_program_the_unit_is_json_with_its_name(short_path: Path) -> None:
    found = trunkline("service", "--name", "second", "--json", "--home", str(short_path)).json
    assert found["name"] == "second.service"
    assert found["unit"].startswith("[Unit]\n")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say_about_the_unit(short_path: Path) -> None:
    file = short_path / "trunkline.service"
    file.write_text(trunkline("service", "--home", str(short_path / "a b 5%")).out)
    command = ["systemd-analyze", "verify", "--user", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"XDG_RUNTIME_DIR": str(short_path), "PATH": "/bin"}
    )
    about = [line for line in (done.stdout + done.stderr).splitlines() if "trunkline.service" in line]
    assert about == []

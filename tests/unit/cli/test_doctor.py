"""``trunkline doctor``: one line for each thing, JSON for programs, and an exit code that says whether all is well."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.cli.conftest import Running, trunkline
from trunkline import checkup
from trunkline.checkup import Finding
from trunkline.host import isolation
from trunkline.host.isolation import Sandbox


@pytest.fixture(autouse=True)
def well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of which there is nothing to warn, whatever this one is like."""

    async def found() -> SimpleNamespace:
        return SimpleNamespace(kind="bubblewrap")

    monkeypatch.setattr(isolation, "probe", lambda: Sandbox("bubblewrap"))
    monkeypatch.setattr(checkup.shell_sandbox, "probe", found)
    for name in ("clock", "disk"):
        monkeypatch.setattr(checkup, f"_{name}", lambda _, name=name: Finding(name, "ok", ""))


@pytest.fixture
def home(short_path: Path) -> Path:
    short_path.chmod(0o700)
    (short_path / "trunkline.toml").write_text('[http]\nlisten = "127.0.0.1:0"\n[ossa]\nlisten = ""\n')
    return short_path


def test_without_an_exchange_it_says_so_and_ends_well(home: Path) -> None:
    said = trunkline("doctor", "--home", str(home))
    assert said.code == 0, said.out
    assert "off      exchange       not running\n" in said.out
    assert said.out.endswith("\nnothing is wrong\n")


def test_with_warnings_it_ends_well_and_says_how_many(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "probe", lambda: Sandbox(None, why_not="bwrap is not installed"))
    said = trunkline("doctor", "--home", str(home))
    assert (said.code, said.out.endswith("\n1 warning\n")) == (0, True)
    rules = 2 * '[[policy.rule]]\ncaller = "*"\ntool = "*"\ndecision = "ask"\n'
    with (home / "trunkline.toml").open("a") as file:
        file.write(rules)
    said = trunkline("doctor", "--home", str(home))
    assert "warning  policy         rule-2 " in said.out
    assert said.out.endswith("\n2 warnings\n")


def test_a_problem_is_exit_1_with_what_to_do_below_it(home: Path) -> None:
    (home / "trunkline.toml").write_text("[http]\nlisten = 5\n")
    said = trunkline("doctor", "--home", str(home))
    assert said.code == 1
    line, below = said.out[said.out.index("problem ") :].splitlines()[:2]
    assert "listen" in line
    assert "→ docs/configuration.md" in below
    assert said.out.endswith("\n1 problem\n")


def test_for_a_program_it_is_one_json_value_also_when_something_is_wrong(home: Path) -> None:
    (home / "trunkline.toml").write_text("[http]\nlisten = 5\n")
    said = trunkline("doctor", "--json", "--home", str(home))
    assert said.code == 1
    assert (said.json["problems"], said.json["running"]) == (1, False)
    [problem] = [one for one in said.json["findings"] if one["state"] == "problem"]
    assert problem["name"] == "configuration"


def test_one_that_does_not_answer_is_told_of_with_why_and_without_advice_to_ask_the_doctor(running: Running) -> None:
    running.home.chmod(0o700)
    running.write_ready(http="http://127.0.0.1:1")
    with (running.home / "ledger.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(os.getpid(), file=lock, flush=True)
        found = {one["name"]: one for one in running.run("doctor", "--json").json["findings"]}
    why = "(the exchange at 127.0.0.1:1 went away (nobody listens there))"
    assert found["exchange"]["text"].endswith(why)


def test_a_running_exchange_is_asked(running: Running) -> None:
    running.home.chmod(0o700)
    (running.home / "operator.token").chmod(0o600)
    said = running.run("doctor", "--json")
    assert said.json["running"] is True
    names = {one["name"]: one for one in said.json["findings"]}
    assert names["exchange"]["text"].startswith("running, pid ")
    assert "port" not in names

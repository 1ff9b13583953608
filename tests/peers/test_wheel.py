"""The wheel in an environment of its own: what ``pip``, ``pipx`` and ``uvx`` install is whole.

Dependencies come from the environment of the tests by their path; of the project itself there is only the wheel.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import environments
from tests.running import wait_until

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("src", "examples", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment in which the wheel, built from a copy of the sources, is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in BUILT_FROM:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, sources / name)
    run(*environments.PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources))
    (wheel,) = folder.glob("trunkline-*.whl")
    place = folder / "venv"
    environments.make(place)
    done = environments.install(place, "--no-deps", "--no-index", str(wheel))
    assert done.returncode == 0, done.stdout + done.stderr
    (site,) = place.glob("lib/python*/site-packages")
    # A path in such a file is added as it is: what is installed there as editable is not found by it.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def run(*command: str, cwd: Path | None = None, code: int = 0) -> str:
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "TRUNKLINE_HOME"}}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env, cwd=cwd)
    assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_every_file_of_the_package_is_in_the_wheel(installed: Path) -> None:
    (package,) = installed.glob("lib/python*/site-packages/trunkline")
    source = ROOT / "src" / "trunkline"
    files = {
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    assert {path for path in files if not (package / path).exists()} == set()


@pytest.fixture
def home(installed: Path, short_path: Path) -> Iterator[Path]:
    (short_path / "trunkline.toml").write_text('[http]\nlisten = "127.0.0.1:0"\n[ossa]\nlisten = "127.0.0.1:0"\n')
    yield short_path
    run(str(installed / "bin" / "trunkline"), "down", "--home", str(short_path))


def test_the_command_of_the_wheel_runs_the_demonstration(installed: Path, home: Path, tmp_path: Path) -> None:
    command = str(installed / "bin" / "trunkline")
    where = "import trunkline; print(trunkline.__file__)"
    assert run(str(installed / "bin" / "python"), "-c", where, cwd=tmp_path).startswith(str(installed))
    assert run(command, "--version").startswith("trunkline ")
    ready = json.loads(run(command, "up", "--demo", "--detach", "--json", "--home", str(home), cwd=tmp_path))
    assert ready["ossa"] is not None
    wait_until(lambda: "com.example.echo/echo" in run(command, "tools", "--home", str(home)), "the example agent")
    said = run(command, "call", "com.example.echo/echo", '{"text": "hi"}', "--home", str(home))
    assert json.loads(said) == {"text": "hi"}

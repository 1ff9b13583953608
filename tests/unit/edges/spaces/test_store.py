"""Spaces on disk."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.edges.spaces.store import SpacesFolder
from trunkline.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> SpacesFolder:
    return SpacesFolder(tmp_path / "spaces")


def test_a_space_is_read_back_as_it_was_made(folder: SpacesFolder, tmp_path: Path) -> None:
    assert folder.load() == []
    overrides = {"shell": {"denied": ['say "no"', "cürl"], "max_timeout_ms": 5}, "network": {"allowed": True}}
    made = folder.create("demo", "permissive", overrides)
    (read,) = folder.load()
    assert (read.name, read.preset, read.policy, read.folder) == ("demo", "permissive", made.policy, made.folder)
    assert read.policy.shell.denied == ('say "no"', "cürl")
    assert read.workspace.root == tmp_path / "spaces" / "demo" / "files"
    assert stat.S_IMODE((tmp_path / "spaces").stat().st_mode) == 0o700
    assert stat.S_IMODE((made.folder / "space.toml").stat().st_mode) == 0o600
    made.workspace.close()
    read.workspace.close()


def test_a_removed_space_is_gone(folder: SpacesFolder) -> None:
    made = folder.create("demo", "standard", {})
    (made.workspace.root / "file").write_text("x")
    folder.remove(made)
    assert not made.folder.exists()
    assert folder.load() == []


def test_also_one_that_is_deeper_than_python_walks_and_closed(folder: SpacesFolder) -> None:
    made = folder.create("demo", "standard", {})
    script = "import os\nfor _ in range(1500):\n os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-c", script], cwd=made.workspace.root, check=True)
    (made.workspace.root / "closed").mkdir(mode=0o000)
    folder.remove(made)
    assert not made.folder.exists()


def test_what_a_crash_left_of_a_space_is_none_and_makes_room(folder: SpacesFolder, tmp_path: Path) -> None:
    left = tmp_path / "spaces" / "demo" / "files"
    left.mkdir(parents=True)
    (left / "old").write_text("x")
    assert folder.load() == []
    made = folder.create("demo", "standard", {})
    assert list(made.workspace.root.iterdir()) == []
    with pytest.raises(ConfigError, match="is there already"):
        folder.create("demo", "standard", {})
    made.workspace.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("preset = 3\n", r"space\.toml:1: preset"),
        ("presset = 'standard'\n", r"space\.toml:1: presset"),
        ("preset = 'wild'\n", r"space\.toml: .*unknown preset 'wild'"),
        ("[policy.shell]\ndenyed = []\n", r"space\.toml: .*shell\.denyed"),
        ("[policy.wheel]\nx = 1\n", r"space\.toml: .*wheel"),
        ("preset = \n", r"space\.toml:1: not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(folder: SpacesFolder, text: str, problem: str) -> None:
    made = folder.create("demo", "standard", {})
    made.workspace.close()
    (made.folder / "space.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        folder.load()


def test_a_space_that_cannot_be_made_leaves_nothing(folder: SpacesFolder, tmp_path: Path) -> None:
    for preset, overrides in (("wild", {}), ("standard", {"shell": {"denyed": []}})):
        with pytest.raises(ConfigError):
            folder.create("demo", preset, overrides)
    assert not (tmp_path / "spaces").exists()


def test_what_a_space_is_made_of_can_be_read_at_the_next_start(folder: SpacesFolder) -> None:
    odd = {"filesystem": {"protected": ["\U0001f600", "a\x7f", 'q"\\', "line\nbreak"]}}
    made = folder.create("demo", "standard", odd)
    made.workspace.close()
    (again,) = folder.load()
    again.workspace.close()
    assert again.policy == made.policy


def test_a_value_that_toml_cannot_hold_is_refused_before_anything_is_made(folder: SpacesFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.shell\.allowed: null"):
        folder.create("demo", "restrictive", {"shell": {"allowed": None}})
    assert not (tmp_path / "spaces").exists()


@pytest.fixture
def own(tmp_path: Path) -> SpacesFolder:
    """The spaces of an exchange that has a folder of its own."""
    (tmp_path / "home").mkdir()
    return SpacesFolder(tmp_path / "home" / "spaces")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of the operator's; root's own would not be one that commands may run in."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "code.py").write_text("x = 1\n")
    if os.geteuid() == 0:
        for path in (made, made / "code.py"):
            os.chown(path, 1000, 1000)
    return made


def test_a_space_on_a_folder_of_the_operators_works_there_and_leaves_it_when_it_is_removed(
    own: SpacesFolder, project: Path
) -> None:
    made = own.create("demo", "standard", {}, str(project))
    (read,) = own.load()
    assert made.workspace.root == read.workspace.root == project
    assert read.policy.snapshots.kept == 20
    read.workspace.close()
    own.remove(made)
    assert (project / "code.py").read_text() == "x = 1\n"
    assert own.load() == []


def test_a_folder_in_which_an_agent_could_change_too_much_is_refused(
    own: SpacesFolder, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "me" / "home")
    (tmp_path / "me" / "home").mkdir(parents=True)
    (tmp_path / "home" / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "me")
    for at in ("/", str(tmp_path), str(tmp_path / "me"), str(tmp_path / "link"), str(tmp_path / "home" / "x")):
        with pytest.raises(ConfigError):
            own.create("demo", "standard", {}, at)
    for at in ("project", str(project / "code.py"), str(tmp_path / "nowhere")):
        with pytest.raises(ConfigError, match="absolute path of a folder"):
            own.create("demo", "standard", {}, at)
    assert own.load() == []


def test_two_spaces_do_not_share_a_folder(own: SpacesFolder, project: Path) -> None:
    made = own.create("demo", "standard", {}, str(project))
    (project / "part").mkdir()
    for at in (project, project / "part"):
        with pytest.raises(ConfigError, match="the space demo works there"):
            own.create("other", "standard", {}, str(at))
    made.workspace.close()

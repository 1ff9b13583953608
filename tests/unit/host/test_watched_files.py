from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.host import watched_files
from trunkline.host.watched_files import FileWatch, look_at_files


def make(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")


def seen(folder: Path, *command: str, manifest: str | None = None, home: Path = Path("/nowhere")) -> set[str]:
    return {str(Path(path).relative_to(folder)) for path in look_at_files(command, str(folder), manifest, str(home))}


def test_a_script_is_watched_with_what_lies_beside_and_below_it_and_ends_alike(tmp_path: Path) -> None:
    make(tmp_path, "agent.py", "parts/shelf.py", "notes.txt", ".git/hook.py", "__pycache__/agent.py", "env/pyvenv.cfg")
    make(tmp_path, "env/lib/other.py")
    assert seen(tmp_path, "python", "-u", "agent.py") == {"agent.py", "parts/shelf.py"}


def test_a_module_a_program_of_its_own_and_the_manifest_are_watched(tmp_path: Path) -> None:
    make(tmp_path, "shop/__main__.py", "shop/stock.json", "bin/agent", "other.py", "manifest.json")
    manifest = str(tmp_path / "manifest.json")
    assert seen(tmp_path, "python", "-m", "shop") == {"shop/__main__.py", "shop/stock.json"}
    assert seen(tmp_path, "python", "-m", "other") == {"other.py", "shop/__main__.py"}
    assert seen(tmp_path, "bin/agent", manifest=manifest) == {"bin/agent", "manifest.json"}


def test_below_the_exchanges_own_folder_nothing_is_watched(tmp_path: Path) -> None:
    make(tmp_path, "agent.py", "other.py", "spaces/s/files/made.py")
    assert seen(tmp_path, "python", "agent.py", home=tmp_path) == {"agent.py", "other.py"}


@pytest.mark.slow
def test_a_folder_full_of_data_is_looked_at_up_to_a_bound(tmp_path: Path) -> None:
    make(tmp_path, *(f"data/{number}.txt" for number in range(watched_files.MAX_FILES + 1)))
    assert len(seen(tmp_path, "reader", "data")) == watched_files.MAX_FILES


def test_a_change_is_told_once_and_when_two_looks_are_alike() -> None:
    watch = FileWatch({"a": (1, 1)})
    assert not watch.has_changed({"a": (1, 1)})
    assert not watch.has_changed({"a": (2, 1)})
    assert not watch.has_changed({"a": (3, 1)})
    assert watch.has_changed({"a": (3, 1)})
    assert not watch.has_changed({"a": (3, 1)})

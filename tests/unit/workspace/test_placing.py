"""A process that is killed while it puts a file in place leaves the old one or the new one, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trunkline.errors import WorkspaceError
from trunkline.workspace.files import create_file, read_file
from trunkline.workspace.folder import Workspace
from trunkline.workspace.placing import sweep

pytestmark = pytest.mark.slow

# One operation on a space that has `old` and `in/old`, by a process of its own for each call of the operating system
# at which that one ends, before it or after it. Says which of these calls were come to, and what is left each time.
KILLED = """if True:
    import errno, json, os, signal, sys
    from pathlib import Path
    from trunkline.workspace.edits import Edit
    from trunkline.workspace.files import create_file, edit_file
    from trunkline.workspace.folder import Workspace
    from trunkline.workspace.placing import sweep

    root, notes, operation, path, nameless, sweeps, *calls = sys.argv[1:]
    workspace = Workspace.open(Path(root), Path(notes))

    def operate():
        if operation == "create":
            create_file(workspace, path, b"new")
        elif operation == "overwrite":
            create_file(workspace, path, b"new", overwrite=True)
        else:
            edit_file(workspace, path, [Edit("old", "new")])

    def without_nameless(path, flags, *given, real=os.open, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no files without a name")
        return real(path, flags, *given, **named)

    def end_at(call, when):
        real = getattr(os, call)

        def killed(*given, **named):
            if when == "after":
                real(*given, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, call, killed)

    found = []
    before = {str(file.relative_to(root)) for file in Path(root).rglob("*") if file.is_file()}
    for call in calls:
        for when in ("before", "after"):
            child = os.fork()
            if child == 0:
                if nameless == "no":
                    os.open = without_nameless
                end_at(call, when)
                operate()
                os._exit(0)
            reached = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
            if sweeps == "yes":
                sweep(workspace)
            left = {str(file.relative_to(root)): file.read_text() for file in Path(root).rglob("*") if file.is_file()}
            found.append((call, when, reached, left, os.listdir(notes)))
            if sweeps == "yes":  # as it was, for the next one
                Path(root, path).unlink(missing_ok=True)
                if path in before:
                    create_file(workspace, path, b"old")
    print(json.dumps(found))
"""
CALLS = ("symlink", "write", "fchmod", "fsync", "link", "rename", "unlink")
Killed = tuple[str, str, bool, dict[str, str], list[str]]


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.create(tmp_path / "files", notes=tmp_path / "placing") as opened:
        create_file(opened, "old", b"old")
        create_file(opened, "in/old", b"old")
        yield opened


def kill(space: Workspace, words: tuple[str, str, str], *calls: str, sweeps: str = "yes") -> list[Killed]:
    places = (str(space.root), str(space.root.parent / "placing"))
    told = subprocess.run(
        [sys.executable, "-c", KILLED, *places, *words, sweeps, *calls], check=True, timeout=60, stdout=subprocess.PIPE
    )
    return [tuple(one) for one in json.loads(told.stdout)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("nameless", ["yes", "no"])
@pytest.mark.parametrize(
    ("operation", "path"), [("create", "new"), ("create", "far/in/new"), ("overwrite", "old"), ("edit", "in/old")]
)
def test_killed_at_any_step_of_placing_a_file_nothing_but_the_old_or_the_new_one_is_there(
    space: Workspace, operation: str, path: str, nameless: str
) -> None:
    before = {"old": "old", "in/old": "old"}
    killed = kill(space, (operation, path, nameless), *CALLS)
    for call, when, _, left, notes in killed:
        assert left in (before, before | {path: "new"}), (call, when)
        assert notes == []
    reached = {call for call, _, is_reached, _, _ in killed if is_reached}
    assert {"write", "fchmod", "fsync"} < reached
    # What has no name until it is whole needs no note.
    assert ("symlink" in reached) is (operation != "create" or nameless == "no")


def test_only_what_was_noted_is_removed(space: Workspace) -> None:
    own = f".trunkline-{32 * 'a'}.tmp"
    create_file(space, own, b"somebody's own")
    kill(space, ("edit", "in/old", "yes"), "rename", sweeps="no")
    assert len(names_in(space.root / "in")) == 2
    assert sweep(space) == 1
    assert names_in(space.root / "in") == ["old"]
    assert names_in(space.root) == [own, "in", "old"]
    assert sweep(space) == 0


def test_a_folder_that_is_a_link_by_now_leads_the_sweep_nowhere(space: Workspace, tmp_path: Path) -> None:
    kill(space, ("edit", "in/old", "yes"), "rename", sweeps="no")
    (space.root / "in").rename(tmp_path / "elsewhere")
    (space.root / "in").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError, match="symbolic link"):
        sweep(space)
    assert len(names_in(tmp_path / "elsewhere")) == 2
    (space.root / "in").unlink()
    assert sweep(space) == 0
    assert names_in(tmp_path / "placing") == []


def test_a_new_file_belongs_to_the_owner_and_loses_to_one_that_came_first(space: Workspace) -> None:
    create_file(space, "new", b"new")
    assert (space.root / "new").stat().st_uid == space.uid
    with pytest.raises(WorkspaceError, match="File already exists"):
        create_file(space, "new", b"newer")
    assert read_file(space, "new").data == b"new"

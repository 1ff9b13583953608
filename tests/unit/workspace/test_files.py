"""Create, read, edit, delete, on a real folder."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.descriptors import open_descriptors
from tests.requirement import requirement
from trunkline.errors import WorkspaceError
from trunkline.workspace import folder
from trunkline.workspace.edits import Edit
from trunkline.workspace.files import READ_LIMIT_BYTES, create_file, delete_file, edit_file, read_file
from trunkline.workspace.folder import Quota, Usage, Workspace

OPERATIONS: dict[str, Callable[[Workspace, str], object]] = {
    "create": lambda workspace, path: create_file(workspace, path, b"new", overwrite=True),
    "read": read_file,
    "edit": lambda workspace, path: edit_file(workspace, path, [Edit("a", "b")]),
    "delete": delete_file,
}


NO_USER_LEFT = "No user number is left for another workspace"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(do: Callable[[], object], kind: str, text: str) -> None:
    with pytest.raises(WorkspaceError) as found:
        do()
    assert (found.value.kind, found.value.message) == (kind, text)


@requirement("SP-015", "SP-016", "SP-046", "SP-018")
def test_a_new_file_has_its_bytes_its_owner_and_its_folders(workspace: Workspace) -> None:
    data = "äöü".encode()
    made = create_file(workspace, "a/b/c.txt", data)
    assert (made.bytes_written, made.sha256) == (6, hashlib.sha256(data).hexdigest())
    assert create_file(workspace, "empty", b"").bytes_written == 0
    file = workspace.root / "a/b/c.txt"
    assert file.read_bytes() == data
    for path in (file, file.parent, file.parent.parent):
        assert (path.stat().st_uid, path.stat().st_gid) == (workspace.uid, workspace.gid)
    assert file.stat().st_mode & 0o7777 == 0o644


@requirement("SP-019", "SP-020", "SP-047", "SP-048")
def test_an_existing_file_is_left_alone_unless_overwrite_is_given(workspace: Workspace) -> None:
    create_file(workspace, "a", b"old")
    refused(lambda: create_file(workspace, "a", b"new"), "execution", "File already exists")
    assert read_file(workspace, "a").data == b"old"


@requirement("SP-021")
def test_overwriting_replaces_the_content_and_keeps_the_mode(workspace: Workspace) -> None:
    create_file(workspace, "a", b"old")
    (workspace.root / "a").chmod(0o4755)
    create_file(workspace, "a", b"new", overwrite=True)
    assert read_file(workspace, "a").data == b"new"
    assert (workspace.root / "a").stat().st_mode & 0o7777 == 0o755


@requirement("SP-020")
def test_of_many_who_create_one_file_exactly_one_wins(workspace: Workspace) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def create(number: int) -> None:
        start.wait(10)
        with contextlib.suppress(WorkspaceError):
            create_file(workspace, "a", str(number).encode())
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [read_file(workspace, "a").data] == [str(number).encode() for number in won]
    assert names_in(workspace.root) == ["a"]


@requirement("SP-023", "SP-025", "SP-050")
def test_reading_gives_the_bytes_or_says_what_is_wrong(workspace: Workspace) -> None:
    create_file(workspace, "a", b"\xff")
    got = read_file(workspace, "a")
    assert (got.data, got.size) == (b"\xff", 1)
    refused(got.text, "execution", "File is not valid UTF-8: read it with encoding base64")
    refused(lambda: read_file(workspace, "b"), "execution", "File not found")
    refused(lambda: read_file(workspace, "a/b"), "execution", "A part of the path is not a directory")


def test_a_file_at_the_limit_is_read_and_one_byte_more_is_not(workspace: Workspace) -> None:
    for size in (READ_LIMIT_BYTES, READ_LIMIT_BYTES + 1):
        with (workspace.root / "big").open("wb") as file:
            file.truncate(size)
        (workspace.root / "big").chmod(0o644)
        if size == READ_LIMIT_BYTES:
            assert read_file(workspace, "big").size == size
        else:
            refused(lambda: read_file(workspace, "big"), "execution", "File is larger than 10485760 bytes")
    refused(
        lambda: create_file(workspace, "c", bytes(READ_LIMIT_BYTES + 1)),
        "execution",
        "Content is larger than 10485760 bytes",
    )


@requirement("SP-027", "SP-030", "SP-052")
def test_editing_applies_all_and_keeps_the_mode(workspace: Workspace) -> None:
    create_file(workspace, "a", b"one\r\ntwo")
    (workspace.root / "a").chmod(0o750)
    edited = edit_file(workspace, "a", [Edit("one", "1"), Edit("two", "zwölf")])
    assert edited.edits_applied == 2
    assert read_file(workspace, "a").data == "1\r\nzwölf".encode()
    assert (workspace.root / "a").stat().st_mode & 0o7777 == 0o750
    refused(lambda: edit_file(workspace, "b", [Edit("a", "b")]), "execution", "File not found")


def test_a_failed_edit_changes_nothing_at_all(workspace: Workspace) -> None:
    create_file(workspace, "a", b"one two")
    before = (workspace.root / "a").stat()
    text = "Edit 2: oldContent not found"
    refused(lambda: edit_file(workspace, "a", [Edit("one", "1"), Edit("x", "y")]), "execution", text)
    after = (workspace.root / "a").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    create_file(workspace, "latin", "ä".encode("latin-1"))
    refused(lambda: edit_file(workspace, "latin", [Edit("a", "b")]), "execution", "File is not valid UTF-8")
    assert names_in(workspace.root) == ["a", "latin"]


@requirement("SP-032")
def test_deleting_removes_the_file_and_leaves_its_folder(workspace: Workspace) -> None:
    create_file(workspace, "a/b", b"")
    delete_file(workspace, "a/b")
    assert names_in(workspace.root / "a") == []
    refused(lambda: delete_file(workspace, "a/b"), "execution", "File not found")
    refused(lambda: delete_file(workspace, "a"), "validation", "Path is a directory")


@requirement("SP-080")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "a\0b", "x" * 256])
def test_every_operation_refuses_every_kind_of_bad_path(workspace: Workspace, operation: str, path: str) -> None:
    with pytest.raises(WorkspaceError) as found:
        OPERATIONS[operation](workspace, path)
    assert found.value.kind == "validation"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_folder_is_no_file(workspace: Workspace, operation: str) -> None:
    (workspace.root / "folder").mkdir()
    refused(lambda: OPERATIONS[operation](workspace, "folder"), "validation", "Path is a directory")


def test_a_name_that_the_file_system_cannot_hold_is_an_execution_failure(workspace: Workspace) -> None:
    refused(lambda: read_file(workspace, "ä" * 200), "execution", "A name in the path is too long for the file system")


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400, 0o200])
def test_what_is_in_a_closed_folder_counts_and_the_folder_stays_closed(workspace: Workspace, mode: int) -> None:
    closed = workspace.root / "closed"
    inner = closed / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(bytes(100_000))
    for path in (inner / "file", inner, closed):
        os.chown(path, workspace.uid, workspace.gid)
    inner.chmod(mode)
    closed.chmod(mode)
    # By a process of the owner, as an exchange is that does not run as root, and by ourselves.
    counted = f"""if True:
        import ctypes, os
        from trunkline.workspace.folder import QUOTA, _usage
        if os.geteuid() == 0:
            os.setgid({workspace.gid})
            os.setuid({workspace.uid})
            # One that was never root sees its own /proc.
            ctypes.CDLL(None).prctl(4, 1)
        found = _usage({workspace.fd}, QUOTA)
        print(found.size, found.files)
    """
    ran = subprocess.run(
        [sys.executable, "-c", counted], capture_output=True, check=True, timeout=30, pass_fds=(workspace.fd,)
    )
    size, files = map(int, ran.stdout.split())
    own = workspace.usage()
    assert (own.size, own.files) == (size, files)
    assert size >= 100_000
    assert files == 3
    assert stat.S_IMODE(closed.stat().st_mode) == mode
    closed.chmod(0o700)
    assert stat.S_IMODE(inner.stat().st_mode) == mode
    inner.chmod(0o700)


def test_a_full_workspace_takes_no_more_and_recovers(workspace: Workspace) -> None:
    quota = Quota(max_bytes=40_960, max_files=5)
    create_file(workspace, "a", bytes(20_000), quota=quota)
    full = "The workspace is full: it may hold 40960 bytes in 5 files"
    refused(lambda: create_file(workspace, "b", bytes(30_000), quota=quota), "execution", full)
    delete_file(workspace, "a")
    create_file(workspace, "b", bytes(30_000), quota=quota)
    delete_file(workspace, "b")
    for number in range(5):
        create_file(workspace, str(number), b"", quota=quota)
    refused(lambda: create_file(workspace, "6", b"", quota=quota), "execution", full)


def nest(root: Path, depth: int) -> int:
    """Make folders ``d`` in each other, each beside a file; a descriptor of the innermost."""
    here = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=here))
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    return here


@pytest.mark.slow
def test_folders_count_however_deep_they_are_and_depth_alone_is_not_full(workspace: Workspace) -> None:
    depth = 2000
    innermost = nest(workspace.root, depth)
    before = open_descriptors()
    try:
        assert workspace.usage() == Usage(workspace.usage().size, 2 * depth, over=False)
        create_file(workspace, "a", b"still taken")
        os.close(os.open("last", os.O_WRONLY | os.O_CREAT, dir_fd=innermost))
        assert workspace.usage(Quota(max_files=2 * depth + 1)).over, "what is deep counts"
        assert open_descriptors() == before
    finally:
        os.close(innermost)
        # pytest's own removal recurses
        subprocess.run(["rm", "-r", workspace.root / "d"], check=True)
    assert workspace.usage().files == 2


def test_what_is_moved_while_it_is_counted_leads_the_count_nowhere_else(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "OPEN_LEVELS", 2)
    os.close(nest(workspace.root, 8))
    os.close(nest(workspace.root.parent, 1))
    opened: list[str] = []
    real = folder.OpenLevel

    class Moving(real):  # type: ignore[misc, valid-type]
        def __init__(self, folder_fd: int, name: str) -> None:
            if name == ".." and ".." not in opened:
                (workspace.root / "d/d/d/d/d/d").rename(workspace.root / "moved")
            opened.append(name)
            super().__init__(folder_fd, name)

    monkeypatch.setattr(folder, "OpenLevel", Moving)
    found = workspace.usage()
    assert ".." in opened
    assert found.files <= 16
    monkeypatch.undo()
    assert workspace.usage().files == 16


def test_nothing_is_left_of_a_write_that_failed(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    create_file(workspace, "a", b"old")

    def broken(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    refused(lambda: create_file(workspace, "a", b"new", overwrite=True), "system", "No space left on the disk")
    monkeypatch.undo()
    assert read_file(workspace, "a").data == b"old"
    assert names_in(workspace.root) == ["a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a user for each workspace")
def test_as_root_no_workspace_gets_the_user_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "UIDS", 2)
    monkeypatch.setattr(folder, "UIDS_IN_CONTAINER", 2)
    with Workspace.create(tmp_path / "a") as one, Workspace.create(tmp_path / "b", {one.uid}) as other:
        assert one.uid != other.uid
        taken = {one.uid, other.uid}
        refused(lambda: Workspace.create(tmp_path / "c", taken), "system", NO_USER_LEFT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a user for each workspace")
def test_as_root_each_workspace_has_a_user_of_its_own_and_root_keeps_its_rights(tmp_path: Path) -> None:
    with Workspace.create(tmp_path / "a") as one, Workspace.create(tmp_path / "b", {one.uid}) as other:
        assert 0 not in {one.uid, other.uid}
        assert one.uid != other.uid
        closed = one.root / "closed"
        closed.write_text("root's")
        closed.chmod(0o600)
        refused(lambda: read_file(one, "closed"), "execution", "Permission denied")
        create_file(one, "own", b"x")
        assert (one.root / "own").stat().st_uid == one.uid
        (tmp_path / "after").write_text("x")
        assert (tmp_path / "after").stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a user for each workspace")
def test_as_root_a_process_that_is_to_end_with_its_parent_still_is_after_it_acted_for_a_workspace(
    workspace: Workspace,
) -> None:
    prctl, found = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(folder.PR_SET_PDEATHSIG, signal.SIGURG)
    try:
        create_file(workspace, "a", b"")
        prctl(folder.PR_GET_PDEATHSIG, ctypes.byref(found))
    finally:
        prctl(folder.PR_SET_PDEATHSIG, 0)
    assert found.value == signal.SIGURG


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could be the owner by mistake")
def test_a_workspace_that_belongs_to_root_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    with pytest.raises(WorkspaceError, match="belongs to root"):
        Workspace.open(tmp_path / "w")

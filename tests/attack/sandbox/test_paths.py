"""Paths: no way out of the workspace for the file tools, nor for a command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack.sandbox.conftest import SECRET, Host, Run
from trunkline.errors import WorkspaceError
from trunkline.workspace.edits import Edit
from trunkline.workspace.files import create_file, delete_file, edit_file, read_file
from trunkline.workspace.folder import Workspace

OPERATIONS: dict[str, Callable[[Workspace, str], object]] = {
    "create": lambda workspace, path: create_file(workspace, path, b"owned"),
    "overwrite": lambda workspace, path: create_file(workspace, path, b"owned", overwrite=True),
    "read": read_file,
    "edit": lambda workspace, path: edit_file(workspace, path, [Edit("outside", "owned")]),
    "delete": delete_file,
}
RACES = 10_000


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/passwd", "a/../../secret", "secret\0x", "x/" * 128 + "y", "..", "a/..", "workspace/../secret",
     "a/", "a/.", ".", "", "..\\secret", "C:\\secret"],
)  # fmt: skip
def test_a_path_that_leads_out_is_refused(workspace: Workspace, operation: str, path: str) -> None:
    with pytest.raises(WorkspaceError) as refused:
        OPERATIONS[operation](workspace, path)
    assert refused.value.kind == "validation"


@pytest.mark.parametrize("operation", ["create", "overwrite", "read", "edit"])
@pytest.mark.parametrize(
    "target", ["{outside}/secret", "../secret", "{outside}/nothing", "/proc/self/environ", "inside"]
)
def test_a_link_is_never_followed_wherever_it_leads(
    workspace: Workspace, host: Host, operation: str, target: str
) -> None:
    (workspace.root / "inside").write_text(SECRET)
    (workspace.root / "link").symlink_to(target.format(outside=host.folder))
    with pytest.raises(WorkspaceError, match="symbolic link") as refused:
        OPERATIONS[operation](workspace, "link")
    assert refused.value.kind == "policy"
    assert (workspace.root / "inside").read_text() == SECRET


def test_deleting_a_link_removes_the_link_and_not_what_it_leads_to(workspace: Workspace, host: Host) -> None:
    (workspace.root / "link").symlink_to(host.secret)
    delete_file(workspace, "link")
    assert not (workspace.root / "link").is_symlink()
    assert host.secret.read_text() == SECRET


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("target", ["{outside}", "..", "/proc/self/root", "/proc/self/cwd", "/dev/fd"])
def test_a_link_on_the_way_is_never_followed(workspace: Workspace, host: Host, operation: str, target: str) -> None:
    (workspace.root / "link").symlink_to(target.format(outside=host.folder))
    with pytest.raises(WorkspaceError, match="symbolic link"):
        OPERATIONS[operation](workspace, "link/secret")


@pytest.mark.parametrize("operation", ["overwrite", "edit"])
def test_writing_to_a_second_name_of_an_outside_file_leaves_that_file_alone(
    workspace: Workspace, host: Host, operation: str
) -> None:
    os.link(host.secret, workspace.root / "hard")
    with contextlib.suppress(WorkspaceError):
        OPERATIONS[operation](workspace, "hard")
    assert host.secret.read_text() == SECRET


@pytest.mark.skipif(os.geteuid() != 0, reason="otherwise the file is the user's own")
def test_a_second_name_of_a_file_that_its_owner_may_not_read_is_not_read(workspace: Workspace, host: Host) -> None:
    closed = host.folder / "closed"
    closed.write_text(SECRET)
    closed.chmod(0o600)
    os.link(closed, workspace.root / "hard")
    with pytest.raises(WorkspaceError, match="Permission denied"):
        read_file(workspace, "hard")
    closed.unlink()


SWAPPING = """
import ctypes, sys
exchange = ctypes.CDLL(None).renameat2
one, other = sys.argv[1].encode(), sys.argv[2].encode()
print("swapping", flush=True)
for _ in range(50_000_000):
    if exchange(-100, one, -100, other, 2) != 0:
        sys.exit(1)
"""


@pytest.mark.parametrize("swapped", ["d", "d/secret"])
def test_a_link_that_is_swapped_in_while_a_file_tool_works_never_wins(
    workspace: Workspace, host: Host, swapped: str
) -> None:
    """A folder on the way, or the file itself, is by turns harmless and a link to the real thing outside."""
    root = workspace.root
    (root / "d").mkdir()
    (root / "d" / "secret").write_text("harmless outside")
    for path in (root / "d", root / "d" / "secret"):
        os.chown(path, workspace.uid, workspace.gid)
    (root / "way").symlink_to(host.folder if swapped == "d" else host.secret)
    seen: dict[str, int] = {}
    command = [sys.executable, "-c", SWAPPING, str(root / swapped), str(root / "way")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as swapping:
        try:
            assert swapping.stdout
            assert swapping.stdout.readline() == b"swapping\n"
            for turn in range(RACES // 2):
                # Writing replaces whatever has the name: the file's own race would be over with the first write.
                outcome = use(workspace, turn if swapped == "d" else 0)
                seen[outcome] = seen.get(outcome, 0) + 1
                assert SECRET not in outcome
            assert swapping.poll() is None
        finally:
            swapping.kill()
    host.check_unharmed()
    # The race was one: the tools met the harmless one as well as the link.
    assert sum(seen.get(good, 0) for good in ("harmless outside", "16", "1")) > RACES // 100
    assert seen["Path contains a symbolic link"] > RACES // 100


def use(workspace: Workspace, turn: int) -> str:
    try:
        if turn % 3 == 0:
            return read_file(workspace, "d/secret").data.decode()
        if turn % 3 == 1:
            return str(create_file(workspace, "d/secret", b"harmless outside", overwrite=True).bytes_written)
        return str(edit_file(workspace, "d/secret", [Edit("outside", "outside")]).edits_applied)
    except WorkspaceError as error:
        return error.message


@pytest.mark.parametrize("cwd", ["..", "/", "a/../..", "link"])
def test_a_command_cannot_be_started_outside(run_either: Run, workspace: Workspace, host: Host, cwd: str) -> None:
    (workspace.root / "link").symlink_to(host.folder)
    with pytest.raises(WorkspaceError):
        run_either("pwd", cwd=cwd)


@pytest.mark.parametrize(
    "way",
    ["{outside}", "/proc/self/root{outside}", "/proc/1/root{outside}", "/proc/1/cwd{outside}", "../..{outside}", "link",
     "/proc/{exchange}/root{outside}", "/proc/{exchange}/cwd", "/proc/self/fd/3", "/dev/fd/3"],
)  # fmt: skip
def test_a_command_does_not_find_the_files_outside(run_either: Run, workspace: Workspace, host: Host, way: str) -> None:
    (workspace.root / "link").symlink_to(host.folder)
    place = way.format(outside=host.folder, exchange=os.getpid())
    ran = run_either(
        f"cat {place}/secret; echo owned >> {place}/secret; echo x > {place}/open/new; rm -f {place}/secret; true"
    )
    assert ran.exit_code == 0
    assert SECRET not in ran.stdout.text
    host.check_unharmed()


def test_a_link_that_a_command_made_is_not_followed_by_the_next_one_or_by_a_tool(
    run: Run, workspace: Workspace
) -> None:
    run("mkdir -p .git && ln -s /etc .git/hooks && ln -s / root && ln -s /proc/self/environ env")
    ran = run("ls .git/hooks/ssh .git/hooks/shadow root/home root/root")
    assert ran.exit_code != 0
    for path in ("root/etc/passwd", "env", ".git/hooks/passwd"):
        with pytest.raises(WorkspaceError, match="symbolic link"):
            read_file(workspace, path)


def test_a_workspace_whose_folder_was_replaced_by_a_link_runs_nothing_there(
    run: Run, workspace: Workspace, host: Host
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only as root the folder is found by its name a second time")
    workspace.root.rename(host.folder / "workspace.moved")
    workspace.root.symlink_to(host.folder)
    try:
        with pytest.raises(WorkspaceError, match="could not be set up"):
            run("cat secret")
    finally:
        workspace.root.unlink()
        Path(host.folder / "workspace.moved").rename(workspace.root)

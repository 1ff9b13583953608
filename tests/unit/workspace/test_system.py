"""A machine that refuses: whatever the operating system says, a tool fails with a reason of ours and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import stat
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.descriptors import open_descriptors
from trunkline.errors import WorkspaceError
from trunkline.workspace.edits import Edit
from trunkline.workspace.files import create_file, delete_file, edit_file, read_file
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import PRESETS
from trunkline.workspace.sandbox import Sandbox, probe

pytestmark = pytest.mark.slow

# More than any of these has open at the same time.
ENOUGH = 24


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """So many more files can be opened, by the kernel's own bound."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for descriptor in taken[len(taken) - count :]:
            os.close(descriptor)
        del taken[len(taken) - count :]
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


FILE_TOOLS: dict[str, Callable[[Workspace], object]] = {
    "create": lambda workspace: create_file(workspace, "new/a", b"x"),
    "read": lambda workspace: read_file(workspace, "there/a"),
    "edit": lambda workspace: edit_file(workspace, "there/a", [Edit("x", "yy")]),
    "delete": lambda workspace: delete_file(workspace, "there/a"),
}


@pytest.mark.parametrize("tool", FILE_TOOLS)
def test_with_too_few_descriptors_a_file_tool_fails_by_the_system_and_leaks_none(
    workspace: Workspace, tool: str
) -> None:
    create_file(workspace, "there/a", b"x")
    before = open_descriptors()
    said: list[tuple[str, str]] = []
    for count in range(ENOUGH):
        workspace._known = None  # it counts what is there each time
        with descriptors_left(count):
            try:
                FILE_TOOLS[tool](workspace)
            except WorkspaceError as error:
                said.append((error.kind, error.message))
            else:
                break
    assert set(said) == {("system", "Too many files are open (EMFILE)")}
    assert len(said) < ENOUGH - 1
    assert open_descriptors() == before


def test_a_disk_that_cannot_be_asked_for_its_room_is_a_failure_of_the_system(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error", "/secret/path")

    monkeypatch.setattr(os, "fstatvfs", broken)
    with pytest.raises(WorkspaceError) as refused:
        create_file(workspace, "a", b"x")
    assert (refused.value.kind, refused.value.message) == ("system", "The system failed (EIO)")


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    try:
        return asyncio.run(probe())
    except WorkspaceError as reason:
        pytest.skip(reason.message)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_with_too_few_descriptors_a_command_fails_by_the_system_and_leaks_none(
    sandbox: Sandbox, workspace: Workspace, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    run(_with_too_few_descriptors(sandbox, workspace))


async def _with_too_few_descriptors(sandbox: Sandbox, workspace: Workspace) -> None:
    await asyncio.to_thread(os.getpid)  # the loop's thread, once and for all
    await sandbox.run(workspace, "true", policy=PRESETS["standard"])
    before = open_descriptors()
    outcomes: list[str] = []
    for count in range(ENOUGH):
        with descriptors_left(count):
            try:
                ran = await sandbox.run(workspace, "echo ran >> log", policy=PRESETS["standard"])
            except WorkspaceError as error:
                outcomes.append("in doubt" if error.in_doubt else error.kind)
            else:
                outcomes.append(f"exit {ran.exit_code}")
    assert open_descriptors() == before
    assert outcomes[0] == "system"
    assert outcomes[-1] == "exit 0"
    assert set(outcomes) == {"system", "exit 0"}
    assert (workspace.root / "log").read_text().count("ran") == outcomes.count("exit 0")


async def test_a_command_that_can_no_longer_be_watched_is_ended(
    sandbox: Sandbox, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: Workspace, _quota: Any) -> None:
        raise WorkspaceError("system", "The system failed (EIO)")

    monkeypatch.setattr(Workspace, "usage", broken)
    workspace._known = None
    async with asyncio.timeout(20) as bound:
        with pytest.raises(WorkspaceError, match="EIO") as ended:
            await sandbox.run(workspace, "sleep 600", policy=PRESETS["standard"], timeout_ms=600_000)
    assert not bound.expired()
    assert ended.value.in_doubt


@pytest.mark.parametrize("tool", ["create", "edit", "delete"])
def test_a_change_that_may_not_last_is_told_to_be_in_doubt(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    """The disk fails after the file has its new name, or none: what others see is the change."""
    create_file(workspace, "there/a", b"x")
    really = os.fsync

    def broken(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        really(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(WorkspaceError) as failed:
        FILE_TOOLS[tool](workspace)
    assert (failed.value.message, failed.value.in_doubt) == ("The system failed (EIO)", True)


async def test_a_command_does_not_run_if_nobody_can_tell_whether_a_protected_file_is_there(
    sandbox: Sandbox, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_file(workspace, ".git/hooks/pre-commit", b"x")
    really = os.open

    def no_hooks(path: Any, *arguments: Any, **options: Any) -> int:
        if path == ".git":
            raise OSError(errno.EMFILE, "Too many open files")
        return really(path, *arguments, **options)

    monkeypatch.setattr(os, "open", no_hooks)
    with pytest.raises(WorkspaceError) as refused:
        await sandbox.run(workspace, "touch ran", policy=PRESETS["standard"])
    assert refused.value.kind == "system"
    assert not (workspace.root / "ran").exists()

"""Files of a workspace on their way into place, and what is left of one if we are killed meanwhile.

A new file has no name until it is whole, where the file system has such files (``O_TMPFILE``). What replaces a file
needs a name beside it, since only a rename replaces: before that name is used it is noted in a folder of ours, which no
command reaches, and ``sweep`` at the next start removes what is noted. It does not own what files contain, nor who may.

Invariant: only a name that was noted is removed: 128 random bits that nobody knew before we made the file. A note is a
symbolic link from the random part to the folder, so that it is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING, Final

from trunkline.errors import WorkspaceError
from trunkline.workspace.paths import NOT_FOUND, failure_of, open_folder, system_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.workspace.folder import Workspace

# What file systems and kernels say that have no files without a name.
_NO_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
_ROOT: Final = "."


def place(workspace: Workspace, folders: tuple[str, ...], fd: int, name: str, data: bytes, mode: int) -> None:
    """Put a new file into the folder ``fd`` that ``folders`` lead to. FileExistsError if there is one by now."""
    nameless = _nameless(fd)
    if nameless is not None:
        with os.fdopen(nameless, "wb", buffering=0) as file:
            _fill(file.fileno(), data, mode)
            os.link(f"/proc/self/fd/{nameless}", name, dst_dir_fd=fd, follow_symlinks=True)
        return
    with _noted(workspace, folders, fd) as temporary:
        _make(fd, temporary, data, mode)
        # A link fails where a rename would replace: nobody who made the file meanwhile loses it.
        os.link(temporary, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)


def replace(workspace: Workspace, folders: tuple[str, ...], fd: int, name: str, data: bytes, mode: int) -> None:
    """Put a file into the folder ``fd`` that ``folders`` lead to, in the place of what has its name."""
    with _noted(workspace, folders, fd) as temporary:
        _make(fd, temporary, data, mode)
        os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)


def sweep(workspace: Workspace) -> int:
    """After a start: remove what was on its way when we were killed; how many files that were.

    What cannot be removed (its owner closed the folder) stays noted and is tried again at the next start; the last such
    failure is raised when all others are gone.
    """
    if workspace.notes_fd < 0:
        return 0
    removed = 0
    failure: WorkspaceError | None = None
    with system_calls():
        for token in _noted_before(workspace.notes_fd):
            try:
                removed += _remove(workspace, os.readlink(token, dir_fd=workspace.notes_fd), _temporary(token))
            except WorkspaceError as error:
                failure = error
            else:
                os.unlink(token, dir_fd=workspace.notes_fd)
    if failure is not None:
        raise failure
    return removed


def _noted_before(notes_fd: int) -> list[str]:
    # Opened anew: on btrfs a folder that is open shows what it had when it was opened.
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=notes_fd)
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in entries]
    finally:
        os.close(fd)


def _remove(workspace: Workspace, place: str, temporary: str) -> bool:
    folders = () if place == _ROOT else tuple(place.split("/"))
    try:
        with workspace.acting(), open_folder(workspace.fd, folders) as fd:
            os.unlink(temporary, dir_fd=fd)
    except FileNotFoundError:
        return False  # it was in place already, or not made yet
    except OSError as error:
        raise failure_of(error) from None
    except WorkspaceError as error:
        if error.message == NOT_FOUND:
            return False  # its folder was not made yet on disk, or is gone
        raise
    return True


def _temporary(token: str) -> str:
    return f".trunkline-{token}.tmp"


@contextlib.contextmanager
def _noted(workspace: Workspace, folders: tuple[str, ...], fd: int) -> Iterator[str]:
    """A name for a file on its way. Whatever has it at the end is removed; the note stays if that fails."""
    token = secrets.token_hex(16)
    temporary = _temporary(token)
    if workspace.notes_fd >= 0:
        os.symlink("/".join(folders) or _ROOT, token, dir_fd=workspace.notes_fd)
    try:
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=fd)
        if workspace.notes_fd >= 0:
            os.unlink(token, dir_fd=workspace.notes_fd)


def _nameless(folder: int) -> int | None:
    try:
        return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_NAMELESS:
            return None
        raise


def _make(folder: int, temporary: str, data: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb", buffering=0) as file:
        _fill(file.fileno(), data, mode)


def _fill(fd: int, data: bytes, mode: int) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.fchmod(fd, mode & 0o777)  # never setuid, setgid or sticky, whatever the old file had
    os.fsync(fd)

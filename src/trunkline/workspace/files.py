"""Files of a workspace: create, read, edit, delete; what a folder holds.

Owns what each does and the texts of what can go wrong. It does not own whether it is allowed (``policy``), nor any
encoding of a protocol: contents are bytes. Functions block; call them in a thread.

Invariant: a file is only ever replaced as a whole, by a rename (``placing``). Nobody sees half of it, a crash leaves
the old or the new one, and what its name led to before, be it a link or a second name of another file, is never
written through.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from trunkline.errors import WorkspaceError
from trunkline.workspace.edits import Edit, apply_edits
from trunkline.workspace.folder import QUOTA, Quota, Workspace
from trunkline.workspace.paths import (
    IS_FOLDER,
    IS_LINK,
    NOT_FOUND,
    check_cwd,
    check_path,
    failure_of,
    kind_of,
    open_folder,
    system_calls,
)
from trunkline.workspace.placing import place, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Ten times what an answer carries inline; base64 of it still fits a message of 16 MiB.
READ_LIMIT_BYTES: Final = 10_485_760
WRITE_LIMIT_BYTES: Final = 10_485_760

NEW_FILE_MODE: Final = 0o644
_KINDS: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
NOT_UTF8: Final = "File is not valid UTF-8"


class FileCreated(Struct, frozen=True):
    """The result of ``create_file``."""

    bytes_written: int
    sha256: str


class FileContent(Struct, frozen=True):
    """The result of ``read_file``: what the file holds."""

    data: bytes
    size: int
    sha256: str

    def text(self) -> str:
        """The content as text."""
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            raise WorkspaceError("execution", f"{NOT_UTF8}: read it with encoding base64") from None


class FolderItem(Struct, frozen=True):
    """One name in a folder. ``kind`` is ``file``, ``folder``, ``link`` or ``other``; links are not followed."""

    name: str
    kind: str
    size: int
    changed_ms: int


class FolderContent(Struct, frozen=True):
    """The result of ``list_folder``: some of its names, and how many there are."""

    items: tuple[FolderItem, ...]
    count: int


class FileEdited(Struct, frozen=True):
    """The result of ``edit_file``: all edits were applied; size and hash are those of the new content."""

    edits_applied: int
    size: int
    sha256: str


def create_file(
    workspace: Workspace, path: str, data: bytes, *, overwrite: bool = False, quota: Quota = QUOTA
) -> FileCreated:
    """Write a new file, making its missing folders; with ``overwrite`` it may replace a file of that name."""
    *folders, name = check_path(path)
    if len(data) > WRITE_LIMIT_BYTES:
        raise WorkspaceError("execution", f"Content is larger than {WRITE_LIMIT_BYTES} bytes")
    workspace.check_room(len(data), 1 + len(folders), quota)
    with _acting(workspace), open_folder(workspace.fd, tuple(folders), make=True) as folder:
        mode = NEW_FILE_MODE
        if _is_there(folder, name):
            if not overwrite:
                raise WorkspaceError("execution", "File already exists")  # SP-048
            mode = stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        _put(workspace, folders, folder, name, data, mode, replacing=overwrite)
    return FileCreated(len(data), hashlib.sha256(data).hexdigest())


def read_file(workspace: Workspace, path: str) -> FileContent:
    """The whole content of a regular file."""
    *folders, name = check_path(path)
    with _acting(workspace), open_folder(workspace.fd, tuple(folders)) as folder:
        data, _ = _content(folder, name)
    return FileContent(data, len(data), hashlib.sha256(data).hexdigest())


def list_folder(workspace: Workspace, path: str, most: int) -> FolderContent:
    """What stands in a folder (``.`` is the root): folders first, then by name, so many at most."""
    names = check_cwd(path)
    with _acting(workspace), open_folder(workspace.fd, names) as folder, os.scandir(folder) as entries:
        found = []
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                info = entry.stat(follow_symlinks=False)
                kind = _KINDS.get(stat.S_IFMT(info.st_mode), "other")
                # A name that is no UTF-8 can be shown, and not asked for.
                name = os.fsencode(entry.name).decode(errors="replace")
                found.append(FolderItem(name, kind, info.st_size, info.st_mtime_ns // 1_000_000))
    found.sort(key=lambda item: (item.kind != "folder", item.name))
    return FolderContent(tuple(found[:most]), len(found))


def edit_file(workspace: Workspace, path: str, edits: Sequence[Edit], *, quota: Quota = QUOTA) -> FileEdited:
    """Apply all edits to a text file, or none. Line endings are matched as they are, mode bits are kept."""
    *folders, name = check_path(path)
    with _acting(workspace), open_folder(workspace.fd, tuple(folders)) as folder:
        before, mode = _content(folder, name)
        try:
            text = before.decode()
        except UnicodeDecodeError:
            raise WorkspaceError("execution", NOT_UTF8) from None
        data = apply_edits(text, edits).encode()
        if len(data) > WRITE_LIMIT_BYTES:
            raise WorkspaceError("execution", f"Content is larger than {WRITE_LIMIT_BYTES} bytes")
        # While it is written the old and the new content are both there; afterwards only the difference counts.
        if len(data) > len(before):
            workspace.check_room(len(data) - len(before), 0, quota)
        _put(workspace, folders, folder, name, data, mode, replacing=True)
    return FileEdited(len(edits), len(data), hashlib.sha256(data).hexdigest())


def delete_file(workspace: Workspace, path: str) -> None:
    """Remove a file, or a link itself, never what it leads to. Folders stay."""
    *folders, name = check_path(path)
    with _acting(workspace), open_folder(workspace.fd, tuple(folders)) as folder:
        kind = kind_of(folder, name)
        if kind == "folder":
            raise WorkspaceError("validation", IS_FOLDER)
        if kind == "missing":
            raise WorkspaceError("execution", NOT_FOUND)
        os.unlink(name, dir_fd=folder)
        _make_last(folder)


@contextlib.contextmanager
def _acting(workspace: Workspace) -> Iterator[None]:
    """As the workspace's owner; what the file system says becomes ours here and nowhere else."""
    try:
        with workspace.acting():
            yield
    except OSError as error:
        raise failure_of(error) from None


def _is_there(folder: int, name: str) -> bool:
    """Whether there is a file of this name; something else of it is refused."""
    match kind_of(folder, name):
        case "folder":
            raise WorkspaceError("validation", IS_FOLDER)
        case "link":
            raise WorkspaceError("policy", IS_LINK)
        case "other":
            raise WorkspaceError("policy", "Path is not a regular file")
        case kind:
            return kind == "file"


def _content(folder: int, name: str) -> tuple[bytes, int]:
    if not _is_there(folder, name):
        raise WorkspaceError("execution", NOT_FOUND)
    # It may have been swapped since: NOFOLLOW refuses a link, NONBLOCK returns at once from a pipe without a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise WorkspaceError("policy", IS_LINK) from None
        raise
    with os.fdopen(fd, "rb", buffering=0) as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise WorkspaceError("policy", "Path is not a regular file")
        # Asked before reading, so that a sparse file of a terabyte costs nothing.
        if info.st_size > READ_LIMIT_BYTES:
            raise WorkspaceError("execution", f"File is larger than {READ_LIMIT_BYTES} bytes")
        parts, size = [], 0
        while part := file.read(READ_LIMIT_BYTES + 1 - size):
            parts.append(part)
            size += len(part)
            if size > READ_LIMIT_BYTES:
                raise WorkspaceError("execution", f"File is larger than {READ_LIMIT_BYTES} bytes")
    return b"".join(parts), stat.S_IMODE(info.st_mode)


def _put(
    workspace: Workspace, folders: list[str], folder: int, name: str, data: bytes, mode: int, *, replacing: bool
) -> None:
    if replacing:
        replace(workspace, tuple(folders), folder, name, data, mode)
    else:
        try:
            place(workspace, tuple(folders), folder, name, data, mode)
        except FileExistsError:
            raise WorkspaceError("execution", "File already exists") from None
    _make_last(folder)


def _make_last(folder: int) -> None:
    """Put names of this folder that changed on disk. Others see the change already, so a failure leaves it in doubt."""
    with system_calls(in_doubt=True):
        os.fsync(folder)

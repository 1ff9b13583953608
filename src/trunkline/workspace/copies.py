"""Files of a workspace with our own rights: opened although their owner closed them, copied, compared.

For ``snapshots`` only, which keeps and brings back what is there whatever its modes. It does not own which files.

Invariant: nothing here follows a link. A mode that was changed to get in is changed back, or is the caller's to set.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trunkline.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Iterator

# ioctl(to, FICLONE, from): the same blocks for both until one is written (btrfs, XFS, bcachefs).
FICLONE: Final = 0x40049409
COPY_BYTES: Final = 8_388_608


@contextlib.contextmanager
def readable(folder_fd: int, name: bytes) -> Iterator[int]:
    """A regular file, open for reading, also if its owner closed it to himself: it is opened for that long."""
    with contextlib.suppress(PermissionError):
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise WorkspaceError("execution", "a file was replaced meanwhile")
            yield source
        finally:
            os.close(source)
        return
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        info = os.fstat(place)
        if not stat.S_ISREG(info.st_mode):
            raise WorkspaceError("execution", "a file was replaced meanwhile")
        path = Path(f"/proc/self/fd/{place}")
        mode = stat.S_IMODE(info.st_mode)
        path.chmod(mode | stat.S_IRUSR)
        try:
            source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            path.chmod(mode)
        try:
            yield source
        finally:
            os.close(source)
    finally:
        os.close(place)


def is_equal(fd: int, path: Path) -> bool:
    """Whether an open file and one that has a path hold the same bytes."""
    with open(fd, "rb", buffering=0, closefd=False) as one, path.open("rb", buffering=0) as other:
        while True:
            part = one.read(COPY_BYTES)
            if part != other.read(COPY_BYTES):
                return False
            if not part:
                return True


def open_up(folder_fd: int, name: bytes) -> None:
    """Let us into a folder that its owner closed. Its mode is set again when all of it is in place."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        if os.geteuid() != 0 and mode & stat.S_IRWXU != stat.S_IRWXU:
            Path(f"/proc/self/fd/{place}").chmod(mode | stat.S_IRWXU)
    finally:
        os.close(place)


def open_root(root_fd: int) -> None:
    """The same for the root, which is open already: by its name it could not be opened if it is closed."""
    mode = stat.S_IMODE(os.fstat(root_fd).st_mode)
    if os.geteuid() != 0 and mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(root_fd, mode | stat.S_IRWXU)


# What a file system says that copies only in the ordinary way.
_NO_COPY: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


def _copy_part(source: int, target: int, at: int, size: int) -> int:
    try:
        return os.copy_file_range(source, target, size, at, at)
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
        os.lseek(target, at, os.SEEK_SET)
        return os.sendfile(target, source, at, size)


def copy(source: int, target: int) -> None:
    """All of a file: by sharing its blocks, else what is not a hole of it."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(target, FICLONE, source)
        return
    size = os.fstat(source).st_size
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                break
            raise
        end = os.lseek(source, at, os.SEEK_HOLE)
        while at < end:
            taken = _copy_part(source, target, at, min(COPY_BYTES, end - at))
            if not taken:
                raise WorkspaceError("execution", "a file became shorter meanwhile")
            at += taken
    os.ftruncate(target, size)

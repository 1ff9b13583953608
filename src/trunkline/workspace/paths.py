"""What a path in a workspace may look like, and the walk from the root to the folder that holds it.

Owns the rules on the text of a path and its resolution. It does not own what is done with the file.

Invariant: every folder on the way is opened by its one name, relative to the descriptor of the folder before it, and
never through a symbolic link. So a link that is swapped in while we walk cannot lead out: no name is looked up twice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import unicodedata
from typing import TYPE_CHECKING, Final

from trunkline.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PATH_CHARACTERS: Final = 255  # SP-079; code points, as the specification says characters

_DRIVE: Final = re.compile(r"[A-Za-z]:")
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FOLDER_MODE: Final = 0o755

IS_LINK: Final = "Path contains a symbolic link"
IS_FOLDER: Final = "Path is a directory"
NOT_FOUND: Final = "File not found"


def check_path(path: str) -> tuple[str, ...]:
    """The names on the way to a file. ``./a`` and ``a//b`` are accepted and mean ``a`` and ``a/b``."""
    names = _names(path)
    if path.endswith("/") or path.rsplit("/", 1)[-1] == ".":
        raise WorkspaceError("validation", "Path must name a file: it ends in a slash or a dot")
    return names


def check_cwd(cwd: str) -> tuple[str, ...]:
    """The names on the way to a folder; ``.`` is the root and the only path without a name."""
    if cwd == ".":
        return ()
    return _names(cwd.removesuffix("/"))


def _names(path: str) -> tuple[str, ...]:
    fault = ""
    if not path:
        fault = "Path is empty"
    elif path.startswith("/"):
        fault = "Path must be relative: it begins with a slash"  # SP-076
    elif ".." in path:
        fault = "Path must not contain '..'"  # SP-077, literally: `a..b` too
    elif "\0" in path:
        fault = "Path must not contain a null byte"  # SP-078
    elif len(path) > MAX_PATH_CHARACTERS:
        fault = f"Path is longer than {MAX_PATH_CHARACTERS} characters"  # SP-079
    elif "\\" in path:
        fault = "Path must not contain a backslash"
    elif _DRIVE.match(path):
        fault = "Path must not begin with a drive letter"
    elif any(unicodedata.category(character) in {"Cc", "Cs"} for character in path):
        fault = "Path must not contain control characters"
    if fault:
        raise WorkspaceError("validation", fault)
    names = tuple(name for name in path.split("/") if name not in {"", "."})
    if not names:
        raise WorkspaceError("validation", "Path must name a file")
    return names


@contextlib.contextmanager
def open_folder(root_fd: int, names: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder beneath the root that these names lead to. With ``make``, what is missing is made."""
    with system_calls():
        current = os.dup(root_fd)
    try:
        for name in names:
            inner = _step(current, name, make=make)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _step(folder_fd: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=folder_fd)
    except FileNotFoundError:
        if not make:
            raise WorkspaceError("execution", NOT_FOUND) from None
    except OSError as error:
        raise _why_no_folder(folder_fd, name, error) from None
    try:
        # Somebody else may have made it meanwhile; the open below then judges what is there.
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, _NEW_FOLDER_MODE, dir_fd=folder_fd)
        return os.open(name, _FOLDER_FLAGS, dir_fd=folder_fd)
    except OSError as error:
        raise _why_no_folder(folder_fd, name, error) from None


def _why_no_folder(folder_fd: int, name: str, error: OSError) -> WorkspaceError:
    # The kernel says ENOTDIR for a link too when O_DIRECTORY and O_NOFOLLOW are both set.
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        if kind_of(folder_fd, name) == "link":
            return WorkspaceError("policy", IS_LINK)
        return WorkspaceError("execution", "A part of the path is not a directory")
    return failure_of(error)


def kind_of(folder_fd: int, name: str) -> str:
    """``file``, ``folder``, ``link``, ``other`` (device, pipe, socket) or ``missing``; opens nothing."""
    try:
        mode = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        raise failure_of(error) from None
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


# What the file system says that is about this path or this space. Anything else is a fault of the system.
_EXECUTION: Final = {
    errno.EACCES: "Permission denied",
    errno.EPERM: "Permission denied",
    errno.EROFS: "Permission denied",
    errno.ENAMETOOLONG: "A name in the path is too long for the file system",
    errno.ENOENT: NOT_FOUND,
    errno.EMLINK: "Too many links",
    errno.ETXTBSY: "File is in use",
    errno.EBUSY: "File is in use",
}


_SYSTEM: Final = {
    errno.ENOSPC: "No space left on the disk",
    errno.EDQUOT: "No space left on the disk",
    errno.EMFILE: "Too many files are open (EMFILE)",
    errno.ENFILE: "Too many files are open (ENFILE)",
}


def failure_of(error: OSError) -> WorkspaceError:
    """A failure at a path of the caller's, as ours."""
    text = _EXECUTION.get(error.errno or 0)
    return system_failure(error) if text is None else WorkspaceError("execution", text)


def system_failure(error: OSError, *, in_doubt: bool = False) -> WorkspaceError:
    """A failure of the machine, as ours. The text is from a table: ``str(error)`` would show host paths."""
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    text = _SYSTEM.get(error.errno or 0, f"The system failed ({name})")
    return WorkspaceError("system", text, in_doubt=in_doubt)


@contextlib.contextmanager
def system_calls(*, in_doubt: bool = False) -> Iterator[None]:
    """Around what is asked of the operating system and is not about a path of the caller's.

    ``in_doubt``: if it fails, by the system or by what is around this inside, something may have been done already.
    """
    try:
        yield
    except OSError as error:
        raise system_failure(error, in_doubt=in_doubt) from None
    except WorkspaceError as error:
        error.in_doubt = error.in_doubt or in_doubt
        raise

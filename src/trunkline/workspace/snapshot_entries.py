"""What a snapshot says of one thing in a workspace, and whether that is still so.

Owns the entries that a snapshot's file lists; the files themselves are those of ``snapshots``, and what is done about a
difference is done by ``restoring``.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    import os

_KINDS: Final = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p"}


class Entry(Struct, frozen=True, array_like=True):
    """One thing in a workspace. ``kind`` is a letter: file, directory, link or pipe."""

    path: bytes
    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    inode: int = 0
    ctime_ns: int = 0  # 0: it was too young to be recognised by its times
    names: int = 1
    content: str = ""  # the name of its copy
    target: bytes = b""


def kind_of(info: os.stat_result) -> str | None:
    """The letter of its kind; None for a socket or a device."""
    return _KINDS.get(stat.S_IFMT(info.st_mode))


def is_same(was: Entry, info: os.stat_result) -> bool:
    """Whether a file is certainly what it was: the kernel sets the second time at every change, and nobody else can."""
    return (
        was.kind == "f"
        and was.ctime_ns == info.st_ctime_ns
        and (was.inode, was.size, was.mtime_ns) == (info.st_ino, info.st_size, info.st_mtime_ns)
    )

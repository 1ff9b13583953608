"""Bringing a workspace back to how a snapshot says it was.

Owns what is done to the files: finding what is other than it was, setting it aside, and putting copies in its place.
Does not own the snapshots (``snapshots``), nor what was begun and not finished. Functions block, as there.

Invariant: each thing is put in place by one rename, and nothing is erased before all is done. Doing the same again,
from wherever it was interrupted, leads to the same end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from trunkline.errors import WorkspaceError
from trunkline.workspace.copies import copy, is_equal, open_root, open_up, readable
from trunkline.workspace.folder import OpenLevel, Workspace
from trunkline.workspace.snapshot_entries import Entry, is_same, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Names that are shown of each kind of change.
SHOWN: Final = 10


class Change(Struct, frozen=True):
    """What bringing a snapshot back does, or did: how many names, and the first of each kind."""

    brought_back: int
    changed_back: int
    removed: int
    first_brought_back: tuple[str, ...]
    first_changed_back: tuple[str, ...]
    first_removed: tuple[str, ...]


class Difference(Struct):
    """The same as paths: what is missing, what is other than it was, and what was not there."""

    missing: list[Entry]
    other: list[Entry]
    made: list[bytes]
    stale: list[Entry]  # folders that are as they were but for their time


class Restoring:
    """Of one workspace, from copies in ``objects``. What is put in place or out of the way goes through ``staging``."""

    def __init__(self, workspace: Workspace, objects: Path, staging: Path, step: Callable[[str], None]) -> None:
        self._workspace = workspace
        self._objects = objects
        self._staging = staging
        self._step = step

    def difference(self, entries: list[Entry]) -> Difference:
        """What is other than these entries say."""
        wanted = {entry.path: entry for entry in entries}
        found = Difference([], [], [], [])
        left = dict(wanted)
        levels: list[tuple[OpenLevel, bytes]] = []
        root = left.pop(b"", None)
        info = os.fstat(self._workspace.fd)
        if root is not None and stat.S_IMODE(info.st_mode) != root.mode:
            found.other.append(root)
        elif root is not None and info.st_mtime_ns != root.mtime_ns:
            found.stale.append(root)
        open_root(self._workspace.fd)
        try:
            levels.append((OpenLevel(self._workspace.fd, "."), b""))
            while levels:
                here, path = levels[-1]
                entry = next(here.entries, None)
                if entry is None:
                    levels.pop()[0].close()
                    continue
                inner = path + os.fsencode(entry.name)
                present = entry.stat(follow_symlinks=False)
                was = left.pop(inner, None)
                if was is None:
                    if kind_of(present) is not None:
                        found.made.append(inner + (b"/" if stat.S_ISDIR(present.st_mode) else b""))
                    continue
                if self._is_other(was, here.fd, os.fsencode(entry.name), present):
                    found.other.append(was)
                elif was.kind == "d" and present.st_mtime_ns != was.mtime_ns:
                    found.stale.append(was)
                # What is below a folder that was not there goes with it.
                if was.kind == "d" and stat.S_ISDIR(present.st_mode):
                    levels.append((OpenLevel(here.fd, entry.name), inner + b"/"))
        finally:
            for level, _ in reversed(levels):
                level.close()
            if stat.S_IMODE(os.fstat(self._workspace.fd).st_mode) != stat.S_IMODE(info.st_mode):
                os.fchmod(self._workspace.fd, stat.S_IMODE(info.st_mode))
        found.missing.extend(left.values())
        return found

    def _is_other(self, was: Entry, folder_fd: int, name: bytes, info: os.stat_result) -> bool:
        if kind_of(info) != was.kind or info.st_uid != was.uid or info.st_gid != was.gid:
            return True
        if was.kind == "l":
            return os.fsencode(os.readlink(name, dir_fd=folder_fd)) != was.target
        if stat.S_IMODE(info.st_mode) != was.mode:
            return True
        if was.kind != "f" or is_same(was, info):
            return False
        if info.st_size != was.size or info.st_mtime_ns != was.mtime_ns or info.st_nlink != was.names:
            return True
        with readable(folder_fd, name) as source:
            return not is_equal(source, self._objects / was.content)

    def restore(self, entries: list[Entry]) -> Change:
        """Make the workspace what they say; whoever is interrupted begins again with the same entries."""
        for entry in entries:
            if entry.kind == "f":
                self._check_content(entry)
        difference = self.difference(entries)
        self._staging.mkdir(mode=0o700, exist_ok=True)
        for path in difference.made:
            self._set_aside(path.rstrip(b"/"), "")
        for entry in difference.other:
            if entry.path:
                self._set_aside(entry.path, entry.kind)
        wanted = sorted((*difference.missing, *difference.other), key=lambda entry: entry.path)
        # All names of one file at once, so that they are names of one file again.
        shared = {entry.inode for entry in wanted if entry.kind == "f" and entry.names > 1}
        paths = {entry.path for entry in wanted}
        wanted += [entry for entry in entries if entry.inode in shared and entry.path not in paths]
        staged: dict[int, Path] = {}
        for entry in wanted:
            if entry.path:
                self._step("bring")
                self._put(entry, staged)
        changed = [*paths, *(entry.path for entry in wanted), *(path.rstrip(b"/") for path in difference.made)]
        touched = {path.rpartition(b"/")[0] for path in changed} | paths | {entry.path for entry in difference.stale}
        # What is inside first: it changes the times of the folder, whose mode may then keep us out.
        for entry in sorted(entries, key=lambda entry: entry.path, reverse=True):
            if entry.kind == "d" and entry.path in touched:
                self._set_folder(entry)
        self._workspace.forget_count()
        return told(difference)

    def _check_content(self, entry: Entry) -> None:
        try:
            is_whole = (self._objects / entry.content).stat().st_size == entry.size
        except FileNotFoundError:
            is_whole = False
        if not is_whole:
            raise WorkspaceError("execution", "The snapshot is damaged: a copy is missing or cut short")

    def _set_aside(self, path: bytes, wanted: str) -> None:
        """Out of the workspace, by one step however much it is; it is erased later.

        Not if what is ``wanted`` in its place can be renamed over it, or is a folder as it is.
        """
        with self._folder_of(path) as (folder_fd, name):
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode)
            if wanted and is_folder == (wanted == "d"):
                return
            if is_folder:
                open_up(folder_fd, name)  # a folder that is closed to its owner cannot be moved by him
            self._step("aside")
            os.rename(name, self._staging / secrets.token_hex(8), src_dir_fd=folder_fd)

    def _put(self, entry: Entry, staged: dict[int, Path]) -> None:
        with self._folder_of(entry.path) as (folder_fd, name):
            if entry.kind == "d":
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=folder_fd)
                return
            new = self._staging / secrets.token_hex(8)
            if entry.kind == "l":
                new.symlink_to(os.fsdecode(entry.target))
                os.utime(new, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
            elif entry.kind == "p":
                os.mkfifo(new, 0o600)
            elif entry.names > 1 and entry.inode in staged:
                os.link(staged[entry.inode], new)
            else:
                self._bring(entry, new)
            if os.geteuid() == 0:
                os.chown(new, entry.uid, entry.gid, follow_symlinks=False)
            if entry.kind != "l":
                new.chmod(entry.mode & 0o1777)  # never setuid or setgid
                os.utime(new, ns=(entry.mtime_ns, entry.mtime_ns))
            if entry.kind == "f" and entry.names > 1 and entry.inode not in staged:
                staged[entry.inode] = self._staging / secrets.token_hex(8)
                os.link(new, staged[entry.inode])
            self._step("put")
            os.rename(new, name, dst_dir_fd=folder_fd)

    def _bring(self, entry: Entry, new: Path) -> None:
        source = os.open(self._objects / entry.content, os.O_RDONLY | os.O_CLOEXEC)
        try:
            target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                copy(source, target)
            finally:
                os.close(target)
        finally:
            os.close(source)

    def _set_folder(self, entry: Entry) -> None:
        with self._folder_of(entry.path) as (folder_fd, name):
            place = os.open(name or b".", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
        try:
            path = Path(f"/proc/self/fd/{place}")
            if os.geteuid() == 0:
                os.chown(path, entry.uid, entry.gid)
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
            path.chmod(entry.mode & 0o1777)
        finally:
            os.close(place)

    @contextlib.contextmanager
    def _folder_of(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """The folder that holds this path, open to us, and the last name of the path; never through a link."""
        *names, last = path.split(b"/")
        open_root(self._workspace.fd)
        current = os.dup(self._workspace.fd)
        try:
            for name in names:
                open_up(current, name)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
                os.close(current)
                current = inner
            yield current, last
        finally:
            os.close(current)


def told(found: Difference) -> Change:
    """The same in numbers and names."""

    def shown(paths: list[bytes]) -> tuple[str, ...]:
        return tuple(path.decode(errors="replace") for path in sorted(paths)[:SHOWN])

    missing = [entry.path + (b"/" if entry.kind == "d" else b"") for entry in found.missing]
    other = [entry.path + (b"/" if entry.kind == "d" else b"") for entry in found.other]
    return Change(len(missing), len(other), len(found.made), shown(missing), shown(other), shown(found.made))

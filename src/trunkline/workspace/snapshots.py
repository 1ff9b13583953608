"""How a workspace was before something changed it, and bringing that back.

Owns the folder of snapshots beside the workspace, where no command reaches: taking one, choosing which stay,
telling what bringing one back would change, and doing it. It does not own when one is taken, nor who may bring one
back. Functions block; call them in a thread, and only while no command runs in the workspace.

A snapshot is one file: a line of JSON about it, then the list of everything in the workspace. Contents are in
``objects/``, each a copy (sharing blocks where the file system can). A file whose inode, size and times are those of
the snapshot before has the same copy, so a snapshot costs a look at each file and a copy of what changed.

Invariants: a copy in ``objects/`` is never written again. A snapshot's own file appears when all its copies are there.
What is brought back is put in place by renames, and ``undo.pending`` names it until all of it is done: whoever is
interrupted goes on at the next start, from the same snapshot, to the same end.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import stat
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from trunkline.errors import WorkspaceError
from trunkline.workspace.copies import copy, is_equal, open_root, open_up, readable
from trunkline.workspace.folder import KEPT_FREE_BYTES, OpenLevel, Quota, Workspace, erase
from trunkline.workspace.paths import system_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trunkline.workspace.policy import SnapshotLimits

# A file that changed so shortly before the look at it may change again without its times showing it.
UNSETTLED_NS: Final = 2_000_000_000
# Of deeper folders no snapshot is taken: nobody needs them, and looking holds a descriptor for each level.
MAX_DEPTH: Final = 128
# Names that are shown of each kind of change.
SHOWN: Final = 10
_KINDS: Final = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p"}
_NAME: Final = re.compile(r"(\d{8})\.snapshot")
PENDING: Final = "undo.pending"


class About(Struct, frozen=True):
    """What is told of a snapshot. ``run`` is the run or call before which it was taken; ``copied`` counts bytes."""

    number: int
    at_ms: int
    run: str
    files: int
    size: int
    copied: int


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


class Skipped(Struct, frozen=True):
    """Why no snapshot was taken."""

    reason: str


class Change(Struct, frozen=True):
    """What bringing a snapshot back does, or did: how many names, and the first of each kind."""

    brought_back: int
    changed_back: int
    removed: int
    first_brought_back: tuple[str, ...]
    first_changed_back: tuple[str, ...]
    first_removed: tuple[str, ...]


class _Difference(Struct):
    """The same as paths: what is missing, what is other than it was, and what was not there."""

    missing: list[Entry]
    other: list[Entry]
    made: list[bytes]
    stale: list[Entry]  # folders that are as they were but for their time


_entries: Final = msgspec.msgpack.Decoder(list[Entry])
_about: Final = msgspec.json.Decoder(About)


class Snapshots:
    """The snapshots of one workspace. ``step`` is told of each step on the way; a test ends the process there."""

    def __init__(
        self, workspace: Workspace, folder: Path, limits: SnapshotLimits, step: Callable[[str], None] = lambda _: None
    ) -> None:
        self._workspace = workspace
        self._folder = folder
        self.limits = limits
        self._step = step
        self._objects = folder / "objects"
        self._staging = folder / "staging"
        self._was_too_large = False
        self._size: int | None = None
        self.skipped = ""  # why the last one was not taken

    def recover(self) -> int | None:
        """After a start: finish what was interrupted. The snapshot that was being brought back, if one was."""
        if not self._folder.is_dir():
            return None
        with system_calls():
            erase(self._staging)
            for left in self._folder.glob("*.new"):
                left.unlink()
            for known in self._numbers():
                if not self._is_readable(known):
                    self._file(known).unlink()
            pending = self._folder / PENDING
            number = int(pending.read_text(encoding="ascii") or "0") if pending.exists() else None
            if number and self._file(number).exists():
                self._restore(number)
                erase(self._staging)
            pending.unlink(missing_ok=True)
            self._remove_unused()
        return number

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, run: str, now_ms: int, spared: int = 0) -> About | Skipped:
        """Keep the workspace as it is now. Whatever keeps us from it is told, and is no failure of what comes next.

        Others go if there are too many, but not the snapshot ``spared``.
        """
        try:
            taken = self._take(run, now_ms, spared)
        except WorkspaceError as error:
            taken = Skipped(error.message)
        self.skipped = taken.reason if isinstance(taken, Skipped) else ""
        return taken

    def _take(self, run: str, now_ms: int, spared: int) -> About | Skipped:
        if not self.limits.kept:
            return Skipped("snapshots are switched off for this space")
        largest = self.limits.largest_space_bytes
        too_large = Skipped(f"the space holds more than {largest} bytes (policy: snapshots.largest_space_bytes)")
        if self._was_too_large and self._workspace.usage(Quota(largest, 10**9)).over:
            return too_large
        with system_calls():
            self._prepare()
            self.size()  # as it is before anything is added
            newest = max(self._numbers(), default=0)
            before = {entry.path: entry for entry in self._read(newest)} if newest else {}
            copied: list[str] = []
            is_taken = False
            try:
                found, size = self._look(before, copied, largest)
                self._was_too_large = found is None
                if found is None:
                    return too_large
                about = About(
                    newest + 1, now_ms, run, len(found), size, sum(_size(self._objects / name) for name in copied)
                )
                self._write(about, found)
                is_taken = True
                self._size = self.size() + about.copied + _size(self._file(about.number))
            finally:
                if not is_taken:
                    self._size = None
                    for name in copied:
                        (self._objects / name).unlink(missing_ok=True)
            self._remove_surplus(spared)
            return about

    def _prepare(self) -> None:
        for folder in (self._folder, self._objects, self._staging):
            folder.mkdir(mode=0o700, exist_ok=True)
        if self._folder.stat().st_dev != self._workspace.device:
            raise WorkspaceError("system", "the space's files are on another file system than its snapshots")

    def _look(self, before: dict[bytes, Entry], copied: list[str], largest: int) -> tuple[list[Entry] | None, int]:
        """Everything in the workspace, with a copy of what changed; None if it takes more than it may."""
        began_ns, total = time.time_ns(), 0
        room = self._workspace.free_now()[0] - KEPT_FREE_BYTES
        found: list[Entry] = []
        seen: dict[int, str] = {}  # of files with several names, the copy
        for folder_fd, path, info in self._walk():
            kind = _kind(info)
            total += info.st_blocks * 512
            if total > largest:
                return None, total
            if kind is None:
                continue  # a socket or a device: nothing that could be kept
            target, content, settled = b"", "", 0
            if kind == "l":
                target = os.fsencode(os.readlink(_name(path), dir_fd=folder_fd))
            elif kind == "f":
                settled = info.st_ctime_ns if info.st_ctime_ns < began_ns - UNSETTLED_NS else 0
                old = before.get(path)
                content = seen.get(info.st_ino) or (old.content if old is not None and _is_same(old, info) else "")
                if not content:
                    room -= info.st_blocks * 512
                    if room < 0:
                        raise WorkspaceError("system", "the disk is nearly full")
                    content = self._keep(folder_fd, _name(path), copied)
                if info.st_nlink > 1:
                    seen[info.st_ino] = content
            found.append(
                Entry(
                    path,
                    kind,
                    stat.S_IMODE(info.st_mode),
                    info.st_uid,
                    info.st_gid,
                    info.st_mtime_ns,
                    info.st_size if kind == "f" else 0,
                    info.st_ino if kind == "f" else 0,
                    settled,
                    info.st_nlink if kind == "f" else 1,
                    content,
                    target,
                )
            )
        return found, total

    def _walk(self) -> Iterator[tuple[int, bytes, os.stat_result]]:
        """All there is, the root (an empty path) first and folders before what is in them."""
        open_root(self._workspace.fd)
        yield self._workspace.fd, b"", os.fstat(self._workspace.fd)
        levels = [(OpenLevel(self._workspace.fd, "."), b"")]
        try:
            while levels:
                here, path = levels[-1]
                entry = next(here.entries, None)
                if entry is None:
                    levels.pop()[0].close()
                    continue
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # gone meanwhile
                inner = path + os.fsencode(entry.name)
                yield here.fd, inner, info
                if stat.S_ISDIR(info.st_mode):
                    if len(levels) > MAX_DEPTH:
                        raise WorkspaceError("execution", f"its folders are deeper than {MAX_DEPTH} levels")
                    levels.append((OpenLevel(here.fd, entry.name), inner + b"/"))
        finally:
            for level, _ in reversed(levels):
                level.close()

    def _keep(self, folder_fd: int, name: bytes, copied: list[str]) -> str:
        content = secrets.token_hex(12)
        copied.append(content)
        self._step("copy")
        with readable(folder_fd, name) as source:
            target = os.open(self._objects / content, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                copy(source, target)
            finally:
                os.close(target)
        return content

    def _write(self, about: About, entries: list[Entry]) -> None:
        new = self._folder / f"{about.number:08}.new"
        self._step("write")
        # Not synced: that would take as long as all the copies need to reach the disk (4 s for 10,000 files). A power
        # failure costs no more than the newest snapshots (``recover``).
        new.write_bytes(msgspec.json.encode(about) + b"\n" + zlib.compress(msgspec.msgpack.encode(entries), 1))
        self._step("rename")
        new.rename(self._file(about.number))
        self._step("renamed")

    # -- keeping -------------------------------------------------------------------------------------------------------

    def all(self) -> list[About]:
        """What there is, the newest first."""
        with system_calls():
            return [self._about(number) for number in sorted(self._numbers(), reverse=True)]

    def size(self) -> int:
        """The bytes that all of them take on the disk."""
        if self._size is None:
            with system_calls():
                places = [*self._folder.glob("*.snapshot"), *self._objects.glob("*")] if self._folder.is_dir() else []
                self._size = sum(_size(place) for place in places)
        return self._size

    def _numbers(self) -> list[int]:
        names = [place.name for place in self._folder.iterdir()] if self._folder.is_dir() else []
        return [int(found.group(1)) for name in names if (found := _NAME.fullmatch(name))]

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:08}.snapshot"

    def _about(self, number: int) -> About:
        with self._file(number).open("rb") as file:
            return _about.decode(file.readline())

    def _read(self, number: int) -> list[Entry]:
        try:
            _, _, data = self._file(number).read_bytes().partition(b"\n")
            return _entries.decode(zlib.decompress(data))
        except FileNotFoundError:
            raise WorkspaceError("execution", f"There is no snapshot {number}") from None
        except (zlib.error, msgspec.DecodeError):
            raise WorkspaceError("execution", f"The snapshot {number} is damaged") from None

    def _is_readable(self, number: int) -> bool:
        try:
            self._about(number)
            self._read(number)
        except (WorkspaceError, msgspec.DecodeError):
            return False
        return True

    def _remove_surplus(self, spared: int) -> None:
        abouts = [self._about(number) for number in sorted(self._numbers())]
        always_kept = (self.limits.kept + 1) // 2
        while True:
            if len(abouts) > self.limits.kept:
                removable = abouts[:-always_kept]
            elif self.size() > self.limits.max_bytes:
                removable = abouts[:-1]
            else:
                return
            # With one kept and one spared there may be none to remove.
            index = _least_missed(abouts, [about for about in removable if about.number != spared])
            if index is None:
                return
            # A copy goes from one snapshot to the next only, so what neither neighbour has, none has.
            neighbours = [*abouts[max(index - 1, 0) : index], abouts[index + 1]]
            about = abouts.pop(index)
            gone = {entry.content for entry in self._read(about.number)}
            for neighbour in neighbours:
                gone -= {entry.content for entry in self._read(neighbour.number)}
            self._step("remove")
            freed = _size(self._file(about.number))
            self._file(about.number).unlink()
            for name in gone - {""}:
                with contextlib.suppress(FileNotFoundError):
                    freed += _size(self._objects / name)
                    (self._objects / name).unlink()
            self._size = self.size() - freed

    def _remove_unused(self) -> None:
        """What a crash left: copies that no snapshot has."""
        if self._objects.is_dir():
            used = {entry.content for number in self._numbers() for entry in self._read(number)}
            for copy in self._objects.iterdir():
                if copy.name not in used:
                    copy.unlink()

    # -- bringing back -------------------------------------------------------------------------------------------------

    def find(self, run: str) -> int:
        """The snapshot from before a run: its first. WorkspaceError if there is none."""
        found = [about.number for about in self.all() if about.run == run]
        if not found:
            raise WorkspaceError("execution", f"There is no snapshot from before {run}")
        return found[-1]

    def find_changed(self) -> int:
        """The snapshot from before the last run after which something is other than it was before it.

        A run that asked has several, of which its first is meant; one that only looked around has changed nothing.
        """
        kept = self.all()
        if not kept:
            raise WorkspaceError("execution", "There is no snapshot of this space yet")
        for run in dict.fromkeys(about.run for about in kept):
            change = self.compare(self.find(run))
            if change.brought_back or change.changed_back or change.removed:
                return self.find(run)
        raise WorkspaceError("execution", "Nothing is other than it was before any run that is kept: nothing to undo")

    def compare(self, number: int) -> Change:
        """What bringing this snapshot back would change."""
        with system_calls():
            return _told(self._difference(self._read(number)))

    def restore(self, number: int) -> Change:
        """Make the workspace what it was: contents, modes, owners, links and times."""
        with system_calls():
            self._prepare()
            pending = self._folder / PENDING
            new = self._folder / "pending.new"
            new.write_text(str(number), encoding="ascii")
            new.rename(pending)
            self._step("pending")
            change = self._restore(number)
            self._step("restored")
            pending.unlink()
            erase(self._staging)
            return change

    def _difference(self, entries: list[Entry]) -> _Difference:
        wanted = {entry.path: entry for entry in entries}
        found = _Difference([], [], [], [])
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
                    if _kind(present) is not None:
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
        if _kind(info) != was.kind or info.st_uid != was.uid or info.st_gid != was.gid:
            return True
        if was.kind == "l":
            return os.fsencode(os.readlink(name, dir_fd=folder_fd)) != was.target
        if stat.S_IMODE(info.st_mode) != was.mode:
            return True
        if was.kind != "f" or _is_same(was, info):
            return False
        if info.st_size != was.size or info.st_mtime_ns != was.mtime_ns or info.st_nlink != was.names:
            return True
        with readable(folder_fd, name) as source:
            return not is_equal(source, self._objects / was.content)

    def _restore(self, number: int) -> Change:
        entries = self._read(number)
        for entry in entries:
            if entry.kind == "f":
                self._check_content(entry)
        difference = self._difference(entries)
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
        return _told(difference)

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


def _least_missed(abouts: list[About], removable: list[About]) -> int | None:
    """Which of all (the oldest first) may go with the least loss: the place of one of the removable, None without any.

    It is the one that is closest in time to the one before it, for its age. Without it, what it kept is there as it
    was that much earlier: a minute more is much for what was lost just now, and little for what was lost last week.
    So snapshots in quick succession go before one with a pause before it, and the older they are the sparser they
    become. Not by distance alone: where the older ones are days apart, all of today's would go before any of them.
    The first of all has none before it and goes last. Of equal ones the oldest goes.
    """
    now_ms = abouts[-1].at_ms

    def loss(index: int) -> float:
        if index == 0:
            return math.inf
        at_ms = abouts[index].at_ms
        return max(at_ms - abouts[index - 1].at_ms, 0) / max(now_ms - at_ms, 1)

    numbers = {about.number for about in removable}
    return min((index for index, about in enumerate(abouts) if about.number in numbers), key=loss, default=None)


def _size(place: Path) -> int:
    """What it takes on the disk; of a hole, nothing."""
    return place.stat().st_blocks * 512


def _name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def _kind(info: os.stat_result) -> str | None:
    return _KINDS.get(stat.S_IFMT(info.st_mode))


def _is_same(was: Entry, info: os.stat_result) -> bool:
    """Whether a file is certainly what it was: the kernel sets the second time at every change, and nobody else can."""
    return (
        was.kind == "f"
        and was.ctime_ns == info.st_ctime_ns
        and (was.inode, was.size, was.mtime_ns) == (info.st_ino, info.st_size, info.st_mtime_ns)
    )


def _told(found: _Difference) -> Change:
    def shown(paths: list[bytes]) -> tuple[str, ...]:
        return tuple(path.decode(errors="replace") for path in sorted(paths)[:SHOWN])

    missing = [entry.path + (b"/" if entry.kind == "d" else b"") for entry in found.missing]
    other = [entry.path + (b"/" if entry.kind == "d" else b"") for entry in found.other]
    return Change(len(missing), len(other), len(found.made), shown(missing), shown(other), shown(found.made))

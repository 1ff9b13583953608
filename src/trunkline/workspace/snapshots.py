"""How a workspace was before something changed it, and bringing that back.

Owns the folder of snapshots beside the workspace, where no command reaches: taking one, choosing which stay, and
which one is being brought back. It does not own how that is done (``restoring``), when one is taken, nor who may bring
one back. Functions block; call them in a thread, and only while no command runs in the workspace.

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
from trunkline.workspace.copies import copy, open_root, readable
from trunkline.workspace.folder import KEPT_FREE_BYTES, OpenLevel, Quota, Workspace, erase
from trunkline.workspace.paths import system_calls
from trunkline.workspace.restoring import Change, Restoring, told
from trunkline.workspace.snapshot_entries import Entry, is_same, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trunkline.workspace.policy import SnapshotLimits

# A file that changed so shortly before the look at it may change again without its times showing it.
UNSETTLED_NS: Final = 2_000_000_000
# Of deeper folders no snapshot is taken: nobody needs them, and looking holds a descriptor for each level.
MAX_DEPTH: Final = 128
_NAME: Final = re.compile(r"(\d{8})\.snapshot")
PENDING: Final = "undo.pending"


class About(Struct, frozen=True):
    """What is told of a snapshot. ``run`` is the run, call or undo after it; ``copied`` counts bytes."""

    number: int
    at_ms: int
    run: str
    files: int
    size: int
    copied: int
    back_to: int = 0  # taken before an undo: the number of the snapshot that it brought back


class Skipped(Struct, frozen=True):
    """Why no snapshot was taken."""

    reason: str


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
        self._restoring = Restoring(workspace, self._objects, self._staging, step)
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
                self._restoring.restore(self._read(number))
                erase(self._staging)
            pending.unlink(missing_ok=True)
            self._remove_unused()
        return number

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, run: str, now_ms: int, back_to: int = 0) -> About | Skipped:
        """Keep the workspace as it is now. Whatever keeps us from it is told, and is no failure of what comes next.

        Others go if there are too many, but not the snapshot ``back_to``, which is about to be brought back.
        """
        try:
            taken = self._take(run, now_ms, back_to)
        except WorkspaceError as error:
            taken = Skipped(error.message)
        self.skipped = taken.reason if isinstance(taken, Skipped) else ""
        return taken

    def _take(self, run: str, now_ms: int, back_to: int) -> About | Skipped:
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
                copied_bytes = sum(_size(self._objects / name) for name in copied)
                about = About(newest + 1, now_ms, run, len(found), size, copied_bytes, back_to)
                self._write(about, found)
                is_taken = True
                self._size = self.size() + about.copied + _size(self._file(about.number))
            finally:
                if not is_taken:
                    self._size = None
                    for name in copied:
                        (self._objects / name).unlink(missing_ok=True)
            self._remove_surplus(back_to)
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
            kind = kind_of(info)
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
                content = seen.get(info.st_ino) or (old.content if old is not None and is_same(old, info) else "")
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
        """The snapshot from before a run, its first; or the one with this number. WorkspaceError if there is none."""
        kept = self.all()
        found = [about.number for about in kept if about.run == run]
        found = found or [about.number for about in kept if str(about.number) == run]
        if not found:
            which = run if run.isdecimal() else f"from before {run}"
            raise WorkspaceError("execution", f"There is no snapshot {which}")
        return found[-1]

    def find_changed(self) -> int:
        """The snapshot to go back to when nobody says which: from before the last run that is still in the files.

        What an undo took back is passed over, and so is a run that only looked around. A run that asked has several
        snapshots: its first is meant, and where the run as a whole changed nothing (it made a file and removed it) the
        newest that says otherwise.
        """
        if not self.all():
            raise WorkspaceError("execution", "There is no snapshot of this space yet")
        runs: dict[str, list[int]] = {}
        for about in self._standing():
            if not about.back_to:
                runs.setdefault(about.run, []).append(about.number)
        for newest_first in runs.values():
            for number in (newest_first[-1], *newest_first[:-1]):
                if self._is_other(number):
                    return number
        raise WorkspaceError("execution", "Nothing is other than it was before any run that is kept: nothing to undo")

    def find_undone(self) -> int:
        """The snapshot from before the last undo, if nothing was changed since."""
        undos = {about.number for about in self.all() if about.back_to}
        for about in self._standing():
            if about.back_to and about.back_to not in undos:
                return about.number
            if not about.back_to and self._is_other(about.number):
                break
        raise WorkspaceError("execution", "Nothing was undone since the last change: nothing to bring back")

    def _standing(self) -> Iterator[About]:
        """What is kept, the newest first, without what undos went back over. Of those the newest counts: an undo that
        was itself taken back is passed over with what it took back, which stands again.
        """
        reached = math.inf
        for about in self.all():
            if about.number < reached:
                yield about
                reached = about.back_to or reached

    def _is_other(self, number: int) -> bool:
        change = self.compare(number)
        return bool(change.brought_back or change.changed_back or change.removed)

    def compare(self, number: int) -> Change:
        """What bringing this snapshot back would change."""
        with system_calls():
            return told(self._restoring.difference(self._read(number)))

    def restore(self, number: int) -> Change:
        """Make the workspace what it was: contents, modes, owners, links and times."""
        with system_calls():
            self._prepare()
            pending = self._folder / PENDING
            new = self._folder / "pending.new"
            new.write_text(str(number), encoding="ascii")
            new.rename(pending)
            self._step("pending")
            change = self._restoring.restore(self._read(number))
            self._step("restored")
            pending.unlink()
            erase(self._staging)
            return change


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

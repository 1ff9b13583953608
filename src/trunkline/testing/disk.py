"""A disk that loses power and fails on demand: the real file system, watched operation by operation, as an apsw VFS.

Owns the list of what SQLite did to its files (``steps``), the rules of what a power loss may leave of it (``crash``),
and the failure of a chosen operation (``fail_at``). Locks and shared memory are the real ones, so that several
connections work as they do elsewhere. It knows nothing of ledgers.

Invariant: what was synced is in every image. What was not is there, missing, torn or out of order, a sector at a time.
"""

from __future__ import annotations

import enum
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import apsw

__all__ = ["SECTOR_BYTES", "DiskStep", "Failure", "FaultyDisk", "Image", "write_image"]

# The unit a disk writes whole. SQLite relies on less: bytes beside those that are written stay (powersafe overwrite).
SECTOR_BYTES: Final = 512
# Memory, where there is some: a test of a disk need not wear one out.
_FAST: Final = Path("/dev/shm")  # noqa: S108 - private folders are made in it

# What is on a disk: content by file name.
Image = dict[str, bytes]


class Failure(enum.StrEnum):
    """The ways in which a disk operation can be made to fail."""

    EIO = "EIO"  # any operation
    ENOSPC = "ENOSPC"  # a write, or a file made anew
    SHORT_WRITE = "short write"  # half of it arrives, then there is no room
    FSYNC = "fsync"  # a sync


_FAILING: Final = {
    Failure.EIO: frozenset({"open", "read", "write", "truncate", "sync", "delete"}),
    Failure.ENOSPC: frozenset({"write"}),
    Failure.SHORT_WRITE: frozenset({"write"}),
    Failure.FSYNC: frozenset({"sync"}),
}
_IOERR: Final = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "delete": apsw.SQLITE_IOERR_DELETE,
}
# SQLite syncs the folder with the first sync of such a file, and so makes names durable, those of other files too.
_JOURNALS: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class DiskStep(NamedTuple):
    """One operation that changes a disk, or promises that changes last. ``file`` outlives names, as an inode does."""

    kind: str  # create, delete, write, truncate, sync, sync names
    name: str
    file: int = 0
    offset: int = 0  # of a write; the new size for a truncate
    data: bytes = b""


class FaultyDisk:
    """A private folder and the VFS that watches it. Open databases as ``path(name)`` with ``vfs=disk.vfs``.

    It records from its first moment; ``image`` is what is on it before. Use it as a context manager, or ``close`` it.
    """

    def __init__(self, seed: int = 0, image: Mapping[str, bytes] | None = None) -> None:
        self.folder: Final = Path(tempfile.mkdtemp(prefix="disk-", dir=_FAST if _FAST.is_dir() else None))
        self.vfs: Final = f"faulty-{self.folder.name}"
        self.steps: list[DiskStep] = []
        # Operations that failed, as (kind of operation, file name).
        self.failures: list[tuple[str, str]] = []
        self._rng = Random(seed)
        self._before: Final = dict(image or {})
        self._files: dict[str, int] = {name: number for number, name in enumerate(self._before, start=1)}
        self._numbers = itertools.count(len(self._files) + 1)
        self._plan: tuple[Failure, bool] | None = None
        self._until = 0
        write_image(self._before, self.folder)
        self._watch: Final = _Watch(self)

    def path(self, name: str) -> Path:
        """Where a file of this disk is."""
        return self.folder / name

    def close(self) -> None:
        """Forget it, and remove its folder. Connections have to be closed before."""
        self._watch.unregister()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- power loss ---------------------------------------------------------------------------------------------------

    def crash(self, rng: Random | None = None, *, at: int | None = None) -> FaultyDisk:
        """The disk as it may come back after the power went: now, or after the first ``at`` steps. Another disk."""
        chosen = rng or self._rng
        return FaultyDisk(chosen.getrandbits(32), self.after_power_loss(chosen, at=at))

    def states(self) -> Iterator[Image]:
        """The disk after each prefix of what was done to it, nothing lost: of 0 steps, of 1, … of all."""
        state = _State(self._before)
        yield state.image()
        for step in self.steps:
            state.do(step)
            yield state.image()

    def image(self) -> Image:
        """The disk as it is now, nothing lost: the last of ``states``, without all those before it."""
        state = _State(self._before)
        for step in self.steps:
            state.do(step)
        return state.image()

    def after_power_loss(self, rng: Random, *, at: int | None = None) -> Image:
        """One of the images that a power loss after ``at`` steps may leave."""
        done = self.steps[:at]
        synced: dict[int, int] = {}
        names_synced = 0
        for number, step in enumerate(done):
            if step.kind == "sync":
                synced[step.file] = number
            elif step.kind == "sync names":
                names_synced = number
        durable = _State(self._before)
        pending: dict[int, list[DiskStep]] = {}
        names: list[DiskStep] = []
        for number, step in enumerate(done):
            if step.kind in {"create", "delete"}:
                if number < names_synced:
                    durable.do(step)
                else:
                    names.append(step)
            elif number < synced.get(step.file, 0):
                durable.do(step)
            else:
                pending.setdefault(step.file, []).append(step)
        for step in _some_names(names, rng):
            durable.do(step)
        for steps in pending.values():
            for step in _some_writes(steps, rng):
                durable.do(step)
        return durable.image()

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail_at(self, n: int, kind: Failure, *, persistent: bool = False) -> None:
        """Let the n-th operation from now that can fail this way do so; with ``persistent`` all such after it too."""
        self._plan, self._until = (kind, persistent), n

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._plan = None

    @property
    def has_failed(self) -> bool:
        """Whether the failure that was asked for came to pass."""
        return bool(self.failures)

    def fails(self, operation: str, name: str) -> Failure | None:
        """Whether this operation, which SQLite asks for now, is one that fails, and how."""
        if self._plan is None or operation not in _FAILING[self._plan[0]]:
            return None
        kind, persistent = self._plan
        self._until -= 1
        if self._until > 0 or (self._until < 0 and not persistent):
            return None
        self.failures.append((operation, name))
        return kind

    # --- what the watch saw -------------------------------------------------------------------------------------------

    def opened(self, name: str, *, create: bool) -> int:
        """The number of a file; made, if it is not there and shall be."""
        if name not in self._files and create:
            self._files[name] = next(self._numbers)
            self.steps.append(DiskStep("create", name, self._files[name]))
        return self._files.get(name, 0)

    def deleted(self, name: str) -> None:
        """A name is gone."""
        file = self._files.pop(name, None)
        if file is not None:
            self.steps.append(DiskStep("delete", name, file))


def write_image(image: Mapping[str, bytes], folder: Path) -> None:
    """Put these files into a folder, and remove all others."""
    for file in folder.iterdir():
        if file.name not in image:
            file.unlink()
    for name, data in image.items():
        (folder / name).write_bytes(data)


class _State:
    """What is on a disk, names and contents, changed step by step."""

    def __init__(self, before: Mapping[str, bytes]) -> None:
        self._names = {name: number for number, name in enumerate(before, start=1)}
        self._data = {number: bytearray(data) for number, data in enumerate(before.values(), start=1)}

    def do(self, step: DiskStep) -> None:
        match step.kind:
            case "create":
                self._names[step.name] = step.file
            case "delete":
                self._names.pop(step.name, None)
            case "write":
                data = self._data.setdefault(step.file, bytearray())
                if len(data) < step.offset:
                    data.extend(bytes(step.offset - len(data)))
                data[step.offset : step.offset + len(step.data)] = step.data
            case "truncate":
                data = self._data.setdefault(step.file, bytearray())
                del data[step.offset :]

    def image(self) -> Image:
        return {name: bytes(self._data.get(file, b"")) for name, file in self._names.items()}


def _some_names(steps: list[DiskStep], rng: Random) -> Iterable[DiskStep]:
    """Which changes of names were lasting though nobody asked for it: a journalling file system keeps their order."""
    return steps[: rng.randint(0, len(steps))]


def _some_writes(steps: list[DiskStep], rng: Random) -> Iterable[DiskStep]:
    """What of a file's unsynced changes reached the disk."""
    way = rng.randrange(4)
    if way == 0:
        # All or nothing.
        return steps if rng.random() < 0.5 else ()
    if way == 1:
        # In order up to some point, and there a sector is torn.
        pieces = list(_pieces(steps))
        cut = rng.randint(0, len(pieces))
        return [*pieces[:cut], *(_torn(piece, rng) for piece in pieces[cut : cut + 1])]
    # Any of them: whole writes, or their sectors.
    share = rng.random()
    candidates = steps if way == 2 else list(_pieces(steps))
    return [_torn(piece, rng) if rng.random() < 0.05 else piece for piece in candidates if rng.random() < share]


def _pieces(steps: Iterable[DiskStep]) -> Iterator[DiskStep]:
    """The same changes, no write beyond one sector."""
    for step in steps:
        if step.kind != "write":
            yield step
            continue
        start = 0
        while start < len(step.data):
            end = start + SECTOR_BYTES - (step.offset + start) % SECTOR_BYTES
            yield step._replace(offset=step.offset + start, data=step.data[start:end])
            start = end


def _torn(step: DiskStep, rng: Random) -> DiskStep:
    """The beginning of a write. What follows it is as it was before."""
    return step._replace(data=step.data[: rng.randint(0, len(step.data))]) if step.kind == "write" else step


# --- the file system that SQLite sees ---------------------------------------------------------------------------------


def _failed(kind: Failure, operation: str) -> apsw.Error:
    if kind in {Failure.ENOSPC, Failure.SHORT_WRITE}:
        return apsw.FullError("no room")
    error: Any = apsw.CantOpenError("broken") if operation == "open" else apsw.IOError("broken")
    error.extendedresult = _IOERR[operation]
    assert isinstance(error, apsw.Error)
    return error


class _Watch(apsw.VFS):
    """The VFS that SQLite sees: real files, each operation noted or made to fail."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        super().__init__(disk.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _WatchedFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        name = os.path.basename(filename)  # noqa: PTH119 - it comes as text
        if kind := self._disk.fails("delete", name):
            raise _failed(kind, "delete")
        super().xDelete(filename, syncdir)
        self._disk.deleted(name)
        if syncdir:
            self._disk.steps.append(DiskStep("sync names", name))


class _WatchedFile(apsw.VFSFile):
    """One open file of that VFS."""

    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        full = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._disk = disk
        # SQLite's own scratch files have no name, and nothing of them has to last.
        self._name = os.path.basename(full) if full else ""  # noqa: PTH119
        self._syncs_names = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _JOURNALS)
        self._check("open")
        super().__init__("", name, flags)
        self._file = disk.opened(self._name, create=bool(flags[0] & apsw.SQLITE_OPEN_CREATE)) if self._name else 0

    def _check(self, operation: str, instead: Callable[[], None] | None = None) -> None:
        kind = self._disk.fails(operation, self._name) if self._name else None
        if kind is not None:
            if kind is Failure.SHORT_WRITE and instead is not None:
                instead()
            raise _failed(kind, operation)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._check("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._check("write", lambda: self._write(data[: len(data) // 2], offset))
        self._write(data, offset)

    def _write(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        if self._file:
            self._disk.steps.append(DiskStep("write", self._name, self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._check("truncate")
        super().xTruncate(newsize)
        if self._file:
            self._disk.steps.append(DiskStep("truncate", self._name, self._file, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._check("sync")
        super().xSync(flags)
        if self._file:
            self._disk.steps.append(DiskStep("sync", self._name, self._file))
            if self._syncs_names:
                self._syncs_names = False
                self._disk.steps.append(DiskStep("sync names", self._name))

"""The ledger's files: the tables, how they are opened, who may open them, and the room kept for a full disk.

It does not know what an entry means. ``ledger.sqlite`` is the record, ``ledger.lock`` says who writes it,
``ledger.head`` how far it was written, and ``ledger.reserve`` is 16 MiB that are given back to the file system when
nothing else is left, so that open calls can end.

Invariant: one process group writes, many may read; a commit that returned is on the disk (WAL, synchronous FULL).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from pathlib import Path
from typing import Final

import apsw

from trunkline.errors import LedgerCorrupt, LedgerError, LedgerFailed, LedgerFull, LedgerLocked

__all__ = [
    "HeadNote",
    "Lock",
    "Reserve",
    "as_ledger_error",
    "head_file",
    "holder_of",
    "noted_head",
    "open_for_reading",
    "open_for_writing",
]

APPLICATION_ID: Final = 0x544C4B4C  # "TLKL", for file(1)
VERSION: Final = 1

# The disk's own block: the smallest commit writes four pages. 8 and 16 KiB wrote two and four times as much to the WAL
# and were no faster for large groups.
PAGE_BYTES: Final = 4096
# 16 MiB: pages written again by every small commit reach the file once for each checkpoint (20 ms of work).
CHECKPOINT_PAGES: Final = 4096
RESERVE_BYTES: Final = 16 * 1024 * 1024
# How long the writer of a killed exchange may still take for what it has received, before a new one gives up.
LAST_COMMIT_S: Final = 10.0
# A process that was killed a moment ago still counts as alive: seen for some ms on a busy machine.
DYING_S: Final = 0.5

SCHEMA: Final = """
CREATE TABLE entries (n INTEGER PRIMARY KEY, data BLOB, hash BLOB NOT NULL);
-- Small indexes, written with their entries. Everything in them can be read from the entries too.
CREATE TABLE settled (call INTEGER PRIMARY KEY, n INTEGER NOT NULL);
CREATE TABLE keys (key_id TEXT PRIMARY KEY, call INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE correlations (correlation TEXT, n INTEGER, PRIMARY KEY (correlation, n)) WITHOUT ROWID;
-- What else happened to a call (subject: its number) or a question (its approval id).
CREATE TABLE steps (subject TEXT, n INTEGER, PRIMARY KEY (subject, n)) WITHOUT ROWID;
-- Bodies above 64 KiB, once each; apart from them the newest entry that refers to each: a row is written as a whole.
CREATE TABLE blobs (sha256 BLOB PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE uses (sha256 BLOB PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID;
-- Originals of what was masked, encrypted, outside the chain; call is 0 or the call whose end erases it.
CREATE TABLE held (n INTEGER PRIMARY KEY, call INTEGER NOT NULL, expires INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX held_call ON held (call);
-- The same for blobs; name is a MAC of the original's hash.
CREATE TABLE held_blobs (name TEXT PRIMARY KEY, expires INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE snapshots (n INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""


def open_for_writing(path: Path, vfs: str | None = None) -> apsw.Connection:
    """The one connection that writes; makes the file (0600) and its tables if there are none."""
    if vfs is None:
        _refuse_if_gone(path)
        # SQLite gives the WAL and its index the mode of the file.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        connection = apsw.Connection(str(path), vfs=vfs)
        # A failed sync is never tried again, not even by closing; a clean stop checkpoints by itself.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        if connection.execute("PRAGMA journal_mode = WAL").get != "wal":
            raise LedgerFailed(f"{path}: this file system cannot hold a write-ahead log")
        connection.execute("PRAGMA synchronous = FULL")
        # An erased original leaves no bytes behind.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA journal_size_limit = {2 * CHECKPOINT_PAGES * PAGE_BYTES}")
        version = _version(connection, path)
        if version == 0:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(SCHEMA)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
    except apsw.Error as exc:
        raise as_ledger_error(exc) from exc
    return connection


def open_for_reading(path: Path, vfs: str | None = None) -> apsw.Connection:
    """A connection that cannot write, for this or any other process, with or without a running exchange."""
    if vfs is None:
        _refuse_if_gone(path)
        if not path.exists():
            raise LedgerError(f"{path} does not exist: no exchange has run here")
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # A page that an attacker wrote is still judged before it is followed.
        connection.execute("PRAGMA cell_size_check = ON")
        # A checkpoint that empties the log takes a lock for a moment.
        connection.set_busy_timeout(5000)
        if _version(connection, path) == 0:
            raise LedgerError(f"{path} is empty: no exchange has run here")
    except apsw.Error as exc:
        raise as_ledger_error(exc) from exc
    return connection


def _refuse_if_gone(path: Path) -> None:
    """SQLite would begin a new file, and throw the log of the old one away."""
    noted = noted_head(path)
    if noted is not None and not (path.exists() and path.stat().st_size):
        raise LedgerCorrupt(1, f"missing: {path} is gone or empty, and {noted[0]} were recorded")


def _version(connection: apsw.Connection, path: Path) -> int:
    kind = connection.execute("PRAGMA application_id").get
    version = connection.execute("PRAGMA user_version").get
    if (kind, version) == (0, 0) and not connection.execute("SELECT count(*) FROM sqlite_schema").get:
        return 0
    if kind != APPLICATION_ID:
        raise LedgerError(f"{path} is not a ledger")
    if version != VERSION:
        raise LedgerError(f"{path} has format {version}; this version of Trunkline reads {VERSION}")
    assert isinstance(version, int)
    return version


def as_ledger_error(exc: apsw.Error) -> LedgerError:
    """The one place where SQLite's errors become ours. Its texts name files and rules, never content."""
    if isinstance(exc, apsw.FullError):
        return LedgerFull("no room on the disk for the record")
    if isinstance(exc, apsw.CorruptError | apsw.NotADBError):
        return LedgerCorrupt(0, f"the file itself is damaged: {exc}")
    return LedgerFailed(str(exc))


class Lock:
    """``ledger.lock``: held by the exchange and, by the inherited descriptor, its writer.

    No second exchange opens the ledger while either lives.
    """

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        started = time.monotonic()
        while not self._try_lock():
            holder = _process_in(self.descriptor)
            # Its exchange is gone: only the writer of a killed one is left, for as long as its last commit takes.
            patience = DYING_S if holder and _is_alive(holder) else LAST_COMMIT_S
            if time.monotonic() - started > patience:
                os.close(self.descriptor)
                raise LedgerLocked(f"{path} is held by process {holder or '?'}: another exchange is using this ledger")
            time.sleep(0.02)
        os.truncate(self.descriptor, 0)
        os.pwrite(self.descriptor, b"%d\n" % os.getpid(), 0)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let go. The writer, if it still runs, does not."""
        os.close(self.descriptor)


def holder_of(path: Path) -> int | None:
    """The process whose exchange holds the lock at ``path``, 0 if it does not say; None if nobody holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # Shared, and for some microseconds: one that starts now tries again.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _process_in(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


def _process_in(descriptor: int) -> int:
    text = os.pread(descriptor, 20, 0).strip()
    return int(text) if text.isdigit() else 0


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    # A killed one that nobody has waited for yet still has a number, and no descriptors.
    return state not in {b"Z", b"X"}


class HeadNote:
    """``ledger.head``: the last acknowledged entry and its hash, so that a log cut off or taken away is noticed.

    SQLite itself cannot tell a log that was cut off from one that was never longer. Written after each commit without a
    sync: a power loss may leave it behind the record, nothing leaves it ahead.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, number: int, digest: bytes) -> None:
        """Note it. On a disk that cannot even do this the record itself will say so."""
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, b"%020d:%s\n" % (number, digest.hex().encode()), 0)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def head_file(path: Path) -> Path:
    """Where the head of this ledger is noted."""
    return path.with_name("ledger.head")


def noted_head(path: Path) -> tuple[int, str] | None:
    """The number and hash that were noted last, if there are any."""
    try:
        match = _HEAD.fullmatch(head_file(path).read_bytes())
    except FileNotFoundError:
        return None
    return (int(match[1]), match[2].decode()) if match else None


_HEAD: Final = re.compile(rb"([0-9]{20}):([0-9a-f]{64})\n")


class Reserve:
    """``ledger.reserve``: disk space that nobody else can take.

    ``is_there`` is False once it was given back, or could not be had.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_there = path.exists()
        self.take()

    def take(self) -> None:
        """Set the space aside if it is not, and there is plenty."""
        if self.is_there:
            return
        room = os.statvfs(self._path.parent)
        if room.f_bavail * room.f_frsize < 4 * RESERVE_BYTES:
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            self.is_there = True
        except OSError as exc:
            self._path.unlink()
            if exc.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise LedgerFailed(f"{self._path}: {exc.strerror}") from None
        finally:
            os.close(descriptor)

    def give_back(self) -> bool:
        """Free the space; False if there was none left."""
        self.is_there = False
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True

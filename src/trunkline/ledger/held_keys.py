"""``ledger.held``: a key of its own for each held original, so that destroying the key erases the original everywhere.

What SQLite deletes stays for a while in its log, in free pages and in copies of the file. So the originals that masking
keeps are encrypted each with a random key, and those keys stand in this small file of 32-byte slots: written over with
zeros when the original is erased, and never copied. Does not own what is held or for how long (``writer``).

Invariant: a key is on the disk before the entry that needs it is, and gone after the row it opens.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import apsw

__all__ = ["SLOT_BYTES", "HeldKeys", "held_keys_file", "key_in", "slot_of"]

KEY_BYTES: Final = 32
# The number of a slot, before what it opens.
SLOT_BYTES: Final = 4
_GONE: Final = bytes(KEY_BYTES)
# As a journal: SQLite then syncs the folder with the first sync of a new file, so that its name is durable too.
_FLAGS: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
_READ_FLAGS: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_READONLY


def held_keys_file(path: Path) -> Path:
    """Where the keys of this ledger's held originals are."""
    return path.with_suffix(".held")


def slot_of(sealed: bytes) -> int:
    """Which slot opens a held original."""
    return int.from_bytes(sealed[:SLOT_BYTES])


def key_in(path: Path, slot: int, vfs: str | None = None) -> bytes | None:
    """The key in a slot, for one who reads; None if it was destroyed, or is not here."""
    file_path = held_keys_file(path)
    if not file_path.exists():
        return None
    file = apsw.VFSFile(vfs or "", str(file_path), [_READ_FLAGS, 0])
    try:
        if file.xFileSize() < (slot + 1) * KEY_BYTES:
            return None
        key = file.xRead(KEY_BYTES, slot * KEY_BYTES)
    finally:
        file.xClose()
    return None if key == _GONE else key


class HeldKeys:
    """The slots, for the one who writes. Nothing is opened or made before there is a first key."""

    def __init__(self, path: Path, entropy: Callable[[int], bytes], vfs: str | None = None) -> None:
        self._path = held_keys_file(path)
        self._entropy = entropy
        self._vfs = vfs
        self._file: apsw.VFSFile | None = None
        self._slots = 0
        self._free: list[int] = []
        # Taken since the last commit, and to be destroyed with the next one; of those, from commits before.
        self._taken: dict[int, bytes] = {}
        self._doomed: list[int] = []
        self._overdue = 0

    def take_up(self, used: Iterable[int]) -> None:
        """Destroy what a crash left behind: keys that nothing on record needs any more."""
        needed = set(used)
        if not self._path.exists():
            self._slots = max(needed, default=-1) + 1
            return
        file = self._opened()
        self._slots = max(file.xFileSize() // KEY_BYTES, max(needed, default=-1) + 1)
        self._free = [slot for slot in range(self._slots) if slot not in needed]
        for slot in self._free:
            if (slot + 1) * KEY_BYTES <= file.xFileSize() and file.xRead(KEY_BYTES, slot * KEY_BYTES) != _GONE:
                file.xWrite(_GONE, slot * KEY_BYTES)

    def _opened(self) -> apsw.VFSFile:
        if self._file is None:
            if self._vfs is None:
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._file = apsw.VFSFile(self._vfs or "", str(self._path), [_FLAGS, 0])
        return self._file

    def take(self) -> tuple[int, bytes]:
        """A slot and a new key in it; it is on the disk after ``sync``."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._slots
            self._slots += 1
        key = self._taken[slot] = self._entropy(KEY_BYTES)
        return slot, key

    def doom(self, slot: int) -> None:
        """Destroy this key once the transaction that deletes what it opens is committed."""
        self._doomed.append(slot)

    def sync(self) -> None:
        """Before the commit: put the new keys on the disk."""
        if self._taken:
            file = self._opened()
            for slot, key in self._taken.items():
                file.xWrite(key, slot * KEY_BYTES)
            file.xSync(apsw.SQLITE_SYNC_FULL)

    def committed(self) -> None:
        """After the commit: write over the keys of what is erased.

        Without a sync: should a power loss bring one back, ``take_up`` destroys it again before anything else is done.
        """
        self._taken.clear()
        self._overdue = len(self._doomed)
        if self._doomed:
            file = self._opened()
            while self._doomed:
                file.xWrite(_GONE, self._doomed[-1] * KEY_BYTES)
                self._free.append(self._doomed.pop())
                self._overdue = len(self._doomed)

    def rolled_back(self) -> None:
        """Nothing was taken or erased after all."""
        if self._file is not None:
            for slot in self._taken:
                if (slot + 1) * KEY_BYTES <= self._file.xFileSize():
                    self._file.xWrite(_GONE, slot * KEY_BYTES)
        self._free += self._taken
        self._taken.clear()
        del self._doomed[self._overdue :]

    def close(self) -> None:
        """Sync what was destroyed, and let go."""
        if self._file is not None:
            self._file.xSync(apsw.SQLITE_SYNC_FULL)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the file as it is."""
        if self._file is not None:
            self._file.xClose()
            self._file = None

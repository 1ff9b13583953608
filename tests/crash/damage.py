"""A ledger to damage: made, flipped byte by byte in its file, and looked at as the walk and the start do."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from tests.crash.middle import KEYS, PLAIN, POLICY, WORKER, Middle
from trunkline.errors import LedgerCorrupt
from trunkline.hub.hub import Hub
from trunkline.ledger.reader import Reader
from trunkline.ledger.verify import Report, verify
from trunkline.model import HubSettings


def made(folder: Path, entries: int) -> Path:
    """A ledger of so many entries, all in its file, with no snapshot to start from: everything is read."""
    path = folder / "ledger.sqlite"
    middle = Middle(path, "unix")
    middle.attach(WORKER, new_token=True)
    middle.ledger.flush()
    n = 0
    while middle.hub.state.last < entries - 1:
        n += 1
        middle.call(f"{WORKER}/{('read', 'write')[n % 2]}", PLAIN % n, f"key-{n}" if n % 3 else None)
        middle.ledger.flush()
        for delivered in middle.open_deliveries():
            middle.finish(delivered, PLAIN % n)
    while middle.hub.state.last < entries:
        middle.call(f"{WORKER}/nothing", PLAIN % n)
    middle.ledger.close()
    return path


def rows_of(path: Path) -> list[tuple[int, bytes, bytes]]:
    """Number, data and hash of every entry."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows: list[Any] = connection.execute("SELECT n, data, hash FROM entries ORDER BY n").fetchall()
    connection.close()
    return rows


def flips_of(path: Path) -> Iterator[tuple[int, list[int]]]:
    """Of each entry: the places in the file of all bytes of its data and of its hash."""
    raw = path.read_bytes()
    for n, data, stored in rows_of(path):
        # A record holds its columns one after the other; no entry here is so long that it is split.
        start = raw.index(data + stored)
        yield n, list(range(start, start + len(data) + len(stored)))


class Damaged:
    """A copy to be damaged."""

    def __init__(self, whole: Path, folder: Path) -> None:
        self.path = Path(shutil.copy(whole, folder / "ledger.sqlite"))

    @contextlib.contextmanager
    def flipped(self, place: int, bits: int) -> Iterator[None]:
        """With these bits of one byte changed."""
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            byte = os.pread(descriptor, 1, place)
            os.pwrite(descriptor, bytes([byte[0] ^ bits]), place)
            yield
            os.pwrite(descriptor, byte, place)
        finally:
            os.close(descriptor)

    def verify(self) -> Report:
        return verify(self.path)

    def named_by_walk(self) -> int | None:
        """The entry that `trunkline ledger verify` names."""
        try:
            self.verify()
        except LedgerCorrupt as damage:
            return damage.number
        return None

    def named_alone(self, n: int) -> int | None:
        """The entry that is named when one is proved by itself."""
        reader = Reader(self.path, KEYS)
        try:
            reader._proved(n)
        except LedgerCorrupt as damage:
            return damage.number
        finally:
            reader.close()
        return None

    def named_by_start(self) -> int | None:
        """The entry that a start names when it folds the record."""
        reader = Reader(self.path, KEYS)
        try:
            _hub().fold(reader.recovery())
        except LedgerCorrupt as damage:
            return damage.number
        finally:
            reader.close()
        return None


def _hub() -> Hub:
    return Hub(
        mac_key=KEYS.mac_key,
        call_prefix="00000000-0000-8000-8000-",
        new_id=lambda: "id",
        operator_sha256="operator",
        launch_edge="opensentience",
        operator_edge="http",
        settings=HubSettings(POLICY),
    )


def flip_all(folder: Path, entries: int, *, first: int, count: int) -> int:
    """Flip every byte of so many entries of a ledger, one bit of one byte at a time; how many bytes that were.

    Each is named where its entry is proved, which the start does with every entry it reads; some also by the walk.
    """
    ledger = made(folder, entries)
    (folder / "copy").mkdir()
    damaged = Damaged(ledger, folder / "copy")
    flipped = 0
    for n, places in flips_of(ledger):
        if first < n <= first + count:
            for place in places:
                with damaged.flipped(place, 1 << place % 8):
                    assert damaged.named_alone(n) == n, f"byte {place} of entry {n}"
                    if flipped % 100 == 0:
                        assert damaged.named_by_walk() == n, f"byte {place} of entry {n}"
                flipped += 1
    return flipped

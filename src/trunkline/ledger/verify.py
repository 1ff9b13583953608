"""Is the record whole? Walks everything: file structure, chain, signed heads, closed parts, snapshots, blobs, indexes.

Reads one consistent view, with or without a running exchange, and changes nothing: what is damaged is named, never
repaired. Signed heads (``heads``) show a record that was made anew, put back or cut; where they were put back with it,
only a head that was kept elsewhere does: ``kept``.

Invariant: a report means that every stored entry up to ``signed`` is the one that was written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw
from msgspec import Struct, structs

from trunkline.entries import decode
from trunkline.errors import LedgerCorrupt
from trunkline.ledger.chain import GENESIS, Row, link, verified
from trunkline.ledger.heads import Head, WrittenHead, heads, is_signed
from trunkline.ledger.index_rows import rows_of
from trunkline.ledger.indexes import INDEXES, counted, recorded
from trunkline.ledger.store import as_ledger_error, noted_head, open_for_reading

__all__ = ["Report", "verify"]

# The beginnings of entries that leave something in an index.
_INDEXED: Final = tuple(b'{"kind":"%b' % kind for kind in (b"call.", b"question.", b"process."))
_SNAPSHOT: Final = b'{"kind":"ledger.snapshot"'
_REFERENCE: Final = re.compile(rb'"(?:input|output)":\{"\$blob":"sha256:([0-9a-f]{64})"')


class Report(Struct, frozen=True):
    """The figures of a record that is whole. ``last`` and ``head``, kept elsewhere, prove its end later.

    ``signed`` is the last entry that a signed head covers, ``signed_at`` when that was (ms), ``anchored`` the last one
    that a head kept elsewhere covers; each 0 if there is none.
    """

    entries: int
    last: int
    head: str
    signed: int
    signed_at: int
    anchored: int
    removed: int
    snapshots: int
    blobs: int
    held: int


class _Heads:
    """What is known of the chain from elsewhere: signed heads, and beside them notes and heads that were kept."""

    def __init__(self, signed: Iterator[Head] | None, others: Sequence[tuple[int, str, str]]) -> None:
        self._signed = signed or iter(())
        self._next = next(self._signed, None)
        # By entry: the first digits of its hash, and what to say if it is another one.
        self._others: dict[int, list[tuple[str, str]]] = {}
        for number, digits, otherwise in others:
            self._others.setdefault(number, []).append((digits, otherwise))
        self.last: Head | None = None
        # The entries that something is known of: the next signed one and the others.
        self.numbers = {*self._others, *(() if self._next is None else (self._next.number,))}

    def begin(self, removed: int, digest: bytes) -> None:
        """Entries up to ``removed`` are gone, and with them what could be compared but the last hash."""
        while self._next is not None and self._next.number < removed:
            self._step()
        self.compare(removed, digest)

    def _step(self) -> None:
        self.last = self._next
        self._next = next(self._signed, None)
        if self._next is not None:
            self.numbers.add(self._next.number)

    def compare(self, number: int, digest: bytes) -> None:
        """The entry that is there is the one that was there."""
        found = digest.hex()
        signed = self._next
        if signed is not None and signed.number == number:
            if signed.hash != found:
                since = 1 if self.last is None else self.last.number + 1
                reason = (
                    f"is not the entry that was signed: from {since} on something changed, and the chain was made anew"
                )
                raise LedgerCorrupt(number, reason)
            self.numbers.discard(number)
            self._step()
        for digits, otherwise in self._others.get(number, ()):
            if not found.startswith(digits):
                raise LedgerCorrupt(number, otherwise)

    def end(self, last: int) -> None:
        """Nothing is known of entries that are not there."""
        if self._next is not None:
            *_, newest = self._next, *self._signed
            raise LedgerCorrupt(last + 1, f"missing; {newest.number} were signed")
        if (were := max(self._others, default=0)) > last:
            raise LedgerCorrupt(last + 1, f"missing; {were} were there before")


def verify(
    path: Path, *, kept: Sequence[WrittenHead] = (), public_key: bytes | None = None, vfs: str | None = None
) -> Report:
    """Walk it all. ``LedgerCorrupt`` names the first damaged entry.

    ``kept`` are heads that were kept elsewhere, ``public_key`` is that of the signed heads (``heads.public_key_of``):
    without it nothing is said about signatures.
    """
    others = []
    for head in kept:
        if public_key is not None and head.signed is not None and not is_signed(head.signed, public_key):
            raise LedgerCorrupt(head.number, "the head that was kept of it is not signed with this ledger's key")
        others.append((head.number, head.hash, "is not the entry that was there when its head was kept"))
    # Before the view is taken: an exchange that writes meanwhile is never behind its notes.
    signed = heads(path, public_key) if vfs is None and public_key is not None else None
    noted = noted_head(path) if vfs is None else None
    if noted is not None:
        others.append((*noted, "is not the entry that was last seen there"))
    try:
        connection = open_for_reading(path, vfs)
    except LedgerCorrupt as damage:
        raise LedgerCorrupt(damage.number or _first_unreadable(path, vfs), damage.reason) from damage
    try:
        # One view, whatever an exchange adds meanwhile.
        connection.execute("BEGIN")
        report = _Walk(connection, _Heads(signed, others)).report()
    except apsw.Error as exc:
        raise as_ledger_error(exc) from exc
    finally:
        connection.close()
    return structs.replace(report, anchored=max((head.number for head in kept), default=0))


def _first_unreadable(path: Path, vfs: str | None) -> int:
    """The entry at which reading ends, in a file that SQLite refuses as a whole."""
    number = 0
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
        try:
            # Lets it look into a file that is shorter than it says it is.
            connection.execute("PRAGMA writable_schema = ON")
            for number, _ in connection.execute("SELECT n, data FROM entries ORDER BY n"):  # noqa: B007 - read so far
                pass
        finally:
            connection.close()
    except apsw.Error:
        pass
    return number + 1


class _Walk:
    """One walk over all tables, within one read transaction."""

    def __init__(self, connection: apsw.Connection, heads: _Heads) -> None:
        self._db = connection
        self._heads = heads
        self._number = 0
        self._index: _IndexWalk

    def report(self) -> Report:
        kept, removed, before = self._closed_part()
        try:
            entries, last, head = self._chain(removed, before)
        except apsw.Error as exc:
            raise LedgerCorrupt(self._number + 1, f"cannot be read: {exc}") from exc
        recorded = self._db.execute("SELECT value FROM meta WHERE name = 'last'").get
        if recorded is not None and recorded != last:
            raise LedgerCorrupt(min(int(recorded), last) + 1, f"missing or not ours; {recorded} were recorded")
        self._heads.end(last)
        signed = self._heads.last
        self._index.end(last)
        blobs = self._blobs()
        snapshots = self._snapshots()
        self._structure()
        held = self._db.execute("SELECT count(*) FROM held").get
        return Report(
            entries=entries + kept,
            last=last,
            head=head.hex(),
            signed=signed.number if signed is not None else 0,
            signed_at=signed.at if signed is not None else 0,
            anchored=0,
            removed=removed - kept,
            snapshots=snapshots,
            blobs=blobs,
            held=int(held),
        )

    def _closed_part(self) -> tuple[int, int, bytes]:
        """How many entries were kept of the removed ones, the last of those, and its hash."""
        number = self._db.execute("SELECT value FROM meta WHERE name = 'part'").get
        if number is None:
            return 0, 0, GENESIS
        # The entry itself is proved by the chain after it.
        data = self._db.execute("SELECT data FROM entries WHERE n = ?", (number,)).get
        if not isinstance(data, bytes):
            raise LedgerCorrupt(int(number), "missing: it closed a part")
        try:
            part = json.loads(data)
            last, kept = part["last"], {int(n): bytes.fromhex(stored) for n, stored in part.get("kept", {}).items()}
        except (ValueError, KeyError):
            raise LedgerCorrupt(int(number), "does not match its hash") from None
        bare = ({n - 1 for n in kept if n > 1} | {last}) - kept.keys()
        before: tuple[int, bytes] = (0, GENESIS)
        found = set()
        for n, data, kind, stored in self._db.execute(
            "SELECT n, iif(typeof(data) = 'blob', data, NULL), typeof(data), iif(typeof(hash) = 'blob', hash, x'')"
            " FROM entries WHERE n <= ? ORDER BY n",
            (last,),
        ):
            if n in kept:
                follows = before[0] == n - 1 and type(data) is bytes and link(before[1], data) == stored
                if not follows or stored != kept[n]:
                    raise LedgerCorrupt(n, "does not match its hash")
                found.add(n)
            elif n not in bare or kind != "null":
                raise LedgerCorrupt(n, "is there although its part was closed")
            before = (n, stored)
        if missing := kept.keys() - found:
            raise LedgerCorrupt(min(missing), "missing")
        if last and (before[0] != last or before[1].hex() != part["head"]):
            raise LedgerCorrupt(last, "the last hash of a closed part is missing or changed")
        return len(kept), last, before[1]

    def _chain(self, removed: int, before: bytes) -> tuple[int, int, bytes]:
        self._number = removed
        head = before
        self._heads.begin(removed, before)
        known = self._heads.numbers
        if self._db.execute("SELECT 1 FROM entries WHERE n < 1").get is not None:
            raise LedgerCorrupt(1, "an entry stands before the first")
        index = _IndexWalk(self._db, removed)
        rows: Iterator[Row] = self._db.execute("SELECT n, data, hash FROM entries WHERE n > ? ORDER BY n", (removed,))
        for n, data, head in verified(rows, removed + 1, before):
            self._number = n
            if n in known:
                self._heads.compare(n, head)
            if data.startswith(_INDEXED):
                index.compare(n, data)
            if len(data) < 65_536 and b'"moved":[' in data:
                self._moved(n, data)
        self._index = index
        return self._number - removed, self._number, head

    def _moved(self, number: int, data: bytes) -> None:
        for digest in _REFERENCE.findall(data):
            if self._db.execute("SELECT 1 FROM blobs WHERE sha256 = ?", (bytes.fromhex(digest.decode()),)).get is None:
                raise LedgerCorrupt(number, "a body of it is missing")

    def _blobs(self) -> int:
        count = 0
        for digest, last, data in self._db.execute(
            "SELECT sha256, ifnull(last, 0), data FROM blobs LEFT JOIN uses USING (sha256)"
        ):
            if type(data) is not bytes or hashlib.sha256(data).digest() != digest:
                raise LedgerCorrupt(last, "a body of it does not match its hash")
            count += 1
        return count

    def _snapshots(self) -> int:
        count = 0
        for n, data in self._db.execute("SELECT n, data FROM snapshots"):
            entry = self._db.execute("SELECT data FROM entries WHERE n = ?", (n,)).get
            if not isinstance(entry, bytes) or json.loads(entry)["sha256"] != hashlib.sha256(data).hexdigest():
                raise LedgerCorrupt(n, "its snapshot is damaged")
            count += 1
        newest = self._db.execute(
            "SELECT n FROM entries WHERE substr(data, 1, ?) = ? ORDER BY n DESC LIMIT 1", (len(_SNAPSHOT), _SNAPSHOT)
        ).get
        if newest is not None and self._db.execute("SELECT 1 FROM snapshots WHERE n = ?", (newest,)).get is None:
            raise LedgerCorrupt(int(newest), "its snapshot is missing")
        return count

    def _structure(self) -> None:
        problem = self._db.execute("PRAGMA integrity_check(1)").get
        if problem != "ok":
            raise LedgerCorrupt(0, f"the file itself is damaged: {problem}")


class _IndexWalk:
    """The rows of all indexes in the order of their entries, beside the entries: neither has more than the other."""

    def __init__(self, connection: apsw.Connection, removed: int) -> None:
        self._db = connection
        self._rows = {
            table: connection.execute(f"SELECT * FROM {table} WHERE {column} > ? ORDER BY {column}", (removed,))  # noqa: S608
            for table, column in INDEXES.items()
        }
        self._next = {table: self._row(table) for table in INDEXES}

    def _row(self, table: str) -> tuple[object, int] | None:
        """What is looked up, and the entry's number."""
        row = next(self._rows[table], None)
        return None if row is None else (row[0], row[1])

    def compare(self, number: int, data: bytes) -> None:
        """What this entry should have left there is what it did leave."""
        wanted: dict[str, list[object]] = {}
        for table, looked_up, _ in rows_of(decode(data)):
            wanted.setdefault(table, []).append(looked_up)
        for table, texts in wanted.items():
            found = []
            while (row := self._next[table]) is not None and row[1] == number:
                found.append(row[0])
                self._next[table] = self._row(table)
            if table == "keys" and not found:
                newer = self._db.execute("SELECT call FROM keys WHERE key_id = ?", (texts[0],)).get
                if isinstance(newer, int) and newer > number:
                    continue
            # Masking judges a text by itself otherwise than inside its entry.
            same = len(found) == len(texts) if table == "correlations" else set(found) == set(texts)
            if not same:
                raise LedgerCorrupt(number, f"is not what the index of {table} says of it")

    def end(self, last: int) -> None:
        """Nothing is left that no entry stands behind, and all adds up."""
        for table, row in self._next.items():
            if row is not None:
                raise LedgerCorrupt(min(row[1], last), f"the index of {table} names an entry that says nothing of it")
        if (sums := recorded(self._db)) is not None and sums != (found := counted(self._db)):
            damaged = ", ".join(table for table in INDEXES if sums.get(table) != found[table])
            raise LedgerCorrupt(0, f"the index of {damaged} is damaged; the next start makes it anew")

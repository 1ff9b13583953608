"""An index of calls beside the record, for searching: words of inputs and outcomes, tools, callers, states, times.

Owns the file of the index: what is in it, how far it goes, and when it is made anew. It is made from the masked record
alone, so it holds nothing that the record does not, and can be deleted at any time: it is made again when somebody
searches. Does not own the record, which is only read, nor the process that runs this (``search_process``).

Invariant: a call is in the index if and only if its entry is in the record, up to the entry that the index was followed
to; what is removed from the record (a closed part) is removed here when that is followed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
from msgspec import Struct

from trunkline.entries import CallAccepted, CallSettled, PartClosed, decode
from trunkline.ledger.reader import Reader
from trunkline.model import Status
from trunkline.shown import CallSearch

# What is taken of one body: the beginning of a long one says what it is about.
MAX_TEXT_BYTES: Final = 16_384
# Entries that are followed in one transaction: 0.1 s.
STEP: Final = 2_000
# Another form of the file: it is made anew.
FORM: Final = 1
MAX_WORDS: Final = 16
_KINDS: Final = (b'{"kind":"call.accepted"', b'{"kind":"call.settled"', b'{"kind":"ledger.part_closed"')

_SCHEMA: Final = """
CREATE TABLE followed(one INTEGER PRIMARY KEY CHECK (one = 1), form INTEGER, n INTEGER, hash BLOB);
CREATE TABLE calls(n INTEGER PRIMARY KEY, at INTEGER, tool TEXT, caller TEXT, status TEXT) WITHOUT ROWID;
CREATE VIRTUAL TABLE asked USING fts5(text, content='', contentless_delete=1);
CREATE VIRTUAL TABLE ended USING fts5(text, content='', contentless_delete=1);
"""


class Found(Struct, frozen=True):
    """Calls by the numbers of their entries, newest first; where to go on; and up to which entry was looked."""

    numbers: list[int]
    next: int | None
    upto: int


class SearchIndex:
    """The index of one record."""

    def __init__(self, path: Path, reader: Reader) -> None:
        self._path = path
        self._reader = reader
        self._db: apsw.Connection | None = None
        self._inode = 0
        self._at = 0

    @property
    def at(self) -> int:
        """The entry up to which it goes."""
        return self._at

    def close(self) -> None:
        """Let go of the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- the file ------------------------------------------------------------------------------------------------------

    def _opened(self) -> apsw.Connection:
        """The file, made anew if it is gone, damaged, or of another record."""
        if self._db is not None and _inode(self._path) == self._inode:
            return self._db
        self.close()
        try:
            return self._open()
        except apsw.Error:
            self._remove()
            return self._open()

    def _open(self) -> apsw.Connection:
        self._db = db = apsw.Connection(str(self._path))
        db.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF")
        db.execute("PRAGMA secure_delete = ON")
        if not db.execute("SELECT count(*) FROM sqlite_schema").get:
            with db:
                db.execute(_SCHEMA)
                db.execute("INSERT INTO followed VALUES (1, ?, 0, ?)", (FORM, self._reader.hash(0)))
        followed: list[Any] = db.execute("SELECT form, n, hash FROM followed").fetchall()
        form, self._at, known = followed[0]
        if form != FORM or self._reader.hash(self._at) != known:
            raise apsw.CorruptError("an index of another record")
        self._inode = _inode(self._path)
        return db

    def _remove(self) -> None:
        self.close()
        for suffix in ("", "-journal"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    # -- following the record ------------------------------------------------------------------------------------------

    def follow(self) -> bool:
        """Take up some of what is new; whether there is more."""
        try:
            return self._follow(self._opened())
        except (apsw.CorruptError, apsw.NotADBError):
            self._remove()
            return True

    def _follow(self, db: apsw.Connection) -> bool:
        head = self._reader.head()[0]
        upto = min(head, self._at + STEP)
        if upto <= self._at:
            return False
        with db:
            for line in self._reader.lines(self._at + 1, upto):
                self._take(db, line)
            db.execute("UPDATE followed SET n = ?, hash = ?", (upto, self._reader.hash(upto)))
        self._at = upto
        return upto < head

    def _take(self, db: apsw.Connection, line: bytes) -> None:
        if not line.startswith(
            (b'{"kind":"call.accepted"', b'{"kind":"call.settled"', b'{"kind":"ledger.part_closed"')
        ):
            return
        try:
            entry = decode(line)
        except msgspec.DecodeError:
            return
        if isinstance(entry, CallAccepted):
            names = (entry.tool_id, entry.caller, entry.call_id, entry.correlation_id or "", *entry.chain)
            db.execute(
                "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, '')", (entry.n, entry.at, entry.tool_id, entry.caller)
            )
            db.execute(
                "INSERT INTO asked(rowid, text) VALUES (?, ?)", (entry.n, " ".join((*names, _text(entry.input))))
            )
        elif isinstance(entry, CallSettled):
            db.execute("UPDATE calls SET status = ? WHERE n = ?", (entry.status.value, entry.call))
            said = "" if entry.fault is None else f"{entry.fault.code} {entry.fault.message}"
            text = f"{said} {_text(entry.output)}"
            db.execute("INSERT INTO ended(rowid, text) VALUES (?, ?)", (entry.call, text))
        elif isinstance(entry, PartClosed):
            self._forget(db, entry.first, entry.last)

    def _forget(self, db: apsw.Connection, first: int, last: int) -> None:
        rows = db.execute("SELECT n FROM calls WHERE n BETWEEN ? AND ?", (first, last)).fetchall()
        gone = [(number,) for number in _numbers(rows) if self._reader.line(number) is None]
        for table, key in (("calls", "n"), ("asked", "rowid"), ("ended", "rowid")):
            db.executemany(f"DELETE FROM {table} WHERE {key} = ?", gone)  # noqa: S608  (names of our own)
        # Until then their words are only marked as gone.
        db.execute("INSERT INTO asked(asked) VALUES ('optimize'); INSERT INTO ended(ended) VALUES ('optimize')")

    # -- searching -----------------------------------------------------------------------------------------------------

    def find(self, wanted: CallSearch) -> Found:
        """A page of calls, newest first."""
        try:
            return self._find(self._opened(), wanted)
        except (apsw.CorruptError, apsw.NotADBError):
            self._remove()
            return Found([], None, 0)

    def _find(self, db: apsw.Connection, wanted: CallSearch) -> Found:
        terms: list[str] = []
        values: list[Any] = []
        for word in wanted.words.replace("\0", " ").split()[:MAX_WORDS]:
            # As a phrase: a name with dots is several words to the index. The last one may go on.
            phrase = '"' + word.replace('"', '""') + '"*'
            terms.append(
                "n IN (SELECT rowid FROM asked WHERE asked MATCH ? UNION SELECT rowid FROM ended WHERE ended MATCH ?)"
            )
            values += [phrase, phrase]
        for column, part in (("tool", wanted.tool), ("caller", wanted.caller)):
            if part:
                terms.append(f"instr(lower({column}), lower(?))")
                values.append(part)
        for term, value in (
            ("caller = ?", wanted.own or None),
            ("at >= ?", wanted.first_ms),
            ("at < ?", wanted.last_ms),
            ("n < ?", wanted.before),
        ):
            if value is not None:
                terms.append(term)
                values.append(value)
        if wanted.status:
            # What has not ended has no state here: whoever asks looks at the call itself.
            terms.append("status = ?")
            values.append(wanted.status if wanted.status in _OUTCOMES else "")
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        sql = f"SELECT n FROM calls {where} ORDER BY n DESC LIMIT ?"  # noqa: S608  (words of our own)
        rows = db.execute(sql, (*values, wanted.limit + 1)).fetchall()
        numbers = _numbers(rows)[: wanted.limit]
        return Found(numbers, numbers[-1] if len(rows) > wanted.limit else None, self._at)


_OUTCOMES: Final = frozenset(status.value for status in Status if status.is_outcome)


def _text(body: Any) -> str:
    return "" if body is None else bytes(body)[:MAX_TEXT_BYTES].decode(errors="ignore")


def _numbers(rows: list[Any]) -> list[int]:
    return [number for (number,) in rows]


def _inode(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_ino
    return 0

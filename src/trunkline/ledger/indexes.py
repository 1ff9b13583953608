"""The small indexes beside the entries: what goes into them, and how damage to one is found before it is trusted.

``keys`` and ``settled`` answer "was this done before?": a row that is lost there would run a call a second time. All
of it can be read from the entries, so an index that does not add up is made anew from them. That it adds up is told by
a sum over its rows, kept beside them in the same transaction and compared when the record is opened.

Against damage, not against somebody who changes the file on purpose: that is what the chain is for.

Owns the tables and their sums. Does not own the entries, nor what each leaves here (``index_rows``).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Final

import apsw

__all__ = ["INDEXES", "Indexes", "counted", "recorded"]

# Each with the column of its entry's number.
INDEXES: Final = {"settled": "n", "keys": "call", "correlations": "n", "steps": "n"}
# Keeps the two numbers of a row apart.
_APART: Final = 1_000_003
Sums = dict[str, int]


def sum_of_settled(flat: list[int]) -> int:
    """Of rows of ``settled``, given as the values of one after the other."""
    return sum(flat[::2]) * _APART + sum(flat[1::2])


def sum_of_texts(rows: Iterable[tuple[str, int]]) -> int:
    """Of rows of one of the others."""
    return sum(zlib.crc32(text.encode("utf-8", "surrogatepass")) * _APART + number for text, number in rows)


def counted(db: apsw.Connection) -> Sums:
    """The sums of the rows that are there."""
    calls, numbers = db.execute("SELECT ifnull(sum(call), 0), ifnull(sum(n), 0) FROM settled").get
    found: Sums = {"settled": calls * _APART + numbers}
    for table in ("keys", "correlations", "steps"):
        try:
            found[table] = sum_of_texts(db.execute(f"SELECT * FROM {table}"))  # noqa: S608  (a name of ours)
        except (AttributeError, TypeError):
            found[table] = -1  # something that is no text, or no number: damaged
    return found


def recorded(db: apsw.Connection) -> Sums | None:
    """The sums that were written with the rows; None in a record of an earlier release."""
    text = db.execute("SELECT value FROM meta WHERE name = 'indexes'").get
    try:
        return None if text is None else json.loads(text)
    except (TypeError, ValueError):
        return {}


def rebuild(db: apsw.Connection) -> Sums:
    """Make all indexes anew from the entries, in a transaction of its own; their sums."""
    # On first use, which is rare: with the import of entries the writer's start takes half as long again.
    from trunkline.entries import decode
    from trunkline.ledger.index_rows import rows_of

    with db:
        for table in INDEXES:
            db.execute(f"DELETE FROM {table}")  # noqa: S608  (a name of ours)
        for (data,) in db.execute("SELECT data FROM entries WHERE data IS NOT NULL ORDER BY n"):
            for table, looked_up, number in rows_of(decode(data)):
                db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (looked_up, number))  # noqa: S608
        sums = counted(db)
        _record(db, sums)
    return sums


class Indexes:
    """The indexes of a record that is open for writing. ``sums`` is what they sum up to as of the last commit."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        there, written = counted(db), recorded(db)
        if written is None:
            _record(db, there)
        elif written != there:
            damaged = ", ".join(table for table in INDEXES if written.get(table) != there[table])
            # As rare as the damage, and a tenth of the writer's imports.
            import logging

            logging.getLogger("trunkline").warning(
                "the index of %s was damaged and is made anew from the entries", damaged
            )
            there = rebuild(db)
        self.sums = there

    def add(
        self,
        settled: list[int],
        *,
        keys: list[tuple[str, int]],
        correlations: list[tuple[str, int]],
        steps: list[tuple[str, int]],
    ) -> Sums:
        """Add rows (those of ``settled`` are there already); what the indexes sum up to once this is committed."""
        sums = dict(self.sums)
        sums["settled"] += sum_of_settled(settled)
        for key_id, call in keys:
            # After 24 hours a key may name another call.
            earlier = self._db.execute("SELECT call FROM keys WHERE key_id = ?", (key_id,)).get
            if earlier is not None:
                sums["keys"] -= sum_of_texts([(key_id, earlier)])
            self._db.execute("INSERT OR REPLACE INTO keys VALUES (?, ?)", (key_id, call))
        sums["keys"] += sum_of_texts(keys)
        for table, rows in (("correlations", correlations), ("steps", steps)):
            if rows:
                self._db.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)  # noqa: S608  (a name of ours)
                sums[table] += sum_of_texts(rows)
        if sums != self.sums:
            _record(self._db, sums)
        return sums

    def count_anew(self) -> Sums:
        """After rows were removed."""
        sums = counted(self._db)
        _record(self._db, sums)
        return sums


def _record(db: apsw.Connection, sums: Sums) -> None:
    """Write the sums, in the transaction that writes the rows."""
    db.execute(
        "INSERT INTO meta VALUES ('indexes', ?) ON CONFLICT DO UPDATE SET value = excluded.value", (json.dumps(sums),)
    )

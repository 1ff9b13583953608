"""What a Chiffon agent remembers of requests it has seen: on disk, so that a restart does not run them again.

Keyed by (sender, request_id), 24 hours or 10,000 entries (silent point 11). A request is written down before its work
starts; one that is found so after a restart was interrupted, and nobody knows how far it came.

Owns the file. Does not own what is done about a repeat (``chiffon_jobs``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from trunkline.sdk.own_database import open_database

LIFE_S: Final = 86_400.0
MAX_ENTRIES: Final = 10_000


class SeenRequest(Struct, frozen=True):
    """What is known of a request that was taken. ``final`` is how it ended, as JSON; None while it runs."""

    fingerprint: str
    final: bytes | None


class RequestCache:
    """The requests of the last day, in a file; in ``:memory:`` for an agent that forgets them with its process."""

    def __init__(self, path: str | Path) -> None:
        self._db = open_database(path)
        self._db.execute(
            "create table if not exists seen (sender text, request_id text, fingerprint text, final blob, at real,"
            " primary key (sender, request_id)) without rowid"
        )

    def get(self, sender: str, request_id: str, now: float) -> SeenRequest | None:
        """What is known of a request."""
        row = self._db.execute(
            "select fingerprint, final from seen where sender = ? and request_id = ? and at > ?",
            (sender, request_id, now - LIFE_S),
        ).fetchone()
        return None if row is None else SeenRequest(row[0], row[1])

    def start(self, sender: str, request_id: str, fingerprint: str, now: float) -> None:
        """Write down that a request is about to run (CH-079)."""
        self._db.execute(
            "insert or replace into seen values (?, ?, ?, null, ?)", (sender, request_id, fingerprint, now)
        )
        self._db.execute("delete from seen where at <= ?", (now - LIFE_S,))
        self._db.execute(
            "delete from seen where (sender, request_id) in (select sender, request_id from seen order by at desc"
            " limit -1 offset ?)",
            (MAX_ENTRIES,),
        )

    def finish(self, sender: str, request_id: str, final: object) -> None:
        """Write down how a request ended."""
        self._db.execute(
            "update seen set final = ? where sender = ? and request_id = ?",
            (msgspec.json.encode(final), sender, request_id),
        )

    def forget(self, sender: str, request_id: str) -> None:
        """Let a request run again: it never started, or failed in a way that is tried again."""
        self._db.execute("delete from seen where sender = ? and request_id = ?", (sender, request_id))

    def __len__(self) -> int:
        count: int = self._db.execute("select count(*) from seen").fetchone()[0]
        return count

    def close(self) -> None:
        """Leave the file."""
        self._db.close()

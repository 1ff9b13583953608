"""What an OSSA agent remembers of messages of quality 2 that it has handled: on disk, with the replies.

Keyed by (sender, messageId), for 24 hours. Whoever sends such a message again gets the same reply, and the handler does
not run again; also not after the agent was killed. The reply, the mark and what the handler wrote with ``also`` are one
transaction, made after the handler returned. Where that ends: an agent that is killed while the handler runs, or before
that transaction is on disk, runs the handler again, so effects outside this file happen at least once around a crash.

Owns the file. Does not own what runs now, nor how a repeat is recognised meanwhile (``ossa_handling``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from trunkline.sdk.own_database import open_database

LIFE_S: Final = 86_400.0
# What is over is removed now and then: each time would cost more than it frees.
SWEEP_S: Final = 600.0


class Handled(Struct, frozen=True):
    """A message that was handled: what it said, and the reply's bytes."""

    fingerprint: bytes
    reply: bytes


class Inbox:
    """The messages of the last day, in a file; in ``:memory:`` for an agent that forgets them with its process."""

    def __init__(self, path: str | Path = ":memory:") -> None:
        self._db = open_database(path)
        self._db.execute(
            "create table if not exists ossa_inbox (sender text, message_id text, fingerprint blob, reply blob,"
            " at real, primary key (sender, message_id)) without rowid"
        )
        self._swept_at = 0.0

    def get(self, sender: str, message_id: str, now: float) -> Handled | None:
        """What is known of a message."""
        row = self._db.execute(
            "select fingerprint, reply from ossa_inbox where sender = ? and message_id = ? and at > ?",
            (sender, message_id, now - LIFE_S),
        ).fetchone()
        return None if row is None else Handled(row[0], row[1])

    def finish(
        self,
        sender: str,
        message_id: str,
        handled: Handled,
        now: float,
        statements: Sequence[tuple[str, tuple[Any, ...]]] = (),
    ) -> None:
        """Mark a message as handled, with its reply and what belongs to it: all of it or nothing."""
        self._db.execute("begin immediate")
        try:
            for statement, parameters in statements:
                self._db.execute(statement, parameters)
            self._db.execute(
                "insert or replace into ossa_inbox values (?, ?, ?, ?, ?)",
                (sender, message_id, handled.fingerprint, handled.reply, now),
            )
            if now - self._swept_at > SWEEP_S:
                self._db.execute("delete from ossa_inbox where at <= ?", (now - LIFE_S,))
                self._swept_at = now
            self._db.execute("commit")
        except sqlite3.Error:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise

    def __len__(self) -> int:
        count: int = self._db.execute("select count(*) from ossa_inbox").fetchone()[0]
        return count

    def close(self) -> None:
        """Leave the file."""
        self._db.close()

"""A database file of an agent: on disk when a statement returns, and readable by its owner only."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def open_database(path: str | Path) -> sqlite3.Connection:
    """The file, made if it is not there; ``:memory:`` for an agent that forgets with its process."""
    if str(path) != ":memory:":
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(path).touch(mode=0o600)
    database = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=full")
    return database

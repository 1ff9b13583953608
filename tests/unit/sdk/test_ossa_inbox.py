"""The inbox: a message is marked with its reply and what belongs to it, all of it or nothing, for a day."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from trunkline.sdk.ossa_inbox import Handled, Inbox

KEPT = Handled(b"f", b"reply")


def test_what_was_handled_is_known_after_the_agent_was_killed_and_for_a_day(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "inbox.sqlite"
    killed = Inbox(path)
    killed.finish("bob", "m-1", KEPT, 1000.0)
    found = Inbox(path)
    assert found.get("bob", "m-1", 1000.0) == KEPT
    assert found.get("carol", "m-1", 1000.0) is None
    assert found.get("bob", "m-1", 1000.0 + 86_400) is None
    found.finish("bob", "m-2", KEPT, 1000.0 + 86_400)
    assert len(found) == 1
    assert path.stat().st_mode & 0o077 == 0


def test_statements_and_the_mark_are_one_transaction(tmp_path: Path) -> None:
    path = tmp_path / "inbox.sqlite"
    inbox = Inbox(path)
    with sqlite3.connect(path) as author:
        author.execute("create table orders (name text primary key)")
    order = "insert into orders values (?)"
    inbox.finish("bob", "m-1", KEPT, 1.0, [(order, ("one",))])
    with pytest.raises(sqlite3.IntegrityError):
        inbox.finish("bob", "m-2", KEPT, 1.0, [(order, ("two",)), (order, ("one",))])
    assert inbox.get("bob", "m-2", 1.0) is None
    assert author.execute("select name from orders").fetchall() == [("one",)]
    inbox.finish("bob", "m-2", KEPT, 1.0)
    assert len(inbox) == 2
    author.close()

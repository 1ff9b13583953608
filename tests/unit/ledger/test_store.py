from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from trunkline.errors import LedgerCorrupt, LedgerError, LedgerLocked
from trunkline.ledger import store
from trunkline.ledger.store import RESERVE_BYTES, Lock, Reserve, open_for_reading, open_for_writing

TAKING = "from pathlib import Path; from trunkline.ledger.store import Lock; lock = Lock(Path({!r}))"


def test_the_file_is_for_its_owner_only_and_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    connection = open_for_writing(path)
    connection.execute("INSERT INTO meta VALUES ('a', 1)")
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert connection.execute("PRAGMA journal_mode").get == "wal"
    assert connection.execute("PRAGMA synchronous").get == 2
    assert connection.execute("PRAGMA secure_delete").get == 1
    assert connection.execute("PRAGMA application_id").get == store.APPLICATION_ID
    assert connection.execute("PRAGMA user_version").get == store.VERSION
    connection.close()


def test_what_is_no_ledger_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    for opened in (open_for_writing, open_for_reading):
        with pytest.raises(LedgerError, match="is not a ledger"):
            opened(path)
    text = tmp_path / "text.sqlite"
    text.write_bytes(b"this is no database at all, but it is long enough to be looked at" * 10)
    for opened in (open_for_writing, open_for_reading):
        with pytest.raises(LedgerCorrupt, match="the file itself is damaged"):
            opened(text)


def test_a_ledger_of_a_later_format_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    connection = open_for_writing(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LedgerError, match="has format 99; this version of Trunkline reads 1"):
        open_for_writing(path)


def test_reading_where_nothing_was_recorded_says_so(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no exchange has run here"):
        open_for_reading(tmp_path / "ledger.sqlite")


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    writing = open_for_writing(path)
    reading = open_for_reading(path)
    with pytest.raises(apsw.ReadOnlyError):
        reading.execute("INSERT INTO meta VALUES ('a', 1)")
    reading.close()
    writing.close()


def test_the_second_of_two_exchanges_is_turned_away_at_once(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "ledger.lock")
    started = time.monotonic()
    with pytest.raises(LedgerLocked, match=f"held by process {os.getpid()}"):
        Lock(tmp_path / "ledger.lock")
    assert time.monotonic() - started < store.LAST_COMMIT_S / 2
    lock.release()
    Lock(tmp_path / "ledger.lock").release()


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "ledger.lock"
    code = f"{TAKING.format(str(path))}; print(1, flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"1\n"
    with pytest.raises(LedgerLocked, match=f"process {holder.pid}"):
        Lock(path)
    holder.kill()
    holder.communicate()
    Lock(path).release()


def test_whoever_inherits_the_lock_holds_it_and_is_waited_for_once_the_exchange_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.lock"
    lock = Lock(path)
    heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock.descriptor,))
    # As if this exchange had been killed: nobody alive is named in the file.
    os.pwrite(lock.descriptor, b"4194305\n", 0)
    lock.release()
    waiter = subprocess.Popen([sys.executable, "-c", TAKING.format(str(path))])
    with pytest.raises(subprocess.TimeoutExpired):
        waiter.wait(0.5)
    heir.communicate(b"\n")
    assert waiter.wait(store.LAST_COMMIT_S) == 0


def test_the_head_that_was_noted_is_read_back_and_anything_else_is_no_note(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    assert store.noted_head(path) is None
    note = store.HeadNote(store.head_file(path))
    assert store.noted_head(path) is None, "nothing was recorded yet"
    note.write(2**40, bytes(range(32)))
    note.write(12, bytes(32))
    assert store.noted_head(path) == (12, "00" * 32)
    assert stat.S_IMODE(store.head_file(path).stat().st_mode) == 0o600
    note.close()
    store.head_file(path).write_bytes(b"torn")
    assert store.noted_head(path) is None


def test_a_ledger_that_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    note = store.HeadNote(store.head_file(path))
    note.write(7, bytes(32))
    note.close()
    for opened in (open_for_writing, open_for_reading):
        with pytest.raises(LedgerCorrupt, match=r"entry 1: missing: .* is gone or empty, and 7 were recorded"):
            opened(path)
    assert not path.exists()


def test_the_reserve_is_real_space_that_is_given_back_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.reserve"
    reserve = Reserve(path)
    assert path.stat().st_size == RESERVE_BYTES
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
    assert reserve.give_back() is True
    assert not path.exists()
    assert reserve.give_back() is False
    reserve.take()
    assert path.exists()


def test_the_reserve_is_not_taken_from_a_disk_that_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Room:
        f_bavail = 4 * RESERVE_BYTES // 4096 - 1
        f_frsize = 4096

    monkeypatch.setattr(os, "statvfs", lambda _path: Room)
    Reserve(tmp_path / "ledger.reserve")
    assert not (tmp_path / "ledger.reserve").exists()

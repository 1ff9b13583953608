from __future__ import annotations

from collections.abc import Iterator
from random import Random

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.testing.disk import SECTOR_BYTES, DiskStep, Failure, FaultyDisk

NAME = "some.sqlite"


def connected(disk: FaultyDisk) -> apsw.Connection:
    connection = apsw.Connection(str(disk.path(NAME)), vfs=disk.vfs)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def rows(disk: FaultyDisk) -> list[int]:
    connection = connected(disk)
    try:
        return [row[0] for row in connection.execute("SELECT a FROM t ORDER BY a")]  # type: ignore[misc]
    finally:
        connection.close()


@pytest.fixture(scope="module")
def filled() -> Iterator[FaultyDisk]:
    """A table with ten rows, each a commit of its own; left as a killed process leaves it."""
    disk = FaultyDisk(1)
    connection = connected(disk)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute("CREATE TABLE t (a)")
    for number in range(10):
        connection.execute("INSERT INTO t VALUES (?)", (number,))
    connection.close()
    yield disk
    disk.close()


def test_sqlite_works_on_it_with_two_connections() -> None:
    with FaultyDisk() as disk:
        first, second = connected(disk), connected(disk)
        first.execute("CREATE TABLE t (a)")
        first.execute("INSERT INTO t VALUES (1)")
        assert second.execute("SELECT a FROM t").get == 1
        first.close()
        second.close()
        assert not disk.has_failed
    assert not disk.folder.exists()


def test_all_steps_are_seen_and_their_prefixes_lead_from_nothing_to_the_files_as_they_are(filled: FaultyDisk) -> None:
    states = list(filled.states())
    assert len(states) == len(filled.steps) + 1
    assert states[0] == {}
    assert states[-1] == {
        name: filled.path(name).read_bytes() for name in (NAME, f"{NAME}-wal") if filled.path(name).exists()
    }
    assert {step.kind for step in filled.steps} >= {"create", "write", "sync", "sync names", "delete"}


def test_after_a_power_loss_every_commit_that_returned_is_there(filled: FaultyDisk) -> None:
    for seed in range(50):
        with filled.crash(Random(seed)) as after:
            assert rows(after) == list(range(10))


def test_without_syncs_a_power_loss_takes_commits_away(filled: FaultyDisk) -> None:
    with FaultyDisk(2, filled.after_power_loss(Random(1))) as disk:
        connection = connected(disk)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("INSERT INTO t VALUES (10)")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()
        found = set()
        for seed in range(50):
            with disk.crash(Random(seed)) as after:
                found.add(len(rows(after)))
    assert found == {10, 11}


def test_the_same_seed_makes_the_same_disk(filled: FaultyDisk) -> None:
    steps = len(filled.steps)
    for at in (None, steps // 2, steps - 1):
        assert filled.after_power_loss(Random(5), at=at) == filled.after_power_loss(Random(5), at=at)
    made = {tuple(sorted(filled.after_power_loss(Random(seed), at=steps - 1).items())) for seed in range(40)}
    assert len(made) > 5, "and another seed another one"


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 2000)), min_size=1, max_size=8))
def test_what_was_synced_stays_and_each_sector_is_old_new_or_torn(seed: int, writes: list[tuple[int, int]]) -> None:
    old = bytes(5000)
    with FaultyDisk(image={"file": old}) as disk:
        disk.steps += [DiskStep("write", "file", 1, 0, b"\1" * 600), DiskStep("sync", "file", 1)]
        synced = b"\1" * 600 + old[600:]
        newest = bytearray(synced)
        for number, (offset, size) in enumerate(writes, start=2):
            disk.steps.append(DiskStep("write", "file", 1, offset, bytes([number]) * size))
            newest[offset : offset + size] = bytes([number]) * size
        found = disk.after_power_loss(Random(seed))["file"]
    assert len(found) == len(synced)
    written = {place for offset, size in writes for place in range(offset, offset + size)}
    assert all(found[place] == synced[place] for place in range(len(found)) if place not in written)
    allowed = {place: {synced[place]} for place in written}
    for number, (offset, size) in enumerate(writes, start=2):
        for place in range(offset, offset + size):
            allowed[place].add(number)
    assert all(found[place] in allowed[place] for place in written)


def test_sectors_of_one_write_may_arrive_without_each_other() -> None:
    with FaultyDisk(image={"file": b""}) as disk:
        disk.steps.append(DiskStep("write", "file", 1, 0, b"x" * SECTOR_BYTES * 4))
        made = {disk.after_power_loss(Random(seed))["file"] for seed in range(200)}
    assert any(b"\0" * SECTOR_BYTES + b"x" * SECTOR_BYTES in data for data in made), "a later one without an earlier"
    assert any(len(data) % SECTOR_BYTES for data in made), "one in part"
    assert {b"", b"x" * SECTOR_BYTES * 4} <= made


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Failure.EIO, apsw.IOError),
        (Failure.ENOSPC, apsw.FullError),
        (Failure.SHORT_WRITE, apsw.FullError),
        (Failure.FSYNC, apsw.IOError),
    ],
)
def test_the_chosen_operation_fails_and_then_all_or_none(
    kind: Failure, error: type[apsw.Error], persistent: bool
) -> None:
    with FaultyDisk() as disk:
        connection = connected(disk)
        connection.execute("CREATE TABLE t (a)")
        before = len(disk.steps)
        disk.fail_at(1, kind, persistent=persistent)
        with pytest.raises(error) as caught:
            connection.execute("INSERT INTO t VALUES (1)")
        assert len(disk.failures) == 1 or persistent
        if kind is Failure.FSYNC:
            assert caught.value.extendedresult == apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]
        if kind is Failure.SHORT_WRITE:
            assert len(disk.steps[before].data) in {12, 2048}, "half of it arrived"
        if persistent:
            with pytest.raises(error):
                connection.execute("INSERT INTO t VALUES (2)")
        disk.heal()
        connection.execute("INSERT INTO t VALUES (3)")
        connection.close()
        assert 3 in rows(disk)


def test_a_failure_beyond_the_end_never_comes() -> None:
    with FaultyDisk() as disk:
        disk.fail_at(10_000, Failure.EIO)
        connected(disk).close()
        assert not disk.has_failed

from __future__ import annotations

import random
import shutil
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.ledger.made import AT, KEYS, InProcess, accepted, change, in_process, noticed, settled
from trunkline.entries import PartClosed
from trunkline.errors import LedgerCorrupt, LedgerError
from trunkline.ledger import reader as reader_module
from trunkline.ledger.heads import WrittenHead
from trunkline.ledger.reader import Reader
from trunkline.ledger.verify import verify

LARGE = b'"' + b"a" * 70_000 + b'"'


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped ledger with a little of everything."""
    folder = tmp_path_factory.mktemp("whole")
    with in_process(folder, keys=KEYS) as made:
        made.add(accepted(1), settled(2, 1), accepted(3, LARGE), accepted(4, b'{"password":"hunter2"}'))
        made.take_snapshot([3, 4])
        made.add(settled(6, 4), noticed(7), accepted(8))
    return made.path


@pytest.fixture
def ledger(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "ledger.sqlite"))


def damaged(path: Path) -> int:
    with pytest.raises(LedgerCorrupt) as caught:
        verify(path)
    return caught.value.number


def test_a_whole_ledger_is_reported(whole: Path) -> None:
    report = verify(whole)
    reader = Reader(whole)
    assert (report.entries, report.last, report.removed) == (8, 8, 0)
    assert (report.snapshots, report.blobs, report.held) == (1, 1, 0)
    assert (report.last, bytes.fromhex(report.head)) == reader.head()
    reader.close()


def test_it_is_verified_while_an_exchange_writes(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        for n in range(1, 20):
            made.add(accepted(n))
            assert verify(made.path).last == n


@settings(max_examples=80)
@given(st.data())
def test_any_flipped_bit_of_any_row_is_named(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, 8))
    column = data.draw(st.sampled_from(["data", "hash"]))
    path = Path(shutil.copy(whole, tmp_path_factory.getbasetemp() / "flipped.sqlite"))
    connection = apsw.Connection(str(path))
    value = bytearray(connection.execute(f"SELECT {column} FROM entries WHERE n = ?", (number,)).get)  # noqa: S608
    bit = data.draw(st.integers(0, len(value) * 8 - 1))
    value[bit // 8] ^= 1 << bit % 8
    connection.execute(f"UPDATE entries SET {column} = ? WHERE n = ?", (bytes(value), number))  # noqa: S608
    connection.close()
    assert damaged(path) == number


@pytest.mark.parametrize("number", range(1, 9))
def test_a_removed_entry_is_named(ledger: Path, number: int) -> None:
    change(ledger, "DELETE FROM entries WHERE n = ?", number)
    assert damaged(ledger) == number


def test_swapped_and_repeated_entries_are_named(ledger: Path) -> None:
    change(ledger, "UPDATE entries SET n = -n WHERE n IN (3, 6)")
    change(ledger, "UPDATE entries SET n = 6 WHERE n = -3")
    change(ledger, "UPDATE entries SET n = 3 WHERE n = -6")
    assert damaged(ledger) == 3


def test_an_entry_added_by_somebody_else_is_named(ledger: Path) -> None:
    change(ledger, "INSERT INTO entries SELECT 9, data, hash FROM entries WHERE n = 8")
    assert damaged(ledger) == 9
    change(ledger, "UPDATE entries SET n = 0 WHERE n = 9")
    assert damaged(ledger) > 0


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("UPDATE blobs SET data = x'00' || substr(data, 2)", 3),
        ("DELETE FROM blobs", 3),
        ("UPDATE snapshots SET data = x'5b5d'", 5),
        ("DELETE FROM snapshots", 5),
        ("DELETE FROM settled WHERE call = 4", 6),
        ("UPDATE settled SET call = 3 WHERE call = 4", 6),
        ("INSERT INTO settled VALUES (8, 99)", 8),
        ("UPDATE meta SET value = 7 WHERE name = 'last'", 8),
        ("UPDATE meta SET value = 9 WHERE name = 'last'", 9),
        ("INSERT INTO meta VALUES ('part', 7)", 7),
    ],
)
def test_what_belongs_to_an_entry_is_proved_with_it(ledger: Path, sql: str, number: int) -> None:
    change(ledger, sql)
    assert damaged(ledger) == number


def test_an_end_that_was_cut_off_is_seen_with_an_earlier_head(ledger: Path) -> None:
    report = verify(ledger)
    change(ledger, "DELETE FROM entries WHERE n = 8")
    change(ledger, "UPDATE meta SET value = 7 WHERE name = 'last'")
    assert verify(ledger).last == 7
    with pytest.raises(LedgerCorrupt) as caught:
        verify(ledger, kept=[WrittenHead(report.last, report.head)])
    assert caught.value.number == 8


def test_a_rewritten_chain_is_seen_with_an_earlier_head(tmp_path: Path) -> None:
    reports = []
    for text in ("one", "other"):
        (tmp_path / text).mkdir()
        with in_process(tmp_path / text) as made:
            made.add(noticed(1, text), noticed(2))
            reports.append(verify(made.path))
    with pytest.raises(LedgerCorrupt) as caught:
        verify(tmp_path / "other" / "ledger.sqlite", kept=[WrittenHead(reports[0].last, reports[0].head)])
    assert caught.value.number == 2


def test_nothing_to_verify_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no exchange has run here"):
        verify(tmp_path / "ledger.sqlite")


def content(path: Path) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT n, data, hash FROM entries ORDER BY n").fetchall()
    connection.close()
    return rows


@pytest.mark.slow
def test_no_flipped_byte_of_the_file_changes_an_entry_unnoticed(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    right = content(whole)
    path = tmp_path / "flipped.sqlite"
    chosen = random.Random(7)
    for at in chosen.sample(range(len(data)), 400):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << chosen.randrange(8))]) + data[at + 1 :])
        try:
            verify(path)
        except LedgerError:
            continue
        # Unused space, statistics, a spare bit of a record's header: then the entries are what they were.
        assert content(path) == right


def test_a_file_cut_anywhere_is_never_taken_for_whole(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    path = tmp_path / "cut.sqlite"
    for size in random.Random(7).sample(range(1, len(data)), 100):
        path.write_bytes(data[:size])
        with pytest.raises(LedgerError):
            verify(path)


# --- retention --------------------------------------------------------------------------------------------------------


def close_part(made: InProcess, before_ms: int, still_open: list[int]) -> PartClosed | None:
    closing = made.ledger.close_part(before_ms, still_open)
    if closing is None:
        return None
    entry = PartClosed(made.ledger.last + 1, AT + 1000, closing.first, closing.last, closing.head, closing.kept)
    made.add(entry)
    return entry


def filled(folder: Path) -> InProcess:
    """Calls 1 (open), 2 (settled by 4), 5 (settled by 9), with blobs and keys; a snapshot at 8; 9 to 12 after it."""
    made = InProcess(folder)
    made.add(accepted(1, LARGE), accepted(2, b'"' + b"b" * 70_000 + b'"', key_id="k2", correlation_id="c"), noticed(3))
    made.add(settled(4, 2), accepted(5, key_id="k5", correlation_id="c"), noticed(6), noticed(7))
    made.take_snapshot([1, 5])
    made.add(settled(9, 5), noticed(10), accepted(11), noticed(12))
    return made


def test_a_closed_part_keeps_what_is_needed_and_stays_provable(tmp_path: Path) -> None:
    made = filled(tmp_path)
    before = list(made.ledger.reader.recovery())
    hashes = {n: made.ledger.reader.hash(n) for n in range(13)}
    entry = close_part(made, AT + 7, [1, 11])
    assert entry is not None
    assert (entry.first, entry.last) == (1, 6)
    # 1 is open, and 5 is named by the snapshot and ends beyond the part.
    assert entry.kept == {"1": (hashes[1] or b"").hex(), "5": (hashes[5] or b"").hex()}
    reader = made.ledger.reader
    assert [json_n for json_n in range(1, 13) if reader.line(json_n) is not None] == [1, 5, 7, 8, 9, 10, 11, 12]
    assert reader.hash(6) == hashes[6]
    assert reader.hash(3) is None
    assert [entry for entry in reader.recovery() if entry.n != 13] == before
    assert reader.by_key("k2") is None
    assert reader.by_key("k5") is not None
    assert reader.by_correlation("c") == [5]
    report = verify(made.path)
    assert (report.entries, report.last, report.removed, report.blobs) == (9, 13, 4, 1)
    made.ledger.close()
    # And the next start goes on from there.
    with in_process(tmp_path) as again:
        again.add(noticed(14))
        assert verify(again.path).last == 14


def test_parts_are_closed_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "PART_ENTRIES", 3)
    made = filled(tmp_path)
    first = close_part(made, AT + 100, [1, 11])
    second = close_part(made, AT + 100, [11])
    assert first is not None
    assert second is not None
    assert (first.last, second.last) == (3, 6)
    third = close_part(made, AT + 100, [11])
    assert third is not None
    # Never beyond the snapshot that the next start begins with.
    assert third.last == 7
    assert close_part(made, AT + 100, [11]) is None
    made.take_snapshot([11])
    fourth = close_part(made, AT + 100, [11])
    assert fourth is not None
    assert sorted(map(int, fourth.kept)) == []
    assert verify(made.path).removed == 10
    assert [entry.n for entry in made.ledger.reader.recovery()][:1] == [11]
    made.ledger.close()


def test_without_a_snapshot_or_anything_old_nothing_is_removed(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(noticed(1), noticed(2))
        assert made.ledger.close_part(AT + 100, []) is None
        made.take_snapshot([])
        assert made.ledger.close_part(AT, []) is None
        assert made.ledger.close_part(AT + 2, []) is not None


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("UPDATE entries SET data = x'00' || substr(data, 2) WHERE n = 5", 5),
        ("UPDATE entries SET hash = x'00' || substr(hash, 2) WHERE n = 5", 5),
        ("UPDATE entries SET hash = x'00' || substr(hash, 2) WHERE n = 4", 5),
        ("UPDATE entries SET hash = x'00' || substr(hash, 2) WHERE n = 6", 6),
        ("DELETE FROM entries WHERE n = 1", 1),
        ("DELETE FROM entries WHERE n = 4", 5),
        ("DELETE FROM entries WHERE n = 6", 6),
        ("INSERT INTO entries SELECT 2, data, hash FROM entries WHERE n = 5", 2),
        ("DELETE FROM meta WHERE name = 'part'", 2),
        ("UPDATE entries SET data = x'00' || substr(data, 2) WHERE n = 13", 13),
        ("DELETE FROM entries WHERE n = 13", 13),
    ],
)
def test_a_change_around_a_closed_part_is_noticed(tmp_path: Path, sql: str, number: int) -> None:
    made = filled(tmp_path)
    close_part(made, AT + 7, [1, 11])
    made.ledger.close()
    change(made.path, sql)
    assert damaged(made.path) == number

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.ledger.made import AT, accepted, call_id, change, in_process, noticed, question, settled
from trunkline.entries import CallRefused, CallSent, QuestionClosed, encode
from trunkline.errors import LedgerCorrupt, LedgerError
from trunkline.ledger import reader as reader_module
from trunkline.ledger.chain import GENESIS, link
from trunkline.ledger.reader import Reader, call_number

SECRET = b'{"password":"hunter2"}'


def test_a_call_id_names_its_entry() -> None:
    assert call_number(call_id(0xABCDEF)) == 0xABCDEF
    for other in ("", "x", "a42", call_id(7) + "0", call_id(7).upper(), call_id(7).replace("8cde", "4cde")):
        assert call_number(other) is None


def test_single_entries_and_ranges(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        entries = made.add(accepted(1), settled(2, 1), noticed(3))
        reader = made.ledger.reader
        assert reader.entry(2) == entries[1]
        assert reader.entry(4) is None
        assert list(reader.entries(2, 9)) == entries[1:]
        assert reader.line(3) == encode(entries[2])
        assert reader.line(4) is None
        assert reader.hash(0) == GENESIS
        assert reader.hash(1) == link(GENESIS, encode(entries[0]))
        assert reader.hash(4) is None
        assert reader.head() == (3, reader.hash(3))


def test_a_new_ledger_is_empty(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        reader = made.ledger.reader
        assert reader.head() == (0, GENESIS)
        assert list(reader.recovery()) == []
        assert reader.snapshot() is None
        assert reader.calls_page(None, 10) == ([], None)
        assert reader.by_key("k") is None
        assert reader.by_correlation("c") == []
        assert reader.blob("ab" * 32) is None


def test_a_call_with_and_without_its_outcome(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1), accepted(2), settled(3, 2))
        reader = made.ledger.reader
        assert reader.call(1) == (accepted(1), None)
        assert reader.call(2) == (accepted(2), settled(3, 2))
        assert reader.call(3) is None
        assert reader.call(9) is None


def test_a_key_names_its_newest_call(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, key="k", key_id="id"), settled(2, 1), accepted(3, key="k", key_id="id"))
        found = made.ledger.reader.by_key("id")
        assert found is not None
        assert found[0].n == 3
        assert made.ledger.reader.by_key("other") is None


@requirement("OS-036", "OS-037")
def test_a_correlation_names_its_calls_in_order(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        refused = CallRefused(n=4, at=AT, call_id=call_id(4), caller="x", tool_id="a/b", code="policy.denied",
                              correlation_id="chat_session:abc123")  # fmt: skip
        made.add(
            accepted(1, correlation_id="chat_session:abc123", causation_id="m1"),
            accepted(2, correlation_id="other"),
            accepted(3, correlation_id="chat_session:abc123"),
            refused,
        )
        assert made.ledger.reader.by_correlation("chat_session:abc123") == [1, 3, 4]
        first = made.ledger.reader.call(1)
        assert first is not None
        assert first[0].causation_id == "m1"


def test_a_call_without_a_correlation_is_its_own_and_those_it_caused_join_it(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(
            accepted(1, correlation_id=call_id(1)),
            accepted(2, correlation_id=call_id(1)),
            accepted(3),
            noticed(4),
        )
        reader = made.ledger.reader
        assert reader.by_correlation(call_id(1)) == [1, 2]
        assert reader.by_correlation(call_id(3)) == [3]
        assert reader.by_correlation(call_id(4)) == []


def test_the_steps_of_a_call_and_of_a_question(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(
            accepted(1, sent=False),
            question(2, 1),
            QuestionClosed(n=3, at=AT, approval_id="a2", how="approved"),
            CallSent(n=4, at=AT, call=1, attempt=1),
        )
        assert made.ledger.reader.steps("1") == [2, 4]
        assert made.ledger.reader.steps("a2") == [2, 3]


def test_pages_of_calls_newest_first(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(*(accepted(n) if n % 3 else noticed(n) for n in range(1, 21)))
        made.add(settled(21, 20))
        reader = made.ledger.reader
        seen = []
        before: int | None = None
        pages = 0
        while True:
            calls, before = reader.calls_page(before, 5)
            seen += [call[0].n for call in calls]
            pages += 1
            if before is None:
                break
        assert seen == [n for n in range(20, 0, -1) if n % 3]
        assert pages == 3
        assert reader.calls_page(None, 1)[0] == [(accepted(20), settled(21, 20), 0)]


def test_a_page_looks_through_a_bounded_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "PAGE_ROWS", 10)
    with in_process(tmp_path) as made:
        made.add(accepted(1), *(noticed(n) for n in range(2, 31)))
        reader = made.ledger.reader
        calls, before = reader.calls_page(None, 5)
        assert (calls, before) == ([], 22)
        pages = 1
        while before is not None:
            calls, before = reader.calls_page(before, 5)
            pages += 1
        assert calls == [(accepted(1), None, 0)]
        assert pages <= 4


def test_a_page_of_one_caller_has_nobody_elses_calls_whatever_their_inputs_look_like(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(
            accepted(1, caller="http:bob"),
            accepted(2, b'{"caller":"http:bob"}', caller="x", tool_id="a/b"),
            accepted(3, caller="http:bobby"),
            accepted(4, caller="http:bob"),
            accepted(5, caller='x","caller":"http:bob'),
        )
        reader = made.ledger.reader
        assert [call[0].n for call in reader.calls_page(None, 5, caller="http:bob")[0]] == [4, 1]
        calls, before = reader.calls_page(None, 1, caller="http:bob")
        assert ([call[0].n for call in calls], before) == ([4], 4)
        found = []
        while before is not None:
            calls, before = reader.calls_page(before, 1, caller="http:bob")
            found += [call[0].n for call in calls]
        assert found == [1]


def test_a_page_of_a_correlation_looks_through_a_bounded_number_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "PAGE_ROWS", 10)
    with in_process(tmp_path) as made:
        mine = accepted(1, caller="http:bob", correlation_id="c")
        made.add(mine, *(accepted(n, correlation_id="c") for n in range(2, 31)))
        reader = made.ledger.reader
        found, before, pages = [], None, 0
        while pages == 0 or before is not None:
            calls, before = reader.calls_page(before, 5, "c", "http:bob")
            found += calls
            pages += 1
        assert found == [(mine, None, 0)]
        assert 3 <= pages <= 4
        assert [call[0].n for call in reader.calls_page(None, 2, "c")[0]] == [30, 29]


def test_a_page_tells_the_size_of_a_large_output_and_does_not_fetch_it(tmp_path: Path) -> None:
    body = b'"' + b"x" * 100_000 + b'"'
    with in_process(tmp_path) as made:
        made.add(accepted(1), settled(2, 1, body))
        ((_, outcome, size),) = made.ledger.reader.calls_page(None, 5)[0]
        assert outcome is not None
        assert size == len(body)
        assert len(outcome.output or b"") < 200


def test_another_process_reads_without_the_key_what_is_masked(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, SECRET))
        stranger = Reader(made.path)
        assert stranger.entry(1, original=True) == stranger.entry(1)
        assert stranger.original(1, "input") is None
        assert [entry.n for entry in stranger.recovery()] == [1]
        stranger.close()


def test_reading_works_after_the_exchange_has_stopped(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1), settled(2, 1))
    reader = Reader(tmp_path / "ledger.sqlite")
    assert reader.call(1) == (accepted(1), settled(2, 1))
    reader.close()


def test_there_is_nothing_to_read_before_the_first_start(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no exchange has run here"):
        Reader(tmp_path / "ledger.sqlite")


# --- recovery ---------------------------------------------------------------------------------------------------------


def test_recovery_begins_with_what_the_last_snapshot_names(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1), accepted(2), settled(3, 1), accepted(4))
        made.take_snapshot([4, 2])
        made.add(settled(6, 2), accepted(7))
        reader = made.ledger.reader
        assert reader.snapshot() == (4, [2, 4])
        assert [entry.n for entry in reader.recovery()] == [2, 4, 5, 6, 7]
        made.take_snapshot([4, 7])
        assert [entry.n for entry in reader.recovery()] == [4, 7, 8]


def test_an_old_part_may_be_damaged_and_the_start_does_not_read_it(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1), settled(2, 1), accepted(3))
        made.take_snapshot([3])
    change(tmp_path / "ledger.sqlite", "UPDATE entries SET data = ? WHERE n = 1", b"{}")
    with in_process(tmp_path) as made:
        assert [entry.n for entry in made.ledger.reader.recovery()] == [3, 4]


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("column", ["data", "hash"])
def test_recovery_stops_at_the_entry_that_is_damaged(tmp_path: Path, number: int, column: str) -> None:
    with in_process(tmp_path) as made:
        made.add(*(accepted(n) for n in range(1, 8)))
    damage = f"UPDATE entries SET {column} = CAST(substr({column}, 1, 20) || x'00' || substr({column}, 22) AS BLOB)"  # noqa: S608
    change(tmp_path / "ledger.sqlite", f"{damage} WHERE n = ?", number)
    reader = Reader(tmp_path / "ledger.sqlite")
    recovered = []
    with pytest.raises(LedgerCorrupt) as caught:
        recovered.extend(reader.recovery())
    assert caught.value.number == number
    assert [entry.n for entry in recovered] == list(range(1, number))
    # The reader is good for more after that.
    assert reader.head()[0] == 7
    reader.close()


AROUND = [(3, "data"), (3, "hash"), (2, "hash"), (5, "data"), (4, "hash"), (6, "data")]


@pytest.mark.parametrize("kind", ["TEXT", "BLOB"])
@pytest.mark.parametrize(("number", "column"), AROUND)
def test_the_damaged_one_is_named_also_around_a_snapshot(tmp_path: Path, number: int, column: str, kind: str) -> None:
    with in_process(tmp_path) as made:
        made.add(*(accepted(n) for n in range(1, 5)))
        made.take_snapshot([3])
        made.add(accepted(6))
    damage = f"UPDATE entries SET {column} = CAST(x'00' || substr({column}, 2) AS {kind}) WHERE n = ?"  # noqa: S608
    change(tmp_path / "ledger.sqlite", damage, number)
    reader = Reader(tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerCorrupt) as caught:
        list(reader.recovery())
    assert caught.value.number == number
    reader.close()


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("DELETE FROM entries WHERE n = 2", 2),
        ("DELETE FROM entries WHERE n = 6", 6),
        ("UPDATE entries SET data = CAST(data AS TEXT) WHERE n = 4", 4),
        ("UPDATE entries SET data = NULL WHERE n = 4", 4),
        ("UPDATE snapshots SET data = x'5b5d'", 3),
        ("INSERT INTO entries SELECT 7, data, hash FROM entries WHERE n = 6", 7),
    ],
)
def test_recovery_notices_what_is_missing_or_foreign(tmp_path: Path, sql: str, number: int) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1), accepted(2))
        if "snapshots" in sql or "n = 2" in sql:
            made.take_snapshot([2])
        made.add(*(accepted(n) for n in range(made.ledger.last + 1, 7)))
    change(tmp_path / "ledger.sqlite", sql)
    reader = Reader(tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerCorrupt) as caught:
        list(reader.recovery())
    assert caught.value.number == number
    reader.close()


def test_a_damaged_body_is_named_by_its_entry(tmp_path: Path) -> None:
    body = Raw(b'"' + b"a" * 70_000 + b'"')
    with in_process(tmp_path) as made:
        made.add(noticed(1), accepted(2, body))
    change(tmp_path / "ledger.sqlite", "UPDATE blobs SET data = x'00' || substr(data, 2)")
    reader = Reader(tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerCorrupt, match="its input is missing or damaged") as caught:
        list(reader.recovery())
    assert caught.value.number == 2
    reader.close()

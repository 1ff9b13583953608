from __future__ import annotations

import hashlib
import json
import marshal
import tempfile
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.ledger.made import (
    AT,
    KEYS,
    FailingDisk,
    InProcess,
    accepted,
    histories,
    in_process,
    noticed,
    settled,
)
from tests.unit.ledger.masking_examples import OURS
from trunkline.entries import AnyEntry, CallAccepted, CallSettled, QuestionOpened, ToolPinned, decode, encode
from trunkline.errors import InvariantBroken, LedgerError, LedgerFailed, LedgerFull
from trunkline.ledger import store, writer
from trunkline.ledger.commit_group import CommitGroup, packed
from trunkline.ledger.masking import Masker
from trunkline.ledger.reader import Reader
from trunkline.ledger.verify import verify
from trunkline.ledger.writer import INLINE_BODY_BYTES, OUTCOME_KEPT_MS
from trunkline.model import ToolDefinition

SECRET = b'{"password":"hunter2","n":1}'
MASKED = b'{"password":"[masked:named]","n":1}'


def files(folder: Path) -> bytes:
    """Everything that reached the disk."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


# --- what goes in comes out -------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60)
@given(histories())
def test_any_entries_are_read_back_masked_and_the_chain_is_whole(history: list[AnyEntry]) -> None:
    masker = Masker()
    with tempfile.TemporaryDirectory() as folder, in_process(Path(folder), keys=KEYS) as made:
        for entry in history:
            made.ledger.append(entry)
            if entry.n % 3 == 0:
                made.ledger.flush()
        made.ledger.flush()
        reader = made.ledger.reader
        shown = [decode(masker.mask(encode(entry))) for entry in history]
        assert [reader.entry(entry.n) for entry in history] == shown
        assert list(reader.entries(1, len(history))) == shown
        assert made.acknowledged[-1] == len(history) == made.ledger.durable
        report = verify(made.path)
        assert (report.entries, report.last) == (len(history), len(history))
        ended = {entry.call for entry in history if isinstance(entry, CallSettled)}
        for entry, recovered in zip(history, reader.recovery(), strict=True):
            # What is still open comes back as it was, whatever was masked of it.
            if isinstance(entry, CallAccepted) and entry.n not in ended:
                assert recovered == entry
            assert type(recovered) is type(entry)


def test_groups_may_be_cut_anywhere(tmp_path: Path) -> None:
    entries = [accepted(n) if n % 2 else settled(n, n - 1) for n in range(1, 21)]
    heads = set()
    for size in (1, 3, 20):
        folder = tmp_path / str(size)
        folder.mkdir()
        with in_process(folder) as made:
            for start in range(0, 20, size):
                made.add(*entries[start : start + size])
            heads.add(made.ledger.reader.head())
    assert len(heads) == 1


def test_an_entry_out_of_turn_is_refused(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        with pytest.raises(InvariantBroken, match="entry 2 does not follow 0"):
            made.ledger.append(noticed(2))
        made.add(noticed(1))
        with pytest.raises(InvariantBroken, match="entry 1 does not follow 1"):
            made.ledger.append(noticed(1))


def test_a_second_outcome_of_a_call_is_never_stored(tmp_path: Path) -> None:
    made = InProcess(tmp_path)
    made.add(accepted(1), settled(2, 1))
    made.add(settled(3, 1))
    assert made.acknowledged == [2]
    assert isinstance(made.failures[0], LedgerFailed)
    with pytest.raises(LedgerFailed):
        made.ledger.close()
    assert verify(made.path).last == 2


def test_what_was_written_is_taken_up_by_the_next_start(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1), settled(2, 1))
    with in_process(tmp_path) as made:
        assert (made.ledger.last, made.ledger.durable, made.ledger.backlog) == (2, 2, 0)
        made.add(accepted(3))
        assert [entry.n for entry in made.ledger.reader.recovery()] == [1, 2, 3]
    assert verify(tmp_path / "ledger.sqlite").entries == 3


# --- masking and held originals ---------------------------------------------------------------------------------------


@requirement("OS-002", "OS-102", "OS-150")
def test_a_secret_in_an_open_call_is_masked_on_disk_and_whole_for_recovery(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, SECRET))
        reader = made.ledger.reader
        line = json.loads(reader.line(1) or b"")
        assert line["input"] == json.loads(MASKED)
        assert b"hunter2" not in files(tmp_path)
        shown = reader.entry(1)
        assert isinstance(shown, CallAccepted)
        assert bytes(shown.input) == MASKED
        assert bytes(reader.original(1, "input") or b"") == SECRET
        (recovered,) = reader.recovery()
        assert recovered == accepted(1, SECRET)


def test_the_mac_of_the_original_is_keyed(tmp_path: Path) -> None:
    with in_process(tmp_path, keys=KEYS) as made:
        made.add(accepted(1, SECRET))
        mac = json.loads(made.ledger.reader.line(1) or b"")["masked_mac"]
        assert mac == KEYS.mac(encode(accepted(1, SECRET)))
        assert mac != hashlib.sha256(encode(accepted(1, SECRET))).hexdigest()


def test_an_entry_without_secrets_is_stored_as_it_was(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1), accepted(2, SECRET))
        assert made.ledger.reader.line(1) == encode(accepted(1))
        assert made.ledger.reader.original(1, "input") is None


def test_an_original_is_erased_when_its_call_settles(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        question = QuestionOpened(n=2, at=AT, approval_id="a2", subject="call", asked_by="x", expires_ms=AT, reason="r",
                                  call=1, input=Raw(SECRET))  # fmt: skip
        made.add(accepted(1, SECRET), question)
        assert made.ledger.reader.original(2, "input") is not None
        made.add(settled(3, 1, SECRET))
        for number in (1, 2, 3):
            assert made.ledger.reader.original(number, "input") is None
        assert verify(made.path).held == 0


def test_accepted_and_settled_in_one_group_leave_nothing_held(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, SECRET), settled(2, 1, SECRET))
        assert verify(made.path).held == 0
        # A set-aside original leaves no bytes in the file either.
        assert made.ledger.reader.entry(1, original=True) == decode(made.ledger.reader.line(1) or b"")


@pytest.mark.parametrize("together", [True, False])
def test_the_outcome_of_a_keyed_call_is_held_for_a_day(tmp_path: Path, together: bool) -> None:
    first, last = accepted(1, SECRET, key="k", key_id="id"), settled(2, 1, SECRET)
    with in_process(tmp_path) as made:
        if together:
            made.add(first, last)
        else:
            made.add(first)
            made.add(last)
        reader = made.ledger.reader
        call = reader.by_key("id")
        assert call is not None
        assert call[1] == last
        # The input is compared by its MAC: nobody needs the original any more.
        assert bytes(call[0].input) == MASKED
        made.add(noticed(3, at=last.at + OUTCOME_KEPT_MS - 1))
        assert reader.original(2, "output") is not None
        made.add(noticed(4, at=last.at + OUTCOME_KEPT_MS))
        assert reader.original(2, "output") is None
        call = reader.by_key("id")
        assert call is not None
        assert call[1] is not None
        assert bytes(call[1].output or b"") == MASKED


def test_expired_originals_go_even_when_nothing_happens(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, key_id="id"), settled(2, 1, SECRET))
    with in_process(tmp_path) as made:
        assert made.ledger.reader.original(2, "output") is not None
        made.ledger.erase_expired(AT + 2 + OUTCOME_KEPT_MS)
        assert made.ledger.reader.original(2, "output") is None
        assert made.ledger.last == 2


def test_a_jump_of_the_clock_erases_no_original(tmp_path: Path) -> None:
    day = OUTCOME_KEPT_MS
    with in_process(tmp_path) as made:
        made.add(accepted(1, key_id="id"), settled(2, 1, SECRET))
        made.ledger.unlived_ms = day
        made.add(noticed(3, at=AT + 2 + day))
        made.ledger.erase_expired(AT + 1 + 2 * day)
        assert made.ledger.reader.original(2, "output") is not None
        made.ledger.erase_expired(AT + 2 + 2 * day)
        assert made.ledger.reader.original(2, "output") is None


def test_what_no_snapshot_names_needs_no_original(tmp_path: Path) -> None:
    definition = ToolDefinition("a/b", "password=hunter2x", Raw(b"{}"))
    with in_process(tmp_path) as made:
        made.add(ToolPinned(1, AT, definition, "f"), ToolPinned(2, AT, definition, "f"), accepted(3, SECRET))
        made.take_snapshot([2, 3])
        reader = made.ledger.reader
        assert [reader.original(number, "kind") is not None for number in (1, 2, 3)] == [False, True, True]
        recovered = list(reader.recovery())
        assert recovered[:2] == [ToolPinned(2, AT, definition, "f"), accepted(3, SECRET)]


def test_what_the_fold_does_not_need_is_never_held(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(noticed(1, "password=hunter2x"), accepted(2), settled(3, 2, SECRET))
        assert verify(made.path).held == 0
        assert b"hunter2" not in files(tmp_path)


@requirement("OS-066", "OS-136")
def test_a_secret_in_any_field_or_index_stays_out_of_every_file(tmp_path: Path) -> None:
    with in_process(tmp_path, secrets=[("gateway", "plainwords")]) as made:
        made.add(
            accepted(
                1,
                b'{"a":"plainwords"}',
                key=OURS,
                key_id=OURS,
                correlation_id=f"chat {OURS}",
                caller=OURS,
                rule="plainwords",
            ),
            settled(2, 1, json.dumps({"x": OURS}).encode()),
            noticed(3, f"saw {OURS}"),
        )
        made.add(accepted(4), settled(5, 4, json.dumps({"x": [OURS, "b" * 1_100_000]}).encode()))
        made.add(noticed(6, "plainwords"))
        stored = files(tmp_path)
        assert OURS.encode() not in stored
        assert b"plainwords" not in stored
        assert made.ledger.reader.by_correlation("chat [masked:trunkline-token]") == [1]
    assert OURS.encode() not in files(tmp_path)


def test_a_secret_added_later_is_masked_from_there_on(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(noticed(1, "plainwords"))
        made.ledger.add_secret("gateway", "plainwords")
        made.add(noticed(2, "plainwords"))
        details = [json.loads(line)["detail"] for line in made.ledger.reader.lines(1, 2)]
        assert details == ["plainwords", "[masked:gateway]"]
        with pytest.raises(ValueError, match="fewer than 8"):
            made.ledger.add_secret("short", "abc")


def test_another_key_than_the_ledger_was_written_with_is_refused(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, SECRET))
    (tmp_path / "keys" / "ledger.key").write_bytes(bytes(32))
    with pytest.raises(LedgerError, match="the key does not belong to"):
        InProcess(tmp_path)
    (tmp_path / "keys" / "ledger.key").unlink()
    with pytest.raises(LedgerError, match=r"ledger\.key is missing: put back"):
        InProcess(tmp_path)
    assert not (tmp_path / "keys" / "ledger.key").exists()


# --- large bodies -----------------------------------------------------------------------------------------------------


def large(text: str = "a", size: int = INLINE_BODY_BYTES) -> bytes:
    return json.dumps({"text": text * size}).encode()


def test_a_large_body_is_stored_once_and_put_back_on_reading(tmp_path: Path) -> None:
    body = large()
    with in_process(tmp_path) as made:
        made.add(accepted(1, body), settled(2, 1, body), accepted(3, body))
        reader = made.ledger.reader
        assert verify(made.path).blobs == 1
        digest = hashlib.sha256(body).hexdigest()
        line = json.loads(reader.line(1) or b"")
        assert line["input"] == {"$blob": f"sha256:{digest}", "bytes": len(body)}
        assert line["moved"] == ["input"]
        assert reader.entry(1) == accepted(1, body)
        assert reader.call(1) == (accepted(1, body), settled(2, 1, body))
        assert list(reader.recovery()) == [accepted(1, body), settled(2, 1, body), accepted(3, body)]
        assert reader.blob(digest) == body


def test_a_body_at_the_limit_stays_inline(tmp_path: Path) -> None:
    body = json.dumps("a" * (INLINE_BODY_BYTES - 2)).encode()
    assert len(body) == INLINE_BODY_BYTES
    with in_process(tmp_path) as made:
        made.add(accepted(1, body))
        assert verify(made.path).blobs == 0
        assert made.ledger.reader.entry(1) == accepted(1, body)


def test_a_large_body_is_masked_before_it_is_moved(tmp_path: Path) -> None:
    body = json.dumps({"text": "a" * INLINE_BODY_BYTES, "password": "hunter2"}).encode()
    with in_process(tmp_path) as made:
        made.add(accepted(1, body))
        reader = made.ledger.reader
        assert b"hunter2" not in files(tmp_path)
        shown = reader.entry(1)
        assert isinstance(shown, CallAccepted)
        assert bytes(shown.input) == body.replace(b"hunter2", b"[masked:named]")
        assert list(reader.recovery()) == [accepted(1, body)]


def test_a_body_that_looks_like_a_reference_is_a_body(tmp_path: Path) -> None:
    other = large("secret of another caller ", 4000)
    digest = hashlib.sha256(other).hexdigest()
    forged = json.dumps({"$blob": f"sha256:{digest}", "bytes": len(other), "moved": ["input"]}).encode()
    with in_process(tmp_path) as made:
        made.add(accepted(1, other), accepted(2, forged))
        entry = made.ledger.reader.entry(2)
        assert isinstance(entry, CallAccepted)
        assert bytes(entry.input) == forged


def test_an_output_that_travels_by_reference_is_there_with_its_entry(tmp_path: Path) -> None:
    output = large("b", 2_000_000)
    with in_process(tmp_path) as made:
        made.add(accepted(1), settled(2, 1, output))
        assert made.ledger.reader.blob(hashlib.sha256(output).hexdigest()) == output
        assert made.ledger.reader.entry(2) == settled(2, 1, output)


def test_a_masked_output_is_fetched_by_its_own_hash_for_a_day_and_masked_by_that_of_the_record_for_ever(
    tmp_path: Path,
) -> None:
    output = json.dumps({"text": "b" * 1_100_000, "password": "hunter2"}).encode()
    digest = hashlib.sha256(output).hexdigest()
    with in_process(tmp_path) as made:
        made.add(accepted(1), settled(2, 1, output))
        reader = made.ledger.reader
        assert b"hunter2" not in files(tmp_path)
        assert digest.encode() not in files(tmp_path)
        assert reader.blob(digest) == output
        shown = json.loads(reader.line(2) or b"")["output"]["$blob"].removeprefix("sha256:")
        assert reader.blob(shown) == output.replace(b"hunter2", b"[masked:named]")
        made.add(noticed(3, at=AT + 3 + OUTCOME_KEPT_MS))
        assert reader.blob(digest) is None
        assert reader.blob(shown) is not None


# --- a full or failing disk -------------------------------------------------------------------------------------------


def limit_pages(made: InProcess, extra: int) -> None:
    """Let the file grow by so many pages and no more."""
    link = made.ledger._link
    database = link._writer._db  # type: ignore[attr-defined]
    pages = database.execute("PRAGMA page_count").get
    database.execute(f"PRAGMA max_page_count = {pages + extra}")


def test_on_a_full_disk_the_reserve_is_given_back_and_the_group_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = InProcess(tmp_path)
    made.add(accepted(1, SECRET))
    limit_pages(made, 0)
    given_back = []

    def give_back(reserve: store.Reserve) -> bool:
        given_back.append(reserve)
        limit_pages(made, 1000)
        return True

    monkeypatch.setattr(store.Reserve, "give_back", give_back)
    made.add(settled(2, 1, SECRET), *(accepted(n, large(size=50_000)) for n in range(3, 6)))
    assert len(given_back) == 1
    assert made.acknowledged == [1, 5]
    assert not made.failures
    made.ledger.close()
    report = verify(made.path)
    # Erased in the write that was rolled back, and again in the one that was not.
    assert (report.last, report.held) == (5, 0)


def test_without_a_reserve_a_full_disk_is_the_end(tmp_path: Path) -> None:
    made = InProcess(tmp_path)
    made.add(accepted(1))
    (tmp_path / "ledger.reserve").unlink()
    limit_pages(made, 0)
    made.add(*(accepted(n, large(size=50_000)) for n in range(2, 5)))
    made.add(accepted(5))
    assert made.acknowledged == [1]
    assert [type(failure) for failure in made.failures] == [LedgerFull]
    assert made.ledger.durable == 1
    with pytest.raises(LedgerFull):
        made.ledger.close()
    assert verify(made.path).last == 1


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_failed_write_or_sync_is_final(tmp_path: Path, operation: str) -> None:
    disk = FailingDisk(f"failing-{operation}")
    made = InProcess(tmp_path, vfs=disk.name, keys=KEYS)
    made.add(accepted(1))
    disk.fails = lambda name, _count: apsw.IOError() if name == operation else None
    before = disk.count["sync"]
    made.add(accepted(2))
    assert made.acknowledged == [1]
    assert isinstance(made.failures[0], LedgerFailed)
    # The disk would work again, but nothing is tried again: no write, no sync, no acknowledgement.
    disk.fails = lambda _name, _count: None
    failed = dict(disk.count)
    made.add(accepted(3))
    with pytest.raises(LedgerFailed):
        made.ledger.close()
    assert disk.count == failed
    assert disk.count["sync"] <= before + 1
    assert made.acknowledged == [1]
    assert len(made.failures) == 1
    report = verify(made.path)
    assert report.last in {1, 2}


def test_every_single_failing_disk_operation_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    disk = FailingDisk("failing-nth")
    for nth in range(1, 200):
        folder = tmp_path / str(nth)
        folder.mkdir()
        disk.count.clear()
        total = 0

        def fails(_name: str, _count: int, nth: int = nth) -> Exception | None:
            return apsw.IOError() if sum(disk.count.values()) == nth else None

        disk.fails = fails
        acknowledged = 0
        try:
            made = InProcess(folder, vfs=disk.name, keys=KEYS)
        except LedgerError:
            continue
        made.add(accepted(1, SECRET), settled(2, 1))
        made.add(accepted(3))
        made.add(settled(4, 3))
        acknowledged = made.ledger.durable
        total = sum(disk.count.values())
        try:
            made.ledger.close()
        except LedgerError:
            assert made.failures or acknowledged == 4
        disk.fails = lambda _name, _count: None
        assert verify(made.path).last >= acknowledged
        if not made.failures and total < nth:
            break
    else:
        pytest.fail("the disk never worked")
    assert acknowledged == 4


def test_a_commit_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    disk = FailingDisk("failing-order")
    made = InProcess(tmp_path, vfs=disk.name, keys=KEYS)
    syncs = disk.count["sync"]
    seen: list[int] = []
    made.ledger._on_durable = lambda _number: seen.append(disk.count["sync"])
    made.add(accepted(1))
    made.add(settled(2, 1))
    assert seen[0] > syncs
    assert seen[1] > seen[0]
    made.ledger.close()


# --- the log ----------------------------------------------------------------------------------------------------------


def test_the_log_is_moved_into_the_file_between_groups_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 50)
    with in_process(tmp_path) as made:
        for n in range(1, 400):
            made.add(accepted(n, large(size=3000)))
        # One megabyte went through a log that never held much more than 50 pages.
        assert (tmp_path / "ledger.sqlite-wal").stat().st_size < 100 * store.PAGE_BYTES
    wal = tmp_path / "ledger.sqlite-wal"
    assert not wal.exists() or wal.stat().st_size == 0
    assert verify(tmp_path / "ledger.sqlite").entries == 399


def test_a_long_look_does_not_stop_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 20)
    with in_process(tmp_path) as made:
        made.add(accepted(1))
        reader = Reader(made.path)
        looking = reader.recovery()
        assert next(looking).n == 1
        for n in range(2, 100):
            made.add(accepted(n))
        assert made.ledger.durable == 99
        assert list(looking) == []
        reader.close()
        assert verify(made.path).last == 99


def test_the_group_is_made_of_plain_values() -> None:
    group = CommitGroup(1, AT, [1, 2], {2: (1, 7)}, [1, 2], [("k", 1)], [("c", 1)], [("1", 2)], (1, 0, b"[]"),
                         (3, 2, [1]), [7], [6])  # fmt: skip
    payload = packed(group, [b"x", b"yz"])
    assert CommitGroup(*marshal.loads(payload)) == group  # noqa: S302
    assert payload.endswith(b"xyz")


def test_a_masked_entry_that_is_not_json_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = InProcess(tmp_path)
    monkeypatch.setattr(Masker, "mask", lambda _self, data: data[:-1])
    with pytest.raises(json.JSONDecodeError):
        made.add(accepted(1, SECRET))
    made.break_off()

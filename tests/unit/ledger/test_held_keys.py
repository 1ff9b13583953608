from __future__ import annotations

import json
import shutil
from pathlib import Path

import apsw
import pytest

from tests.unit.ledger.made import AT, InProcess, accepted, in_process, noticed, settled
from trunkline.ledger.backup import backup
from trunkline.ledger.held_keys import KEY_BYTES, held_keys_file, key_in, slot_of
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.reader import Reader
from trunkline.ledger.verify import verify

DAY_MS = 24 * 3600 * 1000
PLAIN = [b"hunter2-of-the-input", b"hunter2-of-the-outcome", b"hunter2-of-the-large-one"]


def body(text: bytes, padding: int = 0) -> bytes:
    return json.dumps({"password": text.decode(), "more": "x" * padding}).encode()


def hold(made: InProcess) -> None:
    """Three originals: of an open call, of a keyed outcome, of an output that travels by reference."""
    made.add(
        accepted(1, body(PLAIN[0])),
        accepted(2, key="k", key_id="ab" * 32),
        settled(3, 2, body(PLAIN[1])),
        accepted(4, key="l", key_id="cd" * 32),
        settled(5, 4, body(PLAIN[2], 2_000_000)),
    )


def erase(made: InProcess) -> None:
    """The open call ends, and a day goes by."""
    made.add(settled(6, 1), noticed(7, at=AT + 2 * DAY_MS))


def keys_of(path: Path) -> list[bytes]:
    data = held_keys_file(path).read_bytes()
    slots = (data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES))
    return [key for key in slots if any(key)]


def found_in(folder: Path, wanted: list[bytes]) -> list[str]:
    """The files of a folder in which one of these is."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "ledger.reserve"]
    return [f"{file.name}: {one!r}" for file in files for one in wanted if one in file.read_bytes()]


def test_what_is_erased_cannot_be_read_from_any_file_again(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        hold(made)
        keys = keys_of(made.path)
        assert len(keys) == verify(made.path).held + 1, "a key for each held entry, and one for the held body"
        assert bytes(made.ledger.reader.original(1, "input") or b"") == body(PLAIN[0])
        backup(made.path, tmp_path / "copy.sqlite", None)
        # Also what a copy of the log, taken at the wrong moment, would hold.
        shutil.copy(tmp_path / "ledger.sqlite-wal", tmp_path / "copy-of-the-wal")
        assert found_in(tmp_path, PLAIN) == []
        erase(made)
        assert verify(made.path).held == 0
        assert (tmp_path / "ledger.sqlite-wal").exists(), "the log is still there, and what was deleted is in it"
        assert found_in(tmp_path, keys + PLAIN) == []
    assert found_in(tmp_path, keys + PLAIN) == []


def test_a_copy_of_the_record_with_the_ledgers_key_opens_nothing_that_is_erased(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        hold(made)
        copy = tmp_path / "copy.sqlite"
        backup(made.path, copy, None)
        db = apsw.Connection(str(copy))
        sealed: dict[int, bytes] = dict(db.execute("SELECT n, data FROM held"))
        db.close()
        assert set(sealed) == {1, 3, 5}
        ledger_keys = LedgerKeys.load(tmp_path / "keys", create=False)
        held = key_in(made.path, slot_of(sealed[1]))
        assert held is not None
        assert ledger_keys.unseal(sealed[1][4:], b"entry 1", held) is not None, "as long as its own key is there"
        erase(made)
    for number, data in sealed.items():
        assert key_in(tmp_path / "ledger.sqlite", slot_of(data)) is None
        for guess in (bytes(KEY_BYTES), b""):
            assert ledger_keys.unseal(data[4:], b"entry %d" % number, guess) is None
    reader = Reader(copy, ledger_keys)
    entry = reader.entry(1, original=True)
    reader.close()
    assert PLAIN[0] not in bytes(entry.input)  # type: ignore[union-attr]


def test_a_key_that_a_power_loss_brought_back_is_destroyed_at_the_next_start(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        hold(made)
        before = held_keys_file(made.path).read_bytes()
        keys = keys_of(made.path)
        erase(made)
    held_keys_file(tmp_path / "ledger.sqlite").write_bytes(before)
    assert found_in(tmp_path, keys) != []
    with in_process(tmp_path):
        assert found_in(tmp_path, keys) == []


def test_what_is_still_needed_opens_after_a_restart(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        hold(made)
    with in_process(tmp_path) as made:
        assert bytes(made.ledger.reader.original(1, "input") or b"") == body(PLAIN[0])
        made.add(lambda n: accepted(n, body(b"hunter2-of-another")))
        assert bytes(made.ledger.reader.original(6, "input") or b"") == body(b"hunter2-of-another")
        assert bytes(made.ledger.reader.original(3, "output") or b"") == body(PLAIN[1])


def test_slots_are_used_again_and_the_file_stays_small(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        for _ in range(200):
            (call,) = made.add(lambda n: accepted(n, body(PLAIN[0])))
            made.add(lambda n, call=call.n: settled(n, call))
        assert held_keys_file(made.path).stat().st_size <= 4 * KEY_BYTES


def test_without_secrets_there_is_no_such_file(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1), settled(2, 1))
    assert not held_keys_file(tmp_path / "ledger.sqlite").exists()


def test_only_its_owner_can_read_the_keys(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        hold(made)
        assert held_keys_file(made.path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b"short", bytes(4096)])
def test_originals_whose_keys_are_gone_are_as_good_as_erased(tmp_path: Path, damage: bytes) -> None:
    with in_process(tmp_path) as made:
        hold(made)
    held_keys_file(tmp_path / "ledger.sqlite").write_bytes(damage)
    with in_process(tmp_path) as made:
        assert made.ledger.reader.original(1, "input") is None
        made.add(lambda n: accepted(n, body(b"hunter2-of-another")))
        assert bytes(made.ledger.reader.original(6, "input") or b"") == body(b"hunter2-of-another")

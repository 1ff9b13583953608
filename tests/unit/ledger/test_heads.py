from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

from tests.unit.ledger.made import change, in_process, noticed
from trunkline.errors import LedgerCorrupt, LedgerError
from trunkline.ledger import heads as heads_module
from trunkline.ledger.chain import GENESIS
from trunkline.ledger.heads import heads, heads_file, last_head, public_key_of, written_heads
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.verify import Report, verify


def run(folder: Path, *details: str) -> None:
    """One run of a ledger: a head is signed at its end."""
    with in_process(folder) as made:
        for detail in details:
            made.add(lambda n, detail=detail: noticed(n, detail))


def verified(folder: Path, *kept: str) -> Report:
    found = [head for text in kept for head in written_heads(text)]
    return verify(folder / "ledger.sqlite", kept=found, public_key=public_key_of(folder / "keys"))


def first_damaged(folder: Path, *kept: str) -> tuple[int, str]:
    with pytest.raises(LedgerCorrupt) as caught:
        verified(folder, *kept)
    return caught.value.number, caught.value.reason


def refused(folder: Path) -> LedgerCorrupt:
    """Why this ledger cannot be opened for writing."""
    with pytest.raises(LedgerCorrupt) as caught:
        run(folder)
    return caught.value


def remake_chain(path: Path, detail: bytes = b"forged") -> None:
    """Change entry 2 and make all hashes anew, as somebody does who can write the files but has no key."""
    db = apsw.Connection(str(path))
    db.execute("UPDATE entries SET data = CAST(replace(data, 'two', ?) AS BLOB) WHERE n = 2", (detail.decode(),))
    digest, number = GENESIS, 0
    for number, data in db.execute("SELECT n, data FROM entries ORDER BY n").fetchall():
        digest = sha256(digest + data).digest()
        db.execute("UPDATE entries SET hash = ? WHERE n = ?", (digest, number))
    db.close()
    (path.parent / "ledger.head").write_bytes(b"%020d:%s\n" % (number, digest.hex().encode()))


def cut_off(path: Path, last: int) -> None:
    """Remove what follows entry ``last``, and every note that it was there."""
    change(path, "DELETE FROM entries WHERE n > ?", last)
    change(path, "UPDATE meta SET value = ? WHERE name = 'last'", last)
    (path.parent / "ledger.head").unlink()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A ledger with heads signed at 1, 3 and 4."""
    run(tmp_path, "one")
    run(tmp_path, "two", "three")
    run(tmp_path, "four")
    return tmp_path


def test_the_end_of_each_run_is_signed(home: Path) -> None:
    key = public_key_of(home / "keys")
    assert key is not None
    found = [*heads(home / "ledger.sqlite", key)]
    assert [head.number for head in found] == [1, 3, 4]
    assert [head.before for head in found[1:]] == [head.digest for head in found[:-1]]
    report = verified(home)
    assert (report.last, report.signed, report.anchored) == (4, 4, 0)
    assert report.signed_at == found[-1].at


def test_the_key_of_the_heads_is_for_nobody_else(home: Path) -> None:
    assert (home / "keys" / "ledger.key").stat().st_mode & 0o777 == 0o600
    assert heads_file(home / "ledger.sqlite").stat().st_mode & 0o777 == 0o600
    assert LedgerKeys.load(home / "keys", create=False).head_seed.hex() not in (home / "keys" / "heads.pub").read_text()


def test_a_chain_that_was_made_anew_without_the_key_is_found(home: Path) -> None:
    remake_chain(home / "ledger.sqlite")
    assert verify(home / "ledger.sqlite").last == 4, "the chain alone does not show it"
    number, reason = first_damaged(home)
    assert number == 3
    assert "from 2 on something changed" in reason


def test_a_chain_that_was_made_anew_is_not_written_on(home: Path) -> None:
    remake_chain(home / "ledger.sqlite")
    assert "is not the entry that was signed there" in refused(home).reason


def test_an_older_copy_of_the_ledger_alone_is_found_and_not_written_on(home: Path, tmp_path: Path) -> None:
    older = shutil.copytree(home, tmp_path / "older")
    run(home, "five")
    for name in ("ledger.sqlite", "ledger.head"):
        shutil.copy(older / name, home / name)
    assert first_damaged(home) == (5, "missing; 5 were signed")
    error = refused(home)
    assert error.number == 5
    assert "Put back the newest copy" in error.reason


def test_an_older_copy_of_ledger_and_heads_is_found_by_a_head_that_was_kept(home: Path, tmp_path: Path) -> None:
    older = shutil.copytree(home, tmp_path / "older")
    run(home, "five")
    newest = last_head(home / "ledger.sqlite")
    assert newest is not None
    for name in ("ledger.sqlite", "ledger.head", "ledger.heads"):
        shutil.copy(older / name, home / name)
    assert verified(home).signed == 4, "nothing here shows it"
    assert first_damaged(home, newest.short) == (5, "missing; 5 were there before")
    run(home, "another five")
    assert first_damaged(home, newest.short)[0] == 5


@pytest.mark.parametrize("last", [3, 2, 0])
def test_an_end_that_was_cut_off_is_found(home: Path, last: int) -> None:
    cut_off(home / "ledger.sqlite", last)
    assert first_damaged(home) == (last + 1, "missing; 4 were signed")
    assert refused(home).number == last + 1


def test_heads_that_are_gone_are_missed(home: Path) -> None:
    remake_chain(home / "ledger.sqlite")
    (home / "ledger.heads").unlink()
    assert "gone" in first_damaged(home)[1]
    assert "gone" in refused(home).reason


def _drop_line(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2]]


def _swap_lines(lines: list[bytes]) -> list[bytes]:
    return [lines[1], lines[0], lines[2]]


def _change_hash(lines: list[bytes]) -> list[bytes]:
    number, _, *rest = lines[1].split(b" ")
    return [lines[0], b" ".join([number, b"0" * 64, *rest]), lines[2]]


def _change_last(lines: list[bytes]) -> list[bytes]:
    number, _, *rest = lines[2].split(b" ")
    return [*lines[:2], b" ".join([number, b"0" * 64, *rest])]


@pytest.mark.parametrize("forge", [_drop_line, _swap_lines, _change_hash, _change_last])
def test_heads_that_were_changed_are_found(home: Path, forge: Callable[[list[bytes]], list[bytes]]) -> None:
    file = home / "ledger.heads"
    file.write_bytes(b"".join(forge(file.read_bytes().splitlines(keepends=True))))
    assert "ledger.heads" in first_damaged(home)[1]


def test_heads_of_another_key_are_found(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    run(other, "one", "two", "three", "four")
    shutil.copy(other / "ledger.heads", home / "ledger.heads")
    assert "not signed with this ledger's key" in first_damaged(home)[1]
    assert "not signed with this ledger's key" in refused(home).reason


def test_half_a_line_at_the_end_says_nothing_and_is_written_over(home: Path) -> None:
    file = home / "ledger.heads"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:50])
    assert verified(home).signed == 4
    run(home, "five")
    assert verified(home).signed == 5


def test_what_a_crash_left_unsigned_is_signed_at_the_next_start(home: Path) -> None:
    file = home / "ledger.heads"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    assert verified(home).signed == 3
    run(home)
    assert verified(home).signed == 4


def test_a_head_is_written_down_and_handed_in_again(home: Path) -> None:
    head = last_head(home / "ledger.sqlite")
    key = public_key_of(home / "keys")
    assert head is not None
    assert key is not None
    assert len(head.short) < 60
    published = json.dumps(head.as_json(key))
    for text in (head.short, f"{head.number}:{head.hash}", published, f"{head.short}\n{published}\n"):
        assert verified(home, text).anchored == 4
    remake_chain(home / "ledger.sqlite")
    (home / "ledger.heads").unlink()
    with pytest.raises(LedgerCorrupt):
        verify(home / "ledger.sqlite", kept=written_heads(head.short))


def test_a_published_head_that_somebody_else_wrote_is_not_taken_for_ours(home: Path) -> None:
    head = last_head(home / "ledger.sqlite")
    assert head is not None
    forged = json.dumps({**head.as_json(b""), "hash": "0" * 64})
    assert "not signed with this ledger's key" in first_damaged(home, forged)[1]


@pytest.mark.parametrize("text", ["", "12", "12:abc", "x:" + "0" * 64, '{"number": 1}', "[]", "12:" + "g" * 64])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="head"):
        written_heads(text)


def test_entries_that_retention_removed_need_no_head(tmp_path: Path) -> None:
    from trunkline.entries import PartClosed

    with in_process(tmp_path) as made:
        made.add(noticed(1), noticed(2))
    with in_process(tmp_path) as made:
        made.add(noticed(3))
        made.take_snapshot([])
        closing = made.ledger.close_part(made.ledger.reader.entry(3).at + 10**6, [])  # type: ignore[union-attr]
        assert closing is not None
        made.add(lambda n: PartClosed(n=n, at=10**13, first=1, last=closing.last, head=closing.head, kept=closing.kept))
    report = verified(tmp_path)
    assert (report.removed, report.signed) == (3, 5)


@pytest.mark.slow
async def test_heads_are_signed_while_the_exchange_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[LedgerError] = []
    ledger = Ledger.open(tmp_path / "ledger.sqlite", tmp_path / "keys", loop=asyncio.get_running_loop(),
                         on_durable=lambda _number: None, on_failure=failures.append)  # fmt: skip
    try:
        for n in (1, 2):
            ledger.append(noticed(n))
            ledger.flush()
            async with asyncio.timeout(30):
                while (  # noqa: ASYNC110  (another process writes it)
                    head := last_head(tmp_path / "ledger.sqlite")
                ) is None or head.number < n:
                    await asyncio.sleep(0.01)
    finally:
        ledger.close()
    assert failures == []
    assert verified(tmp_path).signed == 2


def test_a_head_that_cannot_be_written_costs_nobody_his_entry(home: Path) -> None:
    (home / "ledger.heads").rename(home / "kept.heads")
    (home / "new").mkdir()
    with in_process(home / "new") as made:
        (home / "new" / "ledger.heads").mkdir()
        made.add(noticed(1))
        assert made.acknowledged == [1]
    assert verify(home / "new" / "ledger.sqlite").last == 1


def test_at_most_one_head_a_second_is_signed(tmp_path: Path) -> None:
    signer = heads_module.HeadSigner(tmp_path / "ledger.sqlite", bytes(32), tmp_path, in_background=True)
    signer.take_up()
    signer.begin()
    for number in range(1, 50):
        signer.note(number, bytes(32), 0)
    signer.close()
    found = [*heads(tmp_path / "ledger.sqlite", signer.public_key)]
    assert found[-1].number == 49
    assert len(found) <= 3

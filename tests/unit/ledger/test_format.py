"""Records that earlier releases wrote: each format that was ever released is kept here and read by this one.

``format_1`` is a home as the first release left it: five entries, a large body, a snapshot that names an open call and
its question, one entry after it, and signed heads. Whoever changes the format leaves it as it is, adds a folder, and
brings older ones up to date when they are opened.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from tests.unit.ledger.made import change, in_process, noticed
from trunkline.errors import LedgerError
from trunkline.ledger.heads import public_key_of
from trunkline.ledger.reader import Reader
from trunkline.ledger.store import VERSION
from trunkline.ledger.verify import verify

FORMATS = sorted(Path(__file__).parent.glob("format_*"))


@pytest.fixture(params=FORMATS, ids=lambda folder: folder.name)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A home with a record of this format."""
    shutil.copytree(request.param, tmp_path, dirs_exist_ok=True)
    packed = tmp_path / "ledger.sqlite.gz"
    (tmp_path / "ledger.sqlite").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    (tmp_path / "keys" / "ledger.key").chmod(0o600)
    return tmp_path


def test_there_is_a_record_of_each_format_up_to_this_one() -> None:
    assert [folder.name for folder in FORMATS] == [f"format_{number}" for number in range(1, VERSION + 1)]


def test_a_record_of_an_earlier_release_is_proved_with_its_signatures(old: Path) -> None:
    report = verify(old / "ledger.sqlite", public_key=public_key_of(old / "keys"))
    assert (report.entries, report.signed, report.snapshots, report.blobs) == (7, 7, 1, 1)


def test_a_record_of_an_earlier_release_is_folded_and_written_on(old: Path) -> None:
    with in_process(old) as made:
        folded = [entry.n for entry in made.ledger.reader.recovery()]
        made.add(noticed)
    assert folded == [3, 4, 6, 7], "what its snapshot names, and what came after"
    assert verify(old / "ledger.sqlite", public_key=public_key_of(old / "keys")).last == 8


def test_a_record_of_a_later_release_is_not_touched_and_both_formats_are_named(old: Path) -> None:
    change(old / "ledger.sqlite", f"PRAGMA user_version = {VERSION + 1}")
    before = (old / "ledger.sqlite").read_bytes()
    with pytest.raises(LedgerError, match=f"has format {VERSION + 1}; this version of Trunkline reads {VERSION}"):
        Reader(old / "ledger.sqlite")
    assert (old / "ledger.sqlite").read_bytes() == before

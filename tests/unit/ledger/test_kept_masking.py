"""The masking rules as they were compiled before: read back only if they are whole, ours and for these rules."""

from __future__ import annotations

import os
from pathlib import Path

import hyperscan
import pytest

from trunkline.ledger.kept_masking import FILE_NAME, KeptMasking
from trunkline.ledger.masking import Masker
from trunkline.ledger.rules import RULES

KEY = b"k" * 32
TOKEN = b'{"text":"tlk_%b"}' % (b"Ab3" * 14 + b"x")
SEEDS = [b"first[0-9]{3}", b"second"]


class Compiling:
    """Compiles these two seeds, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> hyperscan.Database:
        self.count += 1
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        flags = [hyperscan.HS_FLAG_SOM_LEFTMOST] * 2
        database.compile(expressions=SEEDS, ids=[0, 1], elements=2, flags=flags)
        return database


def hits(database: hyperscan.Database, data: bytes) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    database.scan(data, lambda rule, start, end, _flags, _context: found.append((rule, start, end)))
    return found


def test_what_was_compiled_once_is_read_back_and_finds_the_same(tmp_path: Path) -> None:
    compiling = Compiling()
    data = b"a first123 and a second"
    for _ in range(3):
        database = KeptMasking(tmp_path / "ledger.sqlite", KEY).database(SEEDS, compiling)
        assert hits(database, data) == [(0, 2, 10), (1, 17, 23)]
    assert compiling.count == 1
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["cut", "flipped", "empty", "key", "seeds", "link", "pipe"])
def test_anything_else_is_compiled_anew(tmp_path: Path, change: str) -> None:
    compiling, path, key, seeds = Compiling(), tmp_path / FILE_NAME, KEY, SEEDS
    KeptMasking(tmp_path / "ledger.sqlite", key).database(seeds, compiling)
    data = path.read_bytes()
    match change:
        case "cut":
            path.write_bytes(data[:-1])
        case "flipped":
            path.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
        case "empty":
            path.write_bytes(b"")
        case "key":
            key = b"o" * 32
        case "seeds":
            seeds = [SEEDS[0], b"secon", b"d"]
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case _:
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
    KeptMasking(tmp_path / "ledger.sqlite", key).database(seeds, compiling)
    assert compiling.count == 2
    # And from then on that one is kept.
    KeptMasking(tmp_path / "ledger.sqlite", key).database(seeds, compiling)
    assert compiling.count == 2
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    compiling = Compiling()
    for _ in range(2):
        database = KeptMasking(tmp_path / "missing" / "ledger.sqlite", KEY).database(SEEDS, compiling)
        assert hits(database, b"second") == [(1, 0, 6)]
    assert compiling.count == 2


def test_a_masker_with_kept_rules_masks_as_one_without(tmp_path: Path) -> None:
    masked = Masker().mask(TOKEN)
    assert masked != TOKEN
    for _ in range(2):
        masker = Masker(kept=KeptMasking(tmp_path / "ledger.sqlite", KEY))
        masker.prepare()
        assert masker.mask(TOKEN) == masked
        assert masker.is_clean(b'{"text":"hello"}')
        assert not masker.is_clean(TOKEN)


def test_exact_secrets_are_in_no_file(tmp_path: Path) -> None:
    masker = Masker([("door", "open sesame")], KeptMasking(tmp_path / "ledger.sqlite", KEY))
    assert masker.mask(b'{"said":"open sesame"}') == b'{"said":"[masked:door]"}'
    assert list(tmp_path.iterdir()) == []
    assert len(RULES) > 100

"""Whatever stands in the file of a receipt, `receipts verify` ends with a sentence. Deterministic by seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz import receipt_files


@pytest.mark.parametrize("seed", range(2))
def test_no_file_is_the_end_of_verify(seed: int, tmp_path: Path) -> None:
    whole = receipt_files.judge(seed, 300, receipt_files.home_in(tmp_path))
    assert 0 < whole < 300


def test_files_that_are_nested_without_end_are_refused(tmp_path: Path) -> None:
    home = receipt_files.home_in(tmp_path)
    assert {receipt_files.code_of(home, data) for data in receipt_files.deep_ones()} == {1}


@pytest.mark.parametrize("name", [["r1"], {"r1": 1}, None, 1.5, True])
def test_a_rule_may_be_called_anything(name: object, tmp_path: Path) -> None:
    home = receipt_files.home_in(tmp_path)
    file = json.loads(json.dumps(receipt_files.originals()[0]))
    file["policy"] = [{"id": name}, *file["policy"]]
    assert receipt_files.code_of(home, receipt_files._sealed(file, is_sealed=True)) == 0
    file["policy"] = [{"id": name}]
    assert receipt_files.code_of(home, receipt_files._sealed(file, is_sealed=True)) == 1

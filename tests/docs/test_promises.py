"""A promise is listed with the test that shows it; the page is checked against the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.soak import JOBS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (P-[A-Z]\d+) \|.*\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("promise", ROWS)
def test_each_promise_names_a_test_that_is_there_and_a_figure(promise: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {promise} |"))
    proof = row.split("|")[4]
    named = re.findall(r"`(tests/[\w/]+\.py)`", proof)
    assert named
    assert not [path for path in named if not (ROOT / path).is_file()]
    assert re.search(r"\b\d", proof.replace("P-", "")), "a figure"


def test_no_promise_is_listed_twice() -> None:
    assert len(ROWS) == len(set(ROWS))
    assert len(ROWS) >= 9


def test_each_promise_was_broken_once_and_the_table_says_what_noticed() -> None:
    table = PAGE.partition("## Each promise broken once")[2].partition("\n## ")[0]
    broken = {
        f"P-{one}"
        for ids in re.findall(r"^\| ([A-Z]\d+(?:, [A-Z]\d+)*) \|", table, re.MULTILINE)
        for one in ids.split(", ")
    }
    assert set(ROWS) - broken == {"P-E4"}, "which the page names as the exception"
    assert broken <= set(ROWS)


def test_sections_and_rows_stand_in_order() -> None:
    letters = re.findall(r"^## ([A-Z])\. ", PAGE, re.MULTILINE)
    assert letters == sorted(letters)
    assert sorted(ROWS, key=lambda row: (row[2], int(row[3:]))) == ROWS


def test_every_soak_job_that_the_page_names_exists() -> None:
    cells = {cell for line in PAGE.splitlines() if line.startswith("| P-") for cell in [line.split("|")[5]]}
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named <= {job.name for job in JOBS}
    assert {"kill9", "power"} <= named

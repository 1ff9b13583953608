"""``docs/check-ossa.md`` tells what the suite checks, and what of the specification it leaves out."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from trunkline.check.ossa.bench import BOOK
from trunkline.check.ossa.checking import ORDER
from trunkline.check.suite import LEVELS

PAGE = (Path(__file__).parents[4] / "docs" / "check-ossa.md").read_text(encoding="utf-8")


def test_the_page_counts_the_cases_of_each_category_and_level() -> None:
    counts = Counter((case.category, case.level) for case in BOOK.cases)
    told = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert told == [(category, *(str(counts[category, level]) for level in LEVELS)) for category in ORDER]


def test_every_row_of_the_specification_is_checked_or_left_out_with_a_reason() -> None:
    checked = {row for case in BOOK.cases for row in case.rows}
    left_out = set(re.findall(r"^\| (OSSA-\d{3}) \|", PAGE, re.MULTILINE))
    assert checked | left_out == {f"OSSA-{number:03}" for number in range(1, 103)}
    assert not checked & left_out


def test_the_report_on_the_page_has_the_fields_of_a_report() -> None:
    from tests.unit.check.test_report import report, result

    [text] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    shown, made = json.loads(text), report(result("a.one", "failed")).as_json()
    assert shown["summary"].keys() == made["summary"].keys()
    assert shown["results"][0].keys() == made["results"][0].keys()
    for part in ("tests", "failures"):
        assert shown["results"][0][part][0].keys() == made["results"][0][part][0].keys()

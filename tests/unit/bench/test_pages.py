from __future__ import annotations

import json
from typing import Any

import pytest

from bench.children import Failed
from bench.pages import Page, latencies
from bench.report import lines
from bench.results import Console, Results, Watched
from tests.unit.bench.made import MACHINE


def text(after: int, upto: int) -> str:
    entries = [{"n": n, "at": 1000 + n} for n in range(after + 1, upto + 1)]
    data = json.dumps({"after": after, "upto": upto, "entries": entries}, separators=(",", ":"))
    return json.dumps({"event": "feed.batch", "data": data})


def page(*batches: tuple[float, int, int]) -> Page:
    unused: Any = None
    found = Page(unused)
    found.batches = list(batches)
    found.texts = [text(after, upto) for _, after, upto in batches]
    return found


def test_each_entry_counts_for_each_page() -> None:
    pages = [page((1012.0, 0, 2), (1013.0, 2, 3)), page((1022.0, 0, 3))]
    # 11, 10 and 10 ms for one page; 21, 20 and 19 for the other.
    assert latencies(pages) == (15.0, 21.0)


def test_a_page_that_missed_an_entry_fails_the_run() -> None:
    with pytest.raises(Failed, match="missed entries 2 to 3"):
        latencies([page((1.0, 0, 2), (2.0, 3, 4))])


def test_what_is_left_of_the_rate_is_beside_nobody_watching() -> None:
    assert Watched(100, 900.0, 1000.0, 20.0, 40.0).kept == 0.9


def goals(found: Console) -> list[list[str]]:
    told = lines(Results(MACHINE, "standard", console=found))
    rows = [[cell.strip() for cell in line.split("|")[2:5]] for line in told if line.startswith("| ")]
    return rows[1:]


def test_each_figure_stands_beside_its_goal_and_says_whether_it_was_reached() -> None:
    good = Console(Watched(100, 990.0, 1000.0, 26.0, 111.0), 180_000, (300.0, 900.0, 1500.0))
    assert goals(good) == [
        ["26 ms, 111 ms", "at most 50 ms", "yes"],
        ["0.99", "at least 0.9", "yes"],
        ["180 KB", "less than 300 KB", "yes"],
        ["900 ms", "less than 1000 ms", "yes"],
    ]
    bad = Console(Watched(100, 890.0, 1000.0, 50.6, 111.0), 300_000, (1000.0,))
    assert [row[2] for row in goals(bad)] == ["no"] * 4


def test_without_a_browser_there_is_no_first_paint() -> None:
    assert len(goals(Console(Watched(1, 1.0, 1.0, 1.0, 1.0), 1, ()))) == 3

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.pages import Page, Watched, latencies


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
    with pytest.raises(RuntimeError, match="missed entries 2 to 3"):
        latencies([page((1.0, 0, 2), (2.0, 3, 4))])


def test_what_is_left_of_the_rate_is_beside_nobody_watching() -> None:
    assert Watched(100, 900.0, 1000.0, 20.0, 40.0).kept == 0.9

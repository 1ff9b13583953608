from __future__ import annotations

from bench.report import lines
from bench.results import Ossa, Publishing, Results
from tests.unit.bench.made import MACHINE

FOUND = Ossa(
    signed_us=(900.0, 1000.0, 5000.0),
    unsigned_us=(700.0, 790.0, 800.0),
    alone_us=(175.0,),
    published=(Publishing(1, (300.0, 200.0, 100.0), (400.0, 400.0, 400.0)), Publishing(64, (900.0,), (1800.0,))),
    subscribers=100,
    told_us=0.8,
)


def test_what_signatures_add_is_the_difference_of_the_medians() -> None:
    assert FOUND.added_us == 210.0
    assert FOUND.published[0].ratio.median == 0.5


def test_each_figure_stands_beside_its_goal() -> None:
    told = "\n".join(lines(Results(MACHINE, "standard", ossa=FOUND)))
    rows = [[cell.strip() for cell in line.split("|")[2:5]] for line in told.splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        ["210 µs to 175 µs", "1.20", "at most 1.3"],
        ["200 to 400", "0.50 (0.25–0.75)", "at least 0.5"],
        ["900 to 1,800", "0.50", "at least 0.5"],
        ["0.8 µs", "", "at most 30 µs"],
    ]

from __future__ import annotations

from bench.report import lines
from bench.results import Checking, Results, Trajectories
from bench.trajectories import VALUE, _lines
from tests.unit.bench.made import MACHINE
from trunkline.trajectory.check import check

MIB = 2**20
FOUND = Trajectories(
    1024,
    (9.0, 3.0, 4.0),
    (Checking(10_000, 10 * MIB, 0.5, 40 * MIB), Checking(100_000, 100 * MIB, 3.25, 45 * MIB)),
)


def test_each_figure_stands_beside_its_goal() -> None:
    told = "\n".join(lines(Results(MACHINE, "standard", trajectories=FOUND)))
    rows = [[cell.strip() for cell in line.split("|")[2:5]] for line in told.splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        ["4.0 µs", "", "at most 10 µs"],
        ["0.50 s", "40 MiB", ""],
        ["3.25 s", "45 MiB", "at most 5 s"],
    ]


def test_the_file_that_is_checked_is_a_trajectory_of_so_many_lines() -> None:
    found = check(_lines(100))
    assert (found.lines, found.tool_calls, found.hashes) == (100, 48, 96)
    assert 900 < len(VALUE) < 1100

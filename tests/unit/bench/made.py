"""Results as a run would leave them."""

from __future__ import annotations

from bench.loads import Load
from bench.results import Cell, FileRuns, Machine, Printed, Results, Spaces, Starts

SMALL_64 = Load(64, 200)
MACHINE = Machine(
    date="2026-01-01 12:00",
    cpu="Some <CPU> & more",
    cores=2,
    memory_bytes=8 * 1024**3,
    kernel="Linux 6",
    python="3.11.0",
    disk="ext4",
    sync_us=200.0,
    load_before=0.1,
    load_after=1.9,
    packages={"uvloop": "1.0"},
)
SPACES = Spaces(
    room=Starts((5.0, 1.0, 2.0, 1.0), (25.0, 30.0, 26.0, 27.0)),
    exchange=Starts((1.0,), (31.0,)),
    files=FileRuns(1000, 2.0, 9.8),
    reads=FileRuns(1000, 0.5, 5.0),
    printed=Printed(1024**3, 2.5, 50 * 1024**2, 82 * 1024**2),
)


def results(**rates: tuple[float, ...]) -> Results:
    """Contenders' calls a second under 64 small calls in flight; ``_`` stands for ``-`` in a name."""
    cells = (Cell(name.replace("_", "-"), SMALL_64, found, {"caller": 4.0}) for name, found in rates.items())
    return Results(MACHINE, "standard", seconds=60.0, cells=tuple(cells))

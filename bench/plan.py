"""How long and how large a run is: the standard one and the quick one, and the lines that show how far it has come."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from bench.loads import LARGE, SMALL, Load

# The columns of the table. A small body is new each time: nothing can be gained from having seen it.
LOADS: Final = (
    Load(1, SMALL),
    Load(64, SMALL),
    Load(1, LARGE, fresh=False),
    Load(64, LARGE, fresh=False),
    Load(1, LARGE),
    Load(64, LARGE),
)
# Over HTTP, with a connection for each call in flight.
HTTP_LOADS: Final = (Load(1, SMALL), Load(64, SMALL))
# What everything else is measured with.
USUAL: Final = Load(64, SMALL)
# Of which the pieces are told apart.
TAKEN_APART: Final = (USUAL, Load(64, LARGE, fresh=False))


class Plan(Struct, frozen=True):
    """The figures of a run. Times were chosen so that the standard one ends within ten minutes on two cores."""

    name: str
    # Each measures every contender under every load once; the median needs at least five.
    rounds: int = 5
    # Long enough for pools and caches to fill, and for a log that is written behind to fall behind.
    warm_s: float = 0.2
    measure_s: float = 0.8
    # Of each growing figure, beside the relay each time.
    growth_rounds: int = 3
    agents: tuple[int, ...] = (1, 10, 50, 100, 200, 500)
    entries: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    # Connections and calls in flight between which memory is compared. The exchange takes 1,024 connections and 4,096
    # open calls of one caller.
    idle_connections: tuple[int, int] = (200, 1000)
    open_calls: tuple[int, int] = (400, 4000)
    herd: int = 500
    # Calls through the pure path; a tenth with large bodies.
    piece_calls: int = 20_000
    # Of each kind, beside a plain shell each time.
    shell_starts: int = 100
    # In one run, and in so many.
    file_operations: int = 1000
    output_bytes: int = 1024**3
    # Tasks by a queue, one after the other.
    queue_calls: int = 300
    # Requests by OSSA and back, and events published, in each round.
    asked: int = 500
    published: int = 500
    # Jobs over Nostr in each round, one after the other; the relay lets 200 a minute through.
    jobs: int = 20
    # Calls of a mounted server in each round.
    mounted: int = 500
    # Of a server behind ContextForge.
    forged: int = 60
    # Of the larger of two files that are checked.
    trajectory_lines: int = 100_000
    # Pages of the console that watch, and calls that run meanwhile.
    watching_pages: int = 100
    watched_calls_a_second: float = 1000.0
    watched_s: float = 5.0
    # Calls after which memory is looked at, ten times.
    flat_calls: int = 1_000_000


STANDARD: Final = Plan("standard")
QUICK: Final = Plan(
    "quick",
    rounds=1,
    warm_s=0.1,
    measure_s=0.3,
    growth_rounds=1,
    agents=(1, 50, 500),
    entries=(10_000, 100_000),
    piece_calls=4_000,
    shell_starts=20,
    file_operations=100,
    output_bytes=64 * 1024**2,
    queue_calls=50,
    asked=200,
    published=200,
    jobs=10,
    mounted=200,
    trajectory_lines=20_000,
    watched_s=2.0,
    flat_calls=20_000,
)


class Stage(Struct, frozen=True):
    """Where a section works, and how it tells of it."""

    plan: Plan
    folder: Path
    begun: float

    def say(self, text: str) -> None:
        """One line of progress."""
        sys.stderr.write(f"{time.monotonic() - self.begun:6.1f} s  {text}\n")
        sys.stderr.flush()

    def room(self, name: str) -> Path:
        """A new folder."""
        made = self.folder / name
        made.mkdir()
        return made

"""``make bench``: one run, one table.

    python -m bench [--quick] [--only NAME]... [--save] [--page] [--picture FILE]
    python -m bench --show FILE [--page] [--picture FILE]

``--only`` takes a section (ratios, http, pieces, memory, agents, herd, entries, spaces, chiffon, ossa, nostr,
trajectories, mounts, contextforge, console, flat) or a row of the table of ratios (read-only, nats, …; the bare relay
is always beside it) and may be repeated. ``flat``, a million calls, and ``contextforge``, which is installed first, run
only when they are asked for. Progress goes to standard
error, the tables to standard output. All processes end with the run, Ctrl-C included.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from bench import (
    chiffon,
    contextforge,
    growth,
    memory,
    mounts,
    nostr,
    ossa,
    pages,
    pieces,
    ratios,
    spaces,
    trajectories,
)
from bench.children import ROOT, Failed
from bench.contenders import CONTENDERS, HTTP_CONTENDERS, RELAY
from bench.machine import machine
from bench.picture import svg
from bench.plan import HTTP_LOADS, LOADS, QUICK, STANDARD, Stage
from bench.report import PICTURE, lines, page
from bench.results import Results

SECTIONS: Final = (
    "ratios",
    "http",
    "pieces",
    "memory",
    "agents",
    "herd",
    "entries",
    "spaces",
    "chiffon",
    "ossa",
    "nostr",
    "trajectories",
    "mounts",
    "contextforge",
    "console",
    "flat",
)
# Sections about one edge or its files, each with its place in the results.
EDGES: Final[Mapping[str, Callable[[Stage], object]]] = {
    "spaces": spaces.measure,
    "chiffon": chiffon.measure,
    "ossa": ossa.measure,
    "nostr": nostr.measure,
    "trajectories": trajectories.measure,
    "mounts": mounts.measure,
    "contextforge": contextforge.measure,
    "console": pages.measure,
}
# A million calls take longer than all the rest; ContextForge has to be installed.
ON_REQUEST: Final = frozenset({"flat", "contextforge"})
# By the standard a place that outlives a restart, so a disk, where /tmp may be memory. Short: a socket's path is.
WORK: Final = "/var/tmp"  # noqa: S108 - the folder below it has a name that nobody can foresee, and mode 0700
SAVED: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "performance.md"
# Above this the figures say more about the other programs than about ours.
BUSY: Final = 0.5


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python -m bench", description="Side by side with the bare relay and with peers.")
    rows = [contender.name for contender in CONTENDERS if contender is not RELAY]
    parser.add_argument("--quick", action="store_true", help="one short round, smaller sizes")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[*SECTIONS, *rows],
        metavar="NAME",
        help=f"a section ({', '.join(SECTIONS)}) or a row ({', '.join(rows)}); may be repeated",
    )
    parser.add_argument("--save", action="store_true", help="keep the run as bench/results/<date>.json")
    parser.add_argument("--page", action="store_true", help="keep it and put its figures into docs/performance.md")
    parser.add_argument("--show", type=Path, metavar="FILE", help="show a saved run instead of making one")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the picture of the table, as SVG")
    return parser.parse_args(words)


def sections(only: Sequence[str]) -> set[str]:
    """What to run. A row asks for the table."""
    if not only:
        return set(SECTIONS) - ON_REQUEST
    return {name if name in SECTIONS else "ratios" for name in only}


def measure(stage: Stage, results: Results, only: Sequence[str]) -> None:
    """Run the sections, each into its place in ``results``."""
    wanted = sections(only)
    if "ratios" in wanted:
        chosen = [one for one in CONTENDERS if one.name in only] or [one for one in CONTENDERS if one is not RELAY]
        results.cells = ratios.measure(stage, "ratios", [RELAY, *chosen], LOADS)
    if "http" in wanted:
        results.http = ratios.measure(stage, "http", HTTP_CONTENDERS, HTTP_LOADS)
    if "pieces" in wanted:
        results.pieces = pieces.measure(stage, results.cells)
    if "memory" in wanted:
        results.memory = memory.measure(stage)
    if "agents" in wanted:
        results.by_agents = growth.by_agents(stage)
    if "herd" in wanted:
        results.herd = growth.herd(stage)
    if "entries" in wanted:
        results.starts, results.by_entries = growth.by_entries(stage)
    for name, measured in EDGES.items():
        if name in wanted:
            setattr(results, name, measured(stage))
    if "flat" in wanted:
        results.flat = memory.measure_flat(stage)


def run(options: argparse.Namespace) -> tuple[Results, str]:
    """A run: what was found, and what went wrong."""
    plan = QUICK if options.quick else STANDARD
    problem = ""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=WORK) as folder:
        stage = Stage(plan, Path(folder), time.monotonic())
        results = Results(machine(stage.folder), plan.name)
        if results.machine.load_before > BUSY * results.machine.cores:
            stage.say(f"the machine is busy (load {results.machine.load_before:.1f}): these figures will be noise")
        try:
            measure(stage, results, options.only)
        except Failed as failed:
            problem = str(failed)
        except KeyboardInterrupt:
            problem = "interrupted"
        results.seconds = time.monotonic() - stage.begun
        results.machine = replace(results.machine, load_after=os.getloadavg()[0])
    return results, problem


def main(words: Sequence[str]) -> int:
    """The exit code: 0, or 1 if something could not be measured."""
    options = arguments(words)
    file: Path | None = options.show
    if file is not None:
        results, problem = msgspec.json.decode(file.read_bytes(), type=Results), ""
    else:
        # A thousand connections, in every process that will have them.
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        results, problem = run(options)
    print(*lines(results), sep="\n")
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    if file is None and (options.save or options.page):
        file = save(results)
    if options.page and file is not None:
        name = file.resolve().relative_to(ROOT)
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results, str(name)), encoding="utf-8")
        if results.cells:
            PAGE.with_name(PICTURE).write_text(svg(results), encoding="utf-8")
    if options.picture is not None:
        options.picture.write_text(svg(results), encoding="utf-8")
    return 0


def save(results: Results) -> Path:
    """Keep a run; where."""
    SAVED.mkdir(exist_ok=True)
    file = SAVED / f"{results.machine.date.replace(' ', 'T').replace(':', '')}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    print(f"saved: {file}", file=sys.stderr)
    return file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

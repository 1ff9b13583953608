"""``python -m trunkline.testing SEED…``: run simulations again and print their stories; ``FIRST-LAST``: run many.

For looking at a seed that failed: a failing test prints the command. Owns the command line; what happens in a
simulation is ``simulation``.
"""

from __future__ import annotations

import argparse
import sys
import time

from trunkline.testing.simulation import STEPS, simulate
from trunkline.testing.story import SimulationFailed


def main() -> int:
    """The exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m trunkline.testing", description=main.__doc__)
    parser.add_argument("seeds", metavar="SEED|FIRST-LAST", nargs="+")
    parser.add_argument("--steps", type=int, default=STEPS, help="how much happens (default: %(default)s)")
    parser.add_argument("--sha256", action="store_true", help="print the hash of each ledger, and nothing else")
    chosen = parser.parse_args()
    failed = 0
    for seeds in chosen.seeds:
        first, _, last = seeds.partition("-")
        if last:
            failed |= _many(range(int(first), int(last) + 1), chosen.steps)
        else:
            failed |= _one(int(first), chosen.steps, is_told=not chosen.sha256)
    return failed


def _one(seed: int, steps: int, *, is_told: bool) -> int:
    try:
        story = simulate(seed, steps)
    except SimulationFailed as failure:
        _say(str(failure))
        return 1
    if is_told:
        _say("\n".join(map(str, story.lines)))
        _say(", ".join(f"{count} {name}" for name, count in story.figures.items()))
    _say(story.sha256)
    return 0


def _many(seeds: range, steps: int) -> int:
    started = time.monotonic()
    failed = []
    for seed in seeds:
        try:
            simulate(seed, steps)
        except SimulationFailed as failure:
            failed.append(seed)
            _say(str(failure))
    _say(f"{len(seeds)} seeds, {len(seeds) / (time.monotonic() - started):.1f} a second; failed: {failed or 'none'}")
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())

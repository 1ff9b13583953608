"""``python -m trunkline.testing SEED``: run a simulation again and print its story; ``FIRST-LAST``: run many.

For looking at a seed that failed: a failing test prints the command. What happens in a simulation is ``simulation``.
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
    parser.add_argument("seeds", metavar="SEED|FIRST-LAST")
    parser.add_argument("--steps", type=int, default=STEPS, help="how much happens (default: %(default)s)")
    parser.add_argument("--sha256", action="store_true", help="print the hash of the ledger, and nothing else")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    if last:
        return _many(range(int(first), int(last) + 1), chosen.steps)
    try:
        story = simulate(int(first), chosen.steps)
    except SimulationFailed as failure:
        _say(str(failure))
        return 1
    if not chosen.sha256:
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

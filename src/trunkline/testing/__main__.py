"""``python -m trunkline.testing SEED``: run one simulation again and tell its story."""

from __future__ import annotations

import sys

from trunkline.testing.simulation import simulate

if __name__ == "__main__":
    story = simulate(int(sys.argv[1]))
    for line in story.lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{story.figures} {story.sha256}\n")

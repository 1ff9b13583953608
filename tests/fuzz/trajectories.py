"""Trajectories made wrong: whatever a file holds, it is accepted or refused with a line, by every reader alike.

Each line of a good file, ours or a foreign one, may be replaced by a mutated one, doubled, dropped or moved. What is
accepted can be compared, bundled, answered from, and has hashes that compute.
"""

from __future__ import annotations

import json
from random import Random

from tests.fuzz.mutations import Mutator
from tests.unit.ledger.made import accepted, settled
from tests.unit.trajectory.made import failed, foreign, trajectory, written
from trunkline.trajectory.build import trajectory_hash
from trunkline.trajectory.bundle import bundle_of, decode_bundle, encode_bundle, export
from trunkline.trajectory.check import Checked, NotATrajectory, check
from trunkline.trajectory.diff import difference, run_of
from trunkline.trajectory.standin import Recording

OURS = trajectory(accepted(1, b'{"x": 1.0}'), accepted(2, cause=1), failed(3, 2), settled(4, 1))


def judge(seed: int, cases: int) -> int:
    """Make so many files wrong; how many of them were accepted all the same."""
    rng = Random(seed)
    good = [OURS, written(foreign()), written(foreign(ToolResult={"output": "full"}))]
    mutator = Mutator(seed, [json.loads(line) for lines in good for line in lines])
    taken = 0
    for _ in range(cases):
        lines = _changed(rng, mutator, list(rng.choice(good)))
        found = _judged(lines)
        if isinstance(found, NotATrajectory):
            assert 1 <= found.line <= len(lines) + 1
            continue
        taken += 1
        assert found.trajectory_hash == trajectory_hash(found.session_id, lines)
        assert difference(run_of(lines), run_of(lines)) is None
        assert list(export(decode_bundle(encode_bundle(bundle_of(lines))))) == lines
        Recording.of(lines).answer("com.example.echo/echo", mutator.body())
    return taken


def _judged(lines: list[bytes]) -> Checked | NotATrajectory:
    try:
        return check(lines)
    except NotATrajectory as wrong:
        return wrong


def _changed(rng: Random, mutator: Mutator, lines: list[bytes]) -> list[bytes]:
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(lines)) if lines else 0
        match rng.randrange(4):
            case 0:
                lines[at : at + 1] = mutator.body().split(b"\n")
            case 1:
                lines.insert(at, rng.choice(lines) if lines else b"{}")
            case 2:
                del lines[at : at + 1]
            case _:
                rng.shuffle(lines)
    return lines

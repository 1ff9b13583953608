"""A table: every contender under every load, in interleaved rounds.

In each round all contenders are started anew, with empty ledgers; then one load after the other goes through all of
them in turn, beginning with another one each round. Neighbours in time are thus contenders under the same load.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from bench.children import Children, cpu_s
from bench.contenders import Contender, Running
from bench.loads import Load, Measured, Run
from bench.plan import Plan, Stage
from bench.results import Cell

# Entries that nobody waits for gather for 10 ms and are then committed: so much is always on its way, at the beginning
# of a window and at its end.
ALWAYS_BEHIND_S: Final = 0.05


class Window(Struct, frozen=True):
    """One contender under one load in one round."""

    rate: float
    # Of each process, for a call.
    cpu_us: dict[str, float]
    # 0 where the caller does not time each call.
    median_us: float
    p99_us: float


def measure(stage: Stage, name: str, contenders: Sequence[Contender], loads: Sequence[Load]) -> tuple[Cell, ...]:
    """All cells of the table of this name."""
    plan = stage.plan
    windows: dict[tuple[str, Load], list[Window]] = {}
    for number in range(plan.rounds):
        with Children(stage.room(f"{name}-{number}")) as children:
            running = {contender.name: contender.start(children) for contender in contenders}
            where = f"{name}, round {number + 1} of {plan.rounds}"
            stage.say(f"{where}: {len(running)} contenders are up")
            for load in loads:
                for one in _rotated(list(running), number):
                    windows.setdefault((one, load), []).append(run(running[one], load, plan))
                done = ", ".join(f"{one} {windows[one, load][-1].rate:,.0f}" for one in running)
                stage.say(f"{where}, {load.title}, calls/s: {done}")
    return tuple(cell(contender, load, found) for (contender, load), found in windows.items())


def run(running: Running, load: Load, plan: Plan) -> Window:
    """Calls a second and what a call took.

    A contender that writes behind, and falls behind, is measured until the last of it is written: the rate is one that
    it could keep up.
    """
    before = {name: cpu_s(pid) for name, pid in running.pids.items()}
    measured = running.caller.ask(Run(load, plan.warm_s, plan.measure_s, running.tools), Measured)
    behind_s = running.wait_quiet()
    used = {name: (cpu_s(pid) - before[name]) / measured.total * 1e6 for name, pid in running.pids.items()}
    rate = measured.calls / (measured.seconds + max(0.0, behind_s - ALWAYS_BEHIND_S))
    return Window(rate, used, measured.median_us, measured.p99_us)


def cell(contender: str, load: Load, rounds: list[Window]) -> Cell:
    """What the rounds of one contender under one load come to."""
    timed = [one for one in rounds if one.median_us]
    return Cell(
        contender,
        load,
        tuple(one.rate for one in rounds),
        _median_of_each([one.cpu_us for one in rounds]),
        tuple(one.median_us for one in timed),
        tuple(one.p99_us for one in timed),
    )


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _median_of_each(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(used[name] for used in rounds) for name in rounds[0]}

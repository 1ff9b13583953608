"""The table: every contender under every load, in interleaved rounds.

In each round all contenders are started anew, with empty ledgers; then one load after the other goes through all of
them in turn, beginning with another one each round. Neighbours in time are thus contenders under the same load.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from bench.children import Children, cpu_s
from bench.contenders import Contender, Running
from bench.loads import Load, Measured, Run
from bench.plan import LOADS, Plan, Stage
from bench.results import Cell

# Entries that nobody waits for gather for 10 ms and are then committed: so much is always on its way, at the beginning
# of a window and at its end.
ALWAYS_BEHIND_S: Final = 0.05


def measure(stage: Stage, contenders: Sequence[Contender]) -> tuple[Cell, ...]:
    """All cells of the table."""
    plan = stage.plan
    rates: dict[tuple[str, Load], list[float]] = {}
    cpu: dict[tuple[str, Load], list[dict[str, float]]] = {}
    for number in range(plan.rounds):
        with Children(stage.room(f"round-{number}")) as children:
            running = {contender.name: contender.start(children) for contender in contenders}
            stage.say(f"round {number + 1} of {plan.rounds}: {len(running)} contenders are up")
            for load in LOADS:
                for name in _rotated(list(running), number):
                    rate, used = run(running[name], load, plan)
                    rates.setdefault((name, load), []).append(rate)
                    cpu.setdefault((name, load), []).append(used)
                done = ", ".join(f"{name} {rates[name, load][-1]:,.0f}" for name in running)
                stage.say(f"round {number + 1} of {plan.rounds}, {load.title}, calls/s: {done}")
    return tuple(
        Cell(name, load, tuple(found), _median_of_each(cpu[name, load])) for (name, load), found in rates.items()
    )


def run(running: Running, load: Load, plan: Plan) -> tuple[float, dict[str, float]]:
    """Calls a second, and CPU µs for a call in each process.

    A contender that writes behind, and falls behind, is measured until the last of it is written: the rate is one that
    it could keep up.
    """
    before = {name: cpu_s(pid) for name, pid in running.pids.items()}
    measured = running.caller.ask(Run(load, plan.warm_s, plan.measure_s, running.tools), Measured)
    behind_s = running.wait_quiet()
    used = {name: (cpu_s(pid) - before[name]) / measured.total * 1e6 for name, pid in running.pids.items()}
    return measured.calls / (measured.seconds + max(0.0, behind_s - ALWAYS_BEHIND_S)), used


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def _median_of_each(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(used[name] for used in rounds) for name in rounds[0]}

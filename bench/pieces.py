"""CPU µs for a call, by piece: the pure pieces timed one by one, the processes of a live run beside them.

The pure path tells decoding, hub, ledger and encoding apart. The schema is checked inside the hub, timed by itself and
taken off the hub's share. What the live exchange uses beyond all that is sockets and the loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from bench import wire
from bench.children import Children
from bench.contenders import CONTENDERS, Contender
from bench.loads import KIB, Load, Texts
from bench.plan import TAKEN_APART, USUAL, Stage
from bench.pure_path import PurePath
from bench.ratios import run
from bench.results import Cell, Pieces
from trunkline import schemas
from trunkline.host.runner import FLUSH_EVERY


def measure(stage: Stage, cells: Sequence[Cell]) -> tuple[Pieces, ...]:
    """Of both kinds of call. The live figures are those of the table, if there is one."""
    found = []
    for contender in (one for one in CONTENDERS if one.name in {"read-only", "durable"}):
        live = _live(stage, contender, cells)
        for load in TAKEN_APART:
            pure = _pure(stage, contender, load)
            stage.say(f"{contender.title}, {load.title}: {sum(pure.values()):.1f} µs without sockets")
            others = dict(live[load])
            found.append(Pieces(contender.name, load, pure, others.pop("exchange"), others))
    return tuple(found)


def _pure(stage: Stage, contender: Contender, load: Load) -> dict[str, float]:
    path = PurePath(stage.room(f"pure-{contender.name}-{load.text_bytes}"), side_effects=contender.name == "durable")
    path.use(load)
    turns = stage.plan.piece_calls // FLUSH_EVERY // (1 if load.text_bytes < KIB else 10)
    for _ in range(turns // 4):
        path.turn()
    path.laps.clear()
    for _ in range(turns):
        path.turn()
    path.close()
    us = {piece: ns / 1000 / (turns * FLUSH_EVERY) for piece, ns in path.laps.items()}
    schema = _schema_us(load, turns)
    return {
        "decode": us["decode"],
        "schema": schema,
        "hub": us["hub"] - schema,
        "ledger": us["ledger"],
        "encode": us["encode"],
    }


def _schema_us(load: Load, turns: int) -> float:
    """The check of one input, as the hub makes it: the edge has read it."""
    validator = schemas.compile(msgspec.json.encode(wire.INPUT_SCHEMA))
    texts = Texts()
    texts.use(load)
    bodies = [msgspec.json.decode(texts.body()) for _ in range(FLUSH_EVERY)]
    begun = time.process_time_ns()
    for _ in range(turns):
        for body in bodies:
            assert validator.is_valid(body)
    return (time.process_time_ns() - begun) / 1000 / (turns * FLUSH_EVERY)


def _live(stage: Stage, contender: Contender, cells: Sequence[Cell]) -> dict[Load, dict[str, float]]:
    """CPU of each process for a call, by load."""
    found = {cell.load: cell.cpu_us for cell in cells if cell.contender == contender.name}
    if found:
        return found
    with Children(stage.room(f"live-{contender.name}")) as children:
        running = contender.start(children)
        run(running, USUAL, stage.plan)
        return {load: run(running, load, stage.plan).cpu_us for load in TAKEN_APART}

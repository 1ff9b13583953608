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
from bench.loads import Texts
from bench.plan import USUAL, Stage
from bench.pure_path import PurePath
from bench.ratios import run
from bench.results import Cell, Pieces
from trunkline import schemas
from trunkline.host.runner import FLUSH_EVERY


def measure(stage: Stage, cells: Sequence[Cell]) -> tuple[Pieces, ...]:
    """Of both kinds of call. The live figures are those of the table, if there is one."""
    found = []
    for contender in CONTENDERS:
        if contender.name not in {"read-only", "durable"}:
            continue
        pure = _pure(stage, contender)
        stage.say(f"pieces of {contender.title}: {sum(pure.values()):.1f} µs without sockets")
        live = dict(_live(stage, contender, cells))
        found.append(Pieces(contender.name, pure, live.pop("exchange"), live))
    return tuple(found)


def _pure(stage: Stage, contender: Contender) -> dict[str, float]:
    path = PurePath(stage.folder / f"pure-{contender.name}", side_effects=contender.name == "durable")
    path.use(USUAL)
    turns = stage.plan.piece_calls // FLUSH_EVERY
    for _ in range(turns // 4):
        path.turn()
    path.laps.clear()
    for _ in range(turns):
        path.turn()
    path.close()
    us = {piece: ns / 1000 / (turns * FLUSH_EVERY) for piece, ns in path.laps.items()}
    schema = _schema_us(stage.plan.piece_calls)
    return {
        "decode": us["decode"],
        "schema": schema,
        "hub": us["hub"] - schema,
        "ledger": us["ledger"],
        "encode": us["encode"],
    }


def _schema_us(calls: int) -> float:
    """The check of one input, as the hub makes it."""
    validator = schemas.compile(msgspec.json.encode(wire.INPUT_SCHEMA))
    texts = Texts()
    texts.use(USUAL)
    bodies = [msgspec.Raw(texts.body()) for _ in range(64)]
    begun = time.process_time_ns()
    for _ in range(calls // 64):
        for body in bodies:
            assert validator.error(body) is None
    return (time.process_time_ns() - begun) / 1000 / (calls // 64 * 64)


def _live(stage: Stage, contender: Contender, cells: Sequence[Cell]) -> dict[str, float]:
    for cell in cells:
        if (cell.contender, cell.load) == (contender.name, USUAL):
            return cell.cpu_us
    with Children(stage.room(f"live-{contender.name}")) as children:
        running = contender.start(children)
        run(running, USUAL, stage.plan)
        return run(running, USUAL, stage.plan)[1]

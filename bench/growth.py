"""What happens as things grow: agents from one to five hundred, the ledger to a million entries; and all at once.

Every rate is measured beside the bare relay's, one after the other in the same rounds.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from bench.children import Children
from bench.contenders import Running, attach_ends, start_ends, start_relay
from bench.exchange import Exchange
from bench.loads import Attach, Attached
from bench.plan import USUAL, Stage
from bench.pure_path import PurePath
from bench.ratios import run
from bench.results import Herd, Start, Step
from trunkline.entries import CallAccepted, CallSettled
from trunkline.ledger.ledger import Ledger

# Entries committed together while a history is written: what a busy exchange gathers in 10 ms is less.
_GROUP: Final = 1000


# --- agents -----------------------------------------------------------------------------------------------------------


def by_agents(stage: Stage) -> tuple[Step, ...]:
    """Read-only calls, 64 in flight, to the tools of more and more agents in turn."""
    steps: list[Step] = []
    with Children(stage.room("agents")) as children:
        relay = start_relay(children)
        exchange = Exchange(children, children.folder / "home")
        provider, caller = start_ends(children, "agents")
        caller.ask(Attach(exchange.socket, exchange.identities("bench.caller")), Attached)
        identities = exchange.identities(*(f"bench.agent-{number}" for number in range(max(stage.plan.agents))))
        attached = 0
        for size in stage.plan.agents:
            provider.ask(Attach(exchange.socket, identities[attached:size], tool="echo"), Attached)
            attached = size
            tools = tuple(f"{one.agent}/echo" for one in identities[:size])
            step = _step(stage, size, Running(caller, {}, tools, exchange.wait_quiet), relay)
            stage.say(f"{size} agents: {step.rates[0]:,.0f} calls/s")
            steps.append(step)
    return tuple(steps)


def _step(stage: Stage, size: int, running: Running, relay: Running) -> Step:
    rates: list[float] = []
    beside: list[float] = []
    for _ in range(stage.plan.growth_rounds):
        beside.append(run(relay, USUAL, stage.plan).rate)
        rates.append(run(running, USUAL, stage.plan).rate)
    return Step(size, tuple(rates), tuple(beside))


def herd(stage: Stage) -> Herd:
    """All agents connect at once, each says hello and offers a tool."""
    count = stage.plan.herd
    with Children(stage.room("herd")) as children:
        exchange = Exchange(children, children.folder / "home")
        provider, _ = start_ends(children, "herd")
        identities = exchange.identities(*(f"bench.agent-{number}" for number in range(count)))
        attached = provider.ask(Attach(exchange.socket, identities, tool="echo"), Attached)
        stage.say(f"{count} agents at once: all ready after {attached.ready_s:.2f} s")
        return Herd(count, attached.welcomed_s, attached.ready_s)


# --- the ledger -------------------------------------------------------------------------------------------------------


def by_entries(stage: Stage) -> tuple[tuple[Start, ...], dict[str, tuple[Step, ...]]]:
    """Start-up with ledgers of several sizes, and calls a second with each."""
    starts: list[Start] = []
    steps: dict[str, list[Step]] = {"read-only": [], "durable": []}
    folder = stage.room("entries")
    for size, home in _histories(stage, folder):
        with Children(stage.room(f"entries-{size}")) as children:
            file = home / "ledger.sqlite"
            file_bytes = file.stat().st_size if file.exists() else 0
            first = Exchange(children, home, "first")
            children.stop(first.child)
            exchange = Exchange(children, home)
            starts.append(Start(size, file_bytes, first.start_s, exchange.start_s))
            stage.say(
                f"start with {size:,} entries: {first.start_s:.2f} s folding all of them, "
                f"{exchange.start_s:.2f} s from a snapshot"
            )
            relay = start_relay(children)
            for name, found in steps.items():
                running = attach_ends(children, exchange, name, side_effects=name == "durable")
                found.append(_step(stage, size, running, relay))
                stage.say(f"{size:,} entries, {name}: {found[-1].rates[0]:,.0f} calls/s")
        shutil.rmtree(home)
    return tuple(starts), {name: tuple(found) for name, found in steps.items()}


def _histories(stage: Stage, folder: Path) -> Iterator[tuple[int, Path]]:
    """Homes whose ledgers hold nothing and so many entries: one history, copied as it grows."""
    yield 0, folder / "home-0"
    source = folder / "history"
    path = PurePath(source, side_effects=False)
    path.use(USUAL)
    path.turn()
    accepted = next(entry for entry in path.written if isinstance(entry, CallAccepted))
    settled = next(entry for entry in path.written if isinstance(entry, CallSettled))
    path.close()
    for size in stage.plan.entries:
        begun = time.monotonic()
        _extend(source, size, accepted, settled)
        stage.say(f"a history of {size:,} entries, written in {time.monotonic() - begun:.1f} s")
        yield size, Path(shutil.copytree(source, folder / f"home-{size}"))
    shutil.rmtree(source)


def _extend(home: Path, size: int, accepted: CallAccepted, settled: CallSettled) -> None:
    """Write calls like this one, through the real writer, until the ledger has ``size`` entries, or one less."""
    ledger = Ledger.open(home / "ledger.sqlite", home / "keys", loop=None, on_durable=lambda _: None, on_failure=_fail)
    for number in range(ledger.last + 1, size, 2):
        call_id = f"{accepted.call_id[:-12]}{number:012x}"
        ledger.append(replace(accepted, n=number, call_id=call_id))
        ledger.append(replace(settled, n=number + 1, call=number, call_id=call_id))
        if number % _GROUP < 2:
            ledger.flush()
    ledger.close()


def _fail(error: Exception) -> None:
    raise error

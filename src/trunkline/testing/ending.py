"""The end of a simulation, once nothing happens any more: everything is checked, counted and hashed.

Owns ``findings`` (promises, secrets, the fold of the record), ``forgetting`` (the same after retention removed what is
old) and the hash of the ledger. Does not own what each promise means: that is ``promises``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import apsw

from trunkline import events
from trunkline.entries import Entry
from trunkline.errors import LedgerError
from trunkline.hub.hub import Hub
from trunkline.hub.state import TAINT_MS, Mark, State
from trunkline.ledger import export
from trunkline.ledger.reader import Reader
from trunkline.ledger.store import as_ledger_error, open_for_reading
from trunkline.ledger.verify import verify
from trunkline.testing import console, nostr, ossa, pylon, run_promises, topics, work_promises
from trunkline.testing.exchange import Setup
from trunkline.testing.policies import OPEN, POLICIES
from trunkline.testing.promises import Breach, Promises, Record, secrets_in
from trunkline.testing.world import World

# In the order of their making, each by its key.
TABLES = {
    "entries": "n",
    "settled": "call",
    "keys": "key_id",
    "correlations": "correlation, n",
    "steps": "subject, n",
    "blobs": "sha256",
    "uses": "sha256",
    "held": "n",
    "held_blobs": "name",
    "snapshots": "n",
    "meta": "name",
}
# What is sealed has keys that are no part of what a seed repeats (``ledger.writer``): only its size is.
SEALED = {"held": "n, call, expires, length(data)", "held_blobs": "name, expires, length(data)"}


def findings(world: World, complaints: Sequence[str]) -> Iterator[Breach]:
    """Everything that is not as it should be, in a world that has fallen silent."""
    yield from (Breach(text) for text in world.witness.defects)
    yield from (Breach(f"the exchange complained: {text}") for text in complaints)
    exchange = world.exchange
    assert exchange is not None
    hub = exchange.hub
    if exchange.ledger.backlog:
        yield Breach(f"{exchange.ledger.backlog} entries never reached the disk")
    # One for an agent whose last ordinary calls have just ended is let ring.
    watched = sum(agent.alarm_at > 0 for agent in hub.registry.agents.values())
    if len(hub.timers) > len(hub.state.questions) + watched:
        yield Breach(f"{len(hub.timers)} alarms are set, for {len(hub.state.questions)} questions and no call")
    # What had expired once is in no snapshot, even if the wall clock was set back since.
    now_ms = int(max(world.latest_wall, world.clock.wall) * 1000)
    live = dump(hub.state, now_ms)
    still_waiting = [] if world.pylon is None else pylon.waiting(world.pylon)
    world.end(power_loss=False)
    yield from _record_is_whole(world.setup, live, now_ms)
    reader = Reader(world.setup.path, world.setup.keys, vfs=world.setup.disk.vfs)
    try:
        record = Record(reader)
        if world.console is not None:
            yield from console.breaches(world.console, reader)
    finally:
        reader.close()
    policies = {policy.version: policy for policy in (*POLICIES, OPEN)}
    yield from Promises(world.witness, record, policies, world.tools).breaches()
    yield from work_promises.breaches(world.witness, record)
    yield from run_promises.breaches(world.witness, record)
    if world.topics is not None:
        yield from topics.breaches(world.topics, record)
    if world.ossa is not None:
        yield from ossa.breaches(world.ossa, record)
    if world.nostr is not None:
        yield from nostr.breaches(world.nostr, record)
    yield from (Breach(text) for text in still_waiting)
    for canary in secrets_in(world.setup.disk.folder, world.canaries):
        yield Breach(f"a secret can be read in the files: {canary}")


def _record_is_whole(setup: Setup, live: dict[str, object], now_ms: int, *, is_whole: bool = True) -> Iterator[Breach]:
    """The chain holds, and its fold is the state that was live: from the last snapshot, and from the first entry."""
    try:
        verify(setup.path, vfs=setup.disk.vfs)
    except LedgerError as exc:
        yield Breach(f"the record does not verify: {exc}")
        return
    reader = Reader(setup.path, setup.keys, vfs=setup.disk.vfs)
    try:
        states = {"recovery": _folded(setup, reader.recovery(), now_ms)}
        if is_whole:
            numbers = range(1, reader.head()[0] + 1)
            entries = (entry for number in numbers if (entry := reader.entry(number, original=True)) is not None)
            states["the fold of all entries"] = _folded(setup, entries, now_ms)
        for how, state in states.items():
            for name, value in state.items():
                if value != live[name]:
                    yield Breach(f"{how} gives other {name} than were live: {value} instead of {live[name]}")
    finally:
        reader.close()


def _folded(setup: Setup, remembered: Iterable[Entry], now_ms: int) -> dict[str, object]:
    hub = Hub(
        mac_key=setup.keys.mac_key,
        call_prefix="",
        new_id=setup.new_id,
        operator_sha256="",
        launch_edge="opensentience",
        operator_edge="http",
        settings=setup.settings,
    )
    hub.fold(remembered)
    return dump(hub.state, now_ms)


def forgetting(world: World) -> Iterator[Breach]:
    """Retention, once there is nothing left to hold the record against: what it removes, nobody needs.

    The exchange starts once more, closes everything old, loses its power, and starts from what is left.
    """
    setup = world.setup
    world.start_exchange()
    world.loop.run_for(0.05)
    world.wait_for_disk()
    exchange = world.exchange
    assert exchange is not None
    exchange.snapshot()
    world.wait_for_disk()
    closing = exchange.ledger.close_part(setup.now().ms + 1, exchange.hub.state.open_entries(setup.now().ms))
    if closing is not None:
        exchange.runner.feed([events.PartClosed(closing.first, closing.last, closing.head, closing.kept)])
    world.wait_for_disk()
    now_ms = setup.now().ms
    live = dump(exchange.hub.state, now_ms)
    if exchange.ledger.backlog:
        yield Breach(f"{exchange.ledger.backlog} entries never reached the disk")
    world.end(power_loss=True)
    yield from _record_is_whole(setup, live, now_ms, is_whole=False)


def dump(state: State, now_ms: int) -> dict[str, object]:
    """What must be equal after any fold that has all it needs. Secrets apart: what is masked is masked for good."""
    return {
        "last": state.last,
        "calls": {
            call_id: ("sent" if call.attempt else call.status.value, call.attempt, call.approval_id, call.trail)
            for call_id, call in state.calls.items()
        },
        "questions": {name: (list(q.calls), q.trail) for name, q in state.questions.items()},
        "directives": sorted(name for name, d in state.directives.items() if d.expires_ms > now_ms),
        "subscriptions": sorted(state.subscriptions),
        "owed": {number: list(event.to) for number, event in state.owed.items()},
        "tokens": sorted(state.tokens),
        "revoked": sorted(state.revoked),
        "grants": {name: grant.permissions for name, grant in state.grants.items()},
        "pins": {name: pin.fingerprint for name, pin in state.pins.items()},
        "processes": {key: [step.n for step in steps] for key, steps in state.processes.items()},
        **labels(state, now_ms),
    }


def labels(state: State, now_ms: int) -> dict[str, object]:
    """What a state knows of text by strangers and of the clock, as far as it still counts."""

    def counting(marks: Mapping[str, Mark]) -> dict[str, Mark]:
        return {name: mark for name, mark in marks.items() if mark[1] + TAINT_MS > now_ms}

    tainted_by = {receiver: counting(marks) for receiver, marks in state._tainted_by.items()}  # noqa: SLF001  (nobody else needs them)
    return {
        "tainted": counting(state.tainted),
        "tainted agents": counting(state.tainted_agents),
        "tainted by": {receiver: marks for receiver, marks in tainted_by.items() if marks},
        "forgotten": counting(state._forgotten),  # noqa: SLF001
        # Small ones are not put on record.
        "jumps": [jump.n for jump in state.jumps if jump.n and state.age_ms(jump.to_ms, now_ms) < TAINT_MS],
    }


def ledger_sha256(setup: Setup) -> str:
    """A hash of every row of the ledger, but for what is sealed with keys that nobody repeats."""
    hasher = hashlib.sha256()
    connection = open_for_reading(setup.path, setup.disk.vfs)
    try:
        for table, key in TABLES.items():
            columns = SEALED.get(table, "*")
            for row in connection.execute(f"SELECT {columns} FROM {table} ORDER BY {key}"):  # noqa: S608 - from above
                hasher.update(repr(row).encode())
    except apsw.Error as exc:
        raise as_ledger_error(exc) from exc
    finally:
        connection.close()
    return hasher.hexdigest()


def on_record(setup: Setup, calls: Sequence[str]) -> list[str]:
    """What the ledger has of these calls, as it is stored."""
    told = []
    try:
        reader = Reader(setup.path, setup.keys, vfs=setup.disk.vfs)
        try:
            for call_id in calls:
                entries = [data.decode() for data in export.entry_lines(reader, call_id=call_id)]
                told += [f"on record of {call_id}:", *(f"  {entry}" for entry in entries or ["nothing"])]
        finally:
            reader.close()
    except LedgerError as exc:
        told.append(f"the record cannot be read: {exc}")
    return told


def figures(world: World) -> dict[str, int]:
    """How much happened."""
    witness = world.witness
    return {
        "runs": world.setup.runs,
        "crashes": witness.crashes,
        "requests": len(witness.requests),
        "executions": len(witness.executions),
        "told": len(witness.outcomes),
        "agents": len(world.agents),
        "runs of spaces": len(witness.runs),
        "works": len(witness.works),
        "events that were told": 0 if world.topics is None else len(world.topics.told),
        "messages of OSSA": 0 if world.ossa is None else sum(len(one.asked) for one in world.ossa.callers),
        "entries that pages were told": 0 if world.console is None else sum(one.at for one in world.console.pages),
        "requests to codex": 0 if world.pylon is None else world.pylon.count,
        "requests of strangers": 0 if world.nostr is None else len(world.nostr.requests),
        "results of works": sum(len(work.results) for work in witness.works),
    }

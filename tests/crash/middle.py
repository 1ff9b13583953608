"""Hub, runner and ledger in this process, on a disk of the test's choice; and a seeded load for them.

The real ``Runner`` carries effects out, so that its rule is under test: what waits for an entry leaves after that entry
was synced. Everything that leaves is remembered with the moment, counted in operations of the disk.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from msgspec import Raw

from trunkline import effects, events
from trunkline.edges.exchange import BaseSink
from trunkline.errors import LedgerError
from trunkline.host.reading import NoIndex, Reading
from trunkline.host.runner import Runner
from trunkline.hub.hub import Hub
from trunkline.hub.invariants import check
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.masking import Masker
from trunkline.model import (
    OPERATOR,
    Decision,
    HubSettings,
    Now,
    Peer,
    Policy,
    Principal,
    Rule,
    Status,
    ToolDefinition,
)

KEYS = LedgerKeys(bytes(range(32)), os.urandom)
BOSS = Principal(OPERATOR)
WORKER, DEDUPER = "com.test.worker", "com.test.deduper"
POLICY = Policy(
    (Rule("asks", "*", "*/ask", Decision.ASK), Rule("all", "*", "*", Decision.ALLOW)),
    "crash",
)
TOOLS = {
    WORKER: {"read": False, "write": True, "ask": True},
    DEDUPER: {"pay": True},
}
# Above this a body is stored beside its entry.
LARGE = b'{"text":"' + b"lorem ipsum " * 6000 + b'"}'
SECRET = b'{"password":"hunter2","n":%d}'
PLAIN = b'{"text":"lorem ipsum dolor sit amet","n":%d}'


class Left(NamedTuple):
    """Something that left: after how many steps of the disk, and what."""

    step: int
    what: effects.ToSession


class _NoTimers:
    """The load is shorter than any timer of the hub."""

    def call_later(self, _seconds: float, _callback: Callable[[], None]) -> _NoTimers:
        return self

    def cancel(self) -> None:
        pass


class Middle(BaseSink):
    """One exchange without its rims. ``left`` and ``shown`` are what the world outside got to know."""

    def __init__(
        self, path: Path, vfs: str, *, steps: Callable[[], int] = lambda: 0, run: int = 1, start: bool = True
    ) -> None:
        self._steps = steps
        self.left: list[Left] = []
        self.shown: list[tuple[int, str, Status]] = []
        self.failures: list[LedgerError] = []
        self.dead: list[str] = []
        self.sessions: dict[str, int] = {}
        self._refs = itertools.count(1)
        self.ledger = Ledger.open(
            path,
            path.parent,
            loop=None,
            on_durable=self._durable,
            on_failure=self._failed,
            vfs=vfs,
            keys=KEYS,
        )
        ids = itertools.count(1)
        self.hub = Hub(
            mac_key=self.ledger.mac_key,
            call_prefix=f"{run:08x}-0000-8000-8000-",
            new_id=lambda: f"id-{next(ids)}",
            operator_sha256="operator",
            launch_edge="opensentience",
            operator_edge="http",
            settings=HubSettings(POLICY),
        )
        try:
            self.hub.fold(self.ledger.reader.recovery())
        except LedgerError:
            self.ledger.close()
            raise
        self.hub.stored(self.ledger.durable)
        nobody: Any = _NoTimers()
        self.runner = Runner(
            self.hub,
            self.ledger,
            Masker(),
            nobody,
            nobody,
            instance="here",
            fatal=self.dead.append,
        )
        self.views = Reading(self.runner, self.ledger.reader, nobody, NoIndex())
        self.desk = self.runner.open_session(self)
        if start:
            self.start()

    def _durable(self, number: int) -> None:
        self.runner.on_durable(number)

    def _failed(self, error: LedgerError) -> None:
        self.failures.append(error)
        self.runner.on_failure(error)

    # -- the rim: a sink for every session -----------------------------------------------------------------------------

    def send(self, effect: effects.ToSession, _now: Now) -> None:
        self.left.append(Left(self._steps(), effect))

    # -- what happens --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up what was open."""
        self.feed(events.ExchangeStarted("1", "here"))
        self.ledger.flush()

    def feed(self, *happened: events.Event) -> None:
        self.runner.feed(happened)
        if not self.dead:
            check(self.hub)

    def ref(self) -> str:
        return f"r{next(self._refs)}"

    def attach(self, agent_id: str, *, new_token: bool = False) -> None:
        """An agent with a standing token comes and offers its tools."""
        if new_token:
            self.feed(events.TokenIssued(self.desk, self.ref(), BOSS, "opensentience", agent_id, f"token-{agent_id}"))
        session = self.sessions[agent_id] = self.runner.open_session(self)
        self.feed(
            events.AgentArrived(
                session,
                self.ref(),
                "opensentience",
                agent_id,
                "1.0",
                f"token-{agent_id}",
                Peer("here"),
                dedupes=agent_id == DEDUPER,
            )
        )
        offered = tuple(
            ToolDefinition(f"{agent_id}/{name}", "a tool", Raw(b'{"type":"object"}'), side_effects=harmful)
            for name, harmful in TOOLS[agent_id].items()
        )
        self.feed(events.ToolsOffered(session, self.ref(), offered))

    def call(self, tool_id: str, body: bytes, key: str | None = None) -> None:
        self.feed(events.CallRequested(self.desk, self.ref(), BOSS, tool_id, Raw(body), key))

    def finish(self, delivered: effects.Deliver, body: bytes) -> None:
        self.feed(events.CallFinished(delivered.session, delivered.call_id, Status.SUCCEEDED, Raw(body)))

    def take_snapshot(self) -> None:
        through = self.hub.state.last
        _, digest = self.ledger.snapshot(self.hub.state.open_entries(self.runner.now().ms))
        self.feed(events.SnapshotTaken(through, digest))

    def close_part(self) -> None:
        """Retention: everything up to now is too old."""
        now = self.runner.now().ms
        closing = self.ledger.close_part(now + 1, self.hub.state.open_entries(now))
        if closing is not None:
            self.feed(closing)

    def look(self) -> None:
        """Somebody looks at all calls: what they are told counts as said."""
        step = self._steps()
        for view in self.views.calls(500, None)[0]:
            one = self.views.call(view.call_id)
            self.shown += [(step, seen.call_id, seen.status) for seen in (view, one) if seen and seen.status.is_outcome]

    def open_deliveries(self) -> list[effects.Deliver]:
        """What was handed to an agent that is still there, and has no outcome."""
        return [
            left.what
            for left in self.left
            if isinstance(left.what, effects.Deliver) and left.what.call_id in self.hub.state.calls
        ]

    def stop(self) -> None:
        """A clean stop."""
        self.take_snapshot()
        self.feed(events.ExchangeStopped())
        self.ledger.close()

    def abandon(self) -> None:
        """The process is gone: nothing more is written, and its descriptors are closed."""
        self.ledger._closed = True
        self.ledger.reader.close()
        self.ledger._link.abandon()


def load(middle: Middle, rng: Random, rounds: int) -> None:
    """Calls of all kinds, and what goes with them. Ends as it stands: calls are open and entries gather."""
    for agent_id in TOOLS:
        middle.attach(agent_id, new_token=not middle.hub.state.tokens or agent_id == DEDUPER)
    for _ in range(rounds):
        if middle.dead:
            return
        one_thing(middle, rng)
        if rng.random() < 0.3:
            middle.look()
        if rng.random() < 0.4:
            middle.ledger.flush()


def one_thing(middle: Middle, rng: Random) -> None:
    dice = rng.random()
    number = rng.randrange(1_000_000)
    if dice < 0.5:
        agent_id = rng.choice((WORKER, WORKER, WORKER, DEDUPER))
        tool = rng.choice(sorted(TOOLS[agent_id]))
        body = LARGE if rng.random() < 0.05 else rng.choice((PLAIN % number, PLAIN % number, SECRET % number))
        middle.call(f"{agent_id}/{tool}", body, rng.choice((None, None, f"key-{number}")))
    elif dice < 0.87:
        running = middle.open_deliveries()
        if running:
            middle.finish(rng.choice(running), rng.choice((PLAIN % number, PLAIN % number, SECRET % number)))
    elif dice < 0.94:
        for question in middle.views.questions()[:1]:
            middle.feed(
                events.ApprovalAnswered(middle.desk, middle.ref(), BOSS, question.approval_id, rng.random() < 0.7)
            )
    elif dice < 0.97:
        middle.take_snapshot()
    else:
        middle.close_part()

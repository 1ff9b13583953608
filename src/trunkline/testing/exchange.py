"""One run of the real exchange on a fake clock, disk and network: started from a ledger, killed or stopped.

The same parts as ``host.up`` joins (``Runner``, ``Hub``, ``Ledger`` with its ``Writer``, ``Edges``), in one thread. The
writer is no process here: a group takes fake time to reach it and its answer takes time to come back, so that a crash
can fall between. Which edges there are, and what of each is simulated, ``edges`` says.

Invariant: nothing random in it but what ``Random`` it is given.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from trunkline import events
from trunkline.config import Config
from trunkline.edges.edge import Edge
from trunkline.errors import InvariantBroken, LedgerError
from trunkline.host.assembly import Plan, assemble
from trunkline.host.edges import Edges
from trunkline.host.runner import Processes, Runner
from trunkline.hub import invariants
from trunkline.hub.hub import Hub
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.link import Blob
from trunkline.ledger.masking import Masker
from trunkline.ledger.reader import Reader
from trunkline.ledger.writer import Writer
from trunkline.model import HubSettings, Now, ProcessIdentity, Status
from trunkline.testing.clock import ManualLoop, ProcessLoop, Timer
from trunkline.testing.disk import FaultyDisk
from trunkline.testing.network import Network
from trunkline.testing.tasks import TaskLoop

LEDGER: Final = "ledger.sqlite"
# A quick disk, and one that makes everybody wait: some runs of the exchange have it all the time, others now and then.
COMMIT_S: Final = (0.0002, 0.004)
SLOW_COMMIT_S: Final = (0.05, 2.0)
SLOW_SHARES: Final = (0.0, 0.02, 0.1, 0.8)
# As in ``host.up`` and the rim.
DRAIN_S: Final = 10.0
LAST_WORDS_S: Final = 1.0
# Each edge takes a moment to say goodbye.
STOP_S: Final = 30.0
PROCESS: Final = ProcessIdentity(1, 1)


class PowerCut(SystemExit):
    """The process ends here, in the middle of whatever it does. Nothing else gets through a task of asyncio."""


class Setup:
    """What outlives a run of the exchange: the machine, and what its operator configured."""

    def __init__(self, loop: ManualLoop, network: Network, rng: Random, processes: Processes, secret: bytes) -> None:
        self.loop = loop
        self.network = network
        self.rng = rng
        self.processes = processes
        self.keys = LedgerKeys(secret, rng.randbytes)
        self.secrets: list[tuple[str, str]] = []
        self.operator_sha256 = ""
        self.edges: Sequence[Edge] = ()
        self.config = Config()
        self.backlog = (2048, 8192)
        self.settings: HubSettings
        self.disk = FaultyDisk(rng.getrandbits(32))
        self.runs = 0
        # Between the machine's clock and that of the loop: another one after each boot.
        self.booted = 0.0
        self.ids = 0

    @property
    def path(self) -> Path:
        """The record."""
        return self.disk.path(LEDGER)

    def now(self) -> Now:
        """Both clocks of the machine."""
        clock = self.loop.clock
        return Now(clock.mono - self.booted, clock.wall)

    def new_id(self) -> str:
        """An id that nobody had before."""
        self.ids += 1
        return f"00000000-0000-4000-8000-{self.ids:012x}"


class SlowLink:
    """The way to the writer and back, in fake time. ``heard`` is told when an answer arrives."""

    def __init__(self, writer: Writer, loop: ProcessLoop, rng: Random, heard: Callable[[], None]) -> None:
        self.last = writer.last
        self._writer = writer
        self._loop = loop
        self._rng = rng
        self._heard = heard
        self._slow_share = rng.choice(SLOW_SHARES)
        self._next: Timer | None = None
        self._step: Callable[[], None] | None = None

    def listen(self, on_durable: Callable[[int], None], on_failure: Callable[[LedgerError], None]) -> None:
        """Who hears the answers."""
        self._on_durable = on_durable
        self._on_failure = on_failure

    def send(self, group: bytes, blobs: Sequence[Blob]) -> None:
        """A group is on its way."""
        kept = list(blobs)
        self._then(lambda: self._commit(group, kept))

    def _then(self, step: Callable[[], None]) -> None:
        self._step = step
        latency = SLOW_COMMIT_S if self._rng.random() < self._slow_share else COMMIT_S
        self._next = self._loop.call_later(self._rng.uniform(*latency) / 2, self._go)

    def _go(self) -> None:
        step, self._step, self._next = self._step, None, None
        if step is not None:
            step()

    def _commit(self, group: bytes, blobs: Sequence[Blob]) -> None:
        try:
            last = self._writer.commit(group, blobs)
        except LedgerError as exc:
            failed = exc
            self._then(lambda: self._on_failure(failed))
            return
        self._then(lambda: self._answer(last))
        try:
            self._writer.rest()
        except LedgerError as exc:
            self.cut()
            self._on_failure(exc)

    def _answer(self, last: int) -> None:
        self._heard()
        self._on_durable(last)

    def send_secret(self, name: str, secret: str) -> None:
        """Mask this from here on."""
        self._writer.add_secret(name, secret)

    def poll(self) -> None:
        """The next step may be done by now, in the middle of the exchange's own work."""
        if self._step is not None and self._rng.random() < 0.5:
            self._hurry()

    def wait(self) -> None:
        """Until the group that was sent is answered."""
        while self._step is not None:
            self._hurry()

    def _hurry(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._go()

    def cut(self) -> None:
        """Nothing more comes through."""
        if self._next is not None:
            self._next.cancel()
        self._step = self._next = None

    def close(self) -> None:
        """Checkpoint and close the file."""
        self._writer.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self.cut()
        self._writer.abandon()


class KillableRunner(Runner):
    """The real runner, in a process that can be killed."""

    def kill(self) -> None:
        """From here on nothing happens any more, whatever tasks of this exchange still say."""
        self._dead = True


class SimulatedExchange:
    """One process of the exchange. ``LedgerError`` if it cannot start."""

    def __init__(self, setup: Setup) -> None:
        setup.runs += 1
        self._setup = setup
        self.loop = TaskLoop(setup.loop, self._defect)
        # Why it died by itself, if it did, with the stack of it.
        self.died: str | None = None
        self.stack = ""
        # Whether every edge has started.
        self.is_up = False
        self._edges = Edges(setup.edges, {})
        writer = Writer(setup.path, setup.keys, Masker(), vfs=setup.disk.vfs)
        # How much was done to the disk when the last answer of the writer was heard: all of that has to last.
        self._promised = len(setup.disk.steps)
        self._link = SlowLink(writer, self.loop, setup.rng, self._heard)
        try:
            reader = Reader(setup.path, setup.keys, vfs=setup.disk.vfs)
        except LedgerError:
            self._link.abandon()
            raise
        self.ledger = Ledger(
            self._link,
            reader,
            setup.keys,
            lock=None,
            loop=self.loop.as_asyncio,
            on_durable=self._on_durable,
            on_failure=self._on_failure,
        )
        for name, secret in setup.secrets:
            self.ledger.add_secret(name, secret)
        plan = Plan(
            settings=setup.settings,
            config=setup.config,
            home=Path("/nowhere"),
            version="0.0.0",
            instance=f"run-{setup.runs}",
            process=PROCESS,
            operator_sha256=setup.operator_sha256,
            launch_edge=self._edges.launch_edge,
            operator_edge=self._edges.operator_edge,
            call_prefix=f"{setup.runs:08x}-0000-8000-a000-",
            new_id=setup.new_id,
            masked=setup.secrets,
            entropy=setup.rng.randbytes,
            stopwatch=setup.loop.time,
        )
        try:
            parts = assemble(self.ledger, self._edges, setup.processes, plan, self._make_runner)
        except LedgerError:
            self._let_go()
            raise
        self.hub, self.views = parts.hub, parts.views

    def _make_runner(self, hub: Hub, masker: Masker) -> KillableRunner:
        setup = self._setup
        self.runner = KillableRunner(
            hub,
            self.ledger,
            masker,
            setup.processes,
            self.loop,
            instance=f"run-{setup.runs}",
            fatal=self._fatal,
            clock=setup.now,
            backlog=setup.backlog,
        )
        return self.runner

    def start_edges(self, up: Callable[[], None]) -> None:
        """Start all edges, as time passes; ``up`` is told when all have."""

        def started(task: asyncio.Task[None]) -> None:
            error = task.exception()
            if error is None:
                self.is_up = True
                up()
            elif not isinstance(error, PowerCut):
                self.stack = "".join(traceback.format_exception(error))
                self.died = self.died or f"an edge did not start: {error!r}"

        self.loop.create_task(self._edges.start()).add_done_callback(started)

    def _defect(self, error: BaseException) -> None:
        self.runner.failed(0, error)

    def _heard(self) -> None:
        self._promised = len(self._setup.disk.steps)

    def _on_durable(self, number: int) -> None:
        self.runner.on_durable(number)

    def _on_failure(self, error: LedgerError) -> None:
        self.runner.on_failure(error)

    def _fatal(self, why: str) -> None:
        self.died = why
        self.stack = "" if sys.exc_info()[0] is None else traceback.format_exc()

    def check(self) -> None:
        """``InvariantBroken`` if the hub contradicts itself."""
        if self.died is None:
            invariants.check(self.hub)

    def snapshot(self) -> None:
        """Store the open state, as the exchange does from time to time."""
        state = self.hub.state
        through = state.last
        _, sha256 = self.ledger.snapshot(state.open_entries(self._setup.now().ms))
        self.runner.feed([events.SnapshotTaken(through, sha256)])

    def kill(self, *, power_loss: bool) -> None:
        """The process is gone; with ``power_loss`` so is what the disk had not promised to keep."""
        setup = self._setup
        setup.network.server_died()
        self.abandon()
        if power_loss:
            # A commit that nobody heard of may have been under way: the power goes at any of its steps.
            at = setup.rng.randint(self._promised, len(setup.disk.steps))
            old, setup.disk = setup.disk, setup.disk.crash(setup.rng, at=at)
            old.close()
            setup.booted = setup.loop.time() - setup.rng.uniform(1.0, 100.0)
        setup.disk.heal()

    def abandon(self) -> None:
        """Let go of the file as a process does that ends: nothing more is written."""
        self.runner.kill()
        self._let_go()

    def _let_go(self) -> None:
        self.loop.kill()
        self._link.abandon()
        self.ledger.reader.close()

    def stop(self) -> bool:
        """The orderly end: what runs may finish, everybody hears of it, the record is closed. False if it died."""
        loop = self._setup.loop
        ending = self.loop.create_task(self._take_down())
        give_up_at = loop.time() + DRAIN_S + STOP_S
        while not ending.done() and self.died is None and loop.time() < give_up_at:
            loop.run_for(0.02)
        if ending.done():
            ending.result()
        elif self.died is None:
            raise InvariantBroken("the exchange does not stop")
        if self.died is not None:
            self.abandon()
            return False
        self.snapshot()
        self.runner.feed([events.ExchangeStopped()])
        try:
            self.ledger.close()
        finally:
            self.abandon()
        return True

    async def _take_down(self) -> None:
        """As ``host.up`` does it."""
        self.runner.feed([events.DrainStarted()])
        await self._wait_idle(DRAIN_S)
        await self._edges.stop()
        await self._wait_idle(LAST_WORDS_S)
        await self._edges.stop_last()

    async def _wait_idle(self, seconds: float) -> None:
        deadline = self.loop.time() + seconds
        while self._is_busy() and self.died is None and self.loop.time() < deadline:  # noqa: ASYNC110  (as host.up)
            await asyncio.sleep(0.02)

    def _is_busy(self) -> bool:
        running = any(call.status is Status.RUNNING for call in self.hub.state.calls.values())
        return running or self.runner.is_waiting_for_disk

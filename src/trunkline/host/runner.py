"""Event to hub, entry to ledger, effect to session: the one loop through which everything travels.

Owns the order: entries are appended in the order the hub wrote them, an effect leaves when the entry it waits for is on
disk, and what was gathered for a connection is written every few events. It is the ``edges.exchange.Exchange`` that
rims are given. Does not decide anything.

Invariant: no effect with ``after`` n is handed to a sink before ``on_durable`` said n.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from trunkline import entries, events
from trunkline.edges.exchange import Sink, WatchSink
from trunkline.effects import Answer, Progress, ToSession
from trunkline.entries import CallAccepted, CallSettled, Entry, ProcessStep
from trunkline.errors import LedgerError, LocalProtocolError
from trunkline.events import CallRequested, Event
from trunkline.hub import views
from trunkline.hub.hub import Hub
from trunkline.hub.state import Call
from trunkline.ledger import export
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.masking import Masker
from trunkline.ledger.reader import call_number
from trunkline.model import (
    AgentView,
    CallView,
    Guard,
    Now,
    Peer,
    Policy,
    Principal,
    Question,
    Router,
    Status,
    TokenView,
    ToolView,
    Verdict,
)

log = logging.getLogger("trunkline")

# Writing each frame by itself costs a system call a frame; one write a turn lets all calls in flight move as a wave,
# and the other core idles.
FLUSH_EVERY: Final = 8
# Entries not on disk at which reading from peers stops, and at which it starts again.
BACKLOG_HIGH: Final = 8192
BACKLOG_LOW: Final = 2048
# And in bytes: of large bodies so many entries would be half a gigabyte.
BACKLOG_BYTES: Final = 33_554_432


class Alarm(Protocol):
    """Something that will be done later."""

    def cancel(self) -> None:
        """Do not do it."""


class Loop(Protocol):
    """What the runner needs of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Alarm:
        """Do this in so many seconds."""


class Processes(Protocol):
    """What the runner asks about launched agents: the supervisor, or a test's idea of one."""

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Who a connecting local process is."""

    def views(self) -> list[AgentView]:
        """What is to be said of each agent's process."""


def both_clocks() -> Now:
    """The machine's clocks."""
    return Now(time.monotonic(), time.time())


class Runner:
    """The exchange's loop. ``now`` is asked for both clocks; ``backlog`` is where reading starts again, and stops."""

    def __init__(
        self,
        hub: Hub,
        ledger: Ledger,
        masker: Masker,
        supervisor: Processes,
        loop: Loop,
        *,
        instance: str,
        fatal: Callable[[str], None],
        reload: Callable[[], None],
        now: Callable[[], Now] = both_clocks,
        backlog: tuple[int, int] = (BACKLOG_LOW, BACKLOG_HIGH),
    ) -> None:
        self.instance = instance
        self.now = now
        self.hub = hub
        self._supervisor = supervisor
        self._ledger = ledger
        self._reader = ledger.reader
        self._masker = masker
        self._loop = loop
        self._fatal = fatal
        self._reload = reload
        self._sinks: dict[int, Sink] = {}
        self._last_session = 0
        self._held: deque[tuple[int, ToSession]] = deque()
        self._dirty: dict[int, Sink] = {}
        self._timer: Alarm | None = None
        self._timer_at = 0.0
        self._watchers: list[WatchSink] = []
        self._is_feeding = False
        self._waiting: deque[Event] = deque()
        self._dead = False
        self._is_refusing = False
        self._paused = False
        self._backlog_low, self._backlog_high = backlog
        self.started = now().wall

    # -- the loop ------------------------------------------------------------------------------------------------------

    def feed(self, happened: Sequence[Event]) -> None:
        """Hand events to the hub and carry out what follows.

        A sink may feed again while it is sent something; such events wait, so that the hub never meets itself.
        """
        if self._dead:
            if self._is_refusing:
                self._refuse(happened)
            return
        if self._is_feeding:
            self._waiting.extend(happened)
            return
        self._is_feeding = True
        now = self.now()
        try:
            self._take(happened, now)
            while self._waiting:
                self._take((self._waiting.popleft(),), now)
        except Exception as exc:  # noqa: BLE001  (the boundary: after half a step only a fold brings the hub back)
            self._die(f"{type(exc).__name__} in {where_raised(exc)}")
            return
        finally:
            self._is_feeding = False
        self._flush()
        self._set_timer(now)
        if not self._paused and (
            self._ledger.backlog > self._backlog_high or self._ledger.backlog_bytes > BACKLOG_BYTES
        ):
            self._pause(paused=True)

    def _take(self, happened: Sequence[Event], now: Now) -> None:
        handle, ledger = self.hub.handle, self._ledger
        count = 0
        for fed in happened:
            event = fed
            if type(fed) is CallRequested and fed.key is not None:
                event = self._with_earlier(fed)
            for effect in handle(event, now):
                if isinstance(effect, Entry):
                    ledger.append(effect)
                    if self._watchers:
                        self._show(entries.encode(effect))
                elif effect.after <= ledger.durable:
                    self._send(effect, now)
                else:
                    self._hold(effect)
            count += 1
            if count == FLUSH_EVERY:
                count = 0
                self._flush()
                if self._held:
                    # Else the disk would rest until the last of these events is done.
                    ledger.poll()
                    if self._dead:
                        return

    def _hold(self, effect: ToSession) -> None:
        """Let an effect wait for its entry, and behind all that wait already."""
        after = effect.after
        if self._held:
            after = max(after, self._held[-1][0])
        self._held.append((after, effect))
        self._ledger.need(after)

    def _send(self, effect: ToSession, now: Now) -> None:
        sink = self._sinks.get(effect.session)
        if sink is None:
            return
        try:
            sink.send(effect, now)
        except LocalProtocolError as exc:
            log.warning("session %d could not be told of %s: %s", effect.session, type(effect).__name__, exc)
        self._dirty[effect.session] = sink
        if self._watchers and type(effect) is Progress:
            self._show(_progress_line(effect))

    def on_durable(self, number: int) -> None:
        """Entries up to ``number`` are on disk: what waited for them leaves."""
        self.hub.stored(number)
        held = self._held
        if held and held[0][0] <= number:
            now = self.now()
            count = 0
            while held and held[0][0] <= number:
                self._send(held.popleft()[1], now)
                count += 1
                if count == FLUSH_EVERY:
                    count = 0
                    self._flush()
            self._flush()
        if self._paused and self._ledger.backlog < self._backlog_low and self._ledger.backlog_bytes < BACKLOG_BYTES:
            self._pause(paused=False)

    @property
    def is_waiting_for_disk(self) -> bool:
        """Whether something will leave as soon as its entry is on disk."""
        return bool(self._held)

    def on_failure(self, error: LedgerError) -> None:
        """The record cannot be written: nothing more is acknowledged, new calls are refused, and the process ends."""
        self._held.clear()
        self._waiting.clear()
        if not self._dead:
            self.hub.handle(events.StorageChanged(low=True, failed=True), self.now())
            self._is_refusing = True
        self._die(f"the ledger failed: {error}")

    def _refuse(self, happened: Sequence[Event]) -> None:
        """Who still asks hears no. Nothing else leaves: the hub goes on in memory only, and ends with the process."""
        now = self.now()
        for event in happened:
            if type(event) is CallRequested:
                for effect in self.hub.handle(event, now):
                    if isinstance(effect, Answer) and effect.refused:
                        self._send(effect, now)
        self._flush()

    def _die(self, why: str) -> None:
        if not self._dead:
            self._dead = True
            log.critical("%s; stopping. The next start recovers from the ledger.", why)
            self._fatal(why)

    def _flush(self) -> None:
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for sink in dirty.values():
                sink.flush()

    def _set_timer(self, now: Now) -> None:
        at = self.hub.wake_at()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - now.mono), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.feed([events.Woke()])

    def _pause(self, *, paused: bool) -> None:
        """The disk is behind: let the sockets fill, and the peers wait, rather than this process's memory grow."""
        self._paused = paused
        for sink in list(self._sinks.values()):
            if paused:
                sink.pause_reading()
            else:
                sink.resume_reading()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def open_session(self, sink: Sink) -> int:
        """A number for a new conversation."""
        self._last_session += 1
        self._sinks[self._last_session] = sink
        return self._last_session

    def close_session(self, session: int) -> None:
        """Forget a conversation."""
        self._sinks.pop(session, None)
        self._dirty.pop(session, None)

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Who a connecting local process is."""
        return self._supervisor.peer_of(pid, uid)

    def guard(self, agent_id: str, guard: Guard | None) -> None:
        """Ask this before a tool of an agent that is part of the exchange is called."""
        self.hub.guard(agent_id, guard)

    def route(self, agent_id: str, router: Router | None) -> None:
        """Let other tools serve calls of the tools of an agent that is part of the exchange."""
        self.hub.route(agent_id, router)

    # -- what memory misses --------------------------------------------------------------------------------------------

    def _with_earlier(self, event: CallRequested) -> CallRequested:
        key_id = self.hub.key_to_look_up(event)
        if key_id is None:
            return event
        found = self._reader.by_key(key_id)
        if found is None or found[1] is None:
            return event
        return msgspec.structs.replace(event, earlier=events.Earlier(found[0], found[1]))

    def call(self, call_id: str) -> CallView | None:
        """One call, open or settled."""
        view = views.call(self.hub, call_id)
        if view is not None:
            return view
        number = call_number(call_id)
        found = None if number is None else self._reader.call(number)
        if found is None or found[0].call_id != call_id:
            return None
        return _stored_view(*found)

    def calls(
        self, limit: int, before: int | None, correlation_id: str | None = None
    ) -> tuple[list[CallView], int | None]:
        """Calls, newest first, and where the next page starts. What is not on disk yet comes from memory."""
        if correlation_id is None:
            stored, following = self._reader.calls_page(before, limit)
        else:
            numbers = [n for n in self._reader.by_correlation(correlation_id) if before is None or n < before]
            found = [self._reader.call(n) for n in reversed(numbers)]
            stored, following = [pair for pair in found if pair is not None], None
        views_by_number = {accepted.n: _stored_view(accepted, settled) for accepted, settled in stored}
        in_memory = views.calls_in_memory(self.hub, correlation_id)
        views_by_number.update((number, view) for number, view in in_memory if before is None or number < before)
        newest = sorted(views_by_number, reverse=True)
        shown = newest[:limit]
        return [views_by_number[n] for n in shown], shown[-1] if len(newest) > limit else following

    # -- reading -------------------------------------------------------------------------------------------------------

    def identify(self, edge: str, token_sha256: str) -> Principal | None:
        """Whose standing token this is."""
        return self.hub.credentials.identify(edge, token_sha256)

    def agents(self) -> list[AgentView]:
        """All agents, launched or attached."""
        found = {agent.agent_id: views.agent(self.hub, agent) for agent in self.hub.registry.agents.values()}
        for run in self._supervisor.views():
            attached = found.get(run.agent_id)
            if attached is None:
                found[run.agent_id] = run
            else:
                found[run.agent_id] = msgspec.structs.replace(
                    attached, pid=run.pid, run_id=run.run_id, restarts=run.restarts, note=run.note
                )
        return [found[agent_id] for agent_id in sorted(found)]

    def tools(self) -> list[ToolView]:
        """All tools."""
        return views.tools(self.hub, self.now())

    def questions(self) -> list[Question]:
        """The open questions."""
        return self.hub.approvals.views()

    def tokens(self) -> list[TokenView]:
        """The standing credentials."""
        return views.tokens(self.hub)

    def policy(self) -> Policy:
        """The rules in force."""
        return self.hub.in_force.settings.policy

    def check(self, caller: str, tool_id: str, body: Raw | None) -> Verdict:
        """What would happen to such a call."""
        return views.dry_run(self.hub, caller, tool_id, body, self.now())

    def blob(self, sha256: str) -> bytes | None:
        """A large body by its hash."""
        return self._reader.blob(sha256)

    def entries(self, *, call_id: str | None = None, correlation_id: str | None = None) -> list[bytes]:
        """The masked entries of a call or a correlation."""
        return list(export.replay(self._reader, call_id=call_id, correlation=correlation_id))

    def open_steps(self, process: str) -> dict[str, list[ProcessStep]]:
        """What is on record of the subjects of a process that are not done."""
        found = self.hub.state.processes.items()
        return {subject: list(steps) for (name, subject), steps in found if name == process}

    def steps(self, process: str, subject: str) -> list[ProcessStep]:
        """What is on record of one subject."""
        found = (self._reader.entry(number) for number in self._reader.steps(subject))
        return [entry for entry in found if isinstance(entry, ProcessStep) and entry.process == process]

    def status(self) -> dict[str, object]:
        """Figures for a person and for /metrics."""
        return {
            "instance": self.instance,
            "uptime_s": round(self.now().wall - self.started, 3),
            "entries": self.hub.state.last,
            "entries_on_disk": self._ledger.durable,
            "backlog": self._ledger.backlog,
            "sessions": len(self._sinks),
            **views.figures(self.hub),
        }

    def reload(self) -> None:
        """Read the configuration again."""
        self._reload()

    # -- looking on ----------------------------------------------------------------------------------------------------

    def watch(self, sink: WatchSink) -> None:
        """Hand every entry and progress to ``sink``."""
        self._watchers.append(sink)

    def unwatch(self, sink: WatchSink) -> None:
        """Stop handing them over."""
        if sink in self._watchers:
            self._watchers.remove(sink)

    def _show(self, line: bytes) -> None:
        masked = self._masker.mask(line)
        for watcher in list(self._watchers):
            watcher(masked)


def _stored_view(accepted: CallAccepted, settled: CallSettled | None) -> CallView:
    if settled is not None:
        return views.settled_call(accepted, settled)
    return views.open_call(Call(accepted, Status.RUNNING))


def _progress_line(effect: Progress) -> bytes:
    return msgspec.json.encode(
        {
            "kind": "progress",
            "call_id": effect.call_id,
            "seq": effect.seq,
            "channel": effect.channel,
            "data": effect.data,
        }
    )


def where_raised(exc: BaseException) -> str:
    """Where an exception came from, without its text: that may hold a payload."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"

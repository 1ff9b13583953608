"""Event to hub, entry to ledger, effect to session: the one loop through which everything travels.

Owns the order: entries are appended in the order the hub wrote them, an effect leaves when the entry it waits for is on
disk, and what was gathered for a connection is written every few events. Owns the guard around conversations: what a
sink raises ends that conversation and nothing else (decision 47). It is the ``edges.exchange.Feed`` that edges are
given. Does not decide anything.

Invariant: no effect with ``after`` n is handed to a sink before ``on_durable`` said n. Only what the hub or the ledger
raises ends the exchange: after half a step of theirs only a fold brings the hub back.
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
from trunkline.edges.exchange import Sink, Timer, Watcher
from trunkline.effects import Answer, Deliver, Progress, ToSession
from trunkline.entries import CallAccepted, CallSettled, Entry, EventPublished, QuestionOpened
from trunkline.errors import LedgerError, LocalProtocolError, where_raised
from trunkline.events import CallRequested, Event
from trunkline.hub.hub import Hub
from trunkline.hub.state import JUMP_MS
from trunkline.ledger.masking import Masker
from trunkline.ledger.sensitive import hashed
from trunkline.model import Fault, Guard, Now, Peer, Principal, Router, Status, fault, is_told_of, tool_agent
from trunkline.shown import AgentView

log = logging.getLogger("trunkline")

# Writing each frame by itself costs a system call a frame; one write a turn lets all calls in flight move as a wave,
# and the other core idles.
FLUSH_EVERY: Final = 8
# Entries not on disk at which reading from peers stops, and at which it starts again.
BACKLOG_HIGH: Final = 8192
BACKLOG_LOW: Final = 2048
# Bytes not on disk at which reading stops as well: of large bodies so many entries would be half a gigabyte.
BACKLOG_BYTES: Final = 33_554_432
# The wall clock went so much further than time: it was set.
JUMP_S: Final = JUMP_MS / 1000


class Loop(Protocol):
    """What the runner needs of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Do this in so many seconds."""


class Processes(Protocol):
    """What the runner asks about launched agents: the supervisor, or a test's idea of one."""

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Who a connecting local process is."""

    def views(self) -> list[AgentView]:
        """What is to be said of each agent's process."""

    def tool_raised(self, agent_id: str, exception: str) -> None:
        """A tool of this agent failed with an exception of this type."""


class Record(Protocol):
    """Where entries go: the ledger, or a test's idea of one."""

    # Entries up to this number are on disk.
    durable: int
    # By how much the wall clock is ahead of the time that the exchange lived through.
    unlived_ms: int

    @property
    def backlog(self) -> int:
        """Entries on their way to the disk."""

    @property
    def backlog_bytes(self) -> int:
        """Their bytes."""

    def by_key(self, key_id: str) -> tuple[CallAccepted, CallSettled | None] | None:
        """The call that used a key first, and its outcome, if it is on disk."""

    def append(self, entry: Entry) -> None:
        """One more entry."""

    def need(self, number: int) -> None:
        """Somebody waits for this one."""

    def poll(self) -> None:
        """Hear from the disk now, in the middle of a long turn."""


def both_clocks() -> Now:
    """The machine's clocks."""
    return Now(time.monotonic(), time.time())


class Runner:
    """The exchange's loop. ``clock`` is asked for both clocks; ``backlog`` is where reading starts again, and stops."""

    def __init__(
        self,
        hub: Hub,
        ledger: Record,
        masker: Masker,
        processes: Processes,
        loop: Loop,
        *,
        instance: str,
        fatal: Callable[[str], None],
        clock: Callable[[], Now] = both_clocks,
        backlog: tuple[int, int] = (BACKLOG_LOW, BACKLOG_HIGH),
    ) -> None:
        self.instance = instance
        self.now = clock
        self.hub = hub
        self._processes = processes
        self._ledger = ledger
        self._masker = masker
        self._loop = loop
        self._fatal = fatal
        self._sinks: dict[int, Sink] = {}
        self._last_session = 0
        # What leaves when its entry is on disk: effects, and what ``when_stored`` was given.
        self._held: deque[tuple[int, ToSession | Callable[[], None]]] = deque()
        # Defects that ended a conversation, by their place.
        self._defects: dict[str, int] = {}
        self._dirty: dict[int, Sink] = {}
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._watchers: list[Watcher] = []
        # What they are shown when the entry of this number is on disk, in order: entries, and lines between them.
        self._unshown: deque[tuple[int, Entry | bytes]] = deque()
        # The last piece of progress that watchers were shown.
        self._shown: Raw | None = None
        self._is_feeding = False
        self._waiting: deque[Event | Callable[[], None]] = deque()
        self._dead = False
        self._is_refusing = False
        self._paused = False
        self._backlog_low, self._backlog_high = backlog
        started = clock()
        self.started = started.wall
        # Between the two clocks. It drifts by less than a second in half an hour; what moves it more is a jump.
        self._clock_offset = started.wall - started.mono

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
            # Before anything is judged by it.
            ahead_s = now.wall - now.mono - self._clock_offset
            if ahead_s > JUMP_S or ahead_s < -JUMP_S:
                self._clock_jumped(ahead_s, now)
            self._take(happened, now)
            while self._waiting:
                waiting = self._waiting.popleft()
                if isinstance(waiting, Event):
                    self._take((waiting,), now)
                else:
                    self._tell_stored(waiting)
        except Exception as exc:  # noqa: BLE001  (the hub's or the ledger's: what conversations raise is caught below)
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

    def _clock_jumped(self, ahead_s: float, now: Now) -> None:
        self._clock_offset += ahead_s
        log.info("the clock was set: it is %+.0f s from where it was", ahead_s)
        if ahead_s > 0:
            self._take((events.ClockJumped(int(ahead_s * 1000)),), now)
        self.mind_the_clock(now)

    def mind_the_clock(self, now: Now) -> None:
        """Tell the record how much of the time that passed by the wall clock does not count."""
        self._ledger.unlived_ms = self.hub.state.unlived_ms(now.ms)

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
                    if type(effect) is CallSettled and effect.fault is not None:
                        self._tell_processes(effect, effect.fault)
                    # A question also for those who come to watch before it is on disk: they do not find it open yet.
                    if self._watchers or type(effect) is QuestionOpened:
                        self._unshown.append((effect.n, effect))
                elif effect.after <= ledger.durable:
                    self._send(effect, now)
                else:
                    self._hold(effect.after, effect)
            count += 1
            if count == FLUSH_EVERY:
                count = 0
                self._flush()
                if self._held:
                    # Else the disk would rest until the last of these events is done.
                    ledger.poll()
                    if self._dead:
                        return

    def _tell_processes(self, entry: CallSettled, why: Fault) -> None:
        exception, settled = (why.details or {}).get("exception"), self.hub.state.recent.get(entry.call_id)
        if why.code == "tool.failed" and isinstance(exception, str) and exception and settled is not None:
            self._processes.tool_raised(tool_agent(entry.provider or settled.accepted.tool_id), exception)

    def _hold(self, after: int, what: ToSession | Callable[[], None]) -> None:
        """Let something wait for an entry, and behind all that wait already."""
        if self._held:
            after = max(after, self._held[-1][0])
        self._held.append((after, what))
        self._ledger.need(after)

    def _send(self, effect: ToSession, now: Now) -> None:
        # One piece is said to each who waits for its call, perhaps to nobody any more; who looks on is shown it once.
        if self._watchers and type(effect) is Progress and effect.data is not self._shown:
            self._shown = effect.data
            if self._unshown:
                self._unshown.append((self._unshown[-1][0], _progress_line(effect)))
            else:
                self._show(_progress_line(effect))
        sink = self._sinks.get(effect.session)
        if sink is None:
            return
        # Before it is told: what it hears may be the end of it.
        self._dirty[effect.session] = sink
        try:
            sink.send(effect, now)
        except LocalProtocolError as exc:
            log.warning("session %d could not be told of %s: %s", effect.session, type(effect).__name__, exc)
        except Exception as exc:  # noqa: BLE001  (the boundary of a conversation)
            self.failed(effect.session, exc)

    def on_durable(self, number: int) -> None:
        """Entries up to ``number`` are on disk: what waited for them leaves."""
        self.hub.stored(number)
        # First: what waits for the disk below may look for what was shown.
        while self._unshown and self._unshown[0][0] <= number:
            shown = self._unshown.popleft()[1]
            if self._watchers:
                self._show(shown if isinstance(shown, bytes) else _entry_line(shown))
        held = self._held
        if held and held[0][0] <= number:
            now = self.now()
            count = 0
            while held and held[0][0] <= number:
                what = held.popleft()[1]
                if type(what) is Deliver and what.call_id not in self.hub.state.calls:
                    continue  # given up meanwhile: nobody knows of it, and nobody wants it any more
                if isinstance(what, ToSession):
                    self._send(what, now)
                else:
                    self._tell(what)
                count += 1
                if count == FLUSH_EVERY:
                    count = 0
                    self._flush()
            self._flush()
        if self._paused and self._ledger.backlog < self._backlog_low and self._ledger.backlog_bytes < BACKLOG_BYTES:
            self._pause(paused=False)

    def answer_overdue(self) -> None:
        """The disk does not answer: tell those whose time is over what is true without it (decision 51)."""
        now, kept = self.now(), deque[tuple[int, ToSession | Callable[[], None]]]()
        overdue: list[Answer] = []
        for after, what in self._held:
            if type(what) is Answer and what.deadline and what.deadline <= now.mono:
                overdue.append(what)
            else:
                kept.append((after, what))
        self._held = kept
        for answer in overdue:
            self._send(self._without_record(answer), now)
        self._flush()

    def _without_record(self, answer: Answer) -> Answer:
        """What may be said of a call while its outcome is not on record: after a crash it may be another one."""
        settled = self.hub.state.recent.get(answer.call_id)
        has_effects = settled is None or settled.accepted.side_effects
        text = "the disk does not answer, so that the outcome is not on record"
        return msgspec.structs.replace(
            answer,
            status=Status.UNKNOWN if has_effects else Status.FAILED,
            output=None,
            large=None,
            fault=fault("hub.unavailable", text, retryable=not has_effects),
        )

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call this in so many seconds."""
        return self._loop.call_later(delay_s, lambda: self._tell(callback))

    def when_stored(self, told: Callable[[], None]) -> None:
        """Call ``told`` once everything that was fed up to now is on disk."""
        if self._is_feeding:
            # What was fed in the middle of a turn has no number yet: this waits behind it.
            self._waiting.append(told)
        else:
            self._tell_stored(told)

    def _tell_stored(self, told: Callable[[], None]) -> None:
        last = self.hub.state.last
        if last <= self._ledger.durable:
            self._tell(told)
        else:
            self._hold(last, told)

    def _tell(self, told: Callable[[], None]) -> None:
        try:
            told()
        except Exception as exc:  # noqa: BLE001  (the boundary of a conversation)
            self.failed(0, exc)

    @property
    def is_waiting_for_disk(self) -> bool:
        """Whether something will leave as soon as its entry is on disk."""
        return bool(self._held)

    def held_answer(self, session: int, ref: str) -> Answer | None:
        """The answer to this request, if there is one that waits for the disk. Looked for when an edge closes."""
        for _, what in self._held:
            if isinstance(what, Answer) and (what.session, what.ref) == (session, ref) and not what.refused:
                return what
        return None

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
            for session, sink in dirty.items():
                try:
                    sink.flush()
                except Exception as exc:  # noqa: BLE001  (the boundary of a conversation)
                    self.failed(session, exc)

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
        for session, sink in list(self._sinks.items()):
            try:
                if paused:
                    sink.pause_reading()
                else:
                    sink.resume_reading()
            except Exception as exc:  # noqa: BLE001  (the boundary of a conversation)
                self.failed(session, exc)

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

    def failed(self, session: int, error: BaseException) -> None:
        """End one conversation, in which a defect of ours was met, and put the defect and its place on record."""
        if self._dead:
            return
        place = where_raised(error)
        what = f"{type(error).__name__} at {place}"
        count = self._defects[what] = self._defects.get(what, 0) + 1
        sink = self._sinks.pop(session, None)
        self._dirty.pop(session, None)
        happened: list[Event] = []
        # Whoever found a defect must not fill the disk with it.
        if is_told_of(count):
            ended = " The conversation in which it was met was ended." if session else ""
            log.error("a defect: %s (%d so far).%s", what, count, ended)
            happened.append(events.Noticed("defect", place, detail=f"{type(error).__name__}, {count} so far"))
        if sink is not None:
            happened.append(events.AgentLeft(session, "defect"))
        self.feed(happened)
        if sink is not None:
            try:
                sink.abort()
            except Exception as exc:  # noqa: BLE001  (the boundary of a conversation)
                log.error("a conversation could not be closed: %s", where_raised(exc))  # noqa: TRY400  (no text)

    def identify(self, edge: str, token_sha256: str) -> Principal | None:
        """Whose standing token this is."""
        return self.hub.credentials.identify(edge, token_sha256)

    def offer_refused(self, agent: str, tools: int) -> Fault | None:
        """Why a list of so many tools of this agent would be refused unseen, if it would."""
        return self.hub.agents.offer_refused(agent, tools, self.now())

    def write_refused(self, identity: str) -> Fault | None:
        """Why nothing more may be begun for an identity for which so much was written within an hour."""
        return self.hub.exchange.write_refused(identity, self.now())

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Who a connecting local process is."""
        return self._processes.peer_of(pid, uid)

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
        found = self._ledger.by_key(key_id)
        if found is None or found[1] is None:
            return event
        return msgspec.structs.replace(event, earlier=events.Earlier(found[0], found[1]))

    # -- looking on ----------------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Hand every entry and progress to ``watcher``, each entry once it is on disk."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop handing them over."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def _show(self, line: bytes) -> None:
        try:
            masked = self._masker.mask(line)
        except Exception as exc:  # noqa: BLE001  (a line that cannot be masked is not shown)
            self.failed(0, exc)
            return
        for watcher in list(self._watchers):
            try:
                watcher(masked)
            except Exception as exc:  # noqa: BLE001  (the boundary of a conversation)
                self.unwatch(watcher)
                self.failed(0, exc)

    def figures(self) -> dict[str, object]:
        """How the loop is doing."""
        return {
            "instance": self.instance,
            "uptime_s": round(self.now().wall - self.started, 3),
            "entries": self.hub.state.last,
            "entries_on_disk": self._ledger.durable,
            "backlog": self._ledger.backlog,
            "sessions": len(self._sinks),
            "defects": sum(self._defects.values()),
        }


def _entry_line(entry: Entry) -> bytes:
    line = entries.encode(entry)
    is_hashed = isinstance(entry, CallAccepted | CallSettled | EventPublished) and entry.sensitive
    return hashed(line) if is_hashed else line


def _progress_line(effect: Progress) -> bytes:
    line = msgspec.json.encode(
        {
            "kind": "progress",
            "call_id": effect.call_id,
            "seq": effect.seq,
            "channel": effect.channel,
            "data": effect.data,
        }
    )
    return hashed(line) if effect.sensitive else line

"""The exchange itself: started, draining, short of room, under other settings; and what others want on record.

Owns changes of what is in force: the settings, and whether new calls are taken on. Does not judge a call (``judging``)
or a question (``control``).
"""

from __future__ import annotations

from typing import Final

from trunkline import entries, events
from trunkline.hub.alarms import Alarms
from trunkline.hub.calls import Calls
from trunkline.hub.control import Control
from trunkline.hub.in_force import InForce
from trunkline.hub.interruptions import Interruptions
from trunkline.hub.journal import Journal
from trunkline.hub.limits import ENTRY_BYTES, Loads
from trunkline.hub.registry import Registry
from trunkline.hub.state import CLOCK_JUMPED, RECORDED_JUMP_MS, body_size
from trunkline.hub.topics import Topics
from trunkline.model import Fault, Now, Status, fault, is_told_of, tool_agent

# Of the same code about the same peer so many remarks are all on record; so many kinds are told apart.
ALL_NOTICED: Final = 100
MAX_NOTICED: Final = 4096


class ExchangeEvents:
    """One method for each event about the exchange as a whole: where to look when it starts, stops or is set anew."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        loads: Loads,
        calls: Calls,
        interruptions: Interruptions,
        alarms: Alarms,
        control: Control,
        topics: Topics,
        in_force: InForce,
    ) -> None:
        # How often something was noticed, by its code and whom it is about.
        self._noticed: dict[tuple[str, str], int] = {}
        self._journal = journal
        self._state = journal.state
        self._registry = registry
        self._loads = loads
        self._calls = calls
        self._interruptions = interruptions
        self._alarms = alarms
        self._control = control
        self._topics = topics
        self._in_force = in_force
        # Why no new calls are taken on follows from these, of which only the last two can change back.
        self._storage_failed = self._is_draining = self._storage_stalled = self._storage_low = False

    def exchange_started(self, event: events.ExchangeStarted, now: Now) -> None:
        """Take up what was open: what ran is lost, what was not sent waits for its tool, questions go on."""
        off_ms = now.ms - self._state.last_at
        if self._state.last_at and off_ms >= RECORDED_JUMP_MS:
            # Nobody can tell whether it was off for so long or the clock was set meanwhile.
            self._note_jump(off_ms, "since the last entry", now)
        self._journal.write(
            entries.ExchangeStarted(n=self._journal.next, at=now.ms, version=event.version, instance=event.instance)
        )
        self._control.policy_in_force(now)
        for call in self._state.calls.values():
            self._loads.take(call.entry.caller, call.size + call.beside)
            if call.entry.expires_ms is not None:
                call.expires_at = now.mono + (call.entry.expires_ms / 1000 - now.wall)
        self._control.take_up(now)
        self._topics.take_up()
        for call in list(self._state.calls.values()):
            if call.status is Status.RUNNING:
                self._registry.left_behind(tool_agent(call.served_by), call, now.mono)
                self._interruptions.lost(call, now)
            elif call.status is Status.QUEUED:
                self._calls.send_or_wait(call, now)
            else:
                self._alarms.set(call)

    def drain_started(self, _event: events.DrainStarted, _now: Now) -> None:
        """No new calls from here on."""
        self._is_draining = True
        self._close_or_open()

    def exchange_stopped(self, _event: events.ExchangeStopped, now: Now) -> None:
        """Write the last entry: how many calls are left for the next start."""
        self._journal.write(entries.ExchangeStopped(n=self._journal.next, at=now.ms, open_calls=len(self._state.calls)))

    def settings_changed(self, event: events.SettingsChanged, now: Now) -> None:
        """Other rules, limits or settings are in force."""
        before, self._in_force.settings = self._in_force.settings, event.settings
        if event.settings.policy.version != before.policy.version:
            self._control.policy_in_force(now)
            self._control.judge_questions_anew(now)
        self._control.release_unpinned(now)

    def storage_changed(self, event: events.StorageChanged, _now: Now) -> None:
        """Short of room, or stalled, new calls are refused and open ones may finish; a failed disk ends it."""
        self._storage_failed = self._storage_failed or event.failed
        self._storage_stalled, self._storage_low = event.stalled, event.low
        self._close_or_open()

    def _close_or_open(self) -> None:
        trouble = "the disk does not answer" if self._storage_stalled else ""
        if self._storage_failed:
            trouble = "the record cannot be written"
        self._in_force.storage_trouble = trouble
        if trouble:
            self._in_force.closed = fault("hub.unavailable", trouble)
        elif self._is_draining:
            self._in_force.closed = fault("hub.unavailable", "the exchange is stopping")
        else:
            low = fault("limit.resource", "the disk is nearly full")
            self._in_force.closed = low if self._storage_low else None

    def clock_jumped(self, event: events.ClockJumped, now: Now) -> None:
        """The wall clock was set ahead: what is forgotten after a time is not forgotten for that."""
        if event.ahead_ms >= RECORDED_JUMP_MS:
            self._note_jump(event.ahead_ms, "ahead", now)
        else:
            self._state.jumped(event.ahead_ms, now.ms)

    def _note_jump(self, ahead_ms: int, how: str, now: Now) -> None:
        detail = f"{ahead_ms} ms {how}"
        self._journal.write(
            entries.Noticed(n=self._journal.next, at=now.ms, code=CLOCK_JUMPED, place="host", detail=detail)
        )

    def noticed(self, event: events.Noticed, now: Now) -> None:
        """An edge or the host saw something that should be on record: of the same often enough only now and then."""
        what = (event.code, event.who)
        count = self._noticed.pop(what, 0) + 1
        self._noticed[what] = count
        if len(self._noticed) > MAX_NOTICED:
            del self._noticed[next(iter(self._noticed))]
        # A stranger must not be able to fill the disk: after the first hundred the 1,000th, the 10,000th …
        if count > ALL_NOTICED and not is_told_of(count):
            return
        self._journal.write(
            entries.Noticed(
                n=self._journal.next,
                at=now.ms,
                code=event.code,
                place=event.place,
                who=event.who,
                detail=event.detail[:256],
            )
        )

    def write_refused(self, identity: str, now: Now) -> Fault | None:
        """Why an edge may begin nothing more for this identity: too much was written for it within an hour."""
        return self._loads.try_write(identity, self._in_force.settings.limits, now.mono) if identity else None

    def process_stepped(self, event: events.ProcessStepped, now: Now) -> None:
        """What an edge keeps of a run or task; its reply comes when it is on disk. What has begun may always go on."""
        size = ENTRY_BYTES + body_size(event.data)
        if event.caller and (event.process, event.subject) not in self._state.processes:
            limits = self._in_force.settings.limits
            problem = self._loads.try_write(event.caller, limits, now.mono, size)
            if problem is not None:
                self._journal.reply(event.session, event.ref, 0, problem=problem)
                return
        number = self._journal.write(
            entries.ProcessStep(
                n=self._journal.next,
                at=now.ms,
                process=event.process,
                subject=event.subject,
                step=event.step,
                data=event.data,
                done=event.done,
            )
        )
        if event.caller:
            self._loads.wrote(event.caller, size)
        self._journal.reply(event.session, event.ref, number, named=event.subject, status=event.step)

    def snapshot_taken(self, event: events.SnapshotTaken, now: Now) -> None:
        """The open state is about to be stored."""
        self._journal.write(
            entries.SnapshotTaken(n=self._journal.next, at=now.ms, through=event.through, sha256=event.sha256)
        )

    def part_closed(self, event: events.PartClosed, now: Now) -> None:
        """Old entries are about to be removed."""
        self._journal.write(
            entries.PartClosed(
                n=self._journal.next, at=now.ms, first=event.first, last=event.last, head=event.head, kept=event.kept
            )
        )

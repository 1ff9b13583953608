"""The middle of Trunkline: ``handle(event, now)`` gives effects. Which method takes which event, and who is told what.

Whether a call may be made is ``judging``; the life of an accepted call is ``calls`` and ``interruptions``; questions
are ``approvals``; durable state is ``state`` (the fold of the ledger). No sockets, clock, files or randomness: ids come
from ``new_id``, time comes with each event.

Invariant: everything that changes durable state is an entry, and an effect that depends on it carries its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from trunkline import effects, entries, events
from trunkline.effects import Effect
from trunkline.events import CallFinished, CallRequested, Event
from trunkline.hub.accepting import Terms, accepted_entry
from trunkline.hub.agents import Agents
from trunkline.hub.alarms import Alarms
from trunkline.hub.approvals import Approvals
from trunkline.hub.calls import Calls, waits_for_disk
from trunkline.hub.control import Control
from trunkline.hub.credentials import Credentials
from trunkline.hub.exchange import ExchangeEvents
from trunkline.hub.idempotency import KEY_LIFE_MS, Fingerprints
from trunkline.hub.in_force import InForce
from trunkline.hub.interruptions import Interruptions
from trunkline.hub.journal import Journal
from trunkline.hub.judging import Case, Judging, Refusal
from trunkline.hub.labels import Labels
from trunkline.hub.lanes import Lanes
from trunkline.hub.limits import ENTRY_BYTES, Loads
from trunkline.hub.policy import Judge
from trunkline.hub.registry import Registry
from trunkline.hub.routing import Routing
from trunkline.hub.state import Call, Route, Settled, State, held_beside
from trunkline.hub.timers import AlarmKey, OfBreaker, OfQuestion, Timers
from trunkline.hub.topics import Topics
from trunkline.model import (
    Decision,
    Guard,
    HubSettings,
    LargeOutput,
    Now,
    Principal,
    Router,
    Status,
    fault,
)

# A look into an enum takes 70 ns, and each call looks a dozen times.
ASK: Final = Decision.ASK
RUNNING: Final = Status.RUNNING
# Nothing that a lane rests on changes with these.
KEEP_LANES: Final = frozenset(
    {
        events.CallProgressed,
        events.CancelRequested,
        events.CancelAcknowledged,
        events.CallerLeft,
        events.ProcessStepped,
        events.Noticed,
        events.SubscriptionRequested,
        events.SubscriptionEnded,
        events.SubscriberArrived,
        events.SubscriberLeft,
        events.EventPublished,
        events.WordsPassed,
        events.EventTaken,
        events.EventGivenUp,
    }
)
# Words of one agent about calls that are not its own or not open which are put on record.
MAX_IGNORED: Final = 1000
# Requests that may wait for one call under its key; each costs memory that no other limit counts.
MAX_WAITERS: Final = 1024


class Hub:
    """One exchange's decisions.

    ``mac_key`` is the exchange's secret for hashes of keys and inputs; ``call_prefix`` begins the id of every call of
    this run, ``new_id`` makes all other ids. The operator's token is known by its hash and taken on ``operator_edge``;
    agents that the host launched come in by ``launch_edge``.
    """

    def __init__(
        self,
        *,
        mac_key: bytes,
        call_prefix: str,
        new_id: Callable[[], str],
        operator_sha256: str,
        launch_edge: str,
        operator_edge: str,
        settings: HubSettings,
    ) -> None:
        self.in_force = in_force = InForce(settings)
        self.state = state = State()
        self.registry = registry = Registry()
        self.timers: Timers[AlarmKey] = Timers()
        self.loads = loads = Loads()
        self.journal = journal = Journal(state)
        self.fingerprints = fingerprints = Fingerprints(mac_key)
        self.credentials = credentials = Credentials(
            state, operator_sha256, launch_edge=launch_edge, operator_edge=operator_edge
        )
        self.judge = judge = Judge(in_force, registry, credentials)
        self.routing = routing = Routing(registry, judge)
        self.approvals = approvals = Approvals(journal, self.timers, in_force)
        self.alarms = alarms = Alarms(state, registry, self.timers)
        self.calls = calls = Calls(journal, registry, loads, approvals, alarms, in_force, judge, routing)
        self.interruptions = interruptions = Interruptions(journal, registry, calls, alarms, judge, routing)
        self.agents = Agents(
            journal,
            registry,
            loads,
            calls,
            interruptions,
            approvals,
            credentials,
            judge,
            routing,
            self.timers,
            in_force,
        )
        self.control = control = Control(
            journal, registry, calls, approvals, credentials, fingerprints, judge, in_force, new_id
        )
        self.judging = Judging(
            state, registry, loads, calls, approvals, fingerprints, judge, control, routing, in_force
        )
        self.lanes = Lanes(state, registry, loads, calls, alarms, self.judging, fingerprints, in_force, call_prefix)
        self.labels = labels = Labels(journal, loads, calls, in_force, self.lanes.close)
        self.topics = topics = Topics(journal, judge, loads, in_force, new_id, labels)
        self.exchange = ExchangeEvents(
            journal, registry, loads, calls, interruptions, alarms, control, topics, in_force
        )
        self.refused: dict[str, int] = {}
        self._call_prefix = call_prefix
        self._new_id = new_id
        self._shortcuts: dict[type[Event], Callable[[Any, Now], Sequence[Effect] | None]] = {
            events.CallRequested: self.lanes.try_accept,
            events.CallFinished: self.lanes.try_settle,
        }
        self._handlers: dict[type[Event], Callable[[Any, Now], None]] = {
            events.CallRequested: self._call_requested,
            events.CallFinished: self._call_finished,
            events.CallProgressed: self._call_progressed,
            events.AttemptFailed: self._attempt_failed,
            events.CancelRequested: self._cancel_requested,
            events.CancelAcknowledged: self._cancel_acknowledged,
            events.CallerLeft: self._caller_left,
            events.AgentLaunched: self.agents.launched,
            events.AgentStopping: self.agents.stopping,
            events.AgentExited: self.agents.exited,
            events.AgentArrived: self.agents.arrived,
            events.AgentLeft: self._agent_left,
            events.HealthReported: self.agents.health_reported,
            events.ToolsOffered: self.agents.tools_offered,
            events.ToolsWithdrawn: self.agents.tools_withdrawn,
            events.AgentRemoved: self.control.agent_removed,
            events.ApprovalAnswered: self.control.approval_answered,
            events.DirectiveStated: self.control.directive_stated,
            events.DirectiveRequested: self.control.directive_requested,
            events.TokenIssued: self.control.token_issued,
            events.TokenRevoked: self.control.token_revoked,
            events.SubscriptionRequested: self.topics.subscribed,
            events.SubscriptionEnded: self.topics.unsubscribed,
            events.SubscriberArrived: self.topics.arrived,
            events.SubscriberLeft: self._subscriber_left,
            events.EventPublished: self.topics.published,
            events.WordsPassed: self.labels.words_passed,
            events.EventTaken: self.topics.taken,
            events.EventGivenUp: self.topics.given_up,
            events.ExchangeStarted: self.exchange.exchange_started,
            events.DrainStarted: self.exchange.drain_started,
            events.ExchangeStopped: self.exchange.exchange_stopped,
            events.SettingsChanged: self.exchange.settings_changed,
            events.StorageChanged: self.exchange.storage_changed,
            events.Noticed: self.exchange.noticed,
            events.ClockJumped: self.exchange.clock_jumped,
            events.ProcessStepped: self.exchange.process_stepped,
            events.SnapshotTaken: self.exchange.snapshot_taken,
            events.PartClosed: self.exchange.part_closed,
            events.Woke: self._woke,
        }

    def handle(self, event: Event, now: Now) -> Sequence[Effect]:
        """What follows from an event."""
        kind = type(event)
        shortcut = self._shortcuts.get(kind)
        if shortcut is not None:
            quickly = shortcut(event, now)
            if quickly is not None:
                return quickly
        elif kind not in KEEP_LANES:
            self.lanes.close()
        self._handlers[kind](event, now)
        if self.approvals.freed:
            self.approvals.open_held(now)
        journal = self.journal
        made, journal.effects = journal.effects, []
        return made

    def fold(self, remembered: Iterable[entries.Entry]) -> None:
        """Come to the state that these entries tell of; ``ExchangeStarted`` then takes it up."""
        state = self.state
        for entry in remembered:
            state.apply(entry)
            state.last_at = entry.at
            if type(entry) is entries.CallSettled:
                state.on_disk(entry.n)  # it was read from there
        state.on_disk(state.last)
        self.credentials.index()

    def stored(self, number: int) -> None:
        """Entries up to this one are on disk: older settled calls may be looked up there."""
        self.state.on_disk(number)

    def guard(self, agent_id: str, guard: Guard | None) -> None:
        """Ask this, too, before a tool of an agent that is part of the exchange is called."""
        self.lanes.close()
        if guard is None:
            self.judge.guards.pop(agent_id, None)
        else:
            self.judge.guards[agent_id] = guard

    def route(self, agent_id: str, router: Router | None) -> None:
        """Let other tools serve calls of the tools of an agent that is part of the exchange."""
        self.lanes.close()
        if router is None:
            self.routing.routers.pop(agent_id, None)
        else:
            self.routing.routers[agent_id] = router

    def wake_at(self) -> float | None:
        """When ``Woke`` should be handed in next (monotonic)."""
        return self.timers.next_at()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def key_to_look_up(self, event: CallRequested) -> str | None:
        """The key id the runner should look for on disk; None when there is no key or memory knows it."""
        if event.key is None:
            return None
        key_id = self.fingerprints.key_id(event.caller.identity, event.key)
        return None if key_id in self.state.keys else key_id

    def _call_requested(self, event: CallRequested, now: Now) -> None:
        """Judge, then refuse, take on, or join the earlier call with the same key."""
        case = Case(event)
        if event.key is not None:
            case.key_id = self.fingerprints.key_id(case.caller, event.key)
            earlier = self._earlier(event, case.key_id, now)
            if earlier is not None:
                served_by = earlier.provider if isinstance(earlier, Call) else earlier.settled.provider
                refusal = self.judging.repeat_refusal(case, served_by, now)
                if refusal is None:
                    refusal = self._join(event, earlier, self.fingerprints.input_mac(event.tool_id, event.input))
                if refusal is not None:
                    self._refuse(event, refusal, now)
                return
        refusal = self.judging.refusal(case, now)
        if refusal is None:
            # Not before: a megabyte of numbers takes a third of a second, and nothing is compared with a refusal.
            if event.key is not None and case.input_mac is None:
                case.input_mac = self.fingerprints.input_mac(event.tool_id, event.input)
            self._take_on(case, now)
        else:
            self._refuse(event, refusal, now)

    def _take_on(self, case: Case, now: Now) -> None:
        """Write down a call that nothing speaks against, and set it on its way."""
        tool, chain, verdict = case.tool, case.chain, case.verdict
        is_sent = case.has_slot and not case.asks
        provider = None if case.provider is tool else case.provider.definition.tool_id
        terms = Terms(
            case.caller,
            chain.callers,
            verdict.decision,
            verdict.rule,
            self.in_force.settings.policy.version,
            tool.fingerprint,
            tool.definition.side_effects,
            case.provider.dedupes if is_sent else tool.dedupes,
        )
        number = self.journal.next
        self.journal.write(
            accepted_entry(
                number,
                now.ms,
                f"{self._call_prefix}{number:012x}",
                case.event,
                terms,
                None if chain.cause is None else chain.cause.entry.n,
                chain.depth,
                case.correlation_id,
                is_sent,
                case.key_id,
                case.input_mac,
                case.directive_id,
                tuple(sorted(case.circumstances)) if case.circumstances else (),
                case.warning,
                provider if is_sent else None,
                case.event.sensitive or verdict.sensitive,
            )
        )
        call = self.state.by_number[number]
        if provider is not None and not is_sent and not case.asks:
            call.route = Route(provider)
        self._set_out(call, case, now)
        if is_sent:
            self.lanes.open(case, terms)

    def _set_out(self, call: Call, case: Case, now: Now) -> None:
        """Send a call that was taken on, or let it wait for a person or for a slot."""
        entry, event, agent = call.entry, case.event, case.agent
        call.waiters = ((event.session, event.ref),)
        call.actor, call.context = event.actor, event.context
        call.beside = held_beside(event.context, event.actor)
        if event.expires_ms is not None:
            call.expires_at = now.mono + (event.expires_ms / 1000 - now.wall)
        if entry.decision is ASK:
            policy, reason = self.in_force.settings.policy.version, case.verdict.reason
            question = self.approvals.ask_call(call, policy, reason, now, provider=case.provider)
            self.approvals.say_waiting(call, question, call.waiters)
            self.alarms.set(call)
            return
        if event.announce:
            self._announce(call, event, entry.n if waits_for_disk(call) else 0)
        if entry.sent:
            self.calls.deliver(call, agent, entry.n, now)
        else:
            self.calls.enqueue(call, agent)

    def _earlier(self, event: CallRequested, key_id: str, now: Now) -> Call | Settled | events.Earlier | None:
        """The earlier call that this key names: open, or with its outcome."""
        call_id = self.state.keys.get(key_id)
        call = self.state.calls.get(call_id) if call_id is not None else None
        if call is not None:
            return call
        settled = self.state.recent.get(call_id) if call_id is not None else event.earlier
        is_old = settled is not None and self.state.age_ms(settled.settled.at, now.ms) >= KEY_LIFE_MS
        return None if is_old else settled

    def _join(self, event: CallRequested, earlier: Call | Settled | events.Earlier, mac: str) -> Refusal | None:
        """Answer the one who asks now with the call that has the key, or let him wait for it; why not, if not."""
        if isinstance(earlier, Call):
            if earlier.entry.input_mac != mac:
                return Refusal(fault("idempotency.conflict"))
            if len(earlier.waiters) >= MAX_WAITERS:
                return Refusal(fault("limit.inflight", f"{MAX_WAITERS} requests wait for this call"))
            self._wait_too(earlier, event)
            return None
        accepted, outcome = earlier.accepted, earlier.settled
        if accepted.input_mac != mac:
            return Refusal(fault("idempotency.conflict"))
        self.journal.say(
            effects.Answer(
                event.session,
                outcome.n,
                event.ref,
                accepted.call_id,
                outcome.status,
                outcome.output,
                outcome.fault,
                outcome.started_ms,
                outcome.finished_ms,
                accepted.correlation_id,
                large=LargeOutput.of(outcome.output),
            )
        )
        return None

    def _wait_too(self, call: Call, event: CallRequested) -> None:
        """One more waits for an open call."""
        waiter = (event.session, event.ref)
        call.waiters = (*call.waiters, waiter)
        call.joined = True
        if call.approval_id is not None:
            self.approvals.say_waiting(call, self.state.questions[call.approval_id], (waiter,))
        elif event.announce:
            self._announce(call, event, call.entry.n)

    def _announce(self, call: Call, event: CallRequested, after: int) -> None:
        entry = call.entry
        self.journal.say(
            effects.Wait(
                event.session, after, event.ref, entry.call_id, call.status, correlation_id=entry.correlation_id
            )
        )

    def _refuse(self, event: CallRequested, refusal: Refusal, now: Now) -> None:
        """Say no before anything was taken on. A flood is counted, not written: it must not fill the disk."""
        problem = refusal.fault
        self.refused[problem.code] = self.refused.get(problem.code, 0) + 1
        if problem.code.startswith(("limit.", "hub.")):
            call_id = self._new_id()
        else:
            number = self.journal.next
            call_id = f"{self._call_prefix}{number:012x}"
            self.loads.wrote(event.caller.identity, ENTRY_BYTES + len(refusal.why))
            self.journal.write(
                entries.CallRefused(
                    n=number,
                    at=now.ms,
                    call_id=call_id,
                    caller=event.caller.identity,
                    tool_id=event.tool_id[:256],
                    code=problem.code,
                    rule=refusal.rule,
                    chain=refusal.chain,
                    correlation_id=event.correlation_id,
                    why=refusal.why,
                )
            )
        self.journal.say(
            effects.Answer(
                event.session,
                0,
                event.ref,
                call_id,
                Status.FAILED,
                fault=problem,
                finished_ms=now.ms,
                correlation_id=event.correlation_id,
                refused=True,
            )
        )

    def _own_call(self, session: int, call_id: str, what: str, now: Now) -> Call | None:
        """The running call that this session may speak about; anything else is noted and goes nowhere."""
        call = self.state.calls.get(call_id)
        if call is not None and call.session == session and call.status is RUNNING:
            return call
        agent = self.registry.by_session.get(session)
        if agent is not None and what == "result" and agent.abandoned.answered(call_id):
            # Late, and to nobody; but it answers.
            agent.unanswered = 0
            if agent.breaker is not None:
                agent.breaker.answered()
        if agent is not None:
            # A stream is noted once, not for each chunk; and nobody fills the disk with words about calls he made up.
            if (what == "stream" and agent.last_ignored == call_id) or agent.ignored == MAX_IGNORED:
                return None
            agent.last_ignored = call_id
            agent.ignored += 1
        self.journal.write(
            entries.CallNoted(
                n=self.journal.next,
                at=now.ms,
                call_id=call_id[:128],
                note=f"{what}.ignored",
                by=agent.identity if agent is not None else "",
                detail="of another agent's call" if call is not None else "of a call that is not open",
            )
        )
        return None

    def _call_finished(self, event: CallFinished, now: Now) -> None:
        call = self._own_call(event.session, event.call_id, "result", now)
        if call is not None:
            self.calls.finished(call, event, now)

    def _call_progressed(self, event: events.CallProgressed, now: Now) -> None:
        call = self._own_call(event.session, event.call_id, "stream", now)
        if call is not None:
            self.calls.progressed(call, event, now)

    def _attempt_failed(self, event: events.AttemptFailed, now: Now) -> None:
        call = self._own_call(event.session, event.call_id, "attempt", now)
        if call is not None:
            if not event.is_callers_limit:
                self.agents.count_failure(event.session, event.fault, now)
            self.interruptions.attempt_failed(call, event.fault, now)

    def _cancel_requested(self, event: events.CancelRequested, now: Now) -> None:
        call = self._find_call(event)
        if call is None:
            settled = self.state.recent.get(event.call_id or "")
            if settled is not None and _may_cancel(event.by, settled.accepted):
                after = settled.settled.n
                self.journal.reply(event.session, event.ref, after, named=event.call_id, status="settled")
            else:
                problem = fault("not_found", "there is no such open call of yours")
                self.journal.reply(event.session, event.ref, 0, problem=problem)
            return
        # Who asks again and again is heard, and does not fill the disk.
        if self.loads.try_note(event.by.identity, 1, now.mono) is None:
            self.journal.write(
                entries.CallNoted(
                    n=self.journal.next,
                    at=now.ms,
                    call_id=call.entry.call_id,
                    note="cancel.requested",
                    by=event.by.identity,
                    detail=event.reason[:256],
                )
            )
        self.lanes.leave(call.entry.call_id)
        self.interruptions.cancel(call, event.reason or "canceled by the caller", now)
        self.journal.reply(event.session, event.ref, self.state.last, named=call.entry.call_id, status="canceling")

    def _find_call(self, event: events.CancelRequested) -> Call | None:
        """The open call that a cancel names, if the one who asks may cancel it (a stranger may not)."""
        if event.call_id is not None:
            call = self.state.calls.get(event.call_id)
            return call if call is not None and _may_cancel(event.by, call.entry) else None
        waiter = (event.session, event.target)
        return next((call for call in self.state.calls.values() if waiter in call.waiters), None)

    def _cancel_acknowledged(self, event: events.CancelAcknowledged, now: Now) -> None:
        call = self._own_call(event.session, event.call_id, "cancel_ack", now)
        if call is not None:
            self.journal.write(
                entries.CallNoted(
                    n=self.journal.next,
                    at=now.ms,
                    call_id=event.call_id,
                    note="cancel.accepted" if event.accepted else "cancel.declined",
                )
            )

    def _caller_left(self, event: events.CallerLeft, now: Now) -> None:
        self.interruptions.caller_left(event.session, event.ref, now)

    # -- topics --------------------------------------------------------------------------------------------------------

    def _agent_left(self, event: events.AgentLeft, now: Now) -> None:
        """Whoever was told of events in this conversation is not any more, also if a defect ended it."""
        self.agents.left(event, now)
        self.topics.left(event.session, now)

    def _subscriber_left(self, event: events.SubscriberLeft, now: Now) -> None:
        self.topics.left(event.session, now)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _woke(self, _event: events.Woke, now: Now) -> None:
        due = self.timers.due(now.mono)
        for number in self.alarms.due(due, now):
            self.interruptions.woke(number, now)
        for key in due:
            if isinstance(key, OfBreaker):
                self.agents.breaker_due(key.agent_id, now)
            elif isinstance(key, OfQuestion):
                self.control.question_due(key.approval_id, now)


def _may_cancel(who: Principal, entry: entries.CallAccepted) -> bool:
    return who.is_operator or who.identity == entry.caller

"""The middle of Trunkline: ``handle(event, now) -> list[Effect]``, one method for each event, read top to bottom.

Owns the order in which a call is judged and who is told what. Durable state is ``state`` (the fold of the ledger); the
life of an accepted call is ``calls``; questions are ``approvals``. No sockets, clock, files or randomness: ids come
from ``new_id``, time comes with each event.

Invariant: everything that changes durable state is an entry, and an effect that depends on it carries its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from trunkline import effects, entries, events
from trunkline.effects import Effect
from trunkline.events import CallFinished, CallRequested, Event
from trunkline.hub import chains
from trunkline.hub.agents import BREAKER_KEY, Agents
from trunkline.hub.approvals import Approvals
from trunkline.hub.book import Book
from trunkline.hub.calls import WATCH_KEY, Calls, waits_for_disk
from trunkline.hub.credentials import Credentials
from trunkline.hub.house import House
from trunkline.hub.idempotency import KEY_LIFE_MS, Fingerprints
from trunkline.hub.lanes import Lanes
from trunkline.hub.limits import Loads
from trunkline.hub.people import People
from trunkline.hub.policy import Judge
from trunkline.hub.registry import MAX_QUEUED, Agent, Registry, Tool
from trunkline.hub.state import Call, State, body_size
from trunkline.hub.timers import Timers
from trunkline.model import (
    Decision,
    Fault,
    Guard,
    LargeOutput,
    Now,
    Policy,
    Principal,
    Status,
    fault,
)

# A look into an enum takes 70 ns, and each call looks a dozen times.
ASK: Final = Decision.ASK
RUNNING: Final = Status.RUNNING
# What else calls are made of: nothing that a lane rests on changes with these.
OF_CALLS: Final = frozenset(
    {
        events.CallProgressed,
        events.CancelRequested,
        events.CancelAcknowledged,
        events.CallerLeft,
        events.ProcessStepped,
        events.Noticed,
    }
)
# An agent restarted by its supervisor is usually back within this time.
RETRY_UNAVAILABLE_MS: Final = 1000
# Words of one agent about calls that are not its own or not open which are put on record.
MAX_IGNORED: Final = 1000
# Requests that may wait for one call under its key; each costs memory that no other limit counts.
MAX_WAITERS: Final = 1024


class Hub:
    """One exchange's decisions."""

    def __init__(
        self, *, mac_key: bytes, call_prefix: str, new_id: Callable[[], str], operator_sha256: str, rules: Policy
    ) -> None:
        self.state = State()
        self.registry = Registry()
        self.timers: Timers[int | str] = Timers()
        self.loads = Loads()
        self.book = Book(self.state)
        self.approvals = Approvals(self.book, self.timers)
        self.calls = Calls(self.book, self.registry, self.loads, self.approvals, self.timers)
        self.credentials = Credentials(self.state, operator_sha256)
        self.fingerprints = Fingerprints(mac_key)
        self.lanes = Lanes(self.state, self.registry, self.loads, self.calls, call_prefix)
        self.judge = Judge(rules, self.registry, self.credentials)
        self.agents = Agents(
            self.book, self.registry, self.calls, self.approvals, self.credentials, self.judge, self.timers
        )
        self.people = People(
            self.book,
            self.registry,
            self.calls,
            self.approvals,
            self.credentials,
            self.fingerprints,
            self.judge,
            new_id,
        )
        self.house = House(
            self.book,
            self.registry,
            self.loads,
            self.calls,
            self.approvals,
            self.agents,
            self.people,
            self.judge,
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
            events.AgentExited: self.agents.exited,
            events.AgentArrived: self.agents.arrived,
            events.AgentLeft: self.agents.left,
            events.HealthReported: self.agents.health_reported,
            events.ToolsOffered: self.agents.tools_offered,
            events.ToolsWithdrawn: self.agents.tools_withdrawn,
            events.ApprovalAnswered: self.people.approval_answered,
            events.DirectiveStated: self.people.directive_stated,
            events.DirectiveRequested: self.people.directive_requested,
            events.TokenIssued: self.people.token_issued,
            events.TokenRevoked: self.people.token_revoked,
            events.ExchangeStarted: self.house.exchange_started,
            events.DrainStarted: self.house.drain_started,
            events.ExchangeStopped: self.house.exchange_stopped,
            events.PolicyChanged: self.house.policy_changed,
            events.StorageChanged: self.house.storage_changed,
            events.Noticed: self.house.noticed,
            events.ProcessStepped: self.house.process_stepped,
            events.SnapshotTaken: self.house.snapshot_taken,
            events.PartClosed: self.house.part_closed,
            events.Woke: self._woke,
        }

    def handle(self, event: Event, now: Now) -> Sequence[Effect]:
        """What follows from an event."""
        kind = type(event)
        if kind in self._shortcuts:
            quickly = self._shortcuts[kind](event, now)
            if quickly is not None:
                return quickly
        elif kind not in OF_CALLS:
            self.lanes.close()
        self._handlers[kind](event, now)
        book = self.book
        made, book.effects = book.effects, []
        return made

    def fold(self, remembered: Iterable[entries.Entry]) -> None:
        """Come to the state that these entries tell of; ``ExchangeStarted`` then takes it up."""
        state = self.state
        for entry in remembered:
            state.apply(entry)
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

    def _call_requested(self, event: CallRequested, now: Now) -> None:  # noqa: C901 - its order is the rule, in one place
        """Join, judge, take on, in this order. But for the rate nothing is counted before the last reason to say no."""
        caller = event.caller.identity
        size = body_size(event.input)
        mac = key_id = None
        if event.key is not None:
            mac = self.fingerprints.input_mac(event.tool_id, event.input)
            key_id = self.fingerprints.key_id(caller, event.key)
            if self._joined(event, key_id, mac, now):
                return
        tool = self.registry.tools.get(event.tool_id)
        problem = self.house.closed
        if problem is None and self.house.limits.calls_per_s:
            problem = self.loads.try_pace(caller, self.house.limits, now.mono)
        if problem is not None or tool is None:
            self._refuse(event, problem or self._not_offered(event.tool_id), now)
            return
        agent = tool.agent
        chain = self._chain(event, now)
        if agent is not None and (chain.causes or caller == agent.identity):
            problem = chains.refusal(chain, caller, agent.identity)
            if problem is not None:
                self._refuse(event, problem, now, chain=chain.callers)
                return
        correlation_id = event.correlation_id
        if correlation_id is None and chain.cause is not None:
            correlation_id = chain.cause.correlation_id
        untrusted = bool(self.state.tainted or chain.causes) and self._is_untrusted(correlation_id, chain, now)
        verdict = self.judge.verdict(tool, (*chain.callers, caller), untrusted)
        if verdict.fault is not None:  # OS-103, OS-104
            self._refuse(event, verdict.fault, now, rule=verdict.rule, chain=chain.callers)
            return
        directive = self.people.directive_for(event, now) if tool.definition.requires_directive else None
        if isinstance(directive, Fault):  # OS-085
            self._refuse(event, directive, now, rule=verdict.rule, chain=chain.callers)
            return
        problem = self._unfit(event, tool, size, now)
        if problem is not None or agent is None:
            self._refuse(event, problem or _unavailable(), now)
            return
        warning = tool.validator.error(event.input, event.value)
        if warning is not None and self.house.schema_strict:  # OS-159
            self._refuse(event, fault("tool.invalid_input", warning), now)
            return
        if self.judge.guards:
            verdict = self.judge.guarded(verdict, event.tool_id, event.input)
            if verdict.fault is not None:
                self._refuse(event, verdict.fault, now, rule=verdict.rule, chain=chain.callers)
                return
        asks = verdict.decision is ASK
        if asks and mac is None:
            mac = self.fingerprints.input_mac(event.tool_id, event.input)
        has_slot = len(agent.running) < agent.max_inflight
        problem = None
        if asks or not has_slot:
            problem = self._no_place(caller, chain.callers, mac if asks else None, tool, agent)
        if problem is None:
            problem = self.loads.try_take(caller, size, self.house.limits)
        if problem is not None:
            self._refuse(event, problem, now, rule=verdict.rule, chain=chain.callers)
            return

        number = self.state.last + 1
        # By position, in the order of the fields: by keyword it takes a microsecond more, a tenth of the whole way.
        self.book.write(
            entries.CallAccepted(
                number,
                now.ms,
                f"{self._call_prefix}{number:012x}",
                caller,
                event.tool_id,
                event.input,
                verdict.decision,
                verdict.rule,
                self.judge.rules.version,
                tool.fingerprint,
                has_slot and not asks,
                tool.definition.side_effects,
                tool.dedupes,
                chain.callers,
                None if chain.cause is None else chain.cause.entry.n,
                event.key,
                key_id,
                mac,
                correlation_id,
                event.causation_id,
                directive,
                event.timeout_ms,
                event.expires_ms,
                untrusted,
                warning,
                chain.depth,
            )
        )
        call = self.state.by_number[number]
        self._set_out(call, event, agent, verdict.reason, now)
        if self._is_ordinary(call, chain, tool, agent):
            self.lanes.open(event, call.entry, tool, agent, self.house.limits)

    def _set_out(self, call: Call, event: CallRequested, agent: Agent, reason: str, now: Now) -> None:
        """Send a call that was taken on, or let it wait for a person or for a slot."""
        entry = call.entry
        call.waiters = ((event.session, event.ref),)
        call.actor, call.context = event.actor, event.context
        if event.expires_ms is not None:
            call.expires_at = now.mono + (event.expires_ms / 1000 - now.wall)
        if entry.decision is ASK:
            question = self.approvals.ask_call(call, self.judge.rules.version, reason, now)
            self.approvals.say_waiting(call, question, call.waiters)
            self.calls.rearm(call)
            return
        if event.announce:
            self._announce(call, event, entry.n if waits_for_disk(call) else 0)
        if entry.sent:
            self.calls.deliver(call, agent, entry.n, now)
        else:
            self.calls.enqueue(call, agent)

    def _is_ordinary(self, call: Call, chain: chains.Chain, tool: Tool, agent: Agent) -> bool:
        """Whether nothing about this call needs to be judged again for the next one like it."""
        entry = call.entry
        return (
            entry.sent
            and entry.key is None
            and entry.warning is None
            and not entry.untrusted
            and (chain is chains.NO_CHAIN or chain.cause is not None)
            and agent.breaker is None
            and agent.agent_id not in self.judge.guards
            and not tool.definition.requires_directive
            and not self.state.tainted
            and not self.calls.untrusted_agents
            and not self.house.limits.calls_per_s
        )

    def _joined(self, event: CallRequested, key_id: str, mac: str, now: Now) -> bool:
        """Whether this key names an earlier call; if so, the one who asks now is answered with that one."""
        call_id = self.state.keys.get(key_id)
        call = self.state.calls.get(call_id) if call_id is not None else None
        if call is not None:
            if call.entry.input_mac != mac:
                self._refuse(event, fault("idempotency.conflict"), now)
            elif len(call.waiters) >= MAX_WAITERS:
                self._refuse(event, fault("limit.inflight", f"{MAX_WAITERS} requests wait for this call"), now)
            else:
                self._wait_too(call, event)
            return True
        settled = self.state.recent.get(call_id) if call_id is not None else event.earlier
        if settled is None or settled.settled.at + KEY_LIFE_MS <= now.ms:
            return False
        accepted, outcome = settled.accepted, settled.settled
        if accepted.input_mac != mac:
            self._refuse(event, fault("idempotency.conflict"), now)
            return True
        self.book.say(
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
        return True

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
        self.book.say(
            effects.Wait(
                event.session, after, event.ref, entry.call_id, call.status, correlation_id=entry.correlation_id
            )
        )

    def _refuse(
        self, event: CallRequested, problem: Fault, now: Now, *, rule: str = "", chain: tuple[str, ...] = ()
    ) -> None:
        """Say no before anything was taken on. A flood is counted, not written: it must not fill the disk."""
        self.refused[problem.code] = self.refused.get(problem.code, 0) + 1
        if problem.code.startswith(("limit.", "hub.")):
            call_id = self._new_id()
        else:
            number = self.book.next
            call_id = f"{self._call_prefix}{number:012x}"
            self.book.write(
                entries.CallRefused(
                    n=number,
                    at=now.ms,
                    call_id=call_id,
                    caller=event.caller.identity,
                    tool_id=event.tool_id[:256],
                    code=problem.code,
                    rule=rule,
                    chain=chain,
                    correlation_id=event.correlation_id,
                )
            )
        self.book.say(
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

    def _not_offered(self, tool_id: str) -> Fault:
        """A tool that was pinned once belongs to an agent that is away; any other does not exist."""
        pinned = tool_id in self.state.pins and tool_id.partition("/")[0] not in self.registry.agents
        return _unavailable() if pinned else fault("tool.not_found")

    def _chain(self, event: CallRequested, now: Now) -> chains.Chain:
        agent = self.registry.by_session.get(event.session)
        if agent is None or not (agent.running or agent.abandoned):
            return chains.NO_CHAIN
        working = list(self.calls.worked_on(agent, now))
        named = next((call for call in working if call.entry.call_id == event.causation_id), None)
        return chains.chain_of(named, working)

    def _is_untrusted(self, correlation_id: str | None, chain: chains.Chain, now: Now) -> bool:
        """Whether what strangers wrote may be behind this call (decision 14).

        The calls it was made for count as well: an agent does not shake it off by naming another correlation.
        """
        tainted = self.state.is_tainted
        if correlation_id is not None and tainted(correlation_id, now.ms):
            return True
        return any(cause.entry.untrusted or tainted(cause.correlation_id, now.ms) for cause in chain.causes)

    def _unfit(self, event: CallRequested, tool: Tool, size: int, now: Now) -> Fault | None:
        """Why this tool cannot be called with this now, whoever asks."""
        agent = tool.agent
        if tool.suspended:
            return fault("tool.suspended")
        if agent is None or not agent.is_usable:  # OS-132
            return _unavailable()
        if tool.quarantined_until > now.mono:
            return _unavailable("the tool rests after it cost its agent three times")
        if size > tool.definition.max_input_bytes:  # OS-019, OS-021
            return fault("tool.invalid_input", f"{size} bytes; the limit is {tool.definition.max_input_bytes}")
        if event.expires_ms is not None and event.expires_ms <= now.ms:
            return fault("call.expired")
        return None

    def _no_place(self, caller: str, chain: tuple[str, ...], mac: str | None, tool: Tool, agent: Agent) -> Fault | None:
        """Why a call cannot wait: for a person's answer, if ``mac`` is given, or for a slot of its agent."""
        if mac is not None:
            same = self.approvals.same_question(caller, chain, mac, self.judge.rules.version, tool.fingerprint)
            return None if same is not None else self.approvals.refusal(caller)
        if len(agent.queue) >= MAX_QUEUED:  # OS-018
            return fault("limit.inflight", "the agent's queue is full")
        return None

    def _own_call(self, session: int, call_id: str, what: str, now: Now) -> Call | None:
        """The running call that this session may speak about; anything else is noted and goes nowhere."""
        call = self.state.calls.get(call_id)
        if call is not None and call.session == session and call.status is RUNNING:
            return call
        agent = self.registry.by_session.get(session)
        if agent is not None and what == "result":
            agent.abandoned.pop(call_id, None)
        if agent is not None:
            # A stream is noted once, not for each chunk; and nobody fills the disk with words about calls he made up.
            if (what == "stream" and agent.last_ignored == call_id) or agent.ignored == MAX_IGNORED:
                return None
            agent.last_ignored = call_id
            agent.ignored += 1
        self.book.write(
            entries.CallNoted(
                n=self.book.next,
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
            self.calls.progressed(call, event)

    def _attempt_failed(self, event: events.AttemptFailed, now: Now) -> None:
        call = self._own_call(event.session, event.call_id, "attempt", now)
        if call is not None:
            self.agents.count_failure(event.session, event.fault, now)
            self.calls.attempt_failed(call, event.fault, now)

    def _cancel_requested(self, event: events.CancelRequested, now: Now) -> None:
        call = self._find_call(event)
        if call is None:
            settled = self.state.recent.get(event.call_id or "")
            if settled is not None and _may_cancel(event.by, settled.accepted):
                after = settled.settled.n
                self.book.reply(event.session, event.ref, after, named=event.call_id, status="settled")
            else:
                problem = fault("not_found", "there is no such open call of yours")
                self.book.reply(event.session, event.ref, 0, problem=problem)
            return
        self.book.write(
            entries.CallNoted(
                n=self.book.next,
                at=now.ms,
                call_id=call.entry.call_id,
                note="cancel.requested",
                by=event.by.identity,
                detail=event.reason[:256],
            )
        )
        self.calls.cancel(call, event.reason or "canceled by the caller", now)
        self.book.reply(event.session, event.ref, self.state.last, named=call.entry.call_id, status="canceling")

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
            self.book.write(
                entries.CallNoted(
                    n=self.book.next,
                    at=now.ms,
                    call_id=event.call_id,
                    note="cancel.accepted" if event.accepted else "cancel.declined",
                )
            )

    def _caller_left(self, event: events.CallerLeft, now: Now) -> None:
        self.calls.caller_left(event.session, event.ref, now)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _woke(self, _event: events.Woke, now: Now) -> None:
        due = self.timers.due(now.mono)
        for number in self.calls.due(due, now):
            self.calls.woke(number, now)
        for key in due:
            if isinstance(key, int) or key.startswith(WATCH_KEY):
                continue
            if key.startswith(BREAKER_KEY):
                self.agents.breaker_due(key.removeprefix(BREAKER_KEY), now)
            else:
                self.people.question_due(key, now)


def _unavailable(text: str = "") -> Fault:
    return fault("tool.unavailable", text, details={"retry_after_ms": RETRY_UNAVAILABLE_MS})


def _may_cancel(who: Principal, entry: entries.CallAccepted) -> bool:
    return who.is_operator or who.identity == entry.caller

"""The middle of Trunkline: ``handle(event, now) -> list[Effect]``, one method for each event, read top to bottom.

Owns the order in which a call is judged and who is told what. Durable state is ``state`` (the fold of the ledger); the
life of an accepted call is ``calls``; questions are ``approvals``. No sockets, clock, files or randomness: ids come
from ``new_id``, time comes with each event.

Invariant: everything that changes durable state is an entry, and an effect that depends on it carries its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from trunkline import effects, entries, events
from trunkline.effects import Effect
from trunkline.events import CallRequested, Event
from trunkline.hub import chains
from trunkline.hub.agents import Agents
from trunkline.hub.approvals import Approvals
from trunkline.hub.book import Book
from trunkline.hub.calls import Calls, reference
from trunkline.hub.credentials import Credentials
from trunkline.hub.idempotency import KEY_LIFE_MS, Fingerprints
from trunkline.hub.limits import Loads
from trunkline.hub.people import People
from trunkline.hub.policy import Judge
from trunkline.hub.registry import MAX_QUEUED, Registry
from trunkline.hub.state import Call, OpenQuestion, State, body_size
from trunkline.hub.timers import Timers
from trunkline.model import (
    INLINE_OUTPUT_BYTES,
    Decision,
    Fault,
    Limits,
    Now,
    Policy,
    Status,
    fault,
)

# An agent restarted by its supervisor is usually back within this time.
RETRY_UNAVAILABLE_MS = 1000


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
        self.calls = Calls(self.book, self.registry, self.loads, self.timers)
        self.approvals = Approvals(self.book, self.timers)
        self.credentials = Credentials(self.state, operator_sha256)
        self.fingerprints = Fingerprints(mac_key)
        self.judge = Judge(rules, self.registry, self.credentials)
        self.agents = Agents(self.book, self.registry, self.calls, self.approvals, self.credentials, self.judge)
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
        self.limits = Limits()
        self.schema_strict = True
        self.refused: dict[str, int] = {}
        self._call_prefix = call_prefix
        self._new_id = new_id
        self._closed_to_calls: Fault | None = None
        self._storage_low = False
        self._handlers: dict[type[Event], Callable[[Any, Now], None]] = {
            events.CallRequested: self._call_requested,
            events.CallFinished: self._call_finished,
            events.CallProgressed: self._call_progressed,
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
            events.ExchangeStarted: self._exchange_started,
            events.DrainStarted: self._drain_started,
            events.ExchangeStopped: self._exchange_stopped,
            events.PolicyChanged: self._policy_changed,
            events.StorageChanged: self._storage_changed,
            events.Noticed: self._noticed,
            events.SnapshotTaken: self._snapshot_taken,
            events.PartClosed: self._part_closed,
            events.Woke: self._woke,
        }

    def handle(self, event: Event, now: Now) -> list[Effect]:
        """What follows from an event."""
        self._handlers[type(event)](event, now)
        return self.book.take()

    def fold(self, remembered: Iterable[entries.Entry]) -> None:
        """Come to the state that these entries tell of; ``ExchangeStarted`` then takes it up."""
        for entry in remembered:
            self.state.apply(entry)
        self.credentials.index()

    def stored(self, number: int) -> None:
        """Entries up to this one are on disk: older settled calls may be looked up there."""
        self.state.stored = number

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
        caller = event.caller.identity
        mac = key_id = None
        if event.key is not None:
            mac = self.fingerprints.input_mac(event.tool_id, event.input)
            key_id = self.fingerprints.key_id(caller, event.key)
            if self._joined(event, key_id, mac, now):
                return
        if self._closed_to_calls is not None:
            return self._refuse(event, self._closed_to_calls, now)

        tool = self.registry.tools.get(event.tool_id)
        if tool is None:
            return self._refuse(event, self._not_offered(event.tool_id), now)
        definition = tool.definition
        agent = tool.agent
        chain = self._chain(event)
        if chain.callers or agent is None or caller == agent.identity:
            target = agent.identity if agent is not None else f"opensentience:{definition.agent_id}"
            problem = chains.refusal(chain, caller, target)
            if problem is not None:
                return self._refuse(event, problem, now, chain=chain.callers)
        correlation_id = event.correlation_id or (chain.cause.entry.correlation_id if chain.cause is not None else None)
        untrusted = correlation_id is not None and self.state.is_tainted(correlation_id, now.ms)
        verdict = self.judge.verdict(tool, (*chain.callers, caller), untrusted)
        if verdict.fault is not None:
            return self._refuse(event, verdict.fault, now, rule=verdict.rule, chain=chain.callers)
        directive_id = None
        if definition.requires_directive:
            directive_id, problem = self._directive_for(event, now)
            if problem is not None:
                return self._refuse(event, problem, now, chain=chain.callers)
        if tool.suspended:
            return self._refuse(event, fault("tool.suspended"), now)
        if agent is None or not agent.is_usable:
            return self._refuse(event, _unavailable(), now)
        if tool.quarantined_until > now.mono:
            return self._refuse(event, _unavailable("the tool rests after it cost its agent three times"), now)
        warning = None
        size = body_size(event.input)
        if size > definition.max_input_bytes:
            text = f"{size} bytes; the limit is {definition.max_input_bytes}"
            return self._refuse(event, fault("tool.invalid_input", text), now)
        invalid = tool.validator.error(event.input)
        if invalid is not None:
            if self.schema_strict:
                return self._refuse(event, fault("tool.invalid_input", invalid), now)
            warning = invalid  # OS-159
        if event.expires_ms is not None and event.expires_ms <= now.ms:
            return self._refuse(event, fault("call.expired"), now)
        asks = verdict.decision is Decision.ASK
        if asks:
            if mac is None:
                mac = self.fingerprints.input_mac(event.tool_id, event.input)
            same = self.approvals.same_question(caller, chain.callers, mac, self.judge.rules.version, tool.fingerprint)
            problem = None if same is not None else self.approvals.refusal(caller)
            if problem is not None:
                return self._refuse(event, problem, now, rule=verdict.rule, chain=chain.callers)
        has_slot = len(agent.running) < agent.max_inflight
        if not has_slot and not asks and len(agent.queue) >= MAX_QUEUED:
            return self._refuse(event, fault("limit.inflight", "the agent's queue is full"), now)
        problem = self.loads.try_take(caller, size, self.limits, now.mono)
        if problem is not None:
            return self._refuse(event, problem, now)

        number = self.state.last + 1
        call_id = f"{self._call_prefix}{number:012x}"
        self.book.write(
            entries.CallAccepted(
                n=number,
                at=now.ms,
                call_id=call_id,
                caller=caller,
                tool_id=event.tool_id,
                input=event.input,
                decision=verdict.decision,
                rule=verdict.rule,
                policy=self.judge.rules.version,
                fingerprint=tool.fingerprint,
                sent=has_slot and not asks,
                side_effects=definition.side_effects,
                dedupes=tool.dedupes,
                chain=chain.callers,
                cause=None if chain.cause is None else chain.cause.entry.n,
                key=event.key,
                key_id=key_id,
                input_mac=mac,
                correlation_id=correlation_id,
                causation_id=event.causation_id,
                directive_id=directive_id,
                timeout_ms=event.timeout_ms,
                expires_ms=event.expires_ms,
                untrusted=untrusted,
                warning=warning,
            )
        )
        call = self.state.by_number[number]
        call.waiters = ((event.session, event.ref),)
        call.actor, call.context = event.actor, event.context
        if event.expires_ms is not None:
            call.expires_at = now.mono + event.expires_ms / 1000 - now.wall
        if asks:
            question = self.approvals.ask_call(call, self.judge.rules.version, verdict.reason, now)
            self._say_waiting(call, question, event.session, event.ref)
        elif has_slot:
            self.calls.deliver(call, agent, tool, number, now)
        else:
            agent.queue.append(number)
            self.calls.rearm(call)

    def _joined(self, event: CallRequested, key_id: str, mac: str, now: Now) -> bool:
        """Whether this key names an earlier call; if so, the one who asks now is answered with that one."""
        call_id = self.state.keys.get(key_id)
        call = self.state.calls.get(call_id) if call_id is not None else None
        if call is not None:
            if call.entry.input_mac != mac:
                self._refuse(event, fault("idempotency.conflict"), now)
                return True
            call.waiters = (*call.waiters, (event.session, event.ref))
            call.gone_at = 0.0
            self.calls.rearm(call)
            if call.status is Status.WAITING_APPROVAL and call.approval_id is not None:
                self._say_waiting(call, self.state.questions[call.approval_id], event.session, event.ref)
            return True
        settled = self.state.recent.get(call_id) if call_id is not None else event.earlier
        if settled is None or settled.settled.at + KEY_LIFE_MS <= now.ms:
            return False
        accepted, outcome = settled.accepted, settled.settled
        if accepted.input_mac != mac:
            self._refuse(event, fault("idempotency.conflict"), now)
            return True
        output = outcome.output
        self.book.say(
            effects.Answer(
                event.session,
                outcome.n,
                event.ref,
                accepted.call_id,
                outcome.status,
                output if output is None or body_size(output) <= INLINE_OUTPUT_BYTES else reference(output),
                outcome.fault,
                outcome.started_ms,
                outcome.finished_ms,
                accepted.correlation_id,
            )
        )
        return True

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

    def _say_waiting(self, call: Call, question: OpenQuestion, session: int, ref: str) -> None:
        entry = question.entry
        after = question.trail[-1] if question.trail else entry.n
        self.book.say(
            effects.Wait(
                session,
                after,
                ref,
                call.entry.call_id,
                call.status,
                entry.approval_id,
                entry.expires_ms,
                call.entry.correlation_id,
            )
        )

    def _not_offered(self, tool_id: str) -> Fault:
        """A tool that was pinned once belongs to an agent that is away; any other does not exist."""
        pinned = tool_id in self.state.pins and tool_id.partition("/")[0] not in self.registry.agents
        return _unavailable() if pinned else fault("tool.not_found")

    def _chain(self, event: CallRequested) -> chains.Chain:
        agent = self.registry.by_session.get(event.session)
        if agent is None or not agent.running:
            return chains.NO_CHAIN
        named = self.state.calls.get(event.causation_id) if event.causation_id is not None else None
        if named is not None and named.session != event.session:
            named = None
        return chains.chain_of(named, (self.state.by_number[number] for number in agent.running))

    def _directive_for(self, event: CallRequested, now: Now) -> tuple[str | None, Fault | None]:
        """The unused directive that this call names (decision 13)."""
        stated = self.state.directives.get(event.causation_id or "")
        if stated is None or stated.expires_ms <= now.ms or stated.tool_id != event.tool_id:
            return None, fault("policy.directive_required")
        if stated.input_mac is not None and stated.input_mac != self.fingerprints.input_mac(event.tool_id, event.input):
            return None, fault("policy.directive_required", "the directive was stated for another input")
        return stated.directive_id, None

    def _own_call(self, session: int, call_id: str, what: str, now: Now) -> Call | None:
        """The running call that this session may speak about; anything else is noted and goes nowhere."""
        call = self.state.calls.get(call_id)
        if call is not None and call.session == session and call.status is Status.RUNNING:
            return call
        agent = self.registry.by_session.get(session)
        by = agent.identity if agent is not None else ""
        detail = "of another agent's call" if call is not None else "of a call that is not open"
        self.book.write(
            entries.CallNoted(n=self.book.next, at=now.ms, call_id=call_id, note=f"{what}.ignored", by=by, detail=detail)
        )
        return None

    def _call_finished(self, event: events.CallFinished, now: Now) -> None:
        call = self._own_call(event.session, event.call_id, "result", now)
        if call is not None:
            self.calls.finished(call, event, now)

    def _call_progressed(self, event: events.CallProgressed, now: Now) -> None:
        call = self._own_call(event.session, event.call_id, "stream", now)
        if call is not None:
            self.calls.progressed(call, event)

    def _cancel_requested(self, event: events.CancelRequested, now: Now) -> None:
        call = self._find_call(event)
        if call is None:
            known = event.call_id in self.state.recent
            problem = None if known else fault("not_found", "there is no such open call of yours")
            return self.book.reply(event.session, event.ref, 0, problem=problem, id=event.call_id, status="settled")
        number = self.book.write(
            entries.CallNoted(
                n=self.book.next,
                at=now.ms,
                call_id=call.entry.call_id,
                note="cancel.requested",
                by=event.by.identity,
                detail=event.reason[:256],
            )
        )
        approval_id = call.approval_id
        self.calls.cancel(call, event.reason or "canceled by the caller", now)
        if approval_id is not None:
            self.approvals.call_ended(approval_id, now)
        self.book.reply(event.session, event.ref, number, id=call.entry.call_id, status="canceling")

    def _find_call(self, event: events.CancelRequested) -> Call | None:
        """The open call that a cancel names, if the one who asks may cancel it (a stranger may not)."""
        if event.call_id is not None:
            call = self.state.calls.get(event.call_id)
            mine = call is not None and (event.by.is_operator or call.entry.caller == event.by.identity)
            return call if mine else None
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

    # -- the exchange itself -------------------------------------------------------------------------------------------

    def _exchange_started(self, event: events.ExchangeStarted, now: Now) -> None:
        """Take up what was open: what ran is lost, what was not sent waits for its tool, questions go on."""
        self.book.write(
            entries.ExchangeStarted(n=self.book.next, at=now.ms, version=event.version, instance=event.instance)
        )
        self.people.policy_in_force(now)
        for call in self.state.calls.values():
            self.loads.take(call.entry.caller, body_size(call.entry.input))
            if call.entry.expires_ms is not None:
                call.expires_at = now.mono + call.entry.expires_ms / 1000 - now.wall
        for question in self.state.questions.values():
            self.approvals.set_alarm(question, now)
        self.people.judge_questions_anew(now)
        for call in list(self.state.calls.values()):
            if call.status is Status.RUNNING:
                self.calls.lost(call, now)
            elif call.status is Status.QUEUED:
                self.calls.send_or_wait(call, now)

    def _drain_started(self, _event: events.DrainStarted, _now: Now) -> None:
        self._closed_to_calls = fault("hub.unavailable", "the exchange is stopping")

    def _exchange_stopped(self, _event: events.ExchangeStopped, now: Now) -> None:
        self.book.write(entries.ExchangeStopped(n=self.book.next, at=now.ms, open_calls=len(self.state.calls)))

    def _policy_changed(self, event: events.PolicyChanged, now: Now) -> None:
        self.limits = event.limits
        self.schema_strict = event.schema_strict
        self.approvals.expire_s = event.approval_expire_s
        self.calls.untrusted_agents = event.untrusted_agents
        self.agents.unpinned = event.unpinned_agents
        if event.policy.version != self.judge.rules.version:
            self.judge.rules = event.policy
            self.people.policy_in_force(now)
            self.people.judge_questions_anew(now)

    def _storage_changed(self, event: events.StorageChanged, _now: Now) -> None:
        """Short of room, new calls are refused and open ones may finish; a failed disk ends it."""
        if event.failed:
            self._closed_to_calls = fault("hub.unavailable", "the record cannot be written")
        elif self._storage_low is not event.low:
            self._storage_low = event.low
            self._closed_to_calls = fault("limit.resource", "the disk is nearly full") if event.low else None

    def _noticed(self, event: events.Noticed, now: Now) -> None:
        self.book.write(
            entries.Noticed(
                n=self.book.next, at=now.ms, code=event.code, place=event.place, who=event.who, detail=event.detail[:256]
            )
        )

    def _snapshot_taken(self, event: events.SnapshotTaken, now: Now) -> None:
        self.book.write(
            entries.SnapshotTaken(n=self.book.next, at=now.ms, through=event.through, sha256=event.sha256)
        )

    def _part_closed(self, event: events.PartClosed, now: Now) -> None:
        self.book.write(
            entries.PartClosed(
                n=self.book.next, at=now.ms, first=event.first, last=event.last, head=event.head, kept=event.kept
            )
        )

    def _woke(self, _event: events.Woke, now: Now) -> None:
        for key in self.timers.due(now.mono):
            if isinstance(key, int):
                self.calls.woke(key, now)
            else:
                self.people.question_due(key, now)


def _unavailable(text: str = "") -> Fault:
    return fault("tool.unavailable", text, details={"retry_after_ms": RETRY_UNAVAILABLE_MS})

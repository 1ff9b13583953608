"""The life of a call after it was accepted: it waits, is sent, shown, and ends in its one outcome.

Owns slots, queues and the outcome. Does not decide whether a call may be made (``judging``, ``policy``), who serves
a call of a tool that stands for others (``routing``), or what is done when an agent is lost, an attempt fails, time is
over or somebody cancels (``interruptions``). What waited is put to ``policy`` once more before it is sent.

Invariant: a call in state RUNNING is in ``agent.running`` of the agent whose session it was sent to; a QUEUED one waits
in its agent's queue for a slot, or is parked until its tool is back; never two of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from trunkline import effects, entries
from trunkline.events import CallFinished, CallProgressed
from trunkline.hub.alarms import Alarms
from trunkline.hub.approvals import Approvals
from trunkline.hub.durations import Durations
from trunkline.hub.in_force import InForce
from trunkline.hub.journal import Journal
from trunkline.hub.limits import CALL_BYTES, Loads
from trunkline.hub.parked import ANYBODY, Parked
from trunkline.hub.policy import Judge
from trunkline.hub.registry import Agent, Registry, Tool
from trunkline.hub.retry import PATIENCE_S
from trunkline.hub.routing import Routing, covers, with_own
from trunkline.hub.state import Call, Route, body_size
from trunkline.hub.streams import Stream
from trunkline.model import (
    INLINE_OUTPUT_BYTES,
    MAX_OUTPUT_BYTES,
    OUTCOMES,
    Decision,
    Fault,
    LargeOutput,
    Now,
    Status,
    Verdict,
    agent_of,
    fault,
    tool_agent,
)

# A look into an enum takes 70 ns, and each call looks a dozen times.
ASK: Final = Decision.ASK
QUEUED: Final = Status.QUEUED
RUNNING: Final = Status.RUNNING
SUCCEEDED: Final = Status.SUCCEEDED
# In the place of those who wait for a call: no conversation has this number.
NOBODY_WAITS: Final = ((0, ""),)


class Calls:
    """Moves open calls on: to their agents, back to those who wait, to their one outcome."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        loads: Loads,
        approvals: Approvals,
        alarms: Alarms,
        in_force: InForce,
        judge: Judge,
        routing: Routing,
    ) -> None:
        self._journal = journal
        self._state = journal.state
        self._registry = registry
        self._loads = loads
        self._approvals = approvals
        self._alarms = alarms
        self._in_force = in_force
        self._judge = judge
        self._routing = routing
        self._parked = Parked()
        # Running calls that showed something of what strangers wrote, and the agents it was shown to.
        self._showing: dict[int, str] = {}
        self.settled: dict[Status, int] = dict.fromkeys(sorted(OUTCOMES), 0)
        self.durations = Durations()

    # -- on the way out ------------------------------------------------------------------------------------------------

    def deliver(self, call: Call, agent: Agent, after: int, now: Now) -> None:
        """Hand a call, whose sending is written, to its agent."""
        entry = call.entry
        call.session = agent.session
        call.started_ms = now.ms
        agent.running[entry.n] = None
        if agent.abandoned:  # sent again to one who may still be at it
            agent.abandoned.answered(entry.call_id)
        timeout_ms = self._time_limit(call, agent)[0]
        if timeout_ms is not None:
            call.sent_at = now.mono
            call.deadline = now.mono + timeout_ms / 1000
        self._alarms.set(call)
        # Who promised to recognise a key needs one, even if the caller gave none: ours, the same each time it is sent.
        key = entry.call_id if entry.key is None and call.dedupes else entry.key
        self._journal.effects.append(
            effects.Deliver(
                agent.session,
                after if waits_for_disk(call) and not agent.only_records else 0,
                entry.call_id,
                call.served_by,
                entry.input,
                entry.caller,
                entry.correlation_id or entry.call_id,
                timeout_ms,
                key,
                entry.causation_id,
                call.actor,
                call.context,
                call.attempt,
                entry.chain,
                entry.sensitive,
            )
        )

    def _time_limit(self, call: Call, agent: Agent | None) -> tuple[int | None, str]:
        """How long a call may take (decision 4): as its caller said, else its tool, else its edge; and who said so."""
        if call.entry.timeout_ms is not None:
            return call.entry.timeout_ms, "as the call asked"
        tool = self._registry.tools.get(call.served_by)
        if tool is not None and tool.definition.timeout_ms is not None:
            return tool.definition.timeout_ms, "the tool's own limit (its `timeout_s`)"
        if agent is not None and agent.timeout_s is not None:
            another = "`call --timeout` (`timeout_ms`), or `timeout_s` of its tool or in the configuration"
            return int(agent.timeout_s * 1000), f"the default; another is {another}"
        return None, ""

    def timeout_fault(self, call: Call) -> Fault:
        """It took too long, and how long that is."""
        limit_ms, said_by = self._time_limit(call, self._registry.by_session.get(call.session))
        text = "" if limit_ms is None else f"the tool did not answer within {limit_ms / 1000:g} s, {said_by}"
        return fault("tool.timeout", text, retryable=not call.entry.side_effects)

    def send_or_wait(self, call: Call, now: Now) -> None:
        """Send a queued call if who serves it is there and has a free slot; else let it wait for that."""
        entry = call.entry
        asked = self._registry.tools.get(entry.tool_id)
        if call.expires_at and now.mono >= call.expires_at:
            self.give_up(call, Status.FAILED, fault("call.expired"), now)
            return
        if entry.hashed:
            problem = fault("call.expired", "its input was sensitive and is not part of this copy of the record")
            self.give_up(call, Status.FAILED, problem, now)
            return
        if asked is not None and asked.fingerprint != entry.fingerprint:
            problem = fault("policy.denied", "the tool's definition changed since the call")
            self.give_up(call, Status.FAILED, problem, now)
            return
        self._parked.remove(call.entry.n)
        tool = None if call.not_before > now.mono else self._serving_tool(call, asked, now)
        if tool is None or tool.agent is None:
            self._park(call, now)
        elif (asking := self._asks_again(call, tool)) is not None:
            self._ask_again(call, tool, asking, now)
        elif (denial := self.denial(call)) is not None:
            self.deny(call, denial, now)
        elif len(tool.agent.running) < tool.agent.max_inflight:
            self.deliver(call, tool.agent, self.write_sent(call, now), now)
        elif not tool.agent.queue.is_full:
            self.enqueue(call, tool.agent)
        else:
            self.give_up(call, Status.FAILED, fault("limit.inflight", "the agent's queue is full"), now)

    def _asks_again(self, call: Call, tool: Tool) -> Verdict | None:
        """What is asked about the one who would serve a call by now, if a person said yes to another one."""
        if not call.is_answered or tool.definition.tool_id == call.entry.tool_id:
            return None
        own = self._judge.verdict_now(tool, call.entry)
        return None if own.decision is not ASK or covers(call, tool, own) else own

    def _ask_again(self, call: Call, tool: Tool, own: Verdict, now: Now) -> None:
        problem = self._approvals.refusal(call.entry.caller)
        if problem is not None:
            self.deny(call, problem, now)
            return
        call.route = None if call.route is None or not call.route.tried else Route(tried=call.route.tried)
        call.give_up_at = 0.0
        asked = self._registry.tools[call.entry.tool_id]
        verdict = with_own(self._judge.verdict_now(asked, call.entry), own, tool.definition.tool_id)
        policy = self._in_force.settings.policy.version
        question = self._approvals.ask_call(call, policy, verdict.reason, now, rule=verdict.rule, provider=tool)
        self._approvals.say_waiting(call, question, call.waiters)
        self._alarms.set(call)

    def denial(self, call: Call) -> Fault | None:
        """Why a call that was taken on may not be sent any more: rules, tokens or guard changed since it was judged.

        Both the tool that was asked for and the one that serves it must be allowed to everybody in the chain. Under
        which circumstances the call was made does not change; nor does a person who has answered have to do so again.
        What nobody was asked about is not sent once somebody has to be: its caller may make it anew.
        """
        entry, tools = call.entry, self._registry.tools
        asked = tools.get(entry.tool_id)
        if asked is not None:
            verdict = self._judge.verdict_now(asked, entry)
        else:
            pin = self._state.pins.get(entry.tool_id)
            if pin is None:
                return fault("policy.denied")
            verdict = self._judge.verdict_now(pin.definition, entry)
        problem = not_agreed(verdict, call)
        server = tools.get(call.served_by)
        if problem is not None or server is None or server is asked:
            return problem
        return not_agreed(self._judge.verdict_now(server, entry), call)

    def with_provider(self, verdict: Verdict, call: Call, now: Now) -> tuple[Verdict, Tool | None]:
        """What is said by now to a waiting call of a tool that was judged, and who would serve it if that is another
        one: the call asks, too, if policy asks about him.
        """
        if verdict.fault is not None or not self._routing.is_routed(call.entry.tool_id):
            return verdict, None
        provider = self._routing.provider_of(call, now, is_asked=verdict.decision is ASK)
        if provider is None:
            return verdict, None
        own = self._judge.verdict_now(provider, call.entry)
        return (verdict if own.decision is not ASK else with_own(verdict, own, provider.definition.tool_id)), provider

    def deny(self, call: Call, problem: Fault, now: Now) -> None:
        """End a call that may not go on. One that was sent before may have done what it was sent for."""
        status = Status.FAILED
        if call.attempt > 0 and call.entry.side_effects:
            status, problem = Status.UNKNOWN, not_known(problem)
        self.settle(call, status, now, fault=problem)

    def give_up(self, call: Call, status: Status, problem: Fault, now: Now) -> None:
        """End a call that does not run. One that was sent before, and lost, may have done what it was sent for."""
        if call.attempt > 0 and call.entry.side_effects:
            status, problem = Status.UNKNOWN, fault("agent.lost")
        self.settle(call, status, now, fault=problem)

    def _serving_tool(self, call: Call, asked: Tool | None, now: Now) -> Tool | None:
        """The tool that a queued call can be sent to now. One that was sent before goes to the same as then."""
        if call.attempt:
            tool = self._registry.tools.get(call.served_by)
            return tool if tool is not None and tool.is_usable else None
        if asked is None or not asked.is_usable:
            return None
        is_routed = self._routing.is_routed(call.entry.tool_id)
        tool = self._routing.provider_of(call, now) if is_routed else asked
        if tool is not None and (is_routed or call.route is not None):
            tried = () if call.route is None else call.route.tried
            call.route = Route(tool.definition.tool_id, tool.dedupes, tried)
        return tool

    def write_sent(self, call: Call, now: Now) -> int:
        """Put on record that a call is sent to who serves it; the number of the entry."""
        entry, route = call.entry, call.route
        provider = None if call.served_by == entry.tool_id else call.served_by
        dedupes = route is not None and route.dedupes
        return self._journal.write(
            entries.CallSent(
                n=self._journal.next,
                at=now.ms,
                call=entry.n,
                attempt=call.attempt + 1,
                provider=provider,
                dedupes=dedupes,
            )
        )

    def enqueue(self, call: Call, agent: Agent) -> None:
        """Let a call wait for a slot of its agent."""
        call.give_up_at = 0.0
        agent.queue.add(call.entry.n, call.entry.caller)
        self._alarms.set(call)

    def fill_slots(self, agent: Agent, now: Now) -> None:
        """Send what waits for this agent's slots."""
        while agent.queue and len(agent.running) < agent.max_inflight and agent.is_usable:
            self.send_or_wait(self._state.by_number[agent.queue.take_first()], now)

    def leave_queue(self, agent: Agent, now: Now) -> None:
        """What cannot be sent when its turn comes does not wait for a slot: it waits for its tool, and not for ever."""
        for number in list(agent.queue):
            call = self._state.by_number[number]
            if not agent.is_usable or call.served_by not in agent.tools:
                agent.queue.discard(number)
                self.send_or_wait(call, now)

    def tools_are_back(self, tool_ids: Iterable[str], now: Now) -> None:
        """Send what waited for these tools, or for any tool, in the order in which it was accepted."""
        for number in self._parked.waiting_for(tool_ids):
            call = self._state.by_number.get(number)
            if call is not None:
                self.send_or_wait(call, now)

    def is_parked(self, call: Call) -> bool:
        """Whether it waits for its tool."""
        return call.entry.n in self._parked

    def _park(self, call: Call, now: Now) -> None:
        waits_for = call.entry.tool_id
        if call.attempt:
            waits_for = call.served_by
        elif self._routing.is_routed(waits_for):
            waits_for = ANYBODY
        self._parked.add(call.entry.n, waits_for)
        if call.give_up_at == 0.0:
            call.give_up_at = max(now.mono, call.not_before) + PATIENCE_S
        self._alarms.set(call)

    # -- on the way back -----------------------------------------------------------------------------------------------

    def progressed(self, call: Call, event: CallProgressed, now: Now) -> None:
        """Show what a running call has to show, and keep count of it."""
        if call.stream is None:
            call.stream = Stream()
        call.stream.add(event.seq, bytes(event.data))
        entry = call.entry
        if tool_agent(call.served_by) in self._in_force.settings.untrusted_agents or self._passes_on(call, now):
            self._showing[entry.n] = agent_of(entry.caller)
        for session, ref in call.waiters or NOBODY_WAITS:
            self._journal.say(
                effects.Progress(
                    session,
                    0,
                    ref,
                    entry.call_id,
                    call.shown_before + event.seq,
                    event.channel,
                    event.data,
                    event.done,
                    entry.correlation_id,
                    entry.sensitive,
                )
            )

    def show(self, call: Call, text: str) -> None:
        """Tell those who wait for a call something that its agent does not say. It is no part of its stream."""
        seq = call.shown_before + (0 if call.stream is None else call.stream.last_seq) + 1
        # What the agent shows next is numbered after it.
        call.shown_before += 1
        entry, data = call.entry, Raw(msgspec.json.encode({"text": text}))
        for session, ref in call.waiters or NOBODY_WAITS:
            self._journal.say(
                effects.Progress(
                    session, 0, ref, entry.call_id, seq, "status", data, correlation_id=entry.correlation_id
                )
            )

    def finished(self, call: Call, event: CallFinished, now: Now) -> None:
        """The agent says how it ended; what it says is checked before it counts."""
        status, output, problem = event.status, event.output, event.fault
        agent = self._registry.by_session[call.session]
        agent.unanswered = 0
        if agent.breaker is not None:
            agent.breaker.answered()
        tool = self._registry.tools.get(call.entry.tool_id)
        if tool is not None and tool.fingerprint != call.entry.fingerprint:
            tool = None  # another definition is in force by now; it says nothing about this call
        if status is SUCCEEDED:
            if output is None:
                output = Raw(b"{}")
            problem = _output_fault(tool, output, event.value, is_sensitive=call.entry.sensitive)
            if problem is not None:
                status, output = Status.FAILED, None
        else:
            output = None
            if status is Status.CANCELED and call.ending == "timeout":
                status, problem = Status.FAILED, self.timeout_fault(call)
            elif problem is None:
                problem = fault("tool.canceled" if status is Status.CANCELED else "tool.failed")
            if status is Status.CANCELED and call.ending is None and problem is not None:
                # Nobody wanted this call to end: its agent is ended, and whoever waits may know for what.
                why = self._registry.why_stopping(agent.agent_id)
                problem = replace(problem, message=f"{problem.message}: {why}") if why else problem
        server = tool if call.route is None else self._registry.tools.get(call.served_by)
        if server is not None:
            if status is SUCCEEDED:
                server.succeeded += 1
            elif status is Status.FAILED:
                server.failed += 1
        self.settle(call, status, now, output=output, fault=problem, metrics=event.metrics)

    def settle(
        self,
        call: Call,
        status: Status,
        now: Now,
        *,
        output: Raw | None = None,
        fault: Fault | None = None,
        metrics: Raw | None = None,
    ) -> None:
        """The one outcome of a call; everything it held is given back, everybody who waits is told."""
        entry, journal, ms = call.entry, self._journal, now.ms
        self._alarms.drop(call)
        if call.status is QUEUED:
            self._forget_waiting(call)
        untrusted, tainted, receivers = self._tainted_by(call, now)
        # By position, in the order of the fields: by keyword it takes half a microsecond more.
        number = journal.write(
            entries.CallSettled(
                journal.next, ms, entry.n, entry.call_id, status, output, fault, call.started_ms, ms,
                None if call.stream is None else call.stream.summary(), untrusted, metrics, tainted, call.provider,
                receivers, entry.sensitive,
            )
        )  # fmt: skip
        self.settled[status] += 1
        if call.started_ms is not None:
            self.durations.add(entry.tool_id, call.served_by, status, ms - call.started_ms)
        self._loads.give_back(entry.caller, call.size + call.beside)
        self._loads.wrote(entry.caller, call.size + body_size(output) + CALL_BYTES)
        if call.waiters:
            self._answer_all(call, number, status, now, output, fault)
        agent = self._registry.by_session.get(call.session)
        if agent is not None and agent.running.pop(entry.n, 0) is None and agent.queue:
            self.fill_slots(agent, now)
        if call.approval_id is not None:
            self._approvals.call_ended(call.approval_id, now)

    def _tainted_by(self, call: Call, now: Now) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
        """Whether an outcome is of an agent that reads what strangers wrote; and which correlations and agents it
        taints, by itself or because it was made of such outcomes.

        However it ended: a failure has words of its agent, too, and what was shown before was read.
        """
        number, untrusted, readers = call.entry.n, False, self._in_force.settings.untrusted_agents
        if readers:
            untrusted = call.attempt > 0 and tool_agent(call.served_by) in readers
        is_passed_on = not untrusted and (number in self._showing or self._passes_on(call, now))
        if self._showing:
            self._showing.pop(number, None)
        if not untrusted and not is_passed_on:
            return False, (), ()
        # The operator is a person, who can tell what strangers wrote.
        receiver = agent_of(call.entry.caller)
        return untrusted, self._taints(call, now), (receiver,) if receiver else ()

    def _answer_all(
        self, call: Call, number: int, status: Status, now: Now, output: Raw | None, fault: Fault | None
    ) -> None:
        """Tell everybody who waits the outcome, which is entry ``number``; where it has to be on disk first, then."""
        entry, large = call.entry, LargeOutput.of(output)
        # A reference is of use once what it refers to can be fetched.
        after = number if waits_for_disk(call) or call.joined or large is not None else 0
        # That nobody knows how it ended needs no record to be true.
        deadline = now.mono if status is Status.UNKNOWN else call.deadline
        for session, ref in call.waiters:
            self._journal.effects.append(
                effects.Answer(
                    session,
                    after,
                    ref,
                    entry.call_id,
                    status,
                    output,
                    fault,
                    call.started_ms,
                    now.ms,
                    entry.correlation_id,
                    large=large,
                    deadline=deadline if after else 0.0,
                )
            )

    def _forget_waiting(self, call: Call) -> None:
        """A queued call ends and gives its place back: a queue full of ended calls would refuse everybody."""
        self._parked.remove(call.entry.n)
        tool = self._registry.tools.get(call.served_by)
        if tool is not None and tool.agent is not None:
            tool.agent.queue.discard(call.entry.n)

    def _taints(self, call: Call, now: Now) -> tuple[str, ...]:
        """The correlations that an untrusted result becomes part of (decision 14).

        An agent that did not say for which of its calls it asked may use the answer for any of them; one that did, for
        that one, whatever it called the correlation.
        """
        found: dict[str, None] = {}
        if call.entry.correlation_id is not None:
            found[call.entry.correlation_id] = None
        if call.entry.cause is not None:
            named = self._state.by_number.get(call.entry.cause)
            if named is not None:
                found[named.correlation_id] = None
        elif call.entry.chain:
            for cause in self.worked_on(call.entry.caller, now):
                found[cause.correlation_id] = None
        return tuple(found)

    def _passes_on(self, call: Call, now: Now) -> bool:
        """Whether who serves this call received an untrusted result for it, or is being shown one: what it says of the
        call, and how it ends it, may hold some of that.
        """
        began, server_id = call.entry.n, tool_agent(call.served_by)
        if not call.attempt:
            return False
        for number, agent_id in self._showing.items():
            if agent_id == server_id and call.correlation_id in self._taints(self._state.by_number[number], now):
                return True
        server = self._state.tainted_agents.get(server_id)
        if server is None or server[0] <= began:
            return False
        correlation = self._state.tainted.get(call.correlation_id)
        is_forgotten = self._state.forgotten_taint(server_id, now.ms, self._in_force.settings.limits.taint_ms) > began
        return is_forgotten or (correlation is not None and correlation[0] > began)

    def is_touched(self, agent_id: str, now: Now) -> bool:
        """Whether what strangers wrote reached an agent lately, or is being shown to it by a call that runs."""
        taint_ms = self._in_force.settings.limits.taint_ms
        return self._state.is_tainted_agent(agent_id, now.ms, taint_ms) or agent_id in self._showing.values()

    def worked_on(self, identity: str, now: Now) -> Iterator[Call]:
        """The calls that the agent behind an identity may be working on: those it runs, and those that ended or were
        lost without its word, also while it is away.

        Else whoever cancels his call at once would have an agent act for him in its own name alone (P-F2).
        """
        agent_id = agent_of(identity)
        agent = self._registry.agents.get(agent_id)
        if agent is not None:
            for number in agent.running:
                yield self._state.by_number[number]
        abandoned = self._registry.abandoned_by(agent_id)
        if abandoned is not None:
            yield from abandoned.at(now.mono)


def waits_for_disk(call: Call) -> bool:
    """Whether what is sent or said of this call waits for its record: it changes the world, or uses a person's word."""
    entry = call.entry
    return entry.side_effects or entry.decision is ASK or entry.directive_id is not None


def not_agreed(verdict: Verdict, call: Call) -> Fault | None:
    """Why a call may not be sent under what is said to it by now; a person who has answered is not asked again."""
    if verdict.decision is ASK and not call.is_answered:
        return fault("policy.denied", f"a person has to be asked by now ({verdict.rule}); make the call again")
    return verdict.fault


def not_known(problem: Fault) -> Fault:
    """The fault of a call that may have done what it was sent for."""
    return Fault(problem.code, f"{problem.message}; whether it took effect is not known", False, problem.details)


def _output_fault(tool: Tool | None, output: Raw, value: Any, *, is_sensitive: bool) -> Fault | None:
    size = body_size(output)
    limit = MAX_OUTPUT_BYTES if tool is None else tool.definition.max_output_bytes
    if is_sensitive:
        # A larger one is handed over by reference, from where it is stored.
        limit = min(limit, INLINE_OUTPUT_BYTES)
    if size > limit:  # OS-020
        return fault("tool.output_too_large", f"{size} bytes; the limit is {limit}")
    if tool is None or tool.output_validator is None:
        return None
    problem = tool.output_validator.error(output, value)
    if problem is None:
        return None
    return fault("tool.invalid_output", f"the result does not match the tool's schema: {problem}")

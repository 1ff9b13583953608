"""The ordinary call in one straight line: what was judged once for a caller and a tool holds until something changes.

Fast accept, slow judge. After ``hub`` took on a call the careful way and found nothing unusual about it, a lane
remembers what that rested on: the terms, the agent, the limits. While the lane is open the next call of the same caller
to the same tool, for the same callers before him, is checked for what can differ between two calls (its input, its key,
free slots, what the caller uses, which call it is part of) and goes. Whatever is not ordinary gives None here and
changes nothing: then the careful way decides.

Owns no rule of its own; nothing but ``hub``'s dispatch knows that there are lanes. Invariant: a lane leads to the same
entries, effects and state as the careful way. All lanes close with each event that is not part of a call, so none
outlives what it rests on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from trunkline.effects import Answer, Deliver, Effect
from trunkline.entries import CallSettled
from trunkline.events import CallFinished, CallRequested
from trunkline.hub.accepting import Terms, accepted_entry
from trunkline.hub.alarms import Alarms
from trunkline.hub.calls import Calls
from trunkline.hub.chains import MAX_DEPTH, NO_CHAIN
from trunkline.hub.idempotency import Fingerprints
from trunkline.hub.in_force import InForce
from trunkline.hub.judging import Case, Judging
from trunkline.hub.limits import CALL_BYTES, HOUR_S, Load, Loads, written_at_most
from trunkline.hub.registry import Agent, Registry, Tool
from trunkline.hub.state import Call, State, held_beside
from trunkline.model import INLINE_OUTPUT_BYTES, NOBODY, Now, Status, agent_of, share_of
from trunkline.schemas import value_of

RUNNING: Final = Status.RUNNING
SUCCEEDED: Final = Status.SUCCEEDED
# Every tool of a large exchange for a few busy callers; then all begin anew.
MAX_LANES: Final = 4_096


class Lane(Struct):
    """What all calls of one caller, for the callers he works for, to one tool have in common."""

    terms: Terms
    tool: Tool
    agent: Agent
    load: Load
    timeout_ms: int | None
    timeout_s: float
    # What is larger than this is not quickly told to be valid.
    max_input_bytes: int
    is_valid: Callable[[Any], bool]
    max_output_bytes: int
    is_valid_output: Callable[[Any], bool] | None
    max_open_calls: int
    max_open_bytes: int
    # What is written for the caller beyond this is judged with care.
    max_written: int
    # Whether its agent is told of a call only when the call is on disk.
    delivers_stored: bool


class Lanes:
    """The open lanes, by caller, tool and the callers before him; and the calls that came by one."""

    def __init__(
        self,
        state: State,
        registry: Registry,
        loads: Loads,
        calls: Calls,
        alarms: Alarms,
        judging: Judging,
        fingerprints: Fingerprints,
        in_force: InForce,
        call_prefix: str,
    ) -> None:
        self._state = state
        self._registry = registry
        self._loads = loads
        self._calls = calls
        self._alarms = alarms
        self._judging = judging
        self._fingerprints = fingerprints
        self._in_force = in_force
        self._call_prefix = call_prefix
        self._lanes: dict[tuple[str, str, tuple[str, ...]], Lane] = {}
        # Those who have a lane, and the agent behind each, if one is here: for whom they ask is looked up there.
        self._askers: dict[str, Agent | None] = {}
        # Open calls that came by a lane, by their id.
        self.under_way: dict[str, Lane] = {}

    def close(self) -> None:
        """Something changed: judge everything anew, and look at every result with care."""
        self._lanes.clear()
        self._askers.clear()
        self.under_way.clear()

    def leave(self, call_id: str) -> None:
        """Something happens to this call that is not ordinary."""
        self.under_way.pop(call_id, None)

    def open(self, case: Case, terms: Terms) -> None:
        """Remember what a call rested on that was just sent, if the next one like it can be taken on by that alone."""
        if not self._is_ordinary(case):
            return
        if len(self._lanes) >= MAX_LANES:
            self.close()
        tool, agent, limits = case.tool, case.agent, self._in_force.settings.limits
        definition, output = tool.definition, tool.output_validator
        timeout_ms = None if agent.timeout_s is None else int(agent.timeout_s * 1000)
        self._askers[case.caller] = self._registry.agents.get(agent_of(case.caller))
        self._lanes[case.caller, case.event.tool_id, terms.chain] = Lane(
            terms,
            tool,
            agent,
            self._loads.of(case.caller),
            timeout_ms,
            0.0 if timeout_ms is None else timeout_ms / 1000,
            min(definition.max_input_bytes, tool.validator.quick_bytes),
            tool.validator.is_valid,
            min(definition.max_output_bytes, INLINE_OUTPUT_BYTES, output.quick_bytes if output else sys.maxsize),
            None if output is None else output.is_valid,
            limits.open_calls or sys.maxsize,
            limits.open_bytes or sys.maxsize,
            written_at_most(case.caller, limits) or sys.maxsize,
            terms.side_effects and not agent.only_records,
        )

    def _is_ordinary(self, case: Case) -> bool:
        """Whether nothing about this call needs to be judged again for the next one like it."""
        return (
            # One of many who come once: his lane would be there for nobody.
            share_of(case.caller) == case.caller
            and not case.event.sensitive
            and not case.verdict.sensitive
            and case.event.on_behalf_of is NOBODY
            and case.warning is None
            and (case.chain is NO_CHAIN or case.chain.cause is not None)
            and case.agent.breaker is None
            and not case.tool.definition.requires_directive
            # One alarm watches over all calls by lanes of an agent, whose times are equal.
            and case.tool.definition.timeout_ms is None
            and not self._in_force.settings.limits.calls_per_s
            and not self._judging.next_may_differ(case)
        )

    def try_accept(self, event: CallRequested, now: Now) -> tuple[Effect, ...] | None:
        """Take on and send an ordinary call."""
        state = self._state
        identity = event.caller.identity
        if identity not in self._askers:
            return None
        asking = self._askers[identity]
        cause = None
        chain: tuple[str, ...] = ()
        if asking is not None and (asking.running or asking.abandoned):
            # It works for somebody, and has to say for whom.
            cause = state.calls.get(event.causation_id or "")
            if cause is None or cause.session != asking.session or cause.status is not RUNNING:
                return None
            chain = (*cause.entry.chain, cause.entry.caller)
        elif event.causation_id is not None and event.causation_id in state.calls:
            return None
        lane = self._lanes.get((identity, event.tool_id, chain))
        if (
            lane is None
            or event.earlier is not None
            or event.timeout_ms is not None
            or event.expires_ms is not None
            or event.announce
            or event.sensitive
            or event.on_behalf_of is not NOBODY
        ):
            return None
        agent, load, body = lane.agent, lane.load, event.input
        running = agent.running
        size = len(body)
        beside = 0
        if event.context is not None or event.actor is not None:
            beside = held_beside(event.context, event.actor)
        if (
            len(running) >= agent.max_inflight
            or size > lane.max_input_bytes
            or load.calls >= lane.max_open_calls
            or load.bytes + size + beside > lane.max_open_bytes
            or load.written > lane.max_written
            # Another hour begins: the careful way counts anew.
            or (lane.max_written != sys.maxsize and now.mono - load.written_since >= HOUR_S)
            or not lane.is_valid(value_of(body) if event.value is None else event.value)
        ):
            return None

        key_id = input_mac = None
        if event.key is not None:
            key_id = self._fingerprints.key_id(identity, event.key)
            if key_id in state.keys:
                return None
            input_mac = self._fingerprints.input_mac(event.tool_id, body)
        correlation_id = event.correlation_id
        part_of, depth = None, 1
        if cause is not None:
            part_of, depth = cause.entry.n, cause.entry.depth + 1
            if depth > MAX_DEPTH or cause.entry.circumstances:
                return None
            if correlation_id is None:
                correlation_id = cause.correlation_id
        terms = lane.terms
        number = state.last + 1
        mono, ms = now.mono, int(now.wall * 1000)
        session = agent.session
        call_id = f"{self._call_prefix}{number:012x}"
        entry = accepted_entry(
            number, ms, call_id, event, terms, part_of, depth, correlation_id, key_id=key_id, input_mac=input_mac
        )
        timeout_ms = lane.timeout_ms
        deadline = 0.0 if timeout_ms is None else mono + lane.timeout_s
        call = Call(
            entry, RUNNING, 1, None, (), size, session, ((event.session, event.ref),), ms, deadline, mono, event.actor,
            event.context,
        )  # fmt: skip
        if beside:
            call.beside = beside
        state.open(call)
        self.under_way[call_id] = lane
        running[number] = None
        load.calls += 1
        load.bytes += size + beside
        if deadline and not agent.alarm_at:
            self._alarms.watch(agent, deadline)
        return (
            entry,
            Deliver(
                session, number if lane.delivers_stored else 0, call_id, event.tool_id, body, terms.caller,
                correlation_id or call_id, timeout_ms, call_id if event.key is None and terms.dedupes else event.key,
                event.causation_id, event.actor, event.context, 1, chain,
            ),
        )  # fmt: skip

    def try_settle(self, event: CallFinished, now: Now) -> tuple[Effect, ...] | None:
        """Settle an ordinary call that succeeded."""
        call_id, output = event.call_id, event.output
        lane = self.under_way.pop(call_id, None)
        if lane is None:
            return None
        state = self._state
        call = state.calls.get(call_id)
        if (
            call is None
            or event.status is not SUCCEEDED
            or output is None
            or event.metrics is not None
            or call.session != event.session
            or call.status is not RUNNING
            # An alarm of its own: somebody left, or it was asked to stop.
            or call.wake_at
            or call.stream is not None
            or not call.waiters
            or call.joined
            or lane.agent.queue
            or len(output) > lane.max_output_bytes
            or (
                lane.is_valid_output is not None
                and not lane.is_valid_output(value_of(output) if event.value is None else event.value)
            )
        ):
            return None

        agent, load, accepted = lane.agent, lane.load, call.entry
        number = state.last + 1
        ms, started_ms = int(now.wall * 1000), call.started_ms
        settled = CallSettled(number, ms, accepted.n, call_id, SUCCEEDED, output, None, started_ms, ms)
        state.settle(call, settled)
        del agent.running[accepted.n]
        agent.unanswered = 0
        lane.tool.succeeded += 1
        self._calls.settled[SUCCEEDED] += 1
        if started_ms is not None:
            self._calls.durations.add(accepted.tool_id, accepted.tool_id, SUCCEEDED, ms - started_ms)
        load.calls -= 1
        load.bytes -= call.size + call.beside
        load.written += call.size + len(output) + CALL_BYTES
        ((session, ref),) = call.waiters
        return (
            settled,
            Answer(
                session, number if accepted.side_effects else 0, ref, call_id, SUCCEEDED, output, None, started_ms, ms,
                accepted.correlation_id, False, None, call.deadline if accepted.side_effects else 0.0,
            ),
        )  # fmt: skip

"""Judging a requested call: every reason to say no, in one order, before anything is taken on.

A ``Case`` is one request on its way through the steps. Each step looks at one thing, writes into the case what it found
out, and gives a ``Refusal`` or None. ``Judging.refusal`` is the order: who wants to know why a call is refused, or adds
a reason, reads it from top to bottom. A dry run (``Judging.dry_refusal``) takes some of the same steps.

A repeat of a key goes through ``Judging.repeat_refusal`` only: it is no new call, but who asks has to be one who may.

Does not own the earlier call that a repeat joins (``hub``), the rules themselves (``policy``), who is told, or what
happens to a call that was taken on (``calls``).

Invariant: only the last step, and the one about the pace, count anything: a refused call leaves nothing behind.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.events import CallRequested
from trunkline.hub import chains
from trunkline.hub.approvals import Approvals, Shown
from trunkline.hub.calls import Calls
from trunkline.hub.chains import NO_CHAIN, Chain
from trunkline.hub.control import Control
from trunkline.hub.idempotency import Fingerprints
from trunkline.hub.in_force import InForce
from trunkline.hub.limits import Loads
from trunkline.hub.policy import LACKING, Judge
from trunkline.hub.registry import Agent, Registry, Tool
from trunkline.hub.routing import Routing, with_own
from trunkline.hub.state import State, body_size, held_beside
from trunkline.model import (
    EMPTY_OBJECT,
    Behalf,
    Circumstance,
    Circumstances,
    Decision,
    Fault,
    Now,
    Principal,
    Verdict,
    agent_of,
    fault,
    tool_agent,
)

# A look into an enum takes 70 ns.
ASK: Final = Decision.ASK
NONE: Final[Circumstances] = frozenset()
# An agent restarted by its supervisor is usually back within this time.
RETRY_UNAVAILABLE_MS: Final = 1000


class Refusal(Struct, frozen=True):
    """Why a call is not taken on; and the rule and the callers that the record names with it, where they matter."""

    fault: Fault
    rule: str = ""
    chain: tuple[str, ...] = ()
    # What the record says besides; no word of the input.
    why: str = ""


class Case:
    """One requested call while it is judged, and all that was found out about it so far."""

    # There once the step that finds it out was taken.
    tool: Tool
    # The tool that serves the call: ``tool`` itself, unless that one stands for others.
    provider: Tool
    # The provider's.
    agent: Agent
    correlation_id: str | None
    circumstances: Circumstances
    verdict: Verdict
    has_slot: bool
    # There only if there is something to say.
    chain: Chain = NO_CHAIN
    key_id: str | None = None
    input_mac: str | None = None
    directive_id: str | None = None
    # What is wrong with the input, where the exchange only warns of it.
    warning: str | None = None

    def __init__(self, event: CallRequested) -> None:
        self.event = event
        self.caller = event.caller.identity
        # Of its input, in bytes.
        self.size = body_size(event.input)
        # Of what it holds beside that.
        self.beside = held_beside(event.context, event.actor)

    @property
    def asks(self) -> bool:
        """Whether a person is asked first."""
        return self.verdict.decision is ASK

    def refused(self, problem: Fault) -> Refusal:
        """Refused to these callers, by the rule that spoke of them."""
        return Refusal(problem, self.verdict.rule, self.chain.callers, self.verdict.for_record)


class Judging:
    """The steps by which a call is judged."""

    def __init__(
        self,
        state: State,
        registry: Registry,
        loads: Loads,
        calls: Calls,
        approvals: Approvals,
        fingerprints: Fingerprints,
        judge: Judge,
        control: Control,
        routing: Routing,
        in_force: InForce,
    ) -> None:
        self._state = state
        self._registry = registry
        self._loads = loads
        self._calls = calls
        self._approvals = approvals
        self._fingerprints = fingerprints
        self._judge = judge
        self._control = control
        self._routing = routing
        self._in_force = in_force

    def refusal(self, case: Case, now: Now) -> Refusal | None:
        """The order: what the first step says that says no. None: the call is taken on, and counts for its caller."""
        return (
            self.exchange_is_open()
            or self.caller_keeps_the_pace(case, now)
            or self.tool_is_known(case)
            or self.chain_may_go_on(case, now)
            or self.policy_agrees(case, now)
            or self.directive_is_stated(case, now)
            or self.tool_is_fit(case, now)
            or self.input_is_valid(case)
            or self.guard_agrees(case)
            or self.provider_is_there(case, now)
            or self.place_is_free(case)
            or self.caller_has_room(case)
        )

    def dry_refusal(self, case: Case, now: Now, *, has_input: bool) -> Refusal | None:
        """The same of a call that nobody makes: what the rules say, and to its input if it has one.

        The tool is given, and for whom the caller asks. What passes by itself (a missing directive, an agent that is
        away, full slots) is left out.
        """
        case.chain = chains.added(NO_CHAIN, case.event.on_behalf_of)
        refusal = self.policy_agrees(case, now)
        if refusal is None and has_input:
            refusal = self.input_is_valid(case) or self.guard_agrees(case)
        return refusal

    def repeat_refusal(self, case: Case, provider: str | None, now: Now) -> Refusal | None:
        """Of who asks for a call that has been taken on: nothing of it is told to those who may not make it now, or may
        not call the tool that served it (``provider``, if that is another).
        """
        self.find_chain(case, now)
        refusal = self.policy_agrees_to_repeat(case, case.event.tool_id, now)
        return refusal if refusal is not None or provider is None else self.policy_agrees_to_repeat(case, provider, now)

    # -- the exchange, and what the caller does to it ------------------------------------------------------------------

    def exchange_is_open(self) -> Refusal | None:
        """The exchange takes new calls on."""
        closed = self._in_force.closed
        return None if closed is None else Refusal(closed)

    def caller_keeps_the_pace(self, case: Case, now: Now) -> Refusal | None:
        """Counted whatever comes of the call: a flood of calls that are refused is a flood."""
        limits = self._in_force.settings.limits
        problem = self._loads.try_pace(case.caller, limits, now.mono) or self._loads.try_write(
            case.caller, limits, now.mono
        )
        return None if problem is None else Refusal(problem)

    # -- who calls what, and for whom ----------------------------------------------------------------------------------

    def tool_is_known(self, case: Case) -> Refusal | None:
        """A tool that was pinned once belongs to an agent that is away; any other does not exist."""
        tool_id = case.event.tool_id
        tool = self._registry.tools.get(tool_id)
        if tool is not None:
            case.tool = tool
            return None
        agent_id = tool_agent(tool_id)
        is_away = tool_id in self._state.pins and agent_id not in self._registry.agents
        return Refusal(_unavailable(self._registry.why_away(agent_id)) if is_away else fault("tool.not_found"))

    def chain_may_go_on(self, case: Case, now: Now) -> Refusal | None:
        """Those whom the caller works for stand behind the call; nobody is called in a circle, or too deep."""
        agent = case.tool.agent
        self.find_chain(case, now)
        if agent is not None and (case.chain is not NO_CHAIN or agent_of(case.caller) == agent.agent_id):
            problem = chains.refusal(case.chain, case.caller, agent.identity)
            if problem is not None:
                return Refusal(problem, chain=case.chain.callers)
        return None

    def find_chain(self, case: Case, now: Now) -> None:
        """Find out for whom the caller asks: the one place that does, whatever edge, token and session he asks by."""
        working, named_id = list(self._calls.worked_on(case.caller, now)), case.event.causation_id or None
        if working or named_id is not None:
            # One that ended without the agent's word is not open, and may be named all the same.
            named = next((call for call in working if call.entry.call_id == named_id), None)
            case.chain = chains.chain_of(case.caller, named or self._state.calls.get(named_id or ""), working)
        case.chain = chains.added(case.chain, case.event.on_behalf_of)

    def behalf(self, caller: str, now: Now) -> Behalf:
        """For whom ``caller`` asks at this moment, and under which circumstances: to be kept with what he asks for."""
        case = self._case_of(caller, now)
        return Behalf(case.chain.callers, case.chain.depth, tuple(sorted(case.circumstances)))

    def judged(self, caller: str, name: str, now: Now) -> Verdict:
        """What policy says to a name that is no tool, for ``caller`` and those for whom he asks at this moment."""
        case = self._case_of(caller, now)
        return self._judge.judge_name(name, (*case.chain.callers, caller), case.circumstances)

    def _case_of(self, caller: str, now: Now) -> Case:
        case = Case(CallRequested(0, "", Principal(caller), "", EMPTY_OBJECT))
        self.find_chain(case, now)
        self.find_circumstances(case, now)
        return case

    def find_circumstances(self, case: Case, now: Now) -> None:
        """Find out under which circumstances the call is made: the one place that does."""
        cause = case.chain.cause
        case.correlation_id = case.event.correlation_id
        if case.correlation_id is None and cause is not None:
            case.correlation_id = cause.correlation_id
        behalf = case.event.on_behalf_of
        case.circumstances = frozenset(behalf.circumstances) if behalf.circumstances else NONE
        if self._is_untrusted(case, now):
            case.circumstances |= {Circumstance.UNTRUSTED}

    def next_may_differ(self, case: Case) -> bool:
        """Whether a later call like this one may have to be judged otherwise, though nothing else happened meanwhile:
        it may be made under other circumstances, or a rule, or its tool's guard or router, looks at each input.
        """
        agent_id = case.agent.agent_id
        return bool(
            case.circumstances
            or self._state.tainted
            or self._state.tainted_agents
            or self._in_force.settings.untrusted_agents
            or self._judge.looks_at_input(case.tool)
            or agent_id in self._judge.guards
            or self._routing.is_routed(case.event.tool_id)
        )

    def _is_untrusted(self, case: Case, now: Now) -> bool:
        """Whether what strangers wrote may be behind this call (decision 14).

        What the caller received counts, and the calls it was made for: an agent does not shake it off by naming another
        correlation, or none.
        """
        state, agent_id, taint_ms = self._state, agent_of(case.caller), self._in_force.settings.limits.taint_ms
        if agent_id and self._calls.is_touched(agent_id, now):
            return True
        if case.correlation_id is not None and (
            state.is_tainted(case.correlation_id, now.ms, taint_ms) or state.forgotten_taint(agent_id, now.ms, taint_ms)
        ):
            return True
        return any(
            Circumstance.UNTRUSTED in cause.entry.circumstances
            or state.is_tainted(cause.correlation_id, now.ms, taint_ms)
            for cause in case.chain.causes
        )

    def policy_agrees(self, case: Case, now: Now) -> Refusal | None:
        """No rule denies the call to anybody in the chain, under the circumstances in which it is made."""
        self.find_circumstances(case, now)
        event, callers = case.event, (*case.chain.callers, case.caller)
        case.verdict = self._judge.verdict(case.tool, callers, case.circumstances, event.input, event.value)
        problem = case.verdict.fault  # OS-103, OS-104
        return None if problem is None else case.refused(self._with_question(problem, case.verdict))

    def _with_question(self, problem: Fault, verdict: Verdict) -> Fault:
        """Who lacks a permission that a person has been asked for hears which answer would give it."""
        if verdict.rule != LACKING:
            return problem
        approval_id = self._approvals.about_permissions(agent_of(verdict.caller))
        if approval_id is None:
            return problem
        return replace(problem, message=f"{problem.message}; it is asked for: `trunkline approve {approval_id}`")

    def policy_agrees_to_repeat(self, case: Case, tool_id: str, now: Now) -> Refusal | None:
        """The same of a tool that may not be offered now; and its guard agrees."""
        self.find_circumstances(case, now)
        tool, pin = self._registry.tools.get(tool_id), self._state.pins.get(tool_id)
        known = tool if tool is not None and not tool.suspended else None if pin is None else pin.definition
        if known is None:
            # Never offered: the call that has the key is another tool's, which is a conflict.
            return None
        callers = (*case.chain.callers, case.caller)
        case.verdict = self._judge.whole_verdict(known, callers, case.circumstances, case.event.input)
        problem = case.verdict.fault
        return None if problem is None else case.refused(problem)

    def directive_is_stated(self, case: Case, now: Now) -> Refusal | None:
        """The call names an intent that was stated for it, if its tool needs one."""
        if not case.tool.definition.requires_directive:
            return None
        directive = self._control.directive_for(case.event, now)
        if isinstance(directive, Fault):  # OS-085
            return case.refused(directive)
        case.directive_id = directive
        return None

    # -- the tool and the input, whoever asks --------------------------------------------------------------------------

    def tool_is_fit(self, case: Case, now: Now) -> Refusal | None:
        """The tool can be called now, with an input of this size."""
        tool, event = case.tool, case.event
        agent, definition = tool.agent, tool.definition
        if tool.suspended:
            return Refusal(fault("tool.suspended"))
        if agent is None or not agent.is_usable:  # OS-132
            return Refusal(_unavailable(self._registry.why_away(tool_agent(definition.tool_id))))
        if tool.quarantined_until > now.mono:
            return Refusal(_unavailable("the tool rests after it cost its agent three times"))
        if case.size > definition.max_input_bytes:  # OS-019, OS-021
            text = f"{case.size} bytes; the limit is {definition.max_input_bytes}"
            return Refusal(fault("tool.invalid_input", text), why=text)
        if event.expires_ms is not None and event.expires_ms <= now.ms:
            return Refusal(fault("call.expired"))
        case.provider, case.agent = tool, agent
        return None

    def input_is_valid(self, case: Case) -> Refusal | None:
        """The input is what the tool's schema says. Where the exchange only warns, the warning goes on record."""
        warning = case.tool.validator.error(case.event.input, case.event.value)
        if warning is None:
            return None
        if self._in_force.settings.schema_strict:  # OS-159
            why = case.tool.validator.error(case.event.input, case.event.value, for_record=True) or ""
            return Refusal(fault("tool.invalid_input", warning), why=why)
        case.warning = warning
        return None

    def guard_agrees(self, case: Case) -> Refusal | None:
        """The agent behind the tool, where it is part of the exchange, has nothing against this input."""
        if not self._judge.guards:
            return None
        case.verdict = self._judge.guarded(case.verdict, case.event.tool_id, case.event.input)
        problem = case.verdict.fault
        return None if problem is None else case.refused(problem)

    def provider_is_there(self, case: Case, now: Now) -> Refusal | None:
        """If the tool stands for others, one of them can serve this call now, and may for everybody in the chain. If
        policy asks about all that can, a person is asked about the call.
        """
        event = case.event
        if not self._routing.is_routed(event.tool_id):
            return None
        callers = (*case.chain.callers, case.caller)
        provider = self._routing.provider(
            event.tool_id, event.input, callers, case.circumstances, now, agrees=lambda *_: case.asks
        )
        if provider is None or provider.agent is None:
            return Refusal(_unavailable("nobody that the callers may call can serve this now"))
        verdict = self._routing.verdict(provider, event.input, callers, case.circumstances)
        if verdict.decision is ASK:
            case.verdict = with_own(case.verdict, verdict, provider.definition.tool_id)
        case.provider, case.agent = provider, provider.agent
        return None

    # -- room ----------------------------------------------------------------------------------------------------------

    def place_is_free(self, case: Case) -> Refusal | None:
        """The call can be sent, or wait: for a person's answer, or for a slot of its agent."""
        agent = case.agent
        case.has_slot = len(agent.running) < agent.max_inflight
        if case.asks:
            return self._may_ask(case)
        if not case.has_slot and not agent.queue.has_place(case.caller):  # OS-018
            is_full = agent.queue.is_full
            text = "the agent's queue is full" if is_full else "your share of the agent's queue is full"
            return case.refused(fault("limit.inflight", text))
        return None

    def _may_ask(self, case: Case) -> Refusal | None:
        if case.input_mac is None:
            case.input_mac = self._fingerprints.input_mac(case.event.tool_id, case.event.input)
        shown = Shown(
            caller=case.caller,
            chain=case.chain.callers,
            input_mac=case.input_mac,
            policy=self._in_force.settings.policy.version,
            fingerprint=case.tool.fingerprint,
            circumstances=tuple(sorted(case.circumstances)),
            rule=case.verdict.rule,
            reason=case.verdict.reason,
            context=case.event.context,
            actor=case.event.actor,
            provider=None if case.provider is case.tool else case.provider.definition.tool_id,
        )
        same = self._approvals.same_question(shown)
        problem = None if same is not None else self._approvals.refusal(case.caller)
        return None if problem is None else case.refused(problem)

    def caller_has_room(self, case: Case) -> Refusal | None:
        """The last step: from here on the call counts among the caller's open ones."""
        problem = self._loads.try_take(case.caller, case.size + case.beside, self._in_force.settings.limits)
        return None if problem is None else case.refused(problem)


def _unavailable(text: str) -> Fault:
    return fault("tool.unavailable", text, details={"retry_after_ms": RETRY_UNAVAILABLE_MS})

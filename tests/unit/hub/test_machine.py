"""Random agents, tools, calls, keys, answers, cancels, time, disconnects and crashes; ``kit`` holds what must hold.

After each step: the kit's checks and ``hub.invariants.check``. At the end: nothing stays open for ever, everybody who
still waits has one answer, and the fold of all entries, the fold from any snapshot and the live state are one state.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw
from msgspec.structs import replace

from tests.unit.hub.kit import ALL, ASK, BOSS, DESK, Asked, Kit, body, rules, tool
from trunkline import entries, events
from trunkline.hub.approvals import MAX_OPEN_BY_ONE
from trunkline.model import (
    OPERATOR,
    BreakerPolicy,
    Circumstance,
    Decision,
    Health,
    Manifest,
    Policy,
    Principal,
    RetryPolicy,
    Rule,
    Status,
    ToolDefinition,
    fault,
)

pytestmark = pytest.mark.slow

AGENTS = ("com.a", "com.b", "com.c")
# Its tools stand for those of the others.
ROUTED = "com.r"
EVERYBODY = (*AGENTS, ROUTED)
CHECKER = Principal("http:checker", ("approve",))
PEOPLE = (BOSS, Principal("http:script"), CHECKER)
POLICIES = (
    ALL,
    ASK,
    rules(("operator", "*", "allow"), ("opensentience:*", "com.a/*", "deny"), ("*", "*", "ask"), version="v2"),
    rules(
        Rule("untrusted", "*", "*", Decision.ASK, when=Circumstance.UNTRUSTED, side_effects=True),
        ("*", "*", "allow"),
        version="v3",
    ),
)
NAMES = ("read", "write", "once", "stoppable", "stoppable_write", "intended")


def tools_of(agent_id: str, wording: str) -> list[ToolDefinition]:
    return [
        tool(f"{agent_id}/read", description=wording, side_effects=False),
        tool(f"{agent_id}/write"),
        tool(f"{agent_id}/once", capabilities=("idempotency",)),
        tool(f"{agent_id}/stoppable", capabilities=("cancellation",), side_effects=False),
        tool(f"{agent_id}/stoppable_write", capabilities=("cancellation",)),
        tool(f"{agent_id}/intended", requires_directive=True, side_effects=False),
    ]


def router(tool_id: str, given: Raw) -> list[str]:
    """Each of the agents, beginning with another one for each input; now and then the tool itself."""
    name, turn = tool_id.partition("/")[2], bytes(given) != b'{"value":0}'
    return [f"{agent}/{name}" for agent in (*AGENTS[turn:], *AGENTS[:turn], *(() if turn else (ROUTED,)))]


some_tool = st.builds("{}/{}".format, st.sampled_from((*EVERYBODY, ROUTED)), st.sampled_from(NAMES))
terms = st.fixed_dictionaries(
    {
        "tool_id": some_tool,
        "value": st.integers(0, 1),
        "key": st.sampled_from([None, None, "k1", "k2"]),
        "timeout_ms": st.sampled_from([None, 500, 60_000]),
        "expires_in": st.sampled_from([None, None, None, -1, 1, 3000, 20_000]),
        "correlation_id": st.sampled_from([None, None, "c1", "c2"]),
    }
)


class HubMachine(RuleBasedStateMachine):
    """The hub under everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.kit = Kit()
        # Requests that still expect an answer: not left, not from before a crash.
        self.asked: list[Asked] = []
        self.directives: list[tuple[str, str]] = []

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Policy) -> None:
        self.kit.in_force(policy, untrusted_agents=frozenset({"com.c"}))
        self.kit.route(ROUTED, router)
        for agent in EVERYBODY:
            self.come(agent, "first", 2, False)

    def _running(self) -> list[str]:
        return [call.entry.call_id for call in self.kit.state.calls.values() if call.status is Status.RUNNING]

    def _present(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.kit.sessions)))

    def _gone(self, agent: str) -> None:
        session = self.kit.sessions.get(agent)
        self.asked = [asked for asked in self.asked if asked.session != session]

    # -- calls ---------------------------------------------------------------------------------------------------------

    @rule(caller=st.sampled_from(PEOPLE), terms=terms)
    def call(self, caller: Principal, terms: dict[str, Any]) -> None:
        self._call(caller, **terms)

    @precondition(lambda self: self.kit.sessions)
    @rule(data=st.data(), terms=terms)
    def call_as_agent(self, data: st.DataObject, terms: dict[str, Any]) -> None:
        self._call(self._present(data), **terms)

    @precondition(lambda self: self._running())
    @rule(data=st.data(), terms=terms, is_named=st.booleans())
    def call_while_working(self, data: st.DataObject, terms: dict[str, Any], is_named: bool) -> None:
        call_id = data.draw(st.sampled_from(self._running()))
        worker = self.kit.state.calls[call_id].session
        agent = next(agent for agent, session in self.kit.sessions.items() if session == worker)
        self._call(agent, causation_id=call_id if is_named else None, **terms)

    @precondition(lambda self: self.directives)
    @rule(data=st.data(), caller=st.sampled_from(PEOPLE))
    def call_as_intended(self, data: st.DataObject, caller: Principal) -> None:
        tool_id, directive_id = data.draw(st.sampled_from(self.directives))
        self.asked.append(self.kit.call(tool_id, {"value": 0}, by=caller, causation_id=directive_id))

    @precondition(lambda self: self.kit.log_of(entries.CallAccepted))
    @rule(data=st.data())
    def call_again(self, data: st.DataObject) -> None:
        """The same call by the same caller, under the same key if it had one."""
        entry = data.draw(st.sampled_from(self.kit.log_of(entries.CallAccepted)[-5:]))
        edge, _, name = entry.caller.partition(":")
        if edge != "opensentience":
            self.asked.append(self.kit.call(entry.tool_id, entry.input, by=Principal(entry.caller), key=entry.key))
        elif name in self.kit.sessions:
            self.asked.append(self.kit.call(entry.tool_id, entry.input, by=name, key=entry.key))

    def _call(self, caller: Principal | str, *, tool_id: str, value: int, expires_in: int | None, **rest: Any) -> None:
        expires_ms = None if expires_in is None else self.kit.now.ms + expires_in
        self.asked.append(
            self.kit.call(tool_id, {"value": value}, by=caller, expires_ms=expires_ms, announce=value == 1, **rest)
        )

    @precondition(lambda self: self._running())
    @rule(data=st.data(), status=st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.CANCELED]))
    def finish(self, data: st.DataObject, status: Status) -> None:
        self.kit.finish(data.draw(st.sampled_from(self._running())), {}, status=status)

    @precondition(lambda self: self._running())
    @rule(data=st.data(), code=st.sampled_from(["tool.timeout", "tool.unavailable", "limit.resource", "tool.failed"]))
    def fail_attempt(self, data: st.DataObject, code: str) -> None:
        call = self.kit.state.calls[data.draw(st.sampled_from(self._running()))]
        problem = fault(code, retryable=code != "tool.failed")
        self.kit.feed(events.AttemptFailed(call.session, call.entry.call_id, problem))

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def show(self, data: st.DataObject) -> None:
        call = self.kit.state.calls[data.draw(st.sampled_from(self._running()))]
        chunk = body({"text": "something"})
        self.kit.feed(events.CallProgressed(call.session, call.entry.call_id, 1, "stdout", chunk))

    @precondition(lambda self: self.kit.deliveries)
    @rule(data=st.data(), session=st.sampled_from([DESK, 10, 11, 12, 13, 14, 99]))
    def speak_out_of_turn(self, data: st.DataObject, session: int) -> None:
        """A result from any session about any call that was ever sent."""
        call_id = data.draw(st.sampled_from(self.kit.deliveries)).call_id
        call = self.kit.state.calls.get(call_id)
        is_its_turn = call is not None and call.session == session and call.status is Status.RUNNING
        before = set(self.kit.outcomes)
        self.kit.finish(call_id, {}, session=session)
        settled = [outcome.call_id for number, outcome in self.kit.outcomes.items() if number not in before]
        # Where it was its turn, what waited for its place is judged too, by the rules of now.
        assert settled[:1] == [call_id] if is_its_turn else not settled

    @precondition(lambda self: self.kit.state.calls)
    @rule(data=st.data(), by=st.sampled_from([BOSS, Principal("http:script")]), reason=st.sampled_from(["", "timeout"]))
    def cancel(self, data: st.DataObject, by: Principal, reason: str) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.kit.state.calls)))
        self.kit.feed(events.CancelRequested(DESK, f"cancel-{len(self.kit.log)}", by, call_id=call_id, reason=reason))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def stop_waiting(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        self.asked.remove(asked)
        self.kit.feed(events.CallerLeft(asked.session, asked.ref))

    # -- people --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.kit.state.questions)
    @rule(data=st.data(), approved=st.booleans(), by=st.sampled_from([BOSS, CHECKER]))
    def answer(self, data: st.DataObject, approved: bool, by: Principal) -> None:
        approval_id = data.draw(st.sampled_from(sorted(self.kit.state.questions)))
        self.kit.answer(approval_id, approved=approved, by=by)

    @rule(agent=st.sampled_from(AGENTS), value=st.sampled_from([None, {"value": 0}]))
    def state_intent(self, agent: str, value: object) -> None:
        reply = self.kit.directive(f"{agent}/intended", value)
        assert reply.id is not None
        self.directives = [*self.directives[-2:], (f"{agent}/intended", reply.id)]

    @rule(policy=st.sampled_from(POLICIES), unpinned=st.booleans())
    def change_rules(self, policy: Policy, unpinned: bool) -> None:
        self.kit.in_force(
            policy,
            untrusted_agents=frozenset({"com.c"}),
            unpinned_agents=frozenset(AGENTS if unpinned else ()),
        )

    @precondition(lambda self: self.kit.sessions)
    @rule(data=st.data(), then=st.sampled_from(["answer", "asks on", "asks on", *POLICIES]))
    def five_open_one_held_and_the_rules_change(self, data: st.DataObject, then: Policy | str) -> None:
        """An agent asks as much as it may, two calls wait behind one question, and its manifest waits its turn."""
        agent = self._present(data)
        self.change_rules(ASK, False)
        target = data.draw(st.sampled_from([other for other in AGENTS if other != agent]))
        for value in (*range(MAX_OPEN_BY_ONE), 0):
            self.asked.append(self.kit.call(f"{target}/write", {"value": value}, by=agent))
        self.come(agent, "first", 2, True)
        if isinstance(then, Policy):
            self.change_rules(then, False)
        elif then == "answer" and self.kit.state.questions:
            self.answer(data, True, BOSS)
        else:
            self.change_rules(replace(ASK, version="asks on"), False)

    # -- agents and the world ------------------------------------------------------------------------------------------

    @rule(
        agent=st.sampled_from(EVERYBODY),
        wording=st.sampled_from(["first", "second"]),
        slots=st.integers(1, 3),
        permissions=st.booleans(),
    )
    def come(self, agent: str, wording: str, slots: int, permissions: bool) -> None:
        manifest = Manifest("m" * 64, ("files:read",)) if permissions else None
        self._gone(agent)
        # One of them has an edge whose attempts can fail, and that gives its agents a rest.
        rules: dict[str, Any] = {"retry": RetryPolicy(), "breaker": BreakerPolicy(2)} if agent == "com.b" else {}
        self.kit.attach(agent, *tools_of(agent, wording), max_inflight=slots, manifest=manifest, **rules)

    @precondition(lambda self: self.kit.sessions)
    @rule(data=st.data(), what=st.sampled_from(["leave", "withdraw", "offer", "wish", *Health]))
    def something_about_an_agent(self, data: st.DataObject, what: str) -> None:
        agent = self._present(data)
        if isinstance(what, Health):
            self.kit.health(agent, what)
        elif what == "leave":
            self._gone(agent)
            self.kit.leave(agent)
        elif what == "withdraw":
            self.kit.withdraw(agent, data.draw(some_tool), f"{agent}/{data.draw(st.sampled_from(NAMES))}")
        elif what == "offer":
            wording = data.draw(st.sampled_from(["first", "second", "third"]))
            self.kit.offer(agent, *tools_of(agent, wording), replace=data.draw(st.booleans()))
        else:
            by, ref = Principal(f"opensentience:{agent}"), f"wish-{len(self.kit.log)}"
            session = self.kit.sessions[agent]
            self.kit.feed(events.DirectiveRequested(session, ref, by, "com.a/intended", None, "please"))

    @rule(is_routed=st.sampled_from([True, True, False]))
    def change_router(self, is_routed: bool) -> None:
        self.kit.route(ROUTED, router if is_routed else None)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 2.5, 5.1, 10.1, 31.0, 61.0, 3601.0, 90_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.kit.advance(seconds)

    @rule(seconds=st.sampled_from([-3600.0, -1.0, 1.0, 3600.0]))
    def jump_wall_clock(self, seconds: float) -> None:
        self.kit.wall += seconds
        self.kit.snapshot()

    @rule(data=st.data(), is_partial=st.booleans(), come_back=st.sampled_from([2, 3, 4, 4]))
    def crash(self, data: st.DataObject, is_partial: bool, come_back: int) -> None:
        """Everything is kept, or only a part of what the last event led to."""
        self.kit.crash(data.draw(st.integers(*self.kit.step)) if is_partial else None)
        self.asked = []
        for agent in EVERYBODY[:come_back]:
            self.come(agent, "first", 2, False)

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def five_questions_at_most(self) -> None:
        counts: dict[str, int] = {}
        for question in self.kit.state.questions.values():
            by = question.entry.asked_by
            counts[by] = counts.get(by, 0) + 1
        assert all(count <= MAX_OPEN_BY_ONE for by, count in counts.items() if by != OPERATOR), counts

    @invariant()
    def nobody_answers_themselves(self) -> None:
        opened = {e.approval_id: e for e in self.kit.log_of(entries.QuestionOpened)}
        for closed in self.kit.log_of(entries.QuestionClosed):
            if closed.by not in {"", "policy", OPERATOR}:
                question = opened[closed.approval_id]
                assert closed.by not in {question.asked_by, *question.chain}

    def teardown(self) -> None:
        """In the end nothing is open, and everybody who waits was told."""
        kit = self.kit
        kit.snapshot()
        kit.advance(100.0)  # everybody who asked through an agent is told while it is here
        asked = [asked for asked in self.asked if asked.answer is None]
        for agent in list(kit.sessions):
            kit.leave(agent)
        for _ in range(3):
            kit.advance(3700.0)
        assert kit.state.calls == {}
        assert kit.state.questions == {}
        assert len(kit.hub.timers) == 0
        for each in asked:
            assert each.answer is not None or each.session != DESK, f"{each.ref} waits for ever"
        kit.crash()


HubMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
TestHubMachine = HubMachine.TestCase

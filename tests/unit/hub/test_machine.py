"""Random agents, tools, calls, keys, answers, cancels, time, disconnects and crashes; ``kit`` holds what must hold.

After each step: the kit's checks and ``hub.invariants.check``. At the end: nothing stays open for ever, everybody who
still waits has one answer, and the fold of all entries, the fold from any snapshot and the live state are one state.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.hub.kit import ALL, ASK, BOSS, DESK, Asked, Kit, rules, tool
from trunkline import effects, entries, events
from trunkline.hub.approvals import MAX_OPEN_BY_ONE
from trunkline.model import OPERATOR, Health, Manifest, Principal, Rule, Status, ToolDefinition

AGENTS = ("com.a", "com.b", "com.c")
CHECKER = Principal("http:checker", ("approve",))
CALLERS = (BOSS, Principal("http:script"), CHECKER, *AGENTS)
POLICIES = (
    ALL,
    ASK,
    rules(("operator", "*", "allow"), ("opensentience:*", "com.a/*", "deny"), ("*", "*", "ask"), version="v2"),
    rules(
        Rule("untrusted", "*", "*", ASK.rules[1].decision, when="untrusted", side_effects=True),
        ("*", "*", "allow"),
        version="v3",
    ),
)


def tools_of(agent_id: str, wording: str) -> list[ToolDefinition]:
    return [
        tool(f"{agent_id}/read", description=wording, side_effects=False),
        tool(f"{agent_id}/write"),
        tool(f"{agent_id}/once", capabilities=("idempotency",)),
        tool(f"{agent_id}/stoppable", capabilities=("cancellation",), side_effects=False),
        tool(f"{agent_id}/stoppable_write", capabilities=("cancellation",)),
        tool(f"{agent_id}/intended", requires_directive=True, side_effects=False),
    ]


NAMES = ("read", "write", "once", "stoppable", "stoppable_write", "intended")
agents = st.sampled_from(AGENTS)
some_time = st.sampled_from([0.01, 0.3, 1.0, 2.5, 5.1, 10.1, 31.0, 61.0, 3601.0, 90_000.0])


class HubMachine(RuleBasedStateMachine):
    """The hub under everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.kit = Kit()
        # Requests that still expect an answer: not refused, not left, not from before a crash.
        self.asked: list[Asked] = []
        self.directives: list[str] = []

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Any) -> None:
        self.kit.in_force(policy, untrusted_agents=frozenset({"com.c"}))
        self.come("com.a", "first", 2, False)

    # -- agents --------------------------------------------------------------------------------------------------------

    @rule(
        agent=agents, wording=st.sampled_from(["first", "second"]), slots=st.integers(1, 3), permissions=st.booleans()
    )
    def come(self, agent: str, wording: str, slots: int, permissions: bool) -> None:
        manifest = Manifest("m" * 64, ("files:read",)) if permissions else None
        self._gone(agent)
        self.kit.attach(agent, *tools_of(agent, wording), max_inflight=slots, manifest=manifest)

    @precondition(lambda self: self.kit.sessions)
    @rule(agent=agents)
    def leave(self, agent: str) -> None:
        if agent in self.kit.sessions:
            self._gone(agent)
            self.kit.leave(agent)

    def _gone(self, agent: str) -> None:
        session = self.kit.sessions.get(agent)
        self.asked = [asked for asked in self.asked if asked.session != session]

    @rule(agent=agents, health=st.sampled_from(Health))
    def feel(self, agent: str, health: Health) -> None:
        if agent in self.kit.sessions:
            self.kit.health(agent, health)

    @rule(agent=agents, name=st.sampled_from(NAMES))
    def withdraw(self, agent: str, name: str) -> None:
        if agent in self.kit.sessions:
            self.kit.withdraw(agent, f"{agent}/{name}")

    @rule(agent=agents, wording=st.sampled_from(["first", "second", "third"]), replace=st.booleans())
    def offer(self, agent: str, wording: str, replace: bool) -> None:
        if agent in self.kit.sessions:
            self.kit.offer(agent, *tools_of(agent, wording), replace=replace)

    # -- calls ---------------------------------------------------------------------------------------------------------

    @rule(
        caller=st.sampled_from(CALLERS),
        agent=agents,
        name=st.sampled_from(NAMES),
        value=st.integers(0, 1),
        key=st.sampled_from([None, None, "k1", "k2"]),
        timeout_ms=st.sampled_from([None, 500, 60_000]),
        expires_in=st.sampled_from([None, None, -1, 1, 3000, 20_000]),
        correlation=st.sampled_from([None, None, "c1", "c2"]),
        data=st.data(),
    )
    def call(
        self,
        caller: Principal | str,
        agent: str,
        name: str,
        value: int,
        key: str | None,
        timeout_ms: int | None,
        expires_in: int | None,
        correlation: str | None,
        data: st.DataObject,
    ) -> None:
        if isinstance(caller, str) and caller not in self.kit.sessions:
            return
        causes = [None, *self.directives, *(d.call_id for d in self.kit.deliveries[-3:])]
        asked = self.kit.call(
            f"{agent}/{name}",
            {"value": value},
            by=caller,
            key=key,
            timeout_ms=timeout_ms,
            expires_ms=None if expires_in is None else self.kit.now.ms + expires_in,
            correlation_id=correlation,
            causation_id=data.draw(st.sampled_from(causes)),
            announce=value == 1,
        )
        self.asked.append(asked)

    def _running(self) -> list[str]:
        return [call.entry.call_id for call in self.kit.state.calls.values() if call.status is Status.RUNNING]

    @precondition(lambda self: self._running())
    @rule(
        data=st.data(),
        status=st.sampled_from([Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED, Status.CANCELED]),
    )
    def finish(self, data: st.DataObject, status: Status) -> None:
        self.kit.finish(data.draw(st.sampled_from(self._running())), {}, status=status)

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def show(self, data: st.DataObject) -> None:
        call = self.kit.state.calls[data.draw(st.sampled_from(self._running()))]
        self.kit.feed(
            events.CallProgressed(call.session, call.entry.call_id, 1, "stdout", tool("x/y").input_schema)
        )

    @precondition(lambda self: self.kit.deliveries)
    @rule(data=st.data(), session=st.sampled_from([DESK, 10, 11, 12, 13, 99]))
    def speak_out_of_turn(self, data: st.DataObject, session: int) -> None:
        """A result from any session about any call that was ever sent."""
        call_id = data.draw(st.sampled_from(self.kit.deliveries)).call_id
        self.kit.finish(call_id, {}, session=session)

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

    @rule(agent=agents, value=st.sampled_from([None, {"value": 0}]))
    def state_intent(self, agent: str, value: object) -> None:
        reply = self.kit.directive(f"{agent}/intended", value)
        assert reply.id is not None
        self.directives = [*self.directives[-1:], reply.id]

    @rule(agent=agents)
    def wish_for_intent(self, agent: str) -> None:
        if agent in self.kit.sessions:
            by = Principal(f"opensentience:{agent}")
            self.kit.feed(
                events.DirectiveRequested(
                    self.kit.sessions[agent], f"wish-{len(self.kit.log)}", by, "com.a/intended", None, "please"
                )
            )

    @rule(policy=st.sampled_from(POLICIES), unpinned=st.booleans())
    def change_rules(self, policy: Any, unpinned: bool) -> None:
        self.kit.in_force(
            policy,
            untrusted_agents=frozenset({"com.c"}),
            unpinned_agents=frozenset(AGENTS if unpinned else ()),
        )

    # -- the world -----------------------------------------------------------------------------------------------------

    @rule(seconds=some_time)
    def pass_time(self, seconds: float) -> None:
        self.kit.advance(seconds)

    @rule(seconds=st.sampled_from([-3600.0, -1.0, 1.0, 3600.0]))
    def jump_wall_clock(self, seconds: float) -> None:
        self.kit.wall += seconds

    @rule()
    def snapshot(self) -> None:
        self.kit.snapshot()

    @rule(data=st.data(), is_partial=st.booleans())
    def crash(self, data: st.DataObject, is_partial: bool) -> None:
        """Everything is kept, or only a part of what the last event led to."""
        self.kit.crash(data.draw(st.integers(*self.kit.step)) if is_partial else None)
        self.asked = []

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def nobody_but_the_operator_has_more_than_five_questions(self) -> None:
        counts: dict[str, int] = {}
        for question in self.kit.state.questions.values():
            # An answer covers one call; the identical ones behind it were let in as one question and are asked about anew.
            by = question.entry.asked_by
            counts[by] = counts.get(by, 0) + 1
        assert all(count <= MAX_OPEN_BY_ONE for by, count in counts.items() if by != OPERATOR), counts

    @invariant()
    def nobody_answered_what_they_asked(self) -> None:
        opened = {e.approval_id: e for e in self.kit.log_of(entries.QuestionOpened)}
        for closed in self.kit.log_of(entries.QuestionClosed):
            if closed.by not in {"", "policy", OPERATOR}:
                question = opened[closed.approval_id]
                assert closed.by not in {question.asked_by, *question.chain}

    def teardown(self) -> None:
        """In the end nothing is open, and everybody who waits was told."""
        kit = self.kit
        kit.snapshot()
        for _ in range(3):
            kit.advance(3700.0)
        assert kit.state.calls == {}
        assert kit.state.questions == {}
        assert len(kit.hub.timers) == 0
        for asked in self.asked:
            assert asked.answer is not None, f"{asked.ref} waits for ever"
        kit.crash()
        assert not [e for e in kit.deliveries if isinstance(e, effects.Cancel)]


HubMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestHubMachine = HubMachine.TestCase

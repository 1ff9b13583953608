"""Random agents, tokens, rules and revocations: nothing is sent for anybody whom policy denies it at that moment.

The machine keeps its own account of who stands behind each call, from what was delivered to whom and has no outcome,
and its own reading of the rules. It knows less than the hub (nothing of calls that ended without their agent's word),
so the hub may be stricter and never laxer.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from tests.unit.hub.kit import ALL, ASK, Kit, rules, tool
from trunkline import entries, events
from trunkline.model import Policy, Principal, RetryPolicy, Status, ToolDefinition, fault

pytestmark = pytest.mark.slow

AGENTS = ("com.a", "com.b", "com.c")
# Its tools stand for those of the others.
ROUTED = "com.r"
PEOPLE = ("http:low", "http:high")
# Standing tokens: of people, and of agents that are launched besides.
TOKENS = (*PEOPLE, "http:com.a", "chiffon:com.a", "http:com.b", "http:com.c")
POLICIES = (
    ALL,
    ASK,
    rules(("http:low", "com.b/*", "deny"), ("*", "*", "allow"), version="low"),
    rules(("http:low", "*", "deny"), ("*", "*", "allow"), version="out"),
    rules(("http:high", "com.c/*", "deny"), ("http:low", "*", "ask"), ("*", "*", "allow"), version="high"),
    rules(("*:com.a", "com.b/once", "deny"), ("operator", "*", "deny"), ("*", "*", "allow"), version="a"),
)
NAMES = ("read", "once")
some_key = st.sampled_from([None, None, "k"])
some_tool = st.builds("{}/{}".format, st.sampled_from((*AGENTS, ROUTED)), st.sampled_from(NAMES))


def tools_of(agent_id: str) -> list[ToolDefinition]:
    return [
        tool(f"{agent_id}/read", side_effects=False),
        tool(f"{agent_id}/once", capabilities=("idempotency",)),
    ]


def router(tool_id: str, _given: Raw) -> list[str]:
    return [f"{agent}/{tool_id.partition('/')[2]}" for agent in reversed(AGENTS)]


class BehalfMachine(RuleBasedStateMachine):
    """Who asks for whom, by whatever token, while rules and tokens change."""

    def __init__(self) -> None:
        super().__init__()
        self.kit = Kit()
        self.policy = ALL
        self.tokens: dict[str, list[str]] = {identity: [] for identity in TOKENS}
        # By call: the identities that it is made for.
        self.behind: dict[str, frozenset[str]] = {}
        self.looked_at = 0

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: Policy) -> None:
        self.change_rules(policy)
        self.kit.route(ROUTED, router)
        for identity in TOKENS:
            self.issue(identity)
        for agent in (*AGENTS, ROUTED):
            self.come(agent, 1)

    # -- the machine's own account -------------------------------------------------------------------------------------

    def denies(self, identity: str, tool_id: str) -> bool:
        if identity in self.tokens and not self.tokens[identity]:
            return True
        for line in self.policy.rules:
            if fnmatchcase(identity, line.caller) and fnmatchcase(tool_id, line.tool):
                return line.decision == "deny"
        return True

    def works_of(self, agent: str) -> list[str]:
        """The calls that were delivered to an agent's open session and have no outcome."""
        session = self.kit.sessions.get(agent)
        open_ones = self.kit.state.calls
        return [
            call_id
            for call_id in {d.call_id: None for d in self.kit.deliveries if d.session == session}
            if call_id in open_ones and open_ones[call_id].status is Status.RUNNING
        ]

    def asks_for(self, identity: str, named: str | None) -> frozenset[str]:
        works = self.works_of(identity.partition(":")[2])
        if named in works:
            works = [named]
        return frozenset({identity}).union(*(self.behind[call_id] for call_id in works))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _call(self, identity: str, tool_id: str, key: str | None = None, named: str | None = None) -> None:
        """Ask in somebody's name: agents by their sessions, everybody else by a token."""
        edge, _, agent = identity.partition(":")
        asked_for = self.asks_for(identity, named)
        by: Principal | str = agent if edge == "opensentience" else Principal(identity)
        asked = self.kit.call(tool_id, by=by, key=key, causation_id=named)
        if asked.answer is not None and asked.refused:
            return
        denied = sorted(one for one in asked_for if self.denies(one, tool_id))
        assert not denied, f"{tool_id} was taken on, or its outcome told, for {denied}"
        self.behind.setdefault(asked.call_id, asked_for)

    @rule(who=st.sampled_from((*PEOPLE, "operator")), tool_id=some_tool, key=some_key)
    def call(self, who: str, tool_id: str, key: str | None) -> None:
        self._call(who, tool_id, key)

    @rule(who=st.sampled_from(PEOPLE), tool_id=some_tool)
    def call_without_a_key(self, who: str, tool_id: str) -> None:
        self._call(who, tool_id)

    @precondition(lambda self: self._busy())
    @rule(data=st.data(), tool_id=some_tool, key=some_key, is_named=st.booleans())
    def call_while_working(self, data: st.DataObject, tool_id: str, key: str | None, is_named: bool) -> None:
        """An agent that has work to do calls: by its session, or by another token of its own."""
        agent = data.draw(st.sampled_from(self._busy()))
        identity = data.draw(st.sampled_from([f"opensentience:{agent}", *(t for t in TOKENS if t.endswith(agent))]))
        named = data.draw(st.sampled_from(self.works_of(agent))) if is_named else None
        self._call(identity, tool_id, key, named)

    @rule(agent=st.sampled_from(AGENTS), tool_id=some_tool, key=some_key)
    def call_by_a_token_of_an_agent(self, agent: str, tool_id: str, key: str | None) -> None:
        self._call(f"http:{agent}", tool_id, key)

    @precondition(lambda self: self._keyed())
    @rule(data=st.data())
    def call_again(self, data: st.DataObject) -> None:
        """The same call by the same caller, under the same key."""
        entry = data.draw(st.sampled_from(self._keyed()[-4:]))
        edge, _, agent = entry.caller.partition(":")
        if edge != "opensentience" or agent in self.kit.sessions:
            self._call(entry.caller, entry.tool_id, entry.key)

    def _keyed(self) -> list[entries.CallAccepted]:
        return [entry for entry in self.kit.log_of(entries.CallAccepted) if entry.key is not None]

    def _busy(self) -> list[str]:
        return [agent for agent in AGENTS if agent in self.kit.sessions and self.works_of(agent)]

    def _running(self) -> list[str]:
        return [call.entry.call_id for call in self.kit.state.calls.values() if call.status is Status.RUNNING]

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.kit.finish(data.draw(st.sampled_from(self._running())), {})

    @precondition(lambda self: self._running())
    @rule(data=st.data(), code=st.sampled_from(["tool.unavailable", "tool.timeout"]))
    def fail_attempt(self, data: st.DataObject, code: str) -> None:
        call = self.kit.state.calls[data.draw(st.sampled_from(self._running()))]
        self.kit.feed(events.AttemptFailed(call.session, call.entry.call_id, fault(code, retryable=True)))

    # -- people --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.kit.state.calls)
    @rule(policy=st.sampled_from(POLICIES))
    def change_rules(self, policy: Policy) -> None:
        self.policy = policy
        self.kit.in_force(policy)

    @precondition(lambda self: not all(self.tokens.values()))
    @rule(data=st.data())
    def issue_anew(self, data: st.DataObject) -> None:
        self.issue(data.draw(st.sampled_from([identity for identity, tokens in self.tokens.items() if not tokens])))

    def issue(self, identity: str) -> None:
        edge, _, agent = identity.partition(":")
        self.tokens[identity].append(self.kit.token(edge, agent, f"{identity}-{len(self.kit.log)}"))

    @precondition(lambda self: self.kit.state.calls and any(self.tokens.values()))
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        identity = data.draw(st.sampled_from([identity for identity, tokens in self.tokens.items() if tokens]))
        self.kit.revoke(self.tokens[identity].pop())
        if not self.tokens[identity]:
            waiting = (call for call in self.kit.state.calls.values() if call.status is not Status.RUNNING)
            assert all(identity not in self.behind[call.entry.call_id] for call in waiting), "still waits"
            asked_by = {question.entry.asked_by for question in self.kit.state.questions.values()}
            assert identity not in asked_by, "a question of nobody's"

    @precondition(lambda self: self.kit.state.questions)
    @rule(data=st.data(), approved=st.booleans())
    def answer(self, data: st.DataObject, approved: bool) -> None:
        self.kit.answer(data.draw(st.sampled_from(sorted(self.kit.state.questions))), approved=approved)

    # -- agents and the world ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.kit.sessions) < 4)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.come(data.draw(st.sampled_from([each for each in (*AGENTS, ROUTED) if each not in self.kit.sessions])), 1)

    def come(self, agent: str, slots: int) -> None:
        self.kit.attach(agent, *tools_of(agent), max_inflight=slots, retry=RetryPolicy())

    @precondition(lambda self: self._busy())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """An agent goes in the middle of its work, and may be back before anybody gave it up."""
        self.kit.leave(data.draw(st.sampled_from(self._busy())))

    @precondition(lambda self: self.kit.state.calls)
    @rule(seconds=st.sampled_from([0.1, 1.1, 2.5, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.kit.advance(seconds)

    @precondition(lambda self: len(self.kit.state.calls) > 1)
    @rule(policy=st.sampled_from(POLICIES))
    def restart(self, policy: Policy) -> None:
        """The exchange is killed, and comes up under the rules of a file that may have changed."""
        self.policy = policy
        self.kit.settings = type(self.kit.settings)(policy)
        self.kit.crash()
        for agent in (*AGENTS, ROUTED):
            self.come(agent, 1)

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_sent_for_somebody_whom_policy_denies_it(self) -> None:
        """Rules and tokens change in steps of their own: what was sent in a step was sent under those of after it."""
        sent, self.looked_at = self.kit.deliveries[self.looked_at :], len(self.kit.deliveries)
        for delivery in sent:
            accepted = self.kit._accepted(delivery.call_id)
            behind = self.behind[delivery.call_id]
            assert behind <= {*accepted.chain, accepted.caller}, "somebody is missing from the chain"
            for tool_id in {accepted.tool_id, delivery.tool_id}:
                denied = sorted(identity for identity in behind if self.denies(identity, tool_id))
                assert not denied, f"{tool_id} was sent for {denied}"


BehalfMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestBehalfMachine = BehalfMachine.TestCase

"""``hub.chains``: depth, circles and confused deputies (decision 7, P-F2, P-C11)."""

from __future__ import annotations

import gc
import itertools

import pytest

from tests.unit.hub.kit import ALL, BOSS, Asked, Kit, rules, tool
from trunkline import entries
from trunkline.hub import views
from trunkline.hub.abandoned import ABANDONED_S, MAX_ABANDONED
from trunkline.hub.chains import MAX_DEPTH
from trunkline.hub.registry import Agent
from trunkline.model import Circumstance, Decision, Policy, Principal, Rule, Status

GUEST = Principal("http:guest")


def three(policy: Policy) -> Kit:
    kit = Kit(policy)
    for agent in ("com.a", "com.b", "com.c"):
        kit.attach(agent, "x", tool(f"{agent}/read", side_effects=False))
    return kit


def test_a_call_that_an_agent_makes_while_it_works_carries_the_chain_of_callers() -> None:
    kit = three(ALL)
    first = kit.call("com.a/x", by=GUEST)
    second = kit.call("com.b/x", by="com.a", causation_id=first.call_id)
    third = kit.call("com.c/x", by="com.b", causation_id=second.call_id)
    assert [a.accepted.chain for a in (first, second, third)] == [
        (),
        ("http:guest",),
        ("http:guest", "opensentience:com.a"),
    ]
    assert [a.accepted.depth for a in (first, second, third)] == [1, 2, 3]
    assert third.accepted.cause == second.accepted.n


def test_a_call_is_shown_with_the_question_that_holds_up_a_call_inside_it() -> None:
    kit = three(rules(("opensentience:com.b", "*", "ask"), ("*", "*", "allow")))
    first, beside = kit.call("com.a/x", by=GUEST), kit.call("com.a/read", by=GUEST)
    second = kit.call("com.b/x", by="com.a", causation_id=first.call_id)
    shown = {view.call_id: view.approval_id for _, view in views.calls_in_memory(kit.hub, range(2**53), 500)}
    assert set(shown.values()) == {None}
    third = kit.call("com.c/x", by="com.b", causation_id=second.call_id)
    asked = third.approval_id
    assert asked is not None
    shown = {view.call_id: view.approval_id for _, view in views.calls_in_memory(kit.hub, range(2**53), 500)}
    assert shown == {first.call_id: asked, second.call_id: asked, third.call_id: asked, beside.call_id: None}
    seen = views.call(kit.hub, first.call_id)
    assert seen is not None
    assert (seen.status, seen.approval_id) == (Status.RUNNING, asked)
    kit.answer(asked)
    seen = views.call(kit.hub, first.call_id)
    assert seen is not None
    assert seen.approval_id is None


def test_a_question_that_is_not_on_disk_is_not_shown_through_the_calls_around_it_either() -> None:
    kit = three(rules(("opensentience:com.b", "*", "ask"), ("*", "*", "allow")))
    first = kit.call("com.a/x", by=GUEST)
    second = kit.call("com.b/x", by="com.a", causation_id=first.call_id)
    kit.has_disk = False
    third = kit.call("com.c/x", by="com.b", causation_id=second.call_id)

    def shown() -> list[str | None]:
        listed = {view.call_id: view.approval_id for _, view in views.calls_in_memory(kit.hub, range(2**53), 500)}
        alone = views.call(kit.hub, first.call_id)
        assert alone is not None
        return [alone.approval_id, listed[first.call_id], listed[second.call_id]]

    assert shown() == [None, None, None]
    kit.store()
    assert shown() == [third.approval_id] * 3


def test_a_call_is_held_up_by_one_that_its_own_caller_makes_for_it_and_by_nobody_elses() -> None:
    kit = three(rules(("*", "com.c/x", "ask"), ("*", "*", "allow")))
    first = kit.call("com.a/x", by=GUEST)

    def shown() -> str | None:
        seen = views.call(kit.hub, first.call_id)
        assert seen is not None
        return seen.approval_id

    assert kit.call("com.c/x", {"n": 1}, by=Principal("http:mallory"), causation_id=first.call_id).approval_id
    assert shown() is None
    own = kit.call("com.c/x", {"n": 2}, by=GUEST, causation_id=first.call_id).approval_id
    assert own is not None
    assert shown() == own


def test_an_idle_agent_acts_for_nobody_but_itself() -> None:
    kit = three(ALL)
    kit.finish(kit.call("com.a/x", by=GUEST), {})
    assert kit.call("com.b/x", by="com.a").accepted.chain == ()


# Who may do what: the guest may only read, com.a and the operator may do everything, com.b is asked, com.c is denied.
DEPUTIES = rules(
    ("http:guest", "*/read", "allow"),
    ("http:guest", "com.a/x", "allow"),
    ("opensentience:com.a", "*", "allow"),
    ("opensentience:com.b", "*", "ask"),
    ("operator", "*", "allow"),
)
OF = {
    "guest": {"read": "allow", "x": "deny"},
    "operator": {"read": "allow", "x": "allow"},
    "com.a": {"read": "allow", "x": "allow"},
    "com.b": {"read": "ask", "x": "ask"},
    "com.c": {"read": "deny", "x": "deny"},
}


@pytest.mark.parametrize("first", ["guest", "operator"])
@pytest.mark.parametrize("deputy", ["com.a", "com.b", "com.c"])
@pytest.mark.parametrize("name", ["read", "x"])
@pytest.mark.parametrize("is_named", [True, False])
def test_every_caller_in_the_chain_must_be_allowed_whatever_its_deputy_may(
    first: str, deputy: str, name: str, is_named: bool
) -> None:
    kit = three(ALL)
    work = kit.call(f"{deputy}/x", by=GUEST if first == "guest" else BOSS)
    kit.in_force(Policy(DEPUTIES.rules, "v2"))
    target = "com.b" if deputy == "com.a" else "com.a"
    asked = kit.call(f"{target}/{name}", by=deputy, causation_id=work.call_id if is_named else None)
    answers = {OF[first][name], OF[deputy][name]}
    # The one exception in the rules: the guest may call com.a/x himself.
    if first == "guest" and target == "com.a" and name == "x":
        answers = {"allow", OF[deputy][name]}
    if "deny" in answers:
        assert asked.code == "policy.denied"
        assert kit.log_of(entries.CallRefused)[-1].chain == (work.accepted.caller,)
    elif "ask" in answers:
        assert asked.approval_id
        assert asked.deliveries == []
    else:
        assert len(asked.deliveries) == 1


def test_a_guest_three_agents_back_still_counts() -> None:
    kit = three(ALL)
    first = kit.call("com.a/x", by=GUEST)
    second = kit.call("com.b/x", by="com.a", causation_id=first.call_id)
    kit.in_force(rules(("http:guest", "*/read", "allow"), ("opensentience:*", "*", "allow"), version="v2"))
    assert kit.call("com.c/x", by="com.b", causation_id=second.call_id).code == "policy.denied"
    assert len(kit.call("com.c/read", by="com.b", causation_id=second.call_id).deliveries) == 1


@pytest.mark.parametrize("named", [None, "nonsense", "a call of another agent", "a settled call"])
def test_a_call_that_names_no_running_call_of_its_own_is_judged_against_all_of_them(named: str | None) -> None:
    kit = three(ALL)
    for_guest = kit.call("com.a/x", by=GUEST)
    for_boss = kit.call("com.a/x", {"n": 1})
    settled = kit.call("com.a/x", {"n": 2})
    kit.finish(settled, {})
    elsewhere = kit.call("com.c/x")
    cause = {
        "a call of another agent": elsewhere.call_id,
        "a settled call": settled.call_id,
    }.get(named or "", named)
    kit.in_force(rules(("http:guest", "*", "deny"), ("*", "*", "allow"), version="v2"))
    assert kit.call("com.b/x", by="com.a", causation_id=cause).code == "policy.denied"
    # Named, the operator's call does not suffer for the guest's.
    assert len(kit.call("com.b/x", by="com.a", causation_id=for_boss.call_id).deliveries) == 1
    kit.finish(for_guest, {})
    assert len(kit.call("com.b/x", {"n": 3}, by="com.a").deliveries) == 1


@pytest.mark.parametrize("end", ["canceled", "timed out"])
@pytest.mark.parametrize("is_named", [True, False])
def test_whoever_lets_go_of_his_call_is_still_behind_what_its_agent_does_for_it(end: str, is_named: bool) -> None:
    """Else a guest calls, cancels at once, and the deputy goes on in its own name alone."""
    kit = three(ALL)
    work = kit.call("com.a/x", by=GUEST, timeout_ms=1000, correlation_id="c")
    kit.in_force(rules(("http:guest", "*", "deny"), ("*", "*", "allow"), version="v2"))
    if end == "canceled":
        kit.cancel(work, by=GUEST)
    else:
        kit.advance(1.1)
    assert work.status is Status.UNKNOWN
    cause = work.call_id if is_named else None
    assert kit.call("com.b/x", by="com.a", causation_id=cause).code == "policy.denied"
    kit.finish(work, {"at": "last"})
    assert len(kit.call("com.b/x", by="com.a", causation_id=cause).deliveries) == 1


def test_a_call_its_agent_never_spoke_of_again_is_forgotten_after_an_hour_or_with_the_session() -> None:
    kit = three(ALL)
    kit.cancel(kit.call("com.a/x", by=GUEST))
    assert kit.call("com.b/x", by="com.a").accepted.chain == ("http:guest",)
    kit.advance(ABANDONED_S)
    assert kit.call("com.b/x", by="com.a").accepted.chain == ()
    kit.cancel(kit.call("com.a/x", by=GUEST))
    kit.leave("com.a")
    kit.attach("com.a", "x")
    assert kit.call("com.b/x", by="com.a").accepted.chain == ()


def let_go(kit: Kit, by: Principal, times: int) -> list[Asked]:
    """Call, and cancel at once, some times."""
    with kit.in_bulk():
        asked = [kit.call("com.a/x", by=by) for _ in range(times)]
        for call in asked:
            kit.cancel(call, by=by)
    return asked


def test_the_memory_of_calls_that_were_let_go_is_bounded() -> None:
    kit = three(ALL)
    for _ in range(3):
        let_go(kit, GUEST, MAX_ABANDONED)
    abandoned = kit.hub.registry.agents["com.a"].abandoned
    assert (len(abandoned.ids()), len(abandoned)) == (MAX_ABANDONED, MAX_ABANDONED + 1)


@pytest.mark.parametrize("way", ["as it is", "other edge", "named", "empty name", "agent away"])
def test_nobody_is_forgotten_behind_an_agent_because_others_let_many_calls_go(way: str) -> None:
    kit = three(rules(("http:guest", "com.b/*", "deny"), ("*", "*", "allow")))
    [mine] = let_go(kit, GUEST, 1)
    others = let_go(kit, Principal("http:other"), MAX_ABANDONED + 1)
    for call in others:
        # The agent's word about those does not end what it may still do for the first one.
        kit.finish(call, {})
    kit.finish("http:guest", {}, session=kit.sessions["com.a"])
    by, cause = Principal("http:com.a" if way in {"other edge", "agent away"} else "opensentience:com.a"), None
    if way == "agent away":
        kit.leave("com.a")
    if way in {"named", "empty name"}:
        cause = mine.call_id if way == "named" else ""
    assert kit.call("com.b/x", by=by, causation_id=cause).code == "policy.denied"
    kit.advance(ABANDONED_S)
    assert kit.call("com.b/x", {"n": 1}, by=by, causation_id=cause).accepted.chain == ()


def test_everybody_behind_a_call_that_was_let_go_stays_there_with_its_circumstances() -> None:
    careful = Rule("careful", "*", "com.c/*", Decision.DENY, when=Circumstance.UNTRUSTED)
    kit = three(rules(careful, ("http:guest", "com.c/read", "deny"), ("*", "*", "allow")))
    kit.attach("com.d", "x")
    kit.attach("com.web", "x")
    kit.in_force(untrusted_agents=frozenset({"com.web"}))
    kit.finish(kit.call("com.web/x", correlation_id="c"), {})
    for correlation_id in ("c", None):
        work = kit.call("com.d/x", by=GUEST, correlation_id=correlation_id)
        kit.cancel(kit.call("com.a/x", by="com.d", causation_id=work.call_id), by=Principal("opensentience:com.d"))
        kit.finish(work, {})
    let_go(kit, Principal("http:other"), MAX_ABANDONED)
    last = kit.call("com.b/x", by="com.a").accepted
    assert set(last.chain) == {"http:guest", "opensentience:com.d", "http:other"}
    assert last.circumstances == (Circumstance.UNTRUSTED,)


def test_an_agent_that_left_with_calls_and_came_as_another_process_leaves_nothing_in_memory() -> None:
    kit = Kit()
    for _ in range(3):
        kit.attach("com.gone", "x")
        # The second goes by a lane, which knows the agent.
        kit.call("com.gone/x")
        kit.call("com.gone/x")
        kit.leave("com.gone")
    kit.attach("com.gone", "x")
    gc.collect()
    known = [agent for agent in gc.get_objects() if type(agent) is Agent and agent.agent_id == "com.gone"]
    assert len(known) == len(kit.hubs)


def test_what_policy_allows_one_who_works_on_strangers_words_it_does_not_allow_the_next_without_them() -> None:
    """A call may outlive the mark of its correlation: a start from a snapshot that is a day old has none."""
    asks_unless_untrusted = (
        Rule("careful", "*", "*", Decision.ALLOW, when=Circumstance.UNTRUSTED),
        ("operator", "*", "allow"),
    )
    kit = three(rules(*asks_unless_untrusted, ("*", "*", "ask")))
    kit.in_force(untrusted_agents=frozenset({"com.c"}))
    kit.finish(kit.call("com.c/x", correlation_id="c"), {})
    touched, other = kit.call("com.a/x", correlation_id="c"), kit.call("com.a/x")
    kit.in_force()
    for hub in kit.hubs:
        hub.state.tainted.clear()
    assert kit.call("com.b/x", by="com.a", causation_id=touched.call_id).accepted.rule == "careful"
    assert kit.call("com.b/x", by="com.a", causation_id=other.call_id).accepted.decision is Decision.ASK


def test_what_policy_allows_one_who_works_for_somebody_it_asks_about_when_strangers_words_are_behind_it() -> None:
    """The other way round: a lane of trusted calls is none for a call that strangers' words may be behind."""
    kit = three(rules(Rule("careful", "*", "*", Decision.ASK, when=Circumstance.UNTRUSTED), ("*", "*", "allow")))
    kit.in_force(untrusted_agents=frozenset({"com.c"}))
    kit.finish(kit.call("com.c/x"), {})
    other = kit.call("com.a/x")
    kit.finish(kit.call("com.c/x", correlation_id="c"), {})
    touched = kit.call("com.a/x", correlation_id="c")
    kit.answer(touched.approval_id)
    kit.in_force()
    for hub in kit.hubs:
        hub.state.tainted.clear()
    for _ in range(2):
        assert kit.call("com.b/x", by="com.a", causation_id=other.call_id).accepted.decision is Decision.ALLOW
    assert kit.call("com.b/x", by="com.a", causation_id=touched.call_id).accepted.rule == "careful"


def test_a_call_that_only_waits_is_not_one_the_agent_works_on() -> None:
    kit = Kit(rules(("http:guest", "*", "ask"), ("*", "*", "allow")))
    kit.attach("com.a", "x")
    kit.attach("com.b", "x")
    waiting = kit.call("com.a/x", by=GUEST)
    assert kit.call("com.b/x", by="com.a", causation_id=waiting.call_id).accepted.chain == ()


def test_nobody_calls_themselves_nor_anybody_who_waits_for_them() -> None:
    kit = three(ALL)
    assert kit.call("com.a/x", by="com.a").code == "chain.refused"
    first = kit.call("com.b/x", by="com.a")
    second = kit.call("com.c/x", by="com.b", causation_id=first.call_id)
    for target in ("com.a", "com.b"):
        asked = kit.call(f"{target}/x", by="com.c", causation_id=second.call_id)
        assert (asked.code, asked.refused) == ("chain.refused", True)
    assert len(kit.deliveries) == 2


def test_a_circle_is_seen_through_the_operator_and_without_a_named_cause() -> None:
    kit = three(ALL)
    first = kit.call("com.a/x")
    kit.call("com.b/x", by="com.a", causation_id=first.call_id)
    assert kit.call("com.a/x", by="com.b").code == "chain.refused"


def chain_through(kit: Kit, length: int) -> list[Asked]:
    made = [kit.call("com.n1/x")]
    for number in range(2, length + 1):
        made.append(kit.call(f"com.n{number}/x", by=f"com.n{number - 1}", causation_id=made[-1].call_id))
    return made


def test_a_chain_may_be_eight_calls_deep_and_no_deeper(kit: Kit) -> None:
    assert MAX_DEPTH == 8
    for number in range(1, MAX_DEPTH + 2):
        kit.attach(f"com.n{number}", "x")
    made = chain_through(kit, MAX_DEPTH + 1)
    assert [len(asked.deliveries) for asked in made] == [1] * MAX_DEPTH + [0]
    assert made[-1].code == "chain.refused"


def test_depth_is_counted_in_calls_and_not_in_the_callers_an_agent_serves_at_once(kit: Kit) -> None:
    for agent in ("com.a", "com.b", "com.c"):
        kit.attach(agent, "x")
    for number in range(MAX_DEPTH + 2):
        kit.call("com.a/x", by=Principal(f"http:{number}"))
    second = kit.call("com.b/x", by="com.a")
    assert len(second.accepted.chain) == MAX_DEPTH + 2
    assert second.accepted.depth == 2
    third = kit.call("com.c/x", by="com.b", causation_id=second.call_id)
    assert (third.accepted.depth, len(third.deliveries)) == (3, 1)


def test_chain_and_depth_survive_a_crash() -> None:
    kit = Kit()
    for agent in ("com.a", "com.b", "com.c"):
        kit.attach(agent, tool(f"{agent}/read", side_effects=False))
    first = kit.call("com.a/read", by=GUEST)
    second = kit.call("com.b/read", by="com.a", causation_id=first.call_id)
    kit.snapshot()
    kit.crash()
    for agent in ("com.a", "com.b", "com.c"):
        kit.attach(agent, tool(f"{agent}/read", side_effects=False))
    kit.advance(1.1)
    assert kit.state.calls[second.call_id].status is Status.RUNNING
    third = kit.call("com.c/read", by="com.b", causation_id=second.call_id)
    assert third.accepted.chain == ("http:guest", "opensentience:com.a")
    assert third.accepted.depth == 3


def test_a_chain_shows_each_caller_once_however_many_calls_it_joins() -> None:
    kit = three(ALL)
    for number in range(3):
        kit.call("com.a/x", {"n": number}, by=GUEST)
    assert kit.call("com.b/x", by="com.a").accepted.chain == ("http:guest",)


def test_the_order_in_which_an_agent_took_its_calls_on_changes_no_verdict() -> None:
    for order in itertools.permutations([GUEST, BOSS, Principal("http:other")]):
        kit = three(ALL)
        for caller in order:
            kit.call("com.a/x", by=caller)
        kit.in_force(rules(("http:guest", "*", "deny"), ("*", "*", "allow"), version="v2"))
        assert kit.call("com.b/x", by="com.a").code == "policy.denied"

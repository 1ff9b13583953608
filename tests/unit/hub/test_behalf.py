"""On whose behalf somebody calls: a fact of an agent and the calls it works on, whichever token or session asks."""

from __future__ import annotations

import pytest

from tests.unit.hub.kit import ALL, BOSS, Kit, rules, tool
from trunkline.events import SettingsChanged
from trunkline.model import Behalf, Circumstance, Decision, HubSettings, Policy, Principal, Rule
from trunkline.testing.memory import MemoryExchange

LOW = Principal("http:low")
OTHER_TOKENS = (Principal("http:com.a"), Principal("chiffon:com.a"), Principal("spaces:com.a"))
LOW_IS_DENIED = rules(("http:low", "com.b/*", "deny"), ("*", "*", "allow"), version="low")


def two(policy: Policy = ALL) -> Kit:
    kit = Kit(policy)
    for agent in ("com.a", "com.b"):
        kit.attach(agent, "x", tool(f"{agent}/read", side_effects=False))
    return kit


# -- the chain --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("other", OTHER_TOKENS, ids=lambda principal: principal.identity)
def test_another_token_of_an_agent_asks_for_those_whom_the_agent_works_for(other: Principal, is_named: bool) -> None:
    kit = two(LOW_IS_DENIED)
    work = kit.call("com.a/x", by=LOW)
    cause = work.call_id if is_named else None
    assert kit.call("com.b/x", by=other, causation_id=cause).code == "policy.denied"
    kit.finish(work, {})
    assert kit.call("com.b/x", by=other, causation_id=cause).accepted.chain == ()


@pytest.mark.parametrize("other", OTHER_TOKENS, ids=lambda principal: principal.identity)
def test_a_call_that_is_named_over_another_edge_is_the_cause(other: Principal) -> None:
    kit = two()
    work, beside = kit.call("com.a/x", by=LOW), kit.call("com.a/x", {"n": 1})
    made = kit.call("com.b/x", by=other, causation_id=work.call_id).accepted
    assert (made.chain, made.cause, made.depth) == (("http:low",), work.accepted.n, 2)
    made = kit.call("com.b/x", by=other, causation_id=beside.call_id).accepted
    assert (made.chain, made.cause) == (("operator",), beside.accepted.n)


@pytest.mark.parametrize("tool_id", ["com.b/x", "com.b/read"])
def test_an_ordinary_call_by_another_token_joins_the_chain_as_soon_as_its_agent_has_work(tool_id: str) -> None:
    kit = two(LOW_IS_DENIED)
    other = Principal("http:com.a")
    for _ in range(3):  # the second and third go by a lane
        kit.finish(kit.call(tool_id, by=other), {})
    work = kit.call("com.a/x", by=LOW)
    assert kit.call(tool_id, by=other).code == "policy.denied"
    assert kit.call(tool_id, by=other, causation_id=work.call_id).code == "policy.denied"
    kit.finish(work, {})
    assert len(kit.call(tool_id, by=other).deliveries) == 1


@pytest.mark.parametrize("end", ["leaves", "times out", "is lost with the exchange"])
def test_what_an_agent_may_still_work_on_counts_for_its_other_tokens(end: str) -> None:
    kit = two(LOW_IS_DENIED)
    kit.call("com.a/x", by=LOW)
    if end == "leaves":
        kit.leave("com.a")
    elif end == "times out":
        kit.advance(100.0)
    else:
        kit.crash()
        kit.attach("com.b", "x")
    assert kit.call("com.b/x", by=Principal("http:com.a")).code == "policy.denied"
    kit.advance(3700.0)
    assert len(kit.call("com.b/x", {"n": 2}, by=Principal("http:com.a")).deliveries) == 1


def test_who_names_an_open_call_of_his_own_asks_for_those_behind_it_too() -> None:
    kit = two(LOW_IS_DENIED)
    work = kit.call("com.a/x", by=LOW)
    made = kit.call("com.a/x", {"n": 1}, by=Principal("http:com.c"))
    assert kit.call("com.b/x", by=Principal("http:com.c"), causation_id=made.call_id).accepted.chain == ()
    kit.in_force(ALL)
    inner = kit.call("com.b/x", by="com.a", causation_id=work.call_id)
    kit.finish(work, {})
    kit.in_force(LOW_IS_DENIED)
    assert kit.call("com.b/x", {"n": 2}, by="com.a", causation_id=inner.call_id).code == "policy.denied"
    assert len(kit.call("com.b/x", {"n": 3}, by=Principal("http:com.c"), causation_id=inner.call_id).deliveries) == 1


@pytest.mark.parametrize("other", OTHER_TOKENS, ids=lambda principal: principal.identity)
def test_an_agent_is_not_called_by_its_other_tokens_in_a_circle(other: Principal) -> None:
    kit = two()
    assert kit.call("com.a/x", by=other).code == "chain.refused"
    kit.call("com.b/x", by=other)
    assert kit.call("com.a/x", by="com.b").code == "chain.refused"


def test_an_agent_that_is_called_operator_is_not_the_operator() -> None:
    kit = two()
    kit.attach("operator", "x")
    kit.call("operator/x", by=LOW)
    assert kit.call("com.b/x", by=BOSS).accepted.chain == ()
    assert len(kit.call("operator/x", {"n": 1}).deliveries) == 1


def test_nobody_answers_a_question_of_his_agent_with_another_token() -> None:
    kit = two(rules(("opensentience:com.a", "*", "ask"), ("*", "*", "allow")))
    asked = kit.call("com.b/x", by="com.a")
    reply = kit.answer(asked.approval_id, by=Principal("http:com.a", ("approve",)))
    assert reply.fault is not None
    assert reply.fault.code == "not_allowed"
    kit.answer(asked.approval_id, by=Principal("http:checker", ("approve",)))
    assert len(asked.deliveries) == 1


# -- a key that is repeated -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["it runs", "it ended", "it is only on disk", "its tool is gone"])
def test_a_repeat_by_somebody_whom_policy_denies_now_hears_nothing_of_the_call(when: str) -> None:
    kit = two()
    first = kit.call("com.b/x", {"n": 1}, by=LOW, key="k")
    if when != "it runs":
        kit.finish(first, {"secret": 1})
    if when == "it is only on disk":
        kit.crash()
    if when == "its tool is gone":
        kit.withdraw("com.b", "com.b/x")
    kit.in_force(LOW_IS_DENIED)
    assert kit.call("com.b/x", {"n": 1}, by=LOW, key="k").code == "policy.denied"
    # Nor whether the key was used for something else.
    assert kit.call("com.b/x", {"n": 2}, by=LOW, key="k").code == "policy.denied"
    kit.in_force(ALL)
    again = kit.call("com.b/x", {"n": 1}, by=LOW, key="k")
    assert again.call_id == first.call_id
    assert len(first.deliveries) == 1


def test_a_repeat_is_judged_for_those_whom_the_caller_works_for_now() -> None:
    kit = two(LOW_IS_DENIED)
    first = kit.call("com.b/read", by="com.a", key="k")
    kit.finish(first, {"secret": 1})
    work = kit.call("com.a/x", by=LOW)
    assert kit.call("com.b/read", by="com.a", key="k", causation_id=work.call_id).code == "policy.denied"
    assert kit.call("com.b/read", by="com.a", key="k").code == "policy.denied"
    kit.finish(work, {})
    assert kit.call("com.b/read", by="com.a", key="k").call_id == first.call_id


# -- work that goes on after its asker was answered --------------------------------------------------------------------


def test_what_was_found_out_before_is_added_to_the_chain_and_takes_nobodys_place() -> None:
    kit = two()
    middle = Principal("http:com.a")
    work = kit.call("com.a/x", by=LOW)
    behalf = kit.hub.judging.behalf("http:com.a", kit.now)
    assert (behalf.callers, behalf.depth) == (("http:low",), 2)
    kit.finish(work, {})
    later = kit.call("com.b/x", by=middle, on_behalf_of=behalf).accepted
    assert (later.chain, later.depth, later.cause) == (("http:low",), 2, None)
    beside = kit.call("com.a/x", {"n": 1}, by=Principal("http:other"))
    later = kit.call("com.b/x", {"n": 2}, by=middle, on_behalf_of=behalf).accepted
    assert (later.chain, later.cause) == (("http:low", "http:other"), beside.accepted.n)


@pytest.mark.parametrize("tool_id", ["com.b/x", "com.b/read"])
def test_work_for_others_does_not_go_by_the_lane_of_the_callers_own(tool_id: str) -> None:
    kit = two(LOW_IS_DENIED)
    other = Principal("http:com.a")
    for _ in range(3):  # the second and third go by a lane
        kit.finish(kit.call(tool_id, by=other), {})
    assert kit.call(tool_id, by=other, on_behalf_of=Behalf(("http:low",))).code == "policy.denied"


def test_a_repeat_for_others_is_told_nothing_that_they_may_not_ask_for() -> None:
    kit = two(LOW_IS_DENIED)
    other, behalf = Principal("http:com.a"), Behalf(("http:low",), 2)
    kit.finish(kit.call("com.b/x", by=other, key="k"), {})
    assert kit.call("com.b/x", by=other, key="k", on_behalf_of=behalf).code == "policy.denied"


def test_work_for_others_does_not_come_back_to_one_of_them() -> None:
    kit = two()
    behalf = Behalf(("agent:com.b",), 2)
    assert kit.call("com.b/x", by=Principal("http:com.a"), on_behalf_of=behalf).code == "chain.refused"


def test_circumstances_that_were_found_out_before_hold() -> None:
    kit = two()
    behalf = Behalf((), 1, (Circumstance.UNTRUSTED,))
    made = kit.call("com.b/x", by=Principal("http:com.a"), on_behalf_of=behalf).accepted
    assert made.circumstances == (Circumstance.UNTRUSTED,)


# -- names that are no tools -------------------------------------------------------------------------------------------


def test_a_name_that_is_no_tool_is_judged_for_the_caller_and_those_he_works_for_now() -> None:
    policy = rules(("http:low", "bob/feed", "deny"), ("http:com.a", "bob/*", "ask"), ("*", "bob/*", "allow"))
    exchange = MemoryExchange(rules(*policy.rules, ("*", "com.a/*", "allow")))
    agent, judged = exchange.attach("com.a", "x"), exchange.views.judged
    assert judged("http:com.a", "bob/feed").decision is Decision.ASK
    assert judged("http:other", "bob/feed").decision is Decision.ALLOW
    assert judged("http:other", "topic/none").rule == "default"
    exchange.call("com.a/x", by=LOW)
    verdict = judged("http:com.a", "bob/feed")
    assert (verdict.decision, verdict.caller) == (Decision.DENY, "http:low")
    assert judged("http:com.a", "bob/other").decision is Decision.ASK
    agent.finish({})
    assert judged("http:com.a", "bob/feed").decision is Decision.ASK
    exchange.close()


def test_a_name_that_is_no_tool_is_judged_under_the_circumstances_of_a_call() -> None:
    untrusted = Rule("untrusted", "*", "bob/feed", Decision.DENY, when=Circumstance.UNTRUSTED)
    exchange = MemoryExchange(rules(untrusted, ("*", "*", "allow")))
    settings = HubSettings(exchange.policy, untrusted_agents=frozenset({"com.web"}))
    exchange.feed.feed([SettingsChanged(settings)])
    web, reader = exchange.attach("com.web", "read"), Principal("http:com.a")
    assert exchange.views.judged(reader.identity, "bob/feed").decision is Decision.ALLOW
    exchange.call("com.web/read", by=reader)
    web.finish({})
    assert exchange.views.judged(reader.identity, "bob/feed").decision is Decision.DENY
    exchange.close()

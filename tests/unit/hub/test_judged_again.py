"""What was taken on is judged again before it is sent: a rule or a revoked token that came meanwhile holds it back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.hub.kit import ALL, DESK, Kit, rules, tool
from trunkline import events
from trunkline.hub.approvals import MAX_OPEN_BY_ONE
from trunkline.model import Manifest, Policy, Principal, RetryPolicy, Status, fault

LOW = Principal("http:low")
LOW_IS_DENIED = rules(("http:low", "com.b/*", "deny"), ("*", "*", "allow"), version="low")
ASK_LOW = rules(("http:low", "*", "ask"), ("*", "*", "allow"), version="ask low")
LOW_IS_OUT = rules(("http:low", "*", "deny"), ("*", "*", "allow"), version="out")


def one_at_a_time(policy: Policy = ALL) -> Kit:
    kit = Kit(policy)
    kit.attach("com.a", "x")
    kit.attach("com.b", "x", tool("com.b/read", side_effects=False), max_inflight=1)
    return kit


@pytest.mark.parametrize("way", ["rule", "token"])
@pytest.mark.parametrize("behind", [False, True])
def test_a_call_that_waits_for_a_slot_is_not_sent_for_somebody_who_is_denied_meanwhile(way: str, behind: bool) -> None:
    kit = one_at_a_time()
    token = kit.token("http", "low", "secret")
    before = kit.call("com.b/x")
    if behind:
        work = kit.call("com.a/x", by=LOW)
        waits = kit.call("com.b/x", {"n": 1}, by="com.a", causation_id=work.call_id)
    else:
        waits = kit.call("com.b/x", {"n": 1}, by=LOW)
    others = kit.call("com.b/x", {"n": 2})
    if way == "rule":
        kit.in_force(LOW_IS_OUT)
    else:
        kit.revoke(token)
        assert waits.code == "policy.denied"
    kit.finish(before, {})
    assert (waits.code, waits.status, waits.deliveries) == ("policy.denied", "failed", [])
    assert len(others.deliveries) == 1


def test_a_call_that_was_approved_and_waits_for_its_tool_is_judged_when_the_tool_is_back() -> None:
    kit = one_at_a_time(ASK_LOW)
    asked = kit.call("com.b/x", by=LOW)
    kit.leave("com.b")
    kit.answer(asked.approval_id)
    kit.in_force(LOW_IS_OUT)
    kit.attach("com.b", "x")
    assert (asked.code, asked.deliveries) == ("policy.denied", [])


def test_what_was_accepted_before_a_restart_is_judged_by_the_rules_after_it() -> None:
    kit = one_at_a_time()
    before, waits = kit.call("com.b/x"), kit.call("com.b/x", {"n": 1}, by=LOW, key="k")
    assert waits.deliveries == []
    kit.settings = replace(kit.settings, policy=LOW_IS_OUT)
    kit.crash()
    kit.attach("com.b", "x")
    assert kit.outcomes[waits.accepted.n].fault == fault("policy.denied", "denied by rule-1")
    assert waits.deliveries == []
    assert kit.outcomes[before.accepted.n].status is Status.UNKNOWN


@pytest.mark.parametrize("name", ["x", "read"])
def test_a_lost_call_is_not_sent_again_for_somebody_who_is_denied_meanwhile(name: str) -> None:
    kit = Kit()
    kit.attach("com.b", tool("com.b/x", capabilities=("idempotency",)), tool("com.b/read", side_effects=False))
    lost = kit.call(f"com.b/{name}", by=LOW)
    kit.leave("com.b")
    kit.in_force(LOW_IS_OUT)
    kit.attach("com.b", tool("com.b/x", capabilities=("idempotency",)), tool("com.b/read", side_effects=False))
    kit.advance(2.0)
    # What may have had an effect is not told to have had none.
    assert lost.code == "policy.denied"
    assert lost.status == (Status.UNKNOWN if name == "x" else Status.FAILED)
    assert len(lost.deliveries) == 1


@pytest.mark.parametrize("name", ["x", "read"])
def test_an_attempt_is_not_repeated_for_somebody_who_is_denied_meanwhile(name: str) -> None:
    kit = Kit()
    tools = tool("com.b/x", capabilities=("idempotency",)), tool("com.b/read", side_effects=False)
    session = kit.attach("com.b", *tools, retry=RetryPolicy((0.0, 1.0, 2.0)))
    called = kit.call(f"com.b/{name}", by=LOW)
    kit.feed(events.AttemptFailed(session, called.call_id, fault("tool.unavailable")))
    kit.in_force(LOW_IS_OUT)
    kit.advance(5.0)
    assert (called.code, len(called.deliveries)) == ("policy.denied", 1)
    assert called.status == (Status.UNKNOWN if name == "x" else Status.FAILED)


def test_a_call_is_sent_again_to_its_provider_only_if_policy_still_allows_that_one() -> None:
    kit = Kit()
    kit.attach("com.b", tool("com.b/read", side_effects=False))
    kit.attach("com.r", tool("com.r/read", side_effects=False))
    kit.route("com.r", lambda *_: ["com.b/read"])
    called = kit.call("com.r/read", by=LOW)
    kit.leave("com.b")
    kit.in_force(LOW_IS_DENIED)
    kit.attach("com.b", tool("com.b/read", side_effects=False))
    kit.advance(2.0)
    assert (called.code, len(called.deliveries)) == ("policy.denied", 1)


def test_an_agent_that_is_away_keeps_what_it_was_granted_for_the_calls_it_made() -> None:
    kit = Kit()
    needs = tool("com.b/x", required_permissions=("files:read",))
    kit.attach("com.b", needs, max_inflight=1)
    kit.attach("com.a", "x", manifest=Manifest("m" * 64, ("files:read",)))
    kit.answer(kit.questions("manifest")[0])
    before, waits = kit.call("com.b/x"), kit.call("com.b/x", {"n": 1}, by="com.a", key="k")
    kit.leave("com.a")
    kit.finish(before, {})
    assert len(waits.deliveries) == 1


# -- tokens that are revoked ------------------------------------------------------------------------------------------


def test_the_last_token_takes_along_what_waits_for_a_person() -> None:
    kit = one_at_a_time(ASK_LOW)
    tokens = kit.token("http", "low", "one"), kit.token("http", "low", "two")
    asked, others = kit.call("com.b/x", by=LOW), kit.call("com.b/x", {"n": 1})
    kit.feed(events.DirectiveRequested(DESK, "wish", LOW, "com.b/x", None, "please"))
    kit.revoke(tokens[0])
    assert asked.answer is None
    assert len(kit.state.questions) == 2
    kit.revoke(tokens[1])
    assert (asked.code, kit.state.questions) == ("policy.denied", {})
    told = kit.replies[DESK, "wish"][0].fault
    assert told is not None
    assert told.code == "policy.denied"
    kit.finish(others, {})
    assert others.status is Status.SUCCEEDED


def test_the_last_token_takes_along_what_an_agent_would_ask_about_itself() -> None:
    kit = Kit()
    token = kit.token("opensentience", "com.a", "secret")
    kit.arrive("com.a", token="secret")
    names = [f"t{number}" for number in range(MAX_OPEN_BY_ONE + 2)]
    kit.offer("com.a", *(tool(f"com.a/{name}") for name in names))
    kit.offer("com.a", *(tool(f"com.a/{name}", description="another") for name in names), replace=True)
    assert len(kit.state.questions) == MAX_OPEN_BY_ONE
    kit.revoke(token)
    assert kit.state.questions == {}


def test_a_revoked_identity_calls_nothing_and_a_new_token_lets_it_call_again() -> None:
    kit = one_at_a_time()
    token = kit.token("http", "low", "one")
    running = kit.call("com.a/x", by=LOW)
    kit.revoke(token)
    assert kit.call("com.b/x", by=LOW).code == "policy.denied"
    assert kit.call("com.b/x", by="com.a", causation_id=running.call_id).code == "policy.denied"
    kit.finish(running, {})
    assert running.status is Status.SUCCEEDED
    kit.crash()
    kit.attach("com.b", "x")
    assert kit.call("com.b/x", by=LOW).code == "policy.denied"
    kit.token("http", "low", "two")
    assert len(kit.call("com.b/x", by=LOW).deliveries) == 1


def test_an_agent_that_is_launched_is_not_kept_out_by_a_token_it_once_had() -> None:
    kit = one_at_a_time()
    kit.revoke(kit.token("opensentience", "com.a", "secret"))
    first = kit.call("com.b/x", by="com.a")
    kit.finish(first, {})
    assert first.status is Status.SUCCEEDED
    kit.revoke(kit.token("http", "com.a", "other"))
    assert kit.call("com.b/x", by=Principal("http:com.a")).code == "policy.denied"
    assert len(kit.call("com.b/x", {"n": 1}, by="com.a").deliveries) == 1

"""What the agent behind a tool says to one input: both it and policy must agree."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from tests.unit.hub.kit import BOSS, DESK, Kit, body, rules, tool
from trunkline import events
from trunkline.hub import views
from trunkline.model import Decision, HubSettings, Policy, Principal, Rule, Status, Verdict, fault

SCRIPT = Principal("http:script")


def guard(tool_id: str, given: Raw) -> Verdict | None:
    """Deny ``sudo``, ask about ``rm``, say nothing to the rest."""
    assert tool_id == "com.a/shell"
    command = json.loads(bytes(given)).get("command", "")
    if command.startswith("sudo"):
        reason = "Command 'sudo' is blocked"
        return Verdict(Decision.DENY, "shell.denied", reason, "", fault("policy.denied", reason))
    if command.startswith("rm"):
        return Verdict(Decision.ASK, "shell.approvalRequired", "it removes files", "")
    return None


def guarded(policy: str = "allow") -> Kit:
    kit = Kit(rules(("http:*", "*", policy), ("operator", "*", "allow")))
    kit.guard("com.a", guard)
    kit.attach("com.a", "shell")
    return kit


def test_what_the_guard_says_nothing_to_follows_policy() -> None:
    assert len(guarded().call("com.a/shell", {"command": "ls"}, by=SCRIPT).deliveries) == 1
    assert guarded("deny").call("com.a/shell", {"command": "ls"}, by=SCRIPT).code == "policy.denied"
    assert guarded("ask").call("com.a/shell", {"command": "ls"}, by=SCRIPT).waits


@pytest.mark.parametrize("by", [SCRIPT, BOSS], ids=["script", "operator"])
def test_what_the_guard_denies_is_refused_whoever_asks(by: Principal) -> None:
    kit = guarded()
    asked = kit.call("com.a/shell", {"command": "sudo ls"}, by=by)
    assert (asked.code, asked.refused, asked.deliveries) == ("policy.denied", True, [])
    answer = asked.answer
    assert answer is not None
    assert answer.fault is not None
    assert answer.fault.message == "Command 'sudo' is blocked"


def test_a_question_gives_all_reasons_and_what_is_about_the_input_first() -> None:
    kit = Kit(Policy((Rule("r", "http:*", "*", Decision.ASK, "an agent calls"),), "v1"))
    kit.guard("com.a", guard)
    kit.attach("com.a", "shell")
    for command, reason in (("rm -r data", "it removes files; an agent calls"), ("ls", "an agent calls")):
        kit.call("com.a/shell", {"command": command}, by=SCRIPT)
        assert kit.hub.approvals.views()[-1].reason == reason
    alone = views.dry_run(kit.hub, "http:script", "com.a/shell", None, kit.now)
    assert alone.depends == ("com.a has rules of its own about each input",)


@pytest.mark.parametrize("by", [SCRIPT, BOSS], ids=["script", "operator"])
def test_what_the_guard_asks_about_waits_for_a_person(by: Principal) -> None:
    kit = guarded()
    asked = kit.call("com.a/shell", {"command": "rm -r data"}, by=by)
    assert not asked.deliveries
    assert asked.accepted.rule == "shell.approvalRequired"
    kit.answer(asked.approval_id)
    assert len(asked.deliveries) == 1


def test_a_strict_policy_is_not_softened_by_a_guard_that_only_asks() -> None:
    assert guarded("deny").call("com.a/shell", {"command": "rm x"}, by=SCRIPT).code == "policy.denied"


def test_after_a_restart_with_other_rules_the_guard_is_still_heard() -> None:
    kit = guarded()
    asked = kit.call("com.a/shell", {"command": "rm -r data"}, by=SCRIPT)
    kit.in_force(rules(("*", "*", "allow"), version="v2"))
    assert not asked.deliveries
    kit.settings = HubSettings(rules(("*", "*", "allow"), version="v3"))
    kit.crash()
    assert len(kit.questions("call")) == 1
    kit.attach("com.a", "shell")
    assert not asked.deliveries
    kit.answer(kit.questions("call")[0])
    assert len(asked.deliveries) == 1


def test_a_dry_run_hears_the_guard() -> None:
    kit = guarded()

    def verdict(command: str) -> tuple[Decision, str]:
        found = views.dry_run(kit.hub, "operator", "com.a/shell", body({"command": command}), kit.now)
        return found.decision, found.rule

    assert verdict("sudo ls") == (Decision.DENY, "shell.denied")
    assert verdict("rm x") == (Decision.ASK, "shell.approvalRequired")
    assert verdict("ls")[0] is Decision.ALLOW


def test_only_its_own_agents_tools_are_guarded() -> None:
    kit = guarded()
    kit.attach("com.b", "shell")
    assert kit.call("com.b/shell", {"command": "sudo ls"}).status is None
    kit.guard("com.a", None)
    asked = kit.call("com.a/shell", {"command": "sudo ls"})
    kit.finish(asked, {})
    assert asked.status is Status.SUCCEEDED


# -- another guard, while a call waits --------------------------------------------------------------------------------


def denies(_tool_id: str, _given: Raw) -> Verdict:
    return Verdict(Decision.DENY, "all.denied", "nothing goes", "", fault("policy.denied", "nothing goes"))


def asks(_tool_id: str, _given: Raw) -> Verdict:
    return Verdict(Decision.ASK, "all.asked", "everything is asked", "")


def test_a_person_s_yes_does_not_send_what_the_guard_denies_by_now() -> None:
    kit = guarded()
    asked = kit.call("com.a/shell", {"command": "rm x"}, by=SCRIPT)
    kit.guard("com.a", denies)
    kit.answer(asked.approval_id)
    assert (asked.code, asked.status, asked.deliveries) == ("policy.denied", Status.FAILED, [])


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_approved_and_waits_for_its_tool_is_put_to_the_guard_of_then(restarts: bool) -> None:
    kit = guarded()
    asked = kit.call("com.a/shell", {"command": "rm x"}, by=SCRIPT, key="k")
    kit.leave("com.a")
    kit.answer(asked.approval_id)
    kit.guard("com.a", denies)
    if restarts:
        kit.crash()
    kit.attach("com.a", "shell")
    settled = kit.outcomes[asked.accepted.n]
    assert (settled.fault, asked.deliveries) == (fault("policy.denied", "nothing goes"), [])


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_person_approved_stays_approved_under_a_guard_that_asks(restarts: bool) -> None:
    kit = guarded()
    asked = kit.call("com.a/shell", {"command": "rm x"}, by=SCRIPT, key="k")
    kit.leave("com.a")
    kit.answer(asked.approval_id)
    kit.guard("com.a", asks)
    if restarts:
        kit.crash()
    kit.attach("com.a", "shell")
    assert len(asked.deliveries) == 1


@pytest.mark.parametrize("way", ["guard", "rules"])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_nobody_was_asked_about_is_not_sent_once_a_person_has_to_be_asked(way: str, restarts: bool) -> None:
    kit = Kit(rules(("*", "*", "allow")))
    kit.attach("com.a", "shell", max_inflight=1)
    first, waits = kit.call("com.a/shell"), kit.call("com.a/shell", {"command": "ls"}, by=SCRIPT, key="k")
    if way == "guard":
        kit.guard("com.a", asks)
    else:
        kit.in_force(rules(("*", "*", "ask"), version="v2"))
    if restarts:
        kit.crash()
        kit.attach("com.a", "shell", max_inflight=1)
    else:
        kit.finish(first, {})
    settled = kit.outcomes[waits.accepted.n]
    assert settled.fault is not None
    assert (settled.fault.code, waits.deliveries) == ("policy.denied", [])
    assert "a person has to be asked" in settled.fault.message


def test_what_rules_let_go_in_a_person_s_place_is_not_sent_once_a_person_has_to_be_asked_again() -> None:
    kit = Kit(rules(("*", "*", "ask")))
    kit.attach("com.a", "shell")
    asked = kit.call("com.a/shell", by=SCRIPT)
    kit.leave("com.a")
    kit.in_force(rules(("*", "*", "allow"), version="v2"))
    assert not kit.questions("call")
    kit.in_force(rules(("*", "*", "ask"), version="v3"))
    kit.attach("com.a", "shell")
    assert (asked.code, asked.deliveries) == ("policy.denied", [])


# -- an agent that is removed -----------------------------------------------------------------------------------------


def test_an_agent_that_is_removed_takes_along_what_waits_for_it() -> None:
    kit = guarded()
    kit.attach("com.b", "x")
    asked = kit.call("com.a/shell", {"command": "rm x"}, by=SCRIPT)
    kit.feed(events.DirectiveRequested(DESK, "wish", SCRIPT, "com.a/shell", None, "please"))
    kit.feed(events.DirectiveRequested(DESK, "other", SCRIPT, "com.b/x", None, "please"))
    kit.leave("com.a")
    kit.feed(events.AgentRemoved("com.a", "the space was removed"))
    assert asked.outcome.fault == fault("tool.not_found", "the space was removed")
    told = kit.replies[DESK, "wish"][0].fault
    assert told == fault("tool.not_found", "the space was removed")
    assert [question.entry.tool_id for question in kit.state.questions.values()] == ["com.b/x"]
    assert [tool.tool_id for tool in views.tools(kit.hub, kit.now)] == ["com.b/x"]


@pytest.mark.parametrize("approves", [False, True])
def test_what_waits_for_the_tool_of_a_removed_agent_is_not_done_by_one_that_gets_its_name(approves: bool) -> None:
    kit = guarded()
    asked = kit.call("com.a/shell", {"command": "rm x"}, by=SCRIPT)
    kit.leave("com.a")
    if approves:
        kit.answer(asked.approval_id)
    kit.feed(events.AgentRemoved("com.a", "gone"))
    assert asked.code == "tool.not_found"
    kit.attach("com.a", "shell")
    assert (asked.deliveries, kit.questions("call")) == ([], [])


def test_what_a_removed_agent_may_have_begun_is_not_told_to_have_not_happened() -> None:
    kit = Kit()
    kit.attach("com.a", tool("com.a/x", capabilities=("idempotency",)))
    lost = kit.call("com.a/x")
    kit.leave("com.a")
    kit.feed(events.AgentRemoved("com.a", "gone"))
    assert lost.status is Status.UNKNOWN

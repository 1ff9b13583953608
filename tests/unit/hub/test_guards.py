"""What the agent behind a tool says to one input: both it and policy must agree."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from tests.unit.hub.kit import BOSS, Kit, body, rules
from trunkline.hub import views
from trunkline.model import Decision, HubSettings, Principal, Status, Verdict, fault

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

"""``hub.control``: manifests and permissions, directives (decisions 13, 15)."""

from __future__ import annotations

import pytest

from tests.requirement import requirement
from tests.unit.hub.kit import ALL, ASK, BOSS, Kit, rules, tool
from trunkline import entries, events
from trunkline.hub.control import DIRECTIVE_LIFE_S
from trunkline.model import HubSettings, Manifest, Policy, Principal, Status

NEEDS = tool("com.x/do", required_permissions=("files:write:/tmp",), side_effects=False)
FIRST = Manifest("1" * 64, ("files:*", "net:get"))
SECOND = Manifest("2" * 64, ("files:*", "net:get", "everything:*"))


def may(kit: Kit, agent: str) -> bool:
    """Whether the agent holds the permission that the tool requires."""
    asked = kit.call("com.x/do", by=agent)
    assert asked.code in {None, "policy.denied"}
    return asked.answer is None


# --- manifests --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kit() -> Kit:
    kit = Kit()
    kit.attach("com.x", NEEDS, tool("com.x/intended", requires_directive=True))
    return kit


def test_permissions_hold_from_the_moment_a_person_grants_them(kit: Kit) -> None:
    kit.attach("com.a", manifest=FIRST)
    assert not may(kit, "com.a")
    (shown,) = kit.hub.approvals.views()
    assert (shown.subject, shown.agent_id, shown.permissions) == ("manifest", "com.a", FIRST.permissions)
    kit.answer(shown.approval_id)
    assert may(kit, "com.a")
    granted = kit.log_of(entries.PermissionsGranted)[-1]
    assert (granted.manifest_sha256, granted.permissions) == (FIRST.sha256, FIRST.permissions)


def test_who_lacks_what_a_person_is_asked_for_hears_which_answer_would_give_it(kit: Kit) -> None:
    kit.attach("com.a", manifest=FIRST)
    (question,) = kit.questions("manifest")
    refused = kit.call(NEEDS.tool_id, by=Principal("opensentience:com.a")).outcome.fault
    assert refused is not None
    assert refused.message.endswith(f"; it is asked for: `trunkline approve {question}`")
    refused = kit.call(NEEDS.tool_id, by=Principal("opensentience:com.b")).outcome.fault
    assert refused is not None
    assert "trunkline approve" not in refused.message


def test_a_manifest_that_was_turned_down_grants_nothing_and_is_asked_about_at_the_next_start(kit: Kit) -> None:
    kit.attach("com.a", manifest=FIRST)
    kit.answer(kit.questions("manifest")[0], approved=False)
    assert not may(kit, "com.a")
    kit.attach("com.a", manifest=FIRST)
    assert len(kit.questions("manifest")) == 1


def test_a_granted_manifest_is_not_asked_about_again_also_after_a_crash(kit: Kit) -> None:
    kit.attach("com.a", manifest=FIRST)
    kit.answer(kit.questions("manifest")[0])
    kit.snapshot()
    kit.crash()
    kit.attach("com.x", NEEDS)
    kit.attach("com.a", manifest=FIRST)
    assert kit.questions("manifest") == []
    assert may(kit, "com.a")


def test_another_manifest_has_to_be_granted_anew_and_until_then_there_are_no_permissions(kit: Kit) -> None:
    kit.attach("com.a", manifest=FIRST)
    kit.answer(kit.questions("manifest")[0])
    kit.attach("com.a", manifest=SECOND)
    assert not may(kit, "com.a")
    kit.answer(kit.questions("manifest")[0])
    assert may(kit, "com.a")


def test_an_unanswered_question_is_replaced_when_the_manifest_changes(kit: Kit) -> None:
    kit.attach("com.a", manifest=FIRST)
    (old,) = kit.questions("manifest")
    kit.attach("com.a", manifest=FIRST)
    assert kit.questions("manifest") == [old]
    kit.attach("com.a", manifest=SECOND)
    assert kit.answer(old).fault is not None
    assert len(kit.questions("manifest")) == 1


def test_a_manifest_is_asked_about_again_when_nobody_answered_in_time(kit: Kit) -> None:
    kit.attach("com.a", manifest=FIRST)
    kit.advance(3601)
    kit.answer(kit.questions("manifest")[0])
    assert may(kit, "com.a")
    kit.attach("com.b", manifest=SECOND)
    kit.leave("com.b")
    kit.advance(3601)
    assert kit.questions("manifest") == []


def test_permissions_of_an_old_manifest_are_not_given_to_a_run_without_it(kit: Kit) -> None:
    kit.attach("com.a", manifest=FIRST)
    (old,) = kit.questions("manifest")
    kit.attach("com.a", manifest=Manifest("3" * 64))
    kit.answer(old)
    assert not may(kit, "com.a")


def test_without_a_manifest_there_is_nothing_to_ask_and_no_permission(kit: Kit) -> None:
    kit.attach("com.a")
    assert kit.questions("manifest") == []
    assert not may(kit, "com.a")


def test_permissions_hold_for_what_an_agent_asked_before_it_left_and_not_for_whoever_comes_in_its_name(
    kit: Kit,
) -> None:
    kit.attach("com.a", manifest=FIRST)
    kit.answer(kit.questions("manifest")[0])
    assert kit.hub.judge.permissions_of("opensentience:com.a") == FIRST.permissions
    assert kit.hub.judge.permissions_of("http:com.a") == ()
    kit.leave("com.a")
    assert kit.hub.judge.permissions_of("opensentience:com.a") == FIRST.permissions
    assert kit.hub.judge.permissions_of("http:com.a") == ()
    kit.token("opensentience", "com.a", "by hand")
    kit.arrive("com.a", token="by hand")
    assert kit.hub.judge.permissions_of("opensentience:com.a") == ()


@requirement("OS-062")
@pytest.mark.parametrize(
    ("manifest", "said", "drift"),
    [(FIRST, FIRST.sha256, False), (FIRST, "9" * 64, True), (FIRST, None, False), (None, "9" * 64, False)],
)
def test_a_manifest_hash_that_differs_from_ours_is_recorded_as_drift(
    kit: Kit, manifest: Manifest | None, said: str | None, drift: bool
) -> None:
    kit.attach("com.a", manifest=manifest, manifest_sha256=said)
    admitted = kit.log_of(entries.AgentAdmitted)[-1]
    assert admitted.drift is drift
    assert admitted.manifest_sha256 == (None if manifest is None else manifest.sha256)


# --- directives -------------------------------------------------------------------------------------------------------


@requirement("OS-001", "OS-085")
@pytest.mark.parametrize("by", [BOSS, Principal("http:guest")])
def test_a_tool_that_requires_a_directive_is_refused_to_everybody_without_one(kit: Kit, by: Principal) -> None:
    for causation_id in (None, "d-invented"):
        refused = kit.call("com.x/intended", by=by, causation_id=causation_id)
        assert (refused.code, refused.refused) == ("policy.directive_required", True)
        assert refused.outcome.fault is not None
        assert refused.outcome.fault.message.startswith("there is no such directive") == (causation_id is not None)
    assert kit.deliveries == []


def test_what_is_named_as_a_directive_and_is_none_is_said_to_be_none(kit: Kit) -> None:
    refused = kit.call("com.x/intended", causation_id="nonsense").outcome.fault
    assert refused is not None
    assert refused.code == "policy.directive_required"
    assert refused.message.startswith("needs a directive, and what it names is none")


@requirement("OS-001", "OS-085")
def test_a_directive_lets_one_call_through_and_its_record_names_it(kit: Kit) -> None:
    stated = kit.directive("com.x/intended")
    assert stated.status == "stated"
    assert stated.after == kit.log_of(entries.DirectiveStated)[-1].n
    asked = kit.call("com.x/intended", causation_id=stated.id)
    assert asked.accepted.directive_id == stated.id
    assert len(asked.deliveries) == 1
    again = kit.call("com.x/intended", causation_id=stated.id).outcome.fault
    assert again is not None
    assert again.code == "policy.directive_required"
    assert again.message.startswith("the directive was used: ")


def test_a_directive_is_used_up_by_a_call_and_not_by_a_refusal(kit: Kit) -> None:
    stated = kit.directive("com.x/intended").id
    kit.leave("com.x")
    assert kit.call("com.x/intended", causation_id=stated).code == "tool.unavailable"
    kit.attach("com.x", NEEDS, tool("com.x/intended", requires_directive=True))
    assert len(kit.call("com.x/intended", causation_id=stated).deliveries) == 1


def test_a_directive_is_bound_to_its_tool_and_to_the_input_if_one_was_given(kit: Kit) -> None:
    kit.offer("com.x", tool("com.x/other", requires_directive=True))
    stated = kit.directive("com.x/intended", {"a": 1, "b": 2}).id
    assert kit.call("com.x/other", {"a": 1, "b": 2}, causation_id=stated).code == "policy.directive_required"
    assert kit.call("com.x/intended", {"a": 1}, causation_id=stated).code == "policy.directive_required"
    assert len(kit.call("com.x/intended", {"b": 2, "a": 1}, causation_id=stated).deliveries) == 1


@pytest.mark.parametrize(
    ("after_s", "sent"), [(DIRECTIVE_LIFE_S - 0.001, 1), (DIRECTIVE_LIFE_S, 0), (DIRECTIVE_LIFE_S + 0.001, 0)]
)
def test_a_directive_lives_an_hour(kit: Kit, after_s: float, sent: int) -> None:
    stated = kit.directive("com.x/intended").id
    kit.advance(after_s)
    assert len(kit.call("com.x/intended", causation_id=stated).deliveries) == sent


def test_a_directive_survives_a_crash_once(kit: Kit) -> None:
    stated, used = kit.directive("com.x/intended").id, kit.directive("com.x/intended").id
    kit.finish(kit.call("com.x/intended", causation_id=used), {})
    kit.advance(3000)
    kit.snapshot()
    kit.crash()
    kit.attach("com.x", tool("com.x/intended", requires_directive=True))
    assert kit.call("com.x/intended", causation_id=used).code == "policy.directive_required"
    assert len(kit.call("com.x/intended", causation_id=stated).deliveries) == 1


def test_what_is_left_of_a_directives_life_survives_a_crash(kit: Kit) -> None:
    stated = kit.directive("com.x/intended").id
    kit.advance(3000)
    kit.crash()
    kit.attach("com.x", tool("com.x/intended", requires_directive=True))
    kit.advance(601)
    assert kit.call("com.x/intended", causation_id=stated).code == "policy.directive_required"


def test_a_directive_for_a_tool_that_never_was_is_refused_and_for_one_that_is_away_is_not(kit: Kit) -> None:
    before = len(kit.log)
    refused = kit.directive("com.x/intendde")
    assert refused.fault is not None
    assert (refused.fault.code, len(kit.log)) == ("tool.not_found", before)
    kit.leave("com.x")
    kit.crash()
    assert kit.directive("com.x/intended").fault is None


def test_only_the_operator_states_directives(kit: Kit) -> None:
    reply = kit.directive("com.x/intended", by=Principal("http:clerk", ("approve",)))
    assert reply.fault is not None
    assert reply.fault.code == "not_allowed"
    assert kit.log_of(entries.DirectiveStated) == []


def test_a_directive_does_not_replace_permission_nor_policy() -> None:
    kit = Kit(rules(("operator", "*", "allow"), ("http:asked", "*", "ask")))
    kit.attach("com.x", tool("com.x/intended", requires_directive=True))
    stated = kit.directive("com.x/intended").id
    assert kit.call("com.x/intended", by=Principal("http:guest"), causation_id=stated).code == "policy.denied"
    asked = kit.call("com.x/intended", by=Principal("http:asked"), causation_id=stated)
    assert asked.deliveries == []
    kit.answer(asked.approval_id)
    assert len(asked.deliveries) == 1


@requirement("OS-158")
@pytest.mark.parametrize("approved", [True, False])
def test_an_agent_may_wish_for_a_directive_and_a_person_decides(kit: Kit, approved: bool) -> None:
    session = kit.attach("com.a")
    by = Principal("opensentience:com.a")
    kit.feed(events.DirectiveRequested(session, "wish", by, "com.x/intended", None, "it is time"))
    (shown,) = kit.hub.approvals.views()
    assert (shown.subject, shown.asked_by, shown.reason, shown.tool_id) == (
        "directive",
        "opensentience:com.a",
        "it is time",
        "com.x/intended",
    )
    assert kit.answer(shown.approval_id, by=Principal("opensentience:com.a", ("approve",))).fault is not None
    kit.answer(shown.approval_id, approved=approved)
    (reply,) = kit.replies[session, "wish"]
    if approved:
        assert reply.status == "stated"
        assert reply.after >= kit.log_of(entries.DirectiveStated)[-1].n
        assert len(kit.call("com.x/intended", by="com.a", causation_id=reply.id).deliveries) == 1
    else:
        assert reply.fault is not None
        assert reply.fault.code == "policy.denied"
        assert kit.log_of(entries.DirectiveStated) == []


def test_a_wish_that_nobody_answers_is_told_so(kit: Kit) -> None:
    session = kit.attach("com.a")
    kit.feed(events.DirectiveRequested(session, "wish", Principal("opensentience:com.a"), "com.x/intended", None, ""))
    kit.advance(3601)
    (reply,) = kit.replies[session, "wish"]
    assert reply.fault is not None
    assert reply.fault.code == "approval.expired"


# --- rules that change while calls wait -------------------------------------------------------------------------------


def test_after_a_crash_waiting_calls_are_judged_by_the_rules_of_the_new_start() -> None:
    kit = Kit(ASK)
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", by=Principal("http:guest"))
    kit.settings = HubSettings(Policy(ALL.rules, "v2"))
    kit.crash()
    kit.attach("com.a", "x")
    assert len(asked.deliveries) == 1
    assert kit.questions("call") == []


def test_a_waiting_call_of_a_tool_that_is_gone_from_the_record_is_denied_by_new_rules() -> None:
    kit = Kit(ASK)
    kit.in_force(unpinned_agents=frozenset({"com.a"}))
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", by=Principal("http:guest"))
    kit.offer("com.a", tool("com.a/x", description="changed"), replace=True)
    kit.in_force(Policy(ASK.rules, "v2"))
    assert (asked.status, asked.code) == (Status.FAILED, "policy.denied")

"""``hub.approvals`` and what follows from an answer: bound, used once, never by a part of the chain (P-F3 to P-F5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.hub.kit import ASK, BOSS, Asked, Kit, body, rules, tool
from trunkline import entries, events
from trunkline.hub import views
from trunkline.hub.approvals import MAX_NAMES, MAX_OPEN_BY_ONE
from trunkline.model import Actor, Circumstance, Decision, Manifest, Policy, Principal, Rule, Status

GUEST = Principal("http:guest")
CLERK = Principal("http:clerk", ("approve",))


@pytest.fixture
def kit() -> Kit:
    kit = Kit(ASK)
    kit.attach("com.a", "x", "y")
    return kit


def question_of(kit: Kit, asked: Asked) -> entries.QuestionOpened:
    return next(e for e in kit.log_of(entries.QuestionOpened) if e.approval_id == asked.approval_id)


# --- asking -----------------------------------------------------------------------------------------------------------


def test_a_call_that_policy_asks_about_waits_and_its_caller_is_told_of_the_question(kit: Kit) -> None:
    asked = kit.call("com.a/x", {"amount": 5}, by=GUEST, correlation_id="c")
    (wait,) = asked.waits
    assert (wait.status, wait.correlation_id) == (Status.WAITING_APPROVAL, "c")
    assert wait.expires_ms == kit.now.ms + 3_600_000
    assert wait.after == question_of(kit, asked).n
    assert asked.deliveries == []
    assert asked.answer is None


def test_a_person_is_shown_exactly_what_would_be_done(kit: Kit) -> None:
    value = {"command": ["rm", "-r", "/" + "x" * 5000]}
    asked = kit.call("com.a/x", value, by=GUEST)
    (shown,) = kit.hub.approvals.views()
    assert (shown.subject, shown.asked_by, shown.tool_id) == ("call", "http:guest", "com.a/x")
    assert shown.call_id == asked.call_id
    assert shown.input == body(value)
    assert shown.waiting == 1


def test_a_question_that_is_not_on_disk_is_shown_nowhere_and_an_answer_to_it_counts_for_nothing(kit: Kit) -> None:
    # After a crash its name would be given to the next question, and the answer would be to that one.
    kit.has_disk = False
    asked = kit.call("com.a/x", by=GUEST)
    assert kit.hub.approvals.views() == []
    assert kit.hub.approvals.shown_ids() == []
    shown = views.call(kit.hub, asked.call_id)
    assert shown is not None
    assert (shown.status, shown.approval_id) == (Status.WAITING_APPROVAL, None)
    assert [view.approval_id for _, view in views.calls_in_memory(kit.hub, range(1000), 9)] == [None]
    refused = kit.answer(asked.approval_id)
    assert refused.fault is not None
    assert refused.fault.code == "not_found"
    assert asked.deliveries == []
    kit.store()
    assert kit.hub.approvals.shown_ids() == [asked.approval_id]
    found = views.call(kit.hub, asked.call_id)
    assert found is not None
    assert found.approval_id == asked.approval_id
    kit.answer(asked.approval_id)
    assert len(asked.deliveries) == 1


def test_who_lacks_permissions_hears_of_the_question_about_them_once_it_is_on_disk() -> None:
    kit = Kit(rules(("*", "*", "allow")))
    kit.attach("com.p", tool("com.p/x", required_permissions=("files",)))
    kit.has_disk = False
    kit.attach("com.q", manifest=Manifest("m1", ("files",)))
    (question,) = kit.log_of(entries.QuestionOpened)

    def says() -> str:
        problem = kit.call("com.p/x", by="com.q").outcome.fault
        assert problem is not None
        return problem.message

    assert question.approval_id not in says()
    kit.store()
    assert question.approval_id in says()


def test_a_token_that_is_not_on_disk_is_not_listed_and_its_name_revokes_nothing(kit: Kit) -> None:
    kit.has_disk = False
    named = kit.token("http", "guest", "secret")
    assert views.tokens(kit.hub) == []
    refused = kit.revoke(named).fault
    assert refused is not None
    assert refused.code == "not_found"
    kit.store()
    assert [token.token_id for token in views.tokens(kit.hub)] == [named]


def test_an_approved_call_is_sent_and_its_record_says_who_let_it(kit: Kit) -> None:
    asked = kit.call("com.a/x", {"n": 1}, by=GUEST)
    reply = kit.answer(asked.approval_id, reason="fine")
    assert (reply.status, reply.id, reply.fault) == ("approved", asked.approval_id, None)
    assert len(asked.deliveries) == 1
    kit.finish(asked, {})
    assert asked.status is Status.SUCCEEDED
    closed = kit.log_of(entries.QuestionClosed)[-1]
    assert (closed.how, closed.by, closed.reason, closed.same_person) == ("approved", "operator", "fine", False)


def test_a_denied_call_fails_with_the_persons_reason_and_is_never_sent(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    reply = kit.answer(asked.approval_id, approved=False, reason="not on a Friday")
    assert reply.status == "denied"
    assert (asked.status, asked.code, asked.refused) == (Status.FAILED, "policy.denied", False)
    assert asked.outcome.fault is not None
    assert asked.outcome.fault.message == "not on a Friday"
    assert asked.deliveries == []


def test_the_person_is_told_only_when_what_follows_from_the_answer_is_on_disk(kit: Kit) -> None:
    for approved in (True, False):
        asked = kit.call("com.a/x", {"approved": approved}, by=GUEST)
        reply = kit.answer(asked.approval_id, approved=approved)
        assert reply.after == len(kit.log)


# --- what an answer is bound to (eight cases) -------------------------------------------------------------------------


def test_an_answer_does_not_cover_another_input(kit: Kit) -> None:
    first = kit.call("com.a/x", {"n": 1}, by=GUEST)
    kit.answer(first.approval_id)
    swapped = kit.call("com.a/x", {"n": 2}, by=GUEST)
    assert swapped.deliveries == []
    assert swapped.approval_id != first.approval_id


def test_an_answer_does_not_cover_another_caller_nor_another_tool_nor_another_chain(kit: Kit) -> None:
    kit.attach("com.b", "work")
    for_boss = kit.call("com.b/work")
    kit.in_force(rules(("operator", "*", "allow"), ("http:*", "com.b/*", "allow"), ("*", "*", "ask"), version="v2"))
    for_guest = kit.call("com.b/work", by=GUEST)
    asked = [
        kit.call("com.a/x", by=GUEST),
        kit.call("com.a/x", by=Principal("http:other")),
        kit.call("com.a/y", by=GUEST),
        kit.call("com.a/x", by="com.b", causation_id=for_boss.call_id),
        kit.call("com.a/x", by="com.b", causation_id=for_guest.call_id),
    ]
    questions = [each.approval_id for each in asked]
    assert len(set(questions)) == 5
    for number, question in enumerate(questions, start=1):
        kit.answer(question)
        assert [len(each.deliveries) for each in asked] == [1] * number + [0] * (5 - number)


def test_a_call_under_another_definition_has_a_question_of_its_own(kit: Kit) -> None:
    kit.in_force(unpinned_agents=frozenset({"com.a"}))
    old = kit.call("com.a/x", by=GUEST)
    kit.offer("com.a", tool("com.a/x", description="changed"), replace=True)
    new = kit.call("com.a/x", by=GUEST)
    assert new.approval_id != old.approval_id
    kit.answer(new.approval_id)
    assert (len(old.deliveries), len(new.deliveries)) == (0, 1)


def test_an_answer_is_used_once(kit: Kit) -> None:
    first = kit.call("com.a/x", by=GUEST)
    kit.answer(first.approval_id)
    reply = kit.answer(first.approval_id)
    assert reply.fault is not None
    assert reply.fault.code == "not_found"
    kit.finish(first, {})
    second = kit.call("com.a/x", by=GUEST)
    assert second.deliveries == []


def test_when_the_rules_change_the_call_is_judged_by_the_new_ones(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    old = asked.approval_id
    kit.in_force(Policy(ASK.rules, "v2"))
    assert asked.approval_id != old
    assert question_of(kit, asked).policy == "v2"
    assert asked.deliveries == []
    kit.answer(asked.approval_id)
    assert len(asked.deliveries) == 1
    late = kit.answer(old)
    assert late.fault is not None
    assert late.fault.code == "not_found"


def test_what_is_asked_again_under_other_rules_is_found_by_its_earlier_names_also_after_a_crash(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    old = asked.approval_id
    kit.in_force(Policy(ASK.rules, "v2"))
    kit.in_force(Policy(ASK.rules, "v3"))
    kit.snapshot()
    kit.crash()
    kit.attach("com.a", "x", "y")
    found = kit.hub.approvals.find(old)
    assert found is not None
    assert found.entry.approval_id != old
    # What a person was shown under the old name is what is shown now.
    answered = kit.answer(old)
    assert (answered.fault, answered.id, answered.status) == (None, found.entry.approval_id, "approved")
    assert kit.log_of(entries.QuestionClosed)[-1].approval_id == found.entry.approval_id
    assert kit.hub.approvals.find(old) is None
    again = kit.answer(old).fault
    assert again is not None
    assert again.code == "not_found"


def test_a_yes_to_what_is_asked_for_another_reason_by_now_says_what_changed_and_a_no_is_taken(kit: Kit) -> None:
    asked, other = kit.call("com.a/x", by=GUEST), kit.call("com.a/y", by=GUEST)
    name, other_name = asked.approval_id, other.approval_id
    reworded = Rule("r2", "*", "*", Decision.ASK, reason="strangers wrote to it")
    kit.in_force(rules(reworded, version="v2"))
    in_between = asked.approval_id
    kit.in_force(rules(reworded, version="v3"))
    assert len({name, in_between, asked.approval_id}) == 3
    shown = next(one for one in kit.hub.approvals.views() if one.approval_id == asked.approval_id)
    assert (shown.reason, shown.rule) == ("strangers wrote to it", "r2")
    late = kit.answer(name).fault
    assert late is not None
    assert (late.code, late.details) == ("state.conflict", {"approval_id": asked.approval_id})
    assert "for another reason: strangers wrote to it (before: none was given)" in late.message
    assert asked.deliveries == []
    assert kit.answer(in_between).id == asked.approval_id
    assert len(asked.deliveries) == 1
    assert kit.answer(other_name, approved=False).id == other.approval_id
    assert other.status is Status.FAILED


def test_of_the_names_of_a_question_the_last_sixteen_answer_it(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    names = [asked.approval_id]
    for turn in range(MAX_NAMES + 1):
        kit.in_force(Policy(ASK.rules, f"v{turn + 2}"))
        names.append(asked.approval_id)
    late = kit.answer(names[0]).fault
    assert late is not None
    assert late.code == "not_found"
    assert kit.answer(names[1]).fault is None


def test_an_old_name_covers_one_call_also_where_identical_ones_wait(kit: Kit) -> None:
    first, second = kit.call("com.a/x", by=GUEST), kit.call("com.a/x", by=GUEST)
    name = first.approval_id
    assert second.approval_id == name
    kit.in_force(Policy(ASK.rules, "v2"))
    assert kit.answer(name).fault is None
    again = kit.answer(name).fault
    assert again is not None
    assert again.code == "not_found"
    assert (len(first.deliveries), len(second.deliveries)) == (1, 0)


def test_what_an_agent_is_asked_about_again_after_it_expired_is_answered_by_the_name_that_it_had(kit: Kit) -> None:
    kit.attach("com.b", "z", manifest=Manifest("m" * 64, ("p",)))
    kit.attach("com.b", tool("com.b/z", description="another"), manifest=Manifest("m" * 64, ("p",)))
    old = {one.subject: one.approval_id for one in kit.hub.approvals.views()}
    kit.advance(kit.settings.approval_expire_s + 1)
    new = {one.subject: one.approval_id for one in kit.hub.approvals.views()}
    assert old.keys() == new.keys() == {"manifest", "definition"}
    for subject, name in old.items():
        assert new[subject] != name
        assert kit.answer(name).id == new[subject]
    assert kit.hub.approvals.views() == []


def test_new_rules_may_also_let_a_waiting_call_through_or_end_it(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    other = kit.call("com.a/y", by=GUEST)
    kit.in_force(rules(("*", "com.a/x", "allow"), version="v2"))
    assert len(asked.deliveries) == 1
    assert (other.status, other.code, other.deliveries) == (Status.FAILED, "policy.denied", [])
    assert kit.log_of(entries.QuestionClosed)[-1].by == "policy"
    assert kit.questions("call") == []


def test_rules_that_allow_one_of_two_like_calls_do_not_let_the_other_through() -> None:
    """Equal but for their past: one belongs to a conversation that strangers wrote in."""
    kit = Kit(ASK)
    kit.in_force(untrusted_agents=frozenset({"com.web"}))
    kit.attach("com.a", "x")
    kit.attach("com.web", tool("com.web/read", side_effects=False))
    kit.finish(kit.call("com.web/read", correlation_id="c"), {})
    tainted = kit.call("com.a/x", by=GUEST, correlation_id="c")
    clean = kit.call("com.a/x", by=GUEST)
    assert tainted.approval_id != clean.approval_id
    ask_untrusted = Rule("u", "*", "*", Decision.ASK, when=Circumstance.UNTRUSTED)
    kit.in_force(rules(ask_untrusted, ("*", "*", "allow"), version="v2"), untrusted_agents=frozenset({"com.web"}))
    assert len(clean.deliveries) == 1
    assert tainted.deliveries == []
    assert kit.questions("call") == [tainted.approval_id]


def test_an_answer_does_not_cover_a_definition_that_changed_since(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    kit.offer("com.a", tool("com.a/x", description="now it deletes everything"), replace=True)
    (changed,) = kit.questions("definition")
    kit.answer(changed)
    kit.answer(asked.approval_id)
    assert (asked.status, asked.code, asked.deliveries) == (Status.FAILED, "policy.denied", [])


@pytest.mark.parametrize(
    ("after_s", "code", "sent"),
    [(3599.999, None, 1), (3600.0, "approval.expired", 0), (3600.001, "approval.expired", 0)],
)
def test_a_question_lives_an_hour(kit: Kit, after_s: float, code: str | None, sent: int) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    kit.mono += after_s  # without a wake: the answer arrives first
    kit.wall += after_s
    reply = kit.answer(asked.approval_id)
    assert (reply.fault and reply.fault.code) == code
    assert len(asked.deliveries) == sent
    kit.advance(1)
    assert asked.code == code


def test_nobody_answers_in_time(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    kit.advance(3599)
    assert asked.answer is None
    kit.advance(1.1)
    assert (asked.status, asked.code) == (Status.FAILED, "approval.expired")
    assert kit.log_of(entries.QuestionClosed)[-1].how == "expired"


def test_the_life_of_a_question_is_a_setting(kit: Kit) -> None:
    kit.in_force(approval_expire_s=60.0)
    asked = kit.call("com.a/x", by=GUEST)
    kit.advance(60.1)
    assert asked.code == "approval.expired"


def test_a_question_never_outlives_its_call(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST, expires_ms=kit.now.ms + 5000)
    assert asked.waits[0].expires_ms == kit.now.ms + 5000
    approval_id = asked.approval_id
    kit.advance(5.1)
    assert (asked.status, asked.code) == (Status.FAILED, "call.expired")
    assert approval_id not in kit.state.questions


def test_of_two_calls_behind_a_question_each_expires_by_itself(kit: Kit) -> None:
    short = kit.call("com.a/x", by=GUEST, expires_ms=kit.now.ms + 5000)
    long = kit.call("com.a/x", by=GUEST)
    assert long.approval_id == short.approval_id
    kit.advance(5.1)
    assert (short.code, long.answer) == ("call.expired", None)
    kit.answer(long.approval_id)
    assert len(long.deliveries) == 1


# --- who may answer (decision 10) -------------------------------------------------------------------------------------


def test_only_the_operator_and_holders_of_the_permission_answer(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    for nobody in (Principal("http:other"), Principal("http:other", ("files:read",))):
        reply = kit.answer(asked.approval_id, by=nobody)
        assert reply.fault is not None
        assert reply.fault.code == "not_allowed"
    assert asked.deliveries == []
    assert kit.answer(asked.approval_id, by=CLERK).fault is None
    assert len(asked.deliveries) == 1


def test_nobody_answers_their_own_question_nor_one_of_a_chain_they_are_part_of(kit: Kit) -> None:
    kit.attach("com.b", "work")
    own = kit.call("com.a/x", by=CLERK)
    kit.answer(kit.call("com.b/work", by=CLERK).approval_id)
    chained = kit.call("com.a/x", by="com.b")
    agent = Principal("opensentience:com.b", ("approve",))
    for question, by in ((own, CLERK), (chained, CLERK), (chained, agent)):
        reply = kit.answer(question.approval_id, by=by)
        assert reply.fault is not None
        assert reply.fault.code == "not_allowed"
    assert kit.answer(own.approval_id, by=agent).fault is None
    assert chained.deliveries == []


def test_an_agent_cannot_answer_about_its_own_definition_or_manifest(kit: Kit) -> None:
    kit.offer("com.a", tool("com.a/x", description="changed"), replace=True)
    (question,) = kit.questions("definition")
    reply = kit.answer(question, by=Principal("opensentience:com.a", ("approve",)))
    assert reply.fault is not None
    assert reply.fault.code == "not_allowed"


def test_the_operator_may_answer_what_he_started_and_the_record_says_so() -> None:
    kit = Kit(rules(("*", "*", "ask")))
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", by=BOSS)
    kit.answer(asked.approval_id)
    assert len(asked.deliveries) == 1
    assert kit.log_of(entries.QuestionClosed)[-1].same_person


# --- fatigue (P-F5) ---------------------------------------------------------------------------------------------------


def test_one_agent_has_five_open_questions_and_the_next_call_is_denied(kit: Kit) -> None:
    assert MAX_OPEN_BY_ONE == 5
    kit.attach("com.b")
    asked = [kit.call("com.a/x", {"n": n}, by="com.b") for n in range(100)]
    assert [a.code for a in asked] == [None] * MAX_OPEN_BY_ONE + ["policy.denied"] * 95
    assert all(a.refused for a in asked[MAX_OPEN_BY_ONE:])
    assert len(kit.questions("call")) == MAX_OPEN_BY_ONE
    assert kit.call("com.a/x", {"n": 7}, by=GUEST).answer is None
    kit.answer(asked[0].approval_id, approved=False)
    assert kit.call("com.a/x", {"n": 200}, by="com.b").answer is None


def test_the_operator_may_have_more() -> None:
    kit = Kit(rules(("*", "*", "ask")))
    kit.attach("com.a", "x")
    asked = [kit.call("com.a/x", {"n": n}) for n in range(MAX_OPEN_BY_ONE + 3)]
    assert all(a.answer is None for a in asked)


def test_identical_calls_wait_behind_one_question_and_one_answer_covers_one_of_them(kit: Kit) -> None:
    asked = [kit.call("com.a/x", {"n": 1}, by=GUEST) for _ in range(20)]
    assert len(kit.questions("call")) == 1
    assert kit.hub.approvals.views()[0].waiting == 20
    kit.answer(asked[0].approval_id)
    assert [len(a.deliveries) for a in asked] == [1] + [0] * 19
    (question,) = kit.questions("call")
    assert {a.approval_id for a in asked[1:]} == {question}, "those who wait on are told of the new question"
    kit.answer(question, approved=False)
    assert {a.code for a in asked[1:]} == {"policy.denied"}


def test_identical_calls_do_not_need_room_for_a_further_question(kit: Kit) -> None:
    for n in range(MAX_OPEN_BY_ONE):
        kit.call("com.a/x", {"n": n}, by=GUEST)
    assert kit.call("com.a/x", {"n": 0}, by=GUEST).answer is None
    assert kit.call("com.a/x", {"n": 99}, by=GUEST).code == "policy.denied"


@pytest.mark.parametrize(
    "beside",
    [{"context": body({"project_root": "/home/me/notes"})}, {"actor": Actor("human", "anna")}],
    ids=["context", "actor"],
)
def test_a_repeat_with_the_same_beside_its_input_needs_no_room_for_a_further_question(
    kit: Kit, beside: dict[str, Any]
) -> None:
    asked = [kit.call("com.a/x", {"n": n}, by=GUEST, **beside) for n in range(MAX_OPEN_BY_ONE)]
    assert kit.call("com.a/x", {"n": 0}, by=GUEST, **beside).approval_id == asked[0].approval_id
    assert kit.call("com.a/x", {"n": 0}, by=GUEST).code == "policy.denied", "without it, it is another question"


def test_changed_definitions_are_asked_about_five_at_a_time(kit: Kit) -> None:
    names = [f"t{n}" for n in range(12)]
    kit.attach("com.b", *names)
    kit.offer("com.b", *(tool(f"com.b/{name}", description="changed") for name in names), replace=True)
    seen: list[str] = []
    while questions := kit.questions("definition"):
        assert len(questions) <= MAX_OPEN_BY_ONE
        seen.append(questions[0])
        kit.answer(questions[0], approved=len(seen) % 2 == 0)
    assert len(seen) == 12
    callable_now = [name for name in names if kit.call(f"com.b/{name}").answer is None]
    assert len(callable_now) == 6


def test_a_manifest_waits_its_turn_like_any_question(kit: Kit) -> None:
    kit.attach("com.b")
    for n in range(MAX_OPEN_BY_ONE):
        kit.call("com.a/x", {"n": n}, by="com.b")
    kit.attach("com.b", manifest=Manifest("m" * 64, ("p",)))
    assert kit.questions("manifest") == []
    kit.answer(kit.questions("call")[0], approved=False)
    assert len(kit.questions("manifest")) == 1


def five_open_and_a_manifest_held(kit: Kit) -> list[Asked]:
    kit.attach("com.b")
    asked = [kit.call("com.a/x", {"n": n}, by="com.b") for n in range(MAX_OPEN_BY_ONE)]
    # The first one's question has an identical call behind it.
    asked.append(kit.call("com.a/x", {"n": 0}, by="com.b"))
    kit.attach("com.b", manifest=Manifest("m" * 64, ("p",)))
    return asked


def test_a_held_question_waits_on_when_the_rules_change_and_all_calls_are_asked_about_anew(kit: Kit) -> None:
    five_open_and_a_manifest_held(kit)
    kit.in_force(rules(("operator", "*", "allow"), ("*", "*", "ask"), version="v2"))
    assert len(kit.questions("call")) == MAX_OPEN_BY_ONE
    assert kit.questions("manifest") == []
    kit.answer(kit.questions("call")[-1], approved=False)
    assert len(kit.questions("manifest")) == 1


def test_a_held_question_waits_on_when_an_identical_call_is_asked_about_next(kit: Kit) -> None:
    asked = five_open_and_a_manifest_held(kit)
    kit.answer(asked[0].approval_id)
    assert (len(kit.questions("call")), kit.questions("manifest")) == (MAX_OPEN_BY_ONE, [])
    kit.answer(kit.questions("call")[-1])
    assert (len(kit.questions("call")), len(kit.questions("manifest"))) == (MAX_OPEN_BY_ONE - 1, 1)


def test_a_question_that_nobody_answered_is_asked_again_after_those_that_were_held(kit: Kit) -> None:
    names = [f"t{n}" for n in range(MAX_OPEN_BY_ONE + 2)]
    kit.attach("com.b", *names)
    kit.offer("com.b", *(tool(f"com.b/{name}", description="changed") for name in names), replace=True)
    kit.advance(kit.settings.approval_expire_s + 1)
    asked_about = [opened.tool_id for opened in kit.log_of(entries.QuestionOpened)]
    assert asked_about == [f"com.b/{name}" for name in (*names, *names[: MAX_OPEN_BY_ONE - 2])]


def test_what_new_rules_allow_takes_no_sixth_place_even_for_a_moment(kit: Kit) -> None:
    """One of them is made where no stranger wrote; after each entry there may be a crash."""
    kit.in_force(ASK, untrusted_agents=frozenset({"com.u"}))
    kit.attach("com.u", "read")
    kit.finish(kit.call("com.u/read", correlation_id="c1").call_id, {})
    for n in range(1, MAX_OPEN_BY_ONE):
        kit.call("com.a/x", {"n": n}, by=GUEST, correlation_id="c1")
    allowed = kit.call("com.a/x", {"n": 0}, by=GUEST)
    untrusted = Rule("untrusted", "*", "*", Decision.ASK, when=Circumstance.UNTRUSTED)
    kit.in_force(rules(untrusted, ("*", "*", "allow"), version="v2"), untrusted_agents=frozenset({"com.u"}))
    assert len(allowed.deliveries) == 1
    assert len(kit.questions("call")) == MAX_OPEN_BY_ONE - 1
    open_now: set[str] = set()
    for entry in kit.log:
        if isinstance(entry, entries.QuestionOpened):
            open_now.add(entry.approval_id)
            assert len(open_now) <= MAX_OPEN_BY_ONE
        elif isinstance(entry, entries.QuestionClosed):
            open_now.remove(entry.approval_id)


# --- waiting holds nothing --------------------------------------------------------------------------------------------


def test_a_waiting_call_holds_no_slot(kit: Kit) -> None:
    kit.attach("com.b", "x", max_inflight=1)
    kit.call("com.b/x", by=GUEST)
    assert len(kit.call("com.b/x").deliveries) == 1


def test_a_call_canceled_while_it_waits_takes_its_question_with_it(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    kit.cancel(asked, by=GUEST)
    assert asked.status is Status.CANCELED
    assert kit.questions("call") == []
    assert kit.log_of(entries.QuestionClosed)[-1].how == "withdrawn"


def test_the_question_stays_for_those_behind_the_canceled_one(kit: Kit) -> None:
    first, second = kit.call("com.a/x", by=GUEST), kit.call("com.a/x", by=GUEST)
    kit.cancel(first, by=GUEST)
    assert kit.questions("call") == [second.approval_id]
    kit.answer(second.approval_id)
    assert len(second.deliveries) == 1


def test_an_approved_call_whose_agent_is_away_waits_for_it(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    kit.leave("com.a")
    kit.answer(asked.approval_id)
    assert asked.answer is None
    kit.attach("com.a", "x")
    assert len(asked.deliveries) == 1


# --- across a crash ---------------------------------------------------------------------------------------------------


def test_a_question_survives_a_crash_with_what_is_left_of_its_time(kit: Kit) -> None:
    asked = kit.call("com.a/x", {"n": 1}, by=GUEST)
    question = asked.approval_id
    kit.advance(1000)
    kit.snapshot()
    kit.crash()
    assert kit.questions("call") == [question]
    kit.advance(2599)
    assert kit.questions("call") == [question]
    kit.advance(1.1)
    assert kit.questions("call") == []
    assert kit.outcomes[asked.accepted.n].fault is not None


def test_an_answer_after_a_crash_sends_the_call_once_its_agent_is_back(kit: Kit) -> None:
    asked = kit.call("com.a/x", {"n": 1}, by=GUEST)
    question = asked.approval_id
    kit.crash()
    kit.answer(question)
    kit.attach("com.a", "x")
    assert len(asked.deliveries) == 1
    kit.finish(asked, {})
    assert kit.outcomes[asked.accepted.n].status is Status.SUCCEEDED


def test_identical_calls_are_still_behind_one_question_after_a_crash(kit: Kit) -> None:
    asked = [kit.call("com.a/x", {"n": 1}, by=GUEST) for _ in range(3)]
    question = asked[0].approval_id
    kit.cancel(asked[0])
    kit.snapshot()
    kit.crash()
    kit.attach("com.a", "x")
    kit.answer(question)
    assert [len(a.deliveries) for a in asked] == [0, 1, 0]
    assert len(kit.questions("call")) == 1


def test_the_second_call_behind_a_question_is_still_let_through_after_a_crash() -> None:
    kit = Kit(ASK)
    kit.attach("com.a", tool("com.a/x", side_effects=False))
    first, second = kit.call("com.a/x", by=GUEST), kit.call("com.a/x", by=GUEST)
    kit.cancel(first)
    kit.answer(second.approval_id)
    kit.snapshot()
    kit.crash()
    kit.attach("com.a", tool("com.a/x", side_effects=False))
    kit.advance(1.1)
    assert len(second.deliveries) == 2


def test_a_question_whose_call_ended_just_before_the_crash_is_withdrawn(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    kit.cancel(asked)
    settled = kit.outcomes[asked.accepted.n].n
    assert kit.step[1] > settled
    kit.crash(settled)
    assert kit.questions("call") == []


@pytest.mark.parametrize("approved", [True, False])
def test_wherever_a_crash_cuts_an_answer_short_the_call_is_asked_about_again_or_goes_on(approved: bool) -> None:
    lost = 0
    while True:
        kit = Kit(ASK)
        kit.attach("com.a", "x")
        calls = [kit.call("com.a/x", {"n": 1}, by=GUEST) for _ in range(2)]
        kit.answer(calls[0].approval_id, approved=approved)
        first, last = kit.step
        if lost > last - first:
            break
        kit.crash(last - lost)
        kit.attach("com.a", "x")
        for call in kit.state.calls.values():
            assert call.approval_id in kit.state.questions or call.status is not Status.WAITING_APPROVAL
        for question in kit.questions("call"):
            kit.answer(question)
        lost += 1
    assert lost > 1


def test_a_clock_that_was_set_back_does_not_make_a_question_live_longer(kit: Kit) -> None:
    kit.call("com.a/x", by=GUEST)
    kit.wall -= 86_400
    kit.crash()
    kit.advance(3600.1)
    assert kit.questions("call") == []


# --- the answer that is not there -------------------------------------------------------------------------------------


def test_an_unknown_question_is_not_found(kit: Kit) -> None:
    reply = kit.answer("a999")
    assert reply.fault is not None
    assert reply.fault.code == "not_found"


def test_two_answers_race_and_one_wins(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    first = kit.answer(asked.approval_id, approved=False)
    second = kit.answer(asked.approval_id, approved=True)
    assert (first.fault is None, second.fault is None) == (True, False)
    assert asked.deliveries == []


def test_the_rules_that_were_in_force_are_in_the_record_of_the_call(kit: Kit) -> None:
    asked = kit.call("com.a/x", by=GUEST)
    assert (asked.accepted.decision, asked.accepted.rule, asked.accepted.policy) == ("ask", "rule-2", "ask")


def test_an_agents_wish_for_a_directive_counts_as_a_question(kit: Kit) -> None:
    session = kit.attach("com.b")
    by = Principal("opensentience:com.b")
    for n in range(MAX_OPEN_BY_ONE + 1):
        kit.feed(events.DirectiveRequested(session, f"w{n}", by, "com.a/x", None, "please"))
    assert len(kit.questions("directive")) == MAX_OPEN_BY_ONE
    refused = kit.replies[session, f"w{MAX_OPEN_BY_ONE}"][0]
    assert refused.fault is not None
    assert refused.fault.code == "policy.denied"


# --- what is shown is what is answered --------------------------------------------------------------------------------


def test_a_call_made_after_reading_what_strangers_wrote_is_another_question_than_the_one_before() -> None:
    asks = Rule("rule-1", "http:*", "com.a/*", Decision.ASK, reason="somebody wants it")
    warns = Rule("rule-0", "http:*", "com.a/*", Decision.ASK, when=Circumstance.UNTRUSTED, reason="strangers wrote it")
    kit = Kit(Policy((warns, asks, Rule("rule-2", "*", "*", Decision.ALLOW)), "v1"))
    kit.attach("com.a", "x")
    kit.attach("com.web", tool("com.web/page", side_effects=False))
    kit.in_force(untrusted_agents=frozenset({"com.web"}))
    before = kit.call("com.a/x", {"to": "eve"}, by=GUEST)
    kit.finish(kit.call("com.web/page", by=GUEST), {})
    after = kit.call("com.a/x", {"to": "eve"}, by=GUEST)
    assert before.approval_id != after.approval_id
    assert [question.reason for question in kit.hub.approvals.views()] == ["somebody wants it", "strangers wrote it"]
    kit.answer(before.approval_id)
    assert (len(before.deliveries), len(after.deliveries)) == (1, 0)


def test_what_a_call_hands_on_beside_its_input_is_shown_and_tells_calls_apart(kit: Kit) -> None:
    def ask(root: str, actor: Actor | None = None) -> Asked:
        return kit.call("com.a/x", {"file": "notes"}, by=GUEST, context=body({"project_root": root}), actor=actor)

    person = Actor("human", "operator")
    asked = [ask("/home/me/notes"), ask("/etc"), ask("/etc", person), ask("/etc")]
    assert len({one.approval_id for one in asked}) == 3
    shown = {question.approval_id: question for question in kit.hub.approvals.views()}
    assert shown[asked[0].approval_id].context == body({"project_root": "/home/me/notes"})
    assert shown[asked[2].approval_id].actor == person
    assert shown[asked[1].approval_id].waiting == 2


def test_what_was_shown_beside_the_input_is_what_is_sent_after_a_crash(kit: Kit) -> None:
    context, actor = body({"project_root": "/home/me/notes"}), Actor("human", "anna")
    asked = kit.call("com.a/x", by=GUEST, context=context, actor=actor)
    kit.snapshot()
    kit.crash()
    kit.attach("com.a", "x", "y")
    (shown,) = kit.hub.approvals.views()
    assert (shown.context, shown.actor) == (context, actor)
    kit.answer(shown.approval_id)
    (sent,) = asked.deliveries
    assert (sent.context, sent.actor) == (context, actor)


def test_a_sensitive_call_whose_context_a_crash_took_is_not_sent_without_it() -> None:
    ask = Rule("rule-1", "http:*", "*", Decision.ASK)
    kit = Kit(Policy((ask, Rule("rule-2", "*", "*", Decision.ALLOW)), "v1"))
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", by=GUEST, context=body({"secret": 1}), sensitive=True)
    assert question_of(kit, asked).beside == body({})
    kit.crash()
    kit.attach("com.a", "x")
    kit.answer(asked.approval_id)
    assert asked.deliveries == []
    (settled,) = kit.log_of(entries.CallSettled)
    assert settled.fault is not None
    assert settled.fault.code == "call.expired"

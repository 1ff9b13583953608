"""The small parts by themselves: ``timers``, ``lifecycle``, ``retry``, ``views``, ``invariants``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hub.kit import ASK, BOSS, NO_RETRY, Kit, body, rules, tool
from trunkline import effects, entries
from trunkline.errors import InvariantBroken
from trunkline.hub import invariants, views
from trunkline.hub.lifecycle import STEPS, step
from trunkline.hub.retry import may_resend, next_delay_s
from trunkline.hub.state import Call
from trunkline.hub.timers import BUCKET_S, Timers, seconds_left
from trunkline.model import OUTCOMES, RESEND, Decision, Health, Now, Principal, Status

# --- timers -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 10)), max_size=30), st.floats(0, 11))
def test_a_key_is_due_never_early_and_at_most_a_bucket_late(armed: list[tuple[int, float]], now: float) -> None:
    timers: Timers[int] = Timers()
    deadlines: dict[int, float] = {}
    for key, deadline in armed:
        if key in deadlines:
            timers.disarm(key, deadlines[key])
        timers.arm(key, deadline)
        deadlines[key] = deadline
    due = timers.due(now)
    assert len(due) == len(set(due))
    for key, deadline in deadlines.items():
        if deadline > now:
            assert key not in due
        elif deadline + BUCKET_S + 1e-9 <= now:
            assert key in due
    next_at = timers.next_at()
    assert (next_at is None) == (len(timers) == 0)
    assert next_at is None or next_at > now


def test_a_disarmed_key_leaves_nothing_behind() -> None:
    timers: Timers[int] = Timers()
    for key in range(1000):
        timers.arm(key, 30.0 + key / 1000)
    for key in range(1000):
        timers.disarm(key, 30.0 + key / 1000)
    timers.disarm(5, 99.0)
    assert timers.next_at() is None
    assert len(timers) == 0


def test_keys_of_one_bucket_come_in_an_order_that_does_not_depend_on_hashes() -> None:
    timers: Timers[int | str] = Timers()
    for key in ("b", 3, "a", 1):
        timers.arm(key, 1.0)
    assert timers.due(2.0) == sorted(["b", 3, "a", 1], key=repr)


def test_after_a_restart_a_life_is_never_longer_than_it_was() -> None:
    assert seconds_left(0, 60_000, Now(0.0, 20.0)) == 40.0
    assert seconds_left(0, 60_000, Now(0.0, 100.0)) == 0.0
    assert seconds_left(0, 60_000, Now(0.0, -1000.0)) == 60.0


# --- lifecycle and retry ----------------------------------------------------------------------------------------------


def test_an_outcome_is_the_end_and_every_other_state_leads_to_one() -> None:
    assert set(STEPS) == set(Status)
    for before, after in STEPS.items():
        assert (not after) == (before in OUTCOMES)
        assert not after or after & OUTCOMES


@pytest.mark.parametrize("before", list(Status))
@pytest.mark.parametrize("after", list(Status))
def test_a_step_that_is_not_in_the_table_cannot_be_taken(before: Status, after: Status) -> None:
    if after in STEPS[before]:
        assert step(before, after) is after
    else:
        with pytest.raises(InvariantBroken):
            step(before, after)


def lost_call(attempt: int, *, side_effects: bool = False, dedupes: bool = False) -> Call:
    entry = entries.CallAccepted(
        n=1,
        at=0,
        call_id="c",
        caller="operator",
        tool_id="a/b",
        input=body({}),
        decision=Decision.ALLOW,
        rule="r",
        policy="v",
        fingerprint="f",
        sent=True,
        side_effects=side_effects,
        dedupes=dedupes,
    )
    return Call(entry, Status.RUNNING, attempt)


def test_a_lost_call_is_sent_after_0_1_and_2_seconds_and_then_no_more() -> None:
    assert [next_delay_s(lost_call(attempt), RESEND) for attempt in (1, 2, 3, 4)] == [1.0, 2.0, None, None]
    assert next_delay_s(lost_call(1), NO_RETRY) is None


@pytest.mark.parametrize(
    ("side_effects", "dedupes", "expected"), [(False, False, True), (True, True, True), (True, False, False)]
)
def test_only_what_can_do_no_harm_twice_is_sent_twice(side_effects: bool, dedupes: bool, expected: bool) -> None:
    call = lost_call(1, side_effects=side_effects, dedupes=dedupes)
    assert may_resend(call) is expected
    assert (next_delay_s(call, RESEND) is not None) is expected
    call.ending = "canceled"
    assert next_delay_s(call, RESEND) is None


# --- book -------------------------------------------------------------------------------------------------------------


def test_a_reply_is_a_problem_or_an_id_and_never_both(kit: Kit) -> None:
    kit.hub.journal.reply(1, "r", 0, problem=tool_problem(), named="x", status="done")
    kit.hub.journal.reply(1, "r", 0, named="x", status="done")
    assert kit.hub.journal.effects == [
        effects.Reply(1, 0, "r", fault=tool_problem()),
        effects.Reply(1, 0, "r", id="x", status="done"),
    ]


def tool_problem() -> effects.Fault:
    return effects.Fault("tool.failed", "no")


# --- views ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def shown() -> Kit:
    kit = Kit(ASK)
    kit.attach(
        "com.a",
        tool("com.a/x", input_schema=body({"type": "object", "required": ["n"]})),
        tool("com.a/meant", requires_directive=True, side_effects=False),
    )
    return kit


def test_a_call_is_shown_in_each_of_its_states(shown: Kit) -> None:
    waiting = shown.call("com.a/x", {"n": 1}, by=Principal("http:guest"), correlation_id="c")
    running = shown.call("com.a/x", {"n": 1})
    seen = views.call(shown.hub, waiting.call_id)
    assert seen is not None
    assert (seen.status, seen.approval_id, seen.started_at, seen.correlation_id) == (
        Status.WAITING_APPROVAL,
        waiting.approval_id,
        None,
        "c",
    )
    seen = views.call(shown.hub, running.call_id)
    assert seen is not None
    assert (seen.status, seen.started_at) == (Status.RUNNING, "2027-01-15T08:00:00.000Z")
    shown.advance(1.5)
    shown.has_disk = False
    shown.finish(running, {"ok": 1})
    seen = views.call(shown.hub, running.call_id)
    assert seen is not None
    assert (seen.status, seen.output) == (Status.RUNNING, None), "its outcome is not on disk yet"
    assert [view.status for _, view in views.calls_in_memory(shown.hub, range(2**53), 500)] == [
        Status.RUNNING,
        Status.WAITING_APPROVAL,
    ]
    shown.hub.stored(shown.state.last)
    seen = views.call(shown.hub, running.call_id)
    assert seen is not None
    assert (seen.status, seen.output, seen.finished_at) == (
        Status.SUCCEEDED,
        body({"ok": 1}),
        "2027-01-15T08:00:01.500Z",
    )
    assert views.call(shown.hub, "none") is None


def test_an_agent_and_its_tools_are_shown_with_their_state(shown: Kit) -> None:
    shown.finish(shown.call("com.a/x", {"n": 1}), {})
    shown.finish(shown.call("com.a/x", {"n": 2}), status=Status.FAILED)
    shown.call("com.a/x", {"n": 3})
    agent = views.agent(shown.hub, shown.hub.registry.agents["com.a"])
    assert (agent.state, agent.tools, agent.open_calls, agent.succeeded, agent.failed) == ("ready", 2, 1, 1, 1)
    assert [(t.tool_id, t.status) for t in views.tools(shown.hub, shown.now)] == [
        ("com.a/meant", "available"),
        ("com.a/x", "available"),
    ]
    shown.health("com.a", Health.UNHEALTHY)
    assert views.agent(shown.hub, shown.hub.registry.agents["com.a"]).state == "unhealthy"
    shown.leave("com.a")
    assert {t.status for t in views.tools(shown.hub, shown.now)} == {"unavailable"}


def test_tokens_are_shown_without_their_secret(shown: Kit) -> None:
    token_id = shown.token("http", "guest", "sha", permissions=("p",))
    shown.revoke(token_id)
    (seen,) = views.tokens(shown.hub)
    assert (seen.token_id, seen.edge, seen.agent, seen.permissions, seen.revoked) == (
        token_id,
        "http",
        "guest",
        ("p",),
        True,
    )


@pytest.mark.parametrize(
    ("caller", "tool_id", "value", "decision", "rule", "code"),
    [
        ("operator", "com.a/x", {"n": 1}, "allow", "rule-1", None),
        ("http:guest", "com.a/x", None, "ask", "rule-2", None),
        ("operator", "com.a/x", {}, "deny", "schema", "tool.invalid_input"),
        ("operator", "com.a/none", None, "deny", "registry", "tool.not_found"),
    ],
)
def test_a_dry_run_says_what_would_happen_and_records_nothing(
    shown: Kit, caller: str, tool_id: str, value: object, decision: str, rule: str, code: str | None
) -> None:
    before = len(shown.log)
    verdict = views.dry_run(shown.hub, caller, tool_id, None if value is None else body(value), shown.now)
    assert (verdict.decision, verdict.rule, verdict.fault and verdict.fault.code) == (decision, rule, code)
    assert len(shown.log) == before


def test_a_dry_run_mentions_what_else_is_in_the_way(shown: Kit) -> None:
    assert "directive" in views.dry_run(shown.hub, "operator", "com.a/meant", None, shown.now).reason
    shown.crash()
    verdict = views.dry_run(shown.hub, "operator", "com.a/meant", None, shown.now)
    assert "unavailable" in verdict.reason
    assert verdict.decision is Decision.ALLOW


def test_a_dry_run_denies_what_policy_denies() -> None:
    kit = Kit(rules(("operator", "*", "allow")))
    kit.attach("com.a", "x")
    verdict = views.dry_run(kit.hub, "http:guest", "com.a/x", None, kit.now)
    assert (verdict.decision, verdict.rule) == (Decision.DENY, "default")


def test_the_figures_add_up(shown: Kit) -> None:
    shown.finish(shown.call("com.a/x", {"n": 1}), {})
    shown.call("com.a/x", {"n": 1})
    shown.call("com.a/x", {"n": 1}, by=Principal("http:guest"))
    shown.call("com.a/none")
    figures = views.figures(shown.hub)
    assert figures["open_calls"] == {"running": 1, "waiting_approval": 1}
    assert figures["settled_calls"] == {"succeeded": 1, "failed": 0, "canceled": 0, "unknown": 0}
    assert figures["refused_calls"] == {"tool.not_found": 1}
    assert (figures["agents"], figures["tools"], figures["questions"], figures["policy"]) == (1, 2, 1, "ask")


# --- invariants -------------------------------------------------------------------------------------------------------


def lose_a_running_call(kit: Kit) -> None:
    kit.hub.registry.agents["com.a"].running.clear()


def forget_a_number(kit: Kit) -> None:
    kit.state.by_number.pop(next(iter(kit.state.by_number)))


def give_too_much_back(kit: Kit) -> None:
    kit.hub.loads.give_back("operator", 2)


def settle_without_an_entry(kit: Kit) -> None:
    next(iter(kit.state.calls.values())).status = Status.SUCCEEDED


def empty_a_question(kit: Kit) -> None:
    next(iter(kit.state.questions.values())).calls.clear()


def run_somewhere_else(kit: Kit) -> None:
    next(c for c in kit.state.calls.values() if c.status is Status.RUNNING).session = 999


def change_a_definition(kit: Kit) -> None:
    kit.hub.registry.tools["com.a/x"].fingerprint = "another"


def drop_from_the_queue(kit: Kit) -> None:
    kit.hub.registry.agents["com.a"].queue.take_first()


def keep_a_place_for_nobody(kit: Kit) -> None:
    kit.hub.registry.agents["com.a"].queue.add(999, "operator")


def lose_a_key(kit: Kit) -> None:
    kit.state.keys.clear()


def fall_sick_unnoticed(kit: Kit) -> None:
    kit.hub.registry.agents["com.a"].health = Health.SILENT


@pytest.mark.parametrize(
    "harm",
    [
        lose_a_running_call,
        forget_a_number,
        give_too_much_back,
        settle_without_an_entry,
        empty_a_question,
        run_somewhere_else,
        change_a_definition,
        drop_from_the_queue,
        keep_a_place_for_nobody,
        lose_a_key,
        fall_sick_unnoticed,
    ],
)
def test_check_notices(harm: Callable[[Kit], None]) -> None:
    kit = Kit(ASK)
    kit.attach("com.a", "x", max_inflight=1)
    kit.call("com.a/x", by=BOSS, key="k")
    kit.call("com.a/x")
    kit.call("com.a/x", by=Principal("http:guest"))
    invariants.check(kit.hub)
    harm(kit)
    with pytest.raises(InvariantBroken):
        invariants.check(kit.hub)

"""Expiry to the millisecond (P-B7) and wall clocks that jump (P-B8)."""

from __future__ import annotations

import random

import pytest

from tests.unit.hub.kit import ASK, DESK, Asked, Kit, rules, tool
from trunkline import entries, events
from trunkline.hub import views
from trunkline.model import Principal, Status

GUEST = Principal("http:guest")
BOUNDARY = [(-1, "call.expired"), (0, "call.expired"), (1, None)]


@pytest.mark.parametrize(("left_ms", "code"), BOUNDARY)
def test_a_call_that_is_expired_on_arrival_is_refused(kit: Kit, left_ms: int, code: str | None) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", expires_ms=kit.now.ms + left_ms)
    assert asked.code == code
    assert len(asked.deliveries) == (code is None)


@pytest.mark.parametrize(("left_ms", "code"), BOUNDARY)
def test_a_queued_call_is_not_sent_at_or_after_its_expiry_even_if_a_slot_comes_first(
    kit: Kit, left_ms: int, code: str | None
) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    running = kit.call("com.a/x", timeout_ms=600_000)
    queued = kit.call("com.a/x", expires_ms=kit.now.ms + 5000)
    kit.mono += (5000 - left_ms) / 1000  # without a wake: the slot is free first
    kit.wall += (5000 - left_ms) / 1000
    kit.finish(running, {})
    assert (queued.code, len(queued.deliveries)) == (code, int(code is None))
    kit.advance(1)
    assert queued.code == code


@pytest.mark.parametrize(("left_ms", "code"), BOUNDARY)
def test_a_call_that_waits_for_a_person_is_not_sent_at_or_after_its_expiry(left_ms: int, code: str | None) -> None:
    kit = Kit(ASK)
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", by=GUEST, expires_ms=kit.now.ms + 5000)
    question = asked.approval_id
    kit.mono += (5000 - left_ms) / 1000
    kit.wall += (5000 - left_ms) / 1000
    kit.answer(question)
    assert (asked.code, len(asked.deliveries)) == (code, int(code is None))


@pytest.mark.parametrize(("left_ms", "code"), BOUNDARY)
def test_a_call_whose_agent_is_away_is_not_sent_at_or_after_its_expiry(
    kit: Kit, left_ms: int, code: str | None
) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    kit.call("com.a/x")
    asked = kit.call("com.a/x", {"n": 1}, expires_ms=kit.now.ms + 5000)
    kit.leave("com.a")
    kit.mono += (5000 - left_ms) / 1000
    kit.wall += (5000 - left_ms) / 1000
    kit.attach("com.a", "x")
    assert (asked.code, len(asked.deliveries)) == (code, int(code is None))


def test_an_expired_call_is_answered_once_by_the_alarm(kit: Kit) -> None:
    kit.attach("com.a", "x", max_inflight=1)
    kit.call("com.a/x", timeout_ms=600_000)
    queued = kit.call("com.a/x", expires_ms=kit.now.ms + 5000)
    kit.advance(4.99)
    assert queued.answer is None
    kit.advance(0.07)
    assert (queued.status, queued.code) == (Status.FAILED, "call.expired")


def test_a_running_call_does_not_expire(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", expires_ms=kit.now.ms + 1000)
    kit.advance(10)
    kit.finish(asked, {})
    assert asked.status is Status.SUCCEEDED


def test_the_expiry_of_a_waiting_call_survives_a_crash() -> None:
    kit = Kit(ASK)
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", by=GUEST, expires_ms=kit.now.ms + 60_000)
    kit.advance(30)
    kit.crash()
    kit.advance(29.9)
    assert kit.state.calls
    kit.advance(0.2)
    fault = kit.outcomes[asked.accepted.n].fault
    assert fault is not None
    assert fault.code == "call.expired"


# --- jumps ------------------------------------------------------------------------------------------------------------


def story(jump: random.Random | None) -> list[tuple[object, ...]]:
    """One long run with everything that has a deadline; the wall clock jumps before each event if asked to."""
    kit = Kit(ASK)
    plan = random.Random(7)

    def maybe_jump() -> None:
        if jump is not None:
            kit.wall += jump.uniform(-3600, 3600)

    def come() -> None:
        kit.attach(
            "com.a",
            "x",
            tool("com.a/read", side_effects=False),
            tool("com.a/stop", capabilities=("cancellation",)),
            tool("com.a/meant", requires_directive=True),
            max_inflight=2,
        )

    come()
    asked: list[Asked] = []
    directives: list[str | None] = []
    for _ in range(300):
        maybe_jump()
        match plan.randrange(10):
            case 0 | 1 | 2:
                name = plan.choice(["x", "read", "stop"])
                caller = plan.choice([GUEST, None])
                terms = {"by": caller} if caller else {}
                asked.append(
                    kit.call(f"com.a/{name}", {"n": plan.randrange(3)}, timeout_ms=plan.choice([500, 5000]), **terms)
                )
            case 3:
                directives.append(kit.directive("com.a/meant").id)
            case 4 if directives:
                asked.append(kit.call("com.a/meant", causation_id=plan.choice(directives)))
            case 5:
                for question in kit.questions("call")[:1]:
                    kit.answer(question, approved=plan.random() < 0.7)
            case 6:
                running = [c for c in kit.state.calls.values() if c.status is Status.RUNNING]
                if running:
                    kit.finish(plan.choice(running).entry.call_id, {})
            case 7:
                if asked:
                    kit.feed(events.CallerLeft(DESK, plan.choice(asked).ref))
            case 8 if plan.random() < 0.2:
                kit.leave("com.a")
                kit.advance(plan.choice([0.1, 3, 20]))
                maybe_jump()
                come()
            case _:
                kit.advance(plan.choice([0.1, 1, 6, 40, 1900]))
    kit.advance(10_000)
    # Numbers, kinds and outcomes; not the times, which are wall times.
    return [
        (e.n, type(e).__name__, getattr(e, "call", None), getattr(e, "status", None), getattr(e, "how", None))
        for e in kit.log
    ]


def test_a_wall_clock_that_jumps_changes_no_outcome_and_no_order() -> None:
    calm = story(None)
    assert sum(kind == "CallSettled" for _, kind, *_ in calm) > 50
    for seed in range(4):
        assert story(random.Random(seed)) == calm


def test_a_jump_moves_neither_a_deadline_nor_a_question(kit: Kit) -> None:
    kit.in_force(ASK)
    kit.attach("com.a", "x")
    running, waiting = kit.call("com.a/x", timeout_ms=1000), kit.call("com.a/x", by=GUEST)
    kit.wall += 3600 * 24
    kit.advance(0.9)
    assert running.answer is waiting.answer is None
    kit.wall -= 3600 * 48
    kit.advance(0.2)
    assert running.code == "tool.timeout"
    kit.advance(3599)
    assert waiting.code == "approval.expired"


DAY_S = 86_400


def jump(kit: Kit, seconds: float) -> None:
    """The wall clock is set, and the runner notices."""
    kit.wall += seconds
    kit.feed(events.ClockJumped(int(seconds * 1000)))


@pytest.mark.parametrize("how", ["while it runs", "while it is off", "and then it restarts"])
def test_a_clock_that_jumps_ahead_forgets_no_key(kit: Kit, how: str) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", key="k")
    kit.finish(asked, {"n": 1})
    if how == "while it is off":
        kit.wall += 30 * DAY_S
        kit.crash()
    else:
        jump(kit, 30 * DAY_S)
    if how == "and then it restarts":
        kit.snapshot()
        kit.crash()
    for _ in range(2):
        again = kit.call("com.a/x", key="k")
        assert (again.call_id, again.status) == (asked.call_id, Status.SUCCEEDED)
        kit.advance(DAY_S / 2 - 1)
    kit.advance(3)
    kit.attach("com.a", "x")
    assert kit.call("com.a/x", key="k").call_id != asked.call_id, "a day that was lived through counts"


def test_a_clock_that_jumps_ahead_forgets_no_taint(kit: Kit) -> None:
    kit.in_force(untrusted_agents=frozenset({"com.a"}))
    kit.attach("com.a", "x")
    kit.finish(kit.call("com.a/x", correlation_id="c"), {})
    jump(kit, 2 * DAY_S)
    assert kit.state.is_tainted("c", kit.now.ms)
    kit.snapshot()
    kit.crash()
    assert kit.state.is_tainted("c", kit.now.ms)
    kit.advance(DAY_S + 1)
    assert not kit.state.is_tainted("c", kit.now.ms)


def test_a_short_jump_counts_while_the_exchange_runs_and_leaves_no_entry(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x", key="k")
    kit.finish(asked, {})
    for _ in range(30):
        jump(kit, 3600)
    assert kit.call("com.a/x", key="k").call_id == asked.call_id
    assert kit.log_of(entries.Noticed) == []


def test_times_in_the_record_are_wall_times(kit: Kit) -> None:
    kit.attach("com.a", "x")
    asked = kit.call("com.a/x")
    kit.advance(2)
    kit.finish(asked, {})
    settled = kit.outcomes[asked.accepted.n]
    assert asked.accepted.at == 1_800_000_000_000
    assert (settled.started_ms, settled.finished_ms, settled.at) == (
        1_800_000_000_000,
        1_800_000_002_000,
        1_800_000_002_000,
    )
    assert isinstance(kit.log[0], entries.ExchangeStarted)


def test_a_call_does_not_time_out_while_one_that_it_caused_waits_for_a_person() -> None:
    kit = Kit(ASK)
    kit.attach("com.a", "x")
    kit.attach("com.b", tool("com.b/y", side_effects=True))
    outer = kit.call("com.a/x", timeout_ms=30_000)
    inner = kit.call("com.b/y", by="com.a", causation_id=outer.call_id)
    kit.advance(100)
    assert outer.answer is None
    kit.answer(inner.approval_id)
    kit.finish(inner, {})
    kit.advance(19)  # it was given 30 s more at 30, 60 and 90 s
    assert outer.answer is None
    kit.advance(40)
    assert outer.code == "tool.timeout"


def test_nor_does_one_that_caused_that_one() -> None:
    kit = Kit(rules(("*", "com.c/*", "ask"), ("*", "*", "allow")))
    for agent in ("com.a", "com.b", "com.c"):
        kit.attach(agent, "x")
    outermost = kit.call("com.a/x", timeout_ms=30_000)
    outer = kit.call("com.b/x", by="com.a", causation_id=outermost.call_id)
    inner = kit.call("com.c/x", by="com.b", causation_id=outer.call_id)
    kit.advance(100)
    assert (outermost.answer, outer.answer) == (None, None)
    kit.answer(inner.approval_id, approved=False)
    kit.advance(60)
    assert (outermost.status, outer.status) == (Status.UNKNOWN, Status.UNKNOWN)


def test_an_agent_that_answers_no_calls_is_shown_as_unresponsive_until_it_answers_one(kit: Kit) -> None:
    kit.attach("com.a", "x")

    def health() -> str:
        return views.agent(kit.hub, kit.hub.registry.agents["com.a"]).health

    for _ in range(3):
        assert health() == "ok"
        kit.call("com.a/x", timeout_ms=1000)
        kit.advance(7)
    assert health() == "unresponsive"
    kit.finish(kit.call("com.a/x"), {})
    assert health() == "ok"

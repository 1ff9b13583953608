"""Cancellation, best effort and once: P-B10, and P-B3 in every order of what can end a call."""

from __future__ import annotations

import itertools

import pytest

from tests.requirement import requirement
from tests.unit.hub.kit import DESK, Asked, Kit, body, rules, tool
from trunkline import entries, events
from trunkline.hub.interruptions import GRACE_S
from trunkline.model import Principal, Status

STATES = ("waiting approval", "queued", "parked", "running", "settled")
ME = Principal("http:me")
STRANGER = Principal("http:stranger")


def call_in(state: str, **terms: object) -> tuple[Kit, Asked]:
    """A call of mine in a state of its life."""
    kit = Kit(rules(("http:me", "com.a/asked", "ask"), ("*", "*", "allow")))
    kit.attach("com.a", tool("com.a/x", **terms), "asked", max_inflight=1)
    if state == "waiting approval":
        return kit, kit.call("com.a/asked", by=ME)
    if state in {"queued", "parked"}:
        kit.call("com.a/x", timeout_ms=600_000)
    asked = kit.call("com.a/x", {"n": 1}, by=ME)
    if state == "parked":
        kit.leave("com.a")
    if state == "settled":
        kit.finish(asked, {"done": 1})
    return kit, asked


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("times", [1, 2])
def test_whoever_asked_may_cancel_in_any_state_and_there_is_one_outcome(state: str, times: int) -> None:
    kit, asked = call_in(state)
    replies = [kit.cancel(asked, by=ME) for _ in range(times)]
    kit.advance(60)
    assert replies[0].fault is None
    assert replies[0].status == ("settled" if state == "settled" else "canceling")
    settled = kit.outcomes[asked.accepted.n]
    if state == "settled":
        assert settled.status is Status.SUCCEEDED
    elif state == "running":
        # It has side effects and cannot be stopped: nobody knows.
        assert (settled.status, settled.fault and settled.fault.code) == (Status.UNKNOWN, "tool.canceled")
    else:
        assert settled.status is Status.CANCELED
        assert asked.deliveries == []
    assert asked.outcome.status is settled.status


@pytest.mark.parametrize("state", STATES)
def test_a_stranger_is_told_that_there_is_no_such_call_and_changes_nothing(state: str) -> None:
    kit, asked = call_in(state)
    before = len(kit.log)
    reply = kit.cancel(asked, by=STRANGER)
    assert reply.fault is not None
    assert reply.fault.code == "not_found"
    assert reply.status is None
    assert len(kit.log) == before


@pytest.mark.parametrize("state", STATES)
def test_the_operator_may_cancel_everybodys_calls(state: str) -> None:
    kit, asked = call_in(state)
    assert kit.cancel(asked).fault is None


def test_a_call_is_also_named_by_the_request_it_was_asked_with() -> None:
    kit, asked = call_in("queued")
    kit.feed(events.CancelRequested(DESK, "c", ME, target=asked.ref))
    assert kit.replies[DESK, "c"][0].id == asked.call_id
    assert asked.status is Status.CANCELED
    kit.feed(events.CancelRequested(DESK, "c2", ME, target="another"))
    fault = kit.replies[DESK, "c2"][0].fault
    assert fault is not None
    assert fault.code == "not_found"


def test_a_stoppable_call_is_asked_to_stop_and_its_confirmation_is_the_outcome() -> None:
    kit, asked = call_in("running", capabilities=("cancellation",))
    kit.cancel(asked, by=ME, reason="changed my mind")
    (cancel,) = kit.cancels
    assert (cancel.reason, cancel.deadline_ms) == ("changed my mind", 5000)
    assert cancel.after >= asked.accepted.n
    assert asked.answer is None
    kit.feed(events.CancelAcknowledged(cancel.session, asked.call_id, True))
    assert asked.answer is None
    kit.finish(asked, status=Status.CANCELED)
    assert (asked.status, asked.code) == (Status.CANCELED, "tool.canceled")
    assert [n.note for n in kit.log_of(entries.CallNoted)] == ["cancel.requested", "cancel.accepted"]


def test_a_second_cancel_is_not_sent_on_and_does_not_prolong_the_grace() -> None:
    kit, asked = call_in("running", capabilities=("cancellation",))
    kit.cancel(asked, by=ME)
    kit.advance(GRACE_S - 1)
    kit.cancel(asked, by=ME)
    assert len(kit.cancels) == 1
    kit.advance(1.1)
    assert asked.answer is not None


@requirement("OS-126")
def test_a_call_that_finishes_before_it_hears_of_its_cancel_succeeds() -> None:
    kit, asked = call_in("running", capabilities=("cancellation",))
    kit.cancel(asked, by=ME)
    kit.finish(asked, {"done": 1})
    assert asked.status is Status.SUCCEEDED
    assert asked.outcome.output == body({"done": 1})


@pytest.mark.parametrize("side_effects", [True, False])
def test_without_a_confirmation_only_a_tool_that_reads_is_known_to_be_canceled(side_effects: bool) -> None:
    kit, asked = call_in("running", capabilities=("cancellation",), side_effects=side_effects)
    kit.cancel(asked, by=ME)
    kit.advance(GRACE_S + 0.1)
    assert asked.status is (Status.UNKNOWN if side_effects else Status.CANCELED)
    assert asked.code == "tool.canceled"


def test_the_callers_words_do_not_turn_a_cancel_into_a_timeout() -> None:
    kit, asked = call_in("running", capabilities=("cancellation",))
    kit.cancel(asked, by=ME, reason="timeout")
    kit.finish(asked, status=Status.CANCELED)
    assert (asked.status, asked.code) == (Status.CANCELED, "tool.canceled")


def test_a_declined_cancel_is_noted_and_the_result_still_awaited() -> None:
    kit, asked = call_in("running", capabilities=("cancellation",))
    kit.cancel(asked, by=ME)
    kit.feed(events.CancelAcknowledged(kit.cancels[0].session, asked.call_id, False))
    assert kit.log_of(entries.CallNoted)[-1].note == "cancel.declined"
    kit.finish(asked, {})
    assert asked.status is Status.SUCCEEDED


@requirement("OS-122", "OS-126")
@pytest.mark.parametrize("side_effects", [True, False])
@pytest.mark.parametrize("capabilities", [(), ("cancellation",), ("idempotency",)])
def test_two_results_a_cancel_a_timeout_and_a_loss_give_one_outcome_in_all_their_orders(
    side_effects: bool, capabilities: tuple[str, ...]
) -> None:
    for order in itertools.permutations(("result 1", "result 2", "cancel", "timeout", "lost")):
        kit = Kit()
        definition = tool("com.a/x", side_effects=side_effects, capabilities=capabilities)
        session = kit.attach("com.a", definition)
        asked = kit.call("com.a/x", timeout_ms=100, key="k")
        joined = kit.call("com.a/x", key="k")
        for happening in order:
            if happening == "cancel":
                kit.cancel(asked)
            elif happening == "timeout":
                kit.advance(0.2)
            elif happening == "lost":
                kit.feed(events.AgentLeft(session, "closed"))
            else:
                kit.finish(asked, {"says": happening}, session=session)
        kit.advance(60)
        settled = [e for e in kit.log_of(entries.CallSettled) if e.call == asked.accepted.n]
        assert len(settled) == 1, order
        assert asked.outcome.status is joined.outcome.status is settled[0].status, order
        # The kit sees to it that nobody is answered twice. A result that came first of all is the outcome.
        if order[0].startswith("result"):
            assert asked.outcome.output == body({"says": order[0]}), order
        assert len(asked.deliveries) == 1, order

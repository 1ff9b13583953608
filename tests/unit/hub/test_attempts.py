"""An attempt that failed is no outcome: repeated as its edge says, on the same agent, until the caller's deadline."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.hub.kit import Asked, Kit, tool
from trunkline import entries, events
from trunkline.hub.retry import next_attempt_s
from trunkline.model import Fault, RetryPolicy, Status, fault

RETRY = RetryPolicy((0.0, 1.0, 2.0, 4.0))
TIMEOUT = fault("tool.timeout", retryable=True, details={"attempted_retries": 0})


def attached(kit: Kit, **terms: object) -> int:
    return kit.attach("com.a", "x", **{"dedupes": True, "timeout_s": None, "retry": RETRY, **terms})


def fail(kit: Kit, asked: Asked, problem: Fault = TIMEOUT) -> None:
    kit.feed(events.AttemptFailed(kit.sessions["com.a"], asked.call_id, problem))


@requirement("CH-075", "CH-076", "CH-077", "CH-081")
def test_a_call_is_sent_four_times_after_waits_of_one_two_and_four_seconds_under_the_same_key(kit: Kit) -> None:
    attached(kit)
    asked = kit.call("com.a/x")
    for count, delay in ((1, 1.0), (2, 2.0), (3, 4.0)):
        fail(kit, asked)
        kit.advance(delay - 0.01)
        assert len(asked.deliveries) == count, f"not before {delay} s"
        kit.advance(0.1)
        assert len(asked.deliveries) == count + 1
    assert [d.attempt for d in asked.deliveries] == [1, 2, 3, 4]
    assert len({(d.key, d.call_id, d.session) for d in asked.deliveries}) == 1
    assert asked.answer is None
    fail(kit, asked)
    kit.advance(100.0)
    assert len(asked.deliveries) == 4
    assert (asked.status, asked.code) == (Status.UNKNOWN, "tool.timeout")
    assert asked.outcome.fault is not None
    assert asked.outcome.fault.details == {"attempted_retries": 0}
    notes = [note.detail for note in kit.log_of(entries.CallNoted) if note.note == "attempt.failed"]
    assert notes == [f"attempt {n}: tool.timeout" for n in (1, 2, 3, 4)]


def test_who_waits_is_shown_each_attempt_that_failed_and_when_the_next_one_is(kit: Kit) -> None:
    attached(kit)
    asked = kit.call("com.a/x")
    kit.feed(events.CallProgressed(kit.sessions["com.a"], asked.call_id, 1, "stdout", Raw(b'{"text":"a"}')))
    fail(kit, asked)
    kit.advance(1.1)
    fail(kit, asked, fault("tool.unavailable"))
    shown = [(one.seq, one.channel, json.loads(bytes(one.data))["text"]) for one in kit.progress]
    assert shown == [
        (1, "stdout", "a"),
        (2, "status", "attempt 1 failed (tool.timeout); the next one in 1 s"),
        (3, "status", "attempt 2 failed (tool.unavailable); the next one in 2 s"),
    ]


@requirement("CH-063", "CH-082")
@pytest.mark.parametrize("code", ["tool.invalid_input", "tool.not_found", "tool.failed"])
def test_what_is_not_retryable_ends_the_call_at_once(kit: Kit, code: str) -> None:
    attached(kit)
    asked = kit.call("com.a/x")
    fail(kit, asked, fault(code))
    assert (asked.status, asked.code, len(asked.deliveries)) == (Status.FAILED, code, 1)


@requirement("CH-063")
@pytest.mark.parametrize("code", ["tool.unavailable", "limit.resource"])
def test_what_is_retryable_is_repeated_and_in_the_end_is_the_outcome(kit: Kit, code: str) -> None:
    attached(kit)
    asked = kit.call("com.a/x")
    for _ in range(4):
        fail(kit, asked, fault(code))
        kit.advance(5.0)
    assert (asked.status, asked.code, len(asked.deliveries)) == (Status.FAILED, code, 4)


def test_a_timeout_of_a_tool_without_side_effects_is_a_failure(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", side_effects=False), retry=RetryPolicy((0.0,)))
    asked = kit.call("com.a/x")
    fail(kit, asked)
    assert (asked.status, asked.code) == (Status.FAILED, "tool.timeout")


def test_a_late_result_settles_a_call_that_waits_for_its_next_attempt(kit: Kit) -> None:
    attached(kit)
    asked = kit.call("com.a/x")
    fail(kit, asked)
    kit.finish(asked, {"late": True})
    assert asked.status is Status.SUCCEEDED
    kit.advance(10.0)
    assert len(asked.deliveries) == 1


def test_a_result_after_the_last_attempt_is_recorded_and_goes_nowhere(kit: Kit) -> None:
    attached(kit, retry=RetryPolicy((0.0,)))
    asked = kit.call("com.a/x")
    fail(kit, asked)
    kit.finish(asked, {"late": True})
    assert asked.status is Status.UNKNOWN
    assert kit.log_of(entries.CallNoted)[-1].note == "result.ignored"


def test_the_callers_own_deadline_stops_the_attempts(kit: Kit) -> None:
    attached(kit)
    asked = kit.call("com.a/x", timeout_ms=2500)
    fail(kit, asked, fault("limit.resource"))
    kit.advance(1.1)
    assert len(asked.deliveries) == 2
    fail(kit, asked, fault("limit.resource"))
    assert (asked.status, asked.code) == (Status.FAILED, "limit.resource"), "two more seconds would be too late"


def test_the_deadline_counts_from_the_first_attempt(kit: Kit) -> None:
    attached(kit)
    asked = kit.call("com.a/x", timeout_ms=10_000)
    fail(kit, asked, fault("limit.resource"))
    kit.advance(9.9)
    assert asked.answer is None
    kit.advance(0.2)
    assert (asked.status, asked.code) == (Status.UNKNOWN, "tool.timeout")


def test_without_a_promise_to_dedupe_nothing_is_sent_twice(kit: Kit) -> None:
    attached(kit, dedupes=False)
    asked = kit.call("com.a/x")
    fail(kit, asked)
    kit.advance(10.0)
    assert (asked.status, len(asked.deliveries)) == (Status.UNKNOWN, 1)


def test_an_agent_whose_edge_states_no_rule_gets_one_attempt(kit: Kit) -> None:
    attached(kit, retry=None)
    asked = kit.call("com.a/x")
    fail(kit, asked, fault("tool.unavailable"))
    assert (asked.status, len(asked.deliveries)) == (Status.FAILED, 1)


def test_a_call_that_is_being_stopped_is_not_sent_again(kit: Kit) -> None:
    kit.attach("com.a", tool("com.a/x", capabilities=("cancellation", "idempotency")), retry=RETRY)
    asked = kit.call("com.a/x")
    fail(kit, asked)
    kit.feed(events.CancelRequested(1, "stop", kit_boss(), call_id=asked.call_id))
    fail(kit, asked)
    kit.advance(4.0)
    assert len(asked.deliveries) == 1
    kit.advance(2.0)
    assert (asked.status, asked.code) == (Status.UNKNOWN, "tool.canceled")


def kit_boss() -> events.Principal:
    return events.Principal("operator")


def test_an_attempt_of_another_agents_call_is_ignored(kit: Kit) -> None:
    attached(kit)
    other = kit.attach("com.b", "y")
    asked = kit.call("com.a/x")
    kit.feed(events.AttemptFailed(other, asked.call_id, TIMEOUT))
    kit.advance(5.0)
    assert len(asked.deliveries) == 1
    assert kit.log_of(entries.CallNoted)[-1].note == "attempt.ignored"


def test_an_agent_that_is_gone_before_the_next_attempt_leaves_a_lost_call(kit: Kit) -> None:
    attached(kit)
    asked = kit.call("com.a/x")
    fail(kit, asked)
    kit.leave("com.a")
    attached(kit)
    kit.advance(1.1)
    assert [d.attempt for d in asked.deliveries] == [1, 2]
    kit.finish(asked, {})
    assert asked.status is Status.SUCCEEDED


def test_a_crash_between_two_attempts_loses_nothing(kit: Kit) -> None:
    attached(kit)
    asked = kit.call("com.a/x")
    fail(kit, asked)
    kit.advance(1.1)
    kit.crash()
    attached(kit)
    kit.advance(2.1)
    assert [d.attempt for d in asked.deliveries] == [1, 2, 3]


def test_the_rule_by_itself(kit: Kit) -> None:
    attached(kit)
    asked = kit.call("com.a/x")
    call = kit.state.calls[asked.call_id]
    assert next_attempt_s(call, TIMEOUT, RETRY, kit.mono) == 1.0
    assert next_attempt_s(call, TIMEOUT, None, kit.mono) is None
    assert next_attempt_s(call, fault("tool.failed"), RETRY, kit.mono) is None
    call.deadline = kit.mono + 1.0
    assert next_attempt_s(call, TIMEOUT, RETRY, kit.mono) is None

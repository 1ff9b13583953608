"""``hub.limits``: rate, open calls and bytes of one caller; arithmetic over ``now``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hub.kit import ASK, Kit, rules
from trunkline import entries
from trunkline.hub.limits import Loads
from trunkline.model import Limits, Principal

NOISY, QUIET = Principal("http:noisy"), Principal("http:quiet")


@pytest.fixture
def kit() -> Kit:
    kit = Kit()
    kit.attach("com.a", "x")
    return kit


def test_a_caller_has_so_many_open_calls_and_gets_them_back(kit: Kit) -> None:
    kit.in_force(limits=Limits(open_calls=3))
    asked = [kit.call("com.a/x", {"n": n}, by=NOISY) for n in range(4)]
    assert [a.code for a in asked] == [None, None, None, "limit.inflight"]
    assert kit.call("com.a/x", by=QUIET).answer is None
    kit.finish(asked[0], {})
    assert kit.call("com.a/x", by=NOISY).answer is None


def test_calls_that_wait_for_a_person_count_as_open() -> None:
    kit = Kit(ASK)
    kit.in_force(limits=Limits(open_calls=2))
    kit.attach("com.a", "x")
    waiting = [kit.call("com.a/x", by=NOISY) for _ in range(2)]
    assert kit.call("com.a/x", by=NOISY).code == "limit.inflight"
    kit.answer(waiting[0].approval_id, approved=False)
    assert kit.call("com.a/x", by=NOISY).answer is None


def test_the_inputs_of_a_callers_open_calls_are_bounded_together(kit: Kit) -> None:
    kit.in_force(limits=Limits(open_bytes=40))
    first = kit.call("com.a/x", {"a": "x" * 12}, by=NOISY)
    assert kit.call("com.a/x", {"a": "x" * 12}, by=NOISY).answer is None
    assert kit.call("com.a/x", {}, by=NOISY).code == "limit.inflight"
    assert kit.call("com.a/x", {}, by=QUIET).answer is None
    kit.finish(first, {})
    assert kit.call("com.a/x", {}, by=NOISY).answer is None


def test_above_its_rate_a_caller_is_told_when_to_come_back_and_then_gets_through(kit: Kit) -> None:
    kit.in_force(limits=Limits(calls_per_s=2.0))
    codes = [kit.call("com.a/x", {"n": n}, by=NOISY).code for n in range(3)]
    assert codes == [None, None, "limit.rate"]
    refused = kit.call("com.a/x", by=NOISY).outcome.fault
    assert refused is not None
    assert refused.retryable
    assert refused.details == {"retry_after_ms": 500}
    assert kit.call("com.a/x", by=QUIET).answer is None
    kit.advance(0.5)
    assert kit.call("com.a/x", by=NOISY).answer is None


def test_a_flood_that_is_refused_for_a_limit_is_counted_and_not_written(kit: Kit) -> None:
    kit.in_force(limits=Limits(calls_per_s=1.0))
    kit.call("com.a/x", by=NOISY)
    before = len(kit.log)
    asked = [kit.call("com.a/x", by=NOISY) for _ in range(100)]
    assert len(kit.log) == before
    assert kit.hub.refused["limit.rate"] == 100
    assert len({a.outcome.call_id for a in asked}) == 100
    assert kit.log_of(entries.CallRefused) == []


def test_a_refused_call_takes_no_place(kit: Kit) -> None:
    kit.in_force(rules(("http:quiet", "*", "allow"), version="v2"), limits=Limits(open_calls=1))
    for _ in range(5):
        assert kit.call("com.a/x", by=NOISY).code == "policy.denied"
        assert kit.call("com.a/none", by=QUIET).code == "tool.not_found"
    assert kit.call("com.a/x", by=QUIET).answer is None


def test_a_flood_of_calls_that_are_denied_anyway_is_bounded_by_the_rate(kit: Kit) -> None:
    kit.in_force(rules(("http:quiet", "*", "allow"), version="v2"), limits=Limits(calls_per_s=5.0))
    codes = [kit.call("com.a/x", by=NOISY).code for _ in range(100)]
    assert codes == ["policy.denied"] * 5 + ["limit.rate"] * 95
    assert len(kit.log_of(entries.CallRefused)) == 5


def test_open_calls_are_counted_again_after_a_crash() -> None:
    kit = Kit(ASK)
    kit.in_force(limits=Limits(open_calls=2))
    kit.attach("com.a", "x")
    for _ in range(2):
        kit.call("com.a/x", by=NOISY)
    kit.crash()
    kit.attach("com.a", "x")
    assert kit.call("com.a/x", by=NOISY).code == "limit.inflight"


@given(st.floats(0.1, 100), st.lists(st.floats(0, 2), min_size=1, max_size=60))
def test_in_any_window_no_more_calls_pass_than_the_rate_and_one_burst_allow(rate: float, waits: list[float]) -> None:
    loads, limits, now, passed = Loads(), Limits(calls_per_s=rate), 1000.0, 0
    for wait in waits:
        now += wait
        if loads.try_pace("c", limits, now) is None:
            passed += 1
    assert passed <= max(1.0, rate) + (now - 1000.0) * rate + 1e-3


@given(st.floats(0.1, 1000))
def test_whoever_waits_as_long_as_told_gets_through(rate: float) -> None:
    loads, limits, now = Loads(), Limits(calls_per_s=rate), 1000.0
    refused = 0
    for _ in range(2000):
        problem = loads.try_pace("c", limits, now)
        if problem is not None:
            refused += 1
            assert problem.details is not None
            now += problem.details["retry_after_ms"] / 1000  # type: ignore[operator]
            assert loads.try_pace("c", limits, now) is None
            if refused == 5:
                return
    raise AssertionError("never limited")


def test_a_caller_without_open_calls_and_without_a_rate_is_forgotten() -> None:
    loads = Loads()
    assert loads.try_pace("c", Limits(), 0.0) is None
    assert loads.try_take("c", 5, Limits()) is None
    assert (loads.of("c").calls, loads.of("c").bytes) == (1, 5)
    loads.give_back("c", 5)
    assert loads.of("c").calls == 0
    assert loads.total() == (0, 0)


def test_strangers_share_what_one_caller_has_and_leave_nothing_behind(kit: Kit) -> None:
    kit.in_force(limits=Limits(open_calls=3))
    strangers = [Principal(f"nostr:npub1{number}") for number in range(5)]
    asked = [kit.call("com.a/x", by=stranger) for stranger in strangers]
    assert [a.code for a in asked] == [None, None, None, "limit.inflight", "limit.inflight"]
    assert kit.call("com.a/x", by=QUIET).answer is None
    kit.finish(asked[0], {})
    assert kit.call("com.a/x", by=strangers[4]).answer is None
    assert [caller for caller in kit.hub.loads.written() if caller.startswith("nostr:")] == ["nostr:*"]


def test_strangers_share_the_questions_of_one_caller() -> None:
    kit = Kit(ASK)
    kit.attach("com.a", "x")
    asked = [kit.call("com.a/x", by=Principal(f"nostr:npub1{number}")) for number in range(6)]
    assert [a.code for a in asked] == [None] * 5 + ["policy.denied"]

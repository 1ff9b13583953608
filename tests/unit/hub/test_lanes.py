"""``hub.lanes``: when a call goes by a lane. That a lane leads where the careful way does, ``kit`` holds everywhere.

Each hub of these tests has one beside it that opens no lanes, and each event must lead to the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.hub.kit import ASK, BOSS, DESK, NO_RETRY, Asked, Kit, body, rules, tool
from trunkline import entries, events
from trunkline.hub import hub as hub_module
from trunkline.hub import lanes, state
from trunkline.hub.chains import MAX_DEPTH
from trunkline.model import (
    INLINE_OUTPUT_BYTES,
    Actor,
    Behalf,
    BreakerPolicy,
    Circumstance,
    Decision,
    Health,
    Limits,
    Principal,
    Status,
    Verdict,
    fault,
)

SCHEMA = Raw(b'{"type":"object","properties":{"a":{"type":"integer"}}}')
# 9,000 rules meet at each value: a body of 6,000 is too much work, although each of them is right.
HEAVY = body({"type": "object", "properties": {"a": {"items": {"enum": list(range(9_000))}}}})
MANY = {"a": [0] * 6_000}


class Counting(Kit):
    """Counts the calls that were judged and settled the careful way."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = self.settled = 0
        finished = self.hub.calls.finished

        def judging(event: events.CallRequested, now: Any) -> None:
            self.judged += 1
            self.hub._call_requested(event, now)

        def finishing(*args: Any) -> None:
            self.settled += 1
            finished(*args)

        self.hub._handlers[events.CallRequested] = judging
        self.hub.calls.finished = finishing  # type: ignore[method-assign]


@pytest.fixture
def kit() -> Counting:
    kit = Counting()
    kit.attach("com.a", tool("com.a/x", input_schema=SCHEMA, output_schema=SCHEMA), "y")
    kit.attach("com.b", "z")
    return kit


def lane_is_open(kit: Counting, **terms: Any) -> bool:
    """Whether another ordinary call goes by a lane."""
    before = kit.judged
    kit.call("com.a/x", **terms)
    return kit.judged == before


def by_lane(kit: Counting, tool_id: str = "com.a/x", **terms: Any) -> Asked:
    """A second call like one before it, which was judged."""
    kit.call(tool_id, **terms)
    before = kit.judged
    asked = kit.call(tool_id, **terms)
    assert kit.judged == before
    return asked


def test_the_first_call_is_judged_and_the_next_go_the_same_way(kit: Counting) -> None:
    first = kit.call("com.a/x", {"a": 1})
    second = kit.call("com.a/x", {"a": 2})
    assert kit.judged == 1
    kit.finish(second, {"a": 3})
    assert (kit.settled, second.status, second.outcome.output) == (0, Status.SUCCEEDED, Raw(b'{"a":3}'))
    kit.finish(first, {"a": 4})
    assert (kit.settled, first.status) == (1, Status.SUCCEEDED)


def test_a_lane_is_for_one_caller_and_one_tool(kit: Counting) -> None:
    kit.call("com.a/x")
    assert not lane_is_open(kit, by=Principal("http:other"))
    kit.call("com.a/y")
    assert kit.judged == 3
    # Two who share a session do not push each other out.
    assert lane_is_open(kit, by=BOSS)
    assert lane_is_open(kit, by=Principal("http:other"))


def test_a_stranger_who_comes_once_has_no_lane(kit: Counting) -> None:
    stranger = Principal("nostr:npub1stranger")
    kit.in_force(rules(("*", "*", "allow"), version="v2"))
    kit.call("com.a/x", by=stranger)
    assert not lane_is_open(kit, by=stranger)
    kit.call("com.a/x")
    assert lane_is_open(kit)


def test_a_lane_is_its_callers_in_whichever_conversation_he_asks(kit: Counting) -> None:
    kit.call("com.a/x", session=50)
    assert lane_is_open(kit, session=51)


# What a request may say: by its fields, a value with which it is judged with care …
CAREFUL: dict[str, Any] = {
    "timeout_ms": 500,
    "expires_ms": 1_900_000_000_000,
    "announce": True,
    "sensitive": True,
    "on_behalf_of": Behalf(("http:other",)),
    "value": {"a": "no"},
}
# … those that say which lane it is, and those that may be anything; each has a test below.
LANE = {"caller", "tool_id", "causation_id"}
FREE = {"session", "ref", "input", "key", "earlier", "correlation_id", "actor", "context"}


def test_of_each_field_of_a_request_it_is_known_what_it_does_to_a_lane() -> None:
    assert CAREFUL.keys() | LANE | FREE == set(events.CallRequested.__struct_fields__)


@pytest.mark.parametrize("field", CAREFUL)
def test_what_is_unusual_about_a_call_is_judged_with_care(kit: Counting, field: str) -> None:
    kit.call("com.a/x")
    assert not lane_is_open(kit, **{field: CAREFUL[field]})
    assert lane_is_open(kit)


def test_one_who_works_for_others_has_to_say_for_whom(kit: Counting) -> None:
    kit.call("com.a/x", by="com.b")
    assert lane_is_open(kit, by="com.b")
    first, second = kit.call("com.b/z"), kit.call("com.b/z")
    named = {"by": "com.b", "causation_id": first.call_id}
    assert not lane_is_open(kit, **named)
    assert lane_is_open(kit, **named)
    # Whatever he works on, those behind it are the same.
    assert lane_is_open(kit, by="com.b", causation_id=second.call_id, correlation_id="c")
    assert not lane_is_open(kit, by="com.b")
    assert not lane_is_open(kit, by="com.b", causation_id="something else")
    kit.finish(first, {})
    assert not lane_is_open(kit, **named)
    kit.finish(second, {})
    assert lane_is_open(kit, by="com.b")


def test_a_lane_is_for_those_behind_the_caller_too(kit: Counting) -> None:
    """Policy judges all of them: what one of them may, another may not."""
    kit.in_force(rules(("http:other", "com.a/*", "deny"), ("*", "*", "allow"), version="v2"))
    trusted, other = kit.call("com.b/z"), kit.call("com.b/z", by=Principal("http:other"))
    kit.call("com.a/x", by="com.b", causation_id=trusted.call_id)
    assert lane_is_open(kit, by="com.b", causation_id=trusted.call_id)
    assert kit.call("com.a/x", by="com.b", causation_id=other.call_id).code == "policy.denied"


def test_somebody_elses_call_is_no_cause(kit: Counting) -> None:
    kit.attach("com.c", "w")
    own, others = kit.call("com.b/z"), kit.call("com.c/w")
    kit.call("com.a/x", by="com.b", causation_id=own.call_id)
    assert not lane_is_open(kit, by="com.b", causation_id=others.call_id)


def test_a_chain_is_as_deep_by_a_lane_as_with_care() -> None:
    kit = Counting()
    for number in range(MAX_DEPTH + 2):
        kit.attach(f"com.{number}", "x")
    deepest = [kit.call("com.0/x"), kit.call("com.0/x")]
    for number in range(1, MAX_DEPTH):
        deepest = [kit.call(f"com.{number}/x", by=f"com.{number - 1}", causation_id=up.call_id) for up in deepest]
    assert [asked.accepted.depth for asked in deepest] == [MAX_DEPTH, MAX_DEPTH]
    refused = kit.call(f"com.{MAX_DEPTH}/x", by=f"com.{MAX_DEPTH - 1}", causation_id=deepest[0].call_id)
    assert refused.code == "chain.refused"


def test_of_two_calls_with_the_same_callers_behind_them_the_deeper_one_is_refused() -> None:
    """Many who call one agent at once, and the same ones as a chain."""
    kit = Counting()
    names = [f"com.{number}" for number in range(MAX_DEPTH - 1)]
    for agent_id in (*names, "com.x", "com.y", "com.z"):
        kit.attach(agent_id, "t")
    for agent_id in names:
        kit.call("com.x/t", by=agent_id)
    shallow = kit.call("com.y/t", by="com.x")
    deep = kit.call(f"{names[1]}/t", by=names[0])
    for caller, called in zip(names[1:], [*names[2:], "com.x"], strict=True):
        deep = kit.call(f"{called}/t", by=caller, causation_id=deep.call_id)
    deep = kit.call("com.y/t", by="com.x", causation_id=deep.call_id)
    assert (shallow.accepted.chain, shallow.accepted.depth) == (deep.accepted.chain, 2)
    by_lane(kit, "com.z/t", by="com.y", causation_id=shallow.call_id)
    assert kit.call("com.z/t", by="com.y", causation_id=deep.call_id).code == "chain.refused"


def test_one_whose_work_was_taken_back_is_judged_with_all_he_may_still_work_for(kit: Counting) -> None:
    kit.call("com.a/x", by="com.b")
    # It cannot be asked to stop: the call ended without its word.
    kit.cancel(kit.call("com.b/z"))
    assert not kit.hub.registry.agents["com.b"].running
    assert not lane_is_open(kit, by="com.b")


def test_what_a_caller_says_beside_the_input_goes_with_each_delivery(kit: Counting) -> None:
    kit.offer("com.a", tool("com.a/read", side_effects=False))
    said: dict[str, Any] = {"actor": Actor("human", "somebody"), "context": body({"why": "because"})}
    asked = by_lane(kit, "com.a/read", correlation_id="c", causation_id="d", **said)
    kit.leave("com.a")
    kit.attach("com.a", tool("com.a/read", side_effects=False))
    kit.advance(5)
    assert [delivery.attempt for delivery in asked.deliveries] == [1, 2]
    for delivery in asked.deliveries:
        assert (delivery.correlation_id, delivery.causation_id) == ("c", "d")
        assert {"actor": delivery.actor, "context": delivery.context} == said


def test_who_recognises_repeats_is_given_a_key(kit: Counting) -> None:
    kit.offer("com.a", tool("com.a/once", capabilities=("idempotency",)))
    asked = by_lane(kit, "com.a/once")
    assert [delivery.key for delivery in asked.deliveries] == [asked.call_id]
    assert [delivery.key for delivery in kit.call("com.a/once", key="his own").deliveries] == ["his own"]


def test_a_call_with_a_key_that_is_new_goes_by_a_lane_and_its_repeat_is_the_same_call(kit: Counting) -> None:
    kit.call("com.a/x", {"a": 1}, key="first")
    asked = kit.call("com.a/x", {"a": 2}, key="second")
    assert kit.judged == 1
    assert [delivery.key for delivery in asked.deliveries] == ["second"]
    kit.finish(asked, {"a": 3})
    assert kit.settled == 0
    again = kit.call("com.a/x", {"a": 2}, key="second")
    assert (kit.judged, again.call_id, again.outcome.output) == (2, asked.call_id, Raw(b'{"a":3}'))
    assert kit.call("com.a/x", {"a": 9}, key="second").code == "idempotency.conflict"


def test_all_who_wait_for_a_call_with_a_key_are_told_once_it_is_on_disk(kit: Counting) -> None:
    kit.offer("com.a", tool("com.a/reads", side_effects=False))
    asked = by_lane(kit, "com.a/reads")
    kit.finish(asked, {})
    assert asked.outcome.after == 0
    keyed = kit.call("com.a/reads", key="k")
    repeat = kit.call("com.a/reads", key="k")
    settled = kit.settled
    kit.finish(keyed, {})
    assert kit.settled == settled + 1
    assert (keyed.outcome.after, repeat.outcome.after) == (kit.hub.state.last, kit.hub.state.last)


def test_one_who_joined_and_left_again_is_not_told_and_the_other_is(kit: Counting) -> None:
    kit.call("com.a/x", session=50)
    keyed = kit.call("com.a/x", key="k", session=50)
    other = kit.call("com.a/x", key="k", session=51)
    kit.feed(events.CallerLeft(51, other.ref))
    settled = kit.settled
    kit.finish(keyed, {"a": 1})
    assert (kit.settled, keyed.status) == (settled + 1, Status.SUCCEEDED)


def test_a_key_of_long_ago_that_is_found_on_disk_is_judged_with_care(
    kit: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "RECENT_CALLS", 1)
    kit.call("com.a/x")
    first = kit.call("com.a/x", {"a": 2}, key="old")
    kit.finish(first, {"a": 3})
    kit.finish(by_lane(kit), {"a": 4})
    assert first.call_id not in kit.state.recent
    again = kit.call("com.a/x", {"a": 2}, key="old")
    assert (again.call_id, again.outcome.output) == (first.call_id, Raw(b'{"a":3}'))


def test_an_agent_that_only_records_is_told_before_the_disk_is_asked() -> None:
    kit = Counting()
    kit.attach("com.a", "x", only_records=True)
    kit.attach("com.b", "x")
    assert [delivery.after for delivery in by_lane(kit, "com.a/x").deliveries] == [0]
    assert [delivery.after for delivery in by_lane(kit, "com.b/x").deliveries] == [kit.hub.state.last]


@pytest.mark.parametrize(
    ("terms", "value"),
    [({"max_input_bytes": 40}, {"a": "b" * 40}), ({"input_schema": HEAVY}, MANY)],
    ids=["larger than the tool takes", "more values than its schema takes"],
)
def test_an_input_is_judged_by_its_size_as_ever(kit: Counting, terms: dict[str, Any], value: object) -> None:
    kit.offer("com.a", tool("com.a/t", **terms))
    by_lane(kit, "com.a/t")
    assert kit.call("com.a/t", value).code == "tool.invalid_input"


@pytest.mark.parametrize(
    ("terms", "value", "code"),
    [
        ({"max_output_bytes": 40}, {"a": "b" * 40}, "tool.output_too_large"),
        ({"output_schema": HEAVY}, MANY, "tool.invalid_output"),
        ({}, {"a": "b" * INLINE_OUTPUT_BYTES}, None),
    ],
    ids=["larger than the tool may give", "more values than its schema takes", "handed over by reference"],
)
def test_an_output_is_judged_by_its_size_as_ever(
    kit: Counting, terms: dict[str, Any], value: object, code: str | None
) -> None:
    kit.offer("com.a", tool("com.a/t", **terms))
    asked = by_lane(kit, "com.a/t")
    kit.finish(asked, value)
    assert (asked.code, kit.settled) == (code, 1)
    if code is None:
        assert asked.outcome.output is not None
        assert asked.outcome.large is not None


def test_a_full_agent_and_a_busy_caller_are_judged_with_care() -> None:
    kit = Counting()
    kit.attach("com.a", "x", max_inflight=2)
    first = kit.call("com.a/x")
    assert lane_is_open(kit)
    assert not lane_is_open(kit)
    # Its slot is for the one who waits.
    kit.finish(first, {})
    assert kit.settled == 1

    kit = Counting()
    kit.attach("com.a", "x")
    kit.in_force(limits=Limits(open_calls=2, open_bytes=100))
    kit.call("com.a/x")
    assert lane_is_open(kit)
    assert kit.call("com.a/x").code == "limit.inflight"

    kit = Counting()
    kit.attach("com.a", "x")
    kit.in_force(limits=Limits(open_bytes=100))
    kit.call("com.a/x")
    assert kit.call("com.a/x", {"a": "b" * 100}).code == "limit.inflight"
    assert lane_is_open(kit)


@pytest.mark.parametrize(
    ("status", "value", "problem"),
    [
        (Status.FAILED, None, fault("tool.failed")),
        (Status.FAILED, {"a": 1}, fault("tool.failed")),
        (Status.CANCELED, None, None),
        (Status.SUCCEEDED, None, None),
        (Status.SUCCEEDED, {"a": "no"}, None),
    ],
)
def test_what_is_unusual_about_a_result_is_looked_at_with_care(
    kit: Counting, status: Status, value: object, problem: Any
) -> None:
    kit.call("com.a/x")
    kit.finish(kit.call("com.a/x"), value, status=status, fault=problem)
    assert (kit.judged, kit.settled) == (1, 1)


def test_a_result_counts_only_from_the_agent_it_was_sent_to(kit: Counting) -> None:
    kit.call("com.a/x")
    asked = kit.call("com.a/x")
    kit.finish(asked, {}, session=kit.sessions["com.b"])
    assert asked.answer is None
    kit.finish(asked, {})
    assert asked.status is Status.SUCCEEDED


def test_what_a_result_says_of_its_cost_is_on_record(kit: Counting) -> None:
    asked = by_lane(kit)
    metrics = body({"tokens": 3})
    kit.feed(events.CallFinished(kit.sessions["com.a"], asked.call_id, Status.SUCCEEDED, Raw(b"{}"), metrics=metrics))
    assert kit.outcomes[asked.accepted.n].metrics == metrics


def test_what_a_call_showed_is_on_record_with_its_outcome(kit: Counting) -> None:
    asked = by_lane(kit)
    kit.show(asked, 1, "hello")
    kit.finish(asked, {})
    shown = kit.outcomes[asked.accepted.n].stream
    assert shown is not None
    assert (shown.chunks, shown.tail) == (1, "hello")


def test_a_call_whose_caller_left_ends_and_nobody_is_told(kit: Counting) -> None:
    asked = by_lane(kit)
    kit.feed(events.CallerLeft(DESK, asked.ref))
    kit.finish(asked, {"a": 1})
    assert asked.answer is None
    assert kit.outcomes[asked.accepted.n].output == Raw(b'{"a":1}')


def test_a_call_that_was_asked_to_stop_takes_its_alarm_with_it(kit: Counting) -> None:
    kit.offer("com.a", tool("com.a/stop", capabilities=("cancellation",)))
    asked = by_lane(kit, "com.a/stop")
    before = len(kit.hub.timers)
    kit.cancel(asked)
    assert len(kit.hub.timers) == before + 1
    kit.finish(asked, {})
    assert (asked.status, len(kit.hub.timers)) == (Status.SUCCEEDED, before)


CHANGES: dict[str, Callable[[Counting], object]] = {
    "an agent's health": lambda kit: kit.health("com.a", Health.DEGRADED),
    "the rules": lambda kit: kit.in_force(rules(("*", "com.a/*", "allow"), version="v2")),
    "a tool": lambda kit: kit.withdraw("com.a", "com.a/y"),
    "an agent that left": lambda kit: kit.feed(events.AgentLeft(kit.sessions["com.b"], "gone")),
    "an agent that came": lambda kit: kit.attach("com.c", "x"),
    "a token": lambda kit: kit.token("http", "somebody", "0" * 64),
    "a guard": lambda kit: kit.guard("com.b", lambda _tool_id, _body: None),
    "time": lambda kit: kit.feed(events.Woke()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_closes_all_lanes_and_calls_that_run_end_with_care(kit: Counting, change: str) -> None:
    kit.call("com.a/x")
    running = kit.call("com.a/x")
    CHANGES[change](kit)
    kit.finish(running, {})
    assert kit.settled == 1
    assert not lane_is_open(kit)


def test_only_what_calls_are_made_of_and_events_on_topics_leave_lanes_open() -> None:
    assert {kind.__name__ for kind in hub_module.KEEP_LANES} == {
        "CallProgressed",
        "CancelRequested",
        "CancelAcknowledged",
        "CallerLeft",
        "ProcessStepped",
        "Noticed",
        "SubscriptionRequested",
        "SubscriptionEnded",
        "SubscriberArrived",
        "SubscriberLeft",
        "EventPublished",
        "WordsPassed",
        "EventTaken",
        "EventGivenUp",
    }


def guarded(kit: Counting) -> None:
    kit.guard("com.a", lambda _tool_id, _body: None)


def paced(kit: Counting) -> None:
    kit.in_force(limits=Limits(calls_per_s=100))


def untrusted(kit: Counting) -> None:
    kit.in_force(untrusted_agents=frozenset({"com.b"}))


def lenient(kit: Counting) -> None:
    kit.in_force(schema_strict=False)


def asked_about(kit: Counting) -> None:
    kit.in_force(ASK)


@pytest.mark.parametrize(
    ("prepare", "terms"),
    [
        (guarded, {}),
        (paced, {}),
        (untrusted, {}),
        (lenient, {"value": {"a": "no"}}),
        (asked_about, {"by": Principal("http:other")}),
    ],
)
def test_where_something_has_to_be_judged_each_time_no_lane_opens(
    kit: Counting, prepare: Callable[[Counting], None], terms: dict[str, Any]
) -> None:
    prepare(kit)
    kit.call("com.a/x", **terms)
    assert not lane_is_open(kit, **terms)


def test_where_strangers_wrote_something_no_lane_opens_even_if_nobody_reads_them_any_more(kit: Counting) -> None:
    kit.in_force(untrusted_agents=frozenset({"com.b"}))
    kit.finish(kit.call("com.b/z", correlation_id="c"), {})
    kit.in_force()
    assert kit.state.tainted
    kit.call("com.a/x")
    assert not lane_is_open(kit, correlation_id="c")
    assert kit.log_of(entries.CallAccepted)[-1].circumstances == (Circumstance.UNTRUSTED,)


def test_what_was_allowed_for_others_too_opens_no_lane_for_oneself(kit: Counting) -> None:
    guest = Principal("http:guest")
    kit.in_force(rules((guest.identity, "*", "allow"), ("*", "*", "allow"), version="v2"))
    work = kit.call("com.b/z", by=guest)
    assert kit.call("com.a/x", by="com.b").accepted.chain == (guest.identity,)
    kit.finish(work, {})
    judged = kit.judged
    assert kit.call("com.a/x", by="com.b").accepted.chain == ()
    assert kit.judged == judged + 1


def test_an_agent_with_a_breaker_has_no_lane_as_each_result_ends_its_row_of_failures() -> None:
    kit = Counting()
    kit.attach("com.a", "x", dedupes=True, retry=NO_RETRY, breaker=BreakerPolicy(failures=2))

    def fail_once() -> None:
        timeout = fault("tool.timeout", retryable=True)
        kit.feed(events.AttemptFailed(kit.sessions["com.a"], kit.call("com.a/x").call_id, timeout))

    fail_once()
    kit.call("com.a/x")
    kit.finish(kit.call("com.a/x"), {})
    fail_once()
    assert kit.call("com.a/x").answer is None, "given work"


def test_a_guard_that_comes_later_is_asked(kit: Counting) -> None:
    kit.call("com.a/x")
    denied = Verdict(Decision.DENY, "guard", "no", "operator", fault("policy.denied", "no"))
    kit.guard("com.a", lambda _tool_id, _body: denied)
    assert kit.call("com.a/x").code == "policy.denied"


def test_lanes_are_bounded(kit: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MAX_LANES", 1)
    kit.call("com.a/x")
    kit.call("com.a/y")
    assert not lane_is_open(kit)


def test_a_call_that_was_canceled_is_no_longer_on_its_lane(kit: Counting) -> None:
    ended = by_lane(kit)
    kit.cancel(ended)
    assert ended.status is Status.UNKNOWN
    assert not kit.hub.lanes.under_way
    assert lane_is_open(kit)


def test_one_alarm_watches_over_all_calls_of_an_agent(kit: Counting) -> None:
    kit.call("com.a/x")
    kit.advance(31)
    first = kit.call("com.a/x")
    kit.advance(1)
    kit.finish(kit.call("com.a/x"), {})
    second = kit.call("com.a/x")
    alarms = len(kit.hub.timers)
    third = kit.call("com.a/x")
    assert len(kit.hub.timers) == alarms
    kit.advance(28.9)
    assert first.answer is None
    kit.advance(0.2)
    assert (first.status, second.answer) == (Status.UNKNOWN, None)
    kit.advance(1)
    assert (second.status, third.status) == (Status.UNKNOWN, Status.UNKNOWN)


def test_another_hour_of_what_was_written_begins_also_for_ordinary_calls() -> None:
    """Of an agent without a deadline, whose calls no alarm closes the lanes for."""
    kit = Kit()
    kit.attach("com.a", "x", timeout_s=None)
    kit.attach("com.caller")
    for _ in range(2):
        kit.finish(kit.call("com.a/x", by="com.caller"), {})
    kit.advance(4000.0)
    kit.finish(kit.call("com.a/x", by="com.caller"), {})

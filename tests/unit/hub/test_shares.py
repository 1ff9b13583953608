"""What one caller, or one agent, can take from the others: bytes that calls hold, places, the record."""

from __future__ import annotations

import pytest
from msgspec import Raw

from tests.unit.hub.kit import BOSS, Kit, tool
from trunkline import effects, entries, events
from trunkline.hub import limits
from trunkline.hub.queues import MAX_QUEUED, RESERVED_PLACES, Queue
from trunkline.model import Actor, Health, Limits, Now, Principal, fault

NOISY, QUIET = Principal("http:noisy"), Principal("http:quiet")
READ_ONLY = tool("com.a/x", side_effects=False)
CONTEXT = Raw(b'{"text":"' + b"x" * 1000 + b'"}')


@pytest.fixture
def kit() -> Kit:
    kit = Kit()
    kit.attach("com.a", READ_ONLY, max_inflight=4)
    return kit


# -- what calls hold ---------------------------------------------------------------------------------------------------


def test_context_and_actor_count_among_what_a_callers_open_calls_hold(kit: Kit) -> None:
    kit.in_force(limits=Limits(open_bytes=2200))
    actor = Actor("human", "i" * 100, "d" * 80)
    asked = [kit.call("com.a/x", by=NOISY, context=CONTEXT) for _ in range(3)]
    assert [one.code for one in asked] == [None, None, "limit.inflight"]
    assert kit.call("com.a/x", by=NOISY, actor=actor).code == "limit.inflight"
    assert kit.call("com.a/x", by=NOISY).code is None
    assert kit.call("com.a/x", by=QUIET, context=CONTEXT).code is None
    kit.finish(asked[0], {})
    assert kit.call("com.a/x", by=NOISY, actor=actor).code is None


def test_what_was_held_is_given_back_whichever_way_a_call_came(kit: Kit) -> None:
    for number in range(6):
        kit.finish(kit.call("com.a/x", {"n": number}, by=NOISY, context=CONTEXT), {})
    assert kit.hub.loads.total() == (0, 0)


def test_of_a_call_that_an_agent_never_answered_its_body_is_not_kept() -> None:
    kit = Kit()
    kit.attach("com.a", READ_ONLY)
    asked = kit.call("com.a/x", {"text": "x" * 5000}, by=NOISY, context=CONTEXT, timeout_ms=10)
    kit.advance(1)
    assert asked.code == "tool.timeout"
    [call] = kit.hub.registry.agents["com.a"].abandoned.at(kit.mono)
    assert call.entry.caller == NOISY.identity
    assert (len(call.entry.input), call.context) == (2, None)


# -- places in a queue -------------------------------------------------------------------------------------------------


def full_for(queue: Queue, caller: str) -> int:
    """Let a caller take all that he gets; how many that is."""
    taken = 0
    while queue.has_place(caller):
        taken += 1
        queue.add(max(queue, default=0) + 1, caller)
    return taken


def test_each_caller_gets_half_of_what_the_others_left_and_the_operator_what_is_kept_for_him() -> None:
    queue = Queue()
    shares = [full_for(queue, f"http:{number}") for number in range(12)]
    assert shares == [496, 248, 124, 62, 31, 15, 8, 4, 2, 1, 1, 0]
    assert len(queue) == MAX_QUEUED - RESERVED_PLACES
    assert full_for(queue, "operator") == RESERVED_PLACES
    assert queue.is_full


def test_a_place_that_was_given_back_can_be_taken_again() -> None:
    queue = Queue()
    taken = full_for(queue, "http:a")
    assert queue.take_first() == 1
    queue.discard(2)
    queue.discard(2)
    assert len(queue) == taken - 2
    assert 2 not in queue
    assert full_for(queue, "http:a") == 2


def test_one_caller_who_floods_an_agent_leaves_places_to_others_and_to_the_operator(kit: Kit) -> None:
    with kit.in_bulk():
        asked = [kit.call("com.a/x", {"n": number}, by=NOISY) for number in range(4 + MAX_QUEUED)]
    assert [one.code for one in asked].count(None) == 4 + (MAX_QUEUED - RESERVED_PLACES) // 2
    refused = asked[-1].outcome.fault
    assert refused is not None
    assert refused.message == "your share of the agent's queue is full"
    assert kit.call("com.a/x", by=QUIET).code is None
    assert kit.call("com.a/x", by=BOSS).code is None


# -- the record --------------------------------------------------------------------------------------------------------


def test_who_fills_the_record_is_told_to_come_back_when_the_hour_is_over(kit: Kit) -> None:
    kit.in_force(limits=Limits(ledger_bytes_per_hour=20_000))
    codes = []
    for number in range(12):
        asked = kit.call("com.a/x", {"text": "x" * 1000, "n": number}, by=NOISY)
        codes.append(asked.code)
        if asked.code is None:
            kit.finish(asked, {"text": "y" * 1000})
    assert codes == [None] * 7 + ["limit.rate"] * 5
    problem = kit.call("com.a/x", by=NOISY).outcome.fault
    assert problem is not None
    assert problem.retryable
    assert problem.details == {"retry_after_ms": 3_600_000}
    assert kit.call("com.a/x", by=QUIET).code is None
    kit.advance(3600)
    assert kit.call("com.a/x", by=NOISY).code is None


def test_refused_calls_count_and_the_operator_is_not_told_to_wait(kit: Kit) -> None:
    kit.in_force(limits=Limits(ledger_bytes_per_hour=5_000))
    codes = [kit.call("com.a/none", by=NOISY).code for _ in range(100)]
    assert codes == ["tool.not_found"] * 10 + ["limit.rate"] * 90
    assert {kit.call("com.a/none", by=BOSS).code for _ in range(100)} == {"tool.not_found"}


@pytest.mark.slow
def test_tools_that_come_and_go_are_refused_once_they_fill_the_record(kit: Kit) -> None:
    before = len(kit.log)
    said = []
    for _ in range(5000):
        said.append(kit.offer("com.a", "y"))
        kit.withdraw("com.a", "com.a/y")
    assert len(kit.log) - before <= limits.NOTES + 10
    rejected = dict(said[-1].rejected)["com.a/y"]
    assert (rejected.code, rejected.retryable) == ("limit.rate", True)
    assert rejected.details is not None
    kit.advance(rejected.details["retry_after_ms"] / 1000)  # type: ignore[operator]
    assert kit.offer("com.a", "y").registered == ("com.a/y",)


def test_tools_that_the_edge_could_not_read_count_like_the_others(kit: Kit) -> None:
    session = kit.hub.registry.agents["com.a"].session
    unread = tuple((f"com.a/{number}", fault("message.malformed")) for number in range(500))
    before = len(kit.log)
    said = [kit.feed(events.ToolsOffered(session, "r", (), unread)) for _ in range(20)]
    assert len(kit.log) - before == 3
    [confirmed] = said[-1]
    assert isinstance(confirmed, effects.ConfirmTools)
    assert {problem.code for _, problem in confirmed.rejected} == {"message.malformed"}


def test_what_would_be_refused_is_told_before_and_nothing_is_counted(kit: Kit) -> None:
    agents = kit.hub.agents
    now = Now(kit.mono, kit.wall)
    for _ in range(10):
        assert agents.offer_refused("opensentience:com.a", 1_000, now) is None
    kit.offer("com.a", *(f"t{number}" for number in range(990)))
    assert agents.offer_refused("opensentience:com.a", 990, now) is None
    refused = agents.offer_refused("opensentience:com.a", 1_010, now)
    assert refused is not None
    assert refused.code == "limit.rate"
    assert agents.offer_refused("opensentience:com.b", 1_010, now) is None
    wait_s = (refused.details or {})["retry_after_ms"] / 1000  # type: ignore[operator]
    assert agents.offer_refused("opensentience:com.a", 1_010, Now(now.mono + wait_s, now.wall)) is None


def test_a_large_agent_offers_all_its_tools_twice(kit: Kit) -> None:
    names = [f"t{number}" for number in range(900)]
    for _ in range(2):
        assert len(kit.offer("com.a", *names).registered) == 900


def test_an_agent_that_comes_and_goes_too_often_is_not_let_in_for_a_while(kit: Kit) -> None:
    before = len(kit.log)
    for _ in range(3000):
        kit.arrive("com.b")
    assert len(kit.log) - before <= 2 * limits.NOTES
    kit.attach("com.c", "x")
    assert "com.c" in kit.hub.registry.agents


def test_health_that_flickers_counts_and_is_not_all_written(kit: Kit) -> None:
    before = len(kit.log)
    for number in range(6000):
        kit.health("com.a", Health.UNHEALTHY if number % 2 else Health.DEGRADED)
    assert len(kit.log) - before <= limits.NOTES
    assert kit.hub.registry.agents["com.a"].health is Health.UNHEALTHY


def test_who_asks_for_a_cancel_again_and_again_is_heard_and_does_not_fill_the_record(kit: Kit) -> None:
    kit.attach("com.s", tool("com.s/x", capabilities=("cancellation",)))
    asked = kit.call("com.s/x", by=NOISY)
    for _ in range(3000):
        kit.feed(events.CancelRequested(7, "r", NOISY, call_id=asked.call_id))
    assert len(kit.log_of(entries.CallNoted)) == limits.NOTES

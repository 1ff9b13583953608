"""One agent while it can be reached: what it is given, what its answers end, and what is let go of."""

from __future__ import annotations

import pytest

from tests.unit.edges.ossa.kit import Agent, Kit, Line, refusal
from trunkline.edges.ossa.earlier import LATE_S
from trunkline.edges.ossa.providing import MAX_EVENTS, MAX_PLAIN, MAX_REQUESTS
from trunkline.effects import Cancel
from trunkline.events import CancelRequested
from trunkline.model import Status
from trunkline.testing.memory import BOSS


@pytest.fixture
def kit() -> Kit:
    return Kit()


def test_a_call_goes_out_as_a_request_and_ends_with_its_answer(kit: Kit) -> None:
    line = kit.agent("bob").connect("echo")
    called = kit.call("bob/echo", {"x": 1}, correlation_id="c-1")
    [request] = line.of("request")
    assert (request["header"]["correlationId"], request["header"]["qos"]) == ("c-1", 2)
    assert (request["body"]["action"], request["body"]["payload"]) == ("echo", {"x": 1})
    line.answer(request, {"y": 2})
    assert called.output == {"y": 2}


@pytest.mark.parametrize(
    ("code", "fault"),
    [(400, "tool.invalid_input"), (401, "tool.failed"), (403, "tool.failed"), (404, "tool.failed"),
     (500, "tool.failed"),
     (501, "tool.failed"), (507, "limit.resource")],
)  # fmt: skip
def test_an_error_that_is_final_ends_the_call(kit: Kit, code: int, fault: str) -> None:
    line = kit.agent("bob").connect("echo")
    called = kit.call("bob/echo")
    line.fail(line.got[-1], code)
    assert (called.outcome.status, called.code, called.details["ossa_code"]) == (Status.FAILED, fault, code)
    assert len(line.of("request")) == 1


@pytest.mark.parametrize("code", [408, 429, 503])
def test_an_error_that_may_pass_is_tried_three_times_with_the_same_id(kit: Kit, code: int) -> None:
    line = kit.agent("bob").connect("echo")
    called = kit.call("bob/echo")
    for expected, wait_s in ((1, 0.9), (2, 1.9)):
        assert len(line.of("request")) == expected
        line.fail(line.got[-1], code)
        kit.advance(wait_s)
        assert len(line.of("request")) == expected
        kit.advance(0.2)
    line.fail(line.got[-1], code)
    kit.advance(10)
    assert called.outcome.status is Status.FAILED
    assert len(line.of("request")) == 3
    assert len({one["header"]["messageId"] for one in line.of("request")}) == 1


# --- whose answer it is -----------------------------------------------------------------------------------------------


def test_an_answer_that_is_repeated_does_not_answer_the_next_call_of_its_correlation(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    first, second = (kit.call("bob/echo", {"n": n}, correlation_id="c") for n in (1, 2))
    answer = line.answer(line.of("request")[0], {"n": 1})
    bob.send(answer)
    bob.send(answer)
    assert first.output == {"n": 1}
    assert second.answer is None
    line.answer(line.of("request")[1], {"n": 2})
    assert second.output == {"n": 2}


def test_an_answer_that_is_repeated_after_the_call_ended_answers_no_later_one(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    kit.call("bob/echo", {"n": 1}, correlation_id="c")
    answer = line.answer(line.got[-1], {"n": 1})
    bob.send(answer)
    bob.send(bob.message("response", action="echo", payload={"n": "made up"}, correlationId="c"))
    later = kit.call("bob/echo", {"n": 2}, correlation_id="c")
    assert later.answer is None
    line.answer(line.got[-1], {"n": 2})
    assert later.output == {"n": 2}


def test_an_agent_that_comes_back_may_answer_before_it_is_asked_again(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    called = kit.call("bob/echo", {"n": 1}, correlation_id="c")
    request = line.got[-1]
    line.leave()
    line = bob.connect()
    line.answer(request, {"n": 1})
    kit.advance(5)
    assert called.output == {"n": 1}


def back(bob: Agent, kit: Kit) -> tuple[Kit, Line]:
    """The exchange was killed; another process has its record, and the agent is connected again."""
    later = kit.restarted()
    return later, bob.moved(later).connect("echo")


def test_the_late_answer_of_before_a_kill_ends_no_later_call_of_its_correlation(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    kit.call("bob/echo", {"n": 1}, correlation_id="c", timeout_ms=1000)
    kit.advance(10)
    [first] = line.of("request")
    kit, line = back(bob, kit)
    later = kit.call("bob/echo", {"n": 2}, correlation_id="c")
    [second] = line.of("request")
    line.answer(first, {"n": 1})
    assert later.answer is None
    line.answer(second, {"n": 2})
    assert later.output == {"n": 2}


def test_an_answer_that_is_repeated_after_a_kill_ends_no_later_call_of_its_correlation(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    kit.call("bob/echo", {"n": 1}, correlation_id="c")
    answer = line.answer(line.got[-1], {"n": 1})
    kit, line = back(bob, kit)
    later = kit.call("bob/echo", {"n": 2}, correlation_id="c")
    bob.send(answer)
    assert later.answer is None
    line.answer(line.of("request")[-1], {"n": 2})
    assert later.output == {"n": 2}


def test_a_call_that_is_sent_again_after_a_kill_is_answered_under_the_correlation_it_had(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    kit.call("bob/echo", {"n": 1}, correlation_id="c")
    line.answer(line.got[-1], {"n": 1})
    kit.call("bob/echo", {"n": 2}, correlation_id="c", key="again")
    before = line.got[-1]
    kit, line = back(bob, kit)
    kit.advance(5)
    [again] = line.of("request")
    assert again["header"]["correlationId"] == before["header"]["correlationId"] == "c"
    line.answer(before, {"n": 2})
    assert kit.call("bob/echo", {"n": 2}, correlation_id="c", key="again").output == {"n": 2}


def test_one_that_was_sent_apart_is_sent_apart_again_after_a_kill(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    kit.call("bob/echo", {"n": 1}, correlation_id="c", timeout_ms=1000)
    kit.advance(10)
    apart = kit.call("bob/echo", {"n": 2}, correlation_id="c", key="apart", timeout_ms=60_000)
    late, before = line.of("request")
    assert before["header"]["correlationId"] == apart.call_id
    kit, line = back(bob, kit)
    kit.advance(5)
    [again] = line.of("request")
    assert again["header"] | {"timestamp": ""} == before["header"] | {"timestamp": ""}
    line.answer(late, {"n": 1})
    line.answer(before, {"n": 2})
    assert kit.call("bob/echo", {"n": 2}, correlation_id="c", key="apart", timeout_ms=60_000).output == {"n": 2}


def test_a_correlation_is_told_as_it_is_to_who_had_no_call_of_it_and_an_hour_after_a_kill_to_everybody(
    kit: Kit,
) -> None:
    bob, carol = kit.agent("bob"), kit.agent("carol")
    line = bob.connect("echo")
    kit.call("bob/echo", correlation_id="c")
    line.answer(line.got[-1], {})
    kit, line = back(bob, kit)
    other = carol.moved(kit).connect("echo")
    kit.call("carol/echo", correlation_id="c")
    assert other.got[-1]["header"]["correlationId"] == "c"
    kit.advance(LATE_S + 1)
    bob.ask("heartbeat")
    kit.call("bob/echo", correlation_id="c")
    assert line.got[-1]["header"]["correlationId"] == "c"


def test_what_another_agent_answers_ends_nothing(kit: Kit) -> None:
    line = kit.agent("bob").connect("echo")
    eve = kit.agent("eve").connect("other")
    called = kit.call("bob/echo", correlation_id="c")
    eve.answer(line.got[-1], {"from": "eve"})
    assert called.answer is None
    line.answer(line.got[-1], {"from": "bob"})
    assert called.output == {"from": "bob"}


# --- places -----------------------------------------------------------------------------------------------------------


def test_calls_that_ended_without_an_answer_leave_their_places_to_others(kit: Kit) -> None:
    line = kit.agent("bob").connect("echo")
    stuck = [kit.call("bob/echo", {"n": n}, timeout_ms=1000, correlation_id=f"c{n}") for n in range(MAX_REQUESTS)]
    more = kit.call("bob/echo", {"more": True}, timeout_ms=60_000)
    assert len(line.of("request")) == MAX_REQUESTS
    kit.advance(10)
    assert {one.code for one in stuck} == {"tool.timeout"}
    line.answer(line.of("request")[-1], {"done": True})
    assert more.output == {"done": True}


def test_a_call_whose_time_ended_while_it_waited_is_not_sent_any_more(kit: Kit) -> None:
    line = kit.agent("bob").connect("echo")
    first = kit.call("bob/echo", {"n": 1}, correlation_id="c", timeout_ms=60_000)
    second = kit.call("bob/echo", {"n": 2}, correlation_id="c", timeout_ms=1000)
    kit.advance(20)
    assert second.code == "tool.timeout"
    line.answer(line.got[-1], {})
    assert first.outcome.status is Status.SUCCEEDED
    assert len(line.of("request")) == 1


def test_a_correlation_goes_on_after_a_call_of_it_was_never_answered(kit: Kit) -> None:
    line = kit.agent("bob").connect("echo")
    kit.call("bob/echo", {"n": 1}, correlation_id="c", timeout_ms=1000)
    kit.advance(10)
    kit.call("bob/echo", {"n": 2}, correlation_id="c")
    assert line.got[-1]["body"]["payload"] == {"n": 2}


def test_a_late_answer_is_not_taken_for_that_of_one_which_waited_behind_it(kit: Kit) -> None:
    line = kit.agent("bob").connect("echo")
    kit.call("bob/echo", {"n": 1}, correlation_id="c", timeout_ms=1000)
    waited = kit.call("bob/echo", {"n": 2}, correlation_id="c", timeout_ms=60_000)
    kit.advance(10)
    first, second = line.of("request")
    line.answer(first, {"n": 1})
    assert waited.answer is None
    line.answer(second, {"n": 2})
    assert waited.output == {"n": 2}


def test_events_and_results_reach_an_agent_that_works_on_as_much_as_it_may(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    bob.subscribe("news.*", qos=1)
    other = kit.agent("carol").connect("other")
    for n in range(MAX_REQUESTS + 4):
        kit.call("bob/echo", {"n": n}, correlation_id=f"c{n}")
    assert len(line.of("request")) == MAX_REQUESTS
    kit.agent("dave").ask("event", topic="news.today", payload={"n": 1}, qos=1)
    assert len(line.of("event")) == 1
    bob.ask("command", "carol", "other", {})
    other.answer(other.got[-1], {"done": True})
    [result] = line.of("command_result")
    assert result["body"]["payload"] == {"done": True}


def test_what_waits_for_an_agent_leaves_by_urgency_calls_and_events_together_and_pieces_of_streams_first(
    kit: Kit,
) -> None:
    alice, agent = kit.agent("alice"), kit.agent("bob")
    line = agent.connect("echo")
    agent.subscribe("news", qos=1)
    line.room = 0
    for priority in (9, 0, 5):
        alice.ask("request", "bob", "echo", {"n": priority}, priority=priority)
    for priority in (3, 7):
        alice.ask("event", payload={"n": priority}, topic="news", qos=1, priority=priority)
    alice.ask("stream_start", "bob", "echo", {"n": "stream"}, streamId="s")
    assert line.got == []
    line.room = 100
    agent.peer().flush()
    assert [one["body"]["payload"]["n"] for one in line.got] == ["stream", 0, 3, 5, 7, 9]


def test_a_call_that_was_never_answered_takes_the_correlation_of_no_other_with_it(kit: Kit) -> None:
    line = kit.agent("bob").connect("echo")
    kit.call("bob/echo", correlation_id="c")
    kit.advance(40)
    apart = kit.call("bob/echo", correlation_id="c")
    assert line.got[-1]["header"]["correlationId"] == apart.call_id, "its correlation is that of a late one"
    kit.advance(20)
    other = kit.call("bob/echo", {"n": 1}, correlation_id=apart.call_id)
    request = line.got[-1]
    assert request["header"]["correlationId"] == apart.call_id
    kit.advance(18)
    assert apart.code == "tool.timeout"
    line.answer(request, {"y": 1})
    assert other.output == {"y": 1}


@pytest.mark.slow
def test_calls_reach_an_agent_that_acknowledges_no_events(kit: Kit) -> None:
    kit = Kit(rate={"monitor": 10_000})
    bob = kit.agent("bob")
    line = bob.connect("echo")
    bob.subscribe("news.*", qos=1)
    dave = kit.agent("dave", "monitor")
    for n in range(MAX_EVENTS + 10):
        dave.ask("event", topic="news.today", payload={"n": n}, qos=1)
    assert len(line.of("event")) == MAX_EVENTS
    kit.call("bob/echo")
    assert len(line.of("request")) == 1


def test_a_call_that_is_canceled_before_it_left_never_leaves(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    line.room = 0
    called = kit.call("bob/echo")
    bob.peer().attachment.provider.send(Cancel(0, 0, called.call_id, "stop", 5000), kit.exchange.now())  # type: ignore[union-attr]
    line.room = 10
    bob.peer().flush()
    assert line.of("request") == []
    kit.exchange.feed.feed([CancelRequested(0, "stop", BOSS, call_id=called.call_id)])


# --- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_an_event_is_told_again_after_1_and_2_and_4_s_until_it_is_acknowledged(kit: Kit, qos: int) -> None:
    bob = kit.agent("bob")
    line = bob.connect()
    bob.subscribe("news.*", qos=qos)
    kit.agent("dave").ask("event", topic="news.today", payload={"n": 1}, qos=2)
    for wait_s, expected in ((0.9, 1), (0.2, 2), (1.8, 2), (0.2, 3), (3.8, 3), (0.3, 4)):
        kit.advance(wait_s)
        assert len(line.of("event")) == expected
    assert len({one["header"]["messageId"] for one in line.got}) == 1
    assert line.got[0]["header"]["qos"] == qos
    line.acknowledge(line.got[0])
    kit.advance(100)
    assert len(line.of("event")) == 4


def test_an_event_of_quality_0_is_told_once(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect()
    bob.subscribe("news.*", qos=2)
    kit.agent("dave").ask("event", topic="news.today", payload={"n": 1}, qos=0)
    kit.advance(100)
    assert [one["header"]["qos"] for one in line.of("event")] == [0]


def test_an_event_that_expired_is_not_told_again(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect()
    bob.subscribe("news.*", qos=1)
    kit.agent("dave").ask("event", topic="news.today", payload={}, qos=1, expiresAt=kit.stamp(2))
    kit.advance(100)
    assert len(line.of("event")) == 2


@pytest.mark.slow
def test_a_slow_reader_of_streams_has_only_so_much_waiting_for_it(kit: Kit) -> None:
    bob, dave = kit.agent("bob"), kit.agent("dave")
    line = bob.connect()
    dave.ask("stream_start", "bob", "feed", streamId="s")
    line.room = 0
    for n in range(MAX_PLAIN):
        dave.ask("stream_data", "bob", "feed", {"n": n}, streamId="s", sequence=n)
    more = dave.message("stream_data", "bob", "feed", {"n": MAX_PLAIN}, streamId="s", sequence=MAX_PLAIN)
    assert refusal(dave.send, more).error_code == 507
    line.room = MAX_PLAIN * 2
    bob.peer().flush()
    dave.send(more)
    assert [one["body"]["payload"]["n"] for one in line.of("stream_data")] == list(range(MAX_PLAIN + 1))


def test_an_agent_that_says_nothing_for_90_s_is_silent_until_its_next_word(kit: Kit) -> None:
    bob = kit.agent("bob")
    bob.connect("echo")
    kit.advance(89)
    [view] = [one for one in kit.exchange.views.agents() if one.agent_id == "bob"]
    assert view.health == "ok"
    kit.advance(2)
    [view] = [one for one in kit.exchange.views.agents() if one.agent_id == "bob"]
    assert view.health == "silent"
    bob.ask("heartbeat")
    [view] = [one for one in kit.exchange.views.agents() if one.agent_id == "bob"]
    assert view.health == "ok"

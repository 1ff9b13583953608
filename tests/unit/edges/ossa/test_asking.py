"""What one agent asks for: calls, repeats, order within a correlation, and results of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from tests.unit.edges.ossa.kit import Kit, Line, refusal
from trunkline.edges.ossa import asking, replies
from trunkline.entries import CallAccepted, EventDropped
from trunkline.model import Decision, Policy, Rule


@pytest.fixture
def kit() -> Kit:
    return Kit()


def bob(kit: Kit, *actions: str, **terms: Any) -> Line:
    return kit.agent("bob").connect(*(actions or ("echo",)), **terms)


def code(reply: dict[str, Any]) -> int | None:
    found = reply["body"].get("error")
    return None if found is None else found["code"]


# --- replies ----------------------------------------------------------------------------------------------------------


def test_a_request_is_answered_by_a_response_with_its_correlation(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    replies = alice.ask("request", "bob", "echo", {"x": 1}, correlationId="c", instance="kept")
    assert line.got[-1]["header"]["instance"] == "kept"
    line.answer(line.got[-1], {"y": 2})
    [reply] = replies
    header = reply["header"]
    assert (header["type"], header["correlationId"], reply["body"]["payload"]) == ("response", "c", {"y": 2})
    assert (header["sender"]["agentId"], header["recipient"]["agentId"]) == ("bob", "alice")


def test_a_value_that_is_no_object_is_wrapped(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    alice.ask("request", "bob", "echo", [1, 2])
    assert line.got[-1]["body"]["payload"] == {"value": [1, 2]}


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_what_is_wrapped_is_no_deeper_than_its_recipient_reads(kit: Kit) -> None:
    """A message may have 64 levels, and its payload is two levels down; wrapped it has one more."""
    line, alice = bob(kit), kit.agent("alice")
    alice.ask("request", "bob", "echo", nested(61))
    assert line.got[-1]["body"]["payload"] == {"value": nested(61)}
    alice.ask("request", "bob", "echo", {"own": nested(61)})
    assert line.got[-1]["body"]["payload"] == {"own": nested(61)}
    before = len(line.got)
    refused = refusal(lambda: alice.ask("request", "bob", "echo", nested(62)))
    assert (refused.error_code, len(line.got)) == (400, before)


def test_a_repeat_gets_the_very_same_reply_and_runs_nothing(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    message = alice.message("request", "bob", "echo", {"x": 1})
    first = alice.send(message)
    at_once = alice.send(message)
    line.answer(line.got[-1], {"y": 2})
    kit.advance(3)
    later = alice.send(message)
    assert first == at_once == later
    assert len(line.of("request")) == 1


def test_a_repeat_after_a_restart_gets_the_very_same_reply(kit: Kit) -> None:
    line, alice = bob(kit, side_effects=True), kit.agent("alice")
    message = alice.message("request", "bob", "echo", {"x": 1})
    first = alice.send(message)
    line.answer(line.got[-1], {"y": 2})
    later = alice.moved(kit.restarted()).send(message)
    assert first == later != []


def test_a_word_that_waited_for_its_entry_does_not_wait_for_later_ones(kit: Kit) -> None:
    reads, writes, alice = bob(kit, "look", side_effects=False), kit.agent("carol"), kit.agent("alice")
    changes = writes.connect("change", side_effects=True)
    waited: list[Callable[[], None]] = []
    feed = kit.exchange.feed
    stored = feed.when_stored

    def noted(told: Callable[[], None]) -> None:
        waited.append(told)
        stored(told)

    with patch.object(feed, "when_stored", noted):
        published = alice.ask("event", "trunkline", "told", {}, topic="a.b", qos=1)
        changed = alice.ask("request", "carol", "change", {})
        changes.answer(changes.got[-1], {})
        assert [len(replies) for replies in (published, changed)] == [1, 1]
        assert waited == []
        # What nobody had to wait for is on disk before its outcome is told, so that a repeat is told the same.
        alice.ask("request", "bob", "look", {})
        reads.answer(reads.got[-1], {})
        assert len(waited) == 1


def test_a_repeat_of_a_refusal_gets_the_same_one(kit: Kit) -> None:
    denied = Kit(Policy((Rule("no", "ossa:alice", "bob/*", Decision.DENY), Rule("all", "*", "*", Decision.ALLOW)), "v"))
    bob(denied)
    alice = denied.agent("alice")
    message = alice.message("request", "bob", "echo", {})
    [first] = alice.send(message)
    denied.advance(2)
    [again] = alice.send(message)
    assert code(first) == 403
    assert first == again


def test_the_same_id_with_another_content_is_refused(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    message = alice.message("request", "bob", "echo", {"x": 1})
    alice.send(message)
    other = {**message, "body": {**message["body"], "payload": {"x": 2}}}
    assert refusal(alice.send, other).error_code == 400
    line.answer(line.got[-1], {})
    [reply] = alice.send(other)
    assert code(reply) == 400
    assert "this messageId was used before with other content" in reply["body"]["error"]["message"]
    assert len(line.of("request")) == 1


def test_each_recipient_of_a_list_has_its_own_reply(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    replies = alice.ask("request", ["bob", "zed"], "echo", {})
    line.answer(line.got[-1], {"y": 2})
    assert sorted((one["header"]["sender"]["agentId"], code(one)) for one in replies) == [("bob", None), ("zed", 404)]


def test_an_agent_that_has_a_key_and_is_away_is_503_and_one_that_nobody_knows_404(kit: Kit) -> None:
    alice = kit.agent("alice")
    kit.agent("bob")
    assert [code(one) for one in alice.ask("request", "bob", "echo")] == [503]
    assert [code(one) for one in alice.ask("request", "zed", "echo")] == [404]


def test_an_agent_that_is_back_after_a_restart_and_has_not_registered_yet_is_503_and_says_when_to_come(
    kit: Kit,
) -> None:
    alice, agent = kit.agent("alice"), kit.agent("bob")
    agent.connect("echo")
    after = kit.restarted()
    line = agent.moved(after).connect()
    with after:
        request = after.post(alice.moved(after).signed(alice.message("request", "bob", "echo", {})))
    assert request.status == 503
    assert request.headers[b"retry-after"] == b"1"
    assert json.loads(request.content)["body"]["error"]["details"]["retryAfterMs"] == 1000
    assert [code(one) for one in alice.ask("request", "bob", "never")] == [404]
    agent.ask("request", "trunkline", "register", {"actions": [{"name": "other", "side_effects": False}]})
    assert [code(one) for one in alice.ask("request", "bob", "echo")] == [404], "it said what it does"
    assert line.of("request") == []


def test_an_expired_request_is_408_and_an_expired_event_is_dropped(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    assert [code(one) for one in alice.ask("request", "bob", "echo", expiresAt=kit.stamp(-1))] == [408]
    assert alice.ask("event", topic="a", expiresAt=kit.stamp(-1)) == []
    assert line.of("request") == []
    assert kit.exchange.notices().count("message.expired") == 2


def test_a_timeout_of_what_only_reads_is_run_again_for_a_repeat_and_what_has_effects_is_not(kit: Kit) -> None:
    alice = kit.agent("alice")
    for effects, expected in ((False, 2), (True, 1)):
        line = kit.agent(f"bob{effects}").connect("echo", side_effects=effects)
        message = alice.message("request", f"bob{effects}", "echo", {})
        replies = alice.send(message)
        kit.advance(60)
        assert [code(one) for one in replies] == [408]
        alice.send(message)
        assert len(line.of("request")) == expected


def test_what_only_reads_is_run_16_times_for_the_same_message_and_no_more(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    message = alice.message("request", "bob", "echo", {})
    for _ in range(18):
        line.agent.ask("heartbeat")
        replies = alice.send(message)
        kit.advance(60)
        assert [code(one) for one in replies] == [408]
    assert len(line.of("request")) == 16


# --- order ------------------------------------------------------------------------------------------------------------


def test_messages_of_one_correlation_run_one_after_the_other_and_others_do_not_wait(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    for n, thread in ((1, "c"), (2, "c"), (3, "d")):
        alice.ask("request", "bob", "echo", {"n": n}, correlationId=thread)
    assert [one["body"]["payload"]["n"] for one in line.got] == [1, 3]
    line.answer(line.got[0], {})
    assert [one["body"]["payload"]["n"] for one in line.got] == [1, 3, 2]


def test_as_many_as_may_wait_that_expired_behind_a_slow_one_all_end(kit: Kit) -> None:
    kit = Kit(rate={"worker": 100_000})
    line, alice = bob(kit), kit.agent("alice")
    slow = alice.ask("request", "bob", "echo", correlationId="c")
    late = [alice.ask("request", "bob", "echo", correlationId="c", expiresAt=kit.stamp(1)) for _ in range(500)]
    kit.advance(2)
    line.answer(line.got[-1], {})
    assert code(slow[0]) is None
    assert {code(one[0]) for one in late} == {408}
    assert len(alice.peer().asker) == 0
    assert not alice.peer().asker._by_correlation


def test_more_than_may_wait_is_refused_with_507_and_nothing_of_it_happens() -> None:
    kit = Kit(rate={"worker": 100_000})
    bob(kit)
    alice = kit.agent("alice")
    with patch.object(asking, "MAX_OPEN", 10):
        for _ in range(10):
            alice.ask("request", "bob", "echo")
        count = len(kit.exchange.recorded(CallAccepted))
        assert refusal(alice.ask, "request", "bob", "echo").error_code == 507
    assert len(kit.exchange.recorded(CallAccepted)) == count


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_command_is_acknowledged_at_once_and_its_result_is_told_until_it_is_acknowledged(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    own = alice.connect()
    [receipt] = alice.ask("command", "bob", "echo", {"x": 1}, correlationId="c")
    assert receipt["header"]["type"] == "acknowledgment"
    line.answer(line.got[-1], {"y": 2})
    kit.advance(4)
    results = own.of("command_result")
    assert len(results) == 3
    assert all(one == results[0] for one in results)
    own.acknowledge(results[0])
    kit.advance(100)
    assert len(own.of("command_result")) == 3
    assert kit.exchange.views.open_steps("ossa.commands") == {}


def test_the_result_of_a_command_and_a_reply_leave_when_what_they_tell_is_on_disk(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    own = alice.connect()
    alice.ask("command", "bob", "echo", {"x": 1})
    reply = alice.ask("request", "bob", "echo", {"x": 2})
    stored: list[Callable[[], None]] = []
    with patch.object(kit.peers.feed, "when_stored", stored.append):
        for request in line.of("request"):
            line.answer(request, {"y": 2})
        assert (own.of("command_result"), reply) == ([], [])
    for told in stored:
        told()
    assert (len(own.of("command_result")), len(reply)) == (1, 1)


def test_a_result_that_is_owed_is_told_after_the_agent_came_back(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    alice.ask("command", "bob", "echo", {"x": 1})
    line.answer(line.got[-1], {"y": 2})
    own = alice.connect()
    assert [one["body"]["payload"] for one in own.of("command_result")] == [{"y": 2}]


@pytest.mark.parametrize("ended_before", [True, False])
def test_a_result_that_is_owed_is_told_after_a_restart(kit: Kit, ended_before: bool) -> None:
    robert, alice = kit.agent("bob"), kit.agent("alice")
    line = robert.connect("echo", side_effects=True)
    message = alice.message("command", "bob", "echo", {"x": 1}, correlationId="c")
    alice.send(message)
    if ended_before:
        line.answer(line.got[-1], {"y": 2})
    kit = kit.restarted()
    if not ended_before:
        line = robert.moved(kit).connect("echo", side_effects=True)
        kit.advance(10)
        line.answer(line.got[-1], {"y": 2})
    own = alice.moved(kit).connect()
    kit.advance(2)
    result = own.of("command_result")[0]
    assert result["body"]["payload"] == {"y": 2}
    # A repeat of the command that settled long ago changes nothing of what is owed.
    alice.send(message)
    own.acknowledge(result)
    assert kit.exchange.views.open_steps("ossa.commands") == {}
    own = alice.moved(kit.restarted()).connect()
    alice.kit.advance(5)
    assert own.of("command_result") == []


def test_results_that_nobody_comes_for_are_let_go_of_after_a_day_and_beyond_a_bound(kit: Kit) -> None:
    kit = Kit(rate={"worker": 100_000})
    line, alice = bob(kit), kit.agent("alice")
    with patch.object(replies, "MAX_OWED", 5):
        for n in range(8):
            alice.ask("command", "bob", "echo", {"n": n})
            line.answer(line.got[-1], {"n": n})
    assert len(alice.peer().asker.owed) == 5
    assert len(kit.exchange.views.open_steps("ossa.commands")) == 5
    assert kit.exchange.notices().count("result.dropped") == 3
    for _ in range(24):
        kit.advance(3601)
    assert list(alice.peer().asker.owed) == []
    assert kit.exchange.views.open_steps("ossa.commands") == {}


def test_a_result_that_cannot_be_signed_is_told_as_an_error(kit: Kit) -> None:
    agent = kit.exchange.attach("com.other", "big")
    alice = kit.agent("alice")
    own = alice.connect()
    alice.ask("command", "com.other", "big")
    agent.finish({"n": 2**60})
    [told] = own.of("error")
    assert (code(told), told["body"]["payload"]) == (500, {})
    replies = alice.ask("request", "com.other", "big")
    agent.finish({"n": 2**60})
    assert [code(one) for one in replies] == [500]


# --- what it offers ---------------------------------------------------------------------------------------------------


def test_an_offer_that_is_said_again_does_not_undo_a_later_one(kit: Kit) -> None:
    robert = kit.agent("bob")
    robert.connect()
    first = robert.message("request", "trunkline", "register", {"actions": [{"name": "old"}], "replace": True})
    told = robert.send(first)
    robert.ask("request", "trunkline", "register", {"actions": [{"name": "new"}], "replace": True})
    kit.advance(5)
    assert robert.send(first) == told
    statuses = {tool.tool_id: tool.status for tool in kit.exchange.views.tools() if tool.tool_id.startswith("bob/")}
    assert statuses == {"bob/new": "available"} | ({"bob/old": "unavailable"} if "bob/old" in statuses else {})


@pytest.mark.parametrize(
    "payload",
    [None, [], {}, {"actions": {}}, {"actions": [1]}, {"actions": [{}]}, {"actions": [{"name": "a/b"}]},
     {"actions": [{"name": "a", "input_schema": 5}]}, {"actions": [], "replace": "yes"}],
)  # fmt: skip
def test_an_offer_that_is_none_is_400(kit: Kit, payload: object) -> None:
    robert = kit.agent("bob")
    robert.connect()
    message = robert.message("request", "trunkline", "register", payload)
    assert [code(one) for one in robert.send(message)] == [400]


def test_who_is_not_connected_cannot_offer(kit: Kit) -> None:
    [reply] = kit.agent("bob").ask("request", "trunkline", "register", {"actions": [{"name": "a"}]})
    assert code(reply) == 503


# --- what it is shown -------------------------------------------------------------------------------------------------


def test_what_a_call_shows_reaches_its_caller_as_a_stream(kit: Kit) -> None:
    agent = kit.exchange.attach("com.other", "work")
    alice = kit.agent("alice")
    own = alice.connect()
    replies = alice.ask("request", "com.other", "work", correlationId="c")
    agent.show("logs", {"text": "one"}, 1)
    agent.show("logs", {"json": {"n": 2}}, 2)
    agent.finish({"done": True})
    kinds = [one["header"]["type"] for one in own.got]
    assert kinds == ["stream_start", "stream_data", "stream_data", "stream_end"]
    assert [one["body"]["payload"] for one in own.of("stream_data")] == ["one", {"n": 2}]
    assert own.of("stream_end")[0]["header"]["sequence"] == 2
    assert json.loads(json.dumps(replies))[0]["body"]["payload"] == {"done": True}


def test_a_message_whose_recipient_stands_in_a_list_is_the_same_message(kit: Kit) -> None:
    line, alice = bob(kit), kit.agent("alice")
    message = alice.message("request", "bob", "echo", {"x": 1})
    [first] = [alice.send(message)]
    line.answer(line.got[-1], {"y": 2})
    message["header"]["recipient"] = [message["header"]["recipient"]]
    again = alice.send(message)
    assert [one["header"]["messageId"] for one in again] == [one["header"]["messageId"] for one in first]
    assert len(line.of("request")) == 1


def test_the_copies_of_a_message_to_many_have_a_bound(kit: Kit) -> None:
    alice = kit.agent("alice")
    many = [f"agent-{n}" for n in range(100)]
    refused = refusal(alice.ask, "request", many, "echo", {"x": "y" * 11_000})
    assert refused.error_code == 507
    assert len(alice.ask("request", many, "echo", {"x": "y" * 10_000})) == 100


def test_a_request_whose_time_is_over_when_it_is_its_turn_is_408_and_not_sent(kit: Kit) -> None:
    kit = Kit(rate={"worker": 1000})
    line, alice = bob(kit), kit.agent("alice")
    for n in range(16):
        alice.ask("request", "bob", "echo", {"n": n})
    late = alice.ask("request", "bob", "echo", expiresAt=kit.stamp(5))
    kit.advance(6)
    line.answer(line.of("request")[0], {})
    assert code(late[0]) == 408
    assert len(line.of("request")) == 16


def test_an_event_whose_time_is_over_when_it_is_its_turn_is_not_told(kit: Kit) -> None:
    own, alice = kit.agent("bob").connect(), kit.agent("alice")
    own.agent.subscribe("news", durable=True)
    alice.ask("event", "trunkline", "e", {"n": 1}, topic="news", qos=1, correlationId="c")
    alice.ask("event", "trunkline", "e", {"n": 2}, topic="news", qos=1, correlationId="c", expiresAt=kit.stamp(2))
    kit.advance(3)
    own.acknowledge(own.of("event")[0])
    assert {one["body"]["payload"]["n"] for one in own.of("event")} == {1}
    assert [entry.reason for entry in kit.exchange.recorded(EventDropped)] == ["expired"]

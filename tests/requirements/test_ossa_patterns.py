"""OSSA, what messages do: requests, commands, events, streams, errors, quality of service and order.

Sections 2.2, 3, 4.1, 6 and 7, as far as they are the exchange's. The client's side is in ``test_ossa_client``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ossa import EXCHANGE, JSON, Connection, Keyed, Posted, World
from tests.requirement import requirement
from trunkline.edges.ossa import asking, serve, streams
from trunkline.edges.ossa.messages import TYPES
from trunkline.entries import CallAccepted, Noticed
from trunkline.model import Decision, Policy, Rule

MANY = {"worker": 100_000}
# What of an agent is under way at once (``providing.MAX_REQUESTS``).
AT_ONCE = 16


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, rate=MANY) as world:
        yield world


@pytest.fixture
def alice(world: World) -> Keyed:
    return world.agent("alice")


@pytest.fixture
def bob(world: World) -> Connection:
    return world.connect(world.agent("bob"), "do", "other")


def publish(world: World, agent: Keyed, topic: str, payload: Any = None, **header: Any) -> Posted:
    return world.post(agent, agent.message("event", EXCHANGE, "published", payload, topic=topic, **header))


def subscribe(world: World, agent: Keyed, topic: str, **terms: Any) -> str:
    found: str = world.ask(agent, EXCHANGE, "subscribe", {"topic": topic, **terms}).payload["subscription"]
    return found


def ids(messages: list[JSON]) -> list[str]:
    return [message["header"]["messageId"] for message in messages]


# --- 2.2 and 3.1: requests and commands -------------------------------------------------------------------------------


@requirement("OSSA-023", "OSSA-024", "OSSA-036", "OSSA-087")
def test_a_request_reaches_its_recipient_and_its_response_comes_back(
    world: World, alice: Keyed, bob: Connection
) -> None:
    posted = world.ask(alice, "bob", payload={"n": 1})
    (request,) = bob.of("request")
    assert (request["body"]["action"], request["body"]["payload"]) == ("do", {"n": 1})
    assert request["header"]["sender"] == alice.identity
    assert not posted.is_answered
    bob.respond({"n": 2})
    assert (posted.status, posted.type, posted.payload) == (200, "response", {"n": 2})
    assert posted.reply["header"]["sender"]["agentId"] == "bob"


@requirement("OSSA-023")
def test_a_response_may_come_by_a_post_as_well(world: World, alice: Keyed, bob: Connection) -> None:
    posted = world.ask(alice, "bob")
    answered = world.post(bob.agent, bob.agent.reply(bob.of("request")[0], payload={"ok": 1}))
    assert (answered.status, answered.replies) == (202, [])
    assert posted.payload == {"ok": 1}


@requirement("OSSA-026", "OSSA-027", "OSSA-033")
def test_a_command_is_acknowledged_at_once_and_its_result_follows(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    message = alice.message("command", "bob", payload={"n": 1}, correlationId="c")
    posted = world.post(alice, message)
    assert (posted.status, posted.type) == (202, "acknowledgment")
    assert posted.payload == {"messageId": message["header"]["messageId"]}
    bob.respond({"n": 2})
    (result,) = line.of("command_result")
    assert (result["body"]["payload"], result["header"]["correlationId"]) == ({"n": 2}, "c")
    line.say(alice.ack(result))
    world.advance(100)
    assert len(line.of("command_result")) == 1


@requirement("OSSA-027", "OSSA-080")
def test_a_result_is_told_again_until_it_is_acknowledged_also_after_a_restart(
    world: World, alice: Keyed, bob: Connection
) -> None:
    line = world.connect(alice)
    world.post(alice, alice.message("command", "bob"))
    bob.respond({"n": 2})
    world.advance(1)
    first, again = line.of("command_result")
    assert first["header"]["messageId"] == again["header"]["messageId"]
    world.restart()
    line = world.connect(alice)
    world.advance(2)
    results = line.of("command_result")
    assert set(ids(results)) == {first["header"]["messageId"]}
    line.say(alice.ack(results[0]))
    seen = len(line.of("command_result"))
    world.advance(100)
    assert len(line.of("command_result")) == seen


@requirement("OSSA-027", "OSSA-032")
def test_a_command_that_fails_ends_with_an_error(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    world.post(alice, alice.message("command", "bob", correlationId="c"))
    bob.say(bob.agent.failure(bob.of("request")[0], 500))
    (error,) = line.of("error")
    assert (error["header"]["correlationId"], error["body"]["error"]["code"]) == ("c", 500)


@requirement("OSSA-031")
def test_heartbeats_keep_an_agent_alive_and_silence_is_noticed(world: World, bob: Connection) -> None:
    def health() -> str:
        (view,) = [view for view in world.exchange.views.agents() if view.agent_id == "bob"]
        return view.health

    for _ in range(10):
        world.advance(30)
        bob.say(bob.agent.message("heartbeat", EXCHANGE, "heartbeat", {"status": "ok"}))
    assert health() == "ok"
    assert bob.heard[1:] == []  # only the answer to `register`: a heartbeat has none
    world.advance(91)
    assert health() != "ok"
    bob.say(bob.agent.message("heartbeat", EXCHANGE, "heartbeat"))
    assert health() == "ok"


@requirement("OSSA-031")
def test_a_heartbeat_by_post_has_an_empty_answer(world: World, alice: Keyed) -> None:
    posted = world.post(alice, alice.message("heartbeat", EXCHANGE, "heartbeat"))
    assert (posted.status, posted.replies) == (202, [])


# --- 3.2: publish and subscribe ---------------------------------------------------------------------------------------


@requirement("OSSA-025", "OSSA-040", "OSSA-041", "OSSA-042", "OSSA-087")
def test_an_event_reaches_all_subscribers_of_its_topic_and_nobody_else(world: World, alice: Keyed) -> None:
    bob, carol, dave = (world.connect(world.agent(name)) for name in ("bob", "carol", "dave"))
    subscribe(world, bob.agent, "news.today")
    subscribe(world, carol.agent, "news.*")
    subscribe(world, dave.agent, "sports.#")
    posted = publish(world, alice, "news.today", {"n": 1})
    assert (posted.status, posted.replies) == (202, [])
    for line in (bob, carol):
        (event,) = line.of("event")
        assert (event["header"]["topic"], event["body"]) == ("news.today", {"action": "published", "payload": {"n": 1}})
        assert event["header"]["sender"] == alice.identity
    assert dave.of("event") == []
    publish(world, alice, "sports.chess.final", {"n": 2})
    assert [len(line.of("event")) for line in (bob, carol, dave)] == [1, 1, 1]


@requirement("OSSA-043")
def test_after_unsubscribe_nothing_is_told(world: World, alice: Keyed, bob: Connection) -> None:
    subscription = subscribe(world, bob.agent, "news")
    publish(world, alice, "news")
    assert world.ask(bob.agent, EXCHANGE, "unsubscribe", {"subscription": subscription}).status == 200
    publish(world, alice, "news")
    assert len(bob.of("event")) == 1
    assert world.ask(bob.agent, EXCHANGE, "unsubscribe", {"subscription": subscription}).error["code"] == 404


@requirement("OSSA-043")
def test_nobody_ends_the_subscription_of_another(world: World, alice: Keyed, bob: Connection) -> None:
    subscription = subscribe(world, bob.agent, "news")
    posted = world.ask(alice, EXCHANGE, "unsubscribe", {"subscription": subscription})
    assert posted.status in {403, 404}
    publish(world, alice, "news")
    assert len(bob.of("event")) == 1


@requirement("OSSA-025")
def test_an_event_needs_a_topic_without_wildcards_and_the_exchange_as_recipient(world: World, alice: Keyed) -> None:
    for topic in ("news.*", "#", "", "a..b", ".", "x" * 256, 7):
        assert publish(world, alice, topic).error["code"] == 400  # type: ignore[arg-type]
    assert world.post(alice, alice.message("event", EXCHANGE)).error["code"] == 400
    assert world.post(alice, alice.message("event", "bob", topic="news")).error["code"] == 400


# --- 3.3: streams -----------------------------------------------------------------------------------------------------


def start(agent: Keyed, stream_id: str, to: str = "bob", **header: Any) -> JSON:
    return agent.message("stream_start", to, "log", {"contentType": "text/plain"}, streamId=stream_id, **header)


def piece(agent: Keyed, stream_id: str, sequence: int, data: Any, to: str = "bob", **header: Any) -> JSON:
    return agent.message("stream_data", to, "log", data, streamId=stream_id, sequence=sequence, **header)


def end(agent: Keyed, stream_id: str, count: int, to: str = "bob", **header: Any) -> JSON:
    return agent.message("stream_end", to, "log", streamId=stream_id, sequence=count, **header)


@requirement("OSSA-028", "OSSA-029", "OSSA-030", "OSSA-044", "OSSA-045", "OSSA-047")
def test_a_stream_reaches_its_recipient_from_start_to_end_in_order(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    line.say(start(alice, "s-1"), *(piece(alice, "s-1", n, value) for n, value in enumerate([{"a": 1}, [2], None])))
    line.say(end(alice, "s-1", 3))
    said = [message for message in bob.heard if "streamId" in message["header"]]
    assert [message["header"]["type"] for message in said] == ["stream_start", *["stream_data"] * 3, "stream_end"]
    assert said[0]["body"]["payload"] == {"contentType": "text/plain"}
    assert [message["body"]["payload"] for message in said[1:4]] == [{"a": 1}, [2], {}]
    assert {message["header"]["streamId"] for message in said} == {"s-1"}
    assert [message["header"].get("sequence") for message in said] == [None, 0, 1, 2, 3]


@requirement("OSSA-046", "OSSA-030")
def test_data_after_the_end_is_refused(world: World, alice: Keyed, bob: Connection) -> None:
    for message in (start(alice, "s"), piece(alice, "s", 0, 1), end(alice, "s", 1)):
        assert world.post(alice, message).status == 202
    assert world.post(alice, piece(alice, "s", 1, 2)).error["code"] == 400
    assert len(bob.of("stream_data")) == 1
    assert world.post(alice, piece(alice, "never-begun", 0, 1)).error["code"] == 400


@requirement("OSSA-085", "OSSA-029", "OSSA-034")
def test_pieces_out_of_order_are_reported_and_delivered_in_order(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    late = piece(alice, "s", 2, "c")
    line.say(start(alice, "s"), piece(alice, "s", 0, "a"), late)
    (nack,) = line.of("negative_acknowledgment")
    assert nack["body"]["payload"] == {"messageId": late["header"]["messageId"]}
    assert nack["body"]["error"]["code"] == 400
    assert bob.payloads("stream_data") == ["a"]
    line.say(piece(alice, "s", 1, "b"), end(alice, "s", 3))
    assert bob.payloads("stream_data") == ["a", "b", "c"]
    assert len(bob.of("stream_end")) == 1


@requirement("OSSA-085")
def test_a_piece_that_comes_twice_is_delivered_once(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    line.say(start(alice, "s"), piece(alice, "s", 0, "a"), piece(alice, "s", 0, "a"), piece(alice, "s", 1, "b"))
    assert bob.payloads("stream_data") == ["a", "b"]


@requirement("OSSA-028")
def test_a_stream_without_an_id_or_to_nobody_does_not_begin(world: World, alice: Keyed, bob: Connection) -> None:
    assert world.post(alice, alice.message("stream_start", "bob")).error["code"] == 400
    assert world.post(alice, start(alice, "s", to="nobody")).error["code"] == 503
    world.post(alice, start(alice, "s"))
    assert world.post(alice, start(alice, "s")).error["code"] == 400
    assert len(bob.of("stream_start")) == 1


@requirement("OSSA-052", "OSSA-030")
def test_a_stream_that_is_idle_is_closed(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    line.say(start(alice, "s", correlationId="c"))
    world.advance(streams.IDLE_S - 1)
    assert line.of("error") == []
    line.say(piece(alice, "s", 0, 1))
    world.advance(streams.IDLE_S + 1)
    errors = line.of("error")
    assert {(error["body"]["error"]["code"], error["header"]["correlationId"]) for error in errors} == {(408, "c")}
    line.say(piece(alice, "s", 1, 2))
    assert line.heard[-1]["body"]["error"]["code"] == 400
    assert bob.payloads("stream_data") == [1]


@requirement("OSSA-047", "OSSA-028")
def test_a_stream_with_the_correlation_of_a_request_is_its_progress(
    world: World, alice: Keyed, bob: Connection
) -> None:
    line = world.connect(alice)
    line.say(alice.message("request", "bob", correlationId="c"))
    to = {"to": "alice", "correlationId": "c"}
    agent = bob.agent
    bob.say(start(agent, "p", **to), piece(agent, "p", 0, {"half": 1}, **to), end(agent, "p", 1, **to))
    assert line.payloads("stream_data") == [{"half": 1}]
    bob.respond({"done": True})
    kinds = [message["header"]["type"] for message in line.heard]
    assert kinds == ["stream_start", "stream_data", "stream_end", "response"]
    assert {message["header"]["correlationId"] for message in line.heard} == {"c"}


# --- 4.1: errors ------------------------------------------------------------------------------------------------------


@requirement("OSSA-050")
def test_what_policy_denies_is_forbidden(tmp_path: Path) -> None:
    rules = (Rule("no", "ossa:mallory", "*", Decision.DENY, "not him"), Rule("yes", "*", "*", Decision.ALLOW))
    with World(tmp_path, Policy(rules, "two")) as world:
        bob = world.connect(world.agent("bob"), "do")
        mallory = world.agent("mallory")
        posted = world.ask(mallory, "bob")
        assert posted.error["code"] == 403
        assert publish(world, mallory, "news", qos=1).reply["body"]["error"]["code"] == 403
        assert world.post(mallory, start(mallory, "s")).error["code"] == 403  # though nobody registered `log`
        denied = mallory.message("stream_start", "bob", "do", streamId="t")
        assert world.post(mallory, denied).error["code"] == 403
        assert bob.of("request") == []


@requirement("OSSA-051")
@pytest.mark.parametrize(("to", "action"), [("nobody", "do"), ("bob", "nothing"), (EXCHANGE, "nothing"), ("a b", "do")])
def test_an_agent_or_action_that_is_not_there_is_not_found(
    world: World, alice: Keyed, bob: Connection, to: str, action: str
) -> None:
    assert bob.agent.agent_id == "bob"
    assert world.ask(alice, to, action).error["code"] == 404


@requirement("OSSA-037", "OSSA-038", "OSSA-052")
def test_a_request_that_nobody_answers_ends_with_a_timeout(world: World, alice: Keyed, bob: Connection) -> None:
    posted = world.ask(alice, "bob")
    world.advance(29.9)
    assert not posted.is_answered
    world.advance(100)
    assert posted.error["code"] == 408
    assert set(ids(bob.of("request"))) == {bob.of("request")[0]["header"]["messageId"]}


@requirement("OSSA-052")
def test_after_a_timeout_a_repeat_runs_again_what_only_reads_and_nothing_else(world: World, alice: Keyed) -> None:
    reading = world.connect(world.agent("reader"), "do")
    writing = world.connect(world.agent("writer"), "do", side_effects=True)
    for line, again in ((reading, True), (writing, False)):
        message = alice.signed(alice.message("request", line.agent.agent_id))
        first = world.post(alice, message)
        world.advance(40)
        code = first.error["code"]
        seen = len(line.of("request"))
        second = world.post(alice, message)
        assert (len(line.of("request")) > seen) is again
        if again:
            assert code == 408
            line.respond({"late": True})
            assert second.payload == {"late": True}
        else:
            assert second.request.content == first.request.content


@requirement("OSSA-054")
def test_a_failure_of_a_provider_is_an_internal_error_without_a_traceback(
    world: World, alice: Keyed, bob: Connection
) -> None:
    posted = world.ask(alice, "bob")
    bob.say(bob.agent.failure(bob.of("request")[0], 500, "it broke"))
    error = posted.error
    assert (error["code"], error["message"]) == (500, "it broke")
    assert "Traceback" not in posted.request.content.decode()


@requirement("OSSA-055", "OSSA-054")
def test_a_provider_that_does_not_implement_it_has_failed(world: World, alice: Keyed, bob: Connection) -> None:
    posted = world.ask(alice, "bob")
    bob.say(bob.agent.failure(bob.of("request")[0], 501))
    assert posted.error["details"]["ossa_code"] == 501


@requirement("OSSA-056")
def test_an_agent_that_cannot_be_reached_is_unavailable(world: World, alice: Keyed, bob: Connection) -> None:
    world.agent("carol")
    assert world.ask(alice, "carol").error["code"] == 503
    bob.leave()
    message = alice.signed(alice.message("request", "bob"))
    assert world.post(alice, message).error["code"] == 503
    # Passing: the same message may succeed later.
    bob = world.connect(bob.agent, "do")
    posted = world.post(alice, message)
    bob.respond({"back": True})
    assert posted.payload == {"back": True}


@requirement("OSSA-057")
def test_who_has_too_much_open_lacks_resources(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    line.say(*(alice.message("request", "bob", payload={"n": number}) for number in range(asking.MAX_OPEN)))
    assert line.of("error") == []
    assert world.ask(alice, "bob").error["code"] == 507
    assert len(bob.of("request")) == AT_ONCE


@requirement("OSSA-057")
def test_who_has_too_many_requests_waiting_for_replies_lacks_resources(
    world: World, alice: Keyed, bob: Connection
) -> None:
    waiting = [world.ask(alice, "bob") for _ in range(serve.MAX_POSTS)]
    assert world.ask(alice, "bob").error["code"] == 507
    assert not any(posted.is_answered for posted in waiting)
    assert len(bob.of("request")) == AT_ONCE


@requirement("OSSA-057")
def test_who_begins_too_many_streams_lacks_resources(world: World, alice: Keyed, bob: Connection) -> None:
    for number in range(streams.MAX_STREAMS):
        assert world.post(alice, start(alice, f"s-{number}")).status == 202
    assert world.post(alice, start(alice, "one-more")).error["code"] == 507
    assert len(bob.of("stream_start")) == streams.MAX_STREAMS


@requirement("OSSA-032", "OSSA-088")
def test_an_error_never_gets_an_error(world: World, alice: Keyed) -> None:
    line = world.connect(alice)
    info = {"code": 500, "message": "m", "timestamp": alice.stamp()}
    for correlation in ("nothing-of-that-name", "nothing-else"):
        line.say(alice.message("error", EXCHANGE, "error", error=info, correlationId=correlation))
    assert line.heard == []


@requirement("OSSA-088", "OSSA-062", "OSSA-063", "OSSA-064", "OSSA-066", "OSSA-067")
@pytest.mark.parametrize("code", [400, 401, 403, 404, 408, 429, 500, 501, 503, 507])
def test_what_leaves_through_the_edge_is_tried_three_times_for_three_codes_only(
    world: World, alice: Keyed, bob: Connection, code: int
) -> None:
    posted = world.ask(alice, "bob")
    for wait_s in (1.0, 2.0) if code in {408, 429, 503} else ():
        seen = len(bob.of("request"))
        bob.say(bob.agent.failure(bob.of("request")[-1], code))
        world.advance(wait_s - 0.01)
        assert len(bob.of("request")) == seen
        world.advance(0.11)
        assert len(bob.of("request")) == seen + 1
    bob.say(bob.agent.failure(bob.of("request")[-1], code))
    assert posted.is_answered
    world.advance(100)
    assert len(bob.of("request")) == (3 if code in {408, 429, 503} else 1)
    assert len(set(ids(bob.of("request")))) == 1
    if code not in {401, 403, 404, 501}:  # which are the provider's own affair
        assert posted.error["code"] == code
    assert posted.error["details"]["ossa_code"] == code


# --- 6.1: quality of service ------------------------------------------------------------------------------------------


@requirement("OSSA-079", "OSSA-082", "OSSA-090")
def test_quality_0_is_told_once_and_needs_no_acknowledgment(world: World, alice: Keyed, bob: Connection) -> None:
    subscribe(world, bob.agent, "news", qos=0)
    publish(world, alice, "news", qos=2)
    world.advance(1000)
    (event,) = bob.of("event")
    assert event["header"]["qos"] == 0


@requirement("OSSA-079")
def test_quality_0_to_somebody_who_is_away_is_lost(world: World, alice: Keyed, bob: Connection) -> None:
    subscribe(world, bob.agent, "news", qos=0, durable=True)
    bob.leave()
    publish(world, alice, "news", qos=0)
    bob = world.connect(bob.agent)
    world.advance(100)
    assert bob.of("event") == []


@requirement("OSSA-080", "OSSA-082", "OSSA-090")
def test_quality_1_is_told_again_until_it_is_acknowledged(world: World, alice: Keyed, bob: Connection) -> None:
    subscribe(world, bob.agent, "news", qos=1)
    posted = publish(world, alice, "news", qos=1)
    assert posted.type == "acknowledgment"
    seen = []
    for _ in range(8):
        seen.append(len(bob.of("event")))
        world.advance(1)
    assert seen == [1, 2, 2, 3, 3, 3, 3, 4]
    assert len(set(ids(bob.of("event")))) == 1
    bob.say(bob.agent.ack(bob.of("event")[0]))
    world.advance(1000)
    assert len(bob.of("event")) == 4


@requirement("OSSA-065", "OSSA-080")
def test_the_waits_double_and_never_exceed_half_a_minute(world: World, alice: Keyed, bob: Connection) -> None:
    subscribe(world, bob.agent, "news", qos=1)
    publish(world, alice, "news", qos=1)
    for wait_s in (1, 2, 4, 8, 16, 30, 30, 30):
        seen = len(bob.of("event"))
        world.advance(wait_s - 0.01)
        assert len(bob.of("event")) == seen
        world.advance(0.01)
        assert len(bob.of("event")) == seen + 1


@requirement("OSSA-080")
def test_a_refusal_is_no_acknowledgment(world: World, alice: Keyed, bob: Connection) -> None:
    subscribe(world, bob.agent, "news", qos=1)
    publish(world, alice, "news", qos=1)
    bob.say(bob.agent.ack(bob.of("event")[0], "negative_acknowledgment"))
    world.advance(1)
    assert len(bob.of("event")) == 2


@requirement("OSSA-080", "OSSA-015")
def test_what_nobody_acknowledges_is_given_up_after_a_day_or_when_it_expires(
    world: World, alice: Keyed, bob: Connection
) -> None:
    subscribe(world, bob.agent, "news", qos=1)
    carol = world.connect(world.agent("carol"))
    subscribe(world, carol.agent, "news.dlq", qos=1)
    publish(world, alice, "news", {"n": 1}, qos=1, expiresAt=alice.stamp(10))
    world.advance(40)
    seen = len(bob.of("event"))
    assert carol.of("event") or world.exchange.recorded(Noticed)
    world.advance(100)
    assert len(bob.of("event")) == seen


@requirement("OSSA-081", "OSSA-082")
def test_quality_2_is_one_effect_despite_lost_answers_and_a_restart(
    world: World, alice: Keyed, bob: Connection
) -> None:
    message = alice.signed(alice.message("request", "bob", payload={"pay": 1}, qos=2))
    first = world.post(alice, message)
    bob.respond({"paid": 1})
    reply = first.request.content
    world.restart()
    bob = world.connect(bob.agent, "do")
    again = world.post(alice, message)
    assert again.request.content == reply
    assert bob.of("request") == []
    assert len(world.exchange.recorded(CallAccepted)) == 1


@requirement("OSSA-081")
def test_a_request_under_way_when_the_exchange_dies_is_sent_again_under_the_same_id(
    world: World, alice: Keyed, bob: Connection
) -> None:
    message = alice.signed(alice.message("request", "bob"))
    world.post(alice, message)
    (request,) = bob.of("request")
    world.restart()
    bob = world.connect(bob.agent, "do")
    world.advance(5)
    assert set(ids(bob.of("request"))) == {request["header"]["messageId"]}
    bob.respond({"once": True})
    again = world.post(alice, message)
    assert again.payload == {"once": True}
    world.advance(100)
    assert len(world.exchange.recorded(CallAccepted)) == 1


@requirement("OSSA-081")
def test_an_event_of_quality_2_has_one_id_for_all_tellings_and_a_repeat_publishes_nothing(
    world: World, alice: Keyed, bob: Connection
) -> None:
    subscribe(world, bob.agent, "news", qos=2, durable=True)
    message = alice.signed(alice.message("event", EXCHANGE, "published", {"n": 1}, topic="news", qos=2))
    first = world.post(alice, message)
    assert world.post(alice, message).request.content == first.request.content
    world.advance(1)
    told = ids(bob.of("event"))
    world.restart()
    assert world.post(alice, message).request.content == first.request.content
    bob = world.connect(bob.agent)
    told += ids(bob.of("event"))
    assert (len(told), len(set(told))) == (3, 1)
    bob.say(bob.agent.ack(bob.of("event")[0]))
    world.restart()
    bob = world.connect(bob.agent)
    world.advance(100)
    assert bob.of("event") == []


@requirement("OSSA-082")
@pytest.mark.parametrize(("published", "subscribed", "told"), [(0, 2, 0), (1, 2, 1), (2, 1, 1), (2, 2, 2), (1, 0, 0)])
def test_the_lower_of_both_levels_is_in_force(
    world: World, alice: Keyed, bob: Connection, published: int, subscribed: int, told: int
) -> None:
    subscribe(world, bob.agent, "news", qos=subscribed)
    publish(world, alice, "news", qos=published)
    assert bob.of("event")[0]["header"]["qos"] == told


@requirement("OSSA-082")
@pytest.mark.parametrize("qos", [3, -1, "1", 1.5, None, True])
def test_there_are_three_levels(world: World, alice: Keyed, qos: object) -> None:
    assert publish(world, alice, "news", qos=qos).error["code"] == 400
    assert world.ask(alice, EXCHANGE, "subscribe", {"topic": "news", "qos": qos}).error["code"] == 400


@requirement("OSSA-082")
def test_by_default_an_event_is_not_acknowledged(world: World, alice: Keyed, bob: Connection) -> None:
    subscribe(world, bob.agent, "news", qos=2)
    assert publish(world, alice, "news").replies == []
    assert bob.of("event")[0]["header"]["qos"] == 0


# --- 6.2: order, and priority -----------------------------------------------------------------------------------------


@requirement("OSSA-083")
def test_of_one_correlation_the_second_waits_for_the_first(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    line.say(*(alice.message("request", "bob", payload={"n": n}, correlationId="c", priority=9 - n) for n in range(3)))
    assert bob.payloads("request") == [{"n": 0}]
    world.advance(5)
    bob.respond({"n": 0})
    assert bob.payloads("request") == [{"n": 0}, {"n": 1}]
    bob.respond({"n": 1})
    bob.respond({"n": 2})
    assert line.payloads("response") == [{"n": 0}, {"n": 1}, {"n": 2}]


@requirement("OSSA-083")
def test_events_of_one_correlation_are_told_in_order_and_one_that_is_not_acknowledged_holds_back_the_next(
    world: World, alice: Keyed, bob: Connection
) -> None:
    subscribe(world, bob.agent, "news", qos=1)
    for number in range(3):
        publish(world, alice, "news", {"n": number}, qos=1, correlationId="c")
    world.advance(3)
    assert {str(payload) for payload in bob.payloads("event")} == {"{'n': 0}"}
    bob.say(bob.agent.ack(bob.of("event")[0]))
    assert bob.payloads("event")[-1] == {"n": 1}
    bob.say(bob.agent.ack(bob.of("event")[-1]))
    assert bob.payloads("event")[-1] == {"n": 2}


@requirement("OSSA-084")
def test_of_different_correlations_a_slow_one_does_not_hold_back_the_other(
    world: World, alice: Keyed, bob: Connection
) -> None:
    slow = world.ask(alice, "bob", correlationId="slow")
    quick = world.ask(alice, "bob", correlationId="quick")
    assert len(bob.of("request")) == 2
    bob.respond({"quick": True})
    assert quick.is_answered
    assert not slow.is_answered


@requirement("OSSA-083", "OSSA-052")
def test_a_request_that_is_not_answered_in_time_holds_back_nothing_and_its_late_answer_is_nobody_elses(
    world: World, alice: Keyed, bob: Connection
) -> None:
    for number in range(AT_ONCE):
        world.ask(alice, "bob", payload={"n": number}, correlationId=f"c-{number}")
    world.advance(40)
    posted = world.ask(alice, "bob", payload={"n": "next"}, correlationId="c-0")
    assert bob.payloads("request")[AT_ONCE:] == [{"n": "next"}]
    bob.respond({"late": True}, at=0)
    assert not posted.is_answered
    bob.respond({"right": True})
    assert posted.payload == {"right": True}


@requirement("OSSA-083", "OSSA-015")
def test_what_waited_until_its_time_was_over_is_not_sent_at_all(world: World, alice: Keyed, bob: Connection) -> None:
    fill(world, alice)
    posted = world.ask(alice, "bob", payload={"too": "late"})
    world.advance(40)
    assert posted.error["code"] == 408
    assert {"too": "late"} not in bob.payloads("request")


def fill(world: World, alice: Keyed) -> None:
    """As many requests as an agent works on at once."""
    for number in range(AT_ONCE):
        world.ask(alice, "bob", payload={"filler": number})


@requirement("OSSA-014")
def test_of_those_that_wait_the_lowest_number_goes_first(world: World, alice: Keyed, bob: Connection) -> None:
    fill(world, alice)
    for priority in (9, 5, 0, 7, 1):
        world.ask(alice, "bob", payload={"p": priority}, priority=priority)
    world.ask(alice, "bob", payload={"p": "5 by default"})
    assert len(bob.of("request")) == AT_ONCE
    for at in range(6):
        bob.respond(at=at)
    assert [payload["p"] for payload in bob.payloads("request")[AT_ONCE:]] == [0, 1, 5, "5 by default", 7, 9]


@requirement("OSSA-014")
def test_who_waits_rises_by_one_every_half_minute(tmp_path: Path) -> None:
    with World(tmp_path, rate=MANY) as world:
        alice = world.agent("alice")
        bob = world.connect(world.agent("bob"), "do")
        # By events, which nothing ends but their acknowledgment.
        subscribe(world, bob.agent, "news", qos=1)
        for number in range(256):
            publish(world, alice, "news", {"filler": number}, qos=1)
        publish(world, alice, "news", {"p": "old 6"}, qos=1, priority=6)
        world.advance(61)
        publish(world, alice, "news", {"p": "new 5"}, qos=1, priority=5)
        firsts = bob.of("event")[:2]
        bob.say(*(bob.agent.ack(one) for one in firsts))
        told = [payload["p"] for payload in bob.payloads("event") if "p" in payload]
        assert told == ["old 6", "new 5"]


# --- 2.1: expiry ------------------------------------------------------------------------------------------------------


@requirement("OSSA-015")
def test_what_has_expired_is_not_handled(world: World, alice: Keyed, bob: Connection) -> None:
    subscribe(world, bob.agent, "news", qos=1)
    for kind in ("request", "command"):
        posted = world.post(alice, alice.message(kind, "bob", expiresAt=alice.stamp(-1)))
        assert posted.error["code"] == 408
    publish(world, alice, "news", qos=1, expiresAt=alice.stamp(-1))
    assert (bob.of("request"), bob.of("event")) == ([], [])
    expired = [entry for entry in world.exchange.recorded(Noticed) if entry.code == "message.expired"]
    assert len(expired) == 3


@requirement("OSSA-015")
def test_what_expires_while_it_waits_is_not_handled_either(world: World, alice: Keyed, bob: Connection) -> None:
    world.ask(alice, "bob", correlationId="c")
    second = world.ask(alice, "bob", correlationId="c", expiresAt=alice.stamp(5))
    world.advance(10)
    bob.respond()
    assert second.error["code"] == 408
    assert len(bob.of("request")) == 1


@requirement("OSSA-015")
def test_what_has_not_expired_is_handled(world: World, alice: Keyed, bob: Connection) -> None:
    posted = world.ask(alice, "bob", expiresAt=alice.stamp(5))
    bob.respond({"in": "time"})
    assert posted.payload == {"in": "time"}


# --- 7 ----------------------------------------------------------------------------------------------------------------


@requirement("OSSA-086")
@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_taken(world: World, alice: Keyed, bob: Connection, kind: str) -> None:
    info = {"code": 500, "message": "m", "timestamp": alice.stamp()} if kind == "error" else None
    more = {"streamId": "s", "sequence": 0} if kind.startswith("stream") else {"topic": "t"} if kind == "event" else {}
    if kind in {"stream_data", "stream_end"}:
        world.post(alice, start(alice, "s"))
    about = {"messageId": str(uuid.uuid4())}
    to = EXCHANGE if kind == "event" else "bob"
    posted = world.post(alice, alice.message(kind, to, "do", about, error=info, **more))
    if kind in {"request", "command"}:
        bob.respond()
    assert posted.status in {200, 202}

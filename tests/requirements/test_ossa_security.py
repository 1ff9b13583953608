"""OSSA, section 5: who speaks, what is hidden from others, and how much one may say."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature

from tests.ossa import EXCHANGE, JSON, Connection, Keyed, Posted, World, decoded, encoded, sealed_for, signed_by
from tests.requirement import requirement
from trunkline.edges.ossa.rates import DEFAULT_LIMIT, WINDOW_S

SECRET = "the-plain-text-of-a-secret"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as world:
        yield world


@pytest.fixture
def alice(world: World) -> Keyed:
    return world.agent("alice")


@pytest.fixture
def bob(world: World) -> Connection:
    return world.connect(world.agent("bob"), "do")


def posted(world: World, agent: Keyed, message: JSON) -> Posted:
    """A message is sent; a refusal of one whose signature is wrong may take a while."""
    sent = world.post(agent, message)
    if not sent.is_answered:
        world.advance(5)
    return sent


# --- 5.1 --------------------------------------------------------------------------------------------------------------


@requirement("OSSA-069")
def test_everything_that_the_exchange_says_is_signed_with_its_published_key(
    world: World, alice: Keyed, bob: Connection
) -> None:
    sent = world.ask(alice, "bob")
    bob.respond()
    said = [*sent.replies, *bob.heard, *world.ask(alice, "nobody").replies, *world.post_bytes(b"{").replies]
    assert len(said) == 5
    for message in said:
        world.check(message)
    with pytest.raises(InvalidSignature):
        world.check({**said[0], "body": {**said[0]["body"], "payload": {"changed": True}}})


@requirement("OSSA-070", "OSSA-049")
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("body", {"action": "do", "payload": {"changed": True}}),
        ("extra", 1),
    ],
)
def test_a_message_that_was_changed_is_not_handled(
    world: World, alice: Keyed, bob: Connection, part: str, value: object
) -> None:
    message = {**alice.signed(alice.message("request", "bob")), part: value}
    sent = posted(world, alice, message)
    assert sent.error["code"] == 401
    assert sent.reply["header"]["recipient"]["agentId"] == "alice"
    assert bob.of("request") == []


@requirement("OSSA-070", "OSSA-049")
@pytest.mark.parametrize("field", ["messageId", "correlationId", "priority", "recipient", "expiresAt", "x-own"])
def test_every_field_of_the_header_is_signed(world: World, alice: Keyed, bob: Connection, field: str) -> None:
    values: JSON = {
        "messageId": str(uuid.uuid4()),
        "correlationId": "other",
        "priority": 0,
        "recipient": {"agentId": "bob", "agentType": "governor"},
        "expiresAt": alice.stamp(60),
        "x-own": 1,
    }
    message = alice.signed(alice.message("request", "bob"))
    message["header"] = {**message["header"], field: values[field]}
    assert posted(world, alice, message).error["code"] == 401
    assert bob.of("request") == []


@requirement("OSSA-070", "OSSA-049")
@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "ES256"},
        {"typ": "JWT"},
        {"crit": ["b64"], "b64": False},
        {"jwk": {}},
        {"kid": 7},
        {"kid": "unknown"},
    ],
    ids=str,
)
def test_no_other_kind_of_signature_is_taken(world: World, alice: Keyed, bob: Connection, header: JSON) -> None:
    message = alice.signed(alice.message("request", "bob"), **header)
    assert posted(world, alice, message).error["code"] == 401
    assert bob.of("request") == []


@requirement("OSSA-070")
@pytest.mark.parametrize("signature", ["", "x", "a.b.c", "..", None])
def test_what_is_no_signature_is_not_taken(world: World, alice: Keyed, bob: Connection, signature: object) -> None:
    message = {**alice.message("request", "bob"), "signature": signature}
    assert posted(world, alice, message).error["code"] == (401 if isinstance(signature, str) else 400)
    assert bob.of("request") == []


@requirement("OSSA-070", "OSSA-049", "OSSA-069")
def test_a_message_without_a_signature_is_not_taken_where_one_is_required(world: World, alice: Keyed) -> None:
    message = alice.message("request", "bob")
    sent = world.post_bytes(json.dumps(message).encode())
    world.advance(5)
    assert sent.error["code"] == 401


@requirement("OSSA-070")
def test_where_signatures_are_not_required_a_wrong_one_is_not_taken_either(tmp_path: Path) -> None:
    with World(tmp_path, require_signature=False) as world:
        alice = world.agent("alice")
        bob = world.connect(world.agent("bob"), "do")
        message = alice.message("request", "bob")
        world.post_bytes(json.dumps(message).encode())
        assert len(bob.of("request")) == 1
        wrong = {**alice.signed(message), "body": {"action": "do", "payload": {"changed": True}}}
        assert posted(world, alice, wrong).error["code"] == 401
        stranger = {**message, "header": {**message["header"], "sender": {"agentId": "x", "agentType": "worker"}}}
        sent = world.post_bytes(json.dumps(stranger).encode())
        world.advance(5)
        assert sent.error["code"] == 401
        assert len(bob.of("request")) == 1


@requirement("OSSA-071", "OSSA-049")
def test_a_good_signature_of_another_agent_is_not_taken(world: World, alice: Keyed, bob: Connection) -> None:
    mallory = world.agent("mallory")
    message = mallory.message("request", "bob", sender=alice.identity)
    assert posted(world, mallory, message).error["code"] == 401
    # Her key's name does not help without her key.
    header = {"alg": "EdDSA", "kid": alice.jwk["kid"], "typ": "ossa+jws"}
    assert posted(world, mallory, signed_by(mallory.key, message, header)).error["code"] == 401
    assert bob.of("request") == []


@requirement("OSSA-071")
def test_a_socket_speaks_for_the_agent_of_its_first_message_only(world: World, alice: Keyed, bob: Connection) -> None:
    line = world.connect(alice)
    mallory = world.agent("mallory")
    line.say(mallory.signed(mallory.message("request", "bob")))
    assert line.heard[-1]["body"]["error"]["code"] == 401
    assert bob.of("request") == []
    assert not line.is_closed


@requirement("OSSA-071")
def test_two_keys_are_good_at_the_same_time_and_a_revoked_one_is_not(world: World, bob: Connection) -> None:
    old, new = world.agent("alice"), world.agent("alice")
    for keyed in (old, new):
        world.ask(keyed, "bob")
    assert len(bob.of("request")) == 2
    line = world.connect(new)
    world.exchange.revoke("ossa", "alice")
    for keyed in (old, new):
        assert posted(world, keyed, keyed.message("request", "bob")).error["code"] == 401
    line.say(new.message("request", "bob"))
    assert len(bob.of("request")) == 2


@requirement("OSSA-070", "OSSA-049")
@pytest.mark.parametrize(("after_s", "is_taken"), [(290, True), (310, False), (-86_000, True), (-87_000, False)])
def test_a_message_whose_time_is_far_from_now_may_be_a_replay(
    world: World, alice: Keyed, bob: Connection, after_s: float, is_taken: bool
) -> None:
    sent = posted(world, alice, alice.message("request", "bob", timestamp=alice.stamp(after_s)))
    assert len(bob.of("request")) == is_taken
    if not is_taken:
        assert sent.error["code"] == 401


@requirement("OSSA-070")
def test_an_integer_that_has_no_canonical_form_is_a_bad_request(world: World, alice: Keyed) -> None:
    message = alice.signed(alice.message("request", "bob", payload={"n": 1}))
    data = json.dumps(message).encode().replace(b'"n": 1', b'"n": %d' % 2**53)
    assert world.post_bytes(data).error["code"] == 400


# --- 5.2: encryption --------------------------------------------------------------------------------------------------


def sealed(world: World, agent: Keyed, kind: str = "request", **header: Any) -> JSON:
    """A message for bob with a payload that only the exchange can read."""
    to = EXCHANGE if kind == "event" else "bob"
    message = agent.message(kind, to, "do", sensitive=True, **header)
    message["body"]["payload"] = sealed_for({"secret": SECRET}, message["header"]["messageId"], world.enc_key)
    return message


@requirement("OSSA-072", "OSSA-089")
def test_a_sealed_payload_is_sealed_on_every_hop(world: World, alice: Keyed, bob: Connection) -> None:
    message = sealed(world, alice)
    head = json.loads(decoded(message["body"]["payload"]["$encrypted"].split(".")[0]))
    assert head["enc"] == "A256GCM"
    sent = world.post(alice, message)
    (request,) = bob.of("request")
    assert bob.agent.opened(request) == {"secret": SECRET}
    assert request["header"]["sensitive"] is True
    bob.respond({"answer": SECRET})
    assert alice.opened(sent.reply) == {"answer": SECRET}
    on_the_wire = json.dumps([message, request, sent.reply])
    assert SECRET not in on_the_wire
    assert base64.b64encode(SECRET.encode()).decode().rstrip("=")[:-2] not in on_the_wire


@requirement("OSSA-072", "OSSA-081")
def test_a_sealed_request_is_on_record_without_its_content_and_a_repeat_gets_its_outcome_after_a_restart(
    world: World, alice: Keyed, bob: Connection
) -> None:
    message = alice.signed(sealed(world, alice))
    sent = world.post(alice, message)
    bob.respond({"answer": SECRET})
    assert alice.opened(sent.reply) == {"answer": SECRET}
    world.restart()
    bob = world.connect(bob.agent, "do")
    again = world.post(alice, message)
    assert alice.opened(again.reply) == {"answer": SECRET}
    assert bob.of("request") == []
    world.exchange.store()
    reader = world.exchange.ledger.reader
    lines = list(reader.lines(1, reader.head()[0]))
    assert len(lines) > 5
    assert [line for line in lines if SECRET.encode() in line] == []


def record(world: World) -> str:
    """All that is on record, as it is stored."""
    reader = world.exchange.ledger.reader
    return "\n".join(line.decode() for line in reader.lines(1, world.exchange.ledger.last))


def sealed_reply(world: World, agent: Keyed, to: JSON, kind: str = "response", **header: Any) -> JSON:
    """An answer that only the exchange can read."""
    reply = agent.reply(to, kind, sensitive=True, **header)
    reply["body"]["payload"] = sealed_for({"secret": SECRET}, reply["header"]["messageId"], world.enc_key)
    return reply


@requirement("OSSA-072")
def test_a_sealed_event_is_sealed_for_each_subscriber_and_not_on_record(
    world: World, alice: Keyed, bob: Connection
) -> None:
    carol = world.connect(world.agent("carol"))
    for line in (bob, carol):
        line.say(line.agent.message("request", EXCHANGE, "subscribe", {"topic": "news", "qos": 1, "durable": True}))
    world.post(alice, sealed(world, alice, "event", topic="news", qos=1, xTrace=SECRET))
    for line in (bob, carol):
        (event,) = line.of("event")
        assert (event["header"]["sensitive"], event["header"]["xTrace"]) == (True, SECRET)
        assert line.agent.opened(event) == {"secret": SECRET}
    assert SECRET not in record(world)
    bob.say(bob.agent.ack(bob.of("event")[0]))
    world.restart()
    carol = world.connect(carol.agent)
    (event,) = carol.of("event")
    assert carol.agent.opened(event) == {"secret": SECRET}
    carol.say(carol.agent.ack(event))
    assert SECRET not in record(world)
    assert world.exchange.ledger.reader._value("SELECT count(*) FROM held WHERE expires = 0") == 0


@requirement("OSSA-072")
@pytest.mark.parametrize("is_over", [True, False], ids=["ended before", "ended after"])
def test_the_result_of_a_sealed_command_is_sealed_also_after_a_restart_and_nothing_of_either_is_on_record(
    world: World, alice: Keyed, bob: Connection, is_over: bool
) -> None:
    message = sealed(world, alice, "command", xTrace=SECRET)
    message["header"]["sender"]["xOwn"] = SECRET
    message["body"]["xBody"] = SECRET
    world.post(alice, message)
    if is_over:
        bob.say(sealed_reply(world, bob.agent, bob.of("request")[0]))
    assert SECRET not in record(world)
    world.restart()
    if not is_over:
        bob = world.connect(bob.agent, "do")
        world.advance(5)
        assert bob.agent.opened(bob.of("request")[0]) == {"secret": SECRET}
        bob.say(sealed_reply(world, bob.agent, bob.of("request")[0]))
    line = world.connect(alice)
    world.advance(5)
    result = line.of("command_result")[0]
    assert alice.opened(result) == {"secret": SECRET}
    assert SECRET not in record(world)


@requirement("OSSA-072")
def test_what_a_sealed_request_shows_is_a_sealed_stream_and_not_on_record(
    world: World, alice: Keyed, bob: Connection
) -> None:
    seen: list[bytes] = []
    world.exchange.operator.watch(seen.append)
    line = world.connect(alice)
    line.say(sealed(world, alice))
    (request,) = bob.of("request")
    thread = {"streamId": "s"}
    bob.say(bob.agent.reply(request, "stream_start", **thread))
    bob.say(sealed_reply(world, bob.agent, request, "stream_data", sequence=0, **thread))
    bob.say(bob.agent.reply(request, "stream_end", sequence=1, **thread))
    bob.say(sealed_reply(world, bob.agent, request))
    (piece,) = line.of("stream_data")
    assert alice.opened(piece) == {"secret": SECRET}
    assert SECRET not in record(world)
    assert any(b'"progress"' in shown for shown in seen)
    assert not any(SECRET.encode() in shown for shown in seen)


@requirement("OSSA-072")
def test_a_sealed_piece_of_a_stream_to_another_agent_is_sealed_for_it(
    world: World, alice: Keyed, bob: Connection
) -> None:
    stream = {"streamId": "s"}
    world.post(alice, alice.message("stream_start", "bob", "look", **stream))
    world.post(alice, sealed(world, alice, "stream_data", sequence=0, **stream))
    world.post(alice, alice.message("stream_end", "bob", "look", sequence=1, **stream))
    (piece,) = bob.of("stream_data")
    assert piece["header"]["sensitive"] is True
    assert bob.agent.opened(piece) == {"secret": SECRET}
    assert SECRET not in record(world)


@requirement("OSSA-072")
def test_an_answer_may_be_sealed_as_well(world: World, alice: Keyed, bob: Connection) -> None:
    sent = world.post(alice, sealed(world, alice))
    reply = bob.agent.reply(bob.of("request")[0], sensitive=True)
    reply["body"]["payload"] = sealed_for({"n": 1}, reply["header"]["messageId"], world.enc_key)
    bob.say(reply)
    assert alice.opened(sent.reply) == {"n": 1}


@requirement("OSSA-072")
def test_what_is_called_sensitive_and_is_not_sealed_is_refused(world: World, alice: Keyed, bob: Connection) -> None:
    assert world.ask(alice, "bob", sensitive=True).error["code"] == 400
    assert world.ask(alice, "bob", sensitive="yes").error["code"] == 400
    assert bob.of("request") == []


@requirement("OSSA-072")
def test_the_same_message_sealed_for_several_is_opened_by_the_exchange(world: World, bob: Connection) -> None:
    alice = world.agent("alice")
    message = alice.message("request", ["bob"], "do", sensitive=True)
    both = sealed_for({"secret": SECRET}, message["header"]["messageId"], bob.agent.enc_jwk, world.enc_key)
    assert isinstance(both["$encrypted"], dict)
    message["body"]["payload"] = both
    world.post(alice, message)
    assert bob.agent.opened(bob.of("request")[0]) == {"secret": SECRET}


@requirement("OSSA-073")
@pytest.mark.parametrize("part", [1, 2, 3, 4], ids=["key", "iv", "ciphertext", "tag"])
def test_one_flipped_bit_and_a_sealed_payload_is_refused(
    world: World, alice: Keyed, bob: Connection, part: int
) -> None:
    message = sealed(world, alice)
    parts = message["body"]["payload"]["$encrypted"].split(".")
    data = bytearray(decoded(parts[part]))
    data[0] ^= 1
    parts[part] = encoded(bytes(data))
    message["body"]["payload"] = {"$encrypted": ".".join(parts)}
    assert world.post(alice, message).error["code"] == 400
    assert bob.of("request") == []


@requirement("OSSA-073")
def test_a_ciphertext_of_another_message_or_for_another_key_is_refused(
    world: World, alice: Keyed, bob: Connection
) -> None:
    moved = {**sealed(world, alice), "body": sealed(world, alice)["body"]}
    assert world.post(alice, moved).error["code"] == 400
    foreign = alice.message("request", "bob", sensitive=True)
    foreign["body"]["payload"] = sealed_for({}, foreign["header"]["messageId"], bob.agent.enc_jwk)
    assert world.post(alice, foreign).error["code"] == 400
    weak = alice.message("request", "bob", sensitive=True)
    weak["body"]["payload"] = {"$encrypted": "a.b.c.d.e"}
    assert world.post(alice, weak).error["code"] == 400
    assert bob.of("request") == []


# --- 5.3: rates -------------------------------------------------------------------------------------------------------


def register_nothing(agent: Keyed) -> JSON:
    """A request that costs nothing."""
    return agent.message("request", EXCHANGE, "unsubscribe", {"subscription": "none"})


def spent(world: World, agent: Keyed, limit: int) -> Posted:
    """So many requests, none of which is refused for its rate; then one more."""
    codes = {world.post(agent, register_nothing(agent)).status for _ in range(limit)}
    assert 429 not in codes
    return world.post(agent, register_nothing(agent))


@requirement("OSSA-053", "OSSA-076", "OSSA-077")
def test_of_101_requests_in_a_minute_the_last_is_refused_and_another_agent_is_not(world: World, alice: Keyed) -> None:
    assert DEFAULT_LIMIT == 100
    refused = spent(world, alice, 100)
    assert refused.error["code"] == 429
    carol = world.agent("carol")
    assert world.post(carol, register_nothing(carol)).status == 404
    wait_ms = refused.error["details"]["retryAfterMs"]
    assert 0 < wait_ms <= WINDOW_S * 1000 + 1
    assert refused.request.headers[b"retry-after"]
    world.advance(wait_ms / 1000 + 0.1)
    assert world.post(alice, register_nothing(alice)).status == 404


@requirement("OSSA-077")
def test_the_window_slides(world: World, alice: Keyed) -> None:
    for _ in range(60):
        world.post(alice, register_nothing(alice))
    world.advance(40)
    for _ in range(40):
        assert world.post(alice, register_nothing(alice)).status == 404
    assert world.post(alice, register_nothing(alice)).status == 429
    world.advance(21)
    for _ in range(60):
        assert world.post(alice, register_nothing(alice)).status == 404
    assert world.post(alice, register_nothing(alice)).status == 429


@requirement("OSSA-076")
def test_events_are_counted_apart_and_heartbeats_and_acknowledgments_not_at_all(world: World, alice: Keyed) -> None:
    assert spent(world, alice, 100).status == 429
    event = alice.message("event", EXCHANGE, "e", topic="t")
    for _ in range(100):
        event["header"]["messageId"] = str(uuid.uuid4())
        assert world.post(alice, event).status == 202
    event["header"]["messageId"] = str(uuid.uuid4())
    assert world.post(alice, event).status == 429
    for kind in ("heartbeat", "acknowledgment"):
        for _ in range(150):
            assert world.post(alice, alice.message(kind, EXCHANGE, kind, {"messageId": "x"})).status == 202


@requirement("OSSA-076")
def test_a_command_is_counted_as_a_request_is(world: World, alice: Keyed, bob: Connection) -> None:
    for _ in range(100):
        world.post(alice, alice.message("command", "bob"))
    assert world.ask(alice, "bob").status == 429


@requirement("OSSA-078")
def test_a_class_has_the_limit_that_is_set_for_it_and_a_message_cannot_choose_another(tmp_path: Path) -> None:
    with World(tmp_path, rate={"governor": 5, "monitor": 7}) as world:
        governor, monitor, worker = (world.agent(kind, kind) for kind in ("governor", "monitor", "worker"))
        assert spent(world, governor, 5).status == 429
        assert spent(world, monitor, 7).status == 429
        assert spent(world, worker, 100).status == 429
        governor.type = "monitor"
        assert world.post(governor, register_nothing(governor)).status == 429


@requirement("OSSA-053", "OSSA-077")
def test_a_message_that_was_refused_for_its_rate_may_be_sent_again(world: World, alice: Keyed) -> None:
    for _ in range(100):
        world.post(alice, register_nothing(alice))
    message = alice.signed(register_nothing(alice))
    assert world.post(alice, message).status == 429
    world.advance(61)
    assert world.post(alice, message).status == 404

"""Attacks on OSSA: forged, replayed, moved and rewritten messages; agents that act for others, or keep others out."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fuzz.asgi import Request, Socket
from tests.ossa_messages import signed
from tests.unit.edges.ossa.kit import Agent, Kit, Line
from trunkline.edges.ossa import messages, reading, sealing, signing
from trunkline.edges.ossa.openings import MAX_IDS
from trunkline.edges.ossa.providing import MAX_REQUESTS
from trunkline.edges.ossa.serve import KNOWN_WITHIN_S, NOTHING_NEW
from trunkline.entries import CallAccepted, TopicSubscribed
from trunkline.model import Now, stamp


@pytest.fixture
def kit() -> Iterator[Kit]:
    with Kit() as kit:
        yield kit
        kit.check()


@pytest.fixture
def alice(kit: Kit) -> Agent:
    return kit.agent("alice")


@pytest.fixture
def eve(kit: Kit) -> Agent:
    return kit.agent("eve")


@pytest.fixture
def bob(kit: Kit) -> Line:
    return kit.agent("bob").connect("echo")


def post(kit: Kit, data: bytes) -> Request:
    """The answer, however long a refusal takes."""
    request = kit.post(data)
    kit.advance(0 if request.complete else 30)
    return request


def calls(kit: Kit) -> int:
    return len(kit.exchange.recorded(CallAccepted))


def refused(kit: Kit, bob: Line, data: bytes, status: int) -> None:
    before = calls(kit), len(bob.got)
    answer = post(kit, data)
    assert answer.status == status, answer.content
    assert json.loads(answer.content)["body"]["error"]["code"] == status
    assert (calls(kit), len(bob.got)) == before


# --- signatures -------------------------------------------------------------------------------------------------------


def with_signature(message: dict[str, Any], header: dict[str, Any], signature: bytes) -> bytes:
    first = signing.encoded(json.dumps(header).encode())
    return json.dumps({**message, "signature": f"{first}..{signing.encoded(signature)}"}).encode()


def unsigned(message: dict[str, Any], header: dict[str, Any]) -> bytes:
    return with_signature(message, header, b"")


def zeros(message: dict[str, Any], agent: Agent) -> bytes:
    return with_signature(message, {"alg": "EdDSA", "kid": agent.key.kid, "typ": signing.TYPE}, bytes(64))


def hs256(message: dict[str, Any], agent: Agent) -> bytes:
    header = {"alg": "HS256", "kid": agent.key.kid, "typ": signing.TYPE}
    first = signing.encoded(json.dumps(header).encode())
    form = signing.encoded(signing.signed_form(json.dumps(message).encode()))
    mac = hmac.digest(bytes(agent.key.public), f"{first}.{form}".encode(), hashlib.sha256)
    return with_signature(message, header, mac)


def attached(message: dict[str, Any], agent: Agent) -> bytes:
    found = json.loads(agent.signed(message))
    first, _, last = found["signature"].split(".")
    form = signing.encoded(signing.signed_form(json.dumps(message).encode()))
    return json.dumps({**found, "signature": f"{first}.{form}.{last}"}).encode()


FORGED: dict[str, Any] = {
    "no signature": lambda message, _: json.dumps(message).encode(),
    "null for a signature": lambda message, _: json.dumps({**message, "signature": None}).encode(),
    "an empty signature": lambda message, _: json.dumps({**message, "signature": ""}).encode(),
    "a number": lambda message, _: json.dumps({**message, "signature": 5}).encode(),
    "two dots": lambda message, _: json.dumps({**message, "signature": ".."}).encode(),
    "alg none": lambda message, agent: unsigned(message, {"alg": "none", "kid": agent.key.kid}),
    "alg none with a signature": lambda message, agent: signed(message, agent.key, alg="none"),
    "alg None": lambda message, agent: signed(message, agent.key, alg="None"),
    "no alg": lambda message, agent: signed(message, agent.key, alg=None),
    "ES256": lambda message, agent: signed(message, agent.key, alg="ES256"),
    "HS256 with the public key": hs256,
    "no kid": lambda message, agent: signed(message, agent.key, kid=None),
    "a kid of nobody": lambda message, agent: signed(message, agent.key, kid="A" * 43),
    "a kid that is a path": lambda message, agent: signed(message, agent.key, kid="../../keys/ossa.key"),
    "a kid that is SQL": lambda message, agent: signed(message, agent.key, kid="' or 1=1 --"),
    "an embedded key": lambda message, agent: signed(message, agent.key, jwk=signing.public_jwk(agent.key.public)),
    "a key from elsewhere": lambda message, agent: signed(message, agent.key, jku="https://eve.example/keys"),
    "crit": lambda message, agent: signed(message, agent.key, crit=["b64"], b64=False),
    "another typ": lambda message, agent: signed(message, agent.key, typ="JWT"),
    "an attached payload": attached,
    "a signature of zeros": zeros,
}  # fmt: skip


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_signature_is_401_and_nothing_happens(kit: Kit, alice: Agent, bob: Line, how: str) -> None:
    message = alice.message("request", "bob", "echo", {"x": 1})
    data = FORGED[how](message, alice)
    refused(kit, bob, data, 400 if how in {"null for a signature", "a number"} else 401)


@pytest.mark.parametrize("alg", ["EdDSA", "Ed25519"])
def test_both_names_of_the_algorithm_are_taken(kit: Kit, alice: Agent, bob: Line, alg: str) -> None:
    kit.post(signed(alice.message("request", "bob", "echo", {"x": 1}), alice.key, alg=alg))
    assert len(bob.got) == 1


def test_a_good_key_of_another_agent_is_401_for_every_type(kit: Kit, alice: Agent, eve: Agent, bob: Line) -> None:
    for kind in messages.TYPES:
        message = alice.message(kind, "bob", "echo", {}, topic="a", streamId="s", sequence=0)
        message["body"]["error"] = {"code": 400, "message": "x", "timestamp": kit.stamp()}
        answer = post(kit, signed(message, eve.key))
        assert answer.status == 401
    assert "alice" not in kit.peers.by_agent
    assert bob.got == []


def test_each_part_of_a_signed_message_is_covered(kit: Kit, alice: Agent, bob: Line) -> None:
    message = alice.message("request", "bob", "echo", {"x": [1, {"y": "z"}]}, correlationId="c", priority=3, trace="t")
    good = json.loads(alice.signed(message))
    changes: list[tuple[list[Any], Any]] = [
        (["header", "messageId"], kit.new_id()), (["header", "type"], "command"), (["header", "version"], "1.0.1"),
        (["header", "timestamp"], kit.stamp(1)), (["header", "sender", "agentType"], "governor"),
        (["header", "recipient", "agentId"], "carol"), (["header", "correlationId"], "d"), (["header", "priority"], 0),
        (["header", "trace"], "u"), (["header", "added"], 1), (["body", "action"], "other"), (["body", "added"], None),
        (["body", "payload", "x", 0], 2), (["body", "payload", "x", 1, "y"], "Z"), (["added"], 1),
    ]  # fmt: skip
    for path, value in changes:
        made = json.loads(json.dumps(good))
        place = made
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        refused(kit, bob, json.dumps(made).encode(), 401)
        bob.agent.ask("heartbeat")
    kit.post(json.dumps(good).encode())
    assert len(bob.got) == 1


# --- other spellings of the same message ------------------------------------------------------------------------------


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(value)}
    return [reordered(one) for one in value] if isinstance(value, list) else value


SAME: dict[str, Any] = {
    "other order of keys": lambda found: json.dumps(reordered(found)),
    "white space": lambda found: json.dumps(found, indent=7).replace('": ', '" \t:\r\n'),
    "escaped characters": lambda found: json.dumps(found, ensure_ascii=True).replace('"x"', '"\\u0078"'),
    "characters as they are": lambda found: json.dumps(found, ensure_ascii=False),
    "numbers written otherwise": lambda found: json.dumps(found).replace("[1, 2.5, 100]", "[1.0, 25e-1, 1E2]"),
    "an escaped slash": lambda found: json.dumps(found).replace('"a/b"', '"a\\/b"'),
}
OTHER: dict[str, Any] = {
    "a key twice": lambda found: json.dumps(found).replace('"x":', '"x": 0, "x":'),
    "another number": lambda found: json.dumps(found).replace("2.5", "2.5000000000000004"),
    "another form of a character": lambda found: json.dumps(found).replace("\\u00e9", "e\\u0301"),
    "a string for a number": lambda found: json.dumps(found).replace("100]", '"100"]'),
    "true for 1": lambda found: json.dumps(found).replace("[1,", "[true,"),
    "null for absent": lambda found: json.dumps(found).replace('"x":', '"w": null, "x":'),
    "a byte order mark": lambda found: "\ufeff" + json.dumps(found),
    "more after it": lambda found: json.dumps(found) + "{}",
    "a list in another order": lambda found: json.dumps(found).replace("[1, 2.5, 100]", "[2.5, 1, 100]"),
    "another case of a key": lambda found: json.dumps(found).replace('"x"', '"X"'),
}


@pytest.mark.parametrize("how", SAME)
def test_the_same_message_in_another_spelling_is_the_same_message(kit: Kit, alice: Agent, bob: Line, how: str) -> None:
    message = alice.message("request", "bob", "echo", {"x": [1, 2.5, 100], "é": "ü", "p": "a/b"})
    data = SAME[how](json.loads(alice.signed(message))).encode()
    assert data != alice.signed(message)
    kit.post(alice.signed(message))
    answer = kit.post(data)
    bob.answer(bob.got[-1], {})
    kit.advance(0)
    assert (answer.status, len(bob.of("request"))) == (200, 1)
    assert kit.post(data).content == answer.content


@pytest.mark.parametrize("how", OTHER)
def test_any_other_message_does_not_verify(kit: Kit, alice: Agent, bob: Line, how: str) -> None:
    message = alice.message("request", "bob", "echo", {"x": [1, 2.5, 100], "é": "é", "p": "a/b"})
    data = OTHER[how](json.loads(alice.signed(message))).encode()
    answer = post(kit, data)
    assert answer.status in {400, 401}
    assert bob.got == []


# --- replays ----------------------------------------------------------------------------------------------------------


def test_a_message_that_is_replayed_is_answered_and_not_handled_again(kit: Kit, alice: Agent, bob: Line) -> None:
    data = alice.signed(alice.message("command", "bob", "echo", {"pay": 100}))
    first = kit.post(data)
    bob.answer(bob.got[-1], {})
    for _ in range(5):
        kit.advance(60)
        assert kit.post(data).content == first.content
    assert len(bob.of("request")) == 1
    assert calls(kit) == 1


def test_a_replay_under_another_id_does_not_verify(kit: Kit, alice: Agent, bob: Line) -> None:
    found = json.loads(alice.signed(alice.message("request", "bob", "echo", {"pay": 100})))
    found["header"]["messageId"] = kit.new_id()
    refused(kit, bob, json.dumps(found).encode(), 401)


def test_a_replay_by_another_agent_or_to_another_recipient_does_not_verify(kit: Kit, alice: Agent, bob: Line) -> None:
    found = json.loads(alice.signed(alice.message("request", "bob", "echo", {"pay": 100})))
    for part in ("sender", "recipient"):
        made = json.loads(json.dumps(found))
        made["header"][part]["agentId"] = "eve"
        refused(kit, bob, json.dumps(made).encode(), 401)


@pytest.mark.parametrize("seconds", [-86_401, 301, 86_400, -(10**9)])
def test_what_is_outside_the_window_of_time_is_401(kit: Kit, alice: Agent, bob: Line, seconds: int) -> None:
    refused(kit, bob, alice.signed(alice.message("request", "bob", "echo", timestamp=kit.stamp(seconds))), 401)


def test_a_message_that_was_good_is_401_after_a_day(kit: Kit, alice: Agent, bob: Line) -> None:
    data = alice.signed(alice.message("request", "bob", "echo", {}))
    kit.post(data)
    for _ in range(25):
        kit.advance(3600)
    refused(kit, bob, data, 401)


def test_what_expired_is_408_and_does_not_run(kit: Kit, alice: Agent, bob: Line) -> None:
    answer = kit.post(alice.signed(alice.message("request", "bob", "echo", {}, expiresAt=kit.stamp(-1))))
    assert (answer.status, bob.got) == (408, [])


def test_an_event_that_is_replayed_is_told_once(kit: Kit, alice: Agent, bob: Line) -> None:
    bob.agent.subscribe("news.*", qos=1)
    data = alice.signed(alice.message("event", "trunkline", "said", {"n": 1}, topic="news.today", qos=1))
    for _ in range(3):
        assert kit.post(data).status == 202
    bob.acknowledge(bob.of("event")[0])
    kit.post(data)
    kit.advance(60)
    assert len(bob.of("event")) == 1


# --- encryption -------------------------------------------------------------------------------------------------------


def test_a_ciphertext_that_is_moved_to_another_message_is_400(kit: Kit, alice: Agent, eve: Agent, bob: Line) -> None:
    sealed = alice.sealed(alice.message("request", "bob", "echo", {"secret": 1}))
    for who in (alice, eve):
        stolen = who.message("request", "bob", "echo", sealed["body"]["payload"])
        refused(kit, bob, who.signed(stolen), 400)


@pytest.mark.parametrize("part", range(5))
def test_a_ciphertext_with_one_bit_changed_is_400_and_says_nothing_of_why(
    kit: Kit, alice: Agent, bob: Line, part: int
) -> None:
    sealed = alice.sealed(alice.message("request", "bob", "echo", {"secret": 1}))
    parts = sealed["body"]["payload"][sealing.MEMBER].split(".")
    data = bytearray(signing.decoded(parts[part]))
    data[len(data) // 2] ^= 1
    parts[part] = signing.encoded(bytes(data))
    sealed["body"]["payload"][sealing.MEMBER] = ".".join(parts)
    answer = post(kit, alice.signed(sealed))
    error = json.loads(answer.content)["body"]["error"]
    assert (answer.status, error["message"]) == (400, "body.payload: cannot be decrypted as part of this message")
    assert bob.got == []


def test_a_header_that_never_ends_or_a_bomb_is_400(kit: Kit, alice: Agent, bob: Line) -> None:
    for head in (b"[" * 200_000, b'{"a":' * 100_000, b'{"alg":"dir","enc":"A256GCM","zip":"DEF"}'):
        message = alice.message("request", "bob", "echo", {})
        jwe = f"{signing.encoded(head)}..AAAAAAAAAAAAAAAA.AAAA.AAAAAAAAAAAAAAAAAAAAAA"
        message["body"]["payload"] = {sealing.MEMBER: jwe}
        refused(kit, bob, alice.signed(message), 400)


def test_what_is_sensitive_and_not_encrypted_is_400(kit: Kit, alice: Agent, bob: Line) -> None:
    refused(kit, bob, alice.signed(alice.message("request", "bob", "echo", {"x": 1}, sensitive=True)), 400)


def test_what_came_encrypted_goes_on_encrypted_for_its_recipient_only(
    kit: Kit, alice: Agent, eve: Agent, bob: Line
) -> None:
    kit.post(alice.signed(alice.sealed(alice.message("request", "bob", "echo", {"secret": 1}))))
    [request] = bob.of("request")
    assert "secret" not in json.dumps(request)
    read = reading.read(json.dumps(request).encode())
    assert json.loads(bytes(sealing.open_sealed(read, bob.agent.opens))) == {"secret": 1}
    with pytest.raises(messages.Refused):
        sealing.open_sealed(read, eve.opens)


# --- acting for others ------------------------------------------------------------------------------------------------


def test_a_socket_of_another_agent_cannot_be_spoken_on(kit: Kit, alice: Agent, eve: Agent) -> None:
    socket = kit.socket()
    kit.say(socket, eve.signed(eve.message("heartbeat")))
    kit.say(socket, alice.signed(alice.message("request", "trunkline", "subscribe", {"topic": "#"})))
    assert json.loads(socket.said[-1])["body"]["error"]["code"] == 401
    assert kit.peers.reached("alice") is None
    assert kit.exchange.recorded(TopicSubscribed) == []


def opened(kit: Kit, data: bytes) -> tuple[Socket, list[str]]:
    """A socket on which this is said first, and what reaches its agent there: an action and an event."""
    socket = kit.socket()
    kit.say(socket, data)
    before = len(socket.said)
    kit.call("alice/mine", timeout_ms=1000)
    kit.advance(2)
    return socket, [json.loads(one)["header"]["type"] for one in socket.said[before:]]


@pytest.fixture
def captured(kit: Kit, alice: Agent) -> bytes:
    """What opened a socket of alice's, on which she offers something."""
    data = alice.signed(alice.message("heartbeat"))
    socket = kit.socket()
    kit.say(socket, data)
    offered = {"actions": [{"name": "mine", "input_schema": {"type": "object"}, "side_effects": False}]}
    kit.say(socket, alice.signed(alice.message("request", "trunkline", "register", offered)))
    return data


@pytest.mark.parametrize("seconds", [0, 250, 299, 301, 599, 601, 80_000])
def test_a_captured_message_makes_no_socket_its_senders(kit: Kit, alice: Agent, captured: bytes, seconds: int) -> None:
    kit.advance(seconds)
    socket, got = opened(kit, captured)
    assert got == []
    # Nor does one that never came and is that old.
    kit.say(socket, alice.signed(alice.message("heartbeat", timestamp=kit.stamp(-301))))
    kit.call("alice/mine", timeout_ms=1000)
    kit.advance(KNOWN_WITHIN_S)
    assert socket.said == []
    assert socket.goodbye == (1008, NOTHING_NEW)


def test_nor_does_one_that_came_by_post(kit: Kit, alice: Agent, captured: bytes) -> None:
    said = alice.signed(alice.message("request", "trunkline", "subscribe", {"topic": "news"}))
    replied = kit.post(said)
    socket, got = opened(kit, said)
    assert got == []
    # It is a repeat like any other, and gets the reply that it had.
    assert json.loads(socket.said[0]) == json.loads(replied.content)


def test_a_socket_that_begins_with_a_repeat_is_its_agents_with_the_first_new_message(
    kit: Kit, alice: Agent, eve: Agent, captured: bytes
) -> None:
    socket, _ = opened(kit, captured)
    kit.say(socket, eve.signed(eve.message("heartbeat")))
    assert json.loads(socket.said[-1])["body"]["error"]["code"] == 401
    kit.say(socket, alice.signed(alice.message("heartbeat")))
    kit.call("alice/mine")
    kit.advance(0)
    assert json.loads(socket.said[-1])["body"]["action"] == "mine"


def test_who_says_more_than_is_remembered_opens_sockets_with_what_is_new_and_nothing_else(
    kit: Kit, alice: Agent, captured: bytes
) -> None:
    openings = kit.peers.openings
    now = kit.exchange.now()
    for n in range(MAX_IDS + 10):
        later = Now(now.mono + n / 1000, now.wall + n / 1000)
        said = reading.read(alice.signed(alice.message("heartbeat", timestamp=stamp(later.ms))))
        assert openings.is_new(said, later)
    assert not openings.is_new(reading.read(captured), later)


@pytest.mark.parametrize("name", ["bob/evil", "../bob/evil", "bob.evil/x", "evil\n", "", "é", "a" * 65])
def test_nobody_offers_for_another_id(kit: Kit, eve: Agent, bob: Line, name: str) -> None:
    eve.connect()
    [reply] = eve.ask("request", "trunkline", "register", {"actions": [{"name": name}]})
    assert reply["body"]["error"]["code"] == 400
    assert {one.tool_id for one in kit.exchange.views.tools() if one.tool_id.startswith("bob/")} == {"bob/echo"}


def test_an_acknowledgment_by_another_agent_counts_for_nothing(kit: Kit, alice: Agent, eve: Agent, bob: Line) -> None:
    bob.agent.subscribe("news.*", qos=1)
    own = eve.connect()
    alice.ask("event", topic="news.today", payload={}, qos=1)
    [event] = bob.of("event")
    own.acknowledge(event)
    kit.advance(1.5)
    assert len(bob.of("event")) == 2
    line = alice.connect()
    alice.ask("command", "bob", "echo")
    bob.answer(bob.of("request")[-1], {})
    own.acknowledge(line.of("command_result")[0])
    kit.advance(1.5)
    assert len(line.of("command_result")) == 2


def test_an_answer_by_another_agent_ends_no_call(kit: Kit, alice: Agent, eve: Agent, bob: Line) -> None:
    replies = alice.ask("request", "bob", "echo", {}, correlationId="c")
    own = eve.connect("other")
    for kind in ("response", "command_result", "error"):
        info = {"code": 500, "message": "x", "timestamp": kit.stamp()}
        own.answer(bob.got[-1], {"forged": True}, kind, body={"error": info} if kind == "error" else {})
    eve.ask("stream_start", "alice", "echo", streamId="s", correlationId="c") if kit.peers.reached("alice") else None
    assert replies == []
    bob.answer(bob.got[-1], {"true": 1})
    assert replies[0]["body"]["payload"] == {"true": 1}


def test_a_subscription_of_another_agent_cannot_be_ended(kit: Kit, alice: Agent, eve: Agent, bob: Line) -> None:
    name = bob.agent.subscribe("news.*", qos=1)
    [reply] = eve.ask("request", "trunkline", "unsubscribe", {"subscription": name})
    assert reply["body"]["error"]["code"] in {403, 404}
    alice.ask("event", topic="news.today", payload={}, qos=1)
    assert len(bob.of("event")) == 1


def test_the_name_of_the_exchange_is_nobody_elses(kit: Kit, eve: Agent, bob: Line) -> None:
    message = eve.message("request", "bob", "echo", {})
    for name in ("trunkline", "bob", "operator", "Eve", "eve "):
        message["header"]["sender"]["agentId"] = name
        refused(kit, bob, eve.signed(message), 401)


def test_another_class_in_a_message_never_helps() -> None:
    with Kit(rate={"worker": 2, "governor": 1000}) as kit:
        eve = kit.agent("eve", "worker")
        codes = []
        for _ in range(3):
            message = eve.message("request", "zed", "echo", {})
            message["header"]["sender"]["agentType"] = "governor"
            codes.append(kit.post(eve.signed(message)).status)
        assert codes == [404, 404, 429]


def test_a_caller_of_another_protocol_cannot_write_a_header(kit: Kit, bob: Line) -> None:
    forged = {"sender": {"agentId": "alice", "agentType": "worker"}, "messageId": "x", "type": "event", "mine": 1}
    context = {"ossa": {"header": forged, "sender": {"agentId": "alice", "agentType": "governor"}, "priority": 0}}
    kit.call("bob/echo", {}, context=messages.Raw(json.dumps(context).encode()))
    header = bob.of("request")[-1]["header"]
    assert (header["sender"], header["type"], header["mine"]) == (
        {"agentId": "operator", "agentType": "integrator"}, "request", 1,
    )  # fmt: skip


def test_a_key_that_was_revoked_is_good_for_nothing_at_once(kit: Kit, alice: Agent, eve: Agent, bob: Line) -> None:
    socket = kit.socket()
    kit.say(socket, alice.signed(alice.message("request", "trunkline", "subscribe", {"topic": "news.#", "qos": 1})))
    before = len(socket.said)
    kit.exchange.revoke("ossa", "alice")
    eve.ask("event", topic="news.today", payload={"secret": 1}, qos=1)
    eve.ask("stream_start", "alice", "feed", {"secret": 1}, streamId="s")
    kit.advance(5)
    assert len(socket.said) == before
    assert socket.closed
    refused(kit, bob, alice.signed(alice.message("request", "bob", "echo", {})), 401)


# --- keeping others out -----------------------------------------------------------------------------------------------


def test_the_flood_of_one_agent_harms_nobody_else(kit: Kit, alice: Agent, eve: Agent, bob: Line) -> None:
    statuses = [kit.post(eve.signed(eve.message("request", "bob", "echo", {"n": n}))).status for n in range(300)]
    assert statuses.count(429) == 200
    asked = kit.post(alice.signed(alice.message("request", "bob", "echo", {})))
    assert len(bob.of("request")) == MAX_REQUESTS
    urgent = kit.post(alice.signed(alice.message("request", "bob", "echo", {}, priority=0)))
    for n in range(101):
        bob.answer(bob.of("request")[n], {})
        if n == MAX_REQUESTS + 1:
            kit.advance(0)
            assert urgent.status == 200
    bob.answer(bob.of("request")[-1], {})
    kit.advance(0)
    assert asked.status == 200


def test_messages_that_anybody_forges_in_the_name_of_an_agent_do_not_count_for_it(
    kit: Kit, alice: Agent, eve: Agent, bob: Line
) -> None:
    for _ in range(150):
        kit.post(signed(alice.message("request", "bob", "echo", {}), eve.key))
    kit.advance(60)
    kit.post(alice.signed(alice.message("request", "bob", "echo", {})))
    assert len(bob.got) == 1


def test_a_slow_reader_of_events_holds_nobody_back(kit: Kit, alice: Agent, eve: Agent, bob: Line) -> None:
    slow = eve.connect()
    for line in (slow, bob):
        line.agent.subscribe("news.*", qos=0)
    slow.room = 0
    for n in range(50):
        alice.ask("event", topic="news.today", payload={"n": n}, qos=0)
    assert [one["body"]["payload"]["n"] for one in bob.of("event")] == list(range(50))
    assert slow.of("event") == []


def test_a_message_to_a_hundred_is_answered_by_each_and_one_to_more_is_400(kit: Kit, alice: Agent, bob: Line) -> None:
    names = ["bob", *(f"zed-{n}" for n in range(99))]
    asked = kit.post(alice.signed(alice.message("request", names, "echo", {"x": 1})))
    bob.answer(bob.got[-1], {"y": 1})
    kit.advance(0)
    replies = json.loads(asked.content)
    assert len(replies) == 100
    assert sorted(one["header"]["sender"]["agentId"] for one in replies) == sorted(names)
    refused(kit, bob, alice.signed(alice.message("request", [*names, "more"], "echo", {})), 400)
    refused(kit, bob, alice.signed(alice.message("request", [], "echo", {})), 400)
    refused(kit, bob, alice.signed(alice.message("request", ["bob", "bob"], "echo", {})), 400)


def test_a_large_message_to_a_hundred_does_not_become_a_hundred_large_ones(kit: Kit, alice: Agent, bob: Line) -> None:
    names = ["bob", *(f"zed-{n}" for n in range(99))]
    refused(kit, bob, alice.signed(alice.message("request", names, "echo", {"x": "y" * 500_000})), 507)
    refused(kit, bob, alice.signed(alice.message("request", names, "echo", {}, mine="y" * 500_000)), 400)
    message = alice.message("request", names, "echo", {})
    message["header"]["sender"]["mine"] = "y" * 500_000
    refused(kit, bob, alice.signed(message), 400)


def test_a_socket_that_reads_nothing_keeps_nobody_else_waiting(kit: Kit, alice: Agent, eve: Agent) -> None:
    never = asyncio.Event()

    async def stuck(message: Any) -> None:
        if message["type"] == "websocket.send":
            await never.wait()

    slow: Socket = kit.socket(stuck)
    for n in range(50):
        kit.say(slow, eve.signed(eve.message("request", "zed", "echo", {"n": n})))
    assert kit.post(alice.signed(alice.message("request", "zed", "echo", {}))).status == 404

"""OSSA over HTTP and WebSocket: statuses, frames, whose a socket is, and who reads too slowly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from tests.fuzz.asgi import Socket
from tests.ossa_messages import signed
from tests.unit.edges.ossa.kit import OBJECT, Agent, Kit
from trunkline.edges.ossa import rates, serve, signing


@pytest.fixture
def kit() -> Iterator[Kit]:
    with Kit() as kit:
        yield kit


def connected(kit: Kit, agent: Agent, *actions: str) -> Socket:
    socket = kit.socket()
    kit.say(socket, agent.signed(agent.message("heartbeat")))
    if actions:
        offered = {"actions": [{"name": name, "input_schema": OBJECT, "side_effects": False} for name in actions]}
        kit.say(socket, agent.signed(agent.message("request", "trunkline", "register", offered)))
        assert heard(socket)[-1]["body"]["payload"]["registered"] == list(actions)
    return socket


def heard(socket: Socket) -> list[dict[str, Any]]:
    return [json.loads(one) for one in socket.said]


def respond(kit: Kit, socket: Socket, agent: Agent, request: dict[str, Any], payload: object) -> None:
    thread = request["header"]["correlationId"]
    kit.say(socket, agent.signed(agent.message("response", "trunkline", "x", payload, correlationId=thread)))


def test_a_request_is_answered_in_its_http_response_when_the_provider_has_answered(kit: Kit) -> None:
    alice, bob = kit.agent("alice"), kit.agent("bob")
    socket = connected(kit, bob, "echo")
    asked = kit.post(alice.signed(alice.message("request", "bob", "echo", {"x": 1})))
    assert not asked.complete
    respond(kit, socket, bob, heard(socket)[-1], {"y": 2})
    kit.advance(0)
    assert (asked.status, json.loads(asked.content)["body"]["payload"]) == (200, {"y": 2})


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (("command", "bob", "echo"), 202), (("request", "bob", "nothing"), 404), (("heartbeat",), 202),
        (("request", ["bob", "zed"], "nothing"), 200), (("request", "trunkline", "nothing"), 404),
        (("acknowledgment", "trunkline", "", {"messageId": "x"}), 202),
    ],
)  # fmt: skip
def test_statuses(kit: Kit, message: Any, status: int) -> None:
    alice, bob = kit.agent("alice"), kit.agent("bob")
    connected(kit, bob, "echo")
    answer = kit.post(alice.signed(alice.message(*message)))
    assert answer.status == status
    if status == 200:
        assert [one["body"]["error"]["code"] for one in json.loads(answer.content)] == [404, 404]
    if message[0] in {"heartbeat", "acknowledgment"}:
        assert answer.content == b""


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"a"', b"\xff", b"{}", b'{"header":{}}', b"x" * 1_048_577])
def test_what_is_no_message_is_400_and_addressed_to_nobody_known(kit: Kit, data: bytes) -> None:
    answer = kit.post(data)
    reply = json.loads(answer.content)
    assert (answer.status, reply["body"]["error"]["code"]) == (400, 400)
    assert reply["header"]["recipient"]["agentId"] == "unknown"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/ossa/v1/messages", 405), ("POST", "/x", 404), ("GET", "/ossa/v1/keys", 200)],
)
def test_routes(kit: Kit, method: str, path: str, status: int) -> None:
    assert kit.post(b"", path, method).status == status


def test_an_error_never_gets_an_error(kit: Kit) -> None:
    alice = kit.agent("alice")
    info = {"code": 400, "message": "no", "timestamp": kit.stamp()}
    message = alice.message("error", body={"error": info})
    unsigned = json.dumps(message).encode()
    bad = json.dumps({**message, "body": {"action": "error", "payload": {}}}).encode()
    for data, status in ((unsigned, 401), (bad, 400)):
        answer = kit.post(data)
        kit.advance(30)
        assert (answer.status, answer.content) == (status, b"")
    socket = connected(kit, alice)
    for data in (unsigned, bad):
        kit.say(socket, data)
    assert socket.said == []


def test_who_leaves_before_the_answer_leaves_nothing_behind(kit: Kit) -> None:
    alice, bob = kit.agent("alice"), kit.agent("bob")
    socket = connected(kit, bob, "echo")
    asked = kit.post(alice.signed(alice.message("request", "bob", "echo", {})))
    asked.give_up()
    kit.advance(0)
    assert kit.peers._tickets == {}
    assert kit.edge._server._posts == {}
    respond(kit, socket, bob, heard(socket)[-1], {})
    kit.check()


def test_an_agent_has_only_so_many_requests_waiting(kit: Kit) -> None:
    alice, bob = kit.agent("alice"), kit.agent("bob")
    connected(kit, bob, "echo")
    with patch.object(serve, "MAX_POSTS", 2):
        waiting = [kit.post(alice.signed(alice.message("request", "bob", "echo", {"n": n}))) for n in range(2)]
        refused = kit.post(alice.signed(alice.message("request", "bob", "echo", {})))
        other = kit.agent("carol")
        answered = kit.post(other.signed(other.message("request", "zed", "echo", {})))
    assert refused.status == 507
    assert answered.status == 404
    assert not any(one.complete for one in waiting)


# --- sockets ----------------------------------------------------------------------------------------------------------


def test_three_in_a_row_that_are_no_messages_close_a_socket_and_a_good_one_begins_anew(kit: Kit) -> None:
    alice = kit.agent("alice")
    socket = connected(kit, alice)
    for _ in range(2):
        kit.say(socket, b"{")
    kit.say(socket, alice.signed(alice.message("heartbeat")))
    for _ in range(2):
        kit.say(socket, b"{")
    assert not socket.closed
    kit.say(socket, b"{")
    assert socket.goodbye == (1008, "3 frames in a row that were no messages")
    assert len(heard(socket)) == 5
    assert kit.peers.reached("alice") is None


def test_a_socket_belongs_to_the_agent_of_its_first_message(kit: Kit) -> None:
    alice, eve = kit.agent("alice"), kit.agent("eve")
    socket = connected(kit, alice)
    kit.say(socket, eve.signed(eve.message("request", "trunkline", "register", {"actions": [{"name": "a"}]})))
    assert heard(socket)[-1]["body"]["error"]["code"] == 401
    assert kit.peers.reached("eve") is None
    assert kit.exchange.views.tool("eve/a") is None


def test_the_newest_socket_of_an_agent_is_used_and_the_end_of_an_older_one_changes_nothing(kit: Kit) -> None:
    bob = kit.agent("bob")
    old = connected(kit, bob, "echo")
    new = connected(kit, bob)
    old.leave()
    kit.advance(0)
    kit.call("bob/echo")
    kit.advance(0)
    assert [one["header"]["type"] for one in heard(new)] == ["request"]


def test_a_binary_frame_ends_a_socket_and_is_no_defect(kit: Kit) -> None:
    alice = kit.agent("alice")
    socket = connected(kit, alice)
    socket.say(b"\x00\x01")
    kit.advance(0)
    assert socket.goodbye == (1003, "one message in each text frame")
    assert kit.peers.reached("alice") is None
    assert kit.edge._server._sockets == set()
    kit.check()


def test_a_socket_whose_key_is_revoked_is_told_so(kit: Kit) -> None:
    socket = connected(kit, kit.agent("bob"), "echo")
    kit.exchange.revoke("ossa", "bob")
    kit.advance(0)
    assert socket.goodbye == (1008, "the key was revoked")


def test_an_agent_that_reads_nothing_is_cut_off_and_can_come_back(kit: Kit) -> None:
    alice, bob = kit.agent("alice"), kit.agent("bob")
    connected(kit, bob, "echo")
    read = asyncio.Event()

    async def stuck(message: Any) -> None:
        if message["type"] == "websocket.send":
            await read.wait()

    slow = kit.socket(stuck)
    kit.say(slow, bob.signed(bob.message("heartbeat")))
    with patch.object(serve, "MAX_WAITING_BYTES", 10_000):
        for _ in range(30):
            kit.say(slow, bob.signed(bob.message("request", "zed", "nothing", {"x": "y" * 1000})))
    assert kit.peers.reached("bob") is None
    assert kit.post(alice.signed(alice.message("request", "bob", "echo", {}))).status == 503
    connected(kit, bob, "echo")
    kit.check()


def test_what_our_code_raises_in_a_socket_is_on_record_and_ends_only_that_socket(kit: Kit) -> None:
    alice, bob = kit.agent("alice"), kit.agent("bob")
    socket, other = connected(kit, alice), connected(kit, bob)
    with patch.object(kit.peers, "peer", side_effect=KeyError("ours")):
        kit.say(socket, alice.signed(alice.message("heartbeat")))
    assert socket.closed
    assert not other.closed
    assert "defect" in kit.exchange.notices()


def test_who_waits_in_a_conversation_that_a_defect_ended_is_told(kit: Kit) -> None:
    alice, bob = kit.agent("alice"), kit.agent("bob")
    connected(kit, bob, "echo")
    asked = kit.post(alice.signed(alice.message("request", "bob", "echo", {})))
    kit.exchange.feed.failed(alice.peer().number, KeyError("ours"))
    kit.exchange.advance(0)
    assert asked.status == 500
    assert "KeyError" not in asked.content.decode()
    assert kit.edge._server._posts == {}


def test_a_socket_on_which_nothing_good_is_said_is_closed(kit: Kit) -> None:
    silent, agent = kit.socket(), kit.agent("alice")
    own = connected(kit, agent)
    kit.advance(serve.KNOWN_WITHIN_S + 1)
    assert silent.closed
    assert not own.closed


def test_an_agent_has_a_few_sockets_and_the_oldest_goes(kit: Kit) -> None:
    agent = kit.agent("alice")
    sockets = [connected(kit, agent) for _ in range(serve.MAX_SOCKETS + 2)]
    kit.advance(3)
    assert [bool(one.closed) for one in sockets] == [True, True, False, False, False, False]


def test_strangers_have_so_many_sockets_and_the_oldest_goes(kit: Kit) -> None:
    with patch.object(serve, "MAX_UNKNOWN", 3):
        sockets = [kit.socket() for _ in range(5)]
        kit.advance(3)
    assert [bool(one.closed) for one in sockets] == [True, True, False, False, False]


def test_a_flood_of_what_has_no_rate_is_read_more_slowly(kit: Kit) -> None:
    agent = kit.agent("alice")
    own = connected(kit, agent)
    with patch.object(rates, "BURST_BYTES", 2000), patch.object(rates, "BYTES_PER_S", 1000):
        for _ in range(10):
            kit.say(own, agent.signed(agent.message("heartbeat")))
        assert kit.post(agent.signed(agent.message("heartbeat"))).status == 429


@pytest.mark.parametrize(("number", "status"), [(12, 202), (1.5, 429)])
def test_numbers_that_take_long_to_check_count_for_more(kit: Kit, number: float, status: int) -> None:
    agent = kit.agent("alice")
    own = connected(kit, agent)
    with patch.object(rates, "BURST_BYTES", 30_000), patch.object(rates, "BYTES_PER_S", 1000):
        for _ in range(10):
            kit.say(own, agent.signed(agent.message("heartbeat", payload={"n": number})))
        assert kit.post(agent.signed(agent.message("heartbeat", payload={"n": number}))).status == status


def test_who_names_no_key_is_answered_more_slowly_each_time_also_on_sockets(kit: Kit) -> None:
    agent = kit.agent("alice")
    own = connected(kit, agent)
    strange = signed(agent.message("heartbeat"), signing.key_of(b"s" * 32))
    first, second = kit.socket(), kit.socket()
    kit.say(first, strange)
    kit.say(second, strange)
    assert (len(heard(first)), len(heard(second))) == (1, 0)
    # Nobody else waits, and who proved who he is does not.
    kit.say(own, strange)
    assert [one["body"]["error"]["code"] for one in heard(own)] == [401]
    kit.advance(0.2)
    assert len(heard(second)) == 1

"""Who speaks OSSA with us: who they are, streams between them, and who is forgotten."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ossa_messages import signed
from tests.unit.edges.ossa.kit import Agent, Kit, finished, refusal
from trunkline import entries
from trunkline.edges.ossa import reading, signing
from trunkline.edges.ossa.peers import FORGET_S
from trunkline.events import SettingsChanged, SubscriptionEnded
from trunkline.model import LATEST_MS, Decision, HubSettings, Policy, Rule
from trunkline.testing.memory import BOSS


@pytest.fixture
def kit() -> Kit:
    return Kit()


def stream(agent: Agent, to: str | list[str], *pieces: int, name: str = "s", end: int | None = None) -> None:
    agent.ask("stream_start", to, "feed", {"contentType": "text/plain"}, streamId=name)
    for n in pieces:
        agent.ask("stream_data", to, "feed", {"n": n}, streamId=name, sequence=n)
    if end is not None:
        agent.ask("stream_end", to, "feed", streamId=name, sequence=end)


def open_streams(kit: Kit) -> list[str]:
    return list(kit.exchange.views.open_steps("ossa.streams"))


def test_a_number_is_handed_on_as_it_was_signed_and_not_as_somebody_wrote_it_since(kit: Kit) -> None:
    alice = kit.agent("alice")
    data = alice.signed(alice.message("request", "bob", "work", {"n": 9007199254740991, "part": 0.5}))
    written = data.replace(b"9007199254740991", b"9007199254740991.4").replace(b"0.5", b"0.49999999999999999999")
    read = finished(kit.peers.identities.read(written)).message
    assert bytes(read.payload) == b'{"n":9007199254740991.0,"part":0.5}'
    assert read.signature == json.loads(data)["signature"]


LARGE = "x" * 20_000


def test_a_large_message_of_a_stranger_is_refused_before_it_is_read(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = kit.agent("alice")
    message = alice.message("request", "bob", "work", {"text": LARGE, "signature": "not a message's"})
    stranger = signed(message, signing.key_of(b"s" * 32))
    unread = [stranger, json.dumps(message).encode(), b'{"a":' + json.dumps(LARGE).encode() + b',"signature":"x..y"}']
    with monkeypatch.context() as patched:
        patched.setattr(reading, "read", lambda *_, **__: pytest.fail("it was read"))
        codes = [refusal(finished, kit.peers.identities.read(data)).error_code for data in (*unread, b"[" * 20_000)]
    assert codes == [401, 401, 401, 400]


async def test_a_large_message_of_an_agent_is_read_wherever_its_signature_stands(kit: Kit) -> None:
    alice = kit.agent("alice")
    data = json.loads(alice.signed(alice.message("request", "bob", "work", {"text": LARGE, "signature": "e30..e30"})))
    turned = json.dumps({"signature": data["signature"], **data}, indent=1).encode()
    for one in (json.dumps(data).encode(), turned):
        assert len((await kit.peers.identities.read(one)).message.payload) > len(LARGE)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_to_each_of_its_recipients_in_order_and_is_on_record(kit: Kit) -> None:
    alice = kit.agent("alice")
    lines = [kit.agent(name).connect() for name in ("bob", "carol")]
    stream(alice, ["bob", "carol"], 0, 2)
    assert open_streams(kit) == ["alice/s"]
    alice.ask("stream_data", ["bob", "carol"], "feed", {"n": 1}, streamId="s", sequence=1)
    alice.ask("stream_end", ["bob", "carol"], "feed", streamId="s", sequence=3)
    for line in lines:
        assert [one["header"]["type"] for one in line.got] == ["stream_start", *["stream_data"] * 3, "stream_end"]
        assert [one["body"]["payload"]["n"] for one in line.of("stream_data")] == [0, 1, 2]
        assert {one["header"]["sender"]["agentId"] for one in line.got} == {"alice"}
    assert open_streams(kit) == []


def test_a_gap_is_reported_with_a_nack_that_names_what_showed_it(kit: Kit) -> None:
    kit.agent("bob").connect()
    alice = kit.agent("alice")
    own = alice.connect()
    stream(alice, "bob", 0)
    message = alice.message("stream_data", "bob", "feed", {}, streamId="s", sequence=5)
    alice.send(message)
    [nack] = own.of("negative_acknowledgment")
    assert nack["body"]["payload"] == {"messageId": message["header"]["messageId"]}
    assert nack["body"]["error"]["code"] == 400


def test_who_gets_a_stream_of_an_agent_that_reads_strangers_words_is_labelled(kit: Kit) -> None:
    everything = Policy((Rule("all", "*", "*", Decision.ALLOW),), "v")
    kit.exchange.feed.feed([SettingsChanged(HubSettings(everything, untrusted_agents=frozenset({"alice"})))])
    alice, bob, carol = kit.agent("alice"), kit.agent("bob"), kit.agent("carol")
    lines = [agent.connect() for agent in (bob, carol)]
    stream(alice, "bob", 0, end=1)
    assert [len(line.got) for line in lines] == [3, 0]
    assert [entry.agents for entry in kit.exchange.recorded(entries.AgentsLabelled)] == [{"bob": ()}]


def test_an_idle_stream_is_closed_with_408_on_the_wire_and_on_record(kit: Kit) -> None:
    kit.agent("bob").connect()
    alice = kit.agent("alice")
    own = alice.connect()
    stream(alice, "bob", 0)
    kit.advance(310)
    assert [one["body"]["error"]["code"] for one in own.of("error")] == [408]
    assert open_streams(kit) == []
    own.leave()
    assert alice.peer().is_idle
    assert len(alice.peer().streams) == 0


def test_a_stream_that_was_open_at_a_restart_is_not_open_for_ever(kit: Kit) -> None:
    kit.agent("bob").connect()
    stream(kit.agent("alice"), "bob", 0)
    kit.exchange.store()
    assert open_streams(kit) == ["alice/s"]
    assert open_streams(kit.restarted()) == []


def test_a_stream_to_nobody_or_that_policy_denies_has_not_begun() -> None:
    kit = Kit(Policy((Rule("no", "*", "bob/secret", Decision.DENY), Rule("all", "*", "*", Decision.ALLOW)), "v"))
    alice = kit.agent("alice")
    assert refusal(stream, alice, "zed").error_code == 503
    kit.agent("bob").connect("secret")
    message = alice.message("stream_start", "bob", "secret", {}, streamId="t")
    assert refusal(alice.send, message).error_code == 403
    assert len(alice.peer().streams) == 0
    assert open_streams(kit) == []


def test_a_stream_of_a_call_s_correlation_is_its_progress(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    called = kit.call("bob/echo", correlation_id="c")
    bob.ask("stream_start", "trunkline", "echo", streamId="s", correlationId="c")
    for n in range(2):
        bob.ask("stream_data", "trunkline", "echo", {"n": n}, streamId="s", correlationId="c", sequence=n)
    bob.ask("stream_end", "trunkline", "echo", streamId="s", correlationId="c", sequence=2)
    line.answer(line.got[-1], {})
    shown = [json.loads(bytes(one.data)) for one in called.progress]
    assert shown[:2] == [{"json": {"n": 0}}, {"json": {"n": 1}}]
    assert open_streams(kit) == []


# --- ways -------------------------------------------------------------------------------------------------------------


class Urls:
    """Stands for what posts to URLs."""

    has_room = True

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes, _: Any) -> None:
        self.sent.append(data)


def test_an_agent_with_a_url_is_reached_by_it_again_when_its_socket_ended() -> None:
    kit, urls = Kit(), Urls()
    kit.edge.reach = lambda peer, _: peer.attach(urls, "url")
    bob = kit.agent("bob", url="https://bob.example/in")
    line = bob.connect("echo")
    kit.call("bob/echo")
    assert (len(line.of("request")), len(urls.sent)) == (1, 0)
    line.leave()
    assert kit.peers.reached("bob") is not None
    kit.advance(3)
    assert len(urls.sent) == 1


def test_an_agent_with_a_url_offers_the_same_after_a_restart() -> None:
    kit = Kit()
    bob = kit.agent("bob", url="https://bob.example/in")
    bob.connect("echo")
    later = kit.restarted()
    assert later.peers.by_agent["bob"].tools.keys() == {"bob/echo"}


@pytest.mark.parametrize("is_signed", [True, False])
def test_who_has_a_key_of_an_id_that_is_the_exchanges_own_is_nobody(is_signed: bool) -> None:
    kit = Kit(require_signature=False)
    agent = kit.agent("plain")
    # None is made any more; a record from before that may hold one.
    state = kit.exchange.hub.state
    state.tokens = {name: replace(token, agent="space.x") for name, token in state.tokens.items()}
    kit.exchange.hub.credentials.index()
    agent.name = "space.x"
    message = agent.message("request", "bob", "greet")
    data = agent.signed(message) if is_signed else json.dumps(message).encode()
    assert refusal(agent.send, data).error_code == 401


def test_a_key_that_is_revoked_ends_what_its_agent_has_and_may(kit: Kit) -> None:
    bob = kit.agent("bob")
    bob.connect("echo")
    kit.exchange.revoke("ossa", "bob")
    assert kit.peers.reached("bob") is None
    assert refusal(bob.ask, "heartbeat").error_code == 401


def test_an_agent_whose_key_was_revoked_is_admitted_at_once_with_a_new_one(kit: Kit) -> None:
    kit.agent("bob").connect("echo")
    kit.exchange.revoke("ossa", "bob")
    bob = kit.agent("bob")
    bob.connect("echo", "hello")
    assert kit.call("bob/hello").answer is None
    assert kit.peers.reached("bob") is bob.peer()


def test_what_was_published_while_a_subscriber_had_no_key_is_told_on_its_first_connection_with_a_new_one(
    kit: Kit,
) -> None:
    line = kit.agent("bob").connect()
    line.agent.subscribe("news", durable=True)
    line.leave()
    kit.exchange.revoke("ossa", "bob")
    kit.call("trunkline/publish", {"topic": "news", "payload": 1, "qos": 1})
    assert [one["body"]["payload"] for one in kit.agent("bob").connect().of("event")] == [1]


# --- who is forgotten -------------------------------------------------------------------------------------------------


def test_who_said_nothing_for_long_and_waits_for_nothing_is_forgotten(kit: Kit) -> None:
    alice = kit.agent("alice")
    alice.ask("heartbeat")
    busy = kit.agent("busy")
    busy.connect()
    kit.advance(FORGET_S + 1)
    kit.agent("new").ask("heartbeat")
    assert kit.peers.by_agent.keys() == {"busy", "new"}


def test_answers_acks_and_events_that_nobody_asked_for_leave_nothing_behind(kit: Kit) -> None:
    alice = kit.agent("alice")
    alice.connect()
    for kind in ("response", "command_result", "acknowledgment", "negative_acknowledgment"):
        alice.ask(kind, payload={"messageId": kit.new_id()}, correlationId=f"x-{kind}")
    assert kit.peers._tickets == {}
    assert len(alice.peer().asker) == 0


@pytest.mark.slow
def test_early_answers_are_kept_within_bounds(kit: Kit) -> None:
    alice = kit.agent("alice")
    alice.connect()
    for n in range(400):
        alice.ask("response", payload={"x": "y" * 15_000}, correlationId=f"x-{n}")
    attachment = alice.peer().attachment
    assert attachment is not None
    early = attachment.provider._early
    assert early._bytes <= 4_194_304
    assert early._bytes == sum(len(one.payload) for one in early._found.values())


def code(reply: dict[str, Any]) -> int | None:
    """The code of a reply that is an error."""
    found: int | None = reply["body"].get("error", {}).get("code")
    return found


def test_an_agent_that_offers_actions_again_and_again_is_told_to_wait(kit: Kit) -> None:
    bob = kit.agent("bob")
    bob.connect()
    actions = [{"name": f"a{n}"} for n in range(200)]
    codes = [code(bob.ask("request", "trunkline", "register", {"actions": actions})[0]) for _ in range(20)]
    assert codes[0] is None
    assert codes[-1] == 429
    kit.advance(60)
    assert code(bob.ask("request", "trunkline", "register", {"actions": actions})[0]) is None


def test_an_offer_whose_socket_ends_before_it_is_on_disk_is_answered_all_the_same(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect()
    kit.exchange.disk_rests = True
    replies = bob.ask("request", "trunkline", "register", {"actions": [{"name": "echo"}]}, correlationId="c")
    line.leave()
    kit.exchange.disk_rests = False
    kit.exchange.store()
    kit.advance(1)
    assert len(replies) == 1
    assert len(bob.peer().asker) == 0


def test_an_offer_that_is_refused_leaves_the_one_before_it(kit: Kit) -> None:
    bob = kit.agent("bob")
    line = bob.connect("echo")
    again = {"name": "echo", "description": "another", "input_schema": {"type": "array"}}
    [reply] = bob.ask("request", "trunkline", "register", {"actions": [again]})
    assert reply["body"]["payload"]["rejected"].keys() == {"echo"}
    line.leave()
    line = bob.connect()
    kit.call("bob/echo")
    assert len(line.of("request")) == 1


@pytest.mark.parametrize("when", ["9999-12-31T23:59:59-23:59", "10000-01-01T00:00:00Z"])
def test_a_time_that_cannot_be_written_down_is_400(kit: Kit, when: str) -> None:
    alice = kit.agent("alice")
    refused = refusal(alice.ask, "event", "trunkline", "e", {}, topic="news", qos=1, expiresAt=when)
    assert refused.error_code == 400


def test_an_event_that_expires_at_the_end_of_time_is_told_and_ends_nobody(kit: Kit) -> None:
    line = kit.agent("bob").connect()
    line.agent.ask("request", "trunkline", "subscribe", {"topic": "news", "qos": 1})
    for expires_ms in (LATEST_MS, LATEST_MS + 1, 10**15):
        kit.call("trunkline/publish", {"topic": "news", "payload": 1, "qos": 1, "expires_ms": expires_ms})
    assert [one["header"]["expiresAt"] for one in line.of("event")] == ["9999-12-31T23:59:59.999Z"]
    kit.check()


@pytest.mark.parametrize("kind", ["stream_start", "response", "heartbeat", "acknowledgment"])
def test_what_expired_and_gets_no_reply_is_dropped_and_recorded(kit: Kit, kind: str) -> None:
    line = kit.agent("bob").connect()
    more = {"streamId": "s"} if kind == "stream_start" else {}
    line.agent.ask(kind, "trunkline", kind, {}, expiresAt=kit.stamp(-1), **more)
    assert [entry.code for entry in kit.exchange.recorded(entries.Noticed)] == ["message.expired"]
    assert len(line.agent.peer().streams) == 0


def test_events_of_a_subscription_that_the_operator_ended_are_neither_sent_nor_told_again(kit: Kit) -> None:
    alice, bob = kit.agent("alice"), kit.agent("bob")
    line = bob.connect()
    name, other = bob.subscribe("news"), bob.subscribe("other")
    for number in range(2):  # the second waits for the first: they have one correlation
        alice.ask("event", payload=number, topic="news", qos=1, correlationId="c")
    assert len(line.of("event")) == 1
    kit.exchange.feed.feed([SubscriptionEnded(0, "", BOSS, name)])
    kit.advance(120)
    assert len(line.of("event")) == 1
    alice.ask("event", payload=2, topic="other", qos=1, correlationId="c")
    assert [one["header"]["subscription"] for one in line.of("event")] == [name, other]


def test_who_was_told_an_event_and_whose_key_was_revoked_is_not_told_it_again(kit: Kit) -> None:
    line = kit.agent("bob").connect()
    line.agent.subscribe("news", durable=True)
    kit.call("trunkline/publish", {"topic": "news", "payload": 1, "qos": 1})
    assert len(line.of("event")) == 1
    kit.exchange.revoke("ossa", "bob")
    kit.advance(60)
    assert len(line.of("event")) == 1


@pytest.mark.parametrize("registered", [True, False])
def test_a_stream_to_an_agent_is_denied_by_a_rule_whether_or_not_its_action_is_registered(registered: bool) -> None:
    policy = Policy((Rule("no", "ossa:eve", "bob/*", Decision.DENY), Rule("all", "*", "*", Decision.ALLOW)), "v")
    kit = Kit(policy)
    line, eve = kit.agent("bob").connect(*(["feed"] if registered else [])), kit.agent("eve")
    refused = refusal(eve.ask, "stream_start", "bob", "feed", {}, streamId="s")
    assert refused.error_code == 403
    assert line.of("stream_start") == []
    assert len(eve.peer().streams) == 0

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from trunkline.edges.pusher import session as sessions
from trunkline.edges.pusher.frames import Code
from trunkline.edges.pusher.presence import MAX_MEMBERS, Member, Members
from trunkline.edges.pusher.session import ClientEvent, PusherSession, Subscribed, Unsubscribed
from trunkline.edges.pylon.messages import CHANNELS
from trunkline.model import Now

SECRET = b"tlk_secret"
MAX_WAITING_BYTES = 33_554_432


class Peer:
    """A session, and a clock."""

    def __init__(self) -> None:
        self.at = 100.0
        self.session = PusherSession(CHANNELS, "1.2", "local-key", SECRET, self.now(), MAX_WAITING_BYTES)
        self.welcome = self.said()

    def now(self) -> Now:
        return Now(self.at, self.at)

    def say(self, event: str, data: object = None, channel: str | None = None) -> Any:
        message = {"event": event, "data": data, "channel": channel}
        wanted = {name: value for name, value in message.items() if value is not None}
        return self.session.receive(json.dumps(wanted).encode(), self.now())

    def said(self) -> list[tuple[str, Any]]:
        found = []
        while (data := self.session.take_output()) is not None:
            frame = json.loads(data)
            value = frame["data"]
            found.append((frame["event"], json.loads(value) if isinstance(value, str) else value))
        return found

    def subscribe(self, channel: str, **more: object) -> Any:
        return self.say("pusher:subscribe", {"channel": channel, **more})

    def wake(self, at: float) -> None:
        self.at = at
        self.session.wake(self.now())


def signed(channel: str, channel_data: str = "", socket_id: str = "1.2", secret: bytes = SECRET) -> str:
    """A signature as Pusher's documentation tells to make it."""
    text = ":".join(part for part in (socket_id, channel, channel_data) if part)
    return "local-key:" + hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


@requirement("OA-035")
def test_the_first_word_is_a_welcome_and_a_ping_gets_its_pong() -> None:
    peer = Peer()
    assert peer.welcome == [("pusher:connection_established", {"socket_id": "1.2", "activity_timeout": 120})]
    for data in (None, "", {}, "{}"):
        assert peer.say("pusher:ping", data) is None
        assert peer.said() == [("pusher:pong", {})]
    peer.say("pusher:pong", "")
    assert peer.said() == []


@pytest.mark.parametrize("channel", ["pylon.system", "pylon.codex"])
@requirement("OA-019", "OA-020")
def test_both_channels_can_be_subscribed_to_and_left(channel: str) -> None:
    peer = Peer()
    assert peer.subscribe(channel) == Subscribed(channel)
    peer.session.confirm(channel, {})
    assert peer.said() == [("pusher_internal:subscription_succeeded", {})]
    assert peer.session.listens_to(channel)
    peer.subscribe(channel)
    assert peer.said()[0][1]["code"] == 4300
    assert peer.say("pusher:unsubscribe", {"channel": channel}) == Unsubscribed(channel)
    assert not peer.session.listens_to(channel)
    assert peer.say("pusher:unsubscribe", {"channel": channel}) is None
    assert peer.session.code is None


@pytest.mark.parametrize("channel", ["pylon", "other", "", 7, None, "private-other", "pylon.system.x"])
def test_another_channel_is_an_error_and_the_connection_stays(channel: object) -> None:
    peer = Peer()
    assert peer.subscribe(channel) is None  # type: ignore[arg-type]
    [(event, data)] = peer.said()
    assert (event, data["code"], peer.session.code) == ("pusher:error", 4300, None)


def test_a_private_channel_needs_a_signature_for_this_very_connection() -> None:
    channel = "private-pylon.codex"
    for wrong in (
        None,
        "",
        7,
        signed(channel, secret=b"other"),
        signed(channel, socket_id="1.3"),
        signed("private-pylon.system"),
        signed(channel).removeprefix("local-key:"),
        "other" + signed(channel).removeprefix("local-key"),
    ):
        peer = Peer()
        assert peer.subscribe(channel, auth=wrong) is None
        [(event, data)] = peer.said()
        assert (event, data["status"]) == ("pusher:subscription_error", 401)
    peer = Peer()
    assert peer.subscribe(channel, auth=signed(channel)) == Subscribed(channel)


def test_a_presence_channel_has_a_member_whose_data_is_signed() -> None:
    channel = "presence-pylon.system"
    about = json.dumps({"user_id": "u1", "user_info": {"name": "Ann"}})
    peer = Peer()
    found = peer.subscribe(channel, auth=signed(channel, about), channel_data=about)
    assert found == Subscribed(channel, Member("u1", {"name": "Ann"}))
    other = json.dumps({"user_id": "root"})
    for channel_data, auth in ((other, signed(channel, about)), (None, signed(channel)), ("[]", signed(channel, "[]"))):
        peer = Peer()
        assert peer.subscribe(channel, auth=auth, channel_data=channel_data) is None
        assert peer.said()[0][0] == "pusher:subscription_error"


def test_client_events_are_taken_on_a_channel_that_was_subscribed_to_and_of_the_kinds_it_has() -> None:
    peer = Peer()
    assert peer.say("client-pylon.ping", {}, "pylon.system") is None
    assert peer.said()[0][1]["code"] == 4300
    peer.subscribe("pylon.system")
    assert peer.say("client-pylon.ping", {}, "pylon.system") == ClientEvent("pylon.system", "client-pylon.ping", {})
    for event, channel in (
        ("client-codex.connect", "pylon.system"),
        ("client-pylon.ping", "pylon.codex"),
        ("client-other", "pylon.system"),
        ("client-pylon.ping", None),
    ):
        assert peer.say(event, {}, channel) is None
        assert peer.said()[0][1]["code"] == 4300
    channel = "private-pylon.system"
    peer.subscribe(channel, auth=signed(channel))
    assert peer.say("client-pylon.ping", "", channel) == ClientEvent("pylon.system", "client-pylon.ping", {})


def test_too_many_client_events_are_dropped_and_that_is_told_once_a_second() -> None:
    peer = Peer()
    peer.subscribe("pylon.system")
    taken = sum(peer.say("client-pylon.ping", {}, "pylon.system") is not None for _ in range(500))
    assert taken == sessions.EVENTS_AT_ONCE
    assert [data["code"] for _, data in peer.said()] == [4301]
    peer.at += 2.0
    assert sum(peer.say("client-pylon.ping", {}, "pylon.system") is not None for _ in range(500)) == 20
    assert peer.session.code is None


def test_a_flood_of_anything_else_is_dropped_too() -> None:
    peer = Peer()
    for _ in range(5000):
        peer.say("pusher:ping")
    said = peer.said()
    assert [event for event, _ in said].count("pusher:pong") == sessions.FRAMES_AT_ONCE
    assert len(said) == sessions.FRAMES_AT_ONCE + 1


@requirement("OA-016")
def test_whoever_speaks_nostr_is_refused_and_in_the_end_sent_away() -> None:
    peer = Peer()
    for _ in range(sessions.MAX_BAD):
        assert peer.session.code is None
        assert peer.session.receive(b'["REQ", "all", {"kinds": [5050]}]', peer.now()) is None
    assert peer.session.code is Code.NOT_PUSHER
    said = peer.said()
    assert {event for event, _ in said} == {"pusher:error"}
    assert said[-1][1]["code"] == 4099


def test_a_good_message_makes_up_for_bad_ones() -> None:
    peer = Peer()
    for _ in range(5):
        for _ in range(sessions.MAX_BAD - 1):
            peer.session.receive(b"[]", peer.now())
        peer.say("pusher:ping")
    assert peer.session.code is None


def test_silence_is_asked_about_and_then_ends_the_connection() -> None:
    peer = Peer()
    assert peer.session.wake_at() == 220.0
    peer.wake(219.9)
    assert peer.said() == []
    peer.wake(220.0)
    assert peer.said() == [("pusher:ping", {})]
    peer.say("pusher:pong")
    assert peer.session.wake_at() == 340.0
    peer.wake(340.0)
    peer.wake(370.0)
    assert peer.session.code is Code.NO_PONG
    assert [event for event, _ in peer.said()] == ["pusher:ping", "pusher:error"]
    assert peer.session.wake_at() is None
    peer.wake(1000.0)


def test_what_waits_for_one_that_does_not_read_is_bounded() -> None:
    peer = Peer()
    peer.subscribe("pylon.codex")
    piece = json.dumps("é" * 1_000_000)
    held = 0
    while peer.session.code is None:
        peer.session.tell("pylon.codex", "pylon.codex.event", piece)
        held += 1
        assert held < 100
    assert peer.session.code is Code.TOO_SLOW
    assert held * 6_000_000 <= MAX_WAITING_BYTES + 12_000_000
    assert peer.said() == []


def test_after_the_end_nothing_is_said_or_heard() -> None:
    peer = Peer()
    peer.subscribe("pylon.system")
    peer.session.end(Code.STOPPING, "the end")
    peer.session.end(Code.DEFECT, "again")
    peer.session.tell("pylon.system", "pylon.capabilities", "{}")
    assert peer.say("pusher:ping") is None
    assert peer.said() == [("pusher:error", {"code": 4101, "message": "the end"})]
    assert peer.session.code is Code.STOPPING


def test_what_is_told_on_a_channel_is_told_under_each_name_it_was_subscribed_by() -> None:
    peer = Peer()
    peer.subscribe("pylon.system")
    peer.subscribe("private-pylon.system", auth=signed("private-pylon.system"))
    peer.session.tell("pylon.system", "pylon.capabilities", "{}")
    peer.session.tell("pylon.codex", "pylon.codex.event", "{}")
    assert len(peer.said()) == 2


@pytest.mark.parametrize("code", list(Code))
def test_each_code_is_in_the_range_that_says_what_a_client_does(code: Code) -> None:
    stays = {Code.NOT_TAKEN, Code.RATE}
    gives_up = {Code.NO_SUCH_APP, Code.PATH_NOT_FOUND, Code.BAD_VERSION, Code.UNSUPPORTED_VERSION}
    gives_up |= {Code.NOT_AUTHORIZED, Code.NOT_PUSHER}
    at_once = {Code.DEFECT, Code.NO_PONG}
    expected = 43 if code in stays else 40 if code in gives_up else 42 if code in at_once else 41
    assert code // 100 == expected


def test_members_come_with_their_first_connection_and_go_with_their_last() -> None:
    members = Members()
    assert members.try_join("1.1", Member("u", {"n": 1})) is True
    assert members.try_join("1.2", Member("u", {"n": 2})) is False
    assert members.roster() == {"presence": {"count": 1, "ids": ["u"], "hash": {"u": {"n": 1}}}}
    assert members.leave("1.1") == ""
    assert members.leave("1.2") == "u"
    assert members.leave("1.2") == ""
    for n in range(MAX_MEMBERS):
        assert members.try_join(f"2.{n}", Member(str(n)))
    assert members.try_join("3.1", Member("one more")) is None
    assert members.try_join("3.2", Member("5")) is False


EVENTS = st.sampled_from(
    ["pusher:ping", "pusher:pong", "pusher:subscribe", "pusher:unsubscribe", "pusher:signin", "client-pylon.ping",
     "client-codex.connect", "client-x", "x", ""]
)  # fmt: skip
PLACES = st.sampled_from(["pylon.system", "pylon.codex", "private-pylon.codex", "presence-pylon.system", "x", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10) | PLACES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["channel", "auth", "channel_data", "user_id", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FRAMES = st.fixed_dictionaries({}, optional={"event": EVENTS | VALUES, "channel": PLACES | VALUES, "data": VALUES})


@given(st.lists(st.binary(max_size=40) | FRAMES.map(lambda frame: json.dumps(frame).encode()), max_size=30))
def test_nothing_that_a_stranger_sends_raises(frames: list[bytes]) -> None:
    peer = Peer()
    for data in frames:
        peer.session.receive(data, peer.now())
        assert set(peer.session.channels) <= {"pylon.system", "pylon.codex"}, "nothing here is signed"
    for event, _ in peer.said():
        assert event in {"pusher:pong", "pusher:error", "pusher:subscription_error"}

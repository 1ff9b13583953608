"""One relay as we talk to it: what is said again, when, and what is given up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.nostr import events, session
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.session import Came, Filter, Refused, RelaySession, Remarked, Said, Stored, Taken
from trunkline.model import Now

SIGNER = Signer(bytes(31) + b"\x01")
URL = "ws://relay.example"


def at(seconds: float) -> Now:
    return Now(seconds, 1_000_000 + seconds)


def said_by_us(text: str = "") -> Event:
    return events.signed(Draft(7000, text, (), 1), SIGNER)


def made(*, connected: bool = True) -> RelaySession:
    relay = RelaySession(URL, lambda draft: events.signed(draft, SIGNER))
    if connected:
        relay.connected(at(0))
    return relay


def frames(relay: RelaySession) -> list[Any]:
    return [json.loads(frame) for frame in relay.take_output()]


def hear(relay: RelaySession, *words: object, seconds: float = 0.0) -> list[Said]:
    return relay.receive(json.dumps(words).encode(), at(seconds))


def test_what_is_wanted_is_asked_for_on_each_connection_with_filters_of_that_time() -> None:
    relay = made(connected=False)
    relay.subscribe("a", lambda now: [Filter(kinds=(1, 2), since=int(now.wall)), Filter(p=("x",), limit=3)], at(0))
    assert frames(relay) == []
    relay.connected(at(1))
    assert frames(relay) == [["REQ", "a", {"kinds": [1, 2], "since": 1_000_001}, {"#p": ["x"], "limit": 3}]]
    relay.lost()
    relay.connected(at(50))
    assert frames(relay)[0][2]["since"] == 1_000_050


def test_events_come_for_what_is_wanted_only() -> None:
    relay = made()
    relay.subscribe("a", lambda now: [Filter()], at(0))
    assert hear(relay, "EVENT", "a", {"x": 1}) == [Came("a", b'{"x": 1}')]
    assert hear(relay, "EVENT", "b", {"x": 1}) == []
    assert hear(relay, "EOSE", "a") == [Stored("a")]
    relay.take_output()
    relay.unsubscribe("a")
    assert frames(relay) == [["CLOSE", "a"]]
    assert hear(relay, "EVENT", "a", {"x": 1}) == []


def test_an_event_is_said_again_until_it_is_taken() -> None:
    relay, event = made(), said_by_us()
    relay.publish(event, at(0))
    frame = ["EVENT", json.loads(events.encoded(event))]
    assert frames(relay) == [frame]
    assert relay.wake_at() == 5.0
    assert relay.wake(at(4)) == []
    assert frames(relay) == []
    relay.wake(at(5))
    assert frames(relay) == [frame]
    assert relay.wake_at() == 15.0
    assert hear(relay, "OK", event.id, True, "") == [Taken(event.id)]
    assert relay.wake_at() is None
    assert hear(relay, "OK", event.id, True, "") == []
    assert len(relay) == 0


@pytest.mark.parametrize("reason", ["rate-limited: slow", "error: disk", "auth-required: who"])
def test_a_relay_that_says_later_is_told_later(reason: str) -> None:
    relay, event = made(), said_by_us()
    relay.publish(event, at(0))
    relay.take_output()
    assert hear(relay, "OK", event.id, False, reason) == []
    relay.wake(at(5))
    assert len(frames(relay)) == 1


def test_a_relay_that_has_it_already_has_taken_it_and_one_that_will_not_has_refused_it() -> None:
    relay, one, two = made(), said_by_us("1"), said_by_us("2")
    relay.publish(one, at(0))
    relay.publish(two, at(0))
    assert hear(relay, "OK", one.id, False, "duplicate: have it") == [Taken(one.id)]
    assert hear(relay, "OK", two.id, False, "blocked: no") == [Refused(two.id, "blocked: no")]


def test_what_is_owed_outlives_a_connection_and_is_given_up_after_an_hour() -> None:
    relay, event = made(connected=False), said_by_us()
    relay.publish(event, at(0))
    relay.connected(at(10))
    assert len(frames(relay)) == 1
    relay.lost()
    relay.connected(at(20))
    assert len(frames(relay)) == 1
    moment = 20.0
    given_up: list[Said] = []
    while not given_up:
        wake_at = relay.wake_at()
        assert wake_at is not None
        moment = wake_at
        given_up = relay.wake(at(moment))
    assert given_up == [Refused(event.id, "the relay did not take it in time")]
    assert 3600 <= moment <= 3670


def test_of_too_many_the_oldest_is_given_up() -> None:
    relay = made()
    sent = [said_by_us(str(number)) for number in range(session.MAX_OWED + 1)]
    for event in sent:
        relay.publish(event, at(0))
    assert len(relay) == session.MAX_OWED
    assert hear(relay, "NOTICE", "x")[0] == Refused(sent[0].id, "too many events wait for this relay")


def test_a_relay_is_told_who_we_are_and_then_again_what_it_refused() -> None:
    relay, event = made(), said_by_us()
    relay.subscribe("a", lambda now: [Filter()], at(0))
    relay.publish(event, at(0))
    relay.take_output()
    assert hear(relay, "AUTH", "challenge-1") == []
    [[verb, answer]] = frames(relay)
    auth = events.read(json.dumps(answer).encode())
    assert (verb, auth.kind, auth.value("relay"), auth.value("challenge")) == ("AUTH", 22_242, URL, "challenge-1")
    hear(relay, "CLOSED", "a", "auth-required: who")
    hear(relay, "OK", event.id, False, "auth-required: who")
    assert frames(relay) == []
    hear(relay, "OK", auth.id, True, "")
    assert [frame[0] for frame in frames(relay)] == ["REQ", "EVENT"]


def test_a_relay_that_asks_who_we_are_again_and_again_is_told_a_few_times_on_each_connection() -> None:
    relay, event = made(), said_by_us()
    relay.publish(event, at(0))
    relay.take_output()
    for number in range(session.MAX_AUTHS + 5):
        hear(relay, "AUTH", f"challenge-{number}")
    said = frames(relay)
    assert len(said) == session.MAX_AUTHS
    for _ in range(5):
        hear(relay, "OK", said[-1][1]["id"], True, "")
    assert [frame[0] for frame in frames(relay)] == ["EVENT"]
    relay.connected(at(1))
    hear(relay, "AUTH", "again")
    assert frames(relay)[-1][0] == "AUTH"


def test_a_subscription_that_the_relay_ends_is_asked_for_again_half_a_minute_later() -> None:
    relay = made()
    relay.subscribe("a", lambda now: [Filter()], at(0))
    relay.take_output()
    hear(relay, "CLOSED", "a", "error: shutting down", seconds=10)
    assert relay.wake_at() == 40.0
    relay.wake(at(40))
    assert frames(relay) == [["REQ", "a", {}]]


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"x", b"{}", b"[]", b"[1]", b'["EVENT"]', b'["EVENT","a"]', b'["OK","a"]', b'["OK","a",1]', b'["AUTH"]',
        b'["AUTH",{}]', b'["CLOSED"]', b'["NEW","a"]', b"\xff\xfe", b"[" * 100_000, b'["NOTICE",1]',
    ],
)  # fmt: skip
def test_a_frame_that_is_no_message_is_remarked_on(frame: bytes) -> None:
    relay = made()
    relay.subscribe("a", lambda now: [Filter()], at(0))
    assert [type(said) for said in relay.receive(frame, at(0))] == [Remarked]


def test_a_challenge_of_any_length_and_a_long_notice_are_bounded() -> None:
    relay = made()
    hear(relay, "AUTH", "x" * 513)
    hear(relay, "AUTH", "")
    assert frames(relay) == []
    [notice] = hear(relay, "NOTICE", "x" * 10_000)
    assert isinstance(notice, Remarked)
    assert len(notice.text) == session.MAX_NOTICE_CHARS


WORDS = st.lists(st.sampled_from(["EVENT", "OK", "AUTH", "EOSE", "CLOSED", "a", True, {}]))


@given(st.lists(st.binary(max_size=60) | WORDS.map(lambda words: json.dumps(words).encode())))
def test_whatever_a_relay_sends_nothing_raises_and_nothing_is_kept(sent: list[bytes]) -> None:
    relay = made()
    relay.subscribe("a", lambda now: [Filter()], at(0))
    for frame in sent:
        relay.receive(frame, at(1))
    assert len(relay) == 0

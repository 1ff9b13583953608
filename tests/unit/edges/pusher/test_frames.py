from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from trunkline.edges.pusher import frames
from trunkline.edges.pusher.frames import Channels, NotAFrame

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", {}),
        (None, {}),
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ('"{}"', "{}"),
        ("not JSON", "not JSON"),
        ([], []),
        (0, 0),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    ],
)
def test_data_is_read_as_it_is_or_encoded_once_more(written: object, read: object) -> None:
    assert frames.read_frame(json.dumps({"event": "e", "data": written}).encode()).data == read


def test_data_that_is_missing_is_empty() -> None:
    found = frames.read_frame(b'{"event": "pusher:ping"}')
    assert (found.data, found.channel) == ({}, "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'["EVENT", {"id": "x"}]',
        b'["REQ", "s", {}]',
        b"null",
        b'{"event": 1}',
        b'{"event": ""}',
        b'{"event": "e", "event": "f"}',
        b'{"event": "e", "channel": 1}',
        b'{"event": "\\ud800"}',
        b"\xff",
        b'{"event": "%b"}' % (b"e" * 201),
        b'{"event": "e", "channel": "%b"}' % (b"c" * 165),
        b'{"event": "e", "data": "%b"}' % (b"d" * frames.MAX_FRAME_BYTES),
        b'{"event": "e", "data": %b1%b}' % (b"[" * 200, b"]" * 200),
    ],
)
@requirement("OA-016")
def test_what_is_no_frame_is_refused_without_being_quoted(data: bytes) -> None:
    with pytest.raises(NotAFrame) as refused:
        frames.read_frame(data)
    assert len(str(refused.value)) < 200


def test_what_we_say_is_encoded_twice_but_for_errors() -> None:
    assert json.loads(frames.frame("e", {"a": "é"}, "c")) == {"event": "e", "channel": "c", "data": '{"a":"é"}'}
    said = json.loads(frames.error_frame(frames.Code.RATE, "slower"))
    assert said == {"event": "pusher:error", "data": {"code": 4301, "message": "slower"}}


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_reading_a_frame_raises_nothing_else(data: bytes) -> None:
    try:
        frames.read_frame(data)
    except NotAFrame:
        return


def test_a_server_may_have_private_channels_only() -> None:
    channels = Channels({"feed": frozenset()}, prefixes=(frames.PRIVATE,))
    assert channels.names == ("private-feed",)
    assert [channels.base_of(name) for name in ("private-feed", "feed", "presence-feed", "private-")] == [
        "feed",
        "",
        "",
        "",
    ]

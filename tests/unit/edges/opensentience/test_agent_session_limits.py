"""The agent's side of the protocol against what is unknown, wrong, too large, or cut anywhere."""

from __future__ import annotations

import itertools
import json
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from tests.unit.edges.opensentience.agent_side import (
    ECHO,
    NOW,
    TOKEN,
    call,
    core,
    definition,
    fresh,
    read_echo,
    ready,
    running,
    spoken,
    welcome,
)
from trunkline.edges.opensentience import messages
from trunkline.edges.opensentience.agent_events import (
    Broken,
    Called,
    Welcomed,
)
from trunkline.edges.opensentience.agent_session import (
    CHUNK_BYTES,
    STREAM_BYTES,
    AgentSession,
    Offer,
    State,
)
from trunkline.model import Status

# --- tolerance --------------------------------------------------------------------------------------------------------


@requirement("OS-147", "OS-048")
def test_unknown_fields_and_nulls_are_ignored_at_every_level() -> None:
    session = fresh()
    extra: dict[str, object] = {"x_new": {"deep": [1]}, "actor": None, "error": None}
    payload = {
        "accepted_version": 1,
        "session_id": "s-1",
        "heartbeat_interval_ms": 10_000,
        "max_frame_bytes": 4_194_304,
        "server": {"core_version": "9", "instance_id": "i", "x_new": 1},
        "x_new": 1,
    }
    assert session.receive(core("core.welcome", payload, **extra), NOW) == [Welcomed("s-1", "9", "i")]
    given = {"call_id": "c", "tool_id": ECHO, "input": {"text": "t"}, "timeout_ms": None, "context": None, "x_new": []}
    (event,) = session.receive(core("core.tool.call", given, **extra), NOW)
    assert isinstance(event, Called)
    assert (event.timeout_ms, event.context) == (None, None)
    for type_, more in [
        ("core.tool.cancel", {"call_id": "c"}),
        ("core.goodbye", {"reason": "bye"}),
    ]:
        assert session.receive(core(type_, {**more, "x_new": 1}, **extra), NOW)


@requirement("OS-148")
def test_an_unknown_type_that_expects_a_reply_gets_a_structured_error() -> None:
    session = ready()
    assert session.receive(core("core.future", request_id="r-8"), NOW) == []
    (error,) = spoken(session)
    assert error["type"] == "agent.error"
    assert error["in_reply_to"] == "core-core.future"
    assert error["request_id"] == "r-8"
    assert error["error"]["code"] == "protocol.unknown_type"
    assert error["payload"] == {}


@requirement("OS-149")
@pytest.mark.parametrize("envelope", [{}, {"request_id": "r", "in_reply_to": "m"}])
def test_an_unknown_type_that_expects_none_is_ignored(envelope: dict[str, object]) -> None:
    session = ready()
    assert session.receive(core("core.future", **envelope), NOW) == []
    assert session.take_output() == b""
    assert session.state is State.READY


@requirement("OS-057")
@pytest.mark.parametrize("type_", ["agent.tool.result", "agent.hello", "agent.future"])
def test_an_agents_own_type_is_refused_and_the_connection_stays(type_: str) -> None:
    session = ready()
    assert session.receive(core(type_), NOW) == []
    (error,) = spoken(session)
    assert error["error"]["code"] == "protocol.unexpected_type"
    assert session.state is State.READY


def test_a_second_welcome_is_refused_and_changes_nothing() -> None:
    session = ready()
    assert session.receive(welcome(session_id="s-2"), NOW) == []
    assert spoken(session)[0]["error"]["code"] == "protocol.unexpected_type"
    assert session.session_id == "s-1"


def test_a_known_type_with_a_wrong_payload_is_answered_and_the_connection_stays() -> None:
    session = ready()
    assert session.receive(core("core.tool.call", {"call_id": 1}, request_id="r"), NOW) == []
    (error,) = spoken(session)
    assert error["error"]["code"] == "protocol.invalid_message"
    assert error["in_reply_to"] == "core-core.tool.call"
    (event,) = session.receive(call(), NOW)
    assert isinstance(event, Called)


# --- limits -----------------------------------------------------------------------------------------------------------


@requirement("OS-016")
def test_a_received_frame_of_exactly_the_limit_passes_and_one_more_byte_ends_it() -> None:
    limit = 8192
    session = ready(max_frame_bytes=limit)
    fitting = call()[4:]
    padded = fitting + b" " * (limit - len(fitting))
    (event,) = session.receive(struct.pack(">I", limit) + padded, NOW)
    assert isinstance(event, Called)
    session.take_output()
    (broken,) = session.receive(struct.pack(">I", limit + 1), NOW)
    assert isinstance(broken, Broken)
    assert broken.code == "protocol.frame_too_large"
    assert spoken(session)[0]["error"]["code"] == "protocol.frame_too_large"
    assert session.state is State.CLOSED


@requirement("OS-022", "OS-023")
def test_an_oversize_prefix_is_judged_before_anything_is_kept() -> None:
    session = ready()
    (broken,) = session.receive(b"\xff\xff\xff\xff" + b"x" * 1000, NOW)
    assert isinstance(broken, Broken)
    assert session.receive(b"y" * 1000, NOW) == []


@requirement("OS-016", "OS-152")
def test_a_result_of_exactly_the_limit_is_sent_and_a_larger_one_becomes_a_structured_failure() -> None:
    limit = 8192
    session = running(max_frame_bytes=limit)
    session.finish("c-1", Status.SUCCEEDED, NOW, output=b'{"a":""}')
    spare = limit - (len(session.take_output()) - 4)
    for size, fits in [(spare, True), (spare + 1, False)]:
        session.receive(call(), NOW)
        output = b'{"a":"%b"}' % (b"x" * size)
        assert session.finish("c-1", Status.SUCCEEDED, NOW, output=output) is fits
        data = session.take_output()
        assert (len(data) - 4 == limit) is fits
        result = json.loads(data[4:])["payload"]
        assert result["status"] == ("succeeded" if fits else "failed")
        assert fits or result["error"]["code"] == "tool.output_too_large"


@requirement("OS-016")
def test_tools_that_no_frame_holds_end_it_with_a_text_that_says_so() -> None:
    offers = [Offer(definition(f"com.example.echo/tool_{n}"), read_echo) for n in range(100)]
    session = AgentSession("com.example.echo", "1.0.0", TOKEN, offers, NOW, bytes(10))
    spoken(session)
    _, broken = session.receive(welcome(max_frame_bytes=4096), NOW)
    assert isinstance(broken, Broken)
    assert "agent.tools.register" in broken.message
    assert "4096" in broken.message


@pytest.mark.parametrize("size", [1, 271, 4095])
def test_a_core_whose_frames_would_not_even_hold_a_complaint_is_left(size: int) -> None:
    session = fresh()
    spoken(session)
    (broken,) = session.receive(welcome(max_frame_bytes=size), NOW)
    assert isinstance(broken, Broken)
    assert broken.code == "protocol.invalid_message"
    assert session.state is State.CLOSED


@requirement("OS-152")
def test_the_stream_of_one_call_is_bounded_and_says_where_it_was_cut() -> None:
    session = running()
    chunk = b'{"text":"%b"}' % (b"x" * 100_000)
    sent = 0
    while session.stream("c-1", "stdout", chunk, NOW):
        sent += len(chunk)
        assert sent <= STREAM_BYTES
    assert sent > STREAM_BYTES - 2 * len(chunk)
    last = spoken(session)[-1]["payload"]
    assert last["channel"] == "log"
    assert last["done"] is True
    assert str(STREAM_BYTES) in last["data"]["text"]
    assert not session.stream("c-1", "stdout", b'{"text":"x"}', NOW)
    assert session.take_output() == b""


@requirement("OS-152")
def test_a_chunk_that_is_too_large_is_left_out_and_the_stream_goes_on() -> None:
    session = running()
    assert not session.stream("c-1", "stdout", b'{"text":"%b"}' % (b"x" * CHUNK_BYTES), NOW)
    assert session.stream("c-1", "stdout", b'{"text":"next"}', NOW)
    left_out, following = (one["payload"] for one in spoken(session))
    assert "left out" in left_out["data"]["text"]
    assert following["seq"] == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"v":1,"v":1}', b"NaN", b'{"v":1}', b'{"v":2,"type":"core.ping"}'],
)
@requirement("OS-014")
def test_a_frame_that_cannot_be_read_ends_the_conversation_with_an_error(body: bytes) -> None:
    session = ready()
    (event,) = session.receive(struct.pack(">I", len(body)) + body, NOW)
    assert isinstance(event, Broken)
    assert event.code == "protocol.invalid_message"
    (error,) = spoken(session)
    assert error["type"] == "agent.error"
    assert "in_reply_to" not in error
    assert session.state is State.CLOSED


def test_events_before_a_broken_frame_are_not_lost() -> None:
    first, broken = ready().receive(call() + struct.pack(">I", 2) + b"[]", NOW)
    assert isinstance(first, Called)
    assert isinstance(broken, Broken)


# --- properties -------------------------------------------------------------------------------------------------------


@requirement("OS-030", "OS-029")
def test_ids_are_uuids_and_never_repeat() -> None:
    session = ready()
    for n in range(50):
        session.receive(core("core.ping") + call(f"c-{n}", {"text": 1}), NOW)
    ids = [one["id"] for one in spoken(session)]
    assert len(set(ids)) == len(ids) == 100
    assert all(str(uuid.UUID(one)) == one for one in ids)


CONVERSATION = b"".join(
    [
        welcome(),
        core("core.tools.registered", {"registered": [ECHO]}),
        call("c-1"),
        core("core.ping"),
        call("c-2", {"text": "ünïcödé\n"}),
        call("c-3", {"text": 1}),
        core("core.future", request_id="r"),
        core("core.tool.cancel", {"call_id": "c-1"}),
        core("core.goodbye", {"reason": "bye"}),
        struct.pack(">I", 2) + b"[]",
        call("c-4"),
    ]
)


@requirement("OS-013", "OS-025")
@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=30))
def test_any_cutting_of_the_bytes_gives_the_same_events_and_the_same_answers(cuts: list[int]) -> None:
    whole = fresh()
    expected = whole.receive(CONVERSATION, NOW)
    assert len(expected) == 7
    edges = [0, *sorted(cuts), len(CONVERSATION)]
    pieces = [CONVERSATION[a:b] for a, b in itertools.pairwise(edges) if a != b]
    cut = fresh()
    assert [event for piece in pieces for event in cut.receive(piece, NOW)] == expected
    assert cut.take_output() == whole.take_output()


@requirement("OS-013")
def test_byte_by_byte_gives_the_same_events_and_the_same_answers() -> None:
    whole, cut = fresh(), fresh()
    expected = whole.receive(CONVERSATION, NOW)
    assert [event for byte in CONVERSATION for event in cut.receive(bytes([byte]), NOW)] == expected
    assert cut.take_output() == whole.take_output()


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    for session in (fresh(), ready(), running()):
        session.receive(data, NOW)
        session.receive(b"", NOW)
        assert session.state is State.CLOSED


@given(
    st.sampled_from(sorted(messages.FROM_CORE)),
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["call_id", "status", "input", "tool_id", "data"]), inner, max_size=4)
        ),
        max_leaves=8,
    ),
)
def test_no_payload_of_a_known_type_makes_it_raise_or_ends_a_running_conversation(type_: str, payload: object) -> None:
    session = running()
    session.receive(core(type_, payload if isinstance(payload, dict) else {"x": payload}), NOW)
    assert session.state in {State.READY, State.LEAVING}

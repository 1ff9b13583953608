"""Every type in every state, and what ends a conversation and what does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import (
    CALL,
    NOW,
    SESSION,
    Talk,
    chunk,
    deliver,
    envelope,
    frame,
    framed,
    hello,
    ready,
    result,
    tool,
)
from trunkline.edges.opensentience.messages import FROM_AGENT, FROM_CORE
from trunkline.edges.opensentience.session import FRAMES_A_TURN, State
from trunkline.effects import Close, Refuse
from trunkline.events import (
    AgentArrived,
    AgentLeft,
    CallFinished,
    CallProgressed,
    CallRequested,
    CancelAcknowledged,
    CancelRequested,
    DirectiveRequested,
    Event,
    HealthReported,
    Noticed,
    ToolsOffered,
    ToolsWithdrawn,
)

UNKNOWN = ("agent.later", "core.later", "tool.call", "nonsense")


def payload_of(type_: str, session_id: str) -> dict[str, Any]:
    """A payload that is right for its type."""
    payloads: dict[str, dict[str, Any]] = {
        "agent.hello": hello(),
        "agent.tools.register": {"tools": [tool()]},
        "agent.tools.unregister": {"tool_ids": ["a/b"]},
        "agent.tool.call": {"call_id": "mine", "tool_id": "a/b", "input": {}},
        "agent.tool.cancel": {"call_id": "mine"},
        "agent.tool.stream": chunk(),
        "agent.tool.result": result(),
        "agent.tool.cancel_ack": {"call_id": CALL, "accepted": True},
        "agent.heartbeat": {"session_id": session_id, "uptime_ms": 1, "inflight_calls": 0, "status": "degraded"},
        "agent.directive.request": {"tool_id": "a/b", "reason": "r"},
    }
    return payloads.get(type_, {})


def in_state(state: State) -> tuple[Talk, str]:
    talk = Talk()
    session_id = ""
    match state:
        case State.AWAITING_HELLO:
            pass
        case State.AUTHENTICATING:
            talk.arrive()
        case State.READY:
            session_id = talk.admit()["payload"]["session_id"]
            talk.send(deliver())
        case State.CLOSING:
            talk.session.send(Refuse(SESSION, 0, talk.arrive().ref, delay_s=9), NOW)
        case State.CLOSED:
            talk.send(Close(SESSION, 0, "shutdown"))
    talk.events.clear()
    assert talk.session.state is state
    return talk, session_id


# In READY: the events, and the code of core.error.
READY: dict[str, tuple[list[type[Event]], str | None]] = {
    "agent.hello": ([Noticed], "protocol.unexpected_type"),
    "agent.tools.register": ([ToolsOffered], None),
    "agent.tools.unregister": ([ToolsWithdrawn], None),
    "agent.tool.call": ([CallRequested], None),
    "agent.tool.cancel": ([CancelRequested], None),
    "agent.tool.stream": ([CallProgressed], None),
    "agent.tool.result": ([CallFinished], None),
    "agent.tool.cancel_ack": ([CancelAcknowledged], None),
    "agent.heartbeat": ([HealthReported], None),
    "agent.pong": ([], None),
    "agent.error": ([Noticed], None),
    "agent.directive.request": ([DirectiveRequested], None),
    **dict.fromkeys([*FROM_CORE, "core.later"], ([Noticed], "protocol.unexpected_type")),
    **dict.fromkeys(["agent.later", "tool.call", "nonsense"], ([Noticed], "protocol.unknown_type")),
}


@requirement("OS-057", "OS-058", "OS-144", "OS-148")
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("type_", [*FROM_AGENT, *FROM_CORE, *UNKNOWN])
def test_each_type_in_each_state_has_exactly_its_consequence(type_: str, state: State) -> None:
    talk, session_id = in_state(state)
    ids = {"request_id": CALL, "correlation_id": "chat:1"}
    events = [type(event) for event in talk.tell(type_, payload_of(type_, session_id), **ids)]
    match state:
        case State.AWAITING_HELLO if type_ == "agent.hello":
            assert events == [AgentArrived]
            assert talk.state == "authenticating"
            assert talk.said() == []
        case State.AWAITING_HELLO:
            assert events == [Noticed]
            (said,) = talk.said()
            assert (said["type"], said["error"]["code"]) == ("core.error", "protocol.unexpected_type")
            assert talk.state == "closed"
        case State.READY:
            expected, code = READY[type_]
            said_codes = [(said["type"], said["error"]["code"]) for said in talk.said()]
            assert events == expected
            assert said_codes == ([] if code is None else [("core.error", code)])
            assert talk.state == "ready"
        case _:
            assert events == []
            assert talk.session.state is state
            assert talk.said() == []


def test_the_table_covers_every_type() -> None:
    assert set(READY) == {*FROM_AGENT, *FROM_CORE, *UNKNOWN}


# --- unknown types ----------------------------------------------------------------------------------------------------


@requirement("OS-148")
def test_an_unknown_type_that_expects_a_reply_gets_one() -> None:
    talk = ready()
    talk.tell("agent.later", {"x": 1}, id="m-1", request_id="r-1", correlation_id="chat:1")
    (said,) = talk.said()
    assert said["type"] == "core.error"
    assert said["payload"] == {}
    assert (said["in_reply_to"], said["request_id"], said["correlation_id"]) == ("m-1", "r-1", "chat:1")
    assert said["error"]["code"] == "protocol.unknown_type"


@requirement("OS-149")
@pytest.mark.parametrize("fields", [{}, {"request_id": "r", "in_reply_to": "i"}, {"in_reply_to": "i"}])
def test_an_unsolicited_unknown_type_is_ignored(fields: dict[str, str]) -> None:
    talk = ready()
    assert talk.tell("agent.later", {}, **fields) == []
    assert talk.said() == []
    assert talk.state == "ready"


@requirement("OS-149")
@pytest.mark.parametrize("fields", [{}, {"request_id": "r"}])
def test_strict_mode_closes_on_an_unknown_type(fields: dict[str, str]) -> None:
    talk = ready(strict_types=True)
    assert [type(event) for event in talk.tell("agent.later", {}, **fields)] == [Noticed, AgentLeft]
    assert talk.said()[0]["error"]["code"] == "protocol.unknown_type"
    assert talk.state == "closed"


@requirement("OS-147")
@pytest.mark.parametrize("type_", sorted(FROM_AGENT))
def test_strict_mode_still_ignores_unknown_fields(type_: str) -> None:
    talk = Talk(strict_types=True)
    session_id = talk.admit()["payload"]["session_id"]
    talk.send(deliver())
    talk.events.clear()
    payload = {**payload_of(type_, session_id), "x_later": {"a": [1]}}
    events = talk.tell(type_, payload, request_id=CALL, correlation_id="chat:1", x_later=[])
    assert [type(event) for event in events] == READY[type_][0]


# --- what ends a conversation -----------------------------------------------------------------------------------------

FATAL: list[tuple[str, bytes]] = [
    ("zero length", framed(b"")),
    ("invalid JSON", framed(b"{nope}")),
    ("invalid UTF-8", framed(b'{"a":"\xff"}')),
    ("an array", framed(b"[]")),
    ("a string", framed(b'"agent.pong"')),
    ("a number", framed(b"1")),
    ("null", framed(b"null")),
    ("a byte order mark", framed(b"\xef\xbb\xbf" + json.dumps(envelope("agent.pong")).encode())),
    ("a duplicate key", framed(json.dumps(envelope("agent.pong"))[:-1].encode() + b',"v":1}')),
    ("NaN", framed(json.dumps(envelope("agent.pong", {"a": float("nan")})).encode())),
    ("too deep", framed(json.dumps(envelope("agent.pong", {"a": json.loads("[" * 253 + "]" * 253)})).encode())),
    ("an envelope without id", frame(envelope("agent.pong", id=...))),
    ("another version", frame(envelope("agent.pong", v=2))),
    ("a bad time", frame(envelope("agent.pong", ts="now"))),
    ("a payload that is no object", frame({**envelope("agent.pong"), "payload": []})),
    ("a forged actor", frame(envelope("agent.pong", actor={"type": "root", "id": "x"}))),
]


@requirement("OS-014", "OS-027", "OS-029", "OS-031", "OS-032", "OS-043", "OS-056")
@pytest.mark.parametrize("data", [row[1] for row in FATAL], ids=[row[0] for row in FATAL])
@pytest.mark.parametrize("make", [ready, Talk], ids=["ready", "awaiting hello"])
def test_a_doubtful_stream_is_ended_with_an_error(make: Callable[[], Talk], data: bytes) -> None:
    talk = make()
    # What stands behind the fault is not read.
    events = talk.receive(data + frame(envelope("agent.tools.register", {"tools": []})))
    (said,) = talk.said()
    assert (said["type"], said["error"]["code"]) == ("core.error", "protocol.invalid_message")
    assert said["error"]["where"] == "core.session"
    assert talk.state == "closed"
    assert [type(event) for event in events] == ([Noticed, AgentLeft] if make is ready else [Noticed])


@requirement("OS-025")
def test_messages_are_taken_in_the_order_they_came() -> None:
    talk = ready()
    data = b"".join(
        frame(envelope("agent.tools.register", {"tools": []}, id=f"m-{n}")) for n in range(3 * FRAMES_A_TURN)
    )
    refs = [event.ref for event in talk.receive(data) if isinstance(event, ToolsOffered)]
    assert refs == [f"m-{n}" for n in range(3 * FRAMES_A_TURN)]


def test_one_turn_takes_a_bounded_number_of_frames_and_asks_to_go_on() -> None:
    talk = ready()
    data = frame(envelope("agent.tools.register", {"tools": []})) * (FRAMES_A_TURN + 5)
    assert len(talk.session.receive(data, NOW)) == FRAMES_A_TURN
    assert talk.session.wake_at() == 0.0
    assert len(talk.session.wake(NOW)) == 5
    assert talk.session.wake_at() != 0.0


def test_a_frame_must_be_complete_within_thirty_seconds_in_total() -> None:
    talk = ready(heartbeat_interval_ms=3_600_000)
    beat = frame(envelope("agent.pong"))
    talk.receive(beat + beat[:3])
    assert talk.session.wake_at() == NOW.mono + 30.0
    for n in range(1, 29):
        talk.wake(n)
        talk.receive(beat[2 + n : 3 + n])
    assert talk.session.wake_at() == NOW.mono + 30.0
    talk.events.clear()
    assert [type(event) for event in talk.wake(30.0)] == [Noticed, AgentLeft]
    assert talk.said()[-1]["payload"] == {"reason": "frame_timeout"}


def test_the_count_starts_anew_with_each_frame() -> None:
    talk = ready(heartbeat_interval_ms=3_600_000)
    beat = frame(envelope("agent.pong"))
    for n in range(10):
        talk.wake(20.0 * n)
        talk.receive(beat[5:] + beat[:5] if n else beat[:5])
        assert talk.session.wake_at() == NOW.mono + 20.0 * n + 30.0
    talk.receive(beat[5:])
    assert talk.session.wake_at() != NOW.mono + 210.0
    assert talk.state == "ready"


def test_while_we_do_not_read_no_time_counts() -> None:
    talk = ready(heartbeat_interval_ms=10_000)
    talk.receive(frame(envelope("agent.pong"))[:5])
    talk.session.pause(talk.now)
    assert talk.session.wake_at() is None
    assert talk.wake(500.0) == []
    talk.session.resume(talk.now)
    assert talk.state == "ready"
    assert talk.session.wake_at() == NOW.mono + 500.0 + 20.0
    assert talk.wake(519.0) == []


def test_frames_wait_while_we_do_not_read() -> None:
    talk = ready()
    data = frame(envelope("agent.tools.register", {"tools": []})) * (FRAMES_A_TURN + 1)
    talk.session.receive(data, NOW)
    talk.session.pause(NOW)
    assert talk.session.wake(NOW) == []
    talk.session.resume(NOW)
    assert len(talk.session.wake(NOW)) == 1


def test_an_agents_complaint_is_on_record_by_its_code_only() -> None:
    talk = ready()
    for _ in range(3):
        talk.tell("agent.error", {}, error={"code": "protocol.unknown_type", "message": "hunter2"})
    (noticed,) = talk.events
    assert isinstance(noticed, Noticed)
    assert noticed.detail == "the agent complained: protocol.unknown_type"

"""From the first byte to the welcome, or to the refusal."""

from __future__ import annotations

import gc
import hashlib
import json
import uuid
from types import FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import (
    AGENT,
    NOW,
    SESSION,
    TOKEN,
    Talk,
    deliver,
    envelope,
    frame,
    framed,
    hello,
    messages,
    ready,
    tool,
)
from trunkline.edges.opensentience.messages import MAX_HELLO_FRAME_BYTES
from trunkline.edges.opensentience.session import MAX_SENT_AHEAD_BYTES
from trunkline.effects import Admit, Close, Refuse
from trunkline.errors import LocalProtocolError
from trunkline.events import AgentArrived, AgentLeft, Event, Noticed, ToolsOffered
from trunkline.model import Peer


@requirement("OS-058", "OS-062", "OS-064", "OS-143")
def test_a_hello_becomes_an_arrival_with_the_token_hashed() -> None:
    talk = Talk(max_inflight=9)
    (arrived,) = talk.tell(
        "agent.hello",
        hello(
            manifest_hash="sha256:" + "AB" * 32,
            protocol={"supported_versions": [3, 1], "capabilities": ["tools", "x-unheard-of"]},
            sdk={"name": "somebody's", "version": "2.0.0-rc.1"},
        ),
    )
    assert arrived == AgentArrived(
        SESSION,
        "id-of-agent.hello",
        "opensentience",
        AGENT,
        "1.0.0",
        hashlib.sha256(TOKEN.encode()).hexdigest(),
        Peer("pid:42"),
        ("tools", "x-unheard-of"),
        "ab" * 32,
        9,
        30.0,
    )
    assert talk.state == "authenticating"
    assert talk.said() == []


@requirement("OS-033", "OS-056", "OS-067", "OS-068", "OS-069", "OS-070", "OS-071", "OS-072")
def test_an_admitted_agent_is_welcomed_with_what_is_in_force() -> None:
    talk = Talk(heartbeat_interval_ms=2500, max_frame_bytes=70_000)
    welcome = talk.admit()
    assert welcome["type"] == "core.welcome"
    assert welcome["in_reply_to"] == "id-of-agent.hello"
    assert "error" not in welcome
    payload = welcome["payload"]
    uuid.UUID(payload.pop("session_id"))
    assert payload == {
        "accepted_version": 1,
        "heartbeat_interval_ms": 2500,
        "max_frame_bytes": 70_000,
        "server": {"core_version": "0.1.0", "instance_id": "i-1"},
        "capabilities": ["tools", "streaming", "cancellation", "calls", "directives"],
    }
    assert talk.state == "ready"


@requirement("OS-069")
def test_each_conversation_has_its_own_session_id() -> None:
    ids = {Talk(seed=bytes([n]) * 10).admit()["payload"]["session_id"] for n in range(5)}
    assert len(ids) == 5


@requirement("OS-056", "OS-073", "OS-074", "OS-049", "OS-050", "OS-054")
def test_a_refused_agent_hears_unauthorized_and_the_conversation_ends() -> None:
    talk = Talk()
    (said,) = talk.send(Refuse(SESSION, 0, talk.arrive().ref))
    assert said["type"] == "core.welcome"
    assert said["payload"] == {}
    assert said["error"]["code"] == "protocol.unauthorized"
    assert said["error"]["retryable"] is False
    assert "debug" not in said["error"]
    assert TOKEN not in json.dumps(said)
    assert talk.state == "closed"
    assert talk.receive(b"") == []  # the hub never took it in, so nothing left


@requirement("OS-059", "OS-073")
@pytest.mark.parametrize("token", [..., None, "", "wrong", "x" * 60_000])
def test_all_refusals_have_the_same_bytes_but_for_id_and_time(token: Any) -> None:
    def refusal(talk: Talk, **fields: Any) -> dict[str, Any]:
        (said,) = talk.send(Refuse(SESSION, 0, talk.arrive(**fields).ref))
        return {**said, "id": "", "ts": ""}

    assert refusal(Talk(), session_token=token) == refusal(Talk(), session_token=TOKEN)


@requirement("OS-073")
def test_a_refusal_may_have_to_wait() -> None:
    talk = Talk()
    assert talk.send(Refuse(SESSION, 0, talk.arrive().ref, delay_s=2.0)) == []
    assert talk.state == "closing"
    assert talk.session.wake_at() == NOW.mono + 2.0
    assert talk.tell("agent.tools.register", {"tools": []}) == []
    talk.wake(1.9)
    assert talk.said() == []
    talk.wake(2.0)
    (said,) = talk.said()
    assert said["error"]["code"] == "protocol.unauthorized"
    assert talk.state == "closed"


@requirement("OS-145")
def test_the_highest_common_version_is_one() -> None:
    protocol = {"supported_versions": [2, 1, 7], "capabilities": []}
    assert Talk().admit(protocol=protocol)["payload"]["accepted_version"] == 1


@requirement("OS-146")
def test_without_a_common_version_the_supported_ones_are_told_and_the_conversation_ends() -> None:
    talk = Talk()
    events = talk.tell("agent.hello", hello(protocol={"supported_versions": [2, 3], "capabilities": []}))
    assert [type(event) for event in events] == [Noticed]
    (said,) = talk.said()
    assert said["type"] == "core.welcome"
    assert said["error"]["code"] == "protocol.unsupported_version"
    assert said["error"]["details"] == {"supported": [1]}
    assert talk.state == "closed"


WRONG_HELLOS: list[tuple[str, dict[str, Any]]] = [
    ("token of the wrong type", {"session_token": 5}),
    ("no agent_id", {"agent_id": ...}),
    ("agent_id with a slash", {"agent_id": "a/b"}),
    ("agent_id with a leading point", {"agent_id": ".a"}),
    ("agent_id with a line end", {"agent_id": "a\n"}),
    ("agent_id in other letters", {"agent_id": "аgent"}),
    ("endless agent_id", {"agent_id": "a" * 129}),
    ("no version", {"agent_version": ...}),
    ("no semver", {"agent_version": "1.0"}),
    ("no protocol", {"protocol": ...}),
    ("no versions", {"protocol": {"capabilities": []}}),
    ("empty versions", {"protocol": {"supported_versions": [], "capabilities": []}}),
    ("versions as text", {"protocol": {"supported_versions": ["1"], "capabilities": []}}),
    ("true as a version", {"protocol": {"supported_versions": [True], "capabilities": []}}),
    ("1.0 as a version", {"protocol": {"supported_versions": [1.0], "capabilities": []}}),
    ("no capabilities", {"protocol": {"supported_versions": [1]}}),
    ("capabilities of numbers", {"protocol": {"supported_versions": [1], "capabilities": [1]}}),
    ("sdk without version", {"sdk": {"name": "x"}}),
    ("sdk with no semver", {"sdk": {"name": "x", "version": "latest"}}),
    ("manifest_hash a number", {"manifest_hash": 1}),
]


@requirement("OS-059", "OS-060", "OS-061", "OS-063", "OS-064", "OS-065")
@pytest.mark.parametrize("fields", [wrong[1] for wrong in WRONG_HELLOS], ids=[wrong[0] for wrong in WRONG_HELLOS])
def test_a_malformed_hello_ends_the_conversation(fields: dict[str, Any]) -> None:
    talk = Talk()
    events = talk.tell("agent.hello", hello(**fields))
    assert [type(event) for event in events] == [Noticed]
    (said,) = talk.said()
    assert said["type"] == "core.error"
    assert said["error"]["code"] == "protocol.invalid_message"
    assert said["in_reply_to"] == "id-of-agent.hello"
    assert talk.state == "closed"


@requirement("OS-066", "OS-136", "OS-050")
@pytest.mark.parametrize("fields", [{}, *(wrong[1] for wrong in WRONG_HELLOS[1:])])
def test_the_token_appears_in_no_event_and_no_answer(fields: dict[str, Any]) -> None:
    talk = Talk(debug_errors=True)
    events = talk.tell("agent.hello", hello(**fields))
    assert TOKEN not in repr(events)
    assert TOKEN.encode() not in talk.session.take_output()
    assert TOKEN not in repr(vars(talk.session))


@requirement("OS-066", "OS-136")
def test_the_session_keeps_no_copy_of_the_token() -> None:
    talk = Talk()
    talk.receive(frame(envelope("agent.hello", hello())) + b"\x00\x00")
    talk.events.clear()
    reached, waiting = set(), [talk.session]
    while waiting:
        held = waiting.pop()
        if id(held) in reached or isinstance(held, type | ModuleType):
            continue
        reached.add(id(held))
        assert not isinstance(held, bytes) or TOKEN.encode() not in held
        assert held != TOKEN
        waiting += [inner for inner in gc.get_referents(held) if not isinstance(inner, FunctionType | FrameType)]


@requirement("OS-055")
def test_debug_fields_come_only_when_asked_for_and_have_no_content() -> None:
    talk = ready(debug_errors=True)
    talk.tell("agent.heartbeat", {"session_id": TOKEN, "uptime_ms": 1, "inflight_calls": 0, "status": "ok"})
    (said,) = talk.said()
    assert said["error"]["debug"] == {"session": SESSION, "state": "ready"}
    assert TOKEN not in json.dumps(said)


def test_a_second_hello_is_out_of_place() -> None:
    talk = ready()
    assert talk.notes() == []
    talk.tell("agent.hello", hello())
    (said,) = talk.said()
    assert said["error"]["code"] == "protocol.unexpected_type"
    assert talk.state == "ready"


def test_a_hello_must_come_within_five_seconds() -> None:
    talk = Talk()
    assert talk.session.wake_at() == NOW.mono + 5.0
    assert talk.wake(4.999) == []
    (noticed,) = talk.wake(5.0)
    assert isinstance(noticed, Noticed)
    assert noticed.who == "pid:42"
    (said,) = talk.said()
    assert (said["type"], said["payload"]) == ("core.goodbye", {"reason": "hello_timeout"})
    assert talk.state == "closed"
    assert talk.wake(50.0) == []


def test_bytes_that_trickle_do_not_move_the_deadline_of_the_hello() -> None:
    talk = Talk()
    for byte in frame(envelope("agent.hello", hello()))[:20]:
        talk.receive(bytes([byte]))
    assert talk.session.wake_at() == NOW.mono + 5.0


@requirement("OS-016", "OS-022", "OS-024")
def test_before_the_welcome_a_frame_has_at_most_64_kib() -> None:
    body = json.dumps(envelope("agent.hello", hello())).encode()
    fitting = body + b" " * (MAX_HELLO_FRAME_BYTES - len(body))
    assert isinstance(Talk().receive(framed(fitting))[0], AgentArrived)
    talk = Talk()
    (noticed,) = talk.receive((MAX_HELLO_FRAME_BYTES + 1).to_bytes(4, "big"))
    assert noticed == Noticed("protocol.frame_too_large", "opensentience", "pid:42", "65537 bytes; the limit is 65536")
    (said,) = talk.said()
    assert said["payload"] == {"reason": "protocol.frame_too_large"}
    assert talk.state == "closed"


@requirement("OS-015", "OS-016", "OS-022", "OS-023", "OS-024", "OS-071")
@pytest.mark.parametrize("settings", [{}, {"max_frame_bytes": 100_000}])
def test_after_the_welcome_the_limit_that_was_told_is_enforced(settings: dict[str, int]) -> None:
    talk = Talk(**settings)
    limit = talk.admit()["payload"]["max_frame_bytes"]
    assert limit == settings.get("max_frame_bytes", 4_194_304)
    body = json.dumps(envelope("agent.pong")).encode()
    assert talk.receive(framed(body + b" " * (limit - len(body)))) == []
    assert talk.state == "ready"
    noticed, left = talk.receive((limit + 1).to_bytes(4, "big"))
    assert isinstance(noticed, Noticed)
    assert noticed.code == "protocol.frame_too_large"
    assert left == AgentLeft(SESSION, "protocol.frame_too_large")
    (said,) = talk.said()
    assert (said["type"], said["payload"]) == ("core.goodbye", {"reason": "protocol.frame_too_large"})


@requirement("OS-024")
def test_what_is_on_record_of_an_oversize_frame_has_no_content() -> None:
    talk = ready()
    events = talk.receive(b"\xff\xff\xff\xff" + b"hunter2" * 1000)
    assert "hunter2" not in repr(events)
    assert events[0] == Noticed(
        "protocol.frame_too_large", "opensentience", f"opensentience:{AGENT}", "4294967295 bytes; the limit is 4194304"
    )


# --- ahead of the welcome ---------------------------------------------------------------------------------------------


@requirement("OS-025", "OS-144")
def test_what_is_sent_ahead_waits_for_the_welcome() -> None:
    talk = Talk()
    register = frame(envelope("agent.tools.register", {"tools": [tool()]}))
    (arrived,) = talk.receive(frame(envelope("agent.hello", hello())) + register)
    assert isinstance(arrived, AgentArrived)
    talk.events.clear()
    (welcome,) = talk.send(Admit(SESSION, 0, arrived.ref))
    assert welcome["type"] == "core.welcome"
    assert [type(event) for event in talk.events] == [ToolsOffered]


@pytest.mark.parametrize("in_one", [True, False])
def test_what_is_sent_ahead_is_bounded(in_one: bool) -> None:
    talk = Talk()
    greeting = frame(envelope("agent.hello", hello()))
    ahead = b"\x00" * (MAX_SENT_AHEAD_BYTES + 1)
    events: list[Event]
    if in_one:
        events = talk.receive(greeting + ahead)
    else:
        events = talk.receive(greeting) + talk.receive(ahead[:-1])
        assert talk.state == "authenticating"
        events += talk.receive(ahead[-1:])
    assert [type(event) for event in events] == [AgentArrived, Noticed, AgentLeft]
    assert talk.said()[-1]["error"]["code"] == "protocol.throttled"
    talk.session.send(Admit(SESSION, 0, "id-of-agent.hello"), NOW)
    assert talk.said() == []


def test_a_peer_that_goes_while_the_hub_decides_has_left() -> None:
    talk = Talk()
    talk.arrive()
    assert talk.receive(b"") == [AgentLeft(SESSION, "connection_lost")]
    talk.session.send(Admit(SESSION, 0, "id-of-agent.hello"), NOW)
    assert talk.said() == []
    assert talk.state == "closed"


def test_an_unadmitted_agent_is_on_record_by_its_origin_only() -> None:
    talk = Talk()
    talk.arrive()
    noticed = talk.receive(b"\x00" * (MAX_SENT_AHEAD_BYTES + 1))[0]
    assert isinstance(noticed, Noticed)
    assert noticed.who == "pid:42"


# --- the end ----------------------------------------------------------------------------------------------------------


@requirement("OS-075", "OS-076")
def test_close_says_goodbye_with_its_reason_and_when_to_come_back() -> None:
    talk = ready()
    (said,) = talk.send(Close(SESSION, 0, "replaced", 1500))
    assert said["type"] == "core.goodbye"
    assert said["payload"] == {"reason": "replaced", "retry_after_ms": 1500}
    assert talk.state == "closed"
    assert talk.receive(b"") == [AgentLeft(SESSION, "replaced")]
    assert talk.receive(b"") == []


def test_close_works_before_anybody_said_hello() -> None:
    talk = Talk()
    (said,) = talk.send(Close(SESSION, 0, "shutdown"))
    assert said["payload"] == {"reason": "shutdown"}
    assert talk.receive(b"") == []


@pytest.mark.parametrize("how", ["eof", "fault", "silence"])
def test_the_hub_hears_exactly_once_that_an_agent_left(how: str) -> None:
    talk = ready()
    match how:
        case "eof":
            talk.receive(b"")
        case "fault":
            talk.receive(framed(b"no json"))
        case _:
            talk.wake(60.0)
    talk.receive(b"")
    talk.receive(b"")
    talk.wake(1000.0)
    assert [type(event) for event in talk.events].count(AgentLeft) == 1


def test_frames_before_the_end_of_the_stream_still_count() -> None:
    talk = ready()
    register = frame(envelope("agent.tools.register", {"tools": []}))
    # More than one turn takes; the end of the stream takes them all.
    talk.session.receive(register * 70, NOW)
    events = talk.session.receive(b"", NOW)
    assert [type(event) for event in events] == [ToolsOffered] * 6 + [AgentLeft]


def test_what_the_state_forbids_to_say_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError):
        Talk().session.send(deliver(), NOW)
    with pytest.raises(LocalProtocolError):
        ready().session.send(Admit(SESSION, 0, "x"), NOW)
    talk = Talk()
    talk.arrive()
    with pytest.raises(LocalProtocolError):
        talk.session.send(deliver(), NOW)


def test_what_is_said_after_the_end_is_dropped() -> None:
    talk = ready()
    talk.receive(b"")
    talk.session.send(deliver(input=Raw(b"{}")), NOW)
    assert messages(talk.session.take_output()) == []

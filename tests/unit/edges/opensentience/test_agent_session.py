"""The agent's side of the protocol, driven by bytes: no sockets, no clock. What is said and what it means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.edges.opensentience.agent_side import (
    ECHO,
    IDS,
    NOW,
    TOKEN,
    call,
    core,
    definition,
    fresh,
    later,
    read_echo,
    ready,
    running,
    spoken,
    welcome,
)
from trunkline.edges.opensentience import messages
from trunkline.edges.opensentience.agent_events import (
    Answered,
    Broken,
    Called,
    CancelAsked,
    Complained,
    DirectiveAnswered,
    Dismissed,
    Progressed,
    Refused,
    ToolsConfirmed,
    ToolsWithdrawn,
    Welcomed,
)
from trunkline.edges.opensentience.agent_session import (
    CLOSE_WITHIN_S,
    WELCOME_WITHIN_S,
    AgentSession,
    Offer,
    State,
)
from trunkline.errors import LocalProtocolError
from trunkline.model import Fault, Status, fault

# --- handshake --------------------------------------------------------------------------------------------------------


@requirement("OS-143", "OS-065")
def test_the_token_is_in_the_hello_and_in_no_other_frame() -> None:
    session = fresh()
    (hello,) = spoken(session)
    assert hello["type"] == "agent.hello"
    assert hello["payload"]["session_token"] == TOKEN
    assert hello["payload"]["protocol"] == {
        "supported_versions": [1],
        "capabilities": ["tools", "streaming", "cancellation", "calls", "directives"],
    }
    assert hello["payload"]["manifest_hash"] == "ab" * 32
    session.receive(welcome(), NOW)
    session.receive(call() + core("core.ping") + call("c-2", {"text": 1}) + core("core.what", request_id="x"), NOW)
    session.stream("c-1", "log", b'{"text":"working"}', NOW)
    session.finish("c-1", Status.FAILED, NOW, error=fault("tool.failed"))
    session.wake(later(10))
    assert TOKEN.encode() not in session.take_output()


@requirement("OS-137")
def test_the_token_is_not_kept_in_the_session_nor_shown_by_it() -> None:
    session = fresh()
    session.take_output()
    assert TOKEN not in repr(session)
    assert TOKEN not in repr(vars(session))


def test_a_welcome_makes_it_ready_and_registers_the_tools() -> None:
    session = fresh()
    spoken(session)
    assert session.receive(welcome(), NOW) == [Welcomed("s-1", "0.1.0", "i-1")]
    assert session.state is State.READY
    (register,) = spoken(session)
    assert register["type"] == "agent.tools.register"
    assert register["payload"] == {
        "tools": [
            {
                "tool_id": ECHO,
                "name": "echo",
                "description": "Says it back.",
                "input_schema": {"type": "object"},
                "side_effects": False,
            }
        ]
    }


def test_an_agent_without_tools_registers_nothing() -> None:
    session = AgentSession("a", "1.0.0", TOKEN, [], NOW, bytes(10))
    session.take_output()
    session.receive(welcome(), NOW)
    assert session.take_output() == b""


@pytest.mark.parametrize("payload", [{}, {"accepted_version": 1}])
def test_a_welcome_with_an_error_is_a_refusal_whatever_its_payload(payload: dict[str, object]) -> None:
    session = fresh()
    error = {"code": "protocol.unauthorized", "message": "no", "debug": {"x": 1}}
    assert session.receive(core("core.welcome", payload, error=error), NOW) == [Refused("protocol.unauthorized", "no")]
    assert session.state is State.CLOSED
    assert session.wake_at() is None


def test_a_version_that_was_not_offered_ends_the_conversation() -> None:
    session = fresh()
    (event,) = session.receive(welcome(accepted_version=2), NOW)
    assert isinstance(event, Broken)
    assert event.code == "protocol.unsupported_version"
    assert session.state is State.CLOSED


def test_nothing_but_a_welcome_a_goodbye_or_an_error_may_come_first() -> None:
    session = fresh()
    (event,) = session.receive(call(), NOW)
    assert isinstance(event, Broken)
    assert event.code == "protocol.unexpected_type"


def test_a_core_that_never_answers_the_hello_is_given_up() -> None:
    session = fresh()
    assert session.wake_at() == NOW.mono + WELCOME_WITHIN_S
    assert session.wake(later(WELCOME_WITHIN_S - 1)) == []
    (event,) = session.wake(later(WELCOME_WITHIN_S))
    assert isinstance(event, Broken)
    assert session.state is State.CLOSED


def test_the_end_of_the_stream_closes() -> None:
    session = ready()
    assert session.receive(b"", NOW) == []
    assert session.state is State.CLOSED
    assert session.receive(call(), NOW) == []


# --- registration -----------------------------------------------------------------------------------------------------


def test_core_says_which_tools_it_took_and_why_not_the_others() -> None:
    error = {"code": "tool.schema_invalid", "message": "bad", "where": "core.router"}
    events = ready().receive(
        core("core.tools.registered", {"registered": [ECHO], "rejected": [{"tool_id": "x/y", "error": error}]}), NOW
    )
    assert events == [ToolsConfirmed((ECHO,), (("x/y", Fault("tool.schema_invalid", "bad")),))]


def test_tools_can_be_added_replaced_and_withdrawn_while_it_runs() -> None:
    session = ready()
    more = definition("com.example.echo/more")
    session.register([Offer(more, read_echo)], NOW)
    assert "replace" not in spoken(session)[0]["payload"]
    session.receive(call("c-1") + call("c-2", tool_id=more.tool_id), NOW)
    assert session.open_calls == 2
    session.unregister([more.tool_id], NOW)
    assert spoken(session)[0]["payload"] == {"tool_ids": [more.tool_id]}
    events = session.receive(core("core.tools.unregistered", {"unregistered": [more.tool_id]}), NOW)
    assert events == [ToolsWithdrawn((more.tool_id,), ())]
    session.receive(call("c-3", tool_id=more.tool_id), NOW)
    assert spoken(session)[0]["payload"]["error"]["code"] == "tool.not_found"
    session.register([Offer(more, read_echo)], NOW, replace=True)
    assert spoken(session)[0]["payload"]["replace"] is True
    session.receive(call("c-4"), NOW)
    assert spoken(session)[0]["payload"]["error"]["code"] == "tool.not_found"


def test_registering_before_the_welcome_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="greeting"):
        fresh().register([Offer(definition(), read_echo)], NOW)


# --- calls ------------------------------------------------------------------------------------------------------------


def test_a_call_arrives_with_its_arguments_read_and_everything_said_about_it() -> None:
    payload = {
        "timeout_ms": 30_000,
        "idempotency_key": "k-1",
        "caller": {"type": "human", "id": "operator"},
        "context": {"project_root": "/p"},
    }
    (event,) = ready().receive(call(**payload), NOW)
    assert isinstance(event, Called)
    assert event == Called(
        "c-1",
        ECHO,
        {"text": "hi"},
        event.input,
        "k-1",
        30_000,
        messages.Caller("human", "operator"),
        "chat_session:abc",
        event.context,
    )
    assert json.loads(bytes(event.input)) == {"text": "hi"}
    assert event.context is not None
    assert json.loads(bytes(event.context)) == {"project_root": "/p"}


@requirement("OS-040", "OS-041", "OS-042")
@pytest.mark.parametrize("channel", ["stdout", "stderr", "log", "partial_result", "status"])
def test_every_message_about_a_call_echoes_its_ids(channel: Any) -> None:
    session = running()
    data = b'{"json":{}}' if channel == "partial_result" else b'{"text":"x"}'
    session.stream("c-1", channel, data, NOW)
    session.receive(core("core.tool.cancel", {"call_id": "c-1"}), NOW)
    session.finish("c-1", Status.SUCCEEDED, NOW, output=b"{}")
    said = spoken(session)
    assert [one["type"] for one in said] == ["agent.tool.stream", "agent.tool.cancel_ack", "agent.tool.result"]
    for one in said:
        assert {name: one.get(name) for name in IDS} == IDS


@requirement("OS-040", "OS-041", "OS-042", "OS-106")
def test_a_refused_input_is_answered_with_the_ids_of_its_call_too() -> None:
    session = ready()
    session.receive(call(body={"text": 1}), NOW)
    (result,) = spoken(session)
    assert {name: result.get(name) for name in IDS} == IDS


@requirement("OS-105", "OS-106")
@pytest.mark.parametrize("body", [{}, {"text": 7}, {"text": "x", "typo": 1}])
def test_an_invalid_input_fails_without_a_run(body: object) -> None:
    session = ready()
    assert session.receive(call(body=body), NOW) == []
    (result,) = spoken(session)
    assert result["type"] == "agent.tool.result"
    assert result["payload"]["status"] == "failed"
    assert result["payload"]["error"]["code"] == "tool.invalid_input"
    assert session.open_calls == 0


@requirement("OS-097", "OS-106")
@pytest.mark.parametrize("body", [[], "text", 3])
def test_an_input_that_is_no_object_fails_without_a_run(body: object) -> None:
    session = ready()
    assert session.receive(call(body=body), NOW) == []
    assert spoken(session)[0]["payload"]["error"]["code"] == "tool.invalid_input"


def test_a_tool_that_is_not_offered_is_not_found() -> None:
    session = ready()
    assert session.receive(call(tool_id="com.example.echo/other"), NOW) == []
    (result,) = spoken(session)
    assert result["payload"]["error"]["code"] == "tool.not_found"
    assert result["payload"]["error"]["where"] == "agent.runtime"


@requirement("OS-108", "OS-112")
def test_stream_numbers_count_from_one_for_each_call_and_stop_after_done() -> None:
    session = ready()
    session.receive(call("c-1") + call("c-2"), NOW)
    for call_id in ("c-1", "c-2", "c-1"):
        assert session.stream(call_id, "log", b'{"text":"x"}', NOW)
    assert session.stream("c-1", "log", b'{"text":"last"}', NOW, done=True)
    assert not session.stream("c-1", "log", b'{"text":"too late"}', NOW)
    chunks = [one["payload"] for one in spoken(session)]
    assert [(chunk["call_id"], chunk["seq"]) for chunk in chunks] == [("c-1", 1), ("c-2", 1), ("c-1", 2), ("c-1", 3)]
    assert [chunk.get("done") for chunk in chunks] == [None, None, None, True]
    session.finish("c-1", Status.SUCCEEDED, NOW, output=b"{}")
    assert spoken(session)[0]["type"] == "agent.tool.result"


@requirement("OS-122", "OS-116", "OS-117", "OS-120")
def test_a_call_has_exactly_one_result() -> None:
    session = running()
    session.finish("c-1", Status.SUCCEEDED, later(2), output=b'{"text":"hi"}')
    (result,) = spoken(session)
    assert result["payload"] == {
        "call_id": "c-1",
        "status": "succeeded",
        "output": {"text": "hi"},
        "started_at": "2026-05-28T20:26:40.000Z",
        "finished_at": "2026-05-28T20:26:42.000Z",
    }
    with pytest.raises(LocalProtocolError, match="exactly one result"):
        session.finish("c-1", Status.FAILED, NOW, error=fault("tool.failed"))
    with pytest.raises(LocalProtocolError):
        session.stream("c-1", "log", b'{"text":"x"}', NOW)
    assert session.take_output() == b""


def test_a_call_that_is_sent_again_while_it_runs_is_one_call_and_answers_the_latest_delivery() -> None:
    session = running()
    again = core("core.tool.call", {"call_id": "c-1", "tool_id": ECHO, "input": {"text": "hi"}}, request_id="r-2")
    assert session.receive(again, NOW) == []
    assert session.open_calls == 1
    session.finish("c-1", Status.SUCCEEDED, NOW, output=b"{}")
    (result,) = spoken(session)
    assert result["request_id"] == "r-2"
    assert "correlation_id" not in result


@requirement("OS-026")
def test_calls_may_be_answered_in_any_order() -> None:
    session = ready()
    session.receive(call("c-1") + call("c-2"), NOW)
    session.finish("c-2", Status.SUCCEEDED, NOW, output=b"{}")
    session.finish("c-1", Status.SUCCEEDED, NOW, output=b"{}")
    assert [one["payload"]["call_id"] for one in spoken(session)] == ["c-2", "c-1"]


@requirement("OS-054", "OS-055", "OS-056", "OS-119")
def test_errors_are_structured_and_carry_no_debug_object() -> None:
    session = ready()
    session.receive(call("c-1", {"text": 1}) + call("c-2") + core("core.what", request_id="r") + call("c-3"), NOW)
    session.finish("c-2", Status.FAILED, NOW, error=fault("tool.failed", details={"step": 3}))
    session.finish("c-3", Status.CANCELED, NOW, error=fault("tool.canceled"))
    said = spoken(session)
    errors = [one["payload"]["error"] if one["type"] == "agent.tool.result" else one["error"] for one in said]
    assert [error["code"] for error in errors] == [
        "tool.invalid_input",
        "protocol.unknown_type",
        "tool.failed",
        "tool.canceled",
    ]
    assert b"debug" not in json.dumps(said).encode()
    assert errors[2]["details"] == {"step": 3}


# --- cancellation -----------------------------------------------------------------------------------------------------


@requirement("OS-127", "OS-125")
def test_a_cancel_is_acknowledged_and_the_result_is_still_owed() -> None:
    session = running()
    events = session.receive(core("core.tool.cancel", {"call_id": "c-1", "reason": "r", "deadline_ms": 5000}), NOW)
    assert events == [CancelAsked("c-1", "r", 5000)]
    (ack,) = spoken(session)
    assert ack["type"] == "agent.tool.cancel_ack"
    assert ack["payload"] == {"call_id": "c-1", "accepted": True}
    assert ack["in_reply_to"] == "core-core.tool.cancel"
    assert session.is_open("c-1")


@requirement("OS-126", "OS-127")
def test_a_cancel_that_comes_after_the_result_is_not_accepted() -> None:
    session = running()
    session.finish("c-1", Status.SUCCEEDED, NOW, output=b"{}")
    spoken(session)
    assert session.receive(core("core.tool.cancel", {"call_id": "c-1"}, request_id="r-9"), NOW) == []
    (ack,) = spoken(session)
    assert ack["payload"]["accepted"] is False
    assert ack["request_id"] == "r-9"


@requirement("OS-123")
def test_a_canceled_result_names_its_code() -> None:
    session = running()
    session.finish("c-1", Status.CANCELED, NOW, error=fault("tool.canceled"))
    assert spoken(session)[0]["payload"]["error"]["code"] == "tool.canceled"


# --- heartbeats, ping, goodbye ----------------------------------------------------------------------------------------


@requirement("OS-128", "OS-129", "OS-130", "OS-131")
def test_heartbeats_come_at_the_interval_of_the_welcome() -> None:
    session = running(heartbeat_interval_ms=500)
    session.take_output()
    beats = []
    for step in range(1, 41):
        session.wake(later(step / 10))
        beats += [(step, one) for one in spoken(session)]
    assert [step for step, _ in beats] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert beats[1][1]["payload"] == {"session_id": "s-1", "uptime_ms": 1000, "inflight_calls": 1, "status": "ok"}
    session.report("degraded", later(4), b'{"queue":7}')
    (beat,) = spoken(session)
    assert beat["payload"]["status"] == "degraded"
    assert beat["payload"]["details"] == {"queue": 7}


def test_after_a_long_sleep_one_heartbeat_is_sent_and_not_one_for_each_missed() -> None:
    session = ready()
    session.wake(later(3600))
    assert len(spoken(session)) == 1
    assert session.wake_at() == NOW.mono + 3610


@requirement("OS-134")
def test_a_ping_gets_a_pong() -> None:
    session = ready()
    session.receive(core("core.ping", request_id="r-7"), NOW)
    (pong,) = spoken(session)
    assert (pong["type"], pong["in_reply_to"], pong["request_id"]) == ("agent.pong", "core-core.ping", "r-7")


@requirement("OS-075", "OS-076")
def test_a_goodbye_tells_when_to_come_back_and_open_calls_may_still_be_answered() -> None:
    session = running()
    events = session.receive(core("core.goodbye", {"reason": "draining", "retry_after_ms": 250}), NOW)
    assert events == [Dismissed("draining", 250)]
    assert session.state is State.LEAVING
    session.finish("c-1", Status.SUCCEEDED, NOW, output=b"{}")
    assert spoken(session)[0]["type"] == "agent.tool.result"
    assert session.wake(later(CLOSE_WITHIN_S)) == []
    assert session.state is State.CLOSED


# --- calling others ---------------------------------------------------------------------------------------------------


def test_an_own_call_is_sent_with_its_ids_and_its_answer_is_matched_by_name() -> None:
    session = ready()
    first = session.call("a/b", b'{"n":1}', NOW, key="k", timeout_ms=9, correlation_id="x", causation_id="c-1")
    second = session.call("a/b", b"{}", NOW)
    said = spoken(session)
    assert said[0]["type"] == "agent.tool.call"
    assert said[0]["payload"] == {
        "call_id": first,
        "tool_id": "a/b",
        "input": {"n": 1},
        "timeout_ms": 9,
        "idempotency_key": "k",
    }
    assert (said[0]["request_id"], said[0]["correlation_id"], said[0]["causation_id"]) == (first, "x", "c-1")
    chunk = {"call_id": second, "seq": 1, "channel": "status", "data": {"text": "waiting"}}
    (progress,) = session.receive(core("core.tool.stream", chunk), NOW)
    assert isinstance(progress, Progressed)
    assert progress.ref == second
    answer = {"call_id": second, "status": "succeeded", "output": {"n": 2}, "exchange_call_id": "e-2"}
    (answered,) = session.receive(core("core.tool.result", answer), NOW)
    assert isinstance(answered, Answered)
    assert (answered.ref, answered.status, answered.exchange_call_id) == (second, Status.SUCCEEDED, "e-2")
    assert session.receive(core("core.tool.result", answer), NOW) == []


@pytest.mark.parametrize("at_top", [False, True])
def test_the_error_of_an_answer_is_read_from_the_payload_or_from_the_top(at_top: bool) -> None:
    session = ready()
    ref = session.call("a/b", b"{}", NOW)
    error = {"code": "tool.disconnected", "message": "m", "retryable": False, "details": {"outcome": "unknown"}}
    other = {"code": "tool.failed", "message": "not meant"}
    answer = {"call_id": ref, "status": "failed", **({} if at_top else {"error": error})}
    (answered,) = session.receive(core("core.tool.result", answer, error=error if at_top else other), NOW)
    assert answered == Answered(
        ref, Status.UNKNOWN, None, Fault("tool.disconnected", "m", False, {"outcome": "unknown"})
    )


def test_an_error_of_core_about_an_own_call_is_its_answer_and_any_other_is_a_complaint() -> None:
    session = ready()
    ref = session.call("a/b", b"{}", NOW)
    error = {"code": "protocol.invalid_message", "message": "m"}
    (answered,) = session.receive(core("core.error", {}, error=error, request_id=ref, in_reply_to="x"), NOW)
    assert isinstance(answered, Answered)
    assert answered.fault == Fault("protocol.invalid_message", "m")
    (complaint,) = session.receive(core("core.error", {}, error=error, in_reply_to="x"), NOW)
    assert complaint == Complained("protocol.invalid_message", "m")


def test_an_own_call_can_be_canceled_until_it_is_answered() -> None:
    session = ready()
    ref = session.call("a/b", b"{}", NOW)
    spoken(session)
    session.cancel(ref, "enough", NOW)
    (cancel,) = spoken(session)
    assert cancel["type"] == "agent.tool.cancel"
    assert cancel["payload"] == {"call_id": ref, "reason": "enough"}
    session.receive(core("core.tool.result", {"call_id": ref, "status": "canceled"}), NOW)
    session.cancel(ref, "enough", NOW)
    assert session.take_output() == b""


def test_what_core_did_not_agree_to_is_not_sent() -> None:
    session = ready(capabilities=["directives"])
    with pytest.raises(LocalProtocolError, match="calls"):
        session.call("a/b", b"{}", NOW)
    assert session.take_output() == b""


@requirement("OS-158")
def test_a_directive_is_asked_for_and_its_id_comes_back() -> None:
    session = ready()
    ref = session.request_directive("a/b", b'{"n":1}', "because", NOW)
    (asked,) = spoken(session)
    assert asked["type"] == "agent.directive.request"
    assert asked["payload"] == {"tool_id": "a/b", "reason": "because", "input": {"n": 1}}
    assert asked["id"] == ref
    assert asked["request_id"]
    made = {"tool_id": "a/b", "status": "waiting_approval", "approval_id": "a1"}
    assert session.receive(core("core.directive.create", made, in_reply_to=ref), NOW) == []
    made = {"tool_id": "a/b", "status": "stated", "directive_id": "d1"}
    assert session.receive(core("core.directive.create", made, in_reply_to=ref), NOW) == [DirectiveAnswered(ref, "d1")]
    assert session.receive(core("core.directive.create", made, in_reply_to=ref), NOW) == []


@requirement("OS-158")
@pytest.mark.parametrize(
    ("type_", "payload"), [("core.directive.create", {"tool_id": "a/b", "status": "refused"}), ("core.error", {})]
)
def test_a_directive_that_is_refused_comes_back_with_its_fault(type_: str, payload: dict[str, object]) -> None:
    session = ready()
    ref = session.request_directive("a/b", None, "because", NOW)
    error = {"code": "policy.denied", "message": "no"}
    events = session.receive(core(type_, payload, in_reply_to=ref, error=error), NOW)
    assert events == [DirectiveAnswered(ref, None, Fault("policy.denied", "no"))]


@requirement("OS-016")
def test_an_own_call_that_no_frame_holds_is_refused_here() -> None:
    session = ready(max_frame_bytes=8192)
    with pytest.raises(LocalProtocolError, match="8192"):
        session.call("a/b", b'{"a":"%b"}' % (b"x" * 8192), NOW)
    assert session.take_output() == b""

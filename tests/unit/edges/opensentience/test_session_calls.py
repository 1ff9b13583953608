"""Calls that the agent is given: sent, streamed, finished, canceled."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import (
    AGENT,
    CALL,
    ECHO,
    SESSION,
    TOOL,
    Talk,
    chunk,
    deliver,
    envelope,
    frame,
    hello,
    ready,
    result,
)
from trunkline.edges.opensentience.calls import MAX_REMEMBERED_CALLS, MAX_STREAM_BYTES
from trunkline.edges.opensentience.session import MAX_NOTES
from trunkline.effects import Cancel
from trunkline.events import CallFinished, CallProgressed, CancelAcknowledged, Noticed
from trunkline.model import Actor, Fault, Status, fault


def running(**settings: Any) -> Talk:
    talk = ready(**settings)
    talk.send(deliver())
    return talk


def finished(events: list[Any]) -> CallFinished:
    (event,) = [event for event in events if isinstance(event, CallFinished)]
    return event


# --- sending ----------------------------------------------------------------------------------------------------------


@requirement("OS-035", "OS-038", "OS-039", "OS-046", "OS-095", "OS-096", "OS-097", "OS-098", "OS-099", "OS-100")
def test_a_delivered_call_is_a_core_tool_call_with_its_ids() -> None:
    (said,) = ready().send(deliver(timeout_ms=30_000, key="k-1", causation_id="d-1"))
    uuid.UUID(said.pop("id"))
    uuid.UUID(said["request_id"])
    assert said == {
        "v": 1,
        "type": "core.tool.call",
        "ts": "2026-01-16T12:00:00.000Z",
        "request_id": CALL,
        "correlation_id": "chat:1",
        "causation_id": "d-1",
        "actor": {"type": "human", "id": "operator"},
        "payload": {
            "call_id": CALL,
            "tool_id": TOOL,
            "input": {"text": "hi"},
            "timeout_ms": 30_000,
            "idempotency_key": "k-1",
            "caller": {"type": "human", "id": "operator"},
        },
    }


@requirement("OS-037", "OS-043", "OS-100", "OS-101")
def test_a_call_of_another_agent_names_it_and_passes_its_context_on() -> None:
    context = b'{"project_root":"/p","resource_paths":["a"],"ui":{},"more":1}'
    actor = Actor("human", "u-1", "Ada")
    (said,) = ready().send(deliver(caller="opensentience:com.example.b", context=Raw(context), actor=actor))
    assert said["payload"]["caller"] == {"type": "agent", "id": "opensentience:com.example.b"}
    assert said["payload"]["context"] == json.loads(context)
    assert said["actor"] == {"type": "human", "id": "u-1", "display": "Ada"}
    (said,) = ready().send(deliver(caller="opensentience:com.example.b"))
    assert "actor" not in said


@requirement("OS-009", "OS-097")
def test_an_input_leaves_as_the_bytes_it_came_as() -> None:
    body = b'{ "n": 123456789012345678901234567890, "f": 1.50, "s": "\\u00e9" }'
    talk = ready()
    talk.session.send(deliver(input=Raw(body)), talk.now)
    assert body in talk.session.take_output()


@requirement("OS-016")
def test_a_call_that_does_not_fit_into_a_frame_is_finished_at_once() -> None:
    talk = ready(max_frame_bytes=2000)
    assert talk.send(deliver(input=Raw(b'{"text":"' + b"x" * 2000 + b'"}'))) == []
    ended = finished(talk.events)
    assert ended.call_id == CALL
    assert ended.status is Status.FAILED
    assert ended.fault is not None
    assert ended.fault.code == "tool.invalid_input"


# --- results ----------------------------------------------------------------------------------------------------------


@requirement("OS-116", "OS-117", "OS-118", "OS-120", "OS-121")
def test_a_result_finishes_its_call() -> None:
    times = {"started_at": "2026-01-16T12:00:01Z", "finished_at": "2026-01-16T12:00:02+01:00"}
    events = running().tell("agent.tool.result", result(metrics={"ms": 3}, **times), **ECHO)
    assert events == [
        CallFinished(
            SESSION,
            CALL,
            Status.SUCCEEDED,
            Raw(b'{"ok": true}'),
            None,
            "2026-01-16T12:00:01Z",
            "2026-01-16T12:00:02+01:00",
            Raw(b'{"ms": 3}'),
            {"ok": True},
        )
    ]


@requirement("OS-118")
@pytest.mark.parametrize("output", [..., None])
def test_a_result_may_come_without_output(output: Any) -> None:
    assert finished(running().tell("agent.tool.result", result(output=output), **ECHO)).output is None


@requirement("OS-119", "OS-123")
@pytest.mark.parametrize(
    ("fields", "top", "expected"),
    [
        ({}, {}, fault("tool.failed")),
        ({"error": {"code": "tool.failed", "message": "boom"}}, {}, Fault("tool.failed", "boom")),
        (
            {"error": {"code": "weather.no_such_city", "message": "m", "retryable": True, "details": {"a": 1}}},
            {},
            Fault("weather.no_such_city", "m", True, {"a": 1}),
        ),
        ({}, {"error": {"code": "tool.timeout", "message": "top"}}, Fault("tool.timeout", "top")),
        (
            {"error": {"code": "tool.failed", "message": "payload"}},
            {"error": {"code": "tool.timeout", "message": "top"}},
            Fault("tool.failed", "payload"),
        ),
        ({"error": {"code": "NOT A CODE", "message": "m"}}, {}, Fault("tool.failed", "m")),
        ({"error": {"code": "policy.denied", "message": "m"}}, {}, Fault("tool.failed", "m")),
        ({"error": {"code": "limit.rate", "message": "m"}}, {}, Fault("tool.failed", "m")),
        ({"error": {"code": "tool.unavailable", "message": "m"}}, {}, Fault("tool.unavailable", "m", True)),
        ({"status": "canceled"}, {}, fault("tool.canceled")),
        (
            {"status": "canceled", "error": {"code": "tool.canceled_by_user", "message": "m"}},
            {},
            Fault("tool.canceled_by_user", "m"),
        ),
    ],
)
def test_a_failure_keeps_the_agents_code_but_never_one_of_ours(
    fields: dict[str, Any], top: dict[str, Any], expected: Fault
) -> None:
    ended = finished(
        running().tell("agent.tool.result", result(**{"status": "failed", "output": ..., **fields}), **top)
    )
    assert ended.fault == expected
    assert ended.status.value == fields.get("status", "failed")


@requirement("OS-117", "OS-118", "OS-120")
@pytest.mark.parametrize(
    "fields",
    [
        {"status": "cancelled"},
        {"status": 1},
        {"status": ...},
        {"output": []},
        {"output": "x"},
        {"metrics": []},
        {"started_at": "yesterday"},
        {"finished_at": "2026-01-16T12:00:00"},
        {"error": "boom"},
        {"status": "failed", "error": {"code": "x"}},
    ],
)
def test_a_bad_result_of_a_known_call_settles_it_and_the_conversation_goes_on(fields: dict[str, Any]) -> None:
    talk = running()
    ended = finished(talk.tell("agent.tool.result", result(**fields), **ECHO))
    assert (ended.call_id, ended.status) == (CALL, Status.FAILED)
    assert ended.fault is not None
    assert ended.fault.code == "tool.invalid_output"
    (said,) = talk.said()
    assert said["type"] == "core.error"
    assert said["in_reply_to"] == "id-of-agent.tool.result"
    assert said["request_id"] == CALL
    assert said["error"]["code"] == "protocol.invalid_message"
    assert talk.state == "ready"
    # Its one outcome is there: a good result afterwards is one more, for the hub to put on record.
    assert len(talk.tell("agent.tool.result", result(), **ECHO)) == 1


def test_a_bad_result_of_no_call_is_only_complained_about() -> None:
    talk = ready()
    events = talk.tell("agent.tool.result", result(status="cancelled"))
    assert [type(event) for event in events] == [Noticed]
    assert talk.said()[0]["type"] == "core.error"


@requirement("OS-122")
def test_a_second_or_stray_result_is_passed_on_for_the_record() -> None:
    talk = running()
    talk.tell("agent.tool.result", result(), **ECHO)
    assert finished(talk.tell("agent.tool.result", result(status="failed"), **ECHO)).status is Status.FAILED
    assert finished(talk.tell("agent.tool.result", result("never-heard-of"))).call_id == "never-heard-of"


@requirement("OS-026")
def test_results_may_come_in_any_order() -> None:
    talk = ready()
    for n in range(4):
        talk.send(deliver(f"c{n}"))
    order = ["c2", "c0", "c3", "c1"]
    data = b"".join(
        frame(envelope("agent.tool.result", result(c), request_id=c, correlation_id="chat:1")) for c in order
    )
    assert [event.call_id for event in talk.receive(data) if isinstance(event, CallFinished)] == order
    assert talk.notes() == []


@requirement("OS-040", "OS-041", "OS-042")
@pytest.mark.parametrize(
    ("echo", "missing"),
    [
        (ECHO | {"causation_id": "d-1"}, []),
        ({"correlation_id": "chat:1", "causation_id": "d-1"}, ["request_id"]),
        ({"request_id": "other", "correlation_id": "chat:1", "causation_id": "d-1"}, ["request_id"]),
        ({"request_id": CALL, "causation_id": "d-1"}, ["correlation_id"]),
        (ECHO, ["causation_id"]),
        ({}, ["request_id", "correlation_id", "causation_id"]),
    ],
)
@pytest.mark.parametrize("type_", ["agent.tool.result", "agent.tool.stream"])
def test_a_missing_echo_is_recorded_and_never_demanded(type_: str, echo: dict[str, str], missing: list[str]) -> None:
    talk = ready()
    for call_id in (CALL, "c2"):
        talk.send(deliver(call_id, causation_id="d-1"))
    for call_id in (CALL, "c2"):
        payload = result(call_id) if type_ == "agent.tool.result" else chunk(1, call_id)
        talk.tell(type_, payload, **(echo if call_id == CALL else {}))
    noted = [event.detail for event in talk.events if isinstance(event, Noticed) and event.code == "echo.missing"]
    # Once for each field, however many messages lack it.
    assert len(noted) == 3
    assert [detail.rsplit(" ", 1)[1] for detail in noted[: len(missing)]] == missing
    assert len(talk.events) == 5
    assert talk.said() == []


# --- streams ----------------------------------------------------------------------------------------------------------


@requirement("OS-107", "OS-109", "OS-110", "OS-111")
@pytest.mark.parametrize(
    ("channel", "data"),
    [
        ("stdout", {"text": "a"}),
        ("stderr", {"text": ""}),
        ("log", {"text": "é"}),
        ("status", {"text": "half", "percent": 50}),
        ("partial_result", {"json": {"rows": []}}),
    ],
)
def test_chunks_pass_with_their_data_as_received(channel: str, data: dict[str, Any]) -> None:
    events = running().tell("agent.tool.stream", chunk(1, channel=channel, data=data), **ECHO)
    assert events == [CallProgressed(SESSION, CALL, 1, channel, Raw(json.dumps(data).encode()), False)]


@requirement("OS-109", "OS-110", "OS-111")
@pytest.mark.parametrize(
    "fields",
    [
        {"channel": "video"},
        {"channel": "STDOUT"},
        {"data": "text"},
        {"data": {}},
        {"data": {"text": 1}},
        {"data": {"json": {}}},
        {"channel": "partial_result"},
        {"channel": "partial_result", "data": {"json": []}},
        {"channel": "partial_result", "data": {"json": "x"}},
        {"seq": 1.0},
        {"seq": "1"},
        {"seq": True},
        {"seq": 2**53 + 1},
        {"seq": ...},
        {"done": "yes"},
        {"call_id": ""},
    ],
)
def test_a_chunk_of_the_wrong_form_is_complained_about_and_the_stream_goes_on(fields: dict[str, Any]) -> None:
    talk = running()
    events = talk.tell("agent.tool.stream", chunk(**fields), **ECHO)
    assert [type(event) for event in events] == [Noticed]
    (said,) = talk.said()
    assert (said["type"], said["error"]["code"]) == ("core.error", "protocol.invalid_message")
    assert [type(event) for event in talk.tell("agent.tool.stream", chunk(1), **ECHO)] == [CallProgressed]


@requirement("OS-108")
def test_repeated_and_lower_numbers_are_dropped_and_noted() -> None:
    talk = running()
    seqs = [0, -1, 1, 1, 2, 1, 3]
    for seq in seqs:
        talk.tell("agent.tool.stream", chunk(seq), **ECHO)
    assert [event.seq for event in talk.events if isinstance(event, CallProgressed)] == [1, 2, 3]
    assert talk.notes() == ["stream.repeated"]


@requirement("OS-108")
def test_a_gap_is_noted_and_the_stream_goes_on() -> None:
    talk = running()
    for seq in (1, 4, 5, 9):
        talk.tell("agent.tool.stream", chunk(seq), **ECHO)
    assert [event.seq for event in talk.events if isinstance(event, CallProgressed)] == [1, 4, 5, 9]
    assert talk.notes() == ["stream.gap"]


@requirement("OS-112")
def test_after_done_nothing_more_is_shown_but_the_result_is_taken() -> None:
    talk = running()
    (last,) = talk.tell("agent.tool.stream", chunk(1, done=True), **ECHO)
    assert isinstance(last, CallProgressed)
    assert last.done
    talk.tell("agent.tool.stream", chunk(2), **ECHO)
    assert talk.notes() == ["stream.after_end"]
    assert finished(talk.tell("agent.tool.result", result(), **ECHO)).status is Status.SUCCEEDED


@requirement("OS-107")
def test_a_stream_of_no_open_call_is_ignored_and_noted_once() -> None:
    talk = running()
    for seq in range(1, 9):
        assert [type(e) for e in talk.tell("agent.tool.stream", chunk(seq, "other"))] in ([], [Noticed])
    talk.tell("agent.tool.result", result(), **ECHO)
    talk.tell("agent.tool.stream", chunk(1), **ECHO)
    assert talk.notes() == ["stream.ignored", "stream.ignored"]


def test_a_stream_has_eight_mebibytes_and_the_rest_is_dropped_and_noted() -> None:
    talk = running()
    text = "x" * 1_048_000
    for seq in range(1, 12):
        talk.tell("agent.tool.stream", chunk(seq, data={"text": text}), **ECHO)
    shown = [event for event in talk.events if isinstance(event, CallProgressed)]
    assert sum(len(bytes(event.data)) for event in shown) <= MAX_STREAM_BYTES
    assert len(shown) == 8
    assert talk.notes() == ["stream.too_large", "stream.after_end"]
    assert finished(talk.tell("agent.tool.result", result(), **ECHO)).status is Status.SUCCEEDED


# --- cancellation -----------------------------------------------------------------------------------------------------


@requirement("OS-124")
@pytest.mark.parametrize("declared_by", ["agent", "tool"])
def test_a_cancel_is_sent_where_it_would_be_heard(declared_by: str) -> None:
    talk = Talk()
    capabilities = ["tools", "cancellation"] if declared_by == "agent" else ["tools"]
    talk.admit(protocol={**hello()["protocol"], "capabilities": capabilities})
    talk.register("echo", capabilities=["cancellation"] if declared_by == "tool" else [])
    talk.send(deliver(causation_id="d-1"))
    (said,) = talk.send(Cancel(SESSION, 0, CALL, "timeout", 5000))
    assert said["type"] == "core.tool.cancel"
    assert said["payload"] == {"call_id": CALL, "reason": "timeout", "deadline_ms": 5000}
    assert (said["request_id"], said["correlation_id"], said["causation_id"]) == (CALL, "chat:1", "d-1")


def test_a_cancel_is_not_sent_where_nobody_would_hear_it() -> None:
    talk = ready()
    talk.register("echo")
    talk.send(deliver())
    assert talk.send(Cancel(SESSION, 0, CALL, "timeout", 5000)) == []
    talk.register("echo", capabilities=["cancellation"])
    talk.register("echo")
    talk.send(deliver("c2"))
    assert talk.send(Cancel(SESSION, 0, "c2", "timeout", 5000)) == []
    assert talk.send(Cancel(SESSION, 0, "not given", "timeout", 5000)) == []


@requirement("OS-126", "OS-127")
def test_an_acknowledged_cancel_still_waits_for_the_result_whatever_it_is() -> None:
    talk = running()
    (ack,) = talk.tell("agent.tool.cancel_ack", {"call_id": CALL, "accepted": True, "note": "stopping"}, **ECHO)
    assert ack == CancelAcknowledged(SESSION, CALL, True)
    assert finished(talk.tell("agent.tool.result", result(), **ECHO)).status is Status.SUCCEEDED


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_calls_that_are_never_answered_are_forgotten_the_oldest_first() -> None:
    talk = ready()
    for n in range(MAX_REMEMBERED_CALLS + 10):
        talk.session.send(deliver(f"c{n}"), talk.now)
    talk.said()
    talk.tell("agent.tool.stream", chunk(1, "c9"))
    assert talk.notes() == ["stream.ignored"]
    events = talk.tell("agent.tool.stream", chunk(1, "c10"), request_id="c10", correlation_id="chat:1")
    assert [type(event) for event in events] == [CallProgressed]
    # Its result is passed on all the same.
    assert finished(talk.tell("agent.tool.result", result("c9"))).call_id == "c9"


def test_one_agent_cannot_fill_the_record_with_notes() -> None:
    talk = ready()
    for n in range(MAX_NOTES + 50):
        talk.tell("agent.tool.stream", chunk(1, f"stray-{n}"))
    assert len(talk.events) == MAX_NOTES


@requirement("OS-047")
def test_an_actor_is_passed_on_and_changes_nobodys_identity() -> None:
    talk = ready()
    call = {"call_id": "mine", "tool_id": "a/b", "input": {}}
    actor = {"type": "human", "id": "operator"}
    (asked,) = talk.tell("agent.tool.call", call, request_id="r", actor=actor)
    assert asked.caller.identity == f"opensentience:{AGENT}"  # type: ignore[attr-defined]
    assert asked.actor == Actor("human", "operator")  # type: ignore[attr-defined]

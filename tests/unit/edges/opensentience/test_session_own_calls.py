"""Calls and wishes of the agent itself: asked, waited for, answered."""

from __future__ import annotations

import re
import tracemalloc
import uuid
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import AGENT, CALL, SESSION, Talk, ready
from trunkline.edges.opensentience.translate import WIRE_CODES
from trunkline.effects import Answer, Deliver, Progress, Reply, Wait
from trunkline.errors import LocalProtocolError
from trunkline.events import CallFinished, CallRequested, CancelRequested, DirectiveRequested, Noticed
from trunkline.model import FAULTS, Fault, Principal, Status, fault

ME = Principal(f"opensentience:{AGENT}")
OTHER = "com.example.other/sum"
IDS = {"request_id": "r-1", "correlation_id": "chat:9", "causation_id": "c-0"}


def ask(talk: Talk, call_id: str = "mine-1", *, message_id: str = "m-1", **fields: Any) -> list[Any]:
    payload = {"call_id": call_id, "tool_id": OTHER, "input": {"a": 1}, **fields}
    return talk.tell("agent.tool.call", payload, id=message_id, **IDS)


def answer(ref: str = "mine-1", **fields: Any) -> Answer:
    given = {"status": Status.SUCCEEDED, "output": Raw(b'{"sum":3}'), **fields}
    return Answer(SESSION, 0, ref, CALL, **given)


def test_an_agents_call_becomes_a_request_under_its_own_name() -> None:
    talk = ready()
    context = {"project_root": "/p", "resource_paths": ["a"], "ui": {"x": 1}}
    (asked,) = ask(talk, timeout_ms=9, idempotency_key="k", context=context)
    assert asked == CallRequested(
        SESSION,
        "mine-1",
        ME,
        OTHER,
        Raw(b'{"a": 1}'),
        "k",
        9,
        "chat:9",
        "c-0",
        None,
        asked.context,
        value={"a": 1},
    )
    assert bytes(asked.context) == b'{"project_root": "/p", "resource_paths": ["a"], "ui": {"x": 1}}'


def test_the_answer_carries_the_callers_name_ours_and_its_ids() -> None:
    talk = ready()
    ask(talk)
    (said,) = talk.send(answer(started_ms=1_768_564_800_001, finished_ms=1_768_564_801_000, correlation_id="x"))
    uuid.UUID(said.pop("id"))
    assert said == {
        "v": 1,
        "type": "core.tool.result",
        "ts": "2026-01-16T12:00:00.000Z",
        "in_reply_to": "m-1",
        "request_id": "r-1",
        "correlation_id": "chat:9",
        "causation_id": "c-0",
        "payload": {
            "call_id": "mine-1",
            "status": "succeeded",
            "output": {"sum": 3},
            "started_at": "2026-01-16T12:00:00.001Z",
            "finished_at": "2026-01-16T12:00:01.000Z",
            "exchange_call_id": CALL,
        },
    }


@pytest.mark.parametrize(
    ("status", "problem", "wire_status", "wire_error"),
    [
        (Status.FAILED, fault("tool.failed", "boom"), "failed", ("tool.failed", False, None)),
        (Status.CANCELED, fault("tool.canceled"), "canceled", ("tool.canceled", False, None)),
        (Status.UNKNOWN, fault("agent.lost"), "failed", ("tool.disconnected", False, {"outcome": "unknown"})),
        (
            Status.UNKNOWN,
            Fault("tool.timeout", "t", True, {"a": 1}),
            "failed",
            ("tool.timeout", False, {"a": 1, "outcome": "unknown"}),
        ),
        (Status.FAILED, fault("limit.rate"), "failed", ("protocol.throttled", True, None)),
        (Status.FAILED, fault("limit.inflight"), "failed", ("protocol.throttled", True, None)),
        (Status.FAILED, fault("message.malformed"), "failed", ("protocol.invalid_message", False, None)),
        (Status.FAILED, fault("auth.failed"), "failed", ("protocol.unauthorized", False, None)),
        (Status.FAILED, fault("policy.denied"), "failed", ("policy.denied", False, None)),
        (Status.FAILED, fault("hub.unavailable"), "failed", ("hub.unavailable", True, None)),
    ],
)
def test_an_outcome_is_said_in_this_wires_words(
    status: Status, problem: Fault, wire_status: str, wire_error: tuple[str, bool, Any]
) -> None:
    talk = ready()
    ask(talk)
    (said,) = talk.send(answer(status=status, output=None, fault=problem, refused=True))
    payload = said["payload"]
    error = payload["error"]
    assert payload["status"] == wire_status
    assert "output" not in payload
    assert (error["code"], error["retryable"], error.get("details")) == wire_error
    assert error["message"] == problem.message
    assert error["where"] == "core.router"


@requirement("OS-049")
def test_no_fault_becomes_more_retryable_and_every_code_has_the_wires_form() -> None:
    retryable_on_the_wire = {"protocol.throttled", "tool.unavailable", "hub.unavailable", "limit.resource"}
    for code, row in FAULTS.items():
        wire_code = WIRE_CODES.get(code, code)
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", wire_code), code
        if not row.retryable:
            assert wire_code not in retryable_on_the_wire, code


def test_the_name_of_an_open_call_cannot_be_used_twice() -> None:
    talk = ready()
    ask(talk)
    assert [type(event) for event in ask(talk, message_id="m-2")] == [Noticed]
    (said,) = talk.said()
    assert (said["type"], said["error"]["code"]) == ("core.error", "protocol.duplicate_id")
    assert (said["in_reply_to"], said["request_id"]) == ("m-2", "r-1")
    talk.send(answer())
    assert [type(event) for event in ask(talk)] == [CallRequested]


def test_what_is_remembered_of_an_open_call_is_small_however_large_its_message_was() -> None:
    """Those who wait for one call under its key are counted, not weighed."""
    talk = ready()
    tracemalloc.start()
    try:
        for number in range(8):
            ask(talk, f"mine-{number}", idempotency_key="k", input={"text": "x" * 1_000_000})
            talk.events.clear()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


def test_a_body_does_not_keep_the_junk_that_came_beside_it() -> None:
    """Limits weigh the body; a view of its frame would hold all of it."""
    talk = ready()
    talk.send(Deliver(SESSION, 0, CALL, "com.example.echo/say", Raw(b"{}"), "operator", "c"))
    tracemalloc.start()
    try:
        for number in range(8):
            ask(talk, f"mine-{number}", input={"a": number}, context={"ui": {}}, junk="x" * 1_000_000)
        talk.tell("agent.tool.result", {"call_id": CALL, "status": "succeeded", "output": {}, "junk": "x" * 1_000_000})
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bodies = [event.input for event in talk.events if isinstance(event, CallRequested)]
    assert [bytes(body) for body in bodies] == [b'{"a": %d}' % number for number in range(8)]
    assert sum(isinstance(event, CallFinished) for event in talk.events) == 1
    assert kept < 1_000_000


def test_a_call_needs_its_request_id() -> None:
    talk = ready()
    talk.tell("agent.tool.call", {"call_id": "c", "tool_id": OTHER, "input": {}})
    (said,) = talk.said()
    assert said["error"]["code"] == "protocol.invalid_message"
    assert "request_id" in said["error"]["message"]
    assert [type(event) for event in ask(talk, "c")] == [CallRequested]


@pytest.mark.parametrize("type_", ["agent.tool.call", "agent.tool.cancel", "agent.directive.request"])
def test_what_was_not_agreed_in_the_handshake_is_out_of_place(type_: str) -> None:
    talk = Talk()
    talk.admit(protocol={"supported_versions": [1], "capabilities": ["tools"]})
    payload = {"call_id": "c", "tool_id": OTHER, "input": {}, "reason": "r"}
    assert [type(event) for event in talk.tell(type_, payload, request_id="r")] == [Noticed]
    (said,) = talk.said()
    assert said["error"]["code"] == "protocol.unexpected_type"
    assert talk.state == "ready"


@requirement("OS-097", "OS-101")
@pytest.mark.parametrize(
    "fields",
    [
        {"input": []},
        {"input": "x"},
        {"input": None},
        {"context": []},
        {"context": {"project_root": 1}},
        {"context": {"resource_paths": "a"}},
        {"context": {"resource_paths": [1]}},
        {"context": {"ui": []}},
        {"timeout_ms": 0},
        {"call_id": "x" * 129},
        {"idempotency_key": ""},
    ],
)
def test_a_call_of_the_wrong_form_is_refused_before_the_hub_hears_of_it(fields: dict[str, Any]) -> None:
    talk = ready()
    payload = {"call_id": "mine-1", "tool_id": OTHER, "input": {}, **fields}
    assert [type(event) for event in talk.tell("agent.tool.call", payload, request_id="r")] == [Noticed]
    (said,) = talk.said()
    assert said["error"]["code"] == "protocol.invalid_message"
    assert [type(event) for event in ask(talk)] == [CallRequested]


def test_waiting_for_approval_is_told_as_a_status_with_its_id() -> None:
    talk = ready()
    ask(talk)
    (said,) = talk.send(Wait(SESSION, 0, "mine-1", CALL, Status.WAITING_APPROVAL, "a42", 1_768_568_400_000))
    assert said["type"] == "core.tool.stream"
    assert (said["request_id"], said["correlation_id"], said["causation_id"]) == ("r-1", "chat:9", "c-0")
    assert said["payload"] == {
        "call_id": "mine-1",
        "seq": 1,
        "channel": "status",
        "data": {"text": "waiting_approval", "approval_id": "a42"},
        "exchange_call_id": CALL,
    }


def test_progress_is_numbered_anew_for_the_one_who_asked() -> None:
    talk = ready()
    ask(talk)
    talk.send(Wait(SESSION, 0, "mine-1", CALL, Status.QUEUED))
    (first,) = talk.send(Progress(SESSION, 0, "mine-1", CALL, 1, "stdout", Raw(b'{"text":"a"}')))
    (second,) = talk.send(Progress(SESSION, 0, "mine-1", CALL, 7, "partial_result", Raw(b'{"json":{}}'), True))
    assert [said["payload"]["seq"] for said in (first, second)] == [2, 3]
    assert "done" not in first["payload"]
    assert second["payload"]["done"] is True
    assert second["payload"]["data"] == {"json": {}}


@requirement("OS-016")
def test_a_result_that_does_not_fit_into_a_frame_is_a_failure_that_does() -> None:
    talk = ready(max_frame_bytes=2000)
    ask(talk)
    (said,) = talk.send(answer(output=Raw(b'{"x":"' + b"y" * 3000 + b'"}')))
    payload = said["payload"]
    assert (payload["call_id"], payload["exchange_call_id"], payload["status"]) == ("mine-1", CALL, "failed")
    assert payload["error"]["code"] == "tool.output_too_large"


@pytest.mark.parametrize(
    "effect", [answer("never asked"), Progress(SESSION, 0, "never asked", CALL, 1, "log", Raw(b'{"text":""}'))]
)
def test_an_answer_to_nobody_is_our_own_error(effect: Any) -> None:
    talk = ready()
    with pytest.raises(LocalProtocolError):
        talk.session.send(effect, talk.now)
    ask(talk)
    talk.send(answer())
    with pytest.raises(LocalProtocolError):
        talk.session.send(answer(), talk.now)


def test_an_agent_cancels_its_own_call_by_its_own_name() -> None:
    talk = ready()
    ask(talk)
    (asked,) = talk.tell("agent.tool.cancel", {"call_id": "mine-1", "reason": "changed my mind"}, id="m-2")
    assert asked == CancelRequested(SESSION, "m-2", ME, None, "mine-1", "changed my mind")
    # The result is the answer; only a refusal is said at once.
    assert talk.send(Reply(SESSION, 0, "m-2", id=CALL, status="canceling")) == []
    (said,) = talk.send(Reply(SESSION, 0, "m-2", fault=fault("not_found", "there is no such open call of yours")))
    assert (said["type"], said["in_reply_to"]) == ("core.error", "m-2")
    assert said["error"]["code"] == "protocol.invalid_message"


# --- directives -------------------------------------------------------------------------------------------------------


@requirement("OS-158")
def test_a_wish_for_a_directive_is_answered_when_a_person_decided() -> None:
    talk = ready()
    wish = {"tool_id": OTHER, "reason": "the user said so", "input": {"a": 1}}
    (asked,) = talk.tell("agent.directive.request", wish, id="w-1")
    assert asked == DirectiveRequested(SESSION, "w-1", ME, OTHER, Raw(b'{"a": 1}'), "the user said so")
    (said,) = talk.send(Reply(SESSION, 0, "w-1", id="d-7", status="stated"))
    assert (said["type"], said["in_reply_to"]) == ("core.directive.create", "w-1")
    assert said["payload"] == {"tool_id": OTHER, "status": "stated", "directive_id": "d-7"}


@requirement("OS-158")
def test_a_refused_wish_says_why() -> None:
    talk = ready()
    talk.tell("agent.directive.request", {"tool_id": OTHER, "reason": "r"}, id="w-1")
    (said,) = talk.send(Reply(SESSION, 0, "w-1", fault=fault("policy.denied", "no"), status="stated"))
    assert said["type"] == "core.directive.create"
    assert said["payload"] == {"tool_id": OTHER, "status": "refused"}
    assert said["error"]["code"] == "policy.denied"


@pytest.mark.parametrize("given", [[], "x", 1])
def test_a_wish_for_an_input_that_is_no_object_is_refused(given: Any) -> None:
    talk = ready()
    talk.tell("agent.directive.request", {"tool_id": OTHER, "reason": "r", "input": given})
    assert talk.said()[0]["error"]["code"] == "protocol.invalid_message"


def test_two_open_wishes_cannot_have_one_name() -> None:
    talk = ready()
    for _ in range(2):
        talk.tell("agent.directive.request", {"tool_id": OTHER, "reason": "r"}, id="w-1")
    (said,) = talk.said()
    assert said["error"]["code"] == "protocol.duplicate_id"

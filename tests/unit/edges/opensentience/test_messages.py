"""The wire: envelopes, payloads and the forms of ids, times and versions."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import NOW, envelope, later
from trunkline.edges.opensentience import inbox
from trunkline.edges.opensentience import messages as wire
from trunkline.errors import RemoteProtocolError
from trunkline.strictjson import NotStrictJson

HELLO_EXAMPLE = """
    {
      "v": 1,
      "type": "agent.hello",
      "id": "f3a1d2b0-3c2f-4f6a-9f3f-3f5d0f8f9b2a",
      "ts": "2026-01-16T12:00:00Z",
      "payload": {
        "session_token": "<redacted>",
        "agent_id": "com.graphonomous.core",
        "agent_version": "1.0.0",
        "protocol": { "supported_versions": [1], "capabilities": ["tools", "streaming", "cancellation"] }
      }
    }
"""
CALL_EXAMPLE = """
    {
      "v": 1,
      "type": "core.tool.call",
      "id": "4c3c0c7b-4c9a-4a6b-9d2a-4e4a9f0e2a1b",
      "ts": "2026-01-16T12:00:01Z",
      "request_id": "8d0f8a5a-2f0a-4b76-9a9c-4c2b7b9a0c1d",
      "correlation_id": "chat_session:abc123",
      "payload": {
        "call_id": "9b1a2c3d-4e5f-6789-abcd-ef0123456789",
        "tool_id": "com.graphonomous.core/graph_search",
        "input": { "query": "foo", "collections": ["project:my_project:customer_docs"], "top_k": 5,
                   "graph_mode": true },
        "timeout_ms": 30000
      }
    }
"""
RESULT_EXAMPLE = """
    {
      "v": 1,
      "type": "agent.tool.result",
      "id": "d2c1b0a9-8f7e-6d5c-4b3a-291817161514",
      "ts": "2026-01-16T12:00:02Z",
      "request_id": "8d0f8a5a-2f0a-4b76-9a9c-4c2b7b9a0c1d",
      "correlation_id": "chat_session:abc123",
      "payload": {
        "call_id": "9b1a2c3d-4e5f-6789-abcd-ef0123456789",
        "status": "succeeded",
        "output": { "query_id": "q_123", "results": [], "warnings": [] },
        "started_at": "2026-01-16T12:00:01Z",
        "finished_at": "2026-01-16T12:00:02Z"
      }
    }
"""


def read_by(reader: inbox.Reader, body: bytes) -> Any:
    """The message in one frame; raises what is wrong with it."""
    (found,) = reader.read_all([body])
    if isinstance(found, Exception):
        raise found
    return found[0]


def read_core(body: bytes) -> Any:
    return read_by(inbox.Reader(wire.FROM_CORE), body)


def read_agent(body: bytes) -> Any:
    return read_by(inbox.Reader(wire.FROM_AGENT), body)


def written_again(message: wire.Message[Any]) -> dict[str, Any]:
    """A message that was read, as our writer says it, under its own id and time."""
    body = wire.Writer(bytes(10)).write(
        NOW,
        message.type,
        message.payload,
        message.in_reply_to,
        message.request_id,
        message.correlation_id,
        message.causation_id,
        message.actor,
        message.error,
    )
    return {**json.loads(body), "id": message.id, "ts": message.ts}


@requirement("OS-155")
def test_the_hello_of_the_specification_is_read_and_written_unchanged() -> None:
    message = read_agent(HELLO_EXAMPLE.encode())
    assert message.payload.agent_id == "com.graphonomous.core"
    assert message.payload.protocol.supported_versions == (1,)
    assert written_again(message) == json.loads(HELLO_EXAMPLE)


@requirement("OS-156", "OS-036")
def test_the_call_of_the_specification_is_read_and_written_unchanged() -> None:
    message = read_core(CALL_EXAMPLE.encode())
    assert message.payload.timeout_ms == 30_000
    assert message.correlation_id == "chat_session:abc123"
    assert written_again(message) == json.loads(CALL_EXAMPLE)


@requirement("OS-157")
def test_the_result_of_the_specification_is_read_and_written_unchanged() -> None:
    message = read_agent(RESULT_EXAMPLE.encode())
    assert message.id == "d2c1b0a9-8f7e-6d5c-4b3a-291817161514"
    assert written_again(message) == json.loads(RESULT_EXAMPLE)


@requirement("OS-012")
def test_bodies_stay_the_bytes_they_arrived_as() -> None:
    message = read_agent(RESULT_EXAMPLE.encode())
    assert bytes(message.payload.output) == b'{ "query_id": "q_123", "results": [], "warnings": [] }'


WRONG_ENVELOPES = [
    ("v missing", {"v": ...}),
    ("v a string", {"v": "1"}),
    ("v a float", {"v": 1.0}),
    ("v a fraction", {"v": 1.5}),
    ("v true", {"v": True}),
    ("v 2", {"v": 2}),
    ("v 0", {"v": 0}),
    ("v null", {"v": None}),
    ("type missing", {"type": ...}),
    ("type a number", {"type": 5}),
    ("type a list", {"type": ["agent.pong"]}),
    ("type empty", {"type": ""}),
    ("type endless", {"type": "agent." + "x" * 200}),
    ("id missing", {"id": ...}),
    ("id a number", {"id": 7}),
    ("id empty", {"id": ""}),
    ("id of 129 characters", {"id": "é" * 129}),
    ("ts missing", {"ts": ...}),
    ("ts a number", {"ts": 1_768_564_800}),
    ("ts without offset", {"ts": "2026-01-16T12:00:00"}),
    ("ts with a space", {"ts": "2026-01-16 12:00:00Z"}),
    ("ts without seconds", {"ts": "2026-01-16T12:00Z"}),
    ("ts with a short offset", {"ts": "2026-01-16T12:00:00+0100"}),
    ("ts of no day", {"ts": "2026-02-30T12:00:00Z"}),
    ("ts of no leap day", {"ts": "2025-02-29T12:00:00Z"}),
    ("ts of no month", {"ts": "2026-13-01T12:00:00Z"}),
    ("ts of no hour", {"ts": "2026-01-16T24:00:00Z"}),
    ("ts with other digits", {"ts": "٢٠٢٦-01-16T12:00:00Z"}),
    ("ts with a bare point", {"ts": "2026-01-16T12:00:00.Z"}),
    ("payload missing", {"payload": ...}),
    ("payload null", {"payload": None}),
    ("payload a list", {"payload": []}),
    ("payload a string", {"payload": "{}"}),
    ("in_reply_to a number", {"in_reply_to": 1}),
    ("request_id a list", {"request_id": []}),
    ("correlation_id an object", {"correlation_id": {}}),
    ("causation_id true", {"causation_id": True}),
    ("actor a string", {"actor": "me"}),
    ("actor of no kind", {"actor": {"type": "robot", "id": "x"}}),
    ("actor without id", {"actor": {"type": "human"}}),
    ("actor with a number for id", {"actor": {"type": "human", "id": 1}}),
    ("actor with a number for display", {"actor": {"type": "human", "id": "x", "display": 1}}),
    ("error a string", {"error": "no"}),
    ("error without code", {"error": {"message": "no"}}),
    ("error without message", {"error": {"code": "a.b"}}),
    ("error with a list for details", {"error": {"code": "a.b", "message": "no", "details": []}}),
    ("error with a number for retryable", {"error": {"code": "a.b", "message": "no", "retryable": 1}}),
    ("error with a number for where", {"error": {"code": "a.b", "message": "no", "where": 1}}),
    ("error with a string for debug", {"error": {"code": "a.b", "message": "no", "debug": "x"}}),
]


@requirement("OS-027", "OS-028", "OS-029", "OS-031", "OS-032", "OS-043", "OS-044", "OS-045", "OS-052")
@pytest.mark.parametrize("type_", ["agent.pong", "agent.later"])
@pytest.mark.parametrize("fields", [wrong[1] for wrong in WRONG_ENVELOPES], ids=[wrong[0] for wrong in WRONG_ENVELOPES])
def test_a_wrong_envelope_is_refused_with_the_field_named(type_: str, fields: dict[str, Any]) -> None:
    given = {**envelope(type_, {}), **fields}
    body = json.dumps({name: value for name, value in given.items() if value is not ...}).encode()
    with pytest.raises(RemoteProtocolError) as caught:
        read_agent(body)
    assert caught.value.code == "protocol.invalid_message"
    assert caught.value.in_reply_to is None
    (field,) = fields
    assert field in caught.value.message


@requirement("OS-014", "OS-027")
@pytest.mark.parametrize("body", [b"[]", b'"x"', b"1", b"null"])
def test_a_message_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_agent(body)


@requirement("OS-014")
@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b'{"v":1,"v":1}'])
def test_a_message_that_is_no_strict_json_is_refused(body: bytes) -> None:
    with pytest.raises(NotStrictJson):
        read_agent(body)


@requirement("OS-031")
@pytest.mark.parametrize(
    "ts",
    [
        "2026-01-16T12:00:00Z",
        "2026-01-16t12:00:00z",
        "2026-01-16T12:00:00.1Z",
        "2026-01-16T12:00:00.123456789+05:30",
        "2026-01-16T12:00:00-23:59",
        "2024-02-29T23:59:59Z",
        "2016-12-31T23:59:60Z",
    ],
)
def test_times_with_offsets_fractions_and_leap_seconds_are_taken(ts: str) -> None:
    assert read_agent(json.dumps(envelope("agent.pong", {}, ts=ts)).encode()).ts == ts


@requirement("OS-033", "OS-034", "OS-036", "OS-037", "OS-043", "OS-048", "OS-051", "OS-053")
@pytest.mark.parametrize("type_", sorted(wire.FROM_AGENT))
def test_every_envelope_field_is_kept(type_: str) -> None:
    given = {
        "in_reply_to": "a",
        "request_id": "b",
        "correlation_id": "chat_session:abc123",
        "causation_id": "é" * 128,
        "actor": {"type": "system", "id": "x", "display": "y"},
        "error": {"code": "a.b", "message": "m", "details": {"k": [1]}, "retryable": True, "where": "agent.runtime"},
    }
    message = wire.envelope(json.dumps(envelope(type_, {}, **given)).encode())
    assert {name: value for name, value in written_again_raw(message).items() if name in given} == given


def written_again_raw(message: wire.Envelope) -> dict[str, Any]:
    body = wire.Writer(bytes(10)).write(
        NOW,
        message.type,
        wire.EMPTY,
        message.in_reply_to,
        message.request_id,
        message.correlation_id,
        message.causation_id,
        message.actor,
        message.error,
    )
    decoded: dict[str, Any] = json.loads(body)
    return decoded


@requirement("OS-147")
def test_unknown_fields_are_ignored_at_every_level() -> None:
    extra = {"x-later": {"deep": [1, {"a": None}]}}
    call = {
        "call_id": "c",
        "tool_id": "a/b",
        "input": {"kept": 1},
        "caller": {"type": "human", "id": "x", **extra},
        "context": {"project_root": "/", **extra},
        **extra,
    }
    given = envelope("agent.tool.call", call, actor={"type": "human", "id": "x", **extra}, **extra)
    message = read_agent(json.dumps(given).encode())
    assert message.payload.caller == wire.Caller("human", "x")
    assert json.loads(bytes(message.payload.context)) == call["context"]


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ("agent.tools.register", {"tools": [], "replace": None}),
        ("agent.tool.cancel", {"call_id": "c", "reason": None, "deadline_ms": None}),
        ("agent.tool.result", {"call_id": "c", "status": "succeeded", "output": None, "error": None, "metrics": None}),
        ("agent.tool.stream", {"call_id": "c", "seq": 1, "channel": "log", "data": {"text": ""}, "done": None}),
        ("agent.tool.cancel_ack", {"call_id": "c", "accepted": True, "note": None}),
        ("agent.directive.request", {"tool_id": "a/b", "reason": "r", "input": None}),
    ],
)
def test_null_in_an_optional_field_is_the_same_as_absent(type_: str, payload: dict[str, Any]) -> None:
    bare = {name: value for name, value in payload.items() if value is not None}
    with_null = read_agent(json.dumps(envelope(type_, payload, request_id=None, actor=None)).encode())
    without = read_agent(json.dumps(envelope(type_, bare)).encode())
    assert with_null.request_id is None
    if type_ == "agent.tool.result":
        assert wire.body(with_null.payload.output) is wire.body(with_null.payload.metrics) is None
    elif type_ == "agent.directive.request":
        assert wire.body(with_null.payload.input) is None
    else:
        assert with_null.payload == without.payload


def test_null_is_never_sent() -> None:
    body = wire.Writer(bytes(10)).write(NOW, "core.tool.call", wire.ToolCall("c", "a/b", Raw(b"{}"), None))
    assert b"null" not in body
    assert set(json.loads(body)) == {"v", "type", "id", "ts", "payload"}
    assert set(json.loads(body)["payload"]) == {"call_id", "tool_id", "input"}


WRONG_PAYLOADS = [
    ("agent.hello", {"agent_id": "a"}, "agent_version"),
    ("agent.hello", {"agent_id": 1}, "agent_id"),
    ("agent.tools.register", {}, "tools"),
    ("agent.tools.register", {"tools": {}}, "tools"),
    ("agent.tools.register", {"tools": [], "replace": "yes"}, "replace"),
    ("agent.tools.unregister", {"tool_ids": "x"}, "tool_ids"),
    ("agent.tools.unregister", {"tool_ids": [1]}, "tool_ids"),
    ("agent.tool.call", {"call_id": "c", "tool_id": "a/b"}, "input"),
    ("agent.tool.call", {"call_id": "c", "tool_id": "a/b", "input": {}, "timeout_ms": 1.0}, "timeout_ms"),
    ("agent.tool.call", {"call_id": "c", "tool_id": "a/b", "input": {}, "timeout_ms": True}, "timeout_ms"),
    ("agent.tool.call", {"call_id": "c", "tool_id": "a/b", "input": {}, "timeout_ms": 2**53 + 1}, "timeout_ms"),
    ("agent.tool.call", {"call_id": "c", "tool_id": "a/b", "input": {}, "timeout_ms": 0}, "timeout_ms"),
    ("agent.tool.call", {"call_id": "c", "tool_id": "a/b", "input": {}, "caller": {"type": "x", "id": "y"}}, "caller"),
    ("agent.tool.stream", {"call_id": "c", "seq": "1", "channel": "log", "data": {}}, "seq"),
    ("agent.tool.stream", {"call_id": "c", "seq": 1, "channel": "video", "data": {}}, "channel"),
    ("agent.tool.stream", {"call_id": "c", "seq": 1, "channel": "log"}, "data"),
    ("agent.tool.stream", {"call_id": "c", "seq": 1, "channel": "log", "data": {}, "done": 1}, "done"),
    ("agent.tool.result", {"status": "succeeded"}, "call_id"),
    ("agent.tool.result", {"call_id": "c", "status": "cancelled"}, "status"),
    ("agent.tool.result", {"call_id": "c", "status": "unknown"}, "status"),
    ("agent.tool.result", {"call_id": "c", "status": "failed", "error": {}}, "error"),
    ("agent.tool.cancel_ack", {"call_id": "c"}, "accepted"),
    ("agent.tool.cancel_ack", {"call_id": "c", "accepted": "yes"}, "accepted"),
    ("agent.heartbeat", {"session_id": "s", "uptime_ms": 1, "inflight_calls": 0}, "status"),
    ("agent.heartbeat", {"session_id": "s", "uptime_ms": -1, "inflight_calls": 0, "status": "ok"}, "uptime_ms"),
    ("agent.heartbeat", {"session_id": "s", "uptime_ms": 1.5, "inflight_calls": 0, "status": "ok"}, "uptime_ms"),
    ("agent.heartbeat", {"session_id": "s", "uptime_ms": 1, "inflight_calls": 0, "status": "fine"}, "status"),
    ("agent.directive.request", {"tool_id": "a/b"}, "reason"),
]


@requirement("OS-059", "OS-061", "OS-077", "OS-109", "OS-116", "OS-117", "OS-129", "OS-130")
@pytest.mark.parametrize(("type_", "payload", "field"), WRONG_PAYLOADS)
def test_a_wrong_payload_is_refused_with_the_field_named(type_: str, payload: dict[str, Any], field: str) -> None:
    with pytest.raises(wire.PayloadError) as caught:
        read_agent(json.dumps(envelope(type_, payload)).encode())
    assert caught.value.message.startswith(f"{type_}: ")
    assert field in caught.value.message
    assert caught.value.in_reply_to == f"id-of-{type_}"
    assert caught.value.envelope.type == type_


def test_a_fault_never_quotes_a_value() -> None:
    for payload in (
        {"call_id": "c", "status": "hunter2"},
        {"call_id": "c", "status": "hunter2 - at `$.x`"},
        {"call_id": ["hunter2"], "status": "failed"},
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            read_agent(json.dumps(envelope("agent.tool.result", payload)).encode())
        assert "hunter2" not in caught.value.message


def test_a_wrong_envelope_counts_more_than_a_wrong_payload() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_agent(json.dumps(envelope("agent.tool.result", {"status": 1}, id=...)).encode())
    assert not isinstance(caught.value, wire.PayloadError)


def test_a_type_of_the_other_direction_keeps_its_payload_unread() -> None:
    message = read_agent(json.dumps(envelope("core.tool.call", {"anything": 1})).encode())
    assert bytes(message.payload) == b'{"anything": 1}'


@requirement("OS-029", "OS-030", "OS-035")
def test_the_ids_we_make_are_uuids_and_never_the_same() -> None:
    writer = wire.Writer(bytes(range(10)))
    ids = {writer.new_id() for _ in range(1000)}
    ids |= {json.loads(writer.write(NOW, "core.ping", wire.EMPTY))["id"] for _ in range(1000)}
    assert len(ids) == 2000
    for text in ids:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert parsed.version == 8
        assert parsed.variant == uuid.RFC_4122


@given(st.binary(min_size=10, max_size=10))
def test_any_seed_makes_valid_uuids(seed: bytes) -> None:
    parsed = uuid.UUID(wire.Writer(seed).new_id())
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)


@requirement("OS-031")
def test_messages_are_stamped_with_the_time_they_are_written() -> None:
    writer = wire.Writer(bytes(10))
    stamps = [
        json.loads(writer.write(now, "core.ping", wire.EMPTY))["ts"] for now in (NOW, later(0.0015), later(86400))
    ]
    assert stamps == ["2026-01-16T12:00:00.000Z", "2026-01-16T12:00:00.001Z", "2026-01-17T12:00:00.000Z"]
    assert all(map(wire.is_timestamp, stamps))


@requirement("OS-061", "OS-065")
@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("1.0.0", True),
        ("0.0.0", True),
        ("1.2.3-alpha.1+build.5", True),
        ("10.20.30-0a", True),
        ("1.0", False),
        ("v1.0.0", False),
        ("1.0.0.0", False),
        ("01.0.0", False),
        ("1.0.0-01", False),
        ("1.0.0-", False),
        ("1.0.0+", False),
        ("1.0.0\n", False),
        ("١.0.0", False),
        ("", False),
        ("1.0.0-" + "a" * 200, False),
    ],
)
def test_versions_have_the_semver_form(text: str, is_one: bool) -> None:
    assert wire.is_semver(text) is is_one


@requirement("OS-066")
def test_a_hello_never_shows_its_token() -> None:
    hello = wire.Hello("a", "1.0.0", wire.HelloProtocol((1,), ()), "hunter2")
    assert "hunter2" not in repr(hello)
    assert "hunter2" not in f"{hello}"


def test_an_absent_body_and_null_are_one() -> None:
    assert wire.body(UNSET) is None
    assert wire.body(Raw(b"null")) is None
    assert wire.body(Raw(b"{}")) == Raw(b"{}")
    message = wire.envelope(json.dumps(envelope("x")).encode())
    assert wire.object_body(message, "output", Raw(b"null")) is None
    assert wire.object_body(message, "output", Raw(b'{"a":1}')) == Raw(b'{"a":1}')
    with pytest.raises(RemoteProtocolError, match=r"\$\.output"):
        wire.object_body(message, "output", Raw(b"[]"))


@requirement("OS-048")
@pytest.mark.parametrize("type_", ["agent.pong", "agent.error"])
def test_any_message_may_carry_an_error(type_: str) -> None:
    error = {"code": "tool.failed", "message": "no"}
    message = read_agent(json.dumps(envelope(type_, {}, error=error)).encode())
    assert message.error == wire.ErrorObject("tool.failed", "no")


# --- several at once --------------------------------------------------------------------------------------------------

PONG = json.dumps(envelope("agent.pong", {}), separators=(",", ":")).encode()
CALL = json.dumps(
    envelope("agent.tool.call", {"call_id": "c", "tool_id": "a/b", "input": {"x": [1, 2]}}), separators=(",", ":")
).encode()


def one_by_one(bodies: list[bytes]) -> list[object]:
    found: list[object] = []
    for body in bodies:
        try:
            found.append(read_agent(body))
        except (RemoteProtocolError, NotStrictJson) as exc:
            found.append(repr(exc))
    return found


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"{",
        PONG[:-1],
        b"," + PONG,
        PONG + b"," + PONG,
        PONG + b"]",
        PONG.replace(b"agent.pong", b"agent.pong\xff"),
        PONG[:-1] + b',"v":1}',
        PONG[:-1] + b', "new":1}',
        PONG.replace(b'"v":1', b'"v":2'),
        PONG.replace(b"agent.pong", b"core.ping"),
        CALL.replace(b'"x"', b'"x":1,"x"'),
        CALL.replace(b'"call_id":"c"', b'"call_id":""'),
        CALL.replace(b"Z", b""),
        b"[]",
        b"1",
        b'"agent.pong"',
    ],
)
def test_messages_are_read_together_as_they_are_read_one_by_one(odd: bytes) -> None:
    for bodies in ([PONG, CALL], [CALL, odd], [odd, PONG, CALL], [odd, odd]):
        together = inbox.read_agents(bodies)
        assert [one[0] if isinstance(one, tuple) else repr(one) for one in together] == one_by_one(bodies)
        assert [one[1] for one in together if isinstance(one, tuple)] == [
            json.loads(body) for body, one in zip(bodies, together, strict=True) if isinstance(one, tuple)
        ]


def test_two_halves_of_a_message_are_not_one() -> None:
    halves = PONG.split(b",", 1)
    assert all(isinstance(found, NotStrictJson) for found in inbox.read_agents(halves))
    # Three texts, and three values if they were put together.
    texts = [*halves, PONG + b"," + PONG]
    assert all(isinstance(found, NotStrictJson) for found in inbox.read_agents(texts))

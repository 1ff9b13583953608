"""Messages of OSSA as they are read: what is one, what is refused, and that the quick reader takes no other."""

from __future__ import annotations

import contextlib
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.edges.ossa.examples import MISSING, REQUEST, changed
from trunkline.edges.ossa import messages, reading
from trunkline.edges.ossa.messages import Identity, Refused

SENDER = Identity("agent-001", "worker")


def refusal(data: bytes) -> Refused:
    with pytest.raises(Refused) as refused:
        reading.read(data)
    return refused.value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("header", MISSING),
        ("body", MISSING),
        ("header", []),
        ("header.messageId", MISSING),
        ("header.messageId", "550e8400-e29b-11d4-a716-446655440000"),
        ("header.messageId", "{550e8400-e29b-41d4-a716-446655440000}"),
        ("header.messageId", "550e8400e29b41d4a716446655440000"),
        ("header.messageId", 7),
        ("header.type", MISSING),
        ("header.type", "ack"),
        ("header.type", "acknowledgement"),
        ("header.version", MISSING),
        ("header.version", "1.0"),
        ("header.version", "v1.0.0"),
        ("header.version", "1.0.0\n"),
        ("header.timestamp", MISSING),
        ("header.timestamp", "yesterday"),
        ("header.timestamp", "2024-09-26"),
        ("header.timestamp", "2024-09-26T10:30:00"),
        ("header.timestamp", "2024-13-26T10:30:00Z"),
        ("header.timestamp", 1727346600),
        ("header.sender", MISSING),
        ("header.sender", "agent-001"),
        ("header.sender.agentId", MISSING),
        ("header.sender.agentId", ""),
        ("header.sender.agentId", "x" * 129),
        ("header.sender.agentId", "a\nb"),
        ("header.sender.agentType", MISSING),
        ("header.sender.agentType", "Worker"),
        ("header.sender.agentType", "worker\n"),
        ("header.sender.instanceName", 1),
        ("header.recipient", MISSING),
        ("header.recipient", []),
        ("header.recipient", [{"agentId": f"a{n}", "agentType": "worker"} for n in range(101)]),
        ("header.recipient", [{"agentId": "a", "agentType": "worker"}] * 2),
        ("header.correlationId", 5),
        ("header.priority", -1),
        ("header.priority", 10),
        ("header.priority", 2.5),
        ("header.priority", True),
        ("header.priority", None),
        ("header.expiresAt", "soon"),
        ("header.expiresAt", None),
        ("header.qos", 3),
        ("header.qos", "1"),
        ("header.topic", "a..b"),
        ("header.topic", "a.*"),
        ("header.topic", "x" * 256),
        ("header.sequence", -1),
        ("header.sensitive", "yes"),
        ("body.action", MISSING),
        ("body.action", 1),
        ("body.payload", MISSING),
        ("body.error", "no"),
        ("body.error", {"code": 404, "message": "x"}),
        ("body.error", {"code": "404", "message": "x", "timestamp": "2024-09-26T10:30:01Z"}),
        ("body.error", {"code": 418, "message": "x", "timestamp": "2024-09-26T10:30:01Z"}),
        ("body.error", {"code": 404, "message": "x", "timestamp": "then"}),
        ("signature", 5),
    ],
)
def test_a_message_that_is_not_one_is_refused_with_400(path: str, value: object) -> None:
    assert refusal(changed(path, value)).error_code == messages.BAD_REQUEST


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"{",
        b'{"header":1,"header":2}',
        b"[" * 70 + b"]" * 70,
        b" " * 1_048_577,
        b'{"a":NaN}',
        b"\xff",
    ],
)
def test_what_is_not_strict_json_is_refused_and_addressed_to_nobody(data: bytes) -> None:
    refused = refusal(data)
    assert (refused.error_code, refused.to, refused.correlation) == (messages.BAD_REQUEST, None, None)


@pytest.mark.parametrize("payload", [{}, [1], "text", 5, 1.5, True, None])
def test_a_payload_may_be_any_value(payload: object) -> None:
    message = reading.read(changed("body.payload", payload))
    assert json.loads(bytes(message.payload)) == payload


@pytest.mark.parametrize(("version", "code"), [("1.0.1", 0), ("1.9.0", 0), ("2.0.0", 501), ("0.9.0", 501)])
def test_another_major_version_is_not_implemented(version: str, code: int) -> None:
    data = changed("header.version", version)
    if code:
        refused = refusal(data)
        assert (refused.error_code, refused.details) == (code, {"supported": ["1.0.0"]})
    else:
        assert reading.read(data).version == version


def test_ids_of_other_versions_are_taken_where_that_is_set() -> None:
    data = changed("header.messageId", "550e8400-e29b-11d4-a716-446655440000")
    assert reading.read(data, any_uuid=True).message_id.startswith("550e8400-e29b-11d4")


def test_a_recipient_may_be_one_or_a_list() -> None:
    both = [{"agentId": "a", "agentType": "worker"}, {"agentId": "b", "agentType": "worker"}]
    message = reading.read(changed("header.recipient", both))
    assert [one.agent_id for one in message.recipients] == ["a", "b"]
    assert json.loads(messages.encode(message))["header"]["recipient"] == both
    one = reading.read(changed("header.recipient", both[:1]))
    assert json.loads(messages.encode(one))["header"]["recipient"] == both[:1]


@pytest.mark.parametrize(
    "path", ["x-own", "header.x-own", "body.x-own", "header.sender.x-own", "header.recipient.x-own"]
)
def test_fields_that_nobody_knows_survive(path: str) -> None:
    data = changed(path, {"deep": [1, None]})
    assert json.loads(messages.encode(reading.read(data))) == json.loads(data)


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("error", "body.error"), ("stream_data", "streamId"), ("stream_start", "streamId"), ("event", "topic")],
)
def test_a_message_needs_what_its_type_is_about(kind: str, missing: str) -> None:
    assert missing in refusal(changed("header.type", kind)).text


@pytest.mark.parametrize(("kind", "level"), [("request", 1), ("command", 1), ("response", 0), ("heartbeat", 0)])
def test_the_quality_of_service_is_what_is_said_or_what_is_usual(kind: str, level: int) -> None:
    data = changed("header.type", kind)
    assert reading.read(data).level == level
    again = json.loads(data)
    again["header"]["qos"] = 2
    assert reading.read(json.dumps(again).encode()).level == 2


leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
value = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
)
HEADER = [*messages.SCHEMA["properties"]["header"]["required"], *messages.OPTIONAL]
places = st.sampled_from(
    [f"header.{name}" for name in (*HEADER, "sender.agentId", "sender.agentType")]
    + ["header", "body", "signature", "body.action", "body.payload", "body.error"]
)


@given(places, value)
def test_whatever_stands_in_a_field_the_message_is_read_or_refused_with_a_code_and_written_as_it_was(
    path: str, given_value: object
) -> None:
    data = changed(path, given_value)
    with contextlib.suppress(Refused):
        message = reading.read(data)
        assert reading.read(messages.encode(message)).message_id == message.message_id


@pytest.mark.parametrize("padding", ["spaces", "field"])
def test_a_small_payload_does_not_keep_a_large_message(padding: str) -> None:
    if padding == "spaces":
        data = changed("body.payload", {"n": 1}).replace(b'{"n"', b" " * 500_000 + b'{"n"')
    else:
        data = changed("x-own", "x" * 500_000)
    tracemalloc.start()
    try:
        kept = [reading.read(data[:-1] + b" " * number + b"}") for number in range(20)]
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 2 * sum(message.size for message in kept) + 200_000


def test_what_a_message_holds_is_counted_with_the_fields_that_nobody_knows() -> None:
    plain = reading.read(json.dumps(REQUEST).encode())
    assert plain.size == len(plain.payload)
    for path in ("x-own", "header.x-own", "body.x-own"):
        assert reading.read(changed(path, "x" * 1000)).size == plain.size + 1002


def test_every_field_that_a_header_may_have_is_read() -> None:
    assert reading._READS.keys() == messages.OPTIONAL.keys()


# --- ordinary messages ------------------------------------------------------------------------------------------------

ORDINARY = {
    "header": {**REQUEST["header"], "type": "event", "timestamp": "2026-01-16T12:00:00.5Z", "topic": "a.b", "qos": 1},
    "body": REQUEST["body"],
    "signature": "x..y",
}
# For each of its fields, what two readers might not agree on.
DOUBTFUL = [
    None,
    True,
    0,
    1.0,
    1e0,
    -0.0,
    2,
    9,
    10,
    2**63,
    "",
    "\n",
    "a",
    "A",
    "1.0.0",
    "01.0.0",
    "event",
    "error",
    {},
    [],
]
DOUBTFUL_IDS = ["550E8400-E29B-41D4-A716-446655440000", "550e8400-e29b-51d4-a716-446655440000", "٥50e8400"]
DOUBTFUL_TIMES = [
    "2026-01-16T12:00:00+05:75", "2026-01-16T12:00:00-23:59", "2026-01-16T12:00:00+24:00", "2026-01-16T12:00:00+12:60",
    "2026-01-16T12:00:00+00:00", "2026-01-16T24:00:00Z", "2026-01-16T23:59:60Z", "2026-02-30T12:00:00Z",
    "0000-01-16T12:00:00Z", "9999-12-31T23:59:59.999999999Z", "2026-01-16t12:00:00z", "2026-01-16 12:00:00Z",
    "2026-01-16T12:00:00.1234567890Z", "٢026-01-16T12:00:00Z", "2026-01-16T12:00Z",
]  # fmt: skip


def is_same_to_both(path: str, value: object) -> bool:
    """Whether the quick reader takes an ordinary message with this in a field; if so, the judges give the same."""
    data = changed(path, value, ORDINARY)
    # With its characters as they are, and escaped.
    found = [_same(one) for one in (json.dumps(json.loads(data), ensure_ascii=False).encode(), data)]
    assert found[0] == found[1]
    return found[0]


def _same(data: bytes) -> bool:
    found = reading.read_ordinary(data)
    if found is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "read_ordinary", lambda _: None)
            assert reading.read(data) == found
    return found is not None


PATHS = [
    *("header", "body", "signature", "body.action", "body.payload", "body.error", "own", "header.own", "body.own"),
    *(f"header.{name}" for name in HEADER),
    *(f"header.{who}.{name}" for who in ("sender", "recipient") for name in ("agentId", "agentType", "version", "own")),
]


@pytest.mark.parametrize("path", PATHS)
def test_the_quick_reader_takes_nothing_but_what_the_judges_take_and_as_they_do(path: str) -> None:
    values = [*DOUBTFUL, *DOUBTFUL_IDS, *DOUBTFUL_TIMES, "\ud7ff", "x" * 128, "x" * 129, "a..b"]
    taken = [is_same_to_both(path, value) for value in values]
    assert not all(taken) or path == "body.payload"


REQUIRED = [f"header.{name}" for name in messages.SCHEMA["properties"]["header"]["required"]]


@pytest.mark.parametrize(
    ("path", "is_taken"),
    [
        *((path, False) for path in ("header", "body", "body.action", "body.payload", "header.topic", *REQUIRED)),
        *((path, True) for path in ("signature", "header.qos", "header.priority", "header.correlationId")),
    ],
)
def test_nor_one_without_what_it_needs(path: str, is_taken: bool) -> None:
    assert is_same_to_both(path, MISSING) is is_taken


@given(st.sampled_from(PATHS), value)
def test_and_whatever_else_stands_in_a_field(path: str, given_value: object) -> None:
    is_same_to_both(path, given_value)


@pytest.mark.parametrize("kind", ["request", "response", "event", "command", "command_result", "heartbeat"])
def test_ordinary_messages_are_read_by_the_quick_reader(kind: str) -> None:
    assert is_same_to_both("header.type", kind)
    assert _same(json.dumps(ORDINARY, indent=2).encode())

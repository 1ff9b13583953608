"""OSSA, the form of messages: what is read, what is refused, and what is said of it (sections 2.1, 4.1, 8 and 9)."""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.ossa import EXCHANGE, JSON, Keyed, World
from tests.requirement import requirement
from tests.unit.edges.ossa import examples
from trunkline.edges.ossa import messages, reading
from trunkline.edges.ossa.translate import CODE_OF
from trunkline.entries import CallAccepted, CallRefused

TYPES = {
    "request", "response", "event", "command", "command_result", "stream_start", "stream_data", "stream_end",
    "heartbeat", "error", "acknowledgment", "negative_acknowledgment",
}  # fmt: skip
MISSING = object()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as world:
        yield world


@pytest.fixture
def alice(world: World) -> Keyed:
    return world.agent("alice")


def changed(message: JSON, path: str, value: object) -> JSON:
    """The message with another value at this place, or without one."""
    made = copy.deepcopy(message)
    *above, last = path.split(".")
    place: Any = made
    for name in above:
        place = place[name]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return made


def refused(world: World, alice: Keyed, path: str, value: object) -> JSON:
    """The error for a request that is right but for this, and that nobody was asked by it."""
    bob = world.connect(world.agent("bob"), "do")
    world.ask(alice, "bob", qos=0)  # the same without the change is taken
    assert len(bob.of("request")) == 1
    message = changed(alice.message("request", "bob", qos=0), path, value)
    posted = world.post(alice, message)
    assert len(bob.of("request")) == 1
    return posted.error


@requirement("OSSA-001", "OSSA-048", "OSSA-093")
@pytest.mark.parametrize("part", ["header", "body"])
def test_a_message_without_one_of_its_two_parts_is_a_bad_request(world: World, alice: Keyed, part: str) -> None:
    assert refused(world, alice, part, MISSING)["code"] == 400
    assert refused_by_schema({}) == {"header", "body"}


def refused_by_schema(value: JSON) -> set[str]:
    """Which properties the shipped schema misses."""
    schema = jsonschema_rs.Draft7Validator(messages.SCHEMA, validate_formats=True)
    kinds = [error.kind for error in schema.iter_errors(value)]
    return {kind.property for kind in kinds if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required)}


@requirement("OSSA-002")
def test_signed_and_unsigned_messages_are_both_messages(tmp_path: Path) -> None:
    with World(tmp_path, require_signature=False) as world:
        alice = world.agent("alice")
        bare = alice.message("request", EXCHANGE, "unsubscribe", {"subscription": "none"})
        assert world.post_bytes(json.dumps(bare).encode()).status == 404
        assert world.post(alice, alice.message("request", EXCHANGE, "unsubscribe", {"subscription": "x"})).status == 404
        assert world.post_bytes(json.dumps({**bare, "signature": 7}).encode()).error["code"] == 400


@requirement("OSSA-003")
@pytest.mark.parametrize("value", ["c232ab00-9414-11ec-b3c8-9f6bdeced846", "7", "", 7, MISSING])
def test_a_message_id_is_a_uuid_of_version_4(world: World, alice: Keyed, value: object) -> None:
    assert refused(world, alice, "header.messageId", value)["code"] == 400


@requirement("OSSA-004")
def test_a_message_id_that_comes_again_is_the_same_message(world: World, alice: Keyed) -> None:
    bob = world.connect(world.agent("bob"), "do")
    message = alice.signed(alice.message("request", "bob"))
    first = world.post(alice, message)
    meanwhile = world.post(alice, message)
    bob.respond({"done": 1})
    later = world.post(alice, message)
    assert first.request.content == meanwhile.request.content == later.request.content
    assert len(bob.of("request")) == 1
    other = changed(message, "body.payload", {"other": True})
    del other["signature"]
    assert world.post(alice, other).error["code"] == 400


@requirement("OSSA-005")
@pytest.mark.parametrize("value", ["REQUEST", "query", "", None, MISSING])
def test_a_type_is_one_of_the_twelve(world: World, alice: Keyed, value: object) -> None:
    assert refused(world, alice, "header.type", value)["code"] == 400


@requirement("OSSA-033", "OSSA-034")
@pytest.mark.parametrize("value", ["ack", "acknowledgement", "nack", "negative_acknowledgement", "ACK"])
def test_acknowledgments_are_spelled_as_the_specification_spells_them(world: World, alice: Keyed, value: str) -> None:
    assert (messages.ACK, messages.NACK) == ("acknowledgment", "negative_acknowledgment")
    assert refused(world, alice, "header.type", value)["code"] == 400
    for right in ("acknowledgment", "negative_acknowledgment"):
        posted = world.post(alice, alice.message(right, EXCHANGE, right, {"messageId": str(uuid.uuid4())}))
        assert (posted.status, posted.replies) == (202, [])


@requirement("OSSA-006")
@pytest.mark.parametrize("value", ["1.0", "v1.0.0", "1.0.0.0", "", 1, MISSING])
def test_a_version_is_three_numbers(world: World, alice: Keyed, value: object) -> None:
    assert refused(world, alice, "header.version", value)["code"] == 400


@requirement("OSSA-006", "OSSA-055")
def test_another_major_version_is_not_implemented_and_a_minor_one_does_not_matter(world: World, alice: Keyed) -> None:
    error = refused(world, alice, "header.version", "2.0.0")
    assert (error["code"], error["details"]["supported"]) == (501, ["1.0.0"])
    message = changed(alice.message("request", EXCHANGE, "register", {"actions": []}), "header.version", "1.7.3")
    reply = world.post(alice, message).reply
    assert (reply["header"]["version"], reply["body"]["error"]["code"]) == ("1.0.0", 503)


@requirement("OSSA-007", "OSSA-095")
@pytest.mark.parametrize("value", ["yesterday", "2027-01-15", "2027-13-01T00:00:00Z", 1_800_000_000, None, MISSING])
def test_a_timestamp_is_a_date_and_a_time(world: World, alice: Keyed, value: object) -> None:
    assert refused(world, alice, "header.timestamp", value)["code"] == 400


@requirement("OSSA-008", "OSSA-068")
@pytest.mark.parametrize("value", ["alice", {}, None, [], MISSING])
def test_a_message_without_a_sender_is_refused_and_the_answer_addressed_to_nobody(
    world: World, alice: Keyed, value: object
) -> None:
    message = changed(alice.message("request", EXCHANGE), "header.sender", value)
    posted = world.post(alice, message)
    assert posted.error["code"] == 400
    assert posted.reply["header"]["recipient"]["agentId"] == "unknown"


@requirement("OSSA-009", "OSSA-010")
def test_a_message_goes_to_one_agent_or_to_each_of_a_list(world: World, alice: Keyed) -> None:
    bob, carol = (world.connect(world.agent(name), "do") for name in ("bob", "carol"))
    assert not world.ask(alice, "bob").is_answered
    both = world.ask(alice, ["bob", "carol"], payload={"n": 2})
    assert (len(bob.of("request")), len(carol.of("request"))) == (2, 1)
    bob.respond({"by": "bob"})
    assert not both.is_answered
    carol.respond({"by": "carol"})
    assert both.status == 200
    said = {reply["header"]["sender"]["agentId"]: reply["body"]["payload"]["by"] for reply in both.replies}
    assert said == {"bob": "bob", "carol": "carol"}


@requirement("OSSA-009")
@pytest.mark.parametrize("value", [[], "bob", None, [{}], [{"agentId": "bob", "agentType": "worker"}] * 2, MISSING])
def test_a_recipient_is_an_identity_or_a_list_of_different_ones(world: World, alice: Keyed, value: object) -> None:
    assert refused(world, alice, "header.recipient", value)["code"] == 400


@requirement("OSSA-009")
def test_a_list_has_at_most_100_recipients(world: World, alice: Keyed) -> None:
    names = [f"agent-{number}" for number in range(101)]
    assert world.ask(alice, names).error["code"] == 400
    posted = world.ask(alice, names[:100])
    assert (posted.status, len(posted.replies)) == (200, 100)


@requirement("OSSA-011", "OSSA-012")
def test_a_correlation_is_free_text_and_the_reply_has_it(world: World, alice: Keyed) -> None:
    bob = world.connect(world.agent("bob"), "do")
    posted = world.ask(alice, "bob", correlationId="correlation-123")
    assert bob.of("request")[0]["header"]["correlationId"] == "correlation-123"
    bob.respond()
    assert posted.reply["header"]["correlationId"] == "correlation-123"
    assert refused(world, alice, "header.correlationId", 7)["code"] == 400


@requirement("OSSA-012")
def test_a_reply_to_a_message_without_a_correlation_has_its_id_as_one(world: World, alice: Keyed) -> None:
    bob = world.connect(world.agent("bob"), "do")
    message = alice.message("request", "bob")
    posted = world.post(alice, message)
    assert bob.of("request")[0]["header"]["correlationId"] == message["header"]["messageId"]
    bob.respond()
    assert posted.reply["header"]["correlationId"] == message["header"]["messageId"]


@requirement("OSSA-013")
@pytest.mark.parametrize("value", [-1, 10, 2.5, "5", None, True])
def test_a_priority_is_a_whole_number_from_0_to_9(world: World, alice: Keyed, value: object) -> None:
    assert refused(world, alice, "header.priority", value)["code"] == 400
    for right in (0, 9):
        assert not world.ask(alice, "bob", priority=right).is_answered


@requirement("OSSA-015")
@pytest.mark.parametrize("value", ["soon", 7, None])
def test_an_expiry_is_a_time(world: World, alice: Keyed, value: object) -> None:
    assert refused(world, alice, "header.expiresAt", value)["code"] == 400


@requirement("OSSA-016", "OSSA-097")
@pytest.mark.parametrize("value", [7, None, "", MISSING])
def test_an_action_is_a_text(world: World, alice: Keyed, value: object) -> None:
    assert refused(world, alice, "body.action", value)["code"] == 400


@requirement("OSSA-017")
@pytest.mark.parametrize("payload", [{"a": 1}, [1], "text", 7, True, None])
def test_a_payload_is_any_value_and_what_is_no_object_is_wrapped(world: World, alice: Keyed, payload: object) -> None:
    bob = world.connect(world.agent("bob"), "do")
    posted = world.post(alice, changed(alice.message("request", "bob"), "body.payload", payload))
    assert bob.payloads("request") == [payload if isinstance(payload, dict) else {"value": payload}]
    bob.say(changed(bob.agent.reply(bob.of("request")[0]), "body.payload", payload))
    assert posted.payload == payload


@requirement("OSSA-017", "OSSA-097")
def test_a_payload_must_be_there(world: World, alice: Keyed) -> None:
    assert refused(world, alice, "body.payload", MISSING)["code"] == 400
    assert refused_by_schema(changed(examples.REQUEST, "body", {})) == {"action", "payload"}


@requirement("OSSA-018", "OSSA-059", "OSSA-058")
@pytest.mark.parametrize(
    "error",
    [
        "text",
        {},
        {"message": "m", "timestamp": "2027-01-15T08:00:00Z"},
        {"code": 404, "timestamp": "2027-01-15T08:00:00Z"},
        {"code": 404, "message": "m"},
        {"code": 404, "message": 7, "timestamp": "2027-01-15T08:00:00Z"},
        {"code": 404, "message": "m", "timestamp": "today"},
        {"code": "404", "message": "m", "timestamp": "2027-01-15T08:00:00Z"},
        {"code": 418, "message": "m", "timestamp": "2027-01-15T08:00:00Z"},
        {"code": 404, "message": "m", "timestamp": "2027-01-15T08:00:00Z", "traceId": 7},
    ],
)
def test_an_error_has_a_code_of_the_ten_a_message_and_a_time(world: World, alice: Keyed, error: object) -> None:
    assert refused(world, alice, "body.error", error)["code"] == 400


@requirement("OSSA-018", "OSSA-032")
def test_an_error_message_without_an_error_is_none(world: World, alice: Keyed) -> None:
    answer = world.post(alice, alice.message("error", EXCHANGE, "error"))
    assert (answer.status, answer.replies) == (400, [])  # an error never gets an error


@requirement("OSSA-060")
@pytest.mark.parametrize("details", [{"resource": "x"}, [1, None], "text", 7, None])
def test_details_of_an_error_are_any_value_and_reach_the_caller(world: World, alice: Keyed, details: object) -> None:
    bob = world.connect(world.agent("bob"), "do")
    posted = world.ask(alice, "bob")
    info = {"code": 404, "message": "gone", "timestamp": alice.stamp(), "details": details, "traceId": "t-1"}
    bob.say(bob.agent.reply(bob.of("request")[0], "error", error=info))
    assert posted.error["details"]["details"] == details


@requirement("OSSA-061")
def test_the_trace_of_an_error_leads_to_the_record(world: World, alice: Keyed) -> None:
    bob = world.connect(world.agent("bob"), "do")
    posted = world.ask(alice, "bob")
    bob.say(bob.agent.failure(bob.of("request")[0], 500))
    (accepted,) = world.exchange.recorded(CallAccepted)
    assert posted.error["traceId"] == accepted.call_id
    (nowhere,) = [world.ask(alice, "bob", "no_such_action").error["traceId"]]
    assert nowhere in {entry.call_id for entry in world.exchange.recorded(CallRefused)}


@requirement("OSSA-019", "OSSA-020")
@pytest.mark.parametrize("who", ["sender", "recipient"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("agentId", 7), ("agentId", ""), ("agentId", MISSING), ("agentType", "Worker"), ("agentType", MISSING)],
)
def test_an_identity_has_an_id_and_a_type(world: World, alice: Keyed, who: str, field: str, value: object) -> None:
    assert refused(world, alice, f"header.{who}.{field}", value)["code"] == 400


@requirement("OSSA-021", "OSSA-022")
def test_the_instance_and_version_of_a_sender_reach_the_recipient(world: World, alice: Keyed) -> None:
    bob = world.connect(world.agent("bob"), "do")
    sender = {**alice.identity, "instanceName": "alice-7", "version": "2.1", "x-team": "blue"}
    world.ask(alice, "bob", sender=sender)
    assert bob.of("request")[0]["header"]["sender"] == sender


@requirement("OSSA-021", "OSSA-022")
@pytest.mark.parametrize("field", ["instanceName", "version"])
def test_the_instance_and_version_of_an_agent_are_texts(world: World, alice: Keyed, field: str) -> None:
    assert refused(world, alice, "header.sender", {**alice.identity, field: 7})["code"] == 400


@requirement("OSSA-058")
def test_every_fault_of_the_exchange_has_one_of_the_ten_codes() -> None:
    ten = {400, 401, 403, 404, 408, 429, 500, 501, 503, 507}
    assert set(messages.CODES) == ten
    assert set(CODE_OF.values()) <= ten


@requirement("OSSA-092", "OSSA-096")
def test_the_schema_is_the_printed_one_and_is_used(world: World, alice: Keyed) -> None:
    schema = messages.SCHEMA
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert schema["$id"] == "https://ossa.org/schemas/message.json"
    assert schema["title"] == "OSSA Message"
    properties = schema["properties"]["header"]["properties"]
    kinds = properties["type"]["enum"]
    assert (len(kinds), set(kinds), set(messages.TYPES)) == (12, TYPES, TYPES)
    assert properties["version"]["pattern"] == r"^\d+\.\d+\.\d+$"
    assert properties["messageId"]["format"] == "uuid"
    assert properties["timestamp"]["format"] == "date-time"
    assert schema["required"] == ["header", "body"]
    assert schema["properties"]["body"]["required"] == ["action", "payload"]
    assert "three numbers" in refused(world, alice, "header.version", "1.0")["message"]


@requirement("OSSA-094")
@pytest.mark.parametrize("field", ["messageId", "type", "version", "timestamp", "sender", "recipient"])
def test_the_schema_requires_six_fields_of_a_header(world: World, alice: Keyed, field: str) -> None:
    assert refused_by_schema(changed(examples.REQUEST, f"header.{field}", MISSING)) == {field}
    assert field in refused(world, alice, f"header.{field}", MISSING)["message"]


@requirement("OSSA-095")
@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("messageId", "no-uuid", "does not match `format` of the message schema"),
        ("timestamp", "26 September", "expected a time with an offset, as in 2026-01-16T12:00:00Z"),
        ("version", "1", "expected three numbers, as in 1.0.0"),
    ],
)
def test_formats_are_checked_by_the_schema(field: str, value: str, told: str) -> None:
    read = reading.read(json.dumps(examples.REQUEST).encode())
    assert read.message_id == examples.REQUEST["header"]["messageId"]
    with pytest.raises(messages.Refused) as error:
        reading.read(json.dumps(changed(examples.REQUEST, f"header.{field}", value)).encode(), any_uuid=True)
    assert error.value.text == f"header.{field}: {told}"


@requirement("OSSA-097")
def test_the_error_of_a_body_is_an_object(world: World, alice: Keyed) -> None:
    assert refused(world, alice, "body.error", [])["code"] == 400


@requirement("OSSA-098")
def test_fields_that_nobody_knows_are_allowed_and_reach_the_recipient(world: World, alice: Keyed) -> None:
    bob = world.connect(world.agent("bob"), "do")
    mine: JSON = {"x-shard": {"n": [1, 2.5]}, "ttl": None}
    message = alice.message("request", "bob", **mine)
    world.post(alice, {**message, "extra": 1, "body": {**message["body"], "more": 2}})
    header = bob.of("request")[0]["header"]
    assert (header["x-shard"], header["ttl"]) == ({"n": [1, 2.5]}, None)


@requirement("OSSA-099", "OSSA-100")
@pytest.mark.parametrize("example", [examples.REQUEST, examples.ERROR], ids=["9.1", "9.2"])
def test_the_examples_are_read_and_written_as_they_were(example: JSON) -> None:
    read = reading.read(json.dumps(example).encode())
    assert json.loads(messages.encode(read)) == example
    assert (read.priority, read.action) == (5, "validate_compliance") if read.error is None else read.error.code == 404


@requirement("OSSA-099")
def test_the_example_of_a_request_is_carried_out(world: World) -> None:
    one, two = world.agent("agent-001"), world.agent("agent-002", "governor")
    governor = world.connect(two, "validate_compliance")
    fresh = {"timestamp": one.stamp(), "messageId": str(uuid.uuid4())}
    message = {**examples.REQUEST, "header": {**examples.REQUEST["header"], **fresh}}
    posted = world.post(one, message)
    assert governor.payloads("request") == [examples.REQUEST["body"]["payload"]]
    governor.respond({"compliant": True})
    assert posted.payload == {"compliant": True}


@requirement("OSSA-100", "OSSA-101", "OSSA-102")
def test_an_error_reply_is_like_the_example(world: World, alice: Keyed) -> None:
    world.connect(world.agent("bob"), "do")
    posted = world.ask(alice, "bob", "unknown_action", correlationId="correlation-123")
    header, body = posted.reply["header"], posted.reply["body"]
    assert header["type"] == "error"
    assert header["sender"]["agentId"] == "bob"
    assert header["recipient"] == alice.identity
    assert header["correlationId"] == "correlation-123"
    assert (body["action"], body["payload"], body["error"]["code"]) == ("error", {}, 404)
    assert header.keys() == examples.ERROR["header"].keys()
    assert body.keys() == examples.ERROR["body"].keys()


@requirement("OSSA-101", "OSSA-102", "OSSA-048")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"header": {}, "header": {}}',
        b'{"header": NaN}',
        b"[" * 65 + b"]" * 65,
        b'"\\ud800"',
        b"\xff",
        b'"' + b"x" * 1_048_576 + b'"',
    ],
    ids=["nothing", "a brace", "a list", "a key twice", "NaN", "deep", "half a character", "not UTF-8", "large"],
)
def test_what_cannot_be_read_is_a_bad_request_of_nobody_and_nothing_of_it_is_echoed(world: World, data: bytes) -> None:
    posted = world.post_bytes(data)
    assert posted.error["code"] == 400
    assert posted.reply["header"]["recipient"] == {"agentId": "unknown", "agentType": "unknown"}
    assert (posted.reply["body"]["action"], posted.reply["body"]["payload"]) == ("error", {})


@requirement("OSSA-003", "OSSA-007", "OSSA-024")
def test_what_the_exchange_says_passes_the_schema_and_the_interfaces(world: World, alice: Keyed) -> None:
    bob = world.connect(world.agent("bob"), "do")
    posted = world.ask(alice, "bob")
    bob.respond({"ok": True})
    said = [*bob.heard, *posted.replies, *world.ask(alice, "bob", "nothing").replies]
    schema = jsonschema_rs.Draft7Validator(messages.SCHEMA, validate_formats=True)
    for message in said:
        assert schema.is_valid(message)
        reading.read(json.dumps(message).encode())
        assert uuid.UUID(message["header"]["messageId"]).version == 4
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", message["header"]["timestamp"])
    assert len({message["header"]["messageId"] for message in said}) == len(said)

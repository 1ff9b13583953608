"""Chiffon's messages as its specification has them: every field, every example, every code. Pure."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from tests.unit.edges.chiffon.kit import as_fields, envelope
from trunkline.edges.chiffon import chunks, messages
from trunkline.edges.chiffon.chunks import Assembly
from trunkline.edges.chiffon.messages import (
    CODES,
    Envelope,
    ErrorPayload,
    Refused,
    Registration,
    WorkRequest,
    WorkResult,
    WorkStatus,
)

TASK = "550e8400-e29b-41d4-a716-446655440004"
EXAMPLE = {
    "protocol_version": "1.0",
    "message_id": "550e8400-e29b-41d4-a716-446655440001",
    "from_agent": "orchestrator",
    "to_agent": "infra",
    "timestamp": "2026-01-19T04:21:04Z",
    "trace_id": "550e8400-e29b-41d4-a716-446655440002",
    "request_id": "550e8400-e29b-41d4-a716-446655440003",
    "type": "work_request",
    "payload": {
        "task_id": TASK,
        "work_type": "run_playbook",
        "parameters": {"playbook": "deploy_kuma.yml", "extra_vars": {"version": "1.4.0"}},
        "hints": {"max_duration_seconds": 300, "max_memory_mb": 512},
    },
    "x_custom_fields": {},
}
HOMELAB = {
    "task_id": TASK,
    "work_type": "run_playbook",
    "parameters": {"playbook": "deploy_kuma.yml", "extra_vars": {"version": "1.4.0", "environment": "homelab"}},
    "hints": {"max_duration_seconds": 300, "max_memory_mb": 512},
}
HALF = {
    "task_id": TASK,
    "status": "running",
    "progress_percent": 50,
    "step": {
        "number": 2,
        "name": "Configure Kuma settings",
        "output": "Updating config.yaml...\nAdded uptime monitors: 3\n",
    },
}
SUCCESS = {
    "task_id": TASK,
    "status": "success",
    "exit_code": 0,
    "output": "Deployment completed successfully.\nKuma instance running at https://kuma.homelab:3000\n"
    "Monitored services: 5",
    "resources_used": {"duration_seconds": 87, "gpu_vram_mb": 0, "cpu_time_ms": 12450},
}
FAILURE = {
    "task_id": TASK,
    "status": "failed",
    "exit_code": 1,
    "output": "Deployment failed.\nReason: Docker image pull timeout for "
    "ghcr.io/louislam/uptime-kuma:latest after 300s.",
    "resources_used": {"duration_seconds": 305, "gpu_vram_mb": 0, "cpu_time_ms": 8920},
}
LIMIT = {
    "error_code": 5005,
    "error_message": "Resource limit exceeded",
    "error_context": {"limit_name": "gpu_vram_mb", "available": 128, "required": 512},
}


def read(message: dict[str, Any]) -> messages.Payload:
    return messages.read_payload(messages.read_envelope(as_fields(message)))


def payload(kind: str, content: dict[str, Any]) -> messages.Payload:
    return read(envelope(kind, content))


def refused(message: dict[str, Any]) -> ErrorPayload:
    with pytest.raises(Refused) as caught:
        read(message)
    assert caught.value.error.error_code == 5003
    return caught.value.error


def field_of(kind: str, content: dict[str, Any]) -> str:
    """The field that a refused payload is refused for."""
    return str(refused(envelope(kind, content)).error_context["field_name"])


def with_(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found = json.loads(json.dumps(content))
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = found
        for parent in parents:
            place = place[parent]
        place[name] = value
    return found


# --- the envelope -----------------------------------------------------------------------------------------------------


@requirement("CH-018", "CH-016", "CH-028")
def test_the_full_example_parses_and_round_trips() -> None:
    found = messages.read_envelope(as_fields(EXAMPLE))
    assert json.loads(messages.encode(found)) == EXAMPLE
    work = messages.read_payload(found)
    assert isinstance(work, WorkRequest)
    assert json.loads(bytes(messages.raw(work))) == EXAMPLE["payload"]
    assert json.loads(bytes(messages.raw(payload("work_request", HOMELAB)))) == HOMELAB


@requirement("CH-006", "CH-091", "CH-107")
def test_the_version_is_a_string_and_builders_write_1_0() -> None:
    assert messages.VERSION == "1.0"
    made = messages.build(
        WorkRequest(TASK, "x"),
        sender="orchestrator",
        to="infra",
        trace_id=TASK,
        request_id=TASK,
        now_ms=0,
        message_id=TASK,
    )
    assert made.protocol_version == "1.0"
    assert refused(with_(EXAMPLE, protocol_version=1.0)).error_context["field_name"] == "protocol_version"


@requirement("CH-017", "CH-059")
@pytest.mark.parametrize("name", [name for name in EXAMPLE if name != "x_custom_fields"])
def test_each_missing_field_is_5003_and_named(name: str) -> None:
    error = refused({key: value for key, value in EXAMPLE.items() if key != name})
    assert error.error_context == {"validation_error": "missing", "field_name": name}


@requirement("CH-007", "CH-011", "CH-013")
@pytest.mark.parametrize("name", ["message_id", "trace_id", "request_id"])
@pytest.mark.parametrize("bad", ["xyz123", "", 7, None, "550e8400e29b41d4a716446655440001", f"{TASK} "])
def test_ids_are_uuids(name: str, bad: object) -> None:
    assert refused(with_(EXAMPLE, **{name: bad})).error_context["field_name"] == name


@requirement("CH-008", "CH-009")
@pytest.mark.parametrize("name", ["from_agent", "to_agent"])
def test_senders_and_recipients_are_the_five_types(name: str) -> None:
    for kind in ("orchestrator", "infra", "desktop", "code", "research"):
        messages.read_envelope(as_fields(with_(EXAMPLE, **{name: kind})))
    for bad in ("agent", "Infra", "", None, ["infra"]):
        assert refused(with_(EXAMPLE, **{name: bad})).error_context["field_name"] == name


@requirement("CH-010", "CH-115")
def test_timestamps_are_iso_8601() -> None:
    for good in ("2026-01-19T04:21:04Z", "2026-01-19T04:21:04.123+02:00", "2026-01-19T04:21:04", "2026-01-19T04:21Z"):
        messages.read_envelope(as_fields(with_(EXAMPLE, timestamp=good)))
    assert messages.check_time("2026-01-19T04:21:04", "t").utcoffset() is not None, "without an offset it is UTC"
    bad_ones = (
        "yesterday",
        "2026-01-19",
        "19.01.2026 04:21",
        "2026-13-19T04:21:04Z",
        "2026-01-19 04:21:04Z",
        1768796464,
    )
    for bad in bad_ones:
        assert refused(with_(EXAMPLE, timestamp=bad)).error_context["field_name"] == "timestamp"


@requirement("CH-014")
def test_there_are_four_types() -> None:
    for bad in ("work", "WORK_REQUEST", "", None, 1):
        assert refused(with_(EXAMPLE, type=bad)).error_context["field_name"] == "type"


@requirement("CH-015")
def test_the_payload_is_an_object() -> None:
    for bad in ([], "x", None, 1):
        assert refused(with_(EXAMPLE, payload=bad)).error_context["field_name"] == "payload"


@requirement("CH-004", "CH-016")
def test_custom_fields_are_an_optional_object_and_survive() -> None:
    without = {name: value for name, value in EXAMPLE.items() if name != "x_custom_fields"}
    assert messages.read_envelope(as_fields(without)).x_custom_fields is None
    filled = messages.read_envelope(as_fields(with_(EXAMPLE, x_custom_fields={"team": {"id": 7}})))
    assert json.loads(messages.encode(filled))["x_custom_fields"] == {"team": {"id": 7}}
    for bad in ([], "x", 1):
        assert refused(with_(EXAMPLE, x_custom_fields=bad)).error_context["field_name"] == "x_custom_fields"
    too_much = {"x": "y" * messages.MAX_CUSTOM_BYTES}
    assert refused(with_(EXAMPLE, x_custom_fields=too_much)).error_context["field_name"] == "x_custom_fields"


@requirement("CH-059")
@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":"\xff"}', b"\xff\xfe{}"]
)
def test_what_is_not_strict_json_is_5003(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        messages.read_object(data)
    assert caught.value.error.error_code == 5003
    assert caught.value.error.error_context["field_name"] is None


# --- work_request -----------------------------------------------------------------------------------------------------


@requirement("CH-021", "CH-022", "CH-023", "CH-024")
def test_the_fields_of_a_work_request() -> None:
    for bad in ("...", None, 5):
        assert field_of("work_request", with_(HOMELAB, task_id=bad)) == "payload.task_id"
    for bad in (None, 5, "", "x" * 300):
        assert field_of("work_request", with_(HOMELAB, work_type=bad)) == "payload.work_type"
    for bad in ([], "x", 5):
        assert field_of("work_request", with_(HOMELAB, parameters=bad)) == "payload.parameters"
        assert field_of("work_request", with_(HOMELAB, hints=bad)) == "payload.hints"
    least = payload("work_request", {"task_id": TASK, "work_type": "x"})
    assert isinstance(least, WorkRequest)
    assert bytes(least.parameters) == b"{}"


@requirement("CH-025", "CH-026")
@pytest.mark.parametrize("name", ["max_duration_seconds", "max_memory_mb"])
def test_hints_are_positive_numbers(name: str) -> None:
    for bad in (0, -1, "600", True, [], 1e300):
        assert field_of("work_request", with_(HOMELAB, **{f"hints__{name}": bad})) == f"payload.hints.{name}"
    for good in (1, 0.5, 600):
        found = payload("work_request", with_(HOMELAB, **{f"hints__{name}": good}))
        assert isinstance(found, WorkRequest)
        assert getattr(found.hints, name) == good


# --- work_status ------------------------------------------------------------------------------------------------------


@requirement("CH-037")
def test_the_status_example_parses_and_round_trips() -> None:
    assert json.loads(bytes(messages.raw(payload("work_status", HALF)))) == HALF


@requirement("CH-032", "CH-033", "CH-034", "CH-035", "CH-036")
def test_the_fields_of_a_work_status() -> None:
    for good in ("running", "step_completed", "paused"):
        payload("work_status", with_(HALF, status=good))
    for bad in ("done", "Running", None, 1):
        assert field_of("work_status", with_(HALF, status=bad)) == "payload.status"
    for good in (0, 100):
        payload("work_status", with_(HALF, progress_percent=good))
    for bad in (-1, 101, 50.5, "50", None, True):
        assert field_of("work_status", with_(HALF, progress_percent=bad)) == "payload.progress_percent"
    assert field_of("work_status", with_(HALF, step__number="two")) == "payload.step.number"
    assert field_of("work_status", with_(HALF, step__name=2)) == "payload.step.name"
    assert field_of("work_status", with_(HALF, step__output=["x"])) == "payload.step.output"
    payload("work_status", {name: value for name, value in HALF.items() if name != "step"})


# --- work_result ------------------------------------------------------------------------------------------------------


@requirement("CH-048", "CH-049")
@pytest.mark.parametrize("example", [SUCCESS, FAILURE])
def test_the_result_examples_parse_and_round_trip(example: dict[str, Any]) -> None:
    assert json.loads(bytes(messages.raw(payload("work_result", example)))) == example


@requirement("CH-041", "CH-042", "CH-043", "CH-044", "CH-045", "CH-046", "CH-047")
def test_the_fields_of_a_work_result() -> None:
    assert field_of("work_result", with_(SUCCESS, task_id="...")) == "payload.task_id"
    for bad in ("ok", "Success", None):
        assert field_of("work_result", with_(SUCCESS, status=bad)) == "payload.status"
    for example, code in ((SUCCESS, 1), (FAILURE, 0), (FAILURE, -1), (SUCCESS, "0"), (SUCCESS, None)):
        assert field_of("work_result", with_(example, exit_code=code)) == "payload.exit_code"
    for bad in (None, 5, ["x"]):
        assert field_of("work_result", with_(SUCCESS, output=bad)) == "payload.output"
    without_output = payload("work_result", {name: value for name, value in SUCCESS.items() if name != "output"})
    assert isinstance(without_output, WorkResult)
    assert without_output.output == "", "the authors' OpenAPI file lets it be absent"
    for name in ("duration_seconds", "gpu_vram_mb", "cpu_time_ms"):
        for bad in ("1", 1.5, -1):
            found = field_of("work_result", with_(SUCCESS, **{f"resources_used__{name}": bad}))
            assert found == f"payload.resources_used.{name}"
    found = payload("work_result", {name: value for name, value in SUCCESS.items() if name != "resources_used"})
    assert isinstance(found, WorkResult)
    assert found.resources_used.gpu_vram_mb == 0


# --- errors -----------------------------------------------------------------------------------------------------------


@requirement("CH-055")
def test_the_error_example_parses_and_round_trips() -> None:
    assert json.loads(bytes(messages.raw(payload("error", LIMIT)))) == LIMIT


@requirement("CH-005", "CH-052", "CH-053")
def test_codes_lie_between_5001_and_5999() -> None:
    for good in (5001, 5006, 5007, 5999):
        payload("error", {"error_code": good, "error_message": "x"})
    for bad in (5000, 6000, 0, "5005", 5005.5, None):
        assert field_of("error", with_(LIMIT, error_code=bad)) == "payload.error_code"
    for bad in (None, 5):
        assert field_of("error", with_(LIMIT, error_message=bad)) == "payload.error_message"


@requirement("CH-056", "CH-057", "CH-058", "CH-059", "CH-060", "CH-061", "CH-062", "CH-063")
def test_the_table_of_codes_is_what_it_was() -> None:
    table = {code: (row.name, row.retryable, sorted(row.context)) for code, row in CODES.items()}
    assert table == {
        5001: ("Timeout", True, ["attempted_retries", "last_attempt"]),
        5002: ("Agent Unavailable", True, ["agent_id", "last_heartbeat"]),
        5003: ("Invalid Message", False, ["field_name", "validation_error"]),
        5004: ("Authentication Failed", False, ["agent_id", "token_status"]),
        5005: ("Resource Limit Exceeded", True, ["available", "limit_name", "required"]),
        5006: ("Unsupported Work Type", False, ["supported_types", "work_type_requested"]),
    }


@requirement("CH-054")
@pytest.mark.parametrize(
    ("code", "good", "bad"),
    [
        (5001, {"attempted_retries": 3, "last_attempt": "2026-01-19T04:21:04Z"}, {"attempted_retries": "3"}),
        (5001, {}, {"last_attempt": "yesterday"}),
        (5002, {"agent_id": "a", "last_heartbeat": None}, {"last_heartbeat": "soon"}),
        (5003, {"validation_error": "x", "field_name": None}, {"field_name": 1}),
        (5004, {"agent_id": "a", "token_status": "invalid"}, {"token_status": None}),
        (5005, {"limit_name": "cpu", "available": 1, "required": 2}, {"available": "1"}),
        (5006, {"work_type_requested": "x", "supported_types": ["y"]}, {"supported_types": "y"}),
    ],
)
def test_the_context_depends_on_the_code(code: int, good: dict[str, Any], bad: dict[str, Any]) -> None:
    payload("error", {"error_code": code, "error_message": "x", "error_context": good})
    (name,) = bad
    content = {"error_code": code, "error_message": "x", "error_context": bad}
    assert field_of("error", content) == f"payload.error_context.{name}"
    for shape in ([], "x"):
        assert field_of("error", {**content, "error_context": shape}) == "payload.error_context"


@requirement("CH-005", "CH-108")
def test_every_refusal_that_can_be_made_has_a_code_in_the_range_and_its_context() -> None:
    made = [
        messages.invalid("x", "y"),
        messages.unauthorized(None, "missing"),
        messages.unauthorized("a", "mismatch"),
        messages.unavailable("a", None, "x"),
        messages.unavailable("a", 0, "x"),
        messages.over_limit("memory_mb", 1, 2),
        messages.unsupported("x", ("y",)),
        messages.unsupported("x", ("y",), "2.0"),
    ]
    for one in made:
        assert 5001 <= one.error.error_code <= 5999
        assert set(CODES[one.error.error_code].context) <= set(one.error.error_context)
        assert isinstance(payload("error", msgspec.to_builtins(one.error)), ErrorPayload)


# --- chunks -----------------------------------------------------------------------------------------------------------


@requirement("CH-083", "CH-084", "CH-085", "CH-086")
def test_one_mebibyte_and_a_byte_becomes_four_full_chunks_and_a_short_one() -> None:
    text = "a" * (messages.MAX_OUTPUT_BYTES + 1)
    found = chunks.split(text)
    assert [chunk.end - chunk.start for chunk in found] == [262_144] * 4 + [1]
    assert [one.end for one in found[:-1]] == [one.start for one in found[1:]]
    assert chunks.split("x" * 524_288)[0].label == "bytes 0-262144 of 524288"
    assert chunks.split("x" * 524_288)[1].label == "bytes 262144-524288 of 524288"
    whole = {"task_id": TASK, "status": "running", "progress_percent": 1, "step": {"number": 1, "output": text}}
    assert field_of("work_status", whole) == "payload.step.output", "unsplit it is not taken"


@requirement("CH-084", "CH-086")
def test_a_chunk_never_splits_a_character() -> None:
    text = "a" * 262_142 + "€" * 10 + "😀" * 70_000
    found = chunks.split(text)
    assert all(262_141 <= chunk.end - chunk.start <= 262_144 for chunk in found[:-1])
    assert "".join(chunk.text for chunk in found) == text


@requirement("CH-085", "CH-088")
def test_both_forms_of_the_label_are_understood() -> None:
    assert chunks.read("bytes 0-256k", "x" * 262_144).end == 262_144
    second = chunks.read("bytes 256k-512k", "x" * 262_144)
    assert (second.start, second.end, second.total) == (262_144, 524_288, None)
    assert chunks.read("bytes 0-3 of 3", "abc").total == 3
    for bad in ("bytes 0-", "0-3 of 3", "bytes 3-0 of 3", "bytes 0-3 of 2", "bytes 0-2 of 3", "bytes 0-99999999999"):
        with pytest.raises(Refused) as caught:
            chunks.read(bad, "abc")
        assert caught.value.error.error_context["field_name"] == "payload.step.output_chunk"


@requirement("CH-089")
def test_both_chunk_examples_parse_once_their_placeholders_are_filled() -> None:
    assembly = Assembly()
    for start in (0, 262_144):
        step = {
            "number": 5,
            "name": "Collecting logs",
            "output": "x" * 262_144,
            "output_chunk": f"bytes {start}-{start + 262_144} of 524288",
        }
        found = payload("work_status", {"task_id": TASK, "status": "running", "progress_percent": 100, "step": step})
        assert isinstance(found, WorkStatus)
        assert found.step.output_chunk is not None
        assert found.step.output is not None
        assembly.add(chunks.read(found.step.output_chunk, found.step.output))
    assert assembly.is_complete
    assert assembly.text() == "x" * 524_288


@requirement("CH-087")
@given(text=st.text(min_size=1, max_size=50), factor=st.integers(1, 30_000), order=st.randoms())
def test_chunks_in_any_order_give_exactly_the_original(text: str, factor: int, order: Any) -> None:
    original = (text * factor)[:700_000]
    found = chunks.split(original)
    order.shuffle(found)
    assembly, shown = Assembly(), ""
    for chunk in [*found, *found[:2]]:
        shown += assembly.add(chunks.read(chunk.label, chunk.text))
    assert assembly.is_complete
    assert assembly.text() == original == shown
    assert assembly.missing() == []


# --- versions ---------------------------------------------------------------------------------------------------------


@requirement("CH-092", "CH-093")
def test_the_lowest_common_version_is_chosen_by_number() -> None:
    both = ("1.0", "2.0")
    assert messages.common_version(("1.0",)) == "1.0"
    assert messages.common_version(both, both) == "1.0"
    assert messages.common_version(("2.0", "10.0"), ("10.0", "2.0")) == "2.0"
    assert messages.common_version(("2.0",)) is None
    assert messages.common_version(("one", "")) is None
    fields = {"agent_id": "a", "agent_type": "infra", "supported_versions": ["1.0", "2.0"]}
    found = messages.read_registration(as_fields(fields))
    assert isinstance(found, Registration)
    assert found.supported_versions == both


@requirement("CH-106", "CH-114", "CH-115")
def test_what_is_built_is_an_envelope_with_everything_in_it() -> None:
    for content, kind in ((HOMELAB, "work_request"), (HALF, "work_status"), (SUCCESS, "work_result"), (LIMIT, "error")):
        made = messages.build(
            payload(kind, content),
            sender="orchestrator" if kind == "work_request" else "infra",
            to="infra" if kind == "work_request" else "orchestrator",
            trace_id=str(uuid.uuid4()),
            request_id=str(uuid.uuid4()),
            now_ms=1_800_000_000_123,
            message_id=str(uuid.uuid4()),
        )
        again = messages.read_envelope(as_fields(json.loads(messages.encode(made))))
        assert isinstance(again, Envelope)
        assert (again.type, again.timestamp) == (kind, "2027-01-15T08:00:00.123Z")

"""Agent Spaces, the wire: what the validators take and refuse, and the specification's own examples."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from tests.requirements import spaces_examples as spec
from trunkline.edges import spaces
from trunkline.edges.spaces import (
    messages,
    parse_operation,
    validate_event,
    validate_events_message,
    validate_operation,
    validate_operations_message,
)
from trunkline.errors import RemoteProtocolError


def faults(result: dict[str, Any]) -> list[str]:
    """Where something is wrong."""
    assert result["success"] is False, result
    return [issue["path"] for issue in result["error"]["issues"]]


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != key}


def message(*operations: Any, **fields: Any) -> dict[str, Any]:
    return {"protocolVersion": "1.0", "operations": list(operations), **fields}


# --- the message ------------------------------------------------------------------------------------------------------


@requirement("SP-003")
def test_the_version_is_the_string_1_0() -> None:
    assert messages.PROTOCOL_VERSION == "1.0"


@requirement("SP-004", "SP-006")
@pytest.mark.parametrize("version", [None, "2.0", "1", "1.0.0", 1.0, 1, True, ["1.0"], ""])
def test_a_message_without_this_version_is_refused(version: object) -> None:
    given_message = message(spec.MESSAGE, protocolVersion=version)
    assert faults(validate_operations_message(given_message)) == ["protocolVersion"]
    assert faults(validate_operations_message(without(given_message, "protocolVersion"))) == ["protocolVersion"]


@requirement("SP-007")
@pytest.mark.parametrize("operations", [None, {}, "x", 1, {"0": {}}])
def test_operations_is_an_array(operations: object) -> None:
    assert faults(validate_operations_message({"protocolVersion": "1.0", "operations": operations})) == ["operations"]
    assert faults(validate_operations_message({"protocolVersion": "1.0"})) == ["operations"]


@requirement("SP-007")
@pytest.mark.parametrize("operation", [None, "x", 1, [], True])
def test_an_operation_is_an_object(operation: object) -> None:
    assert faults(validate_operations_message(message(operation))) == ["operations[0]"]


@requirement("SP-002")
def test_an_events_message_from_an_agent_is_refused() -> None:
    assert faults(validate_operations_message(spec.EVENTS_MESSAGE)) == ["events"]
    for event in spec.EVENTS:
        if event["type"] in messages.OPERATIONS:
            continue
        assert faults(validate_operations_message(message(event))) == ["operations[0].type"]


@requirement("SP-009")
def test_the_example_of_three_operations_is_taken_as_it_is() -> None:
    data = validate_operations_message(json.loads(json.dumps(spec.THREE_OPERATIONS)))["data"]
    assert data["protocolVersion"] == "1.0"
    for read, written in zip(data["operations"], spec.THREE_OPERATIONS["operations"], strict=True):
        assert {**read, **written} == read
    assert validate_operations_message(data) == {"success": True, "data": data}


def test_a_message_has_at_most_1000_operations() -> None:
    assert validate_operations_message(message(*[spec.THREE_OPERATIONS["operations"][0]] * 1000))["success"]
    many = message(*[spec.THREE_OPERATIONS["operations"][0]] * 1001)
    assert faults(validate_operations_message(many)) == ["operations"]


def test_the_same_id_twice_is_a_fault_of_the_second() -> None:
    result = validate_operations_message(message(spec.MESSAGE, spec.READ_FILE, spec.MESSAGE))
    assert faults(result) == ["operations[2].id"]
    assert result["error"]["issues"][0]["index"] == 2


def test_every_fault_of_a_message_is_told() -> None:
    result = validate_operations_message(message({"type": "shell"}, {"type": "x"}, {"type": "readFile", "path": "/a"}))
    assert faults(result) == ["operations[0].command", "operations[1].type", "operations[2].path"]


@pytest.mark.parametrize("bad", [b'{"a": 1, "a": 2}', b"NaN", b'{"a": Infinity}', b"[1,]", b"\xff", b""])
def test_bytes_that_are_not_strict_json_are_refused(bad: bytes) -> None:
    assert faults(messages.read_operations_message(bad)) == [""]


def test_a_message_of_more_than_16_mib_is_refused() -> None:
    text = json.dumps(message({"type": "message", "content": "x" * 16_777_216}))
    assert "16777216" in messages.read_operations_message(text.encode())["error"]["message"]


# --- operations -------------------------------------------------------------------------------------------------------


@requirement("SP-001", "SP-010")
@pytest.mark.parametrize("kind", ["call", "Message", "createfile", "", None, 1, [], {}, "approvalRequired"])
def test_an_unknown_type_is_refused(kind: object) -> None:
    assert faults(validate_operation({"type": kind, "content": "x"})) == ["type"]


@requirement("SP-010")
def test_there_are_six_types_of_operations() -> None:
    known = [operation["type"] for operation in spec.OPERATIONS]
    assert sorted(known) == sorted(messages.OPERATIONS)
    assert all(validate_operation(operation)["success"] for operation in spec.OPERATIONS)


@requirement("SP-014", "SP-022", "SP-026", "SP-031", "SP-033", "SP-038")
@pytest.mark.parametrize("operation", spec.OPERATIONS, ids=lambda operation: operation["type"])
def test_the_example_of_an_operation_is_taken_as_it_is(operation: dict[str, Any]) -> None:
    assert validate_operation(operation) == {"success": True, "data": operation}
    assert parse_operation(json.loads(json.dumps(operation))) == operation


@requirement("SP-011")
@pytest.mark.parametrize("operation", spec.OPERATIONS, ids=lambda operation: operation["type"])
def test_an_id_is_a_string_and_may_be_left_out(operation: dict[str, Any]) -> None:
    assert validate_operation(without(operation, "id"))["success"]
    assert validate_operation({**operation, "id": None})["data"] == without(operation, "id")
    for bad in (1, True, [], {}, "", "x" * 257, "a\nb"):
        assert faults(validate_operation({**operation, "id": bad})) == ["id"]


REQUIRED = [
    (spec.MESSAGE, "content"),
    (spec.CREATE_FILE, "path"),
    (spec.CREATE_FILE, "content"),
    (spec.READ_FILE, "path"),
    (spec.EDIT_FILE, "path"),
    (spec.EDIT_FILE, "edits"),
    (spec.DELETE_FILE, "path"),
    (spec.SHELL, "command"),
]


@requirement("SP-012", "SP-015", "SP-016", "SP-023", "SP-027", "SP-028", "SP-032", "SP-034")
@pytest.mark.parametrize(("operation", "field"), REQUIRED, ids=lambda value: value if isinstance(value, str) else None)
def test_a_required_field_is_there_and_of_its_type(operation: dict[str, Any], field: str) -> None:
    assert faults(validate_operation(without(operation, field))) == [field]
    for bad in (None, 1, True, {}, ["x"] if field != "edits" else "x", 1.5):
        found = faults(validate_operation({**operation, field: bad}))
        assert found[0].startswith(field), (bad, found)


@requirement("SP-016")
def test_an_empty_content_is_one() -> None:
    assert validate_operation({**spec.CREATE_FILE, "content": ""})["success"]


@requirement("SP-017", "SP-019", "SP-024", "SP-036", "SP-084")
def test_defaults_are_filled_in_and_nothing_else() -> None:
    assert validate_operation({"type": "createFile", "path": "a", "content": "b"})["data"] == {
        "type": "createFile",
        "path": "a",
        "content": "b",
        "encoding": "utf-8",
        "overwrite": False,
    }
    read = validate_operation({"type": "readFile", "path": "a"})["data"]
    assert read == {"type": "readFile", "path": "a", "encoding": "utf-8"}
    shell = validate_operation({"type": "shell", "command": "ls", "cwd": None, "surprise": 1})["data"]
    assert shell == {"type": "shell", "command": "ls", "timeout": 30000}


@requirement("SP-017", "SP-024")
@pytest.mark.parametrize("operation", [spec.CREATE_FILE, spec.READ_FILE], ids=["createFile", "readFile"])
@pytest.mark.parametrize("bad", ["utf8", "UTF-8", "hex", "", 1, True])
def test_an_encoding_is_utf_8_or_base64(operation: dict[str, Any], bad: object) -> None:
    assert faults(validate_operation({**operation, "encoding": bad})) == ["encoding"]
    assert validate_operation({**operation, "content": "aGk=", "encoding": "base64"})["success"]


def test_content_that_is_not_base64_is_refused() -> None:
    for bad in ("a", "aGk", "aG k=", "äää=", "!!!!"):
        assert faults(validate_operation({**spec.CREATE_FILE, "encoding": "base64", "content": bad})) == ["content"]


@requirement("SP-019")
@pytest.mark.parametrize("bad", ["true", 1, 0, []])
def test_overwrite_is_true_or_false(bad: object) -> None:
    assert faults(validate_operation({**spec.CREATE_FILE, "overwrite": bad})) == ["overwrite"]


@requirement("SP-028", "SP-029")
@pytest.mark.parametrize(
    ("edits", "where"),
    [
        ("x", "edits"),
        ({}, "edits"),
        ([], "edits"),
        ([1], "edits[0]"),
        ([{"newContent": "b"}], "edits[0].oldContent"),
        ([{"oldContent": "a"}], "edits[0].newContent"),
        ([{"oldContent": "a", "newContent": "b"}, {"oldContent": 1, "newContent": "b"}], "edits[1].oldContent"),
        ([{"oldContent": "", "newContent": "b"}], "edits[0].oldContent"),
        ([{"oldContent": "a", "newContent": "b", "replaceAll": "yes"}], "edits[0].replaceAll"),
    ],
)
def test_an_edit_has_text_to_find_and_a_replacement(edits: object, where: str) -> None:
    assert faults(validate_operation({**spec.EDIT_FILE, "edits": edits})) == [where]


@requirement("SP-035")
def test_cwd_is_a_folder_in_the_workspace() -> None:
    for good in (".", "src", "a/b"):
        assert validate_operation({**spec.SHELL, "cwd": good})["data"]["cwd"] == good
    for bad in (1, "", "/", "..", "a/../b", "/tmp", "a\0b"):
        assert faults(validate_operation({**spec.SHELL, "cwd": bad})) == ["cwd"]


@requirement("SP-036")
def test_a_timeout_is_a_positive_whole_number_of_milliseconds() -> None:
    assert validate_operation({**spec.SHELL, "timeout": 1500.0})["data"]["timeout"] == 1500
    assert validate_operation({**spec.SHELL, "timeout": 10_000_000})["data"]["timeout"] == 10_000_000
    for bad in ("30000", 0, -1, 1.5, True, [], float("inf"), float("nan"), 10**400, 2**60):
        assert faults(validate_operation({**spec.SHELL, "timeout": bad})) == ["timeout"], bad


@requirement("SP-037")
def test_env_is_an_object_of_strings_with_names_of_variables() -> None:
    assert validate_operation({**spec.SHELL, "env": {}})["data"]["env"] == {}
    for bad in ("x", [], {"A": 1}, {"A": None}, {"A=B": "x"}, {"": "x"}, {"1A": "x"}, {"A": "x\0"}):
        assert faults(validate_operation({**spec.SHELL, "env": bad}))[0].startswith("env"), bad


# --- paths ------------------------------------------------------------------------------------------------------------

FILE_OPERATIONS = (spec.CREATE_FILE, spec.READ_FILE, spec.EDIT_FILE, spec.DELETE_FILE)


@requirement("SP-076", "SP-077", "SP-078", "SP-079", "SP-080")
@pytest.mark.parametrize("operation", FILE_OPERATIONS, ids=lambda operation: operation["type"])
@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "/", "../x", "a/../b", "a..b", "..", "a\0b", "x" * 256, "a/" * 127 + "xx"),
        *("", ".", "a/", "a\\b", "C:/x", "c:x", "a\nb", "a\x7fb"),
    ],
)
def test_a_bad_path_is_refused_in_every_file_operation(operation: dict[str, Any], path: str) -> None:
    assert faults(validate_operation({**operation, "path": path})) == ["path"]


@requirement("SP-079", "SP-080")
@pytest.mark.parametrize("operation", FILE_OPERATIONS, ids=lambda operation: operation["type"])
def test_a_path_of_255_characters_is_taken(operation: dict[str, Any]) -> None:
    for path in ("x" * 255, "ü" * 255, "a/" * 127 + "x", "a.b/.c", "ein/grüner/pfad.txt"):
        assert validate_operation({**operation, "path": path})["success"], path


# --- events -----------------------------------------------------------------------------------------------------------


@requirement("SP-042")
def test_the_example_of_an_events_message_is_taken_as_it_is() -> None:
    whole = {**spec.EVENTS_MESSAGE, "events": list(spec.EVENTS)}
    assert validate_events_message(whole) == {"success": True, "data": whole}


@requirement("SP-045", "SP-049", "SP-051", "SP-053", "SP-054", "SP-057", "SP-060", "SP-065", "SP-068", "SP-075")
@pytest.mark.parametrize("event", spec.EVENTS, ids=lambda event: event["type"])
def test_the_example_of_an_event_is_taken_as_it_is(event: dict[str, Any]) -> None:
    assert validate_event(event) == {"success": True, "data": event}


@requirement("SP-040")
def test_a_status_is_one_of_three() -> None:
    for status in ("completed", "awaiting_approval", "error"):
        assert validate_events_message({**spec.EVENTS_MESSAGE, "status": status})["success"]
    for bad in ("running", "Completed", "", None, 1):
        assert faults(validate_events_message({**spec.EVENTS_MESSAGE, "status": bad})) == ["status"]


@requirement("SP-075")
def test_no_other_category_is_accepted() -> None:
    for category in ("validation", "policy", "execution", "timeout", "system"):
        assert validate_event({**spec.ERROR, "category": category})["success"]
    for bad in ("network", "Policy", "", None):
        assert faults(validate_event({**spec.ERROR, "category": bad})) == ["category"]


@requirement("SP-045", "SP-047", "SP-050", "SP-055", "SP-062", "SP-067", "SP-069")
def test_an_event_without_one_of_its_fields_is_none() -> None:
    for event, fields in (
        (spec.MESSAGE_EVENT, ("success",)),
        (spec.CREATE_FILE_EVENT, ("path", "success")),
        (spec.CREATE_FILE_FAILED, ("path", "success", "error")),
        (spec.READ_FILE_EVENT, ("path", "success", "content", "encoding", "size")),
        (spec.EDIT_FILE_EVENT, ("path", "success", "editsApplied")),
        (spec.DELETE_FILE_EVENT, ("path", "success")),
        (spec.SHELL_EVENT, ("command", "success")),
        (spec.APPROVAL_REQUIRED, ("operationId", "operationType", "reason", "details")),
        (spec.POLICY_DENIED, ("operationType", "reason")),
        (spec.ERROR, ("category", "message", "details")),
    ):
        for field in fields:
            assert faults(validate_event(without(event, field))), (event["type"], field)
    assert faults(validate_event({**spec.MESSAGE_EVENT, "success": False})) == ["success"]


def test_an_event_of_another_runtime_may_leave_out_figures_that_ours_always_tells() -> None:
    assert validate_event(without(spec.CREATE_FILE_EVENT, "bytesWritten"))["success"]
    for figure in ("exitCode", "durationMs"):
        assert validate_event(without(spec.SHELL_EVENT, figure))["success"]
        assert faults(validate_event({**spec.SHELL_EVENT, figure: "soon"})) == [figure]


# --- the functions ----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "id", "path", "content", "edits", "env", "timeout", "operations", "events"])
            | st.text(max_size=3),
            inner | st.sampled_from(sorted(messages.OPERATIONS)),
            max_size=6,
        )
    ),
    max_leaves=12,
)


@requirement("SP-081", "SP-082")
@given(JSON)
def test_a_validator_never_raises_and_always_has_the_same_shape(value: Any) -> None:
    for validate in (validate_operation, validate_operations_message, validate_event, validate_events_message):
        result = validate(value)
        assert isinstance(result["success"], bool)
        assert set(result) == {"success", "data" if result["success"] else "error"}
        if not result["success"]:
            assert result["error"]["message"]
            assert result["error"]["issues"]


@requirement("SP-081")
@pytest.mark.parametrize("value", [None, 1, "x", [], (), object(), b"{}", {1: 2}, {"type": "shell", 3: object()}])
def test_what_is_no_operation_at_all_is_refused_too(value: object) -> None:
    assert validate_operation(value)["success"] is False


@requirement("SP-083")
def test_parse_operation_gives_the_operation_or_raises() -> None:
    assert parse_operation({"type": "readFile", "path": "a"}) == {"type": "readFile", "path": "a", "encoding": "utf-8"}
    with pytest.raises(RemoteProtocolError, match="path: Path must be relative"):
        parse_operation({"type": "readFile", "path": "/a"})
    with pytest.raises(RemoteProtocolError):
        parse_operation(None)


@requirement("SP-081", "SP-082", "SP-083")
def test_the_names_of_the_specification_mean_the_same() -> None:
    assert spaces.validateOperation is validate_operation
    assert spaces.validateOperationsMessage is validate_operations_message
    assert spaces.parseOperation is parse_operation

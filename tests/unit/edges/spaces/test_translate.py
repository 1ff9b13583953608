"""Operations as calls, outcomes as events."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.requirements import spaces_examples as spec
from trunkline import schemas
from trunkline.edges.spaces import parse_operation, translate, validate_event
from trunkline.effects import Answer
from trunkline.errors import WorkspaceError
from trunkline.model import Decision, Fault, Status, fault
from trunkline.workspace.policy import make_policy

STANDARD = make_policy("standard")
AT = 1_705_314_600_000


def outcome(operation: dict[str, Any], status: Status, problem: Fault | None = None, output: object = None) -> Any:
    body = None if output is None else Raw(translate.encode(output))
    answer = Answer(1, 0, "r/0", "c", status, body, problem, finished_ms=AT)
    event = translate.outcome(parse_operation(operation), 3, answer, "install bubblewrap")
    assert validate_event(event)["success"], event
    return event


@pytest.mark.parametrize(
    ("operation", "output", "event"),
    [
        (spec.MESSAGE, {}, spec.MESSAGE_EVENT),
        (spec.CREATE_FILE, {"bytesWritten": 31}, spec.CREATE_FILE_EVENT),
        (spec.READ_FILE, {"content": '{"key": "value"}', "encoding": "utf-8", "size": 16}, spec.READ_FILE_EVENT),
        (spec.EDIT_FILE, {"editsApplied": 1}, spec.EDIT_FILE_EVENT),
        (spec.DELETE_FILE, {}, spec.DELETE_FILE_EVENT),
        (
            spec.SHELL,
            {"success": True, "exitCode": 0, "stdout": "All tests passed!\n", "stderr": "", "durationMs": 1234},
            spec.SHELL_EVENT,
        ),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else None,
)
def test_a_success_is_told_as_in_the_specification(
    operation: dict[str, Any], output: object, event: dict[str, Any]
) -> None:
    told = outcome(operation, Status.SUCCEEDED, output=output)
    assert {**told, "timestamp": event["timestamp"]} == event
    assert told["timestamp"] == "2024-01-15T10:30:00.000Z"


@requirement("SP-074")
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("validation", ("error", "validation")),
        ("policy", ("error", "policy")),
        ("execution", ("createFile", None)),
        ("system", ("error", "system")),
    ],
)
def test_what_a_tool_could_not_do_is_told_by_its_kind(kind: Any, told: tuple[str, str | None]) -> None:
    problem = translate.failure(WorkspaceError(kind, "No space left on the disk"))
    event = outcome(spec.CREATE_FILE, Status.FAILED, problem)
    assert (event["type"], event.get("category")) == told
    assert event.get("error") or event.get("message") == "No space left on the disk"


@pytest.mark.parametrize(
    ("problem", "category"),
    [
        (fault("tool.timeout"), "timeout"),
        (fault("tool.invalid_input"), "validation"),
        (fault("limit.inflight"), "system"),
        (fault("limit.resource"), "system"),
        (fault("tool.unavailable"), "system"),
        (fault("idempotency.conflict"), "system"),
        (fault("tool.canceled"), "execution"),
        (fault("tool.output_too_large"), "execution"),
    ],
    ids=lambda value: value.code if isinstance(value, Fault) else value,
)
def test_each_fault_has_its_category(problem: Fault, category: str) -> None:
    event = outcome(spec.SHELL, Status.FAILED, problem)
    assert (event["type"], event["category"], event["message"]) == ("error", category, problem.message)
    assert (event["operationId"], event["details"]["code"]) == ("shell-1", problem.code)


@pytest.mark.parametrize("code", sorted(translate.DENIED))
def test_each_no_is_a_denial(code: str) -> None:
    event = outcome(spec.READ_FILE, Status.FAILED, fault(code, "no"))
    assert (event["type"], event["operationType"], event["reason"]) == ("policyDenied", "readFile", "no")


def test_what_is_not_known_is_said_to_be_so() -> None:
    for problem in (fault("agent.lost"), fault("tool.timeout", "it took too long")):
        event = outcome(spec.CREATE_FILE, Status.UNKNOWN, problem)
        assert (event["type"], event["category"]) == ("error", "execution")
        assert "not known" in event["message"]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_every_operation_is_an_input_that_its_tool_takes() -> None:
    tools = {tool.name: tool for tool in translate.definitions("s", has_shell=True)}
    assert set(tools) == set(translate.TOOL_OF.values())
    for operation in spec.OPERATIONS:
        validator = schemas.compile(bytes(tools[translate.TOOL_OF[operation["type"]]].input_schema))
        assert validator.error(translate.tool_input(parse_operation(operation))) is None
        assert validator.error(Raw(b"{}")) is not None


def test_without_a_sandbox_there_is_no_shell() -> None:
    assert "shell" not in {tool.name for tool in translate.definitions("s", has_shell=False)}


def test_only_reading_and_messages_have_no_side_effects() -> None:
    tools = translate.definitions("s", has_shell=True)
    assert {tool.name for tool in tools if not tool.side_effects} == {"read_file", "message"}


# --- policy -----------------------------------------------------------------------------------------------------------


def verdict(tool: str, **fields: Any) -> Any:
    return translate.guard_verdict(STANDARD, "space.s", tool, Raw(translate.encode(fields)))


def test_a_guard_has_nothing_against_what_the_space_allows() -> None:
    assert verdict("message", content="sudo") is None
    assert verdict("shell", command="ls") is None
    assert verdict("create_file", path="a", content="x") is None


def test_a_guard_denies_with_the_rule_and_a_suggestion() -> None:
    found = verdict("shell", command="sudo ls")
    assert (found.decision, found.rule) == (Decision.DENY, "shell.denied")
    assert (found.fault.code, found.fault.message) == ("policy.denied", "Command 'sudo' is blocked")
    assert found.fault.details == {"policy": "shell.denied", "suggestion": "Remove sudo from command"}


def test_a_guard_asks_with_the_rule() -> None:
    found = verdict("shell", command="rm -rf data/")
    assert (found.decision, found.rule, found.fault) == (Decision.ASK, "shell.approvalRequired", None)


@pytest.mark.parametrize("fields", [{"path": "/etc/passwd"}, {"path": "../x"}, {"path": 3}, {}])
def test_a_guard_refuses_what_is_no_input(fields: dict[str, Any]) -> None:
    found = verdict("read_file", **fields)
    assert (found.decision, found.fault.code) == (Decision.DENY, "tool.invalid_input")

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given

from tests.requirement import requirement
from tests.unit.ledger.made import AT, accepted, call_id, histories, in_process, settled
from tests.unit.trajectory.made import (
    ORIGIN,
    RUN,
    failed,
    hash_of,
    names,
    operation,
    raw,
    refused,
    run_ended,
    run_started,
    trajectory,
    values,
)
from trunkline.canonical import openagents_hash
from trunkline.entries import AnyEntry, ExchangeStarted, PolicyChanged
from trunkline.ledger import export
from trunkline.model import Decision, Rule, Status
from trunkline.trajectory.build import Recorded, trajectory_hash
from trunkline.trajectory.check import check

ALL_EIGHT = ["ReplayHeader", "SessionStart", "PlanStart", "ToolCall", "ToolResult", "StepComplete", "Verification",
             "SessionEnd"]  # fmt: skip


@requirement(
    "OA-084", "OA-085", "OA-086", "OA-087", "OA-088", "OA-089", "OA-090", "OA-091", "OA-092", "OA-094", "OA-116"
)
def test_one_call_has_all_eight_events_in_their_order() -> None:
    lines = trajectory(accepted(1, b'{"b": 1.0}'), settled(2, 1, b'{"text": "x"}'))
    assert names(lines) == ALL_EIGHT
    header, start, plan, call, result, step, verification, end = values(lines)
    at = ["2025-11-15T09:46:40.001Z", "2025-11-15T09:46:40.002Z"]
    assert header == {
        "event": "ReplayHeader", "replay_version": 1, "producer": "trunkline@1.2.3", "created_at": at[0],
    }  # fmt: skip
    assert start == {
        "event": "SessionStart", "session_id": "c", "issue_number": None, "policy_bundle_id": ORIGIN.policy_bundle_id,
        "t": at[0],
    }  # fmt: skip
    assert plan["step_count"] == 1
    assert call == {
        "event": "ToolCall", "id": call_id(1), "tool": "com.example.echo/echo", "params": {"b": 1.0},
        "params_hash": hash_of({"b": 1.0}), "step_id": "step-1", "t": at[0],
    }  # fmt: skip
    assert result == {
        "event": "ToolResult", "id": call_id(1), "output_hash": hash_of({"text": "x"}), "step_utility": 1.0,
        "latency_ms": 1, "t": at[1], "status": "succeeded", "output": {"text": "x"},
    }  # fmt: skip
    assert step == {"event": "StepComplete", "step_id": "step-1", "status": "Success", "iterations": 1, "t": at[1]}
    assert verification == {
        "event": "Verification", "commands": [], "exit_codes": [], "verification_delta": 0, "t": at[1],
    }  # fmt: skip
    assert end == {
        "event": "SessionEnd", "status": "Success", "confidence": 1.0, "total_tool_calls": 1, "total_latency_ms": 1,
        "t": at[1],
    }  # fmt: skip
    assert b"policy_version" not in b"".join(lines)


@requirement("OA-102")
def test_the_plan_stands_before_the_first_call_and_does_not_depend_on_what_came_of_it() -> None:
    lines = trajectory(accepted(1), settled(2, 1))
    (plan,) = values(lines, "PlanStart")
    assert names(lines).index("PlanStart") < names(lines).index("ToolCall")
    assert plan["plan_hash"] == hash_of(plan["plan"])
    assert plan["plan"] == {
        "goal": "com.example.echo/echo",
        "steps": [{"step_id": "step-1", "description": "call", "tool": "com.example.echo/echo"}],
    }
    for rest in ((), (failed(2, 1),), (settled(2, 1), accepted(3), failed(4, 3))):
        assert values(trajectory(accepted(1), *rest), "PlanStart") == [plan]


@requirement("OA-103")
def test_integers_and_floats_stand_as_they_were_sent_and_are_hashed_so() -> None:
    sent = b'{"id": 9223372036854775807, "most": 18446744073709551615, "one": 1.0,\n "tiny": 1.5e-7}'
    lines = trajectory(accepted(1, sent), settled(2, 1))
    assert sent.replace(b"\n", b" ") in lines[3]
    form = b'{"id":9223372036854775807,"most":18446744073709551615,"one":1.0,"tiny":1.5e-7}'
    assert values(lines)[3]["params_hash"] == f"sha256:{hashlib.sha256(form).hexdigest()}"


def test_the_white_space_of_a_body_ends_no_line_for_any_reader() -> None:
    lines = trajectory(accepted(1, b'{\r"a":\n\r\n1}'), settled(2, 1, b"{\r\n}"))
    assert all(len(line.splitlines()) == 1 for line in lines)
    assert check(lines).hashes == 3


def test_a_value_that_has_no_form_to_hash_stands_as_the_text_of_its_json() -> None:
    lines = trajectory(accepted(1, b'{"id": 36893488147419103232}'), settled(2, 1, b"[36893488147419103232]"))
    call, result = values(lines)[3:5]
    assert (call["params"], call["as_text"]) == ('{"id": 36893488147419103232}', True)
    assert (result["output"], result["as_text"]) == ("[36893488147419103232]", True)
    assert check(lines).hashes == 3


@pytest.mark.parametrize(
    ("status", "utility", "word"),
    [(Status.FAILED, -1.0, "Failed"), (Status.UNKNOWN, 0.0, "Failed"), (Status.CANCELED, 0.0, "Cancelled")],
)
def test_a_session_whose_only_call_did_not_succeed_has_confidence_0(status: Status, utility: float, word: str) -> None:
    lines = trajectory(accepted(1), failed(2, 1, status=status))
    result, step, _, end = values(lines)[4:]
    assert (result["step_utility"], result["status"]) == (utility, status.value)
    assert result["output"] == {"code": "tool.failed", "message": "no"}
    assert (step["status"], end["status"], end["confidence"]) == (word, word, 0.0)
    assert check(lines).status == word


def test_confidence_is_the_share_of_calls_that_succeeded_and_a_child_that_failed_does_not_fail_its_session() -> None:
    lines = trajectory(
        accepted(1), accepted(2, cause=1), failed(3, 2), accepted(4, cause=1), settled(5, 4), settled(6, 1)
    )
    end = values(lines)[-1]
    assert (end["status"], end["confidence"], end["total_tool_calls"]) == ("Success", 2 / 3, 3)
    assert {call["step_id"] for call in values(lines, "ToolCall")} == {"step-1"}
    assert [step["iterations"] for step in values(lines, "StepComplete")] == [1]
    check(lines)


def test_further_calls_under_the_same_correlation_are_part_of_the_one_step() -> None:
    lines = trajectory(accepted(1), settled(2, 1), accepted(3), failed(4, 3))
    (step,) = values(lines, "StepComplete")
    assert (step["status"], step["iterations"]) == ("Failed", 2)
    assert values(lines)[-1]["confidence"] == 0.5


def test_a_session_in_which_something_is_open_has_no_end() -> None:
    lines = trajectory(accepted(1), accepted(2, cause=1), settled(3, 2))
    assert names(lines) == [*ALL_EIGHT[:4], "ToolCall", "ToolResult"]
    assert trajectory() == []


def test_a_session_of_refused_calls_only_failed() -> None:
    lines = trajectory(refused(1), refused(2))
    assert names(lines) == [name for name in ALL_EIGHT if not name.startswith("Tool")]
    assert (values(lines)[-1]["status"], values(lines)[-1]["confidence"]) == ("Failed", 0.0)
    assert values(lines, "PlanStart")[0]["plan"]["goal"] == "a/b"
    check(lines)
    # One that was taken on after all is what the session is about.
    assert values(trajectory(refused(1), accepted(2), settled(3, 2)))[-1]["status"] == "Success"


def test_the_steps_of_a_run_are_its_operations() -> None:
    lines = trajectory(
        run_started(
            1,
            {"type": "createFile", "path": "a.txt"},
            {"type": "shell", "command": "make test"},
            {"type": "shell", "command": "sudo ls"},
            {"type": "shell", "command": "make test"},
            {"type": "readFile", "path": "b"},
        ),
        operation(2, "0", "create_file", {"path": "a.txt"}), settled(3, 2, raw({"bytesWritten": 1})),
        operation(4, "1", "shell", {"command": "make test"}), accepted(5, cause=4), settled(6, 5),
        settled(7, 4, raw({"success": False, "exitCode": 2})),
        operation(8, "3", "shell", {"command": "make test"}), settled(9, 8, raw({"success": True, "exitCode": 0})),
        run_ended(10, {"type": "createFile"}, {"type": "approvalRequired"}, {"type": "shell"}, {"type": "policyDenied"},
                  {"type": "shell"}),
        session_id=RUN,
    )  # fmt: skip
    (plan,) = values(lines, "PlanStart")
    assert plan["step_count"] == 5
    assert plan["plan"]["goal"] == "space.demo/create_file"
    assert [step["description"] for step in plan["plan"]["steps"]] == [
        "createFile a.txt", "shell make test", "shell sudo ls", "shell make test", "readFile b",
    ]  # fmt: skip
    assert [step["tool"] for step in plan["plan"]["steps"]][-1] == "space.demo/read_file"
    assert [call["step_id"] for call in values(lines, "ToolCall")] == ["step-1", "step-2", "step-2", "step-4"]
    assert [(step["step_id"], step["status"], step["iterations"]) for step in values(lines, "StepComplete")] == [
        ("step-1", "Success", 1),
        ("step-2", "Failed", 1),
        ("step-4", "Success", 1),
        ("step-3", "Failed", 0),
        ("step-5", "Cancelled", 0),
    ]
    assert [(one["commands"], one["exit_codes"], one["verification_delta"])
            for one in values(lines, "Verification")] == [(["make test"], [2], 0), (["make test"], [0], 1)]  # fmt: skip
    assert values(lines)[-1]["status"] == "Failed"
    assert names(lines).index("StepComplete") < names(lines)[6:].index("ToolCall") + 6
    check(lines)


def test_a_run_is_over_when_it_says_so_and_an_operation_may_be_asked_for_twice() -> None:
    entries = [
        run_started(1, {"type": "shell", "command": "./x"}),
        operation(2, "0", "shell", {"command": "./x"}), failed(3, 2),
        operation(4, "0.2", "shell", {"command": "./x"}), settled(5, 4, raw({"exitCode": None})),
    ]  # fmt: skip
    assert "SessionEnd" not in names(trajectory(*entries, session_id=RUN))
    lines = trajectory(*entries, run_ended(6, {"type": "shell"}), session_id=RUN)
    assert [step["iterations"] for step in values(lines, "StepComplete")] == [2]
    assert values(lines, "Verification")[0]["exit_codes"] == [-1]
    check(lines)


@pytest.mark.parametrize("tool", ["trunkline.jobs/oa.sandbox_run.v1", "nostr.jobs/oa.sandbox_run.v1"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_steps_of_a_sandbox_job_are_its_commands(tool: str, wrapped: bool) -> None:
    job = {"commands": [{"cmd": "make"}, {"cmd": "make test"}, {"cmd": "make lint"}]}
    runs = {"runs": [{"cmd": "make", "exit_code": 0}, {"cmd": "make test", "exit_code": 1}], "status": "failed"}
    output = raw({"outputs": runs} if wrapped else runs)
    lines = trajectory(accepted(1, raw(job), tool_id=tool), settled(2, 1, output))
    (plan,) = values(lines, "PlanStart")
    assert [step["description"] for step in plan["plan"]["steps"]] == ["make", "make test", "make lint"]
    assert [step["status"] for step in values(lines, "StepComplete")] == ["Success", "Failed", "Cancelled"]
    (verification,) = values(lines, "Verification")
    assert (verification["commands"], verification["exit_codes"]) == (["make", "make test"], [0, 1])
    assert values(lines)[-1]["status"] == "Failed"
    check(lines)
    none = trajectory(accepted(1, raw(job), tool_id=tool), failed(2, 1))
    assert [step["status"] for step in values(none, "StepComplete")] == ["Failed", "Cancelled", "Cancelled"]


def test_what_was_masked_is_told() -> None:
    lines = trajectory(Recorded(accepted(1), masked=True), settled(2, 1, hashed=True))
    assert [line.get("masked", False) for line in values(lines)[3:6]] == [True, True, False]


@requirement("OA-105")
def test_the_hash_of_a_trajectory_is_over_its_session_and_all_its_lines() -> None:
    lines = trajectory(accepted(1, b'{"x": 1.0, "\xf0\x9f\x98\x80": 2}'), settled(2, 1))
    whole = b'{"session_id":"c","events":[%b]}' % b",".join(lines)
    assert trajectory_hash("c", lines) == openagents_hash(whole) == check(lines).trajectory_hash
    assert trajectory_hash("d", lines) != trajectory_hash("c", lines) != trajectory_hash("c", lines[:-1])


# --- from a record ----------------------------------------------------------------------------------------------------

RULES = (Rule("rule-1", "operator", "*", Decision.ALLOW, "it is his"),)


@requirement("OA-106")
def test_the_producer_and_the_rules_are_those_that_were_on_record_before_the_session(tmp_path: object) -> None:
    with in_process(tmp_path) as made:  # type: ignore[arg-type]
        made.add(
            lambda n: ExchangeStarted(n=n, at=AT, version="0.9.0", instance="i"),
            lambda n: PolicyChanged(n=n, at=AT, version="old", rules=RULES),
            lambda n: accepted(n, correlation_id="first"),
            lambda n: settled(n, 3),
            lambda n: PolicyChanged(n=n, at=AT, version="new", rules=(), policy_bundle_id="sha256:" + "cd" * 32),
            lambda n: accepted(n, correlation_id="second"),
            lambda n: settled(n, 6),
        )
        first, second = (values(list(export.trajectory(made.ledger.reader, name))) for name in ("first", "second"))
    assert {first[0]["producer"], second[0]["producer"]} == {"trunkline@0.9.0"}
    rules = [{"id": "rule-1", "caller": "operator", "tool": "*", "decision": "allow", "reason": "it is his"}]
    assert first[1]["policy_bundle_id"] == hash_of(rules)
    assert second[1]["policy_bundle_id"] == "sha256:" + "cd" * 32


@requirement("OA-104")
def test_the_whole_of_a_large_output_is_there_and_hashed(tmp_path: object) -> None:
    large = json.dumps({"text": "x" * 10 * 1_048_576}).encode()
    with in_process(tmp_path) as made:  # type: ignore[arg-type]
        made.add(accepted, lambda n: settled(n, 1, large))
        lines = list(export.trajectory(made.ledger.reader, call_id(1)))
    (result,) = values(lines, "ToolResult")
    assert result["output"] == json.loads(large)
    assert result["output_hash"] == f"sha256:{hashlib.sha256(large.replace(b': ', b':')).hexdigest()}"
    check(lines)


def test_a_secret_on_record_in_masked_form_is_in_no_trajectory(tmp_path: object) -> None:
    secret = "hunter2hunter2"
    body = json.dumps({"password": secret, "note": "plain"}).encode()
    with in_process(tmp_path) as made:  # type: ignore[arg-type]
        made.add(lambda n: accepted(n, body, correlation_id="c", key="k", key_id="kk"), lambda n: settled(n, 1, body))
        lines = list(export.trajectory(made.ledger.reader, "c"))
    assert secret.encode() not in b"".join(lines)
    call, result = values(lines)[3:5]
    assert call["masked"]
    assert result["masked"]
    assert call["params"]["note"] == "plain"
    check(lines)


def test_a_run_is_found_by_its_own_name(tmp_path: object) -> None:
    with in_process(tmp_path) as made:  # type: ignore[arg-type]
        made.add(
            lambda n: run_started(n, {"type": "shell", "command": "ls"}),
            lambda n: operation(n, "0", "shell", {"command": "ls"}),
            lambda n: settled(n, 2, raw({"exitCode": 0})),
            lambda n: run_ended(n, {"type": "shell"}),
        )
        lines = list(export.trajectory(made.ledger.reader, RUN))
        assert list(export.trajectory(made.ledger.reader, "2")) == []
    assert check(lines).status == "Success"
    assert values(lines, "PlanStart")[0]["plan"]["steps"][0]["description"] == "shell ls"


@pytest.mark.slow
@given(histories())
def test_any_record_gives_a_trajectory_that_is_whole_or_open(history: list[AnyEntry]) -> None:
    lines = trajectory(*history)
    if lines and names(lines)[-1] == "SessionEnd":
        assert check(lines).lines == len(lines)
    assert lines == trajectory(*history)
    for line in lines:
        assert b"\n" not in line
        json.loads(line)

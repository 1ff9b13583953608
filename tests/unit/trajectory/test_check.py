from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from tests.unit.ledger.made import accepted, settled
from tests.unit.trajectory.made import foreign, hash_of, trajectory, written
from trunkline.trajectory import check as module
from trunkline.trajectory.check import NotATrajectory, check, lines_of

T = "2026-01-16T12:00:00Z"


def wrong(lines: list[bytes]) -> str:
    with pytest.raises(NotATrajectory) as found:
        check(lines)
    return str(found.value)


def changed(event: str, **fields: Any) -> list[bytes]:
    return written(foreign(**{event: fields}))


def without(event: str, name: str) -> list[bytes]:
    return written([{key: value for key, value in one.items() if one["event"] != event or key != name}
                    for one in foreign()])  # fmt: skip


@requirement("OA-093")
def test_the_eight_lines_of_the_specification_are_a_trajectory() -> None:
    found = check(written(foreign()))
    assert (found.session_id, found.producer, found.policy_bundle_id) == ("s_1", "adjutant@1.2.3", "any text")
    assert (found.status, found.confidence, found.tool_calls, found.lines) == ("Success", 0.92, 1, 8)
    # The params; plan and output are not in the file.
    assert (found.hashes, found.unproved) == (1, 2)


@requirement("OA-084", "OA-085", "OA-086", "OA-087", "OA-088", "OA-089", "OA-090", "OA-091", "OA-092")
@pytest.mark.parametrize(
    ("number", "event", "name"),
    [(number, one["event"], name) for number, one in enumerate(foreign(), start=1) for name in one if name != "event"],
)
def test_each_field_of_the_specification_is_needed(number: int, event: str, name: str) -> None:
    assert wrong(without(event, name)).startswith(f"line {number}: ")


def test_the_event_of_a_line_is_needed() -> None:
    lines = written(foreign())
    lines[4] = b'{"id": "tc_001"}'
    assert wrong(lines) == "line 5: has no `event`"


def test_the_later_names_are_read() -> None:
    later = [{{"event": "type", "t": "ts"}.get(key, key): value for key, value in one.items()} for one in foreign()]
    assert check(written(later)).status == "Success"
    later[3]["type"] = 7
    assert wrong(written(later)) == "line 4: has no `event`"


def test_events_and_fields_of_somebodys_own_are_accepted() -> None:
    events = foreign(ToolResult={"cost": {"msats": 7}, "status": 5, "masked": "x"}, SessionStart={"branch": "main"})
    events.insert(4, {"event": "Thought", "text": "hm", "t": T})
    events.insert(1, {"event": "Machine", "cores": 2})
    found = check(written(events))
    assert found.unknown_events == 2


@requirement("OA-085", "OA-086", "OA-087", "OA-089", "OA-090", "OA-091", "OA-092")
@pytest.mark.parametrize(
    ("event", "fields", "fault"),
    [
        ("ReplayHeader", {"replay_version": 2}, "line 1: ReplayHeader: replay_version: invalid enum value 2"),
        ("ReplayHeader", {"replay_version": "1"}, "line 1: ReplayHeader: replay_version: "),
        ("SessionStart", {"issue_number": "42"}, "line 2: SessionStart: issue_number: expected `int | null`"),
        ("SessionStart", {"session_id": ""}, "line 2: SessionStart: session_id: "),
        ("PlanStart", {"plan_hash": "sha256:abc"}, "line 3: PlanStart: plan_hash: "),
        ("PlanStart", {"plan_hash": hash_of(1).upper()}, "line 3: PlanStart: plan_hash: "),
        ("PlanStart", {"step_count": -1}, "line 3: PlanStart: step_count: "),
        ("PlanStart", {"step_count": 1.5}, "line 3: PlanStart: step_count: "),
        ("PlanStart", {"plan": {"goal": "x", "steps": []}}, "line 3: plan_hash is sha256:"),
        ("ToolCall", {"params": {"path": "src/main.rs "}}, "line 4: params_hash is sha256:"),
        ("ToolCall", {"tool": ""}, "line 4: ToolCall: tool: "),
        ("ToolResult", {"output": "another"}, "line 5: output_hash is sha256:"),
        ("ToolResult", {"step_utility": 1.1}, "line 5: ToolResult: step_utility: expected `float` <= 1.0"),
        ("ToolResult", {"step_utility": -1.1}, "line 5: ToolResult: step_utility: "),
        ("ToolResult", {"step_utility": True}, "line 5: ToolResult: step_utility: "),
        ("ToolResult", {"latency_ms": -1}, "line 5: ToolResult: latency_ms: "),
        ("ToolResult", {"id": "tc_002"}, "line 5: a result of the call tc_002, which was not made before"),
        ("StepComplete", {"status": "Done"}, "line 6: StepComplete: status: "),
        ("StepComplete", {"iterations": -1}, "line 6: StepComplete: iterations: "),
        ("Verification", {"exit_codes": [0]}, "line 7: 2 commands and 1 exit_codes: one for each is needed"),
        ("Verification", {"exit_codes": ["0", "0"]}, "line 7: Verification: exit_codes[0]: expected `int`"),
        ("SessionEnd", {"status": "success"}, "line 8: SessionEnd: status: "),
        ("SessionEnd", {"confidence": 1.01}, "line 8: SessionEnd: confidence: "),
        ("SessionEnd", {"total_tool_calls": -1}, "line 8: SessionEnd: total_tool_calls: "),
    ],
)
def test_a_value_that_is_not_what_it_should_be_is_named_with_its_line(event: str, fields: Any, fault: str) -> None:
    assert wrong(changed(event, **fields)).startswith(fault)


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("ToolResult", {"step_utility": -1}),
        ("ToolResult", {"step_utility": 0, "latency_ms": 0.25}),
        ("ToolResult", {"output": "full"}),
        ("SessionStart", {"issue_number": None}),
        ("SessionEnd", {"confidence": 1, "status": "Cancelled"}),
        ("Verification", {"verification_delta": -3, "exit_codes": [1, -1]}),
        ("PlanStart", {"step_count": 0}),
    ],
)
def test_the_ends_of_each_range_are_inside(event: str, fields: Any) -> None:
    check(changed(event, **fields))


def test_a_plan_has_as_many_steps_as_it_says() -> None:
    plan = {"goal": "x", "steps": [{"step_id": "step-1"}]}
    assert check(changed("PlanStart", plan=plan, plan_hash=hash_of(plan), step_count=1)).hashes == 2
    assert "step_count is 3, and the plan has 1" in wrong(changed("PlanStart", plan=plan, plan_hash=hash_of(plan)))


@requirement("OA-085", "OA-089", "OA-102")
def test_lines_in_the_wrong_order_are_named() -> None:
    lines = written(foreign())
    header, start, plan, call, result, step, verification, end = lines
    for given_lines, fault in (
        ([], "line 1: the file is empty"),
        (lines[1:], "line 1: the first line has to be a ReplayHeader"),
        ([header, *lines], "line 2: a ReplayHeader stands on the first line only"),
        ([header, plan, start], "line 2: PlanStart stands before SessionStart"),
        ([header, start, start], "line 3: a second SessionStart"),
        ([header, start, call, plan], "line 3: a ToolCall before PlanStart"),
        ([header, start, plan, result], "line 4: a result of the call tc_001, which was not made before"),
        ([header, start, plan, call, call], "line 5: the call tc_001 was there before"),
        ([header, start, plan, call, result, result], "line 6: a result of the call tc_001, which has a result"),
        ([header, start, plan, call, step], "line 5: step-1 is complete, and the call tc_001 of it has no result"),
        ([header, start, plan, call, end], "line 5: SessionEnd, and the call tc_001 has no result"),
        ([*lines, verification], "line 9: stands after SessionEnd"),
        ([*lines, b'{"event":"Thought"}'], "line 9: stands after SessionEnd"),
        (lines[:-1], "line 7: is the last one, and no SessionEnd"),
    ):
        assert wrong(given_lines).startswith(fault)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", "is empty"),
        (b"  ", "is empty"),
        (b"[]", "is not a JSON object"),
        (b'{"event":"Thought"', "not strict JSON: "),
        (b'{"event":"Thought","a":1,"a":1}', "not strict JSON: a key appears twice in one object at byte 25"),
        (b'{"event":"Thought","a":NaN}', "not strict JSON: "),
        (b'{"event":"Thought","a":36893488147419103232}', "not strict JSON: an integer outside 64 bits"),
        (b'{"event":"Thought","a":"\\ud800"}', "not strict JSON: "),
        (b'{"event":"Thought","a":"\xff"}', "not strict JSON: not valid UTF-8"),
        (b'{"event":7}', "has no `event`"),
        (b'{"event":"Thought","a":' + b"[" * 200 + b"]" * 200 + b"}", "not strict JSON: nested deeper than 128"),
    ],
)
def test_a_line_that_others_might_read_otherwise_is_refused(line: bytes, fault: str) -> None:
    lines = written(foreign())
    assert wrong([*lines[:3], line, *lines[3:]]).startswith(f"line 4: {fault}")


def test_lines_end_at_a_line_feed_and_nowhere_else() -> None:
    events = foreign(
        ToolCall={"params": {"text": "a\u2028b\u0085c\x0b"}, "params_hash": hash_of({"text": "a\u2028b\u0085c\x0b"})}
    )
    file = b"\r\n".join(written(events)) + b"\n"
    assert "\u2028".encode() in file
    assert check(lines_of(io.BytesIO(file))).lines == 8
    assert wrong(list(lines_of(io.BytesIO(file + b"\n")))).startswith("line 9: ")


def test_a_line_without_an_end_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 1000)
    file = b"\n".join(written(foreign())[:2]) + b"\n" + b'{"event": "' + b"x" * 5000
    with pytest.raises(NotATrajectory, match="line 3: is longer than 1,000 bytes"):
        check(lines_of(io.BytesIO(file)))


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_in_the_lines() -> None:
    def lines() -> Any:
        header, start, plan, call, result, *rest = foreign()
        yield from written([header, start, plan])
        for number in range(200):
            text = {"text": f"{number}" + "x" * 100_000}
            yield from written([{**call, "id": f"{number}", "params": text, "params_hash": hash_of(text)},
                                {**result, "id": f"{number}"}])  # fmt: skip
        yield from written(rest)

    tracemalloc.start()
    check(lines())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


@given(st.lists(st.sampled_from(written(foreign())) | st.binary(max_size=60), max_size=10))
def test_no_lines_make_it_raise_anything_else(lines: list[bytes]) -> None:
    wrong = 1
    try:
        check(lines)
    except NotATrajectory as found:
        wrong = found.line
    assert 1 <= wrong <= len(lines) + 1


def test_what_we_write_is_accepted_and_any_changed_value_of_a_hash_is_found() -> None:
    lines = trajectory(accepted(1), settled(2, 1))
    assert check(lines).hashes == 3
    for number, name in ((2, "plan"), (3, "params"), (4, "output")):
        value = json.loads(lines[number])
        value[name] = {**value[name], "more": 1}
        assert wrong([*lines[:number], json.dumps(value).encode(), *lines[number + 1 :]]).startswith(
            f"line {number + 1}: "
        )

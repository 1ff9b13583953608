from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from tests.unit.ledger.made import accepted, histories, settled
from tests.unit.trajectory.made import failed, foreign, trajectory, written
from trunkline.entries import AnyEntry
from trunkline.trajectory.bundle import bundle_of, decode_bundle, encode_bundle, export


def there_and_back(lines: list[bytes]) -> list[bytes]:
    return list(export(decode_bundle(encode_bundle(bundle_of(lines)))))


@requirement("OA-083")
def test_a_bundle_has_the_session_its_steps_and_everything_else_as_metadata() -> None:
    lines = trajectory(accepted(1, b'{"x": 1.0}'), settled(2, 1, b"{}"))
    value = json.loads(encode_bundle(bundle_of(lines)))
    assert list(value) == ["session_id", "steps", "metadata"]
    (step,) = value["steps"]
    assert {"step_id", "tool_calls", "status", "iterations", "completed_at"} <= set(step)
    (call,) = step["tool_calls"]
    names = ("id", "tool", "params", "params_hash", "output_hash", "step_utility", "latency_ms", "started_at")
    assert set(names) <= set(call)
    assert call["params"] == {"x": 1.0}
    fields = (
        "replay_version", "producer", "created_at", "issue_number", "policy_bundle_id", "plan_hash", "step_count",
        "verification", "status", "confidence", "total_tool_calls", "total_latency_ms", "ended_at",
    )  # fmt: skip
    assert set(fields) <= set(value["metadata"])


@pytest.mark.slow
@requirement("OA-094")
@given(histories())
def test_the_exporter_gives_the_bytes_of_the_native_file(history: list[AnyEntry]) -> None:
    lines = trajectory(*history)
    assert there_and_back(lines) == lines


def test_calls_inside_calls_and_open_sessions_are_exported_in_their_order() -> None:
    for entries in (
        (accepted(1), accepted(2, cause=1), failed(3, 2), settled(4, 1)),
        (accepted(1), accepted(2, cause=1), settled(3, 2)),
    ):
        lines = trajectory(*entries)
        assert there_and_back(lines) == lines


@given(st.permutations(written(foreign())))
def test_lines_in_any_order_come_back(lines: list[bytes]) -> None:
    assert there_and_back(lines) == lines


def test_what_nobody_here_knows_is_kept() -> None:
    events = foreign(ToolCall={"cost": 7})
    events.insert(4, {"event": "Thought", "text": "caf\u00e9"})
    lines = written([*events, *events])
    assert there_and_back(lines) == lines

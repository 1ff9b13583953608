"""Which calls ran commands, and how those ended."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from trunkline.trajectory.commands import NO_EXIT_CODE, commands_of, failed_with

JOB = "trunkline.jobs/oa.sandbox_run.v1"


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("tool", "output", "metrics", "code"),
    [
        ("space.a/shell", {"exitCode": 1}, None, 1),
        ("space.a/shell", {"exitCode": 0}, None, None),
        ("space.a/shell", {"bytes": 70_000, "sha256": "00"}, {"exit_codes": [4]}, 4),
        # An output that is kept elsewhere says nothing: no failure is made of that.
        ("space.a/shell", {"bytes": 70_000, "sha256": "00"}, None, None),
        (JOB, {"runs": [{"cmd": "a", "exit_code": 0}, {"cmd": "b", "exit_code": 2}]}, None, 2),
        ("nostr.jobs/oa.sandbox_run.v1", {"outputs": {"runs": [{"cmd": "a", "exit_code": 3}]}}, None, 3),
        ("space.a/read_file", {"exitCode": 1}, None, None),
        ("com.example/shell", {"exitCode": 1}, {"exit_codes": [1]}, None),
    ],
)
def test_the_first_exit_code_other_than_0_is_found_where_commands_ran(
    tool: str, output: Any, metrics: Any, code: int | None
) -> None:
    assert failed_with(tool, raw(output), None if metrics is None else raw(metrics)) == code


def test_a_call_without_an_output_ran_nothing_that_is_known() -> None:
    assert failed_with("space.a/shell", None) is None
    assert commands_of("space.a/shell", raw({"command": "ls"}), None) == ([], [])
    assert commands_of("space.a/shell", raw({"command": "ls"}), raw({})) == (["ls"], [NO_EXIT_CODE])

from __future__ import annotations

from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.ledger.made import accepted
from tests.unit.trajectory.made import hash_of, raw, refused, run_ended, run_started
from trunkline.trajectory.plan import is_run, plan_of

JOB = "trunkline.jobs/oa.sandbox_run.v1"


@requirement("OA-102")
def test_a_plan_is_hashed_as_it_is_written() -> None:
    plan = plan_of(accepted(1))
    step = {"step_id": "step-1", "description": "call", "tool": "com.example.echo/echo"}
    assert plan.hash == hash_of({"goal": "com.example.echo/echo", "steps": [step]})


@pytest.mark.parametrize("given", [None, [], {}, {"commands": 7}, {"commands": [7, {"cmd": 8}, {}]}])
def test_a_job_whose_commands_cannot_be_read_is_one_call(given: Any) -> None:
    plan = plan_of(accepted(1, raw(given), tool_id=JOB))
    assert [step.description for step in plan.steps] == ["call"]


@pytest.mark.parametrize("operations", [(), ({},), ({"type": 7},)])
def test_a_run_of_whatever_is_on_record_has_a_plan(operations: Any) -> None:
    plan = plan_of(run_started(1, *operations))
    assert len(plan.steps) == len(operations)
    assert plan.goal.startswith("space.demo")


def test_a_refused_call_has_the_plan_of_that_call() -> None:
    assert plan_of(refused(1)).goal == "a/b"


def test_the_start_of_a_run_is_told_from_its_end() -> None:
    assert is_run(run_started(1))
    assert not is_run(run_ended(2))
    assert not is_run(accepted(1))

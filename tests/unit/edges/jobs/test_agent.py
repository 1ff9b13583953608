"""Jobs as calls of the agent ``trunkline.jobs``: what it offers, what comes of a job, progress, cancel, figures."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import JobsWorld, jobs_world
from tests.requirement import requirement
from trunkline.config import BUILTIN_RULES, Jobs
from trunkline.edges.jobs import edge as jobs_edge
from trunkline.entries import CallSettled
from trunkline.errors import WorkspaceError
from trunkline.events import CancelRequested
from trunkline.jobs import models
from trunkline.jobs.schemas import ANALYSIS, EMBEDDING, RERANK, SANDBOX, job_types
from trunkline.model import Policy, Principal, Status
from trunkline.testing.memory import BOSS

pytestmark = pytest.mark.slow

HASHING = "trunkline-hashing-v1"
# The processes of another run of these tests are not ours.
MARK = f"4711{os.getpid()}"
AGENT = Principal("agent:com.example.a")


@requirement("OA-055")
async def test_an_embedding_job_is_a_call_and_its_hashes_are_on_record(world: JobsWorld) -> None:
    call = await world.done(EMBEDDING, {"texts": ["hello"], "model": HASHING, "dimensions": 4})
    assert call.output == {
        "embeddings": [[0.0, 0.301511345, 0.301511345, -0.904534034]],
        "model": HASHING,
        "dimensions": 4,
    }
    (settled,) = world.exchange.recorded(CallSettled)
    told = json.loads(bytes(settled.metrics))
    job = job_types()[EMBEDDING]
    assert told["model"] == HASHING
    assert told["token_counts"]["input"] > 0
    assert told["output_hash"] == job.output_hash(call.output)
    assert told["job_hash"] == job.job_hash({"texts": ["hello"], "model": HASHING, "dimensions": 4})


@requirement("OA-053")
async def test_a_rerank_job_is_a_call(world: JobsWorld) -> None:
    candidates = [{"id": "a", "content": "cooking"}, {"id": "b", "content": "parse a date"}]
    call = await world.done(RERANK, {"user_task": "date parser", "candidates": candidates, "k": 1})
    assert [(one["rank"], one["id"]) for one in call.output["topk"]] == [(1, "b")]


@requirement("OA-052")
async def test_an_analysis_job_is_a_call(world: JobsWorld) -> None:
    chunk = {"path": "a.py", "start_line": 5, "end_line": 6, "content": "def f(x=[]):\n    return x\n"}
    call = await world.done(ANALYSIS, {"task": "look", "chunk": chunk})
    assert [one["line"] for one in call.output["suspected_faults"]] == [5]


@requirement("OA-054")
async def test_a_sandbox_job_runs_its_commands_and_names_new_and_changed_files(world: JobsWorld) -> None:
    outputs = await world.run("mkdir d; printf built > d/out.txt; echo hi; echo no >&2", "cat d/out.txt")
    first, second = outputs["runs"]
    assert outputs["status"] == "success"
    assert (first["exit_code"], first["stdout_preview"], first["stderr_preview"]) == (0, "hi\n", "no\n")
    assert first["stdout_sha256"] == hashlib.sha256(b"hi\n").hexdigest()
    assert second["stdout_preview"] == "built"
    digest = hashlib.sha256(b"built").hexdigest()
    assert outputs["artifacts"] == [{"path": "d/out.txt", "sha256": digest, "size_bytes": 5, "mime_type": "text/plain"}]
    assert world.folders() == []


async def test_a_model_that_is_not_here_is_refused_with_those_that_are(world: JobsWorld) -> None:
    call = await world.done(EMBEDDING, {"texts": ["a"], "model": "gpt-9"})
    assert call.code == "tool.invalid_input"
    assert call.outcome.fault is not None
    assert HASHING in call.outcome.fault.message


@pytest.mark.parametrize(
    ("schema_id", "inputs", "place"),
    [
        (RERANK, {"user_task": "t", "candidates": [{"id": "a", "content": ""}] * 2}, "inputs.candidates[1].id"),
        (ANALYSIS, {"task": "t", "chunk": {"path": "a", "start_line": 2, "end_line": 1, "content": ""}}, "end_line"),
    ],
)
async def test_inputs_that_make_no_sense_together_are_refused_by_name(
    world: JobsWorld, schema_id: str, inputs: Any, place: str
) -> None:
    call = await world.done(schema_id, inputs)
    assert call.outcome.fault is not None
    assert (call.code, place in call.outcome.fault.message) == ("tool.invalid_input", True)


async def test_what_only_looks_is_allowed_to_agents_and_commands_are_asked_about(tmp_path: Path) -> None:
    async with jobs_world(tmp_path / "home", policy=Policy(BUILTIN_RULES, "builtin")) as world:
        call = await world.done(EMBEDDING, {"texts": ["a"], "model": HASHING}, by=AGENT)
        assert call.code is None
        asked = world.begin(SANDBOX, {"commands": [{"cmd": "echo hi"}]}, by=AGENT)
        world.exchange.answer(asked.approval_id)
        await world.until(lambda: asked.answer is not None)
        assert asked.output["status"] == "success"


async def test_what_a_command_prints_is_progress_while_it_runs(world: JobsWorld) -> None:
    call = world.begin(SANDBOX, {"commands": [{"cmd": "echo begun; sleep 30"}]})
    await world.until(lambda: any(b"begun" in bytes(one.data) for one in call.progress if one.channel == "stdout"))
    assert any(b"command 1 of 1" in bytes(one.data) for one in call.progress if one.channel == "status")
    cancel(world, call)
    await world.until(lambda: call.answer is not None)
    assert call.outcome.status is Status.CANCELED
    assert world.edge.status()["canceled"] == 1


def cancel(world: JobsWorld, call: Any) -> None:
    session = world.exchange._session
    world.exchange.feed.feed([CancelRequested(session, "cancel", BOSS, call.call_id, "enough")])


async def test_a_canceled_job_leaves_no_process_and_no_folder(world: JobsWorld) -> None:
    call = world.begin(SANDBOX, {"commands": [{"cmd": f"sleep {MARK} & setsid sleep {MARK} & echo up; wait"}]})
    await world.until(lambda: any(b"up" in bytes(one.data) for one in call.progress if one.channel == "stdout"))
    cancel(world, call)
    await world.until(lambda: call.answer is not None)
    await world.until(lambda: world.folders() == [])
    assert not any(MARK in line for line in command_lines())


def command_lines() -> list[str]:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return [line for line in lines if line.startswith("sleep")]


async def test_a_worker_is_ended_with_the_job_that_it_works_on_and_the_next_job_has_another(world: JobsWorld) -> None:
    big = {"texts": ["word " * 3_000] * 60, "model": HASHING, "dimensions": 4096}
    call = world.begin(EMBEDDING, big)
    await world.until(lambda: world.edge.agent.workers.count)
    (worker,) = world.edge.agent.workers._all
    cancel(world, call)
    await world.until(lambda: call.answer is not None)
    assert call.outcome.status is Status.CANCELED
    await worker.wait()
    assert worker.returncode == -9
    assert (await world.done(EMBEDDING, {"texts": ["a"], "model": HASHING})).code is None


async def test_no_more_jobs_run_at_once_than_the_configuration_says(tmp_path: Path) -> None:
    async with jobs_world(tmp_path / "home", Jobs(running=1)) as world:
        first = world.begin(SANDBOX, {"commands": [{"cmd": "echo up; sleep 30"}]})
        await world.until(lambda: first.progress)
        second = world.begin(SANDBOX, {"commands": [{"cmd": "echo second"}]})
        assert world.edge.status()["open"] == 2
        assert len(world.folders()) == 1
        cancel(world, first)
        await world.until(lambda: second.answer is not None)
        assert second.output["status"] == "success"


async def test_without_the_extra_two_types_are_offered_and_status_says_why_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.languages, "is_here", lambda: False)
    monkeypatch.setattr(models.rerank, "is_here", lambda: False)
    async with jobs_world(tmp_path / "home") as world:
        offered = [tool.tool_id for tool in world.exchange.views.tools() if "trunkline.jobs" in tool.tool_id]
        assert offered == [f"trunkline.jobs/{EMBEDDING}", f"trunkline.jobs/{SANDBOX}"]
        status = world.edge.status()
        optional = str(status["not_installed"])
        assert 'oa.retrieval_rerank.v1 is not offered: needs bm25s (pip install "trunkline[jobs]")' in optional
        assert "note" not in status


async def test_without_a_sandbox_commands_are_not_offered_and_status_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_holds() -> None:
        raise WorkspaceError("execution", "No sandbox holds on this machine")

    monkeypatch.setattr("trunkline.edges.jobs.sandboxes.probe", nothing_holds)
    async with jobs_world(tmp_path / "home") as world:
        assert world.exchange.views.tool(f"trunkline.jobs/{SANDBOX}") is None
        assert "oa.sandbox_run.v1 is not offered: No sandbox holds" in str(world.edge.status()["note"])
        assert (await world.done(SANDBOX, {"commands": [{"cmd": "true"}]})).code == "tool.not_found"


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    async with jobs_world(tmp_path / "home", Jobs(enabled=False)) as world:
        assert world.exchange.views.tools() == []
        assert "off in trunkline.toml" in json.dumps(world.exchange.edges.status())


async def test_what_a_crash_left_is_removed_at_the_start(tmp_path: Path) -> None:
    left = tmp_path / "home" / "jobs" / "old"
    left.mkdir(parents=True)
    (tmp_path / "home").chmod(0o700)
    (left / "file").write_text("x")
    left.chmod(0)
    async with jobs_world(tmp_path / "home"):
        assert not left.exists()


def test_the_edge_imports_no_library_of_a_model_or_a_parser() -> None:
    import subprocess
    import sys

    heavy = "('numpy', 'bm25s', 'wordllama', 'tree_sitter')"
    code = f"import sys, trunkline.edges.known; print([name for name in {heavy} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
    assert jobs_edge.JOBS.section == "jobs"

"""The rules of a Chiffon agent, as the SDK keeps them for its author: the cache, versions, limits, cadence, tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.edges.chiffon.kit import EMITTED, envelope, request, valid
from trunkline.edges.chiffon import chunks, messages
from trunkline.edges.chiffon.messages import Envelope
from trunkline.errors import ConfigError
from trunkline.sdk import ChiffonAgent, ResourceLimit, WorkFailed
from trunkline.sdk.chiffon import Task
from trunkline.sdk.chiffon_cache import RequestCache
from trunkline.sdk.chiffon_jobs import AcceptedJob, AcceptedJobs, JobOutcome

NOW = 1_800_000_000.0
TOKEN = "a7f3d8c2e1b9f4a6c8e2d1b3f4a6c8e2"


def said(envelopes: list[Envelope]) -> list[dict[str, Any]]:
    return [valid(json.loads(messages.encode(one))) for one in envelopes]


def take(jobs: AcceptedJobs, message: dict[str, Any], **terms: Any) -> tuple[list[dict[str, Any]], AcceptedJob | None]:
    replies, job = jobs.receive(json.dumps(message).encode(), NOW, **terms)
    return said(replies), job


def finish(jobs: AcceptedJobs, job: AcceptedJob, output: str = "done", code: int = 0) -> list[dict[str, Any]]:
    status = "failed" if code else "success"
    result = messages.WorkResult(job.request.task_id, status, code, output)  # type: ignore[arg-type]
    return said(jobs.finished(job, JobOutcome(result), NOW))


@pytest.fixture
def jobs() -> AcceptedJobs:
    return AcceptedJobs("infra", {"run": False, "again": True}, RequestCache(":memory:"), memory_mb=256)


@requirement("CH-078", "CH-079", "CH-080", "CH-003")
def test_a_request_is_run_once_and_its_result_repeated(jobs: AcceptedJobs) -> None:
    work = request("run")
    first, job = take(jobs, work)
    assert job is not None
    assert (first[0]["type"], first[0]["payload"]["progress_percent"]) == ("work_status", 0)
    running, none = take(jobs, {**work, "message_id": str(uuid.uuid4())})
    assert none is None
    assert running[0]["type"] == "work_status", "it attaches to what runs"
    (result,) = finish(jobs, job)
    repeated, none = take(jobs, {**work, "message_id": str(uuid.uuid4())})
    assert none is None
    assert [message["payload"] for message in repeated] == [result["payload"]]
    assert (repeated[0]["request_id"], repeated[0]["trace_id"]) == (work["request_id"], work["trace_id"])


@requirement("CH-079", "CH-080")
def test_the_cache_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "seen.sqlite"
    cache = RequestCache(path)
    jobs = AcceptedJobs("infra", {"run": False}, cache)
    work = request("run")
    _, job = take(jobs, work)
    assert job is not None
    (result,) = finish(jobs, job, "once")
    cache.close()
    later = AcceptedJobs("infra", {"run": False}, RequestCache(path))
    repeated, none = take(later, work)
    assert none is None
    assert repeated[0]["payload"] == result["payload"]


def test_what_was_interrupted_is_not_run_again_unless_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "seen.sqlite"
    jobs = AcceptedJobs("infra", {"run": False, "again": True}, RequestCache(path))
    works = {name: request(name) for name in ("run", "again")}
    for work in works.values():
        assert take(jobs, work)[1] is not None
    later = AcceptedJobs("infra", {"run": False, "again": True}, RequestCache(path))
    replies, job = take(later, works["run"])
    assert job is None
    assert (replies[0]["payload"]["status"], replies[0]["payload"]["exit_code"]) == ("failed", 137)
    assert replies[0]["x_custom_fields"]["outcome"] == "unknown"
    assert take(later, works["again"])[1] is not None


def test_the_cache_forgets_after_a_day_and_beyond_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = RequestCache(":memory:")
    cache.start("orchestrator", "one", "f", NOW)
    assert cache.get("orchestrator", "one", NOW + 86_399) is not None
    assert cache.get("orchestrator", "one", NOW + 86_401) is None
    assert cache.get("another", "one", NOW) is None, "each sender has a scope of its own"
    monkeypatch.setattr("trunkline.sdk.chiffon_cache.MAX_ENTRIES", 3)
    for number in range(5):
        cache.start("orchestrator", f"n{number}", "f", NOW + 90_000 + number)
    assert len(cache) == 3
    assert cache.get("orchestrator", "n4", NOW + 90_005) is not None


@requirement("CH-078")
def test_the_same_request_id_with_another_payload_is_5003(jobs: AcceptedJobs) -> None:
    work = request("run", {"n": 1})
    _, job = take(jobs, work)
    assert job is not None
    other = {**work, "payload": {**work["payload"], "parameters": {"n": 2}}}
    (error,), none = take(jobs, other)
    assert none is None
    assert error["payload"]["error_code"] == 5003
    assert error["payload"]["error_context"]["field_name"] == "request_id"


def test_errors_that_are_tried_again_are_not_cached_and_others_are(jobs: AcceptedJobs) -> None:
    for limit, expected in ((messages.over_limit("gpu", 0, 1), 5005), (messages.invalid("x"), 5003)):
        work = request("run")
        _, job = take(jobs, work)
        assert job is not None
        (error,) = said(jobs.gave_up(job, limit.error, NOW))
        assert error["payload"]["error_code"] == expected
        replies, again = take(jobs, work)
        assert (again is not None) is (expected == 5005)
        if again is None:
            assert replies[0]["payload"] == error["payload"]


@requirement("CH-062")
def test_an_unknown_work_type_is_5006(jobs: AcceptedJobs) -> None:
    (error,), job = take(jobs, request("nothing"))
    assert job is None
    assert error["payload"]["error_code"] == 5006
    assert error["payload"]["error_context"] == {"work_type_requested": "nothing", "supported_types": ["again", "run"]}


@requirement("CH-061")
def test_a_hint_beyond_the_capacity_is_5005_before_anything_starts(jobs: AcceptedJobs) -> None:
    (error,), job = take(jobs, request("run", hints={"max_memory_mb": 512}))
    assert job is None
    assert error["payload"]["error_code"] == 5005
    assert error["payload"]["error_context"] == {"limit_name": "memory_mb", "available": 256, "required": 512}
    assert take(jobs, request("run", hints={"max_memory_mb": 256}))[1] is not None


@requirement("CH-096")
def test_a_v2_message_is_5006(jobs: AcceptedJobs) -> None:
    (error,), job = take(jobs, request("run", protocol_version="2.0"))
    assert job is None
    assert error["payload"]["error_code"] == 5006
    assert error["payload"]["error_context"]["unsupported_version"] == "2.0"
    assert error["payload"]["error_context"]["work_type_requested"] == "run"


@requirement("CH-019", "CH-029", "CH-038", "CH-050")
def test_an_agent_takes_work_and_errors_only(jobs: AcceptedJobs) -> None:
    for kind in ("work_status", "work_result"):
        (error,), job = take(jobs, envelope(kind, {}, from_agent="orchestrator", to_agent="infra"))
        assert job is None
        assert error["payload"]["error_context"]["field_name"] == "type"
    (error,), _ = take(jobs, request("run", from_agent="code"))
    assert error["payload"]["error_context"]["field_name"] == "type"
    (error,), _ = take(jobs, request("run", to_agent="code"))
    assert error["payload"]["error_context"]["field_name"] == "to_agent"
    told = envelope("error", {"error_code": 5001, "error_message": "x"}, from_agent="orchestrator", to_agent="infra")
    assert take(jobs, told) == ([], None)
    (error,), _ = take(jobs, {"not": "an envelope"})
    assert error["payload"]["error_code"] == 5003


@requirement("CH-103", "CH-101")
def test_by_the_queue_the_orchestrator_shows_a_token_too(jobs: AcceptedJobs) -> None:
    jobs.orchestrator_token = TOKEN
    for shown, word in (({}, "missing"), ({"auth_token": "x"}, "invalid"), ({"auth_token": 5}, "invalid")):
        (error,), job = take(jobs, {**request("run"), **shown}, with_token=True)
        assert job is None
        assert error["payload"]["error_code"] == 5004
        assert error["payload"]["error_context"]["token_status"] == word
        assert "auth_token" not in error
    assert take(jobs, {**request("run"), "auth_token": TOKEN}, with_token=True)[1] is not None


@requirement("CH-083", "CH-084", "CH-085", "CH-112")
def test_large_outputs_are_split_and_a_large_result_is_cut_with_its_hash(jobs: AcceptedJobs) -> None:
    _, job = take(jobs, request("run"))
    assert job is not None
    job.step, job.step_name = 1, "logs"
    small = said(jobs.step_completed(job, "x" * messages.MAX_OUTPUT_BYTES, NOW))
    assert len(small) == 1
    assert "output_chunk" not in small[0]["payload"]["step"]
    large = said(jobs.step_completed(job, "x" * (messages.MAX_OUTPUT_BYTES + 1), NOW))
    assert len(large) == 5
    assert large[0]["payload"]["step"]["output_chunk"] == "bytes 0-262144 of 1048577"
    text = "ü" * 1_000_000
    *statuses, result = finish(jobs, job, text)
    assert "".join(message["payload"]["step"]["output"] for message in statuses) == text
    assert result["payload"]["output"] == text[-32_768:]
    assert result["x_custom_fields"]["output_sha256"] == chunks.sha256(text)
    again, _ = take(jobs, {**valid_request(job), "message_id": str(uuid.uuid4())})
    assert [message["type"] for message in again] == [message["type"] for message in [*statuses, result]]


def valid_request(job: AcceptedJob) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(messages.encode(job.envelope))
    return found


# --- the agent as a whole ---------------------------------------------------------------------------------------------


class ListConnection:
    """A connection to an orchestrator that keeps what is sent in a list."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.came = asyncio.Event()

    async def run(self, take: Any) -> None:
        await asyncio.Event().wait()

    async def send(self, envelope: Envelope) -> None:
        self.sent.append(valid(json.loads(messages.encode(envelope))))
        self.came.set()

    async def result(self) -> dict[str, Any]:
        """Bounded wait for the last word."""
        async with asyncio.timeout(10):
            while not self.sent or self.sent[-1]["type"] not in {"work_result", "error"}:
                self.came.clear()
                await self.came.wait()
        return self.sent[-1]


@contextlib.asynccontextmanager
async def serving(agent: ChiffonAgent, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ListConnection]:
    connection = ListConnection()
    monkeypatch.setattr("trunkline.sdk.chiffon.HttpConnection", lambda *_: connection)
    task = asyncio.create_task(agent.serve())
    async with asyncio.timeout(10):
        while agent._jobs is None:  # noqa: ASYNC110  (it has nothing to ring)
            await asyncio.sleep(0)
    yield connection
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def made(**terms: Any) -> ChiffonAgent:
    return ChiffonAgent("infra-1", "infra", url="http://127.0.0.1:1", token=TOKEN, cache=":memory:", **terms)


@requirement("CH-027", "CH-030", "CH-045", "CH-047")
async def test_an_authors_function_is_told_of_while_it_runs_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, go_on = made(status_s=0.01), asyncio.Event()

    @agent.work("run")
    async def run(task: Task, name: str) -> None:
        async with task.step("First", percent=50):
            task.write(f"hello {name}\n")
        await go_on.wait()

    async with serving(agent, monkeypatch) as connection:
        await agent._receive(json.dumps(request("run", {"name": "you"})).encode(), with_token=False)
        async with asyncio.timeout(10):
            while len(connection.sent) < 5:
                connection.came.clear()
                await connection.came.wait()
        go_on.set()
        result = await connection.result()
    first, completed, *beats = connection.sent[:-1]
    assert (first["payload"]["status"], first["payload"]["progress_percent"]) == ("running", 0)
    assert completed["payload"]["status"] == "step_completed"
    assert completed["payload"]["step"] == {"number": 1, "name": "First", "output": "hello you\n"}
    assert all(beat["payload"]["progress_percent"] == 50 for beat in beats)
    assert result["payload"]["status"] == "success"
    assert result["payload"]["output"] == "hello you\n", "without another word the output is what was written"
    assert set(result["payload"]["resources_used"]) == {"duration_seconds", "gpu_vram_mb", "cpu_time_ms"}


@requirement("CH-030")
def test_the_author_gets_a_status_every_ten_seconds_by_default() -> None:
    assert made()._status_s == 10.0


@pytest.mark.parametrize(
    ("problem", "code", "word"),
    [
        (WorkFailed("no", exit_code=3), 3, "no"),
        (WorkFailed("killed", exit_code=-9), 137, "killed"),
        (WorkFailed("no", exit_code=0), 1, "no"),
        (RuntimeError("a secret"), 1, "RuntimeError in the agent"),
    ],
)
async def test_failures_are_results(
    monkeypatch: pytest.MonkeyPatch, problem: Exception, code: int, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "trunkline.sdk")
    agent = made()

    @agent.work("run")
    def run(task: Task) -> None:
        raise problem

    async with serving(agent, monkeypatch) as connection:
        await agent._receive(json.dumps(request("run")).encode(), with_token=False)
        result = await connection.result()
    assert (result["payload"]["exit_code"], result["payload"]["output"]) == (code, word)


async def test_parameters_that_do_not_fit_are_a_failure_and_a_limit_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = made()

    @agent.work("run")
    async def run(task: Task, name: str) -> None:
        raise ResourceLimit("gpu_vram_mb", 128, 512)

    async with serving(agent, monkeypatch) as connection:
        await agent._receive(json.dumps(request("run", {"nome": "x"})).encode(), with_token=False)
        result = await connection.result()
        assert result["payload"]["exit_code"] == 2
        assert "'name'" in result["payload"]["output"]
        connection.sent.clear()
        await agent._receive(json.dumps(request("run", {"name": "x"})).encode(), with_token=False)
        error = await connection.result()
        assert error["payload"]["error_code"] == 5005
        assert error["payload"]["error_context"]["required"] == 512


# --- the token --------------------------------------------------------------------------------------------------------


@requirement("CH-099")
def test_the_token_comes_from_the_environment_or_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "chiffon.toml"
    path.write_text(f'url = "http://127.0.0.1:7411"\ntoken = "{TOKEN}"\n')
    path.chmod(0o600)
    for name in ("CHIFFON_URL", "CHIFFON_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert ChiffonAgent("a", "infra", config=path).settings() == ("http://127.0.0.1:7411", TOKEN)
    monkeypatch.setenv("CHIFFON_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CHIFFON_TOKEN", "b" * 32)
    assert ChiffonAgent("a", "infra").settings() == ("http://127.0.0.1:1", "b" * 32)
    monkeypatch.delenv("CHIFFON_TOKEN")
    with pytest.raises(ConfigError, match="CHIFFON_TOKEN"):
        ChiffonAgent("a", "infra").settings()
    with pytest.raises(ConfigError, match="32"):
        ChiffonAgent("a", "infra", token="short").settings()


@requirement("CH-098", "CH-100")
def test_a_file_that_others_can_read_is_refused_and_git_ignores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHIFFON_URL", "CHIFFON_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "chiffon.toml"
    path.write_text(f'url = "http://127.0.0.1:7411"\ntoken = "{TOKEN}"\n')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        ChiffonAgent("a", "infra", config=path).settings()
    assert TOKEN not in str(caught.value)
    path.write_text(f"token = {TOKEN}")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="TOML") as caught:
        ChiffonAgent("a", "infra", config=path).settings()
    assert TOKEN not in str(caught.value)
    assert caught.value.__cause__ is None
    assert TOKEN not in repr(made())
    root = Path(__file__).parents[2]
    ignored = (root / ".gitignore").read_text().splitlines()
    assert "chiffon.toml" in ignored
    if (root / ".git").exists():
        found = subprocess.run(["git", "check-ignore", "-q", "examples/chiffon.toml"], cwd=root, check=False)
        assert found.returncode == 0


@requirement("CH-097")
def test_names_and_types_are_checked_when_an_agent_is_made() -> None:
    for agent_id, kind in (("bad id", "infra"), ("a", "orchestrator"), ("a", "gardener")):
        with pytest.raises(ValueError, match="is no agent"):
            ChiffonAgent(agent_id, kind)
    with pytest.raises(ValueError, match="no name for work"):
        made().work("no spaces")
    agent = made()
    agent.work("deploy_all")(lambda _task: "done")
    with pytest.raises(ValueError, match="but for case"):
        agent.work("Deploy_All")


@requirement("CH-106", "CH-114")
def test_every_message_of_the_sdk_is_an_envelope_with_its_trace() -> None:
    for message in EMITTED:
        assert uuid.UUID(message["trace_id"])
        assert uuid.UUID(message["request_id"])

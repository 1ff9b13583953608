"""``trunkline jobs``: what there is, where it runs, and doing a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import running
from tests.unit.cli.conftest import Said, trunkline
from trunkline.jobs.schemas import CURRENT, EMBEDDING, SANDBOX, job_types
from trunkline.jobs.tool_schemas import schema_id_of

HASHING = "trunkline-hashing-v1"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("j") / "h") as exchange:
        yield str(exchange.home)


def jobs(home: str, *words: str, stdin: bytes = b"") -> Said:
    return trunkline("jobs", *words, "--home", home, stdin=stdin)


@pytest.mark.slow
def test_the_types_are_listed_with_where_they_run(home: str) -> None:
    found = json.loads(jobs(home, "--json").out)["jobs"]
    assert [one["schema_id"] for one in found] == list(CURRENT)
    assert [one["runs_at"] for one in found] == [["trunkline.jobs"]] * 4


def test_without_an_exchange_the_types_are_shown_and_run_nowhere(short_path: Path) -> None:
    said = jobs(str(short_path / "none"))
    assert said.code == 0
    assert said.out.count("nowhere") == len(CURRENT)
    assert "texts" in jobs(str(short_path / "none"), "show", EMBEDDING).out
    assert jobs(str(short_path / "none"), "submit", EMBEDDING, "{}").code == 2


def test_a_type_is_shown_with_its_whole_schema(home: str) -> None:
    told = json.loads(jobs(home, "show", EMBEDDING, "--json").out)
    assert told["schema"]["schema_id"] == EMBEDDING
    assert told["schema"]["inputs"]["texts"]["required"] is True
    assert told["input_schema"] == job_types()[EMBEDDING].detail.inputs
    assert told["runs_at"] == ["trunkline.jobs"]


def test_a_tool_is_shown_and_called_as_a_job_type(home: str) -> None:
    schema_id = schema_id_of("trunkline/publish")
    assert json.loads(jobs(home, "show", schema_id, "--json").out)["schema"]["inputs"]["topic"]["type"] == "string"
    said = jobs(home, "submit", schema_id, '{"topic": "a.b", "payload": 1}')
    assert (said.code, "event" in json.loads(said.out)) == (0, True)
    assert jobs(home, "show", schema_id_of("no/tool")).code == 2


@pytest.mark.parametrize(("command", "code"), [("exit 3", 1), ("exit 0", 0)])
def test_a_sandbox_job_whose_command_failed_ends_with_1(home: str, command: str, code: int) -> None:
    said = jobs(home, "submit", SANDBOX, json.dumps({"commands": [{"cmd": command}]}))
    assert (said.code, json.loads(said.out)["status"]) == (code, "failed" if code else "success")


@pytest.mark.parametrize("form", ["argument", "file", "stdin"])
def test_inputs_come_from_the_command_line_a_file_or_standard_input(home: str, form: str, tmp_path: Path) -> None:
    text = json.dumps({"texts": ["hello"], "model": HASHING, "dimensions": 2})
    (tmp_path / "inputs").write_text(text)
    word = {"argument": text, "file": f"@{tmp_path}/inputs", "stdin": "-"}[form]
    said = jobs(home, "submit", EMBEDDING, word, stdin=text.encode())
    assert said.code == 0
    assert json.loads(said.out)["dimensions"] == 2


def test_progress_is_on_stderr_and_the_outputs_alone_on_stdout(home: str) -> None:
    said = jobs(home, "submit", "oa.sandbox_run.v1", '{"commands": [{"cmd": "echo hello"}]}')
    assert said.code == 0
    assert "command 1 of 1: echo hello\nhello\n" in said.err
    assert json.loads(said.out)["status"] == "success"


def test_a_job_that_cannot_be_done_says_why(home: str) -> None:
    refused = jobs(home, "submit", EMBEDDING, '{"texts": "hello", "model": "m"}')
    assert (refused.code, "$.texts" in refused.err) == (2, True)
    unknown = jobs(home, "submit", "oa.embeding.v1", "{}")
    assert unknown.code == 2
    assert "did you mean oa.embedding.v1" in unknown.err


def test_a_repeat_with_the_same_key_is_the_same_job(home: str) -> None:
    body = '{"commands": [{"cmd": "date +%N"}]}'
    first, second = (jobs(home, "submit", "oa.sandbox_run.v1", body, "--key", "k1") for _ in range(2))
    assert (first.code, first.out) == (0, second.out)

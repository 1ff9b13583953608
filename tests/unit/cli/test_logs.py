"""``trunkline logs``: the files in which agents' words are kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Said, trunkline
from trunkline.host.run_files import new_run_id
from trunkline.host.runlog import RunLog

AGENT = "com.example.echo"
BOUND_S = 10


def printed(home: Path, wall: float, *pieces: bytes) -> str:
    """One run of the agent that printed this; its id."""
    run_id = new_run_id(wall)
    log = RunLog(str(home / "logs" / AGENT / f"{run_id}.log"), 1_000_000, lambda data: data, ["tok_secret"])
    for piece in pieces:
        log.feed(piece)
    log.close()
    return run_id


def logs(home: Path, *arguments: str) -> Said:
    return trunkline("logs", *arguments, "--home", str(home))


def test_the_last_lines_are_shown_run_after_run(short_path: Path) -> None:
    printed(short_path, 1_000_000_000, b"one\ntwo\n")
    printed(short_path, 1_000_000_100)
    printed(short_path, 1_000_000_200, b"three\nfour")
    assert logs(short_path, AGENT).out == "one\ntwo\nthree\nfour\n"
    said = logs(short_path, AGENT, "--last", "3")
    assert said.out == "two\nthree\nfour\n"
    assert [line.split()[:3] for line in said.err.splitlines()] == [["run", "of", "2001-09-09"]] * 2


def test_what_was_printed_is_masked_and_shown_with_nothing_hidden(short_path: Path) -> None:
    printed(short_path, 1, b"token tok_secret \x1b[31m\t\xe2\x80\xae\n")
    # Not even what something else wrote into the file.
    log = next((short_path / "logs" / AGENT).glob("*.log"))
    log.write_bytes(log.read_bytes() + b"\x1b[2J\xff\n")
    assert logs(short_path, AGENT).out == "token [masked] \\x1b[31m\t\\u202e\n\\u001b[2J\\xff\n"


def test_for_programs_each_line_has_its_run(short_path: Path) -> None:
    run_id = printed(short_path, 1, b"one\n")
    assert logs(short_path, AGENT, "--json").json == {"lines": [{"run_id": run_id, "text": "one"}]}


def test_an_agent_that_printed_nothing_is_no_error(short_path: Path) -> None:
    printed(short_path, 1)
    said = logs(short_path, AGENT)
    assert (said.code, said.out, said.err) == (0, "", f"{AGENT} has printed nothing\n")
    assert logs(short_path, AGENT, "--json").json == {"lines": []}


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ("com.example.ecko", "; did you mean com.example.echo?"),
        ("echo", "; did you mean com.example.echo?"),
        ("com.example.weather", ""),
        ("../keys", ""),
        ("", ""),
        (f"{AGENT}/../{AGENT}", "; did you mean com.example.echo?"),
    ],
)
def test_an_unknown_agent_is_said_to_be_one(short_path: Path, agent: str, says: str) -> None:
    printed(short_path, 1, b"one\n")
    said = logs(short_path, agent)
    assert (said.code, said.out) == (2, "")
    launched = "those that the exchange launches have one once they ran"
    assert said.err == f"not_found: no log of an agent {agent!r}; {launched}{says}\n"


def test_a_home_without_logs_is_no_crash(short_path: Path) -> None:
    assert logs(short_path, AGENT).code == 2


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_following_goes_on_through_new_lines_and_new_runs(short_path: Path, as_json: bool) -> None:
    folder = short_path / "logs" / AGENT
    printed(short_path, 1, b"one\n")
    command = [sys.executable, "-m", "trunkline", "logs", AGENT, "-f", "--home", str(short_path)]
    command += ["--json"] if as_json else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        stdout = process.stdout
        assert stdout is not None

        def next_line() -> str:
            line = stdout.readline()
            return str(json.loads(line)["text"]) if as_json else line.rstrip("\n")

        try:
            assert next_line() == "one"
            with next(folder.glob("*.log")).open("ab") as log:
                log.write(b"two\nhal")
                log.flush()
                assert next_line() == "two"
                log.write(b"f\n")
            printed(short_path, 2, b"three\n")
            assert [next_line(), next_line()] == ["half", "three"]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 0

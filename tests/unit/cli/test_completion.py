"""A shell completes verbs and the names of what is there; where no exchange runs it suggests and says nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Running, trunkline
from trunkline.cli.client import ExchangeClient
from trunkline.cli.token import EDGES
from trunkline.edges import known
from trunkline.shown import AgentView


def completed(running: Running, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What is suggested for the last of these words."""
    monkeypatch.setenv("_TRUNKLINE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(("trunkline", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    said = running.run()
    assert (said.code, said.err) == (0, "")
    return [line.partition(",")[2] for line in said.out.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (("appro",), ["approvals", "approve"]),
        (("call", "com.example.e"), ["com.example.echo/big", "com.example.echo/say"]),
        (("tools", "com.example.m"), ["com.example.mail/send"]),
        (("policy", "check", "operator", "com.example.m"), ["com.example.mail/send"]),
        (("logs", "com.example.s"), ["com.example.slow"]),
        (("call", "nothing.like.it"), []),
    ],
    ids=" ".join,
)
def test_names_of_what_is_there_are_suggested(
    running: Running, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], suggested: list[str]
) -> None:
    assert completed(running, monkeypatch, *words) == suggested


def test_only_agents_that_can_be_restarted_are_suggested_for_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = running.exchange.views.agents()
    launched = AgentView("com.launched", "opensentience", "crashed", steerable=True)
    monkeypatch.setattr(running.exchange.views, "agents", lambda: [*agents, launched])
    for verb in ("start", "stop", "restart"):
        assert completed(running, monkeypatch, verb, "com.") == ["com.launched"]


@pytest.mark.parametrize("part", ["run", "rm", "check", "undo", "snapshots", "export"])
def test_spaces_are_suggested_for_what_is_done_with_one(
    running: Running, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    spaces = {"spaces": [{"name": name, "folder": "/w"} for name in ("demo", "other")]}
    monkeypatch.setattr(ExchangeClient, "get", lambda _, path: spaces if path == "/v1/spaces" else None)
    assert completed(running, monkeypatch, "space", part, "d") == ["demo"]
    assert completed(running, monkeypatch, "space", "new", "d") == []


def test_edges_with_credentials_are_suggested_for_a_new_one(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(running, monkeypatch, "token", "new", "o") == ["opensentience", "ossa"]
    assert set(EDGES) == {edge.name for edge in known.EDGES if edge.tokens is not None}


def test_open_questions_are_suggested_for_their_answer(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(running, monkeypatch, "approve", "a") == [running.exchange.approval_id]


def test_the_home_on_the_line_is_the_one_that_is_asked(
    running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert completed(running, monkeypatch, "--home", str(tmp_path), "call", "com") == []
    assert len(completed(running, monkeypatch, "--home", str(running.home), "call", "com")) == 4


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    said = trunkline("completion", shell)
    assert said.code == 0
    assert f"_TRUNKLINE_COMPLETE={shell}_complete" in said.out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_a_tool_with_the_script(running: Running, tmp_path: Path) -> None:
    program = tmp_path / "trunkline"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m trunkline "$@"\n')
    program.chmod(0o755)
    script = f"""
        PATH={tmp_path}:$PATH
        export TRUNKLINE_HOME={running.home}
        eval "$(trunkline completion bash)"
        COMP_WORDS=(trunkline call com.example.m) COMP_CWORD=2
        _trunkline_completion trunkline com.example.m call
        echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("com.example.mail/send\n", "")

"""Spaces by the command line on a real exchange: one on a folder of the operator's, and all questions of a run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.running import running, wait_until
from tests.unit.cli.conftest import Said, trunkline

CONFIG = """
[ossa]
listen = ""
"""
OWNER = 1000 if os.geteuid() == 0 else os.geteuid()


def git(folder: Path, *words: str) -> str:
    # `status` would else write a fresher index now and then, which is a change in the space that nobody's run made.
    quiet = ["git", "--no-optional-locks", "-c", "user.name=me", "-c", "user.email=me@example.com"]
    named = [*quiet, "-c", "safe.directory=*", *words]
    return subprocess.run(named, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(short_path: Path) -> Path:
    """A repository with one commit, of a user who is not root."""
    made = short_path / "project"
    made.mkdir()
    git(made, "init", "-q")
    (made / "code.py").write_text("x = 1\n")
    git(made, "add", "code.py")
    git(made, "commit", "-q", "-m", "first")
    if os.geteuid() == 0:
        short_path.chmod(0o755)
        for path in (made, *made.rglob("*")):
            os.chown(path, OWNER, OWNER)
    return made


def test_an_agents_work_in_a_repository_is_exported_as_a_patch(short_path: Path, project: Path, tmp_path: Path) -> None:
    home = short_path / "home"

    def say(*words: str, stdin: bytes = b"") -> Said:
        return trunkline("--home", str(home), *words, stdin=stdin)

    with running(home, CONFIG):
        made = say("space", "new", "demo", "--at", str(project), "--json")
        assert made.code == 0, made.err
        if not made.json["shell"]:
            pytest.skip(f"no sandbox holds here: {made.json['note']}")
        operations: list[dict[str, Any]] = [
            {"type": "createFile", "path": "new.bin", "content": "new\n"},
            {"type": "shell", "command": "echo 'x = 2' > code.py"},
        ]
        none = say("space", "export", "demo", "-o", str(tmp_path / "none"))
        assert (none.code, none.err) == (0, "nothing changed in demo since HEAD; no file is written\n")
        assert not (tmp_path / "none").exists()
        message = json.dumps({"protocolVersion": "1.0", "operations": operations}, indent=2)
        ran = say("space", "run", "demo", stdin=message.encode())
        assert ran.code == 0, ran.out
        before = git(project, "status", "--porcelain")
        patch = tmp_path / "patch"
        said = say("space", "export", "demo", "-o", str(patch))
        assert said.code == 0, said.err
        again = say("space", "export", "demo", "--output", str(patch))
        assert (again.code, "exists already" in again.err) == (2, True)
        assert git(project, "status", "--porcelain") == before == " M code.py\n?? new.bin\n"
        undoing = say("space", "undo", "demo").err
        assert f"before {ran.json['runId']}" in undoing, "an export is nothing to undo"
        assert say("space", "export", "demo", "--since", "--output=x").code == 2
        assert say("space", "export", "demo", "--since", "nothing").code == 1
        assert f"this removes the space demo; {project} stays as it is" in say("space", "rm", "demo").err
        assert say("space", "rm", "demo", "--yes").code == 0
    assert (project / "code.py").read_text() == "x = 2\n"
    other = tmp_path / "other"
    other.mkdir()
    (other / "code.py").write_text("x = 1\n")
    git(other, "init", "-q")
    git(other, "apply", str(patch))
    assert (other / "code.py").read_text() == "x = 2\n"
    assert (other / "new.bin").read_text() == "new\n"


def test_a_space_that_is_no_repository_has_no_patch_and_what_to_do_is_said(short_path: Path) -> None:
    home = ("--home", str(short_path / "home"))
    with running(short_path / "home", CONFIG):
        made = trunkline("space", "new", "bare", "--json", *home).json
        if not made["shell"]:
            pytest.skip(f"no sandbox holds here: {made['note']}")
        said = trunkline("space", "export", "bare", *home)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("state.conflict: the space bare is no repository of git with a commit")
    assert made["folder"] in said.err


@pytest.mark.parametrize(("verb", "done"), [("approve", True), ("deny", False)])
def test_all_that_a_run_asks_is_answered_as_it_comes(short_path: Path, verb: str, done: bool) -> None:
    home = short_path / "home"

    def say(*words: str, stdin: bytes = b"") -> Said:
        return trunkline("--home", str(home), *words, stdin=stdin)

    with running(home, CONFIG) as exchange:
        folder = Path(say("space", "new", "careful", "--preset", "restrictive", "--json").json["folder"])
        writes = [{"type": "createFile", "path": name, "content": "x"} for name in ("a", "b")]
        message = json.dumps({"protocolVersion": "1.0", "operations": writes})
        asked = say("space", "run", "careful", "--no-wait", stdin=message.encode())
        assert asked.code == 3
        run_id = json.loads(asked.out)["runId"]
        wait_until(lambda: "waits for your answer: call of space.careful/create_file" in exchange.said(), "the line")
        said = say(verb, "--run", run_id)
        assert said.code == 0, said.err
        answered = "approved" if done else "denied"
        assert f"2 questions {answered}" in said.out
        assert [(folder / name).exists() for name in ("a", "b")] == [done, done]
        assert say("approvals").out == "No open questions.\n"
        assert say(verb, "--run", "run_nothing").code == 2

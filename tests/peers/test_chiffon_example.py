"""The example playbook agent as a user starts it: on this machine, and in a space."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.running import EXAMPLES, WAIT_S, Running, leash, running

CONFIG = """
[[policy.rule]]
caller = "http:playbook"
tool = "space.lab/*"
decision = "allow"
"""


@contextmanager
def playbook_agent(exchange: Running, folder: Path, **env: str) -> Iterator[None]:
    body = {"edge": "chiffon", "agent": "infra-1", "type": "infra"}
    variables = {
        **os.environ,
        "CHIFFON_URL": exchange.ready["http"],
        "CHIFFON_TOKEN": exchange.request("POST", "/v1/tokens", body)[1]["token"],
        "XDG_STATE_HOME": str(folder / "state"),
        **env,
    }
    process = subprocess.Popen(
        [*leash(), sys.executable, str(EXAMPLES / "chiffon_playbook.py")], env=variables, stdin=subprocess.DEVNULL
    )
    try:
        exchange.wait_tool("infra-1/run_playbook")
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)


def steps(*commands: str) -> dict[str, Any]:
    return {"steps": [{"name": f"Step {n}", "shell": command} for n, command in enumerate(commands, start=1)]}


def test_the_example_runs_a_playbook_and_ends_at_the_first_failure(tmp_path: Path) -> None:
    with running(tmp_path / "home") as exchange, playbook_agent(exchange, tmp_path, PLAYBOOKS=str(tmp_path)):
        done = exchange.call(
            "infra-1/run_playbook",
            {"playbook": steps("echo hello {{ who }}", "echo bye"), "extra_vars": {"who": "you; exit 3"}},
        )
        assert done["output"]["output"] == "hello you; exit 3\nbye\n"
        assert [step["name"] for step in done["output"]["steps"]] == ["Step 1", "Step 2"]
        failed = exchange.call("infra-1/run_playbook", {"playbook": steps("echo one", "exit 7", "echo never")})
        assert (failed["status"], failed["error"]["details"]["exit_code"]) == ("failed", 7)
        assert "never" not in failed["error"]["details"]["output"]
        missing = exchange.call("infra-1/run_playbook", {"playbook": "../none.json"})
        assert missing["error"]["details"]["exit_code"] == 2


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="a space's shell needs bubblewrap")
def test_the_example_runs_its_steps_in_a_space(tmp_path: Path) -> None:
    with running(tmp_path / "home", CONFIG) as exchange:
        status, made = exchange.request("POST", "/v1/spaces", {"name": "lab", "preset": "permissive"})
        assert status in (200, 201), made
        if "space.lab/shell" not in exchange.tools():
            pytest.skip("no sandbox on this machine")
        token = exchange.new_token("playbook", "http")
        with playbook_agent(exchange, tmp_path, SPACE="lab", TRUNKLINE_TOKEN=token):
            done = exchange.call("infra-1/run_playbook", {"playbook": steps("echo from the space > note", "cat note")})
            assert done["output"]["output"] == "from the space\n", done
            failed = exchange.call("infra-1/run_playbook", {"playbook": steps("exit 7")})
            assert failed["error"]["details"]["exit_code"] == 7

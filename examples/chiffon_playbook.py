"""A Chiffon agent: runs a playbook, a list of named shell steps, and tells its orchestrator how far it is.

    trunkline token new chiffon --agent infra-1 --type infra
    CHIFFON_URL=http://127.0.0.1:7411 CHIFFON_TOKEN=… python examples/chiffon_playbook.py
    trunkline call infra-1/run_playbook '{"playbook": {"steps": [{"name": "Say hello", "shell": "echo hello"}]}}'

``playbook`` is the name of a JSON file in ``PLAYBOOKS`` or the steps themselves; ``{{ name }}`` in a step stands for
``extra_vars.name``. With ``SPACE=name`` (and ``TRUNKLINE_TOKEN``, a token of the edge http) each step runs in that
space, through the exchange and under the space's policy, instead of on this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from trunkline.sdk import ChiffonAgent, WorkFailed
from trunkline.sdk.chiffon import Task

agent = ChiffonAgent(
    os.environ.get("CHIFFON_AGENT_ID", "infra-1"), "infra", config=os.environ.get("CHIFFON_CONFIG"), memory_mb=2048
)


@agent.work("run_playbook")
async def run_playbook(task: Task, playbook: str | dict[str, Any], extra_vars: dict[str, Any] | None = None) -> str:
    """All steps in order; the first that fails ends it."""
    steps = load(playbook)["steps"]
    for number, step in enumerate(steps, start=1):
        async with task.step(step["name"], percent=100 * number // len(steps)):
            command = fill(step["shell"], extra_vars or {})
            code, output = await in_space(command) if os.environ.get("SPACE") else await on_machine(command)
            task.write(output)
            if code != 0:
                raise WorkFailed(f"{task.text}{step['name']}: failed", exit_code=code)
    return task.text


def load(playbook: str | dict[str, Any]) -> dict[str, Any]:
    """The steps, given or from a file of that name and no other place."""
    if isinstance(playbook, dict):
        return playbook
    folder = Path(os.environ.get("PLAYBOOKS", "."))
    try:
        found: dict[str, Any] = json.loads((folder / Path(playbook).name).read_text())
    except (OSError, ValueError):
        raise WorkFailed(f"there is no playbook {playbook!r}", exit_code=2) from None
    return found


def fill(command: str, variables: dict[str, Any]) -> str:
    """Variables as single words of the shell, whatever is in them."""
    for name, value in variables.items():
        command = command.replace("{{ %s }}" % name, shlex.quote(str(value)))  # noqa: UP031  (braces)
    return command


async def on_machine(command: str) -> tuple[int, str]:
    """One step here."""
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode("utf-8", "replace")


async def in_space(command: str) -> tuple[int, str]:
    """One step in a space: an ordinary call of its shell tool."""
    body = json.dumps({"tool_id": f"space.{os.environ['SPACE']}/shell", "input": {"command": command}})
    request = urllib.request.Request(  # noqa: S310  (the exchange's own address)
        f"{os.environ['CHIFFON_URL']}/v1/calls",
        body.encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['TRUNKLINE_TOKEN']}"},
    )
    try:
        with await asyncio.to_thread(urllib.request.urlopen, request) as answer:
            outcome = json.load(answer)
    except urllib.error.HTTPError as refused:
        outcome = json.load(refused)
    if outcome.get("status") != "succeeded":
        return 1, json.dumps(outcome.get("error") or outcome)
    done = outcome["output"]
    return int(done["exitCode"]), f"{done.get('stdout', '')}{done.get('stderr', '')}"


if __name__ == "__main__":
    agent.run()

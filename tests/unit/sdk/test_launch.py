"""``agent.run()`` as a process of its own: environment, signals, exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.requirement import requirement
from tests.scripted_core import WAIT_S, Conversation, ScriptedCore
from tests.unit.sdk.conftest import TOKEN, A

SCRIPT = f"""
import os, sys, threading
from trunkline import Agent
agent = Agent("{A}", version="1.0.0")

@agent.tool(side_effects=False)
def environment() -> dict[str, str]:
    return dict(os.environ)

@agent.tool(side_effects=False)
def stuck() -> None:
    agent.progress("started")
    threading.Event().wait()

agent.run(grace_s=0.1)
print("the end")
"""

Start = Callable[..., "asyncio.Future[asyncio.subprocess.Process]"]


@pytest.fixture
async def start(core: ScriptedCore, tmp_path: Path) -> AsyncIterator[Start]:
    """Start the agent as an exchange would; whatever is left is killed."""
    script = tmp_path / "agent.py"
    script.write_text(SCRIPT)
    started: list[asyncio.subprocess.Process] = []

    async def begin(**changes: str) -> asyncio.subprocess.Process:
        env = {
            "PATH": os.environ["PATH"],
            "OPENSENTIENCE_SOCKET": core.address,
            "OPENSENTIENCE_SESSION_TOKEN": TOKEN,
            "OPENSENTIENCE_AGENT_ID": A,
            "OPENSENTIENCE_RUN_ID": "run-1",
            "OPENSENTIENCE_HOME": str(tmp_path),
            "TRUNKLINE_HOME": str(tmp_path),
            **changes,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            env={name: value for name, value in env.items() if value},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """The exit code and everything it printed."""
    async with asyncio.timeout(WAIT_S):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def attached(core: ScriptedCore) -> Conversation:
    conversation = await core.accept()
    await conversation.greet()
    await conversation.take_tools()
    return conversation


@requirement("OS-137", "OS-142", "OS-140")
@pytest.mark.slow
async def test_it_finds_the_exchange_and_forgets_the_token(start: Start, core: ScriptedCore) -> None:
    process = await start()
    conversation = await attached(core)
    assert conversation.heard[0]["payload"]["session_token"] == TOKEN
    conversation.call(f"{A}/environment")
    environment = (await conversation.result())["output"]
    assert environment["OPENSENTIENCE_RUN_ID"] == "run-1"
    assert "OPENSENTIENCE_SESSION_TOKEN" not in environment
    process.send_signal(signal.SIGTERM)
    code, output = await ended(process)
    assert code == 0
    assert output.endswith("the end\n")
    assert TOKEN not in output


@pytest.mark.slow
async def test_a_tool_that_will_not_stop_does_not_keep_the_process_alive(start: Start, core: ScriptedCore) -> None:
    process = await start()
    conversation = await attached(core)
    conversation.call(f"{A}/stuck")
    await conversation.expect("agent.tool.stream")
    process.send_signal(signal.SIGTERM)
    code, output = await ended(process)
    assert code == 0
    assert "did not stop in time" in output


@pytest.mark.slow
async def test_a_refused_token_is_said_clearly_with_exit_code_1(start: Start, core: ScriptedCore) -> None:
    process = await start()
    conversation = await core.accept()
    await conversation.expect("agent.hello")
    conversation.send("core.welcome", {}, error={"code": "protocol.unauthorized", "message": "not valid"})
    code, output = await ended(process)
    assert code == 1
    assert f"{A}: the exchange refuses this agent: protocol.unauthorized: not valid" in output
    assert TOKEN not in output
    assert "Traceback" not in output


@pytest.mark.slow
async def test_started_by_hand_it_says_how(start: Start) -> None:
    code, output = await ended(await start(OPENSENTIENCE_SESSION_TOKEN=""))
    assert code == 2
    assert f"trunkline token new opensentience --agent {A}" in output
    assert 'command = ["python", "agent.py"]' in output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"OPENSENTIENCE_AGENT_ID": "com.example.other"}, "was started as com.example.other"),
        ({"OPENSENTIENCE_SOCKET": ""}, "no exchange runs in"),
        ({"OPENSENTIENCE_SOCKET": "tcp://192.0.2.1:7"}, "not an address of this machine"),
    ],
)
@pytest.mark.slow
async def test_an_environment_that_cannot_be_used_is_named_with_exit_code_2(
    start: Start, changes: dict[str, str], message: str
) -> None:
    code, output = await ended(await start(**changes))
    assert code == 2
    assert message in output
    assert "Traceback" not in output
    assert TOKEN not in output


def test_importing_the_package_loads_next_to_nothing() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import trunkline, sys; print('asyncio' in sys.modules or 'msgspec' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    assert loaded.stdout == "False\n"

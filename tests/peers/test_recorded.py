"""``trunkline replay FILE --serve`` beside a running exchange: recorded calls are answered from the recording."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import EXAMPLES, Running, running, started, wait_until

CONFIG = f"""
[[agent]]
id = "com.example.echo"
command = ["python", "{EXAMPLES}/echo.py"]
"""


@pytest.fixture
def exchange(short_path: Path) -> object:
    with running(short_path / "home", CONFIG) as found:
        found.wait_tool("com.example.echo/echo")
        yield found


def exported(exchange: Running, folder: Path) -> Path:
    wait_until(lambda: exchange.entries(kind="call.settled"), "the call is on disk")
    status, body = exchange.request("GET", "/v1/ledger/chat:1/replay.jsonl")
    assert status == 200
    file = folder / "REPLAY.jsonl"
    file.write_text(body)
    return file


def standing_in(exchange: Running, file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trunkline", "replay", str(file), "--serve"]
    return started(command, env={**os.environ, "TRUNKLINE_HOME": str(exchange.home)}, stdout=subprocess.DEVNULL)


def test_a_stand_in_takes_the_name_of_an_agent_that_is_away_and_another_beside_one_that_is_here(
    exchange: Running, short_path: Path
) -> None:
    said = exchange.call("com.example.echo/echo", {"text": "hello"}, correlation_id="chat:1")
    file = exported(exchange, short_path)

    beside = standing_in(exchange, file)
    exchange.wait_tool("replay.com.example.echo/echo")
    assert exchange.call("replay.com.example.echo/echo", {"text": "hello"})["output"] == said["output"]
    unknown = exchange.call("replay.com.example.echo/echo", {"text": "other"})
    assert unknown["error"]["code"] == "replay.not_recorded"
    beside.send_signal(signal.SIGINT)
    assert beside.wait(20) == 0

    assert exchange.request("POST", "/v1/agents/com.example.echo/stop")[0] == 202
    exchange.wait_tool("com.example.echo/echo", "unavailable")
    instead = standing_in(exchange, file)
    exchange.wait_tool("com.example.echo/echo")
    assert exchange.call("com.example.echo/echo", {"text": "hello"})["output"] == said["output"]
    assert exchange.call("com.example.echo/echo", {"text": "x"})["error"]["code"] == "replay.not_recorded"
    instead.send_signal(signal.SIGTERM)
    assert instead.wait(20) == 0
    assert all(token["revoked"] for token in exchange.request("GET", "/v1/tokens")[1]["tokens"])


def test_the_export_of_the_command_line_and_of_http_are_the_same_bytes(exchange: Running, short_path: Path) -> None:
    exchange.call("com.example.echo/echo", {"text": "a\u2028b"}, correlation_id="chat:1")
    file = exported(exchange, short_path)
    command = [sys.executable, "-m", "trunkline", "ledger", "export", "--correlation", "chat:1", "--format", "replay"]
    done = subprocess.run(
        command, env={**os.environ, "TRUNKLINE_HOME": str(exchange.home)}, capture_output=True, timeout=20, check=True
    )
    assert done.stdout == file.read_bytes()

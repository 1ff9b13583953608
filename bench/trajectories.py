"""Trajectories: the canonical form of 1 KB, and the check of a file of 100,000 lines by a process of its own.

The value of 1 KB is an ordinary input: a few members, a list, text. Each call in the file has params and an output of
about that size, so every line is hashed. The process is the command that people use, its start included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from bench.plan import Stage
from bench.results import Checking, Trajectories
from trunkline.canonical import openagents, openagents_hash

REPEATS: Final = 5
CALLS: Final = 20_000
VALUE: Final = msgspec.json.encode(
    {
        "task": "look for what is wrong with this function " * 4,
        "chunk": {"path": "src/reader.py", "start_line": 1, "end_line": 40, "content": "x = read(y)\n" * 55},
        "k": 10,
        "scores": [0.25, 0.5, 0.75],
    }
)
_T: Final = "2026-01-16T12:00:00.000Z"


def measure(stage: Stage) -> Trajectories:
    """Both, the file at a tenth of its size and whole."""
    canonical_us = tuple(_canonical_us() for _ in range(REPEATS))
    stage.say(f"canonical form of {len(VALUE)} bytes: {min(canonical_us):.1f} µs")
    found = []
    for lines in (stage.plan.trajectory_lines // 10, stage.plan.trajectory_lines):
        file = stage.room(f"trajectory-{lines}") / "REPLAY.jsonl"
        with file.open("wb") as out:
            out.writelines(line + b"\n" for line in _lines(lines))
        found.append(_checked(file, lines))
        stage.say(f"{lines:,} lines checked in {found[-1].seconds:.2f} s")
    return Trajectories(len(VALUE), canonical_us, tuple(found))


def _canonical_us() -> float:
    begun = time.process_time_ns()
    for _ in range(CALLS):
        openagents(VALUE)
    return (time.process_time_ns() - begun) / 1000 / CALLS


def _lines(count: int) -> Iterator[bytes]:
    digest = openagents_hash(VALUE).encode()
    start = b'{"event":"ReplayHeader","replay_version":1,"producer":"bench@1.0.0","created_at":"%b"}'
    time_of = _T.encode()
    yield start % time_of
    yield b'{"event":"SessionStart","session_id":"s","issue_number":null,"policy_bundle_id":"","t":"%b"}' % time_of
    yield b'{"event":"PlanStart","plan_hash":"%b","step_count":1,"t":"%b"}' % (digest, time_of)
    for number in range((count - 4) // 2):
        yield b'{"event":"ToolCall","id":"c%d","tool":"a/b","params":%b,"params_hash":"%b","step_id":"s","t":"%b"}' % (
            number, VALUE, digest, time_of,
        )  # fmt: skip
        yield (
            b'{"event":"ToolResult","id":"c%d","output_hash":"%b","step_utility":1.0,"latency_ms":1,"t":"%b",'
            b'"output":%b}' % (number, digest, time_of, VALUE)
        )
    yield (
        b'{"event":"SessionEnd","status":"Success","confidence":1.0,"total_tool_calls":0,"total_latency_ms":0,'
        b'"t":"%b"}' % time_of
    )


def _checked(file: Path, lines: int) -> Checking:
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "trunkline", "replay", str(file)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return Checking(lines, file.stat().st_size, seconds, used.ru_maxrss * 1024)

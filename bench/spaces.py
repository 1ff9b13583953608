"""Spaces: what a command's sandbox costs at its start, many file operations in one run, and output without end.

A start is measured beside a plain ``sh -c true``, one pair after the other, so that a slow moment of the machine counts
for both: with the sandbox itself, as the exchange uses it, and once more as a ``shell`` operation over HTTP. What
remains beyond the sandbox is then the run's: its record on disk, HTTP and the exchange.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.children import Children, peak_rss_bytes, reset_peak_rss, wait_steady_rss
from bench.exchange import Exchange, Operator
from bench.plan import Stage
from bench.results import FileRuns, Printed, Spaces, Starts
from trunkline.errors import WorkspaceError
from trunkline.workspace.folder import Workspace
from trunkline.workspace.policy import PRESETS
from trunkline.workspace.sandbox import Sandbox, probe

# What is used once (code, pages, the first connection) is used before the first pair that counts.
WARM: Final = 5
# A thousand durable operations on a slow disk; a gibibyte on a busy machine.
RUN_S: Final = 300.0
SPACE: Final = "bench"


def measure(stage: Stage) -> Spaces | None:
    """Nothing where there is no sandbox, and so no shell."""
    try:
        sandbox = asyncio.run(probe())
    except WorkspaceError as error:
        stage.say(f"spaces are left out: {error.message}")
        return None
    room = uvloop.run(_room_starts(sandbox, stage.room("spaces-room"), stage.plan.shell_starts))
    stage.say(f"a shell in the sandbox: {room.overhead(50):.1f} ms more than sh")
    with Children(stage.room("spaces")) as children:
        exchange = Exchange(children, children.folder / "home")
        with exchange.operator(RUN_S) as operator:
            operator.ask("POST", "/v1/spaces", {"name": SPACE})
            through = asyncio.run(_exchange_starts(operator, stage.plan.shell_starts))
            stage.say(f"a shell operation over HTTP: {through.overhead(50):.1f} ms more than sh")
            printed = _print(exchange, operator, stage.plan.output_bytes)
            stage.say(f"{printed.size:,} bytes of output: {printed.more_bytes / 1024**2:.1f} MiB more than idle")
            files = _files(operator, file_operations(stage.plan.file_operations))
            stage.say(f"{files.operations} file operations: {files.ratio:.1f} times as fast in one run")
            reads = _files(operator, _reads(operator, stage.plan.file_operations))
            stage.say(f"{reads.operations} of them that only read: {reads.ratio:.1f} times as fast in one run")
    return Spaces(room, through, files, reads, printed)


# --- starts -----------------------------------------------------------------------------------------------------------


async def _room_starts(sandbox: Sandbox, folder: Path, count: int) -> Starts:
    with Workspace.create(folder / "files") as workspace:

        async def one() -> None:
            ran = await sandbox.run(workspace, "true", policy=PRESETS["standard"])
            assert ran.exit_code == 0

        return await _pairs(one, count)


async def _exchange_starts(operator: Operator, count: int) -> Starts:
    async def one() -> None:
        _run(operator, [{"type": "shell", "command": "true"}])

    return await _pairs(one, count)


async def _pairs(one: Callable[[], Awaitable[None]], count: int) -> Starts:
    plain: list[float] = []
    ours: list[float] = []
    for _ in range(WARM + count):
        begun = time.perf_counter()
        await _plain()
        between = time.perf_counter()
        await one()
        plain.append((between - begun) * 1000)
        ours.append((time.perf_counter() - between) * 1000)
    return Starts(tuple(plain[WARM:]), tuple(ours[WARM:]))


async def _plain() -> None:
    """As one would without a sandbox, with both streams read."""
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "true", stdin=nothing, stdout=pipe, stderr=pipe)
    await process.communicate()


# --- files and output -------------------------------------------------------------------------------------------------


def file_operations(count: int) -> list[dict[str, Any]]:
    """Small ones of each kind in turn: each file is made, read, edited and deleted."""
    made: list[dict[str, Any]] = []
    for number in range(0, count, 4):
        path = f"src/file-{number}.txt"
        made += [
            {"type": "createFile", "path": path, "content": f"one\ntwo\nthree {number}\n"},
            {"type": "readFile", "path": path},
            {"type": "editFile", "path": path, "edits": [{"oldContent": "two", "newContent": "2"}]},
            {"type": "deleteFile", "path": path},
        ]
    return made[:count]


def _reads(operator: Operator, count: int) -> list[dict[str, Any]]:
    made = file_operations(4)
    _run(operator, made[:1])
    return [made[1]] * count


def _files(operator: Operator, operations: list[dict[str, Any]]) -> FileRuns:
    _run(operator, operations[:4])
    begun = time.perf_counter()
    _run(operator, operations)
    between = time.perf_counter()
    for operation in operations:
        _run(operator, [operation])
    return FileRuns(len(operations), between - begun, time.perf_counter() - between)


def _print(exchange: Exchange, operator: Operator, size: int) -> Printed:
    """Zeros are the worst there is: each is six characters in JSON."""
    idle = wait_steady_rss(exchange.pid)
    reset_peak_rss(exchange.pid)
    begun = time.perf_counter()
    _run(operator, [{"type": "shell", "command": f"head -c {size} /dev/zero", "timeout": 120_000}])
    return Printed(size, time.perf_counter() - begun, idle, peak_rss_bytes(exchange.pid))


def _run(operator: Operator, operations: list[dict[str, Any]]) -> None:
    """One run, to its end; each operation of it has to succeed."""
    answer = operator.ask("POST", f"/v1/spaces/{SPACE}/runs", {"protocolVersion": "1.0", "operations": operations})
    done = [event.get("success") for event in answer["events"]]
    if answer["status"] != "completed" or done != [True] * len(operations):
        raise operator.failure(f"a run did not succeed: {json.dumps(answer)[:500]}")

"""A process that starts two exchanges on one home in the same instant, again and again.

``python racing.py``: reads the path of a home on each line, answers with one line of JSON. It imports the exchange once
and forks, so that the two differ by microseconds and a race costs no start of an interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import trunkline.host.up  # noqa: F401 - before the fork
from trunkline.cli.main import main
from trunkline.host.processes import signal_on_parent_death

WAIT_S = 30.0


def start(home: Path, number: int, gate: int) -> int:
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    # Whoever stops the tests does not stop us.
    signal_on_parent_death(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(97)
    output = os.open(f"{home}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.read(gate, 1)
    try:
        main(["up", "--home", str(home)])
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 99)
    finally:
        os._exit(98)


def race(home: Path) -> dict[str, object]:
    """How it went: who ended at once and how, who runs, and how that one ended when it was told to."""
    gate, opener = os.pipe()
    os.set_inheritable(opener, False)
    both = [start(home, number, gate) for number in (1, 2)]
    # One byte for each.
    os.write(opener, b"go")
    started = time.monotonic()
    first, status = os.waitpid(-1, 0)
    taken = time.monotonic() - started
    other = next(process for process in both if process != first)
    is_ready = wait_ready(home, other)
    os.kill(other, signal.SIGTERM)
    end = os.waitpid(other, 0)[1]
    os.close(gate)
    os.close(opener)
    return {
        "refused": os.waitstatus_to_exitcode(status),
        "refused_after_s": taken,
        "ready": is_ready,
        "ended": os.waitstatus_to_exitcode(end),
        "said": Path(f"{home}.{both.index(first) + 1}").read_text(),
    }


def wait_ready(home: Path, process: int) -> bool:
    """Whether the exchange that is left comes up."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if json.loads((home / "ready.json").read_text())["pid"] == process:
                return True
        except (FileNotFoundError, json.JSONDecodeError):
            pass
        time.sleep(0.005)
    return False


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(race(Path(line.strip()))) + "\n")
        sys.stdout.flush()

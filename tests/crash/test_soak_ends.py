"""However a soak is stopped, nothing that it started is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.running import ROOT, wait_until

STARTED_S = 40.0
# A worker may take ten seconds to clean up, and a keeper six.
ENDED_S = 30.0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("job", ["stop", "load"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_soak_that_is_stopped_leaves_no_process(tmp_path: Path, number: signal.Signals, job: str) -> None:
    with (tmp_path / "said").open("wb") as output:
        soak = subprocess.Popen(
            [sys.executable, "-m", "tools.soak", "--minutes", "5", "--workers", "1", "--only", job],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": "/tmp"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    family: dict[int, psutil.Process] = {}

    def has_started() -> bool:
        assert soak.poll() is None, (tmp_path / "said").read_text()
        family.update({child.pid: child for child in psutil.Process(soak.pid).children(recursive=True)})
        # The pool's worker and what it needs, an exchange, its writer and its keeper.
        return any("trunkline.host.keeper" in words for words in map(_words, family.values()))

    try:
        wait_until(has_started, "an exchange of the soak", STARTED_S)
        soak.send_signal(number)
        soak.wait(ENDED_S)
        wait_until(lambda: not any(child.is_running() for child in family.values()), "the end of all", ENDED_S)
    finally:
        for process in (*family.values(), psutil.Process(soak.pid) if soak.poll() is None else None):
            if process is not None and process.is_running():
                process.kill()
        soak.wait(ENDED_S)
    if number != signal.SIGKILL:
        said = (tmp_path / "said").read_text()
        assert "interrupted" in said
        assert "to go on: make soak" in said


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


# Started from a thread that has ended by then, as ``asyncio.to_thread`` may have it.
TEST = """
import sys, threading, time
from pathlib import Path
from tests.running import Running
exchange = Running(Path(sys.argv[1]))
starting = threading.Thread(target=exchange.start)
starting.start()
starting.join()
time.sleep(0.2)
assert exchange.process.poll() is None
print(exchange.process.pid, flush=True)
time.sleep(600)
"""


def test_an_exchange_that_a_test_started_ends_with_the_test_whatever_ends_that(short_path: Path) -> None:
    command = [sys.executable, "-c", TEST, str(short_path / "home")]
    test = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert test.stdout is not None
        exchange = psutil.Process(int(test.stdout.readline()))
        family = [exchange, *exchange.children(recursive=True)]
        assert len(family) >= 3
    finally:
        test.kill()
        test.communicate(timeout=20)
    try:
        wait_until(lambda: not any(process.is_running() for process in family), "the end of all", ENDED_S)
    finally:
        for process in family:
            if process.is_running():
                process.kill()

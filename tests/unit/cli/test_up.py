"""``trunkline up --detach`` and ``trunkline down``: an exchange that outlives the command that started it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import wait_until
from tests.unit.cli.conftest import Said, trunkline
from trunkline.cli.client import is_alive

pytestmark = pytest.mark.slow


def detached(home: Path, *options: str) -> Said:
    """``up --detach`` as a process of its own, which leaves the exchange behind when it ends."""
    command = [sys.executable, "-m", "trunkline", "up", "--detach", "--home", str(home), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def home(short_path: Path) -> Iterator[Path]:
    """A home with a configuration, in which nothing runs any more when the test is over."""
    (short_path / "trunkline.toml").write_text('[http]\nlisten = "127.0.0.1:0"\n')
    yield short_path
    trunkline("down", "--home", str(short_path))


def test_an_exchange_in_the_background_is_ready_when_the_command_returns_and_down_stops_it(home: Path) -> None:
    started = detached(home)
    assert started.code == 0, started.err
    assert f"is up in {home}" in started.out
    assert f"down --home {home}" in started.out
    assert "Ctrl-C" not in started.out
    status = trunkline("status", "--json", "--home", str(home))
    pid = status.json["pid"]
    assert os.getsid(pid) == pid, "closing the terminal does not reach it"
    stopped = trunkline("down", "--home", str(home))
    assert (stopped.code, stopped.out) == (0, f"stopped (process {pid})\n")
    assert not is_alive(pid, status.json["start_time"]) or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    assert (home / "exchange.log").read_text().endswith("stopped\n")


def test_its_agents_can_be_called_when_the_command_returns(home: Path) -> None:
    config = home / "trunkline.toml"
    tool = "@a.tool()\ndef x(): return {}\n"
    slow = f"import time\ntime.sleep(0.5)\nfrom trunkline import Agent\na = Agent('com.a')\n{tool}a.run()\n"
    (home / "agent.py").write_text(slow)
    config.write_text(f'{config.read_text()}\n[[agent]]\nid = "com.a"\ncommand = ["python", "agent.py"]\n')
    assert detached(home).code == 0
    assert trunkline("call", "com.a/x", "--home", str(home)).code == 0


def test_what_a_person_is_shown_is_text_also_where_the_log_is_json(home: Path) -> None:
    with (home / "trunkline.toml").open("a") as file:
        file.write('[log]\nformat = "json"\n')
    started = detached(home)
    assert started.code == 0, started.err
    assert f"is up in {home}" in started.out
    assert '{"time"' not in started.out
    assert (home / "exchange.log").read_text().startswith('{"time"')


def test_for_a_program_both_say_what_they_did_as_json(home: Path) -> None:
    started = detached(home, "--json")
    assert started.json["http"].startswith("http://127.0.0.1:")
    assert started.json["output"] == str(home / "exchange.log")
    assert trunkline("down", "--json", "--home", str(home)).json == {"status": "stopped", "pid": started.json["pid"]}
    assert trunkline("down", "--json", "--home", str(home)).json == {"status": "not_running"}


def test_a_second_one_in_the_same_home_is_refused_with_the_words_of_the_foreground(home: Path) -> None:
    assert detached(home).code == 0
    again = detached(home)
    assert again.code == 2
    assert again.err.startswith("already running: ")
    home_named = f"--home {home}"
    told = f"; `trunkline status {home_named}` shows it, `trunkline down {home_named}` stops it\n"
    assert again.err.endswith(told)


def test_a_configuration_that_cannot_be_used_is_told_by_the_command_that_started_it(home: Path) -> None:
    (home / "trunkline.toml").write_text("[http]\nlisten = 1\n")
    said = detached(home)
    assert said.code == 2
    assert "config.invalid" in said.err
    assert "listen" in said.err


def test_a_long_log_of_earlier_runs_is_put_aside_at_the_start(home: Path) -> None:
    with (home / "exchange.log").open("wb") as file:
        file.truncate(16_777_217)
    assert detached(home).code == 0
    assert (home / "exchange.log.1").stat().st_size == 16_777_217
    assert (home / "exchange.log").stat().st_size < 10_000


def test_down_without_an_exchange_says_so_and_is_no_failure(short_path: Path) -> None:
    said = trunkline("down", "--home", str(short_path))
    assert (said.code, said.out) == (0, f"not running (looked in {short_path})\n")


HOLDER = """
import fcntl, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(os.getpid(), file=file, flush=True)
sys.stdin.read()
"""


def test_down_gives_up_waiting_for_one_that_does_not_stop_and_says_so(short_path: Path) -> None:
    lock = short_path / "ledger.lock"
    stubborn = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: lock.exists() and lock.read_text().endswith("\n"), "the lock")
        said = trunkline("down", "--timeout", "0.1", "--home", str(short_path))
    finally:
        stubborn.communicate(b"")
    assert said.code == 1
    assert said.err.startswith(f"exchange.not_stopped: process {stubborn.pid} has not stopped within 0.1 s")


def test_a_number_in_a_lock_that_nobody_holds_is_sent_no_signal(short_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        (short_path / "ledger.lock").write_text(f"{bystander.pid}\n")
        assert trunkline("down", "--home", str(short_path)).out.startswith("not running")
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"")
    assert bystander.returncode == 0


def test_down_waits_for_the_writer_of_an_exchange_that_is_gone(short_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with (short_path / "ledger.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{gone.pid}\n")
        file.flush()
        said = trunkline("down", "--timeout", "0.1", "--home", str(short_path))
    assert said.code == 1

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.unit.host.conftest import is_running, wait_until
from trunkline.host import processes
from trunkline.host.processes import Process


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], env={"MARK": "a=b"}, start_new_session=True) as process:
        yield process
        process.kill()


def test_a_process_is_read_as_the_kernel_tells_it(child: subprocess.Popen[bytes]) -> None:
    found = processes.read(child.pid)
    assert found is not None
    assert (found.pid, found.ppid, found.pgid, found.sid) == (child.pid, os.getpid(), child.pid, child.pid)
    assert found.is_alive
    assert processes.uid_of(child.pid) == os.getuid()
    me = processes.read(os.getpid())
    assert me is not None
    assert me.start_time <= found.start_time


def test_a_name_with_spaces_and_brackets_does_not_shift_the_fields() -> None:
    program = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 1 1'); print('ok', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ok\n"
        found = processes.read(process.pid)
        assert found is not None
        assert found.ppid == os.getpid()
        process.kill()


def test_a_process_that_is_gone_has_nothing_to_read() -> None:
    process = subprocess.Popen(["true"])
    wait_until(lambda: (found := processes.read(process.pid)) is not None and not found.is_alive, "a zombie")
    process.wait()
    assert processes.read(process.pid) is None
    assert processes.uid_of(process.pid) is None
    assert processes.environment_of(process.pid) == {}


def test_the_environment_a_process_was_started_with_is_read_as_bytes(child: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: processes.environment_of(child.pid) == {b"MARK": b"a=b"}, "the program")


def test_a_signal_reaches_only_the_process_with_the_same_start_time(child: subprocess.Popen[bytes]) -> None:
    found = processes.read(child.pid)
    assert found is not None
    processes.send_signal(found._replace(start_time=found.start_time - 1), signal.SIGKILL)
    assert is_running(child.pid)
    processes.send_signal(found, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    processes.send_signal(found, signal.SIGKILL)


def process(pid: int, ppid: int, sid: int = 1, start_time: int = 0, state: str = "S") -> Process:
    return Process(pid, state, ppid, sid, sid, start_time)


def test_descendants_and_ancestors_follow_the_parents() -> None:
    known = {p.pid: p for p in [process(1, 0), process(2, 1), process(3, 2), process(4, 3), process(5, 1)]}
    assert processes.descendants(known, [2]) == {3, 4}
    assert processes.descendants(known, [3, 5]) == {4}
    assert processes.ancestors(known, 4) == {3, 2, 1, 0}


@pytest.mark.parametrize(
    ("member", "leader", "belongs"),
    [
        # The first process itself, a child of its session, and one whose leader ended.
        (process(100, 9, sid=100, start_time=50), process(100, 9, sid=100, start_time=50), True),
        (process(101, 100, sid=100, start_time=60), process(100, 9, sid=100, start_time=50), True),
        (process(101, 9, sid=100, start_time=60), None, True),
        # Another session.
        (process(101, 100, sid=101, start_time=60), process(100, 9, sid=100, start_time=50), False),
        # The number was reused: a new process with the pid of the run opened a session of its own.
        (process(100, 9, sid=100, start_time=90), process(100, 9, sid=100, start_time=90), False),
        (process(102, 100, sid=100, start_time=95), process(100, 9, sid=100, start_time=90), False),
        # Older than the run it claims.
        (process(101, 9, sid=100, start_time=40), None, False),
    ],
)
def test_a_process_belongs_to_the_session_of_a_run_and_not_to_a_later_one_with_its_number(
    member: Process, leader: Process | None, belongs: bool
) -> None:
    assert processes.in_session(member, leader, 100, 50) is belongs

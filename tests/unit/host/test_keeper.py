from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.host.conftest import command_line, is_running, wait_until
from trunkline.host import processes
from trunkline.host.keeper import Root, by_run, exit_code
from trunkline.host.keeper_link import KeeperLink, Report
from trunkline.host.launch import LaunchError, find_program
from trunkline.host.processes import Process

KEEPER = 10


def process(pid: int, ppid: int, sid: int, start_time: int = 100, state: str = "S") -> Process:
    return Process(pid, state, ppid, sid, sid, start_time)


def owners(*below: Process, marks: dict[int, str] | None = None) -> dict[int, str | None]:
    """Whose each living process is, below a keeper with the runs a (pid 20) and b (pid 30)."""
    known = {p.pid: p for p in [process(1, 0, 1), process(KEEPER, 1, 1), process(99, 1, 99), *below]}
    runs = {20: Root("a", 50), 30: Root("b", 60)}
    found = by_run(known, KEEPER, runs, (marks or {}).get)
    return {p.pid: run_id for run_id, members in found.items() for p in members}


A = process(20, KEEPER, 20, 50)
B = process(30, KEEPER, 30, 60)


def test_a_process_belongs_to_the_run_of_its_session() -> None:
    assert owners(A, B, process(21, 20, 20), process(31, 30, 30)) == {20: "a", 21: "a", 30: "b", 31: "b"}


def test_a_process_in_another_session_belongs_where_its_parent_does() -> None:
    assert owners(A, B, process(31, 30, 31), process(32, 31, 32)) == {20: "a", 30: "b", 31: "b", 32: "b"}


def test_a_member_of_a_session_whose_first_process_is_gone_still_belongs_to_it() -> None:
    assert owners(B, process(21, KEEPER, 20)) == {30: "b", 21: "a"}


def test_an_adopted_process_belongs_to_the_run_its_environment_names_and_takes_its_children_along() -> None:
    found = owners(A, B, process(31, KEEPER, 31), process(32, 31, 32), marks={31: "b", 32: "a"})
    assert found == {20: "a", 30: "b", 31: "b", 32: "b"}


@pytest.mark.parametrize("marks", [{}, {31: "a run that is over"}])
def test_an_adopted_process_without_a_trace_belongs_to_nobody(marks: dict[int, str]) -> None:
    assert owners(A, B, process(31, KEEPER, 31), marks=marks)[31] is None


def test_a_first_process_that_has_no_session_of_its_own_yet_belongs_to_its_run() -> None:
    assert owners(process(20, KEEPER, 1, 50)) == {20: "a"}


def test_a_session_whose_number_was_reused_is_another_one() -> None:
    found = owners(B, process(20, 30, 20, start_time=900), process(21, 20, 20, start_time=901))
    assert found == {30: "b", 20: "b", 21: "b"}


def test_zombies_and_strangers_are_not_listed() -> None:
    assert owners(A, process(21, 20, 20, state="Z"), process(50, 99, 99)) == {20: "a"}


def test_a_chain_of_processes_may_be_longer_than_pythons_stack() -> None:
    chain = [process(pid, pid - 1, pid) for pid in range(1001, 6000)]
    found = owners(A, process(1000, 20, 1000), *chain)
    assert found[5999] == "a"


def executable(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.touch()
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_command_is_searched_on_the_agents_path_and_the_first_that_can_be_run_wins(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "tool").touch(mode=0o600)
    second = executable(tmp_path / "second" / "tool")
    executable(tmp_path / "third" / "tool")
    path = f"{tmp_path}/first::{tmp_path}/second:{tmp_path}/third"
    assert find_program(["tool"], str(tmp_path), path) == str(second)


def test_a_command_with_a_slash_is_found_from_the_agents_folder_and_not_on_the_path(tmp_path: Path) -> None:
    here = executable(tmp_path / "bin" / "tool")
    assert find_program(["bin/tool"], str(tmp_path), "") == str(here)
    assert find_program([str(here)], "/", "") == str(here)
    with pytest.raises(LaunchError, match="not in PATH"):
        find_program(["tool"], str(tmp_path), "/nowhere")


@pytest.mark.parametrize(
    ("words", "is_looked_for"),
    [
        (("agent.py",), True),
        (("-u", "agent.py", "--fast"), True),
        (("-uB", "sub/agent.py"), True),
        (("-m", "agent"), False),
        (("-c", "print()"), False),
        (("-X", "dev", "agent.py"), False),
        ((), False),
    ],
    ids=lambda value: " ".join(value) or "none" if isinstance(value, tuple) else None,
)
def test_a_script_that_is_gone_is_named_before_its_interpreter_runs(
    tmp_path: Path, words: tuple[str, ...], is_looked_for: bool
) -> None:
    python = executable(tmp_path / "bin" / "python3.12")
    command = ["python3.12", *words]
    if is_looked_for:
        script = next(word for word in words if word.endswith(".py"))
        with pytest.raises(LaunchError, match=f"its script {tmp_path / script} does not exist"):
            find_program(command, str(tmp_path), str(python.parent))
        executable(tmp_path / script)
    assert find_program(command, str(tmp_path), str(python.parent)) == str(python)


def test_what_another_program_is_given_is_its_own_affair(tmp_path: Path) -> None:
    tool = executable(tmp_path / "bin" / "formatter")
    assert find_program(["formatter", "out.py"], str(tmp_path), str(tool.parent)) == str(tool)


class Reports:
    """A keeper without a supervisor."""

    def __init__(self) -> None:
        self.all: list[Report] = []
        self.arrived = asyncio.Event()
        self.lost = asyncio.Event()
        self.link = KeeperLink(self._take, self.lost.set)

    def _take(self, report: Report) -> None:
        self.all.append(report)
        self.arrived.set()

    async def next(self) -> Report:
        async with asyncio.timeout(20):
            while not self.all:
                self.arrived.clear()
                await self.arrived.wait()
        return self.all.pop(0)

    def launch(self, folder: Path, *argv: str, **changes: Any) -> None:
        command: dict[str, object] = {
            "do": "launch",
            "run_id": "r1",
            "argv": argv,
            "env": {"PATH": "/usr/bin:/bin", "AGENT_RUN": "r1"},
            "secrets": ["tlk_xxxxxxxx"],
            "cwd": str(folder),
            "log": str(folder / "logs" / "r1.log"),
            "max_log_bytes": 10_000,
            "isolation": None,
        }
        self.link.send(command | changes)


async def test_a_program_does_not_run_until_the_exchange_says_go(tmp_path: Path) -> None:
    reports = Reports()
    await reports.link.open(bytes, "AGENT_RUN")
    reports.launch(tmp_path, "touch", "ran")
    launched = await reports.next()
    assert launched["report"] == "launched"
    known = processes.read(launched["pid"])
    assert known is not None
    assert known.start_time == launched["start_time"]
    assert known.sid == known.pid
    assert b"trunkline.host.keeper" in command_line(known.pid)
    assert not (tmp_path / "ran").exists()
    reports.link.send({"do": "go", "run_id": "r1"})
    assert await reports.next() == {"report": "exited", "run_id": "r1", "code": 0, "reason": ""}
    assert (tmp_path / "ran").exists()
    await reports.link.close()


def test_a_keeper_whose_exchange_is_gone_before_it_looks_ends_although_the_socket_is_open() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        # A parent that is none: as if the exchange had been killed while the keeper was starting.
        command = [sys.executable, "-P", "-m", "trunkline.host.keeper", str(theirs.fileno()), str(os.getppid())]
        keeper = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        try:
            assert keeper.wait(20) == 0
        finally:
            keeper.kill()
            keeper.wait()


async def test_a_keeper_that_is_left_ends_what_waits_at_its_gate(tmp_path: Path) -> None:
    reports = Reports()
    await reports.link.open(bytes, "AGENT_RUN")
    reports.launch(tmp_path, "touch", "ran")
    pid = (await reports.next())["pid"]
    await reports.link.close()
    assert not is_running(pid)
    assert not (tmp_path / "ran").exists()
    assert processes.read(reports.link.pid) is None
    assert not reports.lost.is_set()


async def test_a_run_that_is_stopped_before_it_began_needs_no_grace(tmp_path: Path) -> None:
    reports = Reports()
    await reports.link.open(bytes, "AGENT_RUN")
    # Both are read together, so the child cannot have restored its signals when SIGTERM reaches it.
    reports.launch(tmp_path, "touch", "ran")
    reports.link.send({"do": "stop", "run_id": "r1", "grace_s": 600})
    report = await reports.next()
    if report["report"] == "launched":
        report = await reports.next()
    assert report["report"] in {"exited", "failed"}
    assert not (tmp_path / "ran").exists()
    await reports.link.close()


async def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    reports = Reports()
    await reports.link.open(bytes, "AGENT_RUN")
    (tmp_path / "logs").touch()
    reports.launch(tmp_path, "true")
    failed = await reports.next()
    assert failed["report"] == "failed"
    assert "cannot be started" in failed["reason"]
    assert str(tmp_path / "logs") in failed["reason"]
    await reports.link.close()


async def test_commands_for_a_run_that_is_over_are_ignored(tmp_path: Path) -> None:
    reports = Reports()
    await reports.link.open(bytes, "AGENT_RUN")
    reports.link.send({"do": "go", "run_id": "nobody"})
    reports.link.send({"do": "stop", "run_id": "nobody", "grace_s": 0})
    reports.launch(tmp_path, "true", cwd=str(tmp_path / "gone"))
    failed = await reports.next()
    assert failed == {
        "report": "failed",
        "run_id": "r1",
        "reason": f"its folder {tmp_path / 'gone'} does not exist",
    }
    await reports.link.close()


async def test_an_environment_that_is_not_text_passes_unchanged(tmp_path: Path) -> None:
    reports = Reports()
    await reports.link.open(bytes, "AGENT_RUN")
    odd = os.fsdecode(b"\xff\xfe")
    env = {"PATH": "/usr/bin:/bin", "ODD": odd}
    reports.launch(tmp_path, "sleep", "600", env=env)
    pid = (await reports.next())["pid"]
    reports.link.send({"do": "go", "run_id": "r1"})
    wait_until(lambda: b"sleep" in command_line(pid), "the program")
    assert processes.environment_of(pid)[b"ODD"] == b"\xff\xfe"
    await reports.link.close()


@pytest.mark.parametrize(
    "changes",
    [
        # A mask whose answer is no bytes: what the log makes of it raises.
        {"argv": ["echo", "hello"]},
        {"argv": ["sh", "-c", "printf 'no end of line'"]},
        {"argv": ["sh", "-c", "while :; do echo flood; done"]},
        # What no exchange sends.
        {"argv": ["true"], "env": None},
        {"argv": ["echo", "hello"], "max_log_bytes": "many"},
    ],
)
async def test_an_exception_met_with_one_run_ends_that_run_alone(tmp_path: Path, changes: dict[str, Any]) -> None:
    reports = Reports()
    await reports.link.open(bytes.decode, "AGENT_RUN")  # type: ignore[arg-type]
    reports.launch(tmp_path, "sleep", "600", run_id="other", log=str(tmp_path / "other.log"))
    assert (await reports.next())["report"] == "launched"
    reports.link.send({"do": "go", "run_id": "other"})
    reports.launch(tmp_path, **changes)
    report = await reports.next()
    if report["report"] == "launched":
        reports.link.send({"do": "go", "run_id": "r1"})
        report = await reports.next()
    assert (report["report"], report["run_id"]) in {("exited", "r1"), ("failed", "r1")}
    assert report["reason"].startswith("a defect in the keeper: ")
    reports.link.send({"do": "stop", "run_id": "other", "grace_s": 0})
    assert (await reports.next())["run_id"] == "other"
    assert not reports.lost.is_set()
    await reports.link.close()


@pytest.mark.parametrize(
    ("status", "is_wrapped", "code"),
    [
        (0, True, 0),
        (3 << 8, True, 3),
        (143 << 8, True, -15),
        (143 << 8, False, 143),
        (9, True, -9),
        (255 << 8, True, 255),
    ],
)
def test_an_agent_that_was_ended_by_a_signal_in_its_sandbox_is_reported_so(
    status: int, is_wrapped: bool, code: int
) -> None:
    assert exit_code(status, is_wrapped=is_wrapped) == code

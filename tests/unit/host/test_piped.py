"""Programs that an edge speaks with over pipes, below a real keeper."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.descriptors import open_descriptors
from tests.unit.host.conftest import ESCAPE, command_line, is_running, wait_until
from trunkline.edges.opensentience.launching import AgentLauncher
from trunkline.edges.piped import NotStarted, PipedProcess, PipedSpec, start_nothing
from trunkline.host import piped, processes
from trunkline.host.supervisor import Supervisor

pytestmark = pytest.mark.slow

WAIT_S = 20.0
CAT = ("sh", "-c", "cat")


class Owner:
    """An edge's side."""

    def __init__(self) -> None:
        self.said = b""
        self.endings: list[str] = []
        self._changed = asyncio.Event()
        self.process: PipedProcess

    def received(self, data: bytes) -> None:
        self.said += data
        self._changed.set()

    def ended(self, reason: str) -> None:
        self.endings.append(reason)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def line(self) -> str:
        await self.until(lambda: b"\n" in self.said)
        first, _, self.said = self.said.partition(b"\n")
        return first.decode()

    async def ending(self) -> str:
        await self.until(lambda: self.endings)
        return self.endings[0]


class Keeping:
    """A supervisor without agents, and programs with pipes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.supervisor = Supervisor(home, AgentLauncher(str(home / "s"), home))

    def start(self, *command: str, **terms: Any) -> Owner:
        owner = Owner()
        spec = PipedSpec("program", command, str(self.home), **{"stop_grace_s": 0.5, **terms})
        owner.process = self.supervisor.piped.start(spec, owner)
        return owner


@pytest.fixture
async def keeping(tmp_path: Path) -> AsyncIterator[Keeping]:
    found = Keeping(tmp_path)
    await found.supervisor.start(lambda _: None, [])
    before = open_descriptors()
    yield found
    await found.supervisor.stop_all()
    assert open_descriptors() <= before, "a descriptor was left open"


async def test_what_is_written_reaches_the_program_and_what_it_says_comes_back(keeping: Keeping) -> None:
    owner = keeping.start(*CAT)
    assert owner.process.write(b"before it runs\n")
    assert await owner.line() == "before it runs"
    assert owner.process.write(b"and after\n")
    assert await owner.line() == "and after"
    owner.process.stop()
    assert await owner.ending() == "killed by SIGTERM"
    assert not owner.process.write(b"to nobody\n")


async def test_a_program_finds_its_folder_and_what_its_edge_put_into_its_environment(keeping: Keeping) -> None:
    owner = keeping.start("sh", "-c", 'echo "$PWD $SAID ${SECRET-none}"', env={"SAID": "hello"})
    assert await owner.line() == f"{keeping.home} hello none"
    assert await owner.ending() == "exit code 0"


async def test_what_it_writes_to_stderr_is_its_log_and_no_part_of_what_it_says(keeping: Keeping) -> None:
    owner = keeping.start("sh", "-c", "echo for the log >&2; echo for the edge")
    await owner.ending()
    assert owner.said == b"for the edge\n"
    assert [log.read_text() for log in keeping.home.glob("logs/program/*.log")] == ["for the log\n"]


async def test_all_that_it_said_before_it_ended_is_heard_before_its_end(keeping: Keeping) -> None:
    owner = keeping.start("sh", "-c", "head -c 1000000 /dev/zero; exit 3")
    assert await owner.ending() == "exit code 3"
    assert len(owner.said) == 1_000_000


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("no-such-program",), "the command 'no-such-program' is not in PATH"),
        (("./file",), "is not executable"),
    ],
)
async def test_a_program_that_cannot_be_started_ends_with_the_reason(
    keeping: Keeping, command: tuple[str, ...], why: str
) -> None:
    (keeping.home / "file").touch(mode=0o600)
    owner = keeping.start(*command)
    assert why in await owner.ending()
    assert len(owner.endings) == 1


async def test_one_that_does_not_read_is_written_only_so_much(keeping: Keeping) -> None:
    owner = keeping.start("sleep", "600")
    piece = b"x" * 1_048_576
    taken = 0
    while owner.process.write(piece):
        taken += len(piece)
        await asyncio.sleep(0)
        assert taken <= 2 * piped.MAX_UNREAD_BYTES
    assert taken >= piped.MAX_UNREAD_BYTES - len(piece)
    owner.process.stop()
    await owner.ending()


async def test_one_that_is_not_read_has_to_wait(keeping: Keeping) -> None:
    owner = keeping.start("sh", "-c", "echo first; yes | head -c 5000000")
    owner.process.pause_reading()
    other = keeping.start("echo", "meanwhile")
    assert await other.line() == "meanwhile"
    assert owner.said == b""
    owner.process.resume_reading()
    await owner.ending()
    assert len(owner.said) == 5_000_006


async def test_a_program_that_closed_its_stdin_may_still_speak(keeping: Keeping) -> None:
    owner = keeping.start("sh", "-c", "exec 0<&-; echo deaf; sleep 0.2; echo still here")
    assert await owner.line() == "deaf"
    owner.process.write(b"hello?\n")
    assert await owner.line() == "still here"
    await owner.ending()


async def test_everything_that_a_program_started_ends_with_it(keeping: Keeping) -> None:
    file = keeping.home / "pid"
    owner = keeping.start(sys.executable, "-S", "-c", ESCAPE, str(file), "kept")
    await asyncio.to_thread(wait_until, lambda: file.exists() and file.read_text(), "the one that ran away")
    pid = int(file.read_text())
    owner.process.stop()
    await owner.ending()
    assert not is_running(pid)


async def test_programs_end_with_their_keeper_and_others_can_be_started_after_it(keeping: Keeping) -> None:
    owner = keeping.start(*CAT)
    owner.process.write(b"here\n")
    await owner.line()
    link = keeping.supervisor._link
    assert link is not None
    os.kill(link.pid, signal.SIGKILL)
    assert await owner.ending() == "the process that keeps it was killed"
    again = keeping.start(*CAT)
    again.process.write(b"here again\n")
    assert await again.line() == "here again"


async def test_no_more_than_so_many_run_at_a_time(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piped, "MAX_PROCESSES", 2)
    first, _ = keeping.start(*CAT), keeping.start(*CAT)
    assert await keeping.start(*CAT).ending() == "2 processes run already"
    first.process.stop()
    await first.ending()
    fourth = keeping.start(*CAT)
    fourth.process.write(b"there is room\n")
    assert await fourth.line() == "there is room"


async def test_an_exchange_that_stops_ends_them_and_starts_no_more(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    await keeping.supervisor.start(lambda _: None, [])
    owner = keeping.start(*CAT)
    owner.process.write(b"here\n")
    await owner.line()
    await keeping.supervisor.stop_all()
    assert owner.endings == ["killed by SIGTERM"]
    late = keeping.start(*CAT)
    assert late.endings == ["the exchange is stopping"]
    assert isinstance(late.process, NotStarted)


EXCHANGE = """
import asyncio, sys
from pathlib import Path
from trunkline.edges.opensentience.launching import AgentLauncher
from trunkline.edges.piped import PipedSpec
from trunkline.host.supervisor import Supervisor

class Owner:
    def received(self, data): print(data.decode(), end="", flush=True)
    def ended(self, reason): print("ended", reason, flush=True)

async def main():
    home = Path(sys.argv[1])
    supervisor = Supervisor(home, AgentLauncher(str(home / "s"), home))
    await supervisor.start(lambda _: None, [])
    command = ("sh", "-c", "trap '' TERM; echo $$; sleep 600 & echo $!; wait; sleep 600")
    supervisor.piped.start(PipedSpec("program", command, str(home)), Owner())
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_no_process_is_left_when_the_exchange_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXCHANGE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as exchange:
        assert exchange.stdout is not None
        pids = [int(exchange.stdout.readline()) for _ in range(2)]
        assert all(is_running(pid) for pid in pids)
        assert b"sleep" in command_line(pids[1])
        below = processes.child_pids(exchange.pid)
        exchange.kill()
    for pid in [*pids, *below]:
        wait_until(lambda pid=pid: not is_running(pid), "the end of everything")  # type: ignore[misc]


async def test_where_nothing_can_be_started_that_is_said() -> None:
    owner = Owner()
    process = start_nothing(PipedSpec("program", CAT, "/"), owner)
    assert owner.endings == ["this exchange starts no processes"]
    assert not process.write(b"x")


def test_a_spec_shows_neither_its_command_nor_its_environment() -> None:
    shown = repr(PipedSpec("program", ("serve", "--token=tlk_x"), "/", {"KEY": "tlk_y"}))
    assert shown == "PipedSpec('program')"

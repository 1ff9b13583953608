"""A supervisor with real processes, and what is needed to look at them from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from trunkline.edges.opensentience.launching import AgentLauncher
from trunkline.events import AgentExited, AgentLaunched, Event, Noticed
from trunkline.host import processes
from trunkline.host.supervisor import AgentSpec, Supervisor
from trunkline.shown import AgentView

WAIT_S = 20.0

# An agent that starts a process which leaves it in every way: another session, another parent, deaf to SIGTERM, and
# with "scrubbed" also another environment. It writes its pid to the file given.
ESCAPE = """
import os, signal, sys, time
file, scrubbed = sys.argv[1:]
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    env = {} if scrubbed == "scrubbed" else dict(os.environ)
    os.execve(sys.executable, [sys.executable, "-S", "-c", program, file], env)
os.waitpid(child, 0)
time.sleep(600)
"""


# An agent that runs away: each process starts the next, in a session of its own, and ends. The FIFO given is open for
# writing in all of them, so that its end is the end of the last. Nobody runs away for longer than 30 s.
RUNAWAY = """
import os, sys, time
until = time.monotonic() + 30
fifo = os.open(sys.argv[1], os.O_WRONLY)
if os.fork():
    time.sleep(600)
generation = 0
while time.monotonic() < until:
    os.setsid()
    generation += 1
    if generation <= 20:
        os.write(fifo, b".")
    if os.fork():
        os._exit(0)
"""


class Runaway:
    """The spec of an agent that runs away, and whether it still does."""

    def __init__(self, agent_id: str, folder: Path) -> None:
        fifo = folder / f"{agent_id}.fifo"
        os.mkfifo(fifo)
        self._reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self._heard = 0
        command = (sys.executable, "-S", "-c", RUNAWAY, str(fifo))
        self.spec = AgentSpec(agent_id, command, str(folder), stop_grace_s=0.2, restart="never")

    def has_begun(self) -> bool:
        with suppress(BlockingIOError):
            self._heard += len(os.read(self._reader, 100))
        return self._heard >= 20

    def is_running(self) -> bool:
        try:
            return bool(os.read(self._reader, 100))
        except BlockingIOError:
            return True

    def close(self) -> None:
        os.close(self._reader)


def escaping(agent_id: str, file: Path, environment: str = "kept") -> AgentSpec:
    """The spec of an agent that starts a process to get away."""
    command = (sys.executable, "-S", "-c", ESCAPE, str(file), environment)
    return AgentSpec(agent_id, command, str(file.parent), stop_grace_s=0.2, restart="never")


def sleeping(agent_id: str, folder: Path, **options: object) -> AgentSpec:
    """The spec of an agent that does nothing."""
    return AgentSpec(agent_id, ("sleep", "600"), str(folder), **options)  # type: ignore[arg-type]


def is_running(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    process = processes.read(pid)
    return process is not None and process.is_alive


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Look again and again, not for ever."""
    give_up_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {WAIT_S:.0f} s for: {what}"
        time.sleep(0.01)


def content(file: Path) -> str:
    """What is in a file, if it is there."""
    return file.read_text() if file.exists() else ""


class Host:
    """A supervisor, and everything it said to the hub."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.events: list[Event] = []
        self.supervisor = Supervisor(home, AgentLauncher(home, home / "agents.sock"), mask=bytes, jitter=lambda: 0.0)

    async def start(self, *specs: AgentSpec) -> None:
        await self.supervisor.start(self.feed, specs)

    def feed(self, events: Sequence[Event]) -> None:
        self.events.extend(events)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        give_up_at = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < give_up_at, f"waited {WAIT_S:.0f} s for: {what}; {self.events}"
            await asyncio.sleep(0.01)

    def launched(self, agent_id: str) -> list[AgentLaunched]:
        return [event for event in self.events if isinstance(event, AgentLaunched) and event.agent_id == agent_id]

    def exited(self, agent_id: str) -> list[AgentExited]:
        return [event for event in self.events if isinstance(event, AgentExited) and event.agent_id == agent_id]

    def noticed(self, code: str) -> list[Noticed]:
        return [event for event in self.events if isinstance(event, Noticed) and event.code == code]

    def view(self, agent_id: str) -> AgentView:
        return next(view for view in self.supervisor.views() if view.agent_id == agent_id)

    def state(self, agent_id: str) -> str | None:
        return next((view.state for view in self.supervisor.views() if view.agent_id == agent_id), None)

    async def pid(self, agent_id: str) -> int:
        """The pid of an agent whose program runs."""
        await self.until(lambda: self.state(agent_id) == "running", f"{agent_id} running")
        pid = self.view(agent_id).pid
        assert pid is not None
        # While a program takes the place of another, the line is empty.
        await self.until(lambda: b"trunkline.host.keeper" not in (command_line(pid) or b"trunkline.host.keeper"), "it")
        return pid

    async def pid_in(self, file: Path) -> int:
        """The pid that a process wrote into a file."""
        await self.until(lambda: content(file), f"a pid in {file}")
        return int(content(file))

    async def exit_of(self, agent_id: str) -> AgentExited:
        await self.until(lambda: self.exited(agent_id), f"the end of {agent_id}")
        return self.exited(agent_id)[-1]

    def log(self, agent_id: str) -> str:
        """What an agent's last run printed."""
        *_, path = sorted((self.home / "logs" / agent_id).glob("*.log"))
        return path.read_text()

    @property
    def keeper_pid(self) -> int:
        assert self.supervisor._link is not None
        return self.supervisor._link.pid


def command_line(pid: int) -> bytes:
    """What the process list shows."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
async def host(short_path: Path) -> AsyncIterator[Host]:
    """A supervisor that is stopped after the test, and must then leave nothing."""
    host = Host(short_path)
    yield host
    await host.supervisor.stop_all(0.2)
    known = processes.table()
    left = [known[pid] for pid in processes.descendants(known, [os.getpid()]) if known[pid].sid != os.getsid(0)]
    assert not [command_line(process.pid) for process in left if process.is_alive], "processes were left behind"


@pytest.fixture
def doomed() -> Iterator[list[int]]:
    """Pids to kill after the test, in case that it failed."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)

"""The processes of a run: started, spoken with, looked at, and none left behind.

Owns every process that the run starts, each in a session of its own, and what ``/proc`` says of them. It does not know
what they do. Linux only, as the exchange is.

Invariant: when ``Children`` is left, however that came about, everything it started has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T", bound=Struct)

ROOT: Final = Path(__file__).parents[1]
# A process that imports an SDK on a busy machine.
START_S: Final = 60.0
# What a process may take to end by itself: an exchange puts its last entries on the disk.
STOP_S: Final = 15.0
_POLL_S: Final = 0.02


class Failed(Exception):
    """A process did not do what it was asked for. The text has the end of what it printed."""


class Child:
    """One process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        is_ours: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._is_ours = is_ours
        self._log = log
        self._heard = b""
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                # Ctrl-C is for the run alone: it then ends the others in good order.
                start_new_session=True,
                env=environment,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def ask(self, command: Struct, answer: type[T], within_s: float = START_S) -> T:
        """Say a command and wait for its answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(command) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.failure("it has ended") from None
        return self.wait(answer, within_s)

    def wait(self, answer: type[T], within_s: float = START_S) -> T:
        """The next answer."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + within_s
        while b"\n" not in self._heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise self.failure(f"no answer within {within_s:g} s")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise self.failure("it has ended")
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return msgspec.json.decode(line, type=answer)

    def failure(self, why: str) -> Failed:
        """What to raise, with the last that it printed."""
        said = self._log.read_text(errors="replace")[-2000:].strip()
        return Failed(f"{self.name}: {why}" + (f"\n{said}" if said else ""))

    def leave(self) -> None:
        """Tell it to end: ours do when their standard input is closed, and end what they started themselves."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if not self._is_ours:
            self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """To the process and those it started in its session's group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self.process.poll() is not None


class Children:
    """All processes of one part of a run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whoever is impatient would leave processes behind; it takes STOP_S at the most.
        impatient = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        self.stop(*tuple(self._children))
        for number, handler in impatient.items():
            signal.signal(number, handler)

    def ours(self, name: str, *words: str) -> Child:
        """Start one of the run's own programs: ``python -m words``."""
        return self._start(Child(name, [sys.executable, "-m", *words], self._log(name), is_ours=True))

    def start(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> Child:
        """Start another program, in our environment or in one of its own."""
        return self._start(Child(name, command, self._log(name), is_ours=False, environment=environment))

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _start(self, child: Child) -> Child:
        self._children.append(child)
        return child

    def stop(self, *children: Child) -> None:
        """End these: told to first, all at once; killed if they do not."""
        for child in children:
            child.leave()
        deadline = time.monotonic() + STOP_S
        for child in children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.signal(signal.SIGKILL)
                child.process.wait()
            # What it started and left behind.
            child.signal(signal.SIGKILL)
            assert child.process.stdout is not None
            child.process.stdout.close()
            self._children.remove(child)


# --- ports ------------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_port(port: int) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise Failed(f"nobody listens on port {port}") from None
            time.sleep(_POLL_S)
        else:
            return


# --- what /proc says --------------------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """CPU that a process has used, all its threads: in nanoseconds, where ``stat`` counts in hundredths of a second."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def rss_bytes(pid: int) -> int:
    """The memory of a process that is in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def reset_peak_rss(pid: int) -> None:
    """From now on the kernel keeps the most memory that a process has."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_rss_bytes(pid: int) -> int:
    """The most memory that a process had since."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def child_of(pid: int, word: str) -> int:
    """The process that ``pid`` started with this word on its command line."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if word.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return int(child)
    raise Failed(f"process {pid} has no child {word}")


def wait_steady_rss(pid: int, within_s: float = 5.0) -> int:
    """The memory of a process once it has stopped changing."""
    deadline = time.monotonic() + within_s
    before = -1
    while (now := rss_bytes(pid)) != before and time.monotonic() < deadline:
        before = now
        time.sleep(0.2)
    return now

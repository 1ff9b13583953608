"""Processes with pipes: the host's side of ``edges.piped``, below the keeper.

Owns the exchange's ends of their stdin and stdout, and what waits to be written. Does not own the processes
(``keeper``) nor what is said to them. The keeper hands the descriptors over when a process is ready to go; its stderr
goes into a log.

Invariant: every descriptor that was handed over is closed by the time ``ended`` is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trunkline.edges.edge import Launcher
from trunkline.edges.piped import NotStarted, PipedOwner, PipedProcess, PipedSpec
from trunkline.host.launch import passed_on
from trunkline.host.restart import how_it_ended
from trunkline.host.run_files import forget_old_logs, new_run_id
from trunkline.model import ProcessIdentity

# Each has four descriptors in two processes, and the memory of a program: far more than anybody has mounted.
MAX_PROCESSES: Final = 128
# What may wait for a process that does not read: as much as one that sends may have on its way in to us.
MAX_UNREAD_BYTES: Final = 16_777_216
# What is read of one in one turn of the loop: the size of a pipe.
READ_BYTES: Final = 65_536
# When nothing of a process is left, what is still in its pipe is read within this time. One that hangs in the kernel
# keeps the pipe open.
LAST_READ_S: Final = 1.0

Send = Callable[[dict[str, object]], None]


class Pipes:
    """One process, as the exchange sees it."""

    def __init__(self, spec: PipedSpec, owner: PipedOwner, run_id: str, send: Send) -> None:
        self.run_id = run_id
        self.identity: ProcessIdentity | None = None
        self._spec = spec
        self._owner = owner
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._stdin: int | None = None
        self._stdout: int | None = None
        self._unwritten = bytearray()
        self._is_paused = False
        # Whether the loop says when it reads on.
        self._is_unread = False
        self._is_stopping = False
        self._is_over = False
        # Why it ended, once nothing of it is left.
        self._ending: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # --- what the edge asks for ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        """Write to its stdin, or keep it until it reads."""
        if self._is_over or len(self._unwritten) + len(data) > MAX_UNREAD_BYTES:
            return False
        self._unwritten += data
        if not self._is_unread:
            self._write()
        return True

    def pause_reading(self) -> None:
        """Let it wait."""
        if not self._is_paused:
            self._is_paused = True
            if self._stdout is not None:
                self._loop.remove_reader(self._stdout)

    def resume_reading(self) -> None:
        """Read on."""
        if self._is_paused:
            self._is_paused = False
            if self._stdout is not None:
                self._loop.add_reader(self._stdout, self._read)

    def stop(self) -> None:
        """End it."""
        if not self._is_stopping and not self._is_over:
            self._is_stopping = True
            self._send({"do": "stop", "run_id": self.run_id, "grace_s": self._spec.stop_grace_s})

    # --- what the keeper reports --------------------------------------------------------------------------------------

    def launched(self, identity: ProcessIdentity, pipes: tuple[int, int]) -> None:
        """It is ready to go, and these are its pipes."""
        self.identity = identity
        self._stdin, self._stdout = pipes
        for end in pipes:
            os.set_blocking(end, False)
        if not self._is_paused:
            self._loop.add_reader(self._stdout, self._read)
        if not self._is_stopping:
            self._send({"do": "go", "run_id": self.run_id})
        self._write()

    def exited(self, reason: str) -> None:
        """Nothing of it is left; what it said last may still be in its pipe."""
        self._ending = reason
        self._close_stdin()
        if self._stdout is None:
            self._finish()
        else:
            self.resume_reading()
            self._deadline = self._loop.call_later(LAST_READ_S, self._finish)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._stdout is not None
        try:
            data = os.read(self._stdout, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._owner.received(data)
            return
        self._close_stdout()
        if self._ending is not None:
            self._finish()

    def _write(self) -> None:
        if self._stdin is None:
            return
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._stdin, self._unwritten[:READ_BYTES])]
        except BlockingIOError:
            if not self._is_unread:
                self._is_unread = True
                self._loop.add_writer(self._stdin, self._write)
            return
        except BrokenPipeError:
            # It has closed its stdin, and may still say something.
            self._close_stdin()
            return
        self._stop_waiting(self._stdin)

    def _stop_waiting(self, stdin: int) -> None:
        if self._is_unread:
            self._is_unread = False
            self._loop.remove_writer(stdin)

    def _close_stdin(self) -> None:
        self._unwritten.clear()
        if self._stdin is not None:
            self._stop_waiting(self._stdin)
            os.close(self._stdin)
            self._stdin = None

    def _close_stdout(self) -> None:
        if self._stdout is not None:
            self._loop.remove_reader(self._stdout)
            os.close(self._stdout)
            self._stdout = None

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._close_stdin()
        self._close_stdout()
        self._owner.ended(self._ending or "")


class PipedProcesses:
    """All of them. ``send`` gives the keeper a command."""

    def __init__(self, home: Path, launcher: Launcher, send: Send) -> None:
        self._home = home
        self._launcher = launcher
        self._send = send
        self._running: dict[str, Pipes] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._is_stopping = False

    def start(self, spec: PipedSpec, owner: PipedOwner) -> PipedProcess:
        """Start one. ``edges.piped.StartPiped``."""
        if self._is_stopping or len(self._running) >= MAX_PROCESSES:
            owner.ended("the exchange is stopping" if self._is_stopping else f"{MAX_PROCESSES} processes run already")
            return NotStarted()
        run_id = new_run_id(time.time())
        pipes = self._running[run_id] = Pipes(spec, owner, run_id, self._send)
        self._quiet.clear()
        logs = self._home / "logs" / spec.name
        forget_old_logs(logs)
        marks = {self._launcher.run_variable: run_id, self._launcher.home_variable: str(self._home)}
        self._send(
            {
                "do": "launch",
                "run_id": run_id,
                "argv": spec.command,
                "env": {**passed_on(os.environ), **spec.env, **marks},
                "secrets": [],
                "cwd": spec.cwd,
                "log": str(logs / f"{run_id}.log"),
                "max_log_bytes": spec.max_log_bytes,
                "isolation": None,
                "pipes": True,
            }
        )
        return pipes

    def on_report(self, report: dict[str, object]) -> None:
        """The keeper says something of a run that is no agent's."""
        pipes = self._running.get(str(report["run_id"]))
        handed = report.get("pipes") or ()
        assert isinstance(handed, tuple)
        if pipes is None:
            for end in handed:
                os.close(end)
        elif report["report"] == "launched":
            pid, start_time = report["pid"], report["start_time"]
            assert isinstance(pid, int)
            assert isinstance(start_time, int)
            pipes.launched(ProcessIdentity(pid, start_time), handed)
        else:
            code = report.get("code", 0)
            assert isinstance(code, int)
            self._end(pipes, str(report["reason"]) or how_it_ended(code))

    def identities(self) -> list[ProcessIdentity]:
        """The first processes of those that run."""
        return [pipes.identity for pipes in self._running.values() if pipes.identity is not None]

    def keeper_lost(self) -> None:
        """The keeper was killed, and they with it."""
        for pipes in list(self._running.values()):
            self._end(pipes, "the process that keeps it was killed")

    async def stop(self, within_s: float) -> None:
        """End all, and start no more."""
        self._is_stopping = True
        for pipes in list(self._running.values()):
            pipes.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._quiet.wait()

    def _end(self, pipes: Pipes, reason: str) -> None:
        del self._running[pipes.run_id]
        if not self._running:
            self._quiet.set()
        pipes.exited(reason)

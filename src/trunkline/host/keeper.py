"""The keeper: a small process of its own that is the parent of every launched agent, and outlives none of them.

It starts agents, ends them with everything below them, and copies what they print into their logs. It decides nothing:
when to start and stop is the supervisor's business, at the other end of a socket pair. One JSON object a line:

=====================================================================================  =================================
to the keeper                                                                          from the keeper
=====================================================================================  =================================
``{"do": "launch", run_id, argv, env, cwd, log, max_log_bytes}``: fork, do not run yet  ``launched``: run_id, pid, start_time
``{"do": "go", run_id}``: run the command                                               ``failed``: run_id, reason
``{"do": "stop", run_id, grace_s}``: SIGTERM, and SIGKILL after the grace               ``exited``: run_id, code, reason
=====================================================================================  =================================

Between ``launched`` and ``go`` the exchange makes the run known, so an agent can never be faster than its own launch.

Invariant: no process below the keeper outlives its run, and none outlives the exchange. Only the standard library is
imported: about 11 MB resident, most of it shared with the exchange's own interpreter.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from trunkline.host import processes
from trunkline.host.processes import Process
from trunkline.host.runlog import RunLog

# For what a run leaves behind when its first process ends by itself, and for everything when the exchange is gone.
SHORT_GRACE_S: Final = 1.0
# SIGKILL is sent again this often, to processes born meanwhile.
KILL_AGAIN_S: Final = 0.05
# A process that SIGKILL does not end within this time hangs in the kernel (a dead network disk); nobody can wait for it.
KILL_WAIT_S: Final = 5.0

# What is taken from one agent in one turn: the size of a pipe.
READ_BYTES: Final = 65_536
# An agent that filled its pipe waits so long until it is read again: 3 MB/s are left to it, and the processor to others.
FLOOD_PAUSE_S: Final = 0.02
# Read at the end from what is still in the pipe; more can only come from a process we could not end.
LAST_READS: Final = 16

# A run keeps two descriptors open, and 1,024 is a common soft limit. Agents get the limit that the exchange had.
MAX_OPEN_FILES: Final = 65_536

RUN_ID: Final = b"OPENSENTIENCE_RUN_ID"
READY: Final = b"+"
GO: Final = b"!"
# The exit code of shells for a command that cannot be run.
CANNOT_RUN: Final = 127


class LaunchError(Exception):
    """An agent that cannot be started; the text names the reason for the operator."""


class Root(NamedTuple):
    """The first process of a run: pid, group and session have the same number."""

    run_id: str
    start_time: int


class Run:
    """One launched agent: its first process, its pipe and its log."""

    def __init__(self, run_id: str, pid: int, program: str, gate: socket.socket, pipe: int, log: RunLog) -> None:
        self.run_id = run_id
        self.pid = pid
        self.program = program
        process = processes.read(pid)
        assert process is not None, "a child that nobody has waited for yet is in the table"
        self.start_time = process.start_time
        self.gate: socket.socket | None = gate
        self.pipe: int | None = pipe
        self.log = log
        self.is_ready = False
        self.code: int | None = None
        self.reason = ""
        # Set once the run is being ended: when SIGKILL is due, and when it was first sent.
        self.kill_at: float | None = None
        self.killed_at: float | None = None
        # Set while a flooding agent is not read.
        self.read_at: float | None = None


class Keeper:
    """The event loop of the keeper's process."""

    def __init__(self, control: socket.socket, mask: Callable[[bytes], bytes], exchange_pid: int) -> None:
        self._control = control
        self._mask = mask
        self._exchange_pid = exchange_pid
        self._pid = os.getpid()
        self._runs: dict[str, Run] = {}
        self._received = bytearray()
        self._unsent = bytearray()
        self._is_leaving = False
        # Something happened that may have changed who lives below us.
        self._is_stirred = False
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve the exchange until it is gone, then end everything."""
        self._prepare()
        while not self._is_leaving or self._runs:
            for key, _ in self._selector.select(self._wait_s()):
                key.data()
            if os.getppid() != self._exchange_pid:
                self._leave()
            self._collect()
            now = time.monotonic()
            self._resume_reading(now)
            self._press(now)
        self._end_strays()

    def _prepare(self) -> None:
        processes.become_subreaper()
        soft, hard = self._open_files
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MAX_OPEN_FILES)), hard))
        # Ctrl-C reaches everybody in the foreground; only the exchange decides what ends. A handler, unlike SIG_IGN,
        # is not inherited by what we start.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        reader, writer = socket.socketpair()
        for end in (reader, writer, self._control):
            end.setblocking(False)
        signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
        self._selector.register(reader, selectors.EVENT_READ, partial(self._read_signals, reader))
        self._selector.register(self._control, selectors.EVENT_READ, self._read_control)
        # The end of the socket tells that the exchange is gone; this tells it too when a child of the exchange
        # inherited the other end. The loop looks at who its parent is.
        processes.signal_on_parent_death(signal.SIGTERM)

    def _wait_s(self) -> float | None:
        times = [at for run in self._runs.values() for at in (run.kill_at, run.read_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _read_signals(self, reader: socket.socket) -> None:
        reader.recv(4096)
        self._is_stirred = True

    # --- the exchange -------------------------------------------------------------------------------------------------

    def _read_control(self) -> None:
        if self._unsent:
            self._send()
        try:
            data = self._control.recv(READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._leave()
            return
        self._received += data
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        run = self._runs.get(command["run_id"])
        if command["do"] == "launch":
            try:
                self._launch(command)
            except LaunchError as problem:
                self._report("failed", command["run_id"], reason=str(problem))
            except OSError as problem:
                self._report("failed", command["run_id"], reason=f"cannot be started: {problem.strerror}")
        elif run is None:
            return  # It ended while the command was on its way; the exchange will have read that by now.
        elif command["do"] == "stop":
            self._end(run, command["grace_s"])
        elif run.gate is not None:
            run.gate.send(GO)

    def _report(self, kind: str, run_id: str, **fields: object) -> None:
        self._unsent += json.dumps({"report": kind, "run_id": run_id, **fields}).encode() + b"\n"
        self._send()

    def _send(self) -> None:
        if self._is_leaving:
            return
        try:
            del self._unsent[: self._control.send(self._unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._leave()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._control, events, self._read_control)

    def _leave(self) -> None:
        if self._is_leaving:
            return
        self._is_leaving = True
        self._selector.unregister(self._control)
        for run in list(self._runs.values()):
            self._end(run, SHORT_GRACE_S)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _launch(self, command: dict[str, Any]) -> None:
        env: dict[str, str] = command["env"]
        program = find_program(command["argv"][0], command["cwd"], env.get("PATH", os.defpath))
        log = RunLog(command["log"], command["max_log_bytes"], self._mask, env["OPENSENTIENCE_SESSION_TOKEN"])
        gate, child_gate = socket.socketpair()
        pipe, child_pipe = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            log.close()
            gate.close()
            os.close(pipe)
            raise
        else:
            if pid == 0:
                become(command, program, child_gate.fileno(), child_pipe, self._pid, self._open_files)
        finally:
            child_gate.close()
            os.close(child_pipe)
        gate.setblocking(False)
        os.set_blocking(pipe, False)
        run = Run(command["run_id"], pid, program, gate, pipe, log)
        self._runs[run.run_id] = run
        self._selector.register(gate, selectors.EVENT_READ, partial(self._read_gate, run))
        self._selector.register(pipe, selectors.EVENT_READ, partial(self._read_output, run))

    def _read_gate(self, run: Run) -> None:
        """The child is ready, could not go on (a number of ``errno``), or its end closed: it runs its command."""
        assert run.gate is not None
        try:
            said = run.gate.recv(64)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        if said == READY:
            run.is_ready = True
            self._report("launched", run.run_id, pid=run.pid, start_time=run.start_time)
            return
        if said:
            run.reason = why_not_run(run.program, int(said))
        self._selector.unregister(run.gate)
        run.gate.close()
        run.gate = None

    # --- logs ---------------------------------------------------------------------------------------------------------

    def _read_output(self, run: Run) -> None:
        assert run.pipe is not None
        data = os.read(run.pipe, READ_BYTES)
        if data:
            run.log.feed(data)
        if len(data) == READ_BYTES:
            self._selector.unregister(run.pipe)
            run.read_at = time.monotonic() + FLOOD_PAUSE_S
        elif not data:
            self._close_pipe(run)

    def _resume_reading(self, now: float) -> None:
        for run in self._runs.values():
            if run.read_at is not None and run.read_at <= now and run.pipe is not None:
                run.read_at = None
                self._selector.register(run.pipe, selectors.EVENT_READ, partial(self._read_output, run))

    def _read_rest(self, run: Run) -> None:
        for _ in range(LAST_READS):
            if run.pipe is None:
                return
            try:
                data = os.read(run.pipe, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            run.log.feed(data)
        self._close_pipe(run)

    def _close_pipe(self, run: Run) -> None:
        if run.pipe is not None:
            if run.read_at is None:
                self._selector.unregister(run.pipe)
            os.close(run.pipe)
            run.pipe = run.read_at = None

    # --- ending -------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take the exit codes of our children: first processes of runs, and orphans we adopted."""
        by_pid = {run.pid: run for run in self._runs.values() if run.code is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            run = by_pid.get(pid)
            if run is not None:
                run.code = os.waitstatus_to_exitcode(status)
                self._end(run, SHORT_GRACE_S)

    def _end(self, run: Run, grace_s: float) -> None:
        """Ask everything of a run to end; ``_press`` sees to it."""
        deadline = time.monotonic() + grace_s
        self._is_stirred = True
        if run.kill_at is not None:
            # Asked before. A shorter grace wins; what is left when the first process is gone has the rest of its time.
            run.kill_at = min(run.kill_at, deadline)
            return
        run.kill_at = deadline
        self._signal(run, self._living(), signal.SIGTERM)

    def _press(self, now: float) -> None:
        """Move every run that is being ended on: gone, or SIGKILL when its time is over."""
        ending = [run for run in self._runs.values() if run.kill_at is not None]
        if not ending or not (self._is_stirred or any(run.kill_at <= now for run in ending if run.kill_at is not None)):
            return
        self._is_stirred = False
        living = self._living()
        for run in ending:
            assert run.kill_at is not None
            left = living.get(run.run_id, []) + living.get(None, [])
            if run.code is not None and not left:
                self._finish(run)
            elif run.killed_at is not None and now >= run.killed_at + KILL_WAIT_S:
                run.reason = f"process {', '.join(str(process.pid) for process in left)} does not end, not even by SIGKILL"
                self._finish(run)
            elif now >= run.kill_at:
                self._signal(run, living, signal.SIGKILL)
                run.killed_at = run.killed_at or now
                run.kill_at = now + KILL_AGAIN_S

    def _living(self) -> dict[str | None, list[Process]]:
        roots = {run.pid: Root(run.run_id, run.start_time) for run in self._runs.values()}
        return by_run(processes.table(), self._pid, roots, marked_run)

    def _signal(self, run: Run, living: Mapping[str | None, Iterable[Process]], number: signal.Signals) -> None:
        group = None
        if run.code is None and run.is_ready:
            # Not collected yet, so the number of its group is certainly its own; reaches also what is born just now.
            os.killpg(run.pid, number)
            group = run.pid
        for process in [*living.get(run.run_id, ()), *living.get(None, ())]:
            if process.pgid != group:
                processes.send_signal(process, number)

    def _finish(self, run: Run) -> None:
        if run.gate is not None:
            self._read_gate(run)
        if run.gate is not None:
            self._selector.unregister(run.gate)
            run.gate.close()
        self._read_rest(run)
        run.log.close()
        del self._runs[run.run_id]
        if run.is_ready:
            self._report("exited", run.run_id, code=run.code if run.code is not None else -signal.SIGKILL, reason=run.reason)
        else:
            self._report("failed", run.run_id, reason=run.reason or "ended before it could be started")

    def _end_strays(self) -> None:
        """Nobody is asked any more: the last thing the keeper does."""
        give_up_at = time.monotonic() + KILL_WAIT_S
        while time.monotonic() < give_up_at:
            self._collect()
            known = processes.table()
            left = [known[pid] for pid in processes.descendants(known, [self._pid]) if known[pid].is_alive]
            if not left:
                return
            for process in left:
                processes.send_signal(process, signal.SIGKILL)
            signal.sigtimedwait([signal.SIGCHLD], KILL_AGAIN_S)


def by_run(
    known: Mapping[int, Process],
    keeper: int,
    roots: Mapping[int, Root],
    marked: Callable[[int], str | None],
) -> dict[str | None, list[Process]]:
    """The living processes below the keeper, by the run they belong to.

    A process belongs to the run of its session. One that opened another session belongs where its parent does. If its
    parent ended, so that the keeper adopted it, the run is taken from its environment. One that hid even that is
    under None: it left its run in every way there is, and ends with the next run that ends.
    """

    def owner(process: Process) -> str | None:
        root = roots.get(process.pid)
        if root is not None and root.start_time == process.start_time:
            return root.run_id
        root = roots.get(process.sid)
        if root is not None and processes.in_session(process, known.get(process.sid), process.sid, root.start_time):
            return root.run_id
        parent = known.get(process.ppid)
        if parent is None or parent.pid == keeper:
            marker = marked(process.pid)
            return marker if any(root.run_id == marker for root in roots.values()) else None
        return owner(parent)

    found: dict[str | None, list[Process]] = {}
    for pid in processes.descendants(known, [keeper]):
        if known[pid].is_alive:
            found.setdefault(owner(known[pid]), []).append(known[pid])
    return found


def marked_run(pid: int) -> str | None:
    """The run that a process was started in, by its own account."""
    marker = processes.environment_of(pid).get(RUN_ID)
    return None if marker is None else marker.decode(errors="replace")


def find_program(name: str, cwd: str, path: str) -> str:
    """The file that a command's first word means; ``LaunchError`` when it cannot be run."""
    if not os.path.isdir(cwd):  # noqa: PTH112
        raise LaunchError(f"its folder {cwd} does not exist")
    if not os.access(cwd, os.X_OK):
        raise LaunchError(f"its folder {cwd} may not be entered")
    folders = [""] if "/" in name else [folder for folder in path.split(":") if folder]
    candidates = [os.path.join(cwd, folder, name) for folder in folders]  # noqa: PTH118
    files = [candidate for candidate in candidates if os.path.isfile(candidate)]  # noqa: PTH113
    for file in files:
        if os.access(file, os.X_OK):
            return file
    if files:
        raise LaunchError(f"{files[0]} is not executable: chmod +x it, or name its interpreter in `command`")
    if "/" in name:
        raise LaunchError(f"the command {candidates[0]} does not exist")
    raise LaunchError(f"the command {name!r} is not in PATH: install it, or give its full path in `command`")


def why_not_run(program: str, number: int) -> str:
    """A text for what ``execve`` said."""
    if number == errno.ENOENT:
        return f"{program} cannot be run: the interpreter named in its first line does not exist"
    if number == errno.ENOEXEC:
        return f"{program} cannot be run: not a program for this machine, nor a script that starts with #!"
    return f"{program} cannot be run: {os.strerror(number)}"


def become(
    command: dict[str, Any], program: str, gate: int, pipe: int, keeper_pid: int, open_files: tuple[int, int]
) -> NoReturn:
    """In the child: prepare everything, say so, and run the command when the gate opens. Returns never."""
    try:
        os.setsid()
        processes.signal_on_parent_death(signal.SIGKILL)
        if os.getppid() != keeper_pid:
            os._exit(CANNOT_RUN)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(command["cwd"])
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(pipe, 1)
        os.dup2(pipe, 2)
        gate = os.dup2(gate, 3, inheritable=False)
        os.closerange(4, MAX_OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
        os.write(gate, READY)
        if os.read(gate, 1) == GO:
            os.execve(program, command["argv"], command["env"])  # noqa: S606
    except OSError as problem:
        os.write(gate, str(problem.errno).encode())
    finally:
        os._exit(CANNOT_RUN)


def lazy_mask(reference: str) -> Callable[[bytes], bytes]:
    """The function ``module:name``, imported when the first agent prints: its patterns may weigh more than the keeper."""
    module, _, name = reference.partition(":")
    found: list[Callable[[bytes], bytes]] = []

    def mask(data: bytes) -> bytes:
        if not found:
            found.append(getattr(importlib.import_module(module), name))
        return found[0](data)

    return mask


def main() -> None:
    """Started as ``python -m trunkline.host.keeper DESCRIPTOR EXCHANGE_PID MASK`` by ``keeper_link``."""
    descriptor, exchange_pid, reference = sys.argv[1:]
    Keeper(socket.socket(fileno=int(descriptor)), lazy_mask(reference), int(exchange_pid)).serve()


if __name__ == "__main__":
    main()

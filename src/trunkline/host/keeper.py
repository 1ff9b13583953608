"""The keeper: a small process of its own that is the parent of every launched agent, and outlives none of them.

It starts agents, ends them with everything below them, and copies what they print into their logs. It decides nothing:
when to start and stop is the supervisor's business, at the other end of a socket pair. One JSON object a line::

    {"do": "begin", "mask", "run_variable"}                         how to mask logs, how to know a run; first, once
    {"do": "launch", "run_id", "argv", "env", "secrets", "cwd", "log", "max_log_bytes", "isolation", "pipes"}
                                                                    fork, but do not run the command yet
    {"do": "go", "run_id"}                                          run it
    {"do": "stop", "run_id", "grace_s"}                             SIGTERM, and SIGKILL after the grace
    {"do": "remark", "run_id", "text"}                              a line of the exchange's own for its log

    {"report": "launched", "run_id", "pid", "start_time", "pipes"}  forked and ready to go
    {"report": "failed", "run_id", "reason"}                        could not be launched
    {"report": "exited", "run_id", "code", "reason"}                nothing of it is left

Between ``launched`` and ``go`` the exchange makes the run known, so an agent can never be faster than its own launch.

With ``pipes`` the exchange speaks with the program itself: the other ends of its stdin and stdout, in this order, leave
with the bytes of ``launched`` (SCM_RIGHTS), and the keeper has them no more; only stderr goes into its log. Descriptors
arrive in the order of their reports.

Bubblewrap is two processes above its agent, which end the agent at once when one of them ends: they are never asked to,
only killed. What an agent leaves in its sandbox ends with its first process.

Invariant: no process below the keeper outlives its run, and none outlives the exchange. An exception met with one run
ends that run alone. Only the standard library is imported: 13 MB resident, half of it shared with the exchange's own
interpreter.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final, NamedTuple

from trunkline.host import processes
from trunkline.host.launch import GO, MAX_OPEN_FILES, READY, LaunchError, Stdio, become, find_program, why_not_run
from trunkline.host.processes import Process
from trunkline.host.runlog import RunLog
from trunkline.tracing import refuse_tracing

# For what a run leaves behind when its first process ends by itself, and for everything when the exchange is gone.
SHORT_GRACE_S: Final = 1.0
# SIGKILL is sent again this often, to processes born meanwhile.
KILL_AGAIN_S: Final = 0.05
# A process that forks and ends at once is gone before the table of all processes is read, which takes 5 ms. For so long
# only our own children are looked at, 50 µs each: such a chain is one of them at any moment.
CHASE_S: Final = 0.02
# A process that SIGKILL does not end in this time hangs in the kernel (a dead network disk); nobody can wait for it.
KILL_WAIT_S: Final = 5.0

# What is taken from one agent in one turn: the size of a pipe.
READ_BYTES: Final = 65_536
# Then the agent is not read for so long: an agent that floods gets 3 MB/s, and the processor is left to the others.
READ_PAUSE_S: Final = 0.02
# Read at the end from what is still in the pipe; more can only come from a process we could not end.
LAST_READS: Final = 16
# Descriptors in one message; the kernel takes 253.
MAX_HANDED: Final = 64


class Root(NamedTuple):
    """The first process of a run: pid, group and session have the same number."""

    run_id: str
    start_time: int


class Run:
    """One launched agent: its first process, its pipe and its log."""

    def __init__(
        self, run_id: str, pid: int, program: str, gate: socket.socket, pipe: int, log: RunLog, *, is_wrapped: bool
    ) -> None:
        self.run_id = run_id
        # Its first process is bubblewrap, and so is that one's child.
        self.is_wrapped = is_wrapped
        self.pid = pid
        self.program = program
        process = processes.read(pid)
        assert process is not None, "a child that nobody has waited for yet is in the table"
        self.start_time = process.start_time
        self.gate: socket.socket | None = gate
        self.pipe: int | None = pipe
        # The exchange's ends of its stdin and stdout, until they are handed over.
        self.ends: tuple[int, ...] = ()
        self.log = log
        self.is_ready = False
        self.has_begun = False
        self.code: int | None = None
        self.reason = ""
        # Set once the run is being ended: whether SIGTERM was sent, when SIGKILL is due, and when it was first sent.
        self.is_asked = False
        self.kill_at: float | None = None
        self.killed_at: float | None = None
        # Set while its pipe is not read.
        self.read_at: float | None = None

    def is_wrapper(self, process: Process) -> bool:
        """Whether it is one of bubblewrap's two processes."""
        return self.is_wrapped and self.pid in {process.pid, process.ppid}


class Keeper:
    """The event loop of the keeper's process."""

    def __init__(self, control: socket.socket, exchange_pid: int) -> None:
        self._control = control
        self._mask: Callable[[bytes], bytes] = bytes
        self._run_variable = ""
        self._exchange_pid = exchange_pid
        self._pid = os.getpid()
        self._runs: dict[str, Run] = {}
        self._received = bytearray()
        self._unsent = bytearray()
        # Descriptors that leave with it, the oldest first.
        self._handed: list[int] = []
        self._is_leaving = False
        # Something happened that may have changed who lives below us.
        self._is_stirred = False
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve the exchange until it is gone, then end everything."""
        self._prepare()
        while True:
            # Before waiting: a parent that ends from here on sends a signal, which ends the wait.
            if os.getppid() != self._exchange_pid:
                self._leave()
            # After looking, not before: nothing would end the wait of a keeper that has left.
            if self._is_leaving and not self._runs:
                break
            for key, _ in self._selector.select(self._wait_s()):
                key.data()
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
            if not self._is_leaving:
                self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        if command["do"] == "begin":
            self._mask = lazy_mask(command["mask"])
            self._run_variable = command["run_variable"]
            return
        run = self._runs.get(command["run_id"])
        if command["do"] == "launch":
            try:
                self._launch(command)
            except LaunchError as problem:
                self._report("failed", command["run_id"], reason=str(problem))
            except OSError as problem:
                self._report("failed", command["run_id"], reason=f"cannot be started: {problem}")
            except Exception as problem:  # noqa: BLE001  (the boundary of a run)
                self._report("failed", command["run_id"], reason=_defect(problem))
        elif run is None:
            return  # It ended while the command was on its way, and the report of that is on its way back.
        elif command["do"] == "stop":
            self._end(run, command["grace_s"])
        elif command["do"] == "remark":
            self._guard(run, lambda run: run.log.remark(command["text"]))
        elif run.gate is not None:
            run.has_begun = True
            with suppress(ConnectionError):
                run.gate.send(GO)

    def _report(self, kind: str, run_id: str, **fields: object) -> None:
        self._unsent += json.dumps({"report": kind, "run_id": run_id, **fields}).encode() + b"\n"
        self._send()

    def _send(self) -> None:
        if self._is_leaving:
            return
        try:
            if self._handed:
                handed = self._handed[:MAX_HANDED]
                sent = socket.send_fds(self._control, [self._unsent], handed)
                del self._handed[: len(handed)]
                _close_all(handed)
            else:
                sent = self._control.send(self._unsent)
            del self._unsent[:sent]
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

    def _marked_run(self, pid: int) -> str | None:
        """The run that a process was started in, by its own account."""
        marker = processes.environment_of(pid).get(self._run_variable.encode())
        return None if marker is None else marker.decode(errors="replace")

    def _launch(self, command: dict[str, Any]) -> None:
        env: dict[str, str] = command["env"]
        isolation: dict[str, Any] | None = command.get("isolation")
        if isolation is not None:
            # Here and not in the child: all children share it.
            import trunkline.host.confined  # noqa: F401
        program = find_program(command["argv"], command["cwd"], env.get("PATH", os.defpath))
        log = RunLog(command["log"], command["max_log_bytes"], self._mask, command["secrets"])
        ends: list[int] = []
        with ExitStack() as undo, ExitStack() as childs:
            undo.callback(log.close)
            undo.callback(_close_all, ends)
            gate, child_gate = socket.socketpair()
            undo.callback(gate.close)
            childs.callback(child_gate.close)
            pipe, child_pipe = os.pipe()
            undo.callback(os.close, pipe)
            childs.callback(os.close, child_pipe)
            stdio = Stdio(None, child_pipe, child_pipe)
            if command.get("pipes"):
                stdin, end = os.pipe()
                childs.callback(os.close, stdin)
                ends.append(end)
                end, stdout = os.pipe()
                childs.callback(os.close, stdout)
                ends.append(end)
                stdio = Stdio(stdin, stdout, child_pipe)
            pid = os.fork()
            if pid == 0:
                become(command, program, child_gate.fileno(), stdio, self._pid, self._open_files)
            undo.pop_all()
        gate.setblocking(False)
        os.set_blocking(pipe, False)
        is_wrapped = isolation is not None and isolation["kind"] == "bubblewrap"
        run = Run(command["run_id"], pid, program, gate, pipe, log, is_wrapped=is_wrapped)
        run.ends = tuple(ends)
        self._runs[run.run_id] = run
        self._selector.register(gate, selectors.EVENT_READ, partial(self._guard, run, self._read_gate))
        self._selector.register(pipe, selectors.EVENT_READ, partial(self._guard, run, self._read_output))

    def _guard(self, run: Run, act: Callable[[Run], None]) -> None:
        """Do this with a run. What it raises ends the run: nobody would read its output any more."""
        try:
            act(run)
        except Exception as problem:  # noqa: BLE001  (the boundary of a run)
            run.reason = run.reason or _defect(problem)
            self._close_pipe(run)
            self._end(run, SHORT_GRACE_S)

    def _read_gate(self, run: Run) -> None:
        """The child is ready, could not go on (an ``errno``, or a text), or its end closed: it runs its command."""
        assert run.gate is not None
        try:
            said = run.gate.recv(256)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        if said == READY:
            run.is_ready = True
            self._handed += run.ends
            count, run.ends = len(run.ends), ()
            self._report("launched", run.run_id, pid=run.pid, start_time=run.start_time, pipes=count)
            return
        if said:
            text = said.decode(errors="replace").strip()
            run.reason = why_not_run(run.program, int(text)) if text.isdigit() else f"no isolation: {text}"
        self._selector.unregister(run.gate)
        run.gate.close()
        run.gate = None

    # --- logs ---------------------------------------------------------------------------------------------------------

    def _read_output(self, run: Run) -> None:
        assert run.pipe is not None
        try:
            data = os.read(run.pipe, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe(run)
            return
        self._selector.unregister(run.pipe)
        run.read_at = time.monotonic() + READ_PAUSE_S
        run.log.feed(data)

    def _resume_reading(self, now: float) -> None:
        for run in self._runs.values():
            if run.read_at is not None and run.read_at <= now and run.pipe is not None:
                run.read_at = None
                again = partial(self._guard, run, self._read_output)
                self._selector.register(run.pipe, selectors.EVENT_READ, again)

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

    def _collect(self) -> bool:
        """Take the exit codes of our children: first processes of runs, and orphans we adopted. Whether any live."""
        by_pid = {run.pid: run for run in self._runs.values() if run.code is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            run = by_pid.get(pid)
            if run is not None:
                run.code = exit_code(status, is_wrapped=run.is_wrapped)
                self._is_stirred = True
                if run.kill_at is None:
                    self._end(run, SHORT_GRACE_S)

    def _end(self, run: Run, grace_s: float) -> None:
        """Everything of a run is to end; ``_press`` sees to it. If that was said before, the shorter grace holds."""
        # A program that has not begun has nothing to finish.
        kill_at = time.monotonic() + (grace_s if run.has_begun else 0.0)
        run.kill_at = kill_at if run.kill_at is None else min(run.kill_at, kill_at)
        self._is_stirred = True

    def _press(self, now: float) -> None:
        """Move every run that is being ended on: SIGTERM, SIGKILL when its time is over, or gone."""
        ending = [(run, run.kill_at) for run in self._runs.values() if run.kill_at is not None]
        if not ending or not (self._is_stirred or any(kill_at <= now for _, kill_at in ending)):
            return
        self._is_stirred = False
        living = self._living()
        for run, kill_at in ending:
            left = living.get(run.run_id, []) + living.get(None, [])
            orphans = partial(self._is_orphan_of, run.run_id)
            # A chain of forks is easily missed in the table: only a look at our own children makes sure.
            if run.code is not None and not left and not self._chase(orphans):
                self._finish(run)
            elif run.killed_at is not None and now >= run.killed_at + KILL_WAIT_S:
                pids = ", ".join(str(process.pid) for process in left)
                run.reason = f"SIGKILL does not end it (process {pids})"
                self._finish(run)
            elif now >= kill_at:
                self._signal(run, left, signal.SIGKILL)
                self._chase(orphans)
                run.killed_at = run.killed_at or now
                run.kill_at = now + KILL_AGAIN_S
            elif not run.is_asked:
                asked = [process for process in left if not run.is_wrapper(process)]
                self._signal(run, asked, signal.SIGTERM)
                run.is_asked = True
                if run.is_wrapped and not asked and run.code is None:
                    # Its sandbox is still being set up: nothing has begun.
                    run.kill_at = now
                    self._is_stirred = True

    def _living(self) -> dict[str | None, list[Process]]:
        roots = {run.pid: Root(run.run_id, run.start_time) for run in self._runs.values()}
        return by_run(processes.table(), self._pid, roots, self._marked_run)

    def _signal(self, run: Run, left: Iterable[Process], number: signal.Signals) -> None:
        group = None
        if run.code is None and run.is_ready and (number is signal.SIGKILL or not run.is_wrapped):
            # Not collected yet, so the number of its group is certainly its own; reaches also what is born just now.
            group = run.pid
            with suppress(PermissionError):
                os.killpg(group, number)
        for process in left:
            if process.pgid != group:
                processes.send_signal(process, number)

    def _finish(self, run: Run) -> None:
        for act in (self._close_gate, self._read_rest, self._close_log):
            self._guard(run, act)
        del self._runs[run.run_id]
        if run.is_ready:
            code = -signal.SIGKILL if run.code is None else run.code
            self._report("exited", run.run_id, code=code, reason=run.reason)
        else:
            self._report("failed", run.run_id, reason=run.reason or "ended before it could be started")

    def _close_gate(self, run: Run) -> None:
        if run.gate is not None:
            self._read_gate(run)
        if run.gate is not None:
            self._selector.unregister(run.gate)
            run.gate.close()
        _close_all(run.ends)
        run.ends = ()

    def _close_log(self, run: Run) -> None:
        run.log.close()

    def _is_orphan_of(self, run_id: str, pid: int) -> bool:
        """Whether a child of ours is no first process, and belongs to this run or hides where it belongs."""
        if any(run.pid == pid for run in self._runs.values()):
            return False
        process = processes.read(pid)
        if process is None or not process.is_alive:
            # Not collected yet, and who knows what it started last: one more look.
            return True
        roots = {run.pid: Root(run.run_id, run.start_time) for run in self._runs.values()}
        return bool(by_run({pid: process}, self._pid, roots, self._marked_run).keys() & {run_id, None})

    def _chase(self, is_doomed: Callable[[int], bool]) -> bool:
        """SIGKILL to our own children faster than they can fork. Whether such a child is left."""
        until = time.monotonic() + CHASE_S
        while time.monotonic() < until:
            if not self._collect():
                return False
            doomed = [pid for pid in processes.child_pids(self._pid) if is_doomed(pid)]
            if not doomed:
                return False
            for pid in doomed:
                # Not collected yet, so the number is certainly its own.
                with suppress(PermissionError):
                    os.kill(pid, signal.SIGKILL)
        return True

    def _end_strays(self) -> None:
        """Nobody is asked any more: the last thing the keeper does. Whoever loses its parent becomes our child."""
        give_up_at = time.monotonic() + KILL_WAIT_S
        while self._chase(lambda _: True) and time.monotonic() < give_up_at:
            for key, _ in self._selector.select(KILL_AGAIN_S / 10):
                key.data()


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
    below = processes.children(known)
    run_ids = {root.run_id for root in roots.values()}
    found: dict[str | None, list[Process]] = {}

    def own_run(process: Process) -> str | None:
        root = roots.get(process.pid)
        if root is not None and root.start_time == process.start_time:
            return root.run_id
        root = roots.get(process.sid)
        if root is not None and processes.in_session(process, known.get(process.sid), process.sid, root.start_time):
            return root.run_id
        marker = marked(process.pid) if process.ppid == keeper else None
        return marker if marker in run_ids else None

    # From the top down, each with the run of its parent.
    waiting: list[tuple[Process, str | None]] = [(process, None) for process in below.get(keeper, ())]
    while waiting:
        process, inherited = waiting.pop()
        run_id = own_run(process) or inherited
        if process.is_alive:
            found.setdefault(run_id, []).append(process)
        waiting += [(child, run_id) for child in below.get(process.pid, ())]
    return found


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _defect(problem: Exception) -> str:
    """What the operator is told of a defect of ours: its kind, not its text, which may hold what was printed."""
    return f"a defect in the keeper: {type(problem).__name__}"


def exit_code(status: int, *, is_wrapped: bool) -> int:
    """An agent's exit code, or the negative number of the signal that ended it; bubblewrap says 128 + n for those."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if is_wrapped and 128 < code <= 128 + signal.SIGRTMAX else code


def lazy_mask(pickled: str) -> Callable[[bytes], bytes]:
    """The function that the exchange sent, loaded when the first agent prints: its patterns may outweigh the keeper."""
    found: list[Callable[[bytes], bytes]] = []

    def mask(data: bytes) -> bytes:
        if not found:
            import pickle

            found.append(pickle.loads(base64.b64decode(pickled)))  # noqa: S301  (from our own parent)
        return found[0](data)

    return mask


def main() -> None:
    """Started by ``keeper_link`` as ``python -m trunkline.host.keeper DESCRIPTOR EXCHANGE_PID``."""
    refuse_tracing()
    descriptor, exchange_pid = sys.argv[1:]
    Keeper(socket.socket(fileno=int(descriptor)), int(exchange_pid)).serve()


if __name__ == "__main__":
    main()

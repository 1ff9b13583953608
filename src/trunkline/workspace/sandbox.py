"""Commands in a sandbox: finding out which kind works on this machine, and running one command in it.

Owns the life of a command from its start to the end of its last process. What the command sees is in ``plan``, the
steps that give rights away are in ``launch``; whether it may run at all is ``policy``'s to say, before.

Invariant: when ``run`` returns, or is cancelled, nothing that the command started is alive. If the exchange is killed,
the kernel ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import marshal
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec import Struct

from trunkline.errors import WorkspaceError
from trunkline.workspace import tree
from trunkline.workspace.cgroups import ControlGroup, make_group
from trunkline.workspace.folder import Quota, Workspace
from trunkline.workspace.output import Capture, Output
from trunkline.workspace.paths import check_cwd, open_folder, system_calls
from trunkline.workspace.plan import bubblewrap_plan, landlock_plan
from trunkline.workspace.policy import PRESETS, VARIABLE, SpacePolicy
from trunkline.workspace.seccomp import is_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_TIMEOUT_MS: Final = 30_000
# Between the polite signal and the other one.
GRACE_S: Final = 2.0
# Processes that were killed are gone within this, unless the kernel is stuck; then we go on and say so.
GONE_S: Final = 10.0
# How often a running command is looked at. A look costs some 10 µs; the workspace is counted only if the disk changed.
WATCH_S: Final = 0.25
# A count of the workspace takes this part of the time at most.
COUNT_SHARE: Final = 0.1
# A workspace that is full may still run a command that tidies it up, as long as it does not grow further than this.
TIDY_ROOM: Final = 1.25

# What the disk says may hide that somebody else freed what a command wrote: so often it is counted anyway.
RECOUNT_S: Final = 10.0
# The kernel takes 131,072 bytes for one argument.
MAX_COMMAND_BYTES: Final = 120_000
MAX_VARIABLE_BYTES: Final = 65_536

EXIT_TIMED_OUT: Final = 124
# The first that keeps signals and abstract sockets inside (Linux 6.12).
LANDLOCK_VERSION: Final = 6
# Compiled once and handed over, as a script would be compiled anew for each command.
LAUNCH: Final = marshal.dumps(compile(Path(__file__).with_name("launch.py").read_bytes(), "launch.py", "exec"))
LOAD: Final = "import marshal, sys; exec(marshal.load(sys.stdin.buffer))"
# Beside the status pipe a start has 8 open at once with asyncio and 10 with uvloop, which loses those it has if it gets
# no more.
START_DESCRIPTORS: Final = 14
ADVICE: Final = "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap)"

Stream = Literal["stdout", "stderr"]


class CommandResult(Struct, frozen=True):
    """How a command ended. ``ended_by`` is None if it did so itself, else ``timeout``, ``memory`` or ``disk``."""

    exit_code: int
    timed_out: bool
    ended_by: str | None
    stdout: Output
    stderr: Output
    duration_ms: int


class Sandbox(Struct, frozen=True):
    """The kind of sandbox that ``probe`` saw to hold here. ``program`` is bubblewrap's path, or empty for Landlock."""

    kind: Literal["bubblewrap", "landlock"]
    program: str = ""

    async def run(
        self,
        workspace: Workspace,
        command: str,
        *,
        policy: SpacePolicy,
        cwd: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        env: Mapping[str, str] | None = None,
        on_output: Callable[[Stream, str], None] | None = None,
    ) -> CommandResult:
        """Run ``/bin/sh -c command``. One at a time for each workspace; others wait."""
        _check(command, env or {})
        names = check_cwd(cwd) if cwd is not None else ()
        with system_calls():
            async with workspace.turn:
                _check_folder(workspace, names)
                plan = (
                    bubblewrap_plan(self.program, workspace, policy, command, names, env or {})
                    if self.kind == "bubblewrap"
                    else landlock_plan(workspace, policy, command, names, env or {})
                )
                group = make_group(policy.limits.memory_bytes, policy.limits.processes)
                plan["groups"] = group.entrances if group else []
                running = _Running(plan, on_output)
                try:
                    return await running.to_end(workspace, policy, timeout_ms / 1000, watch_memory=group is None)
                finally:
                    await _remove(group)


def _check_folder(workspace: Workspace, names: tuple[str, ...]) -> None:
    """Where a command is to start is there, and no link leads to it; an error says that it is about ``cwd``."""
    try:
        with workspace.acting(), open_folder(workspace.fd, names):
            pass
    except WorkspaceError as error:
        raise WorkspaceError(error.kind, f"cwd {'/'.join(names)}: {error.message}") from None


def _check(command: str, env: Mapping[str, str]) -> None:
    """What the kernel, or bubblewrap's list of options, would cut or misread."""
    for what, text, limit in (
        ("command", command, MAX_COMMAND_BYTES),
        *((f"env.{key}", f"{key}={value}", MAX_VARIABLE_BYTES) for key, value in env.items()),
    ):
        if "\0" in text:
            raise WorkspaceError("validation", f"{what} must not contain a null byte")
        if len(text.encode(errors="replace")) > limit:
            raise WorkspaceError("validation", f"{what} is longer than {limit} bytes")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise WorkspaceError("validation", f"{what} is not valid Unicode")
    for key in env:
        if not VARIABLE.fullmatch(key):
            raise WorkspaceError("validation", f"env: '{key}' is not a name of a variable")


class _Running(asyncio.SubprocessProtocol):
    """One command in its sandbox, from its start to its end."""

    def __init__(self, plan: dict[str, Any], on_output: Callable[[Stream, str], None] | None) -> None:
        self.plan = plan
        self.on_output = on_output
        self.captures: dict[int, tuple[Stream, Capture]] = {1: ("stdout", Capture()), 2: ("stderr", Capture())}
        self.status = b""
        self.status_fd = -1
        self.first: int | None = None  # the process below which, or in whose namespace, all others are
        self.first_fd = -1
        self.ended_by: str | None = None
        self.stopped = asyncio.Event()  # it ended, or has to
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()  # it ended, and all that was printed is here

    # --- what the event loop tells us

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        stream, capture = self.captures[fd]
        text = capture.take(data)
        if text and self.on_output is not None:
            self.on_output(stream, text)

    def process_exited(self) -> None:
        self.exited.set()
        self.stopped.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.closed.set()

    def read_status(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if data := os.read(self.status_fd, 65_536):
                self.status += data
            else:
                asyncio.get_running_loop().remove_reader(self.status_fd)
        if self.first is None and (found := re.search(rb'"child-pid": (\d+)', self.status)):
            self.first = int(found.group(1))
            with contextlib.suppress(OSError):  # it may have ended already
                self.first_fd = os.pidfd_open(self.first)
                if not tree.is_first_of_namespace(self.first):  # and its number may be somebody else's by now
                    os.close(self.first_fd)
                    self.first_fd = -1

    # --- from start to end

    async def to_end(
        self, workspace: Workspace, policy: SpacePolicy, timeout_s: float, *, watch_memory: bool
    ) -> CommandResult:
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        transport = await self.start(loop)
        with system_calls(in_doubt=True):
            await self.wait_end(loop, transport, workspace, policy, timeout_s, watch_memory=watch_memory)
        return self.result(transport.get_returncode(), began)

    async def wait_end(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.SubprocessTransport,
        workspace: Workspace,
        policy: SpacePolicy,
        timeout_s: float,
        *,
        watch_memory: bool,
    ) -> None:
        """Until it ended by itself, or was ended; nothing of it is left then, whatever happens here."""
        loop.add_reader(self.status_fd, self.read_status)
        watching = asyncio.create_task(self.watch(workspace, policy, watch_memory=watch_memory))
        try:
            await asyncio.wait_for(self.stopped.wait(), timeout_s)
        except TimeoutError:
            self.ended_by = "timeout"
            await self.ask_to_end(transport)
        finally:
            try:
                await uninterrupted(self.end(transport, watching))
            finally:
                self.read_status()
                loop.remove_reader(self.status_fd)
                for fd in (self.status_fd, self.first_fd):
                    if fd >= 0:
                        os.close(fd)
                transport.close()
                workspace.ran_command()

    async def start(self, loop: asyncio.AbstractEventLoop) -> asyncio.SubprocessTransport:
        self.status_fd, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            check_descriptors(self.status_fd, START_DESCRIPTORS)
            self.plan["status_fd"] = theirs
            transport, _ = await loop.subprocess_exec(
                lambda: self, sys.executable, "-I", "-S", "-c", LOAD,
                stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd="/", env={}, pass_fds=(theirs,), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self.status_fd)
            raise
        finally:
            os.close(theirs)
        stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        stdin.write(LAUNCH + marshal.dumps(self.plan))
        stdin.close()
        return transport

    async def watch(self, workspace: Workspace, policy: SpacePolicy, *, watch_memory: bool) -> None:
        """End a command that fills the disk, or, where no control group bounds it, the memory."""
        try:
            await self._watch(workspace, policy, watch_memory=watch_memory)
        finally:
            # A command that nobody can watch any more does not go on.
            self.stopped.set()

    async def _watch(self, workspace: Workspace, policy: SpacePolicy, *, watch_memory: bool) -> None:
        quota = policy.quota
        room = Quota(int(quota.max_bytes * TIDY_ROOM), int(quota.max_files * TIDY_ROOM))
        counted_at, took = 0.0, 0.0
        free_before, _ = workspace.free_now()
        while not self.stopped.is_set():
            now = time.monotonic()
            if workspace.may_have_grown() or now - counted_at > RECOUNT_S:
                is_full = await asyncio.to_thread(self._is_full, workspace, room)
                counted_at = time.monotonic()
                took = counted_at - now
                if is_full or workspace.fills_disk(free_before):
                    self.end_for("disk")
            if watch_memory and self.first is not None:
                memory = await asyncio.to_thread(tree.memory_of, self.first)
                if memory > policy.limits.memory_bytes:
                    self.end_for("memory")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), max(WATCH_S, took / COUNT_SHARE))

    def _is_full(self, workspace: Workspace, room: Quota) -> bool:
        """Whether the workspace, and what the command has open that stands in no folder, take more than this."""
        usage = workspace.usage(room)
        unlinked = 0 if self.first is None else tree.unlinked_bytes(self.first, workspace.device)
        return usage.over or usage.size + unlinked > room.max_bytes

    def end_for(self, reason: str) -> None:
        if not self.stopped.is_set():
            self.ended_by = reason
            self.stopped.set()

    async def ask_to_end(self, transport: asyncio.SubprocessTransport) -> None:
        """SIGTERM to all, and a moment to act on it."""
        if self.first is not None:
            tree.ask_to_end(self.first if self.plan["bubblewrap"] else transport.get_pid())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.exited.wait(), GRACE_S)

    async def end(self, transport: asyncio.SubprocessTransport, watching: asyncio.Task[None]) -> None:
        """Kill what is left, and wait until the kernel says that it is gone."""
        self.stopped.set()
        self.read_status()
        if self.plan["bubblewrap"]:
            if self.first_fd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.first_fd, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                transport.kill()
            # The first process of a pid namespace is not reported as ended before all others in it are.
            await _wait_readable(self.first_fd, GONE_S)
            _reap(self.first_fd)
        else:
            # Our launcher kills the group and waits for it; killed itself, it could not.
            with contextlib.suppress(ProcessLookupError):
                transport.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.closed.wait(), GONE_S)
        await watching

    def result(self, returncode: int | None, began: float) -> CommandResult:
        if b"launch: " in self.status or (b'"child-pid"' not in self.status and self.ended_by is None):
            error = WorkspaceError("execution", "The sandbox could not be set up, so the command was not run")
            error.add_note(self.status.decode(errors="replace") + self.captures[2][1].finish().text[:500])
            raise error
        if self.ended_by == "timeout":
            code = EXIT_TIMED_OUT
        elif self.ended_by is not None:
            code = 128 + signal.SIGKILL
        elif found := re.search(rb'"exit-code": (\d+)', self.status):
            code = int(found.group(1))
        else:  # the first process itself was killed, by the kernel for want of memory
            code = 128 - returncode if returncode is not None and returncode < 0 else returncode or 1
        return CommandResult(
            exit_code=code,
            timed_out=self.ended_by == "timeout",
            ended_by=self.ended_by,
            stdout=self.captures[1][1].finish(),
            stderr=self.captures[2][1].finish(),
            duration_ms=round((time.monotonic() - began) * 1000),
        )


def check_descriptors(open_one: int, count: int) -> None:
    """``OSError`` unless so many more files can be opened now; ``open_one`` is any that is."""
    taken: list[int] = []
    try:
        for _ in range(count):
            taken += [os.dup(open_one)]
    finally:
        for descriptor in taken:
            os.close(descriptor)


async def _wait_readable(fd: int, timeout_s: float) -> None:
    if fd < 0:
        return
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(readable.wait(), timeout_s)
    finally:
        loop.remove_reader(fd)


def _reap(fd: int) -> None:
    """Take in the first process: bubblewrap ended before it, and in a container its next parent may be us."""
    if fd >= 0:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)


async def uninterrupted(waiting: Any) -> None:
    """Wait to the end even if we are cancelled meanwhile; the cancellation goes on afterwards."""
    task = asyncio.ensure_future(waiting)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _remove(group: ControlGroup | None) -> None:
    if group is not None and not group.try_remove():
        for exponent in range(10):  # the kernel lets go of a group a moment after its last process; 1 s in all
            await asyncio.sleep(0.001 * 2**exponent)
            if group.try_remove():
                return


# --- which one holds --------------------------------------------------------------------------------------------------


async def probe(kinds: tuple[str, ...] = ("bubblewrap", "landlock")) -> Sandbox:
    """The first sandbox that holds here, seen by trying. Where none does there must be no shell."""
    reasons: list[str] = []
    for kind in kinds:
        try:
            sandbox = _candidate(kind)
            await _try(sandbox)
        except WorkspaceError as error:
            notes = " ".join(getattr(error, "__notes__", ())).strip()
            reasons.append(f"{kind}: {error.message}" + (f" ({notes})" if notes else ""))
        else:
            return sandbox
    raise WorkspaceError(
        "execution", f"No sandbox holds on this machine, so there is no shell: {ADVICE}. Tried: {'; '.join(reasons)}"
    )


def _candidate(kind: str) -> Sandbox:
    machine = os.uname().machine
    if not is_known(machine):
        raise WorkspaceError("execution", f"no filter of system calls for {machine}")
    if kind == "landlock":
        if (version := landlock_version()) < LANDLOCK_VERSION:
            raise WorkspaceError("execution", f"the kernel has version {version}, {LANDLOCK_VERSION} is needed")
        return Sandbox("landlock")
    program = shutil.which("bwrap")
    if program is None:
        raise WorkspaceError("execution", "bwrap is not installed")
    return Sandbox("bubblewrap", program)


def landlock_version() -> int:
    """What the kernel knows of Landlock; 0 is nothing."""
    return max(0, int(ctypes.CDLL(None).syscall(444, None, 0, 1)))


# Each line that begins with `fault` is a hole. Appending nothing opens a file without changing it.
_TRIAL: Final = """
cat {outside}/secret 2>/dev/null && echo 'fault: it reads files outside'
(: >> {outside}/secret) 2>/dev/null && echo 'fault: it writes files outside'
(: >> /proc/sys/kernel/core_pattern) 2>/dev/null && echo 'fault: it writes kernel settings'
[ "$(id -u)" = 0 ] && echo 'fault: it is root'
kill -0 {exchange} 2>/dev/null && [ ! -d /proc/2 ] && echo 'fault: it reaches other processes'
[ -r /proc/net/dev ] && [ "$(wc -l < /proc/net/dev)" -gt 3 ] && echo 'fault: it has a network'
[ -d /proc/1 ] && [ "$(ls -d /proc/[0-9]* | wc -l)" -gt 9 ] && echo 'fault: it sees other processes'
: > here && echo finished
"""


def _plant(folder: Path) -> None:
    """A file that anybody on the machine could read and write, where the sandbox must not see it."""
    folder.chmod(0o755)
    secret = folder / "secret"
    secret.write_text("secret", encoding="ascii")
    secret.chmod(0o666)


async def _try(sandbox: Sandbox) -> None:
    with system_calls(), tempfile.TemporaryDirectory(prefix="trunkline-probe-") as name:
        folder = Path(name)
        _plant(folder)
        with Workspace.create(folder / "workspace") as workspace:
            trial = _TRIAL.format(outside=folder, exchange=os.getpid())
            ran = await sandbox.run(workspace, trial, policy=PRESETS["standard"], timeout_ms=10_000)
            here = folder / "workspace" / "here"
            faults = [line.removeprefix("fault: ") for line in ran.stdout.text.splitlines() if line != "finished"]
            if not here.is_file() or here.stat().st_uid != workspace.uid or not ran.stdout.text.endswith("finished\n"):
                faults.append(f"a trial ended with {ran.exit_code}: {ran.stderr.text[:200].strip()}")
        if faults:
            raise WorkspaceError("execution", "; ".join(faults))

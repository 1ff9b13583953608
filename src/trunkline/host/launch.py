"""From a command to a running program: finding its file, and what the forked child does before it becomes that program.

Owns the child's side of the gate: everything is prepared, the keeper is told, and the program runs when the gate opens.
Does not own what happens to it afterwards (``keeper``), nor the steps into its sandbox (``confined``). Only the
standard library is imported.

Invariant: the program starts with its own session, the default signals, an empty standard input unless it is given a
pipe, and no other descriptor of ours; and it is killed when the keeper dies.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from trunkline.host import processes

# A run keeps two descriptors open in the keeper, and 1,024 is a common soft limit. Agents get the exchange's own limit.
MAX_OPEN_FILES: Final = 65_536

# What a program sees of the exchange's own environment (decision 18).
PASSED_ON: Final = ("PATH", "HOME", "LANG", "TZ")

# Programs whose first argument is a file that they run, and the options of Python's that take nothing after them.
_INTERPRETER: Final = re.compile(r"(python|pypy)[0-9.]*|node|nodejs|bun|ruby|perl|php|lua|bash|dash|sh|zsh")
_PYTHON_FLAGS: Final = re.compile(r"-[bBdEiIOPqsSuvx]+")

READY: Final = b"+"
GO: Final = b"!"
# The exit code of shells for a command that cannot be run.
CANNOT_RUN: Final = 127


class Stdio(NamedTuple):
    """The descriptors that become a program's standard input (None: there is nothing to read), output and error."""

    stdin: int | None
    stdout: int
    stderr: int


class LaunchError(Exception):
    """An agent that cannot be started; the text names the reason for the operator."""


def passed_on(own: Mapping[str, str], *, is_ours: bool = True) -> dict[str, str]:
    """What every program finds in its environment; ``own`` is that of the exchange.

    The folder of our own interpreter comes first on PATH, so that a bare ``python`` is the one that has trunkline
    installed, also when the exchange was started by the full path of a virtual environment. A program that knows
    nothing of us (``is_ours`` False) has the PATH of whoever started the exchange: its ``python`` is his.
    """
    found = {name: own[name] for name in PASSED_ON if name in own}
    path = own.get("PATH", os.defpath)
    found["PATH"] = f"{os.path.dirname(sys.executable)}:{path}" if is_ours else path  # noqa: PTH120
    return found


def find_program(command: Sequence[str], cwd: str, path: str) -> str:
    """The file that a command's first word means; ``LaunchError`` when it cannot be run, or what it is to run is gone.

    An interpreter would start and say so in the agent's log, where nobody looks who was told that it started.
    """
    name = command[0]
    if not os.path.isdir(cwd):  # noqa: PTH112
        raise LaunchError(f"its folder {cwd} does not exist")
    if not os.access(cwd, os.X_OK):
        raise LaunchError(f"its folder {cwd} may not be entered")
    folders = [""] if "/" in name else [folder for folder in path.split(":") if folder]
    candidates = [os.path.join(cwd, folder, name) for folder in folders]  # noqa: PTH118
    files = [candidate for candidate in candidates if os.path.isfile(candidate)]  # noqa: PTH113
    for file in files:
        if os.access(file, os.X_OK):
            script = _script(command)
            if script and not os.path.exists(os.path.join(cwd, script)):  # noqa: PTH110, PTH118
                raise LaunchError(f"its script {os.path.normpath(os.path.join(cwd, script))} does not exist")  # noqa: PTH118
            return file
    if files:
        raise LaunchError(f"{files[0]} is not executable: chmod +x it, or name its interpreter in `command`")
    if "/" in name:
        raise LaunchError(f"the command {candidates[0]} does not exist")
    raise LaunchError(f"the command {name!r} is not in PATH: install it, or give its full path in `command`")


def _script(command: Sequence[str]) -> str:
    """The file that an interpreter is given to run; empty where another program is run, or it cannot be told."""
    name = command[0].rpartition("/")[2]
    if _INTERPRETER.fullmatch(name) is None:
        return ""
    for word in command[1:]:
        if not word.startswith("-"):
            return word
        if not name.startswith("py") or _PYTHON_FLAGS.fullmatch(word) is None:
            return ""
    return ""


def why_not_run(program: str, number: int) -> str:
    """A text for what ``execve`` said."""
    if number == errno.ENOENT:
        return f"{program} cannot be run: the interpreter named in its first line does not exist"
    if number == errno.ENOEXEC:
        return f"{program} cannot be run: not a program for this machine, nor a script that starts with #!"
    return f"{program} cannot be run: {os.strerror(number)}"


def become(
    command: dict[str, Any], program: str, gate: int, stdio: Stdio, keeper_pid: int, open_files: tuple[int, int]
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
        os.dup2(os.open("/dev/null", os.O_RDONLY) if stdio.stdin is None else stdio.stdin, 0)
        os.dup2(stdio.stdout, 1)
        os.dup2(stdio.stderr, 2)
        gate = os.dup2(gate, 3, inheritable=False)
        os.closerange(4, MAX_OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
        os.write(gate, READY)
        if os.read(gate, 1) == GO:
            if command.get("isolation") is not None:
                from trunkline.host.confined import run_confined  # the keeper has loaded it

                run_confined(command["isolation"], program, command["argv"], command["env"], gate)
            os.execve(program, command["argv"], command["env"])  # noqa: S606
    except OSError as problem:
        os.write(gate, str(problem.errno).encode())
    finally:
        os._exit(CANNOT_RUN)

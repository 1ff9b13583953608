"""Reading the operating system's table of processes, and the few ``prctl`` calls that Python lacks.

Owns the parsing of ``/proc``; decides nothing. Only the standard library is imported, because the keeper lives on it.

Invariant: a pid alone never names a process. Whoever acts on one compares the start time, which tells it apart from a
later process with the same pid.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


class Process(NamedTuple):
    """One line of the process table. ``start_time`` counts clock ticks since boot."""

    pid: int
    state: str
    ppid: int
    pgid: int
    sid: int
    start_time: int

    @property
    def is_alive(self) -> bool:
        """Whether it can still do something; a zombie only waits to be collected."""
        return self.state not in "ZX"


def read(pid: int) -> Process | None:
    """The process with this pid, or None when there is none."""
    line = _content(f"/proc/{pid}/stat")
    if not line:
        return None
    # The name in brackets may itself hold blanks and brackets; the last one closes it.
    fields = line[line.rindex(b")") + 2 :].split()
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def table() -> dict[int, Process]:
    """All processes now. Those that come or go while it is read may be missing: look again before concluding."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {process.pid: process for process in found if process is not None}


def uid_of(pid: int) -> int | None:
    """The real user of a process."""
    for line in _content(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return None


def environment_of(pid: int) -> dict[bytes, bytes]:
    """The environment a process was started with; empty when it is gone or hides it."""
    pairs = (item.partition(b"=") for item in _content(f"/proc/{pid}/environ").split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def children(known: Mapping[int, Process]) -> dict[int, list[Process]]:
    """The processes by their parents' pids."""
    found: dict[int, list[Process]] = {}
    for process in known.values():
        found.setdefault(process.ppid, []).append(process)
    return found


def descendants(known: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """The pids below ``roots``, without the roots themselves unless one lies below another."""
    below = children(known)
    found: set[int] = set()
    parents = list(roots)
    while parents:
        new = [child.pid for child in below.get(parents.pop(), ()) if child.pid not in found]
        found.update(new)
        parents += new
    return found


def child_pids(pid: int) -> list[int]:
    """The children of a process with one thread, in 20 µs; from the whole table where the kernel has no such list."""
    path = f"/proc/{pid}/task/{pid}/children"
    line = _content(path)
    if line or os.path.exists(path):  # noqa: PTH110
        return [int(word) for word in line.split()]
    return [process.pid for process in children(table()).get(pid, ())]


def ancestors(known: Mapping[int, Process], pid: int) -> set[int]:
    """The pids above a process."""
    found: set[int] = set()
    process = known.get(pid)
    while process is not None and process.ppid not in found:
        found.add(process.ppid)
        process = known.get(process.ppid)
    return found


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this very process; nothing happens when it is gone, replaced, or belongs to another user."""
    current = read(process.pid)
    if current is None or current.start_time != process.start_time:
        return
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        # PermissionError: it became another user's (a setuid program), which we cannot end.
        return


def in_session(process: Process, leader: Process | None, root_pid: int, root_start_time: int) -> bool:
    """Whether ``process`` lives in the session that the process ``root`` opened.

    ``leader`` is who has the session's number as pid now. None is fine: the kernel gives a number to nobody else while
    a member of its session lives. Another start time means the number was reused.
    """
    if process.sid != root_pid or process.start_time < root_start_time:
        return False
    return leader is None or leader.start_time == root_start_time


def become_subreaper() -> None:
    """Processes below us whose parent ends become our children, not those of pid 1."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def signal_on_parent_death(number: signal.Signals) -> None:
    """Ask for this signal when the parent (more exactly: the thread that forked us) ends."""
    _prctl(PR_SET_PDEATHSIG, number)


def _content(path: str) -> bytes:
    """A file of ``/proc``; empty when its process is gone, or another user's."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  (the keeper does without pathlib: 0.5 MB)
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


_libc: Final = ctypes.CDLL(None, use_errno=True)

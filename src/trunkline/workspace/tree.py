"""The tree of processes below one: which they are, asking them to end, the memory they use.

Owns reading ``/proc`` for that. It is for courtesy (a signal before the kill) and for watching memory where there is no
control group; ending a tree for certain is the work of its namespace or its group.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All processes below this one, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = children.get(pid, [])
    for one in found:  # the list grows while it is read
        found.extend(children.get(one, []))
    return found


def parent_of(pid: int) -> int | None:
    """The parent of a process, or None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything, also a parenthesis.
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def ask_to_end(pid: int) -> None:
    """SIGTERM to all below this one, each held by a descriptor so that no other process with its number is hit."""
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            before = parent_of(one)
            fd = os.pidfd_open(one)
            try:
                if parent_of(one) == before:
                    signal.pidfd_send_signal(fd, signal.SIGTERM)
            finally:
                os.close(fd)


def memory_of(pid: int) -> int:
    """The resident bytes of this process and all below; shared pages count for each that has them."""
    pages = 0
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(OSError, IndexError):
            pages += int(Path(f"/proc/{one}/statm").read_bytes().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def unlinked_bytes(pid: int, device: int) -> int:
    """What files without a name take on this device that this process, or one below it, has open or mapped."""
    found: dict[int, int] = {}
    for one in (pid, *descendants(pid)):
        for kind in ("fd", "map_files"):
            # It may have ended meanwhile; what is mapped and not open is shown to root alone.
            with contextlib.suppress(OSError):
                for held in list(os.scandir(f"/proc/{one}/{kind}")):
                    with contextlib.suppress(OSError):
                        info = held.stat()
                        if info.st_nlink == 0 and info.st_dev == device:
                            found[info.st_ino] = info.st_blocks * 512
    return sum(found.values())


def is_first_of_namespace(pid: int) -> bool:
    """Whether this is process 1 of some pid namespace below ours."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"

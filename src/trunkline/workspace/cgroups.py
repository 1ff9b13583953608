"""Control groups: the kernel's own bound on the memory and the number of processes of one command.

Owns making, joining and removing them, in version 1 and 2. Where we may not make any (not root, nothing delegated),
``make_group`` gives None, and the limits of each process and a watch on their sum remain: see ``sandbox``.

Invariant: a group is made below the one the exchange is in, or beside it, and removed when its last process is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Final

from msgspec import Struct

_PREFIX: Final = "trunkline-"
_numbers = itertools.count(1)


class ControlGroup(Struct, frozen=True):
    """The control group of one command, which in version 1 is a folder for each kind of limit."""

    folders: tuple[Path, ...]

    @property
    def entrances(self) -> list[str]:
        """The files into which a process writes itself to join the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def try_remove(self) -> bool:
        """Whether it is gone; it cannot be while a process is in it."""
        for folder in self.folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def make_group(memory_bytes: int, processes: int) -> ControlGroup | None:
    """A group with these limits, or None where we may not."""
    name = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
    for limits in _places(memory_bytes, processes):
        group = ControlGroup(tuple(parent / name for parent in limits))
        try:
            for parent, values in limits.items():
                _sweep(parent)
                (parent / name).mkdir()
                for file, value in values.items():
                    (parent / name / file).write_text(value, encoding="ascii")
        except OSError:
            group.try_remove()
        else:
            return group
    return None


def _places(memory_bytes: int, processes: int) -> list[dict[Path, dict[str, str]]]:
    """Parents of a new group, best first, each with the files and values it takes."""
    mounts = _mounts()
    own = _own_groups()
    memory, pids = mounts.get("memory"), mounts.get("pids")
    if memory and pids:
        limits = {"memory.limit_in_bytes": str(memory_bytes)}
        return [{_below(memory, own["memory"]): limits, _below(pids, own["pids"]): {"pids.max": str(processes)}}]
    if "" not in mounts or "" not in own:
        return []
    values = {
        "memory.max": str(memory_bytes), "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": str(processes),
    }  # fmt: skip
    here = _below(mounts[""], own[""])
    # Version 2 wants no processes beside groups: our own is in the way unless it is the root, so beside us is next.
    return [{here: values}, {here.parent: values}] if here != mounts[""][0] else [{here: values}]


def _mounts() -> dict[str, tuple[Path, str]]:
    """Where each kind of limit is mounted, and which part of its tree; the kind of version 2 is the empty string."""
    found: dict[str, tuple[Path, str]] = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        root, place = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            found.setdefault("", (Path(place), root))
        elif kind == "cgroup":
            for option in options.split(","):
                if option in {"memory", "pids"}:
                    found[option] = (Path(place), root)
    return found


def _own_groups() -> dict[str, str]:
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, kinds, path = line.split(":", 2)
        own |= dict.fromkeys(kinds.split(","), path)
    return own


def _below(mount: tuple[Path, str], path: str) -> Path:
    place, root = mount
    return place / path.removeprefix(root.rstrip("/")).lstrip("/")


def _sweep(parent: Path) -> None:
    """Remove what an exchange that was killed left behind."""
    for folder in parent.glob(f"{_PREFIX}*"):
        maker = folder.name.removeprefix(_PREFIX).split("-", 1)[0]
        if maker.isdigit() and not Path("/proc", maker).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()

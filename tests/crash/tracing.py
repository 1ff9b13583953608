"""The exchange under ``strace``: what it asked of the kernel, in order, and system calls that fail on demand.

``strace`` sees the order across processes as the kernel does, so it can tell whether a byte left before a sync had
returned. It is there wherever ``make test`` runs: that target installs it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.running import wait_until

# What may write to a socket or a file, and what makes a file's content last.
TRACED = "fdatasync,fsync,pwrite64,sendto,sendmsg,write,writev"
# Of each buffer; longer than any write of the tests.
SHOWN_BYTES = 200_000

# Small process numbers are padded.
_CALL = re.compile(r"(\d+) +(\w+)\((\d+)(?:<([^>]*)>)?(.*)")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_RESULT = re.compile(r".*\) += (-?\d+)(.*)")


class Event(NamedTuple):
    """The beginning or the end of a system call. ``data`` is what follows the descriptor, as strace shows it."""

    process: int
    call: str
    begins: bool
    ends: bool
    file: str
    data: str
    result: int | None


def strace(log: Path, *inject: str) -> tuple[str, ...]:
    """The command before the command. ``inject`` as in ``strace -e inject=``."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is missing; `make test` installs it where it may (apt-get install strace)")
    command = [found, "-D", "-f", "--seccomp-bpf", "-qq", "-y", "-s", str(SHOWN_BYTES), "-o", str(log)]
    return (*command, "-e", f"trace={TRACED}", *(word for rule in inject for word in ("-e", f"inject={rule}")))


def tracer_of(process: int) -> int:
    """The process that looks on. It ends when nobody is left to trace, and has written everything down by then."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    tracer = int(status.partition("TracerPid:")[2].split()[0])
    assert tracer, "nobody traces it"
    return tracer


def wait_traced(tracer: int) -> None:
    """Until the trace is complete."""
    # A process that had just been started when its parent ended sees that once it runs, and tracing makes that slow.
    wait_until(lambda: not _is_tracer(tracer), "the tracer is done", timeout_s=60)


def _is_tracer(process: int) -> bool:
    # Numbers of processes come again soon, where there are only 32,768.
    try:
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip() == "strace"
    except (FileNotFoundError, ProcessLookupError):
        return False


def events(log: Path) -> Iterator[Event]:
    """All system calls in order, each as one event, or as two if something happened in between."""
    unfinished: dict[tuple[int, str], str] = {}
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if match := _CALL.match(line):
                process, call, _, file, rest = match.groups()
                if rest.endswith("<unfinished ...>"):
                    unfinished[int(process), call] = file or ""
                    yield Event(int(process), call, True, False, file or "", rest, None)
                else:
                    yield Event(int(process), call, True, True, file or "", rest, _result(rest))
            elif match := _RESUMED.match(line):
                process, call, rest = match.groups()
                file = unfinished.pop((int(process), call), "")
                yield Event(int(process), call, False, True, file, "", _result(rest))


def _result(rest: str) -> int | None:
    # From the end: what was written may hold anything.
    match = _RESULT.match(rest[-200:])
    return int(match[1]) if match else None

"""Runs of programs by name, and the files that their logs are kept in.

Owns the form of a run's name, how many logs are kept, and reading their ends. Does not own what is in a log
(``runlog``).
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from trunkline.model import AGENT_ID

# Logs of earlier runs that are kept for each program: enough to see how a crash loop began.
KEPT_LOGS: Final = 20
# Of each log, for whoever looks at the last lines: reading it takes 1 ms.
MAX_TAIL_BYTES: Final = 1_048_576
# Of the log of a run that ended soon, to tell why.
LAST_WORDS_BYTES: Final = 8192


def new_run_id(wall: float) -> str:
    """A name for a run that sorts by time."""
    return f"{int(wall * 1000):012x}-{secrets.token_hex(4)}"


def forget_old_logs(folder: Path) -> None:
    """Make room for one more log."""
    for log in sorted(folder.glob("*.log"))[: -(KEPT_LOGS - 1)]:
        log.unlink(missing_ok=True)


def last_words(folder: Path, run_id: str) -> str:
    """The end of what one run printed; empty if it has no log."""
    try:
        with (folder / f"{run_id}.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(logs: Path, program: str, count: int) -> list[str] | None:
    """The last lines that a program printed, through all its runs; None if it has no log."""
    if AGENT_ID.fullmatch(program) is None:
        return None
    runs = sorted((logs / program).glob("*.log"))
    if not runs:
        return None
    found: list[str] = []
    while runs and len(found) < count:
        found = [*_tail(runs.pop()), *found]
    return found[-count:]


def _tail(run: Path) -> list[str]:
    try:
        with run.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_TAIL_BYTES))
            data = file.read(MAX_TAIL_BYTES)
    except OSError:
        return []
    return data[: data.rfind(b"\n") + 1].decode(errors="backslashreplace").split("\n")[:-1]

"""Runs of programs by name, and the files that their logs are kept in.

Owns the form of a run's name and how many logs are kept. Does not own what is in a log (``runlog``).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

# Logs of earlier runs that are kept for each program: enough to see how a crash loop began.
KEPT_LOGS: Final = 20


def new_run_id(wall: float) -> str:
    """A name for a run that sorts by time."""
    return f"{int(wall * 1000):012x}-{secrets.token_hex(4)}"


def forget_old_logs(folder: Path) -> None:
    """Make room for one more log."""
    for log in sorted(folder.glob("*.log"))[: -(KEPT_LOGS - 1)]:
        log.unlink(missing_ok=True)

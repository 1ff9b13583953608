"""Outputs too large for one message, kept as files below the home folder; the caller gets a reference (OS-153).

Owns the files of one agent and deletes the oldest. A result that was worked for is not lost because of its size.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from trunkline.model import MAX_OUTPUT_BYTES

# The newest are kept: enough for whoever asked to come and read, little enough to forget about (64 x 64 MiB at worst).
KEPT_FILES: Final = 64


class OutputFiles:
    """The results in the folder ``<home>/outputs/<agent_id>``, which is made when the first one needs it."""

    def __init__(self, home: Path, agent_id: str) -> None:
        self._folder = home / "outputs" / agent_id

    def try_keep(self, call_id: str, output: bytes) -> dict[str, object] | None:
        """Write an output and return ``{"$file", "bytes", "sha256"}``; None when it is too large even for a file."""
        if len(output) > MAX_OUTPUT_BYTES:
            return None
        digest = hashlib.sha256(output).hexdigest()
        # Named by hash: a call id comes from outside and is no file name.
        path = self._folder / f"{hashlib.sha256(call_id.encode()).hexdigest()[:32]}.json"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(output)
        self._forget_oldest()
        return {"$file": str(path), "bytes": len(output), "sha256": digest}

    def _forget_oldest(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        for file in files[:-KEPT_FILES]:
            file.unlink(missing_ok=True)

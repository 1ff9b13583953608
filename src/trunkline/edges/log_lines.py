"""What the libraries behind the web listener may write into the log: few lines, and nothing of what a peer sent.

Invariant: nobody can fill the log by what he sends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from trunkline.errors import where_raised

# Of what uvicorn has to say. The defects themselves are counted, and on record.
LOG_LINES_A_MINUTE: Final = 20


def without_text(record: logging.LogRecord) -> bool:
    """Log where a defect of ours is, without the exception's text: that may hold a payload."""
    if record.exc_info and record.exc_info[1] is not None:
        if isinstance(record.exc_info[1], asyncio.CancelledError):
            return False  # the exchange has ended before the answer
        error = record.exc_info[1]
        record.msg, record.args = "a request failed: %s at %s", (type(error).__name__, where_raised(error))
        record.exc_info = record.exc_text = None
    return True


class FewLines(logging.Filter):
    """Lets only so many lines of a minute into the log: a peer that finds a defect could fill the disk with it."""

    def __init__(self) -> None:
        super().__init__()
        self._since = 0.0
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one is written."""
        if not 0 <= record.created - self._since < 60:
            self._since, self._count = record.created, 0
        self._count += 1
        return self._count <= LOG_LINES_A_MINUTE

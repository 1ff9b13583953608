"""What the exchange itself prints: lines of text, or one JSON object a line, from a level on (``[log]``).

Owns the two forms and where they go: stderr. What agents print is ``runlog``'s. Not everything that is printed is a
line of a log: what a person who looks on is told (``notice``) is plain where lines are text.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import sys
from typing import Final, TextIO

from trunkline import hints
from trunkline.config import Log
from trunkline.home import Home

log = logging.getLogger("trunkline")

TEXT: Final = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """One object a line: ``time`` (UTC, RFC 3339), ``level``, ``message``; ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class OwnHandler(logging.StreamHandler[TextIO]):
    """The one that ``set_up`` made, told from those of others. ``home`` has to be named in what readers type."""

    home = ""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with its hints completed."""
        return hints.completed(super().format(record), self.home)


def set_up(settings: Log, home: str = "") -> None:
    """Print from this level on, in this form; may be called again when the configuration was read again.

    ``home`` is named in what readers are told to type, where it is not the usual one.
    """
    root = logging.getLogger()
    for earlier in _own_handlers():
        root.removeHandler(earlier)
    handler = OwnHandler(sys.stderr)
    handler.home = home
    handler.setFormatter(JsonLines() if settings.format == "json" else logging.Formatter(TEXT))
    root.addHandler(handler)
    root.setLevel(settings.level.upper())


def _own_handlers() -> list[OwnHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, OwnHandler)]


def is_kept(home: Home) -> bool:
    """Whether what is printed goes into a log: the file of an exchange in the background, the journal, JSON lines."""
    if any(isinstance(handler.formatter, JsonLines) for handler in _own_handlers()):
        return True
    try:
        stderr = os.fstat(sys.stderr.fileno())
        if os.environ.get("JOURNAL_STREAM") == f"{stderr.st_dev}:{stderr.st_ino}":
            return True
        own = home.output_file.stat()
    except (OSError, ValueError):
        return False
    return (stderr.st_dev, stderr.st_ino) == (own.st_dev, own.st_ino)


def notice(text: str) -> None:
    """Tell the person who looks on, if the terminal is still there; where lines are JSON, as one of them."""
    if any(isinstance(handler.formatter, JsonLines) for handler in _own_handlers()):
        if text:
            log.info("%s", text.strip())
        return
    text = hints.completed(text, next((handler.home for handler in _own_handlers()), ""))
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

r"""What a person is shown: text that cannot lie, tables, times.

Owns the one function through which everything that came from somebody else passes before it reaches a screen. A
description, an error or a printed line may hold control characters, terminal commands, direction overrides or invisible
characters; each is shown as ``\uXXXX``, the way JSON writes it: the same function serves text and JSON, and escaped
JSON is the same value.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

import click

# Invisible characters that Python calls printable: fillers, variation selectors, the joiner, the empty Braille cell.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SUSPECT: Final = re.compile(r"[^ -~]")

STATUS_COLOURS: Final = {
    "succeeded": "green",
    "approved": "green",
    "available": "green",
    "ready": "green",
    "allow": "green",
    "queued": "cyan",
    "running": "cyan",
    "waiting_approval": "yellow",
    "suspended": "yellow",
    "ask": "yellow",
    "failed": "red",
    "denied": "red",
    "deny": "red",
    "unavailable": "red",
    "quarantined": "red",
    "unhealthy": "red",
    "lost": "red",
    "canceled": "magenta",
    "unknown": "magenta",
}


def printable(text: str, keep: str = "") -> str:
    r"""The text with every character that is not plainly visible written as ``\uXXXX``, except those to ``keep``."""

    def shown(match: re.Match[str]) -> str:
        char = match[0]
        if char in keep or (char.isprintable() and not _INVISIBLE.match(char)):
            return char
        code = ord(char)
        if code > 0xFFFF:  # as JSON writes it: two halves
            code -= 0x10000
            return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
        return f"\\u{code:04x}"

    return _SUSPECT.sub(shown, text)


def say(text: str = "") -> None:
    """One line on stdout. Its words are ours, or have been through ``printable``."""
    click.echo(text)


def note(text: str) -> None:
    """One line beside the output: on stderr."""
    click.echo(text, err=True)


def status_word(status: str) -> str:
    """A status in its colour; ``click.echo`` takes the colour away where nobody looks."""
    return click.style(printable(status), fg=STATUS_COLOURS.get(status))


def heading(text: str) -> str:
    """A line above others."""
    return click.style(printable(text), bold=True)


def near(name: str, known: Iterable[str]) -> list[str]:
    """The known names that are most like this one."""
    import difflib

    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)


def did_you_mean(names: Sequence[str]) -> str:
    """The end of a sentence about a name that does not exist."""
    return f"; did you mean {printable(' or '.join(names))}?" if names else ""


# --- tables -----------------------------------------------------------------------------------------------------------


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, status: int | None = None) -> None:
    """Aligned columns, ``status`` being the one with colours.

    On a terminal the last column is cut at the edge: one row stays one line. Elsewhere nothing is cut.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in (headers, *cells)) for i in range(len(headers))]
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(room, 10))
    for number, row in enumerate((headers, *cells)):
        padded = [_fit(cell, size) for cell, size in zip(row, widths, strict=True)]
        padded[-1] = padded[-1].rstrip()
        if number == 0:
            padded = [click.style(cell, bold=True) for cell in padded]
        elif status is not None:
            padded[status] = click.style(padded[status], fg=STATUS_COLOURS.get(row[status]))
        say("  ".join(padded).rstrip())


def width(text: str) -> int:
    """How many columns a text takes: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1
        for char in text
    )


def _fit(text: str, size: int) -> str:
    missing = size - width(text)
    if missing >= 0:
        return text + " " * missing
    while width(text) > size - 1:
        text = text[:-1]
    return text + "…"


# --- times ------------------------------------------------------------------------------------------------------------


def seconds_of(stamp: str) -> float:
    """An RFC 3339 time of the exchange, as seconds since 1970."""
    import datetime as dt

    return dt.datetime.fromisoformat(stamp).timestamp()


def clock(seconds: float) -> str:
    """A moment in local time: ``12:03:04``, with the day in front if it is not today."""
    moment, today = time.localtime(seconds), time.localtime()
    same_day = moment[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", moment)


def duration(seconds: float) -> str:
    """``7 ms``, ``1.3 s``, ``2 min 5 s``, ``3 h 20 min``, ``4 d 2 h``."""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {small_unit}"
    return f"{whole} s"

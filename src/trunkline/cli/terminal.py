r"""What a person is shown: text from others made harmless, tables, times, and the failure that ends a command.

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
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import click

from trunkline import hints
from trunkline.model import FAULTS

# Invisible characters that Python calls printable: fillers, variation selectors, the joiner, the empty Braille cell.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SUSPECT: Final = re.compile(r"[^ -~]")
# Columns of a table that are not made narrower than this.
_NARROWEST: Final = 10
# Before what stands below a row of a table.
_INDENT: Final = "    "
# Where ``--home`` is kept in Click's context, if it was given.
HOME_OPTION: Final = "trunkline.home"

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
    "crashed": "red",
    "backoff": "red",
    "signed-out": "yellow",
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
    click.echo(hinted(text), err=True)


class CommandFailed(Exception):
    """Raised to end a command that cannot do its work: ``code: message`` on stderr, and the fault's exit code.

    ``main`` shows it, for programs also as JSON. ``below`` is shown under the line, for people only.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        exit_code: int | None = None,
        line: str | None = None,
        below: str = "",
        retryable: bool = False,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code_of(code) if exit_code is None else exit_code
        # As in an answer of the HTTP API.
        self.error: dict[str, Any] = {
            "code": code,
            "message": message if code in hints.STRANGERS_WORDS else hinted(message),
            "retryable": retryable,
            "details": details or {},
        }
        # Completed here: when it is shown, nobody knows the command line any more.
        said = printable(f"{code}: {message}" if line is None else line)
        self._line = said if code in hints.STRANGERS_WORDS else hinted(said)
        self._below = below

    def about(self, name: str) -> CommandFailed:
        """The same, said of one of several."""
        error = self.error
        named = CommandFailed(str(error["code"]), f"{name}: {error['message']}", below=self._below)
        named.error, named.exit_code = {**error, "message": named.error["message"]}, self.exit_code
        return named

    def show(self) -> None:
        """Print it for a person."""
        note(self._line)
        if self._below:
            note(self._below)


def file_failure(file: object, why: str | None) -> CommandFailed:
    """A file that was named, and that cannot be read or written: the command line is right, the file is not."""
    return CommandFailed("file.unusable", f"{file}: {why}", exit_code=2, details={"file": str(file)})


def confirm(question: str, otherwise: str, details: dict[str, Any] | None = None) -> None:
    """Go on if a person says yes; where nobody can be asked, end the command with what it would have done.

    ``otherwise`` is that sentence, ``details`` the same for programs. Not a ``click.UsageError``: nothing is wrong with
    the command line, so nobody needs to be shown how it is written.
    """
    if not sys.stdin.isatty():
        raise CommandFailed("confirmation.required", f"{otherwise}; say --yes", exit_code=2, details=details)
    click.confirm(question, abort=True, err=True)


def exit_code_of(code: str) -> int:
    """What the table of faults says; a code that is not in it is a tool's own."""
    row = FAULTS.get(code)
    return 1 if row is None else row.exit_code


def status_word(status: str) -> str:
    """A status in its colour; ``click.echo`` takes the colour away where nobody looks."""
    return click.style(printable(status), fg=STATUS_COLOURS.get(status))


def heading(text: str) -> str:
    """A line above others, in bold."""
    return click.style(printable(text), bold=True)


def typed(words: str) -> str:
    """``trunkline WORDS`` as it has to be typed to mean this home: with ``--home`` where it was given."""
    return hints.command(words, _home_given())


def answers(approval_id: str) -> str:
    """The two commands that answer a question."""
    shown = printable(approval_id)
    return f"{typed(f'approve {shown}')}  or  {typed(f'deny {shown}')}"


def hinted(text: str) -> str:
    """A text in which each hint is as it has to be typed to mean this home."""
    return hints.completed(text, _home_given())


def _home_given() -> str | None:
    context = click.get_current_context(silent=True)
    home = None if context is None else context.meta.get(HOME_OPTION)
    return None if home is None else printable(home)


def near(name: str, known: Iterable[str], likeness: float = 0.5) -> list[str]:
    """The known names that are most like this one."""
    import difflib

    return difflib.get_close_matches(name, list(known), n=3, cutoff=likeness)


def did_you_mean(names: Sequence[str]) -> str:
    """The end of a sentence about a name that does not exist."""
    return f"; did you mean {printable(' or '.join(names))}?" if names else ""


# --- tables -----------------------------------------------------------------------------------------------------------


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    status: int | None = None,
    below: int = 0,
    keep: Collection[int] = (),
    spare: Sequence[int] = (),
    foreign: Collection[int] = (),
) -> None:
    """Aligned columns, ``status`` being the one with colours.

    Elsewhere than on a terminal nothing is cut. On one, where a row does not fit: the last ``below`` columns, which are
    to be read or copied as they are, go below their row; then ``spare`` columns are left out, in this order; then cells
    are cut, those of the last column first and then of the widest, but never in the columns to ``keep``; and where that
    is not enough, the last columns follow below their row, each cell with its heading, so that no line is wider than
    the terminal. What looks like a hint in a ``foreign`` column, whose words are others', stays as it is.
    """
    shown = ([(printable(one), place) for place, one in enumerate(row)] for row in rows)
    lines = [list(headers), *([one if place in foreign else hinted(one) for one, place in row] for row in shown)]
    columns = list(range(len(headers)))
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    under: list[int] = []
    labelled: list[int] = []
    room = 0
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns
        if below and _total([widths[column] for column in columns]) > room:
            columns, under = columns[:-below], columns[-below:]
        for column in spare:
            if column in columns and _total([widths[one] for one in columns]) > room:
                columns.remove(column)
        while len(columns) > 1 and _least(widths, columns, keep) > room:
            labelled.insert(0, columns.pop())
        _shrink(widths, columns, keep, room)
    for number, line in enumerate(lines):
        cells = [_fit(line[column], widths[column], from_end=True) for column in columns[:-1]]
        cells.append(_fit(line[columns[-1]], widths[columns[-1]]).rstrip())
        if number == 0:
            cells = [click.style(cell, bold=True) for cell in cells]
        elif status in columns:
            place = columns.index(status)
            cells[place] = click.style(cells[place], fg=_colour(line[columns[place]]))
        say("  ".join(cells).rstrip())
        if number:
            more = [f"{headers[column].strip().lower()} {line[column]}" for column in labelled if line[column]]
            for text in _below(more + [line[column] for column in under if line[column]], room):
                say(f"{_INDENT}{text}")


def _colour(status: str) -> str | None:
    # A command's exit code, where that is not 0.
    return "red" if status.startswith("ended with ") else STATUS_COLOURS.get(status)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _least(widths: Sequence[int], columns: Sequence[int], keep: Collection[int]) -> int:
    """How wide a row is when all is cut that may be."""
    return _total([widths[one] if one in keep else min(widths[one], _NARROWEST) for one in columns])


def _below(cells: Sequence[str], room: int) -> list[str]:
    """What goes below a row: on one line where it fits, else each cell on lines of its own."""
    if not cells:
        return []
    space = max(room - len(_INDENT), 1)
    together = "  ".join(cells)
    return [together] if width(together) <= space else [line for cell in cells for line in _wrapped(cell, space)]


def _wrapped(text: str, size: int) -> list[str]:
    """The text in lines of so many columns, parted between words; only a word that is wider than a line is broken."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if width(longer) <= size:
            lines[-1] = longer
            continue
        lines = lines if lines[-1] else lines[:-1]
        lines.append(word)
        while width(lines[-1]) > size:
            head = _beginning(lines[-1], size)
            lines[-1:] = [head, lines[-1][len(head) :]]
    return lines


def _beginning(text: str, size: int) -> str:
    """As many characters as fit; one at least."""
    end = min(len(text), size)
    while end > 1 and width(text[:end]) > size:
        end -= 1
    return text[:end]


def _shrink(widths: list[int], columns: Sequence[int], keep: Collection[int], room: int) -> None:
    """Make columns narrower until a row fits, as far as they stay readable; one that is alone, as far as it must."""
    if len(columns) == 1:
        widths[columns[0]] = min(widths[columns[0]], room)
        return
    too_much = _total([widths[column] for column in columns]) - room
    may_shrink = [column for column in columns if column not in keep]
    if columns[-1] in may_shrink and too_much > 0:
        last = widths[columns[-1]]
        widths[columns[-1]] = max(last - too_much, min(last, _NARROWEST))
        too_much -= last - widths[columns[-1]]
    while too_much > 0 and may_shrink:
        widest = max(may_shrink, key=lambda column: widths[column])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1
        too_much -= 1


def width(text: str) -> int:
    """How many columns a text takes: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1
        for char in text
    )


def brief(text: str, size: int) -> str:
    """The beginning of a text, in so many columns of one line."""
    return _fit(printable(" ".join(text.split())), size).rstrip()


def _fit(text: str, size: int, *, from_end: bool = False) -> str:
    """The text in so many columns. Of an id the end is kept (``from_end``): it tells it from others."""
    missing = size - width(text)
    if missing >= 0:
        return text + " " * missing
    while width(text) > size - 1:
        text = text[1:] if from_end else text[:-1]
    return f"…{text}" if from_end else f"{text}…"


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

"""What a line of shell consists of once it was read: words, commands, assignments. ``shell_grammar`` reads it.

Invariant: a word says no more than is certain of it before a shell expands it.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct


class NotUnderstood(Exception):
    """The text is not, or not certainly, what this grammar covers. Always caught: it becomes a question."""


class Kind(enum.Enum):
    """How much is known of a word before a shell expands it."""

    LITERAL = "literal"
    OPERAND = "operand"  # its beginning is known and is no dash: it cannot become an option
    UNKNOWN = "unknown"  # may expand to anything, also to several words


class Word(Struct, frozen=True):
    """One word after its quotes are taken off. ``text`` is all of a literal, and the known beginning of an operand.

    ``sources`` say what the rest is made of: the name of a variable (`1` and `@` too), ``NUMBER``, ``FILE_NAMES``, the
    beginning of a substitution (`$(find`), or ``ANYTHING``. ``several``: it may become more than one word. ``rest`` is
    what is written out after the first of them.
    """

    text: str
    kind: Kind = Kind.LITERAL
    sources: tuple[str, ...] = ()
    several: bool = False
    rest: str = ""


NUMBER: Final = "#"
FILE_NAMES: Final = "*"
ANYTHING: Final = ""


class Command(Struct, frozen=True):
    """One simple command as it is written.

    ``fed_by``: the command before it in the pipeline, if that only gives names of files. ``reads``: the file that its
    own ``<`` names.
    """

    words: tuple[Word, ...]
    fed_by: str = ""
    reads: str = ""


class Assignment(Struct, frozen=True):
    """A variable that a text gives a value: before a command, alone, in a loop, or while it is expanded."""

    name: str
    value: Word


class Script(Struct, frozen=True):
    """The simple commands of a text. ``plain``: in lists and pipelines, with nothing expanded but file names.

    ``numbers`` are variables that are used in arithmetic, which bash evaluates once more; ``functions`` the names that
    the text gives a meaning of its own; ``doubts`` what another shell may read in another way.
    """

    commands: tuple[Command, ...]
    plain: bool
    assignments: tuple[Assignment, ...] = ()
    numbers: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

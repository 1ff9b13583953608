"""Where the parts of a word come from that a shell fills in, and what can be told of them before it does.

Pure. ``shell_grammar`` notes a source for each such part; ``commands`` asks whether it can be anything. A file's name,
a number, the output of a command that only names files, and a variable that has a plain value are what ordinary work
is full of. Everything else is ``ANYTHING``.

Invariant: a source says no more than is certain, and what is said of a command's output holds only while the text does
not give that command's name another meaning.
"""

from __future__ import annotations

import re
from typing import Final

from trunkline.workspace.shell_words import ANYTHING, FILE_NAMES, NUMBER, Assignment, Command, Kind, NotUnderstood, Word

# Commands whose output is a name of a file, a number, a date or a revision, whatever plain words they are given.
_NAMING: Final = frozenset((
    "basename", "date", "dirname", "fd", "find", "git describe", "git ls-files", "git merge-base", "git rev-parse",
    "go list", "grep -l", "hostname", "id", "ls", "mktemp", "nproc", "pkg-config", "pwd", "realpath", "rg -l", "seq",
    "uname", "wc", "whoami",
))  # fmt: skip
_COUNTING: Final = frozenset({"nproc", "seq", "wc"})
# Variables that a shell sets to what it was given.
_SET_BY_THE_SHELL: Final = frozenset({ANYTHING, "@", "_", "OPTARG", "REPLY"})
# Filters that give on some of the lines that they are given.
_FILTERS: Final = frozenset({"sort", "uniq", "head", "tail", "grep", "tac"})

# Options with which such a command writes what it is given itself, or something else.
_WRITES_ITS_OWN: Final = re.compile(
    r"-+(f?printf|fprint|files0|exec|ok|label|format).*|-f?ls|-[A-Za-z]*[xXoc]|--(.*=.*)?", re.DOTALL
)
# The same in a substitution, and words of it that it would write as they are.
_WRITES_A_WORD: Final = re.compile(
    r"/-|printf|exec|-ok|label|format|[ \t]--[ \t]|seq[ ].*[A-Za-z]|rev-parse[ ].*(?<![\w-])-[A-Za-z]", re.DOTALL
)
# A substitution whose words are all written out, and nothing but words. Without `=` and quotes no option has a value.
_SUBSTITUTION: Final = re.compile(
    r"\(\s*((?:git (?:ls-files|rev-parse|merge-base|describe)|go list|(?:grep|rg) -[A-Za-z]*l|[\w-]+)(?![\w-]))"
    r"(?:[ \t](?:(?:[\w./@^~*{} \t-]|'[\w./*?-]*')*|\+%[A-Zs]))?(?:<[ ]*[\w./-]+)?[ ]*\)"
)
# A parameter and what is done with it, as far as every shell reads it alike: a name, a default, a part taken off.
_PARAMETER: Final = re.compile(
    r"#?(\w+|[@*#?$!-])|(\w+|[@*])(?::?[-=+?].*|[#%/^,].*|\[[@*\d]+\]|:\d+(?::\d+)?)", re.DOTALL
)
_PLAIN_DEFAULT: Final = re.compile(r"(\w+):?[-=+?](?:[\w./][\w./-]*)?|(\w+)%[^$`]*")
_PLAIN_VALUE: Final = re.compile(r"(?:[\w./:@%+,][\w./:@%+=,-]*)?")
_PLAIN_REST: Final = re.compile(r"[\w./:@%+,-]*")
_OPTION_AND_PATH: Final = re.compile(r"-[A-Za-z][^\n]*\n[/.].*")
_SHELL_TEXT: Final = re.compile(r"[;|&<>*?\[]")
_FOR_MAKE: Final = "a variable for make"
_PLAIN_NUMBER: Final = re.compile(r"(?:[+-]?[0-9][0-9A-Za-z#]*)?")


def substitution_at(text: str, at: int) -> str:
    """The source that the substitution is whose parenthesis stands here."""
    found = _SUBSTITUTION.match(text, at)
    if found is None or _WRITES_A_WORD.search(found.group()):
        return ANYTHING
    return "$(" + re.sub(r" -\w+", " -l", found.group(1))


def source_of(parameter: str) -> str:
    """What an expansion in braces is made of: a variable alone, also with a plain default or a part taken off."""
    if re.search(r"@[A-Za-z]$", parameter) or not _PARAMETER.fullmatch(parameter):
        raise NotUnderstood("an expansion that not every shell knows")
    if re.fullmatch(r"#\w+|[#?$!-]", parameter):
        return NUMBER
    if parameter in {"@", "*"}:
        return "@"
    if re.fullmatch(r"\w+", parameter):
        return parameter
    found = _PLAIN_DEFAULT.fullmatch(parameter)
    return found.group(1) or found.group(2) if found else ANYTHING


def gives_names(command: Command) -> str:
    """The source of what a command writes, if that is names of files."""
    first, *words = command.words
    if any((word.kind is Kind.UNKNOWN and set(word.sources) != {FILE_NAMES}) or _WRITES_ITS_OWN.fullmatch(word.text)
           for word in words):  # fmt: skip
        return ANYTHING
    texts = {word.text for word in words}
    if command.fed_by and first.text in _FILTERS:
        operands = sum(not text.startswith("-") and not text.isdigit() for text in texts)
        return f"{command.fed_by} | {first.text}" if operands <= (first.text == "grep") else ANYTHING
    if first.text in {"grep", "rg"}:
        return f"$({first.text} -l" if any(re.match(r"-[A-Za-z]*l|--files", text) for text in texts) else ANYTHING
    if first.text == "git":
        return "$(git ls-files" if texts & {"ls-files", "--name-only"} else ANYTHING
    return f"$({first.text}" if first.text in {"find", "fd", "ls"} else ANYTHING


class Unseen:
    """What a word that is being read has in it that a shell fills in, and what is written out after that."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.several = False
        self.later: list[str] = []

    def add(self, source: str, *, several: bool) -> None:
        """One part that a shell fills in."""
        self.sources.append(source)
        self.several = self.several or several

    def all_sources(self, known: str) -> tuple[str, ...]:
        """Those of the word that begins with this. If what is filled in is nothing, the rest is what it is: `$x-rf`."""
        later = "".join(self.later)
        may_be_option = (
            (known + later).startswith("-") and later and not _OPTION_AND_PATH.fullmatch(f"{known}\n{later}")
        )
        if may_be_option or not _PLAIN_REST.fullmatch(later):
            self.sources.append(ANYTHING)
        elif later and not later.isdigit():
            self.sources.append(FILE_NAMES)  # no number any more
        return tuple(dict.fromkeys(self.sources))


class Values:
    """What a text makes of its variables: those that may be anything, and those that may be no number.

    ``assumed`` is what was found so far: a variable may be used before the place that sets it is read, so a text is
    read again until nothing new is found.
    """

    def __init__(self, assumed: frozenset[str] = frozenset()) -> None:
        self.assumed = assumed
        self.found: set[str] = set(assumed)

    def note_assignment(self, assignment: Assignment) -> None:
        """What a variable is given: it counts for every use of it, before and after."""
        value = assignment.value
        if not (_PLAIN_VALUE.fullmatch(value.text) and self.is_plain(value)):
            self.found.add(assignment.name)
        if assignment.name.isupper() and (_SHELL_TEXT.search(value.text) or not self.is_plain(value)):
            self.found.add(_FOR_MAKE)
        if not (_PLAIN_NUMBER.fullmatch(value.text) and all(map(self.is_number, value.sources))):
            self.found.add(f"number {assignment.name}")

    def is_run_by_make(self) -> bool:
        """Whether make, which uses variables like its own, would find one that is more than words: `CC='a;b' make`."""
        return _FOR_MAKE in self.assumed

    def note_redefined(self, name: str) -> None:
        """A function or an alias of this name."""
        self.found.add(f"$({name}")

    def is_plain(self, word: Word) -> bool:
        """Whether this cannot become an option that a line hid in it."""
        return word.kind is Kind.LITERAL or (bool(word.sources) and all(map(self._is_plain_source, word.sources)))

    def is_number(self, source: str) -> bool:
        """Whether arithmetic finds nothing in it that it would evaluate."""
        if source.startswith("$("):
            return source[2:] in _COUNTING and source not in self.assumed
        return source == NUMBER or (
            source != FILE_NAMES and self._is_own_variable(source) and f"number {source}" not in self.assumed
        )

    def _is_plain_source(self, source: str) -> bool:
        if source.startswith("$("):
            naming, *filters = source[2:].split(" | ")
            names = naming.split(maxsplit=1)[0], *filters
            return naming in _NAMING and not any(f"$({name}" in self.assumed for name in names)
        return source in {NUMBER, FILE_NAMES} or (self._is_own_variable(source) and source not in self.assumed)

    @staticmethod
    def _is_own_variable(source: str) -> bool:
        return source not in _SET_BY_THE_SHELL and not source.isdigit() and not source.startswith("BASH")

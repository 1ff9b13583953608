"""Programs that are no shells and may start others by a word of theirs: whether this one does, or may.

Pure. Each function looks at the words of one command and gives a reason to ask, or None. It does not look for the
command inside, since that stands in a language of the program's own (``sed``, ``make``, a setting of ``git``).

Invariant: what a word may become counts as what it is. A word that nobody can see, given to a program that would take
it for an option, is a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trunkline.workspace import programs
from trunkline.workspace.programs import Starts
from trunkline.workspace.shell_sources import Values
from trunkline.workspace.shell_words import Command, Kind, Word

PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Of the shell's own commands: those that set variables by words of theirs, and those that not every shell has.
SETTING: Final = frozenset({"export", "readonly", "local"})
_NOT_IN_EVERY_SHELL: Final = frozenset((
    "bind", "caller", "compgen", "complete", "compopt", "declare", "enable", "fc", "let", "mapfile", "readarray",
    "shopt", "typeset",
))  # fmt: skip
BUILTINS: Final = SETTING | _NOT_IN_EVERY_SHELL | {"[", "getopts", "printf", "read", "test", "unset"}


def is_no_script(word: Word) -> bool:
    """Whether this names the standard input, or may: in any spelling, and from any folder."""
    path = word.text
    names = path.split("/")
    return (
        word.kind is not Kind.LITERAL
        or path in {"", "-"}
        or not {"..", "dev", "proc", "fd", "stdin"}.isdisjoint(names)
        or names[-1].isdigit()
    )


# --- the shell's own commands -----------------------------------------------------------------------------------------


def about_builtin(name: str, words: tuple[Word, ...], values: Values) -> str | None:
    """A command of the shell that sets a variable nobody can see, or evaluates what stands in a word."""
    if name in _NOT_IN_EVERY_SHELL:
        return f"'{name}' is not known to every shell"
    if name in {"test", "["}:
        return _about_test(name, words, values)
    if name == "printf":
        first = words[0] if words else Word("")
        is_hidden = first.kind is Kind.UNKNOWN and not values.is_plain(first)
        if (first.text.startswith("-") and first.text != "--") or (is_hidden and (first.several or len(words) > 1)):
            return "'printf' may set a variable"
        return None
    return _about_names(name, words)


def _about_names(name: str, words: tuple[Word, ...]) -> str | None:
    """``read``, ``export`` and their like: which variables they set must be written out."""
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        option = words[at].text
        at += 1
        if option == "--":
            break
        if name == "read" and re.fullmatch(r"-r?p", option):
            at += 1
        elif option not in {"read": {"-r"}, "unset": {"-f", "-v"}}.get(name, {"-p"}):
            return f"'{option}' is no option of '{name}' that every shell knows"
    rest = words[at:]
    if name == "getopts":
        rest = rest[1:2]
    for word in rest:
        key, is_set, _ = word.text.partition("=")
        is_written_out = word.kind is Kind.LITERAL or (is_set and name in SETTING)
        if not is_written_out or not PLAIN_NAME.fullmatch(key):
            return f"which variable '{name}' is about is not written out"
    return None


def _about_test(name: str, words: tuple[Word, ...], values: Values) -> str | None:
    """Bash evaluates what stands after ``-v``."""
    for at, word in enumerate(words):
        is_hidden = word.kind is Kind.UNKNOWN and not values.is_plain(word)
        follows = words[at + 1 : at + 2]
        if word.text in {"-v", "-R"} or (
            is_hidden and (word.several or any(one.kind is not Kind.LITERAL for one in follows))
        ):
            return f"'{name}' may evaluate a word of its own"
    return None


# --- options and words of other programs ------------------------------------------------------------------------------


def about_options(name: str, words: tuple[Word, ...], values: Values) -> str | None:
    """An ordinary program, by the table of those that start others with some option."""
    starts = programs.STARTS.get("make" if name == "gmake" else name)
    if starts is None:
        return None
    if name in {"make", "gmake"} and (reason := _about_make(name, words, values)):
        return reason
    if _uses(words, starts) or (name == "tar" and _uses(_old_style(words), starts)):
        return f"'{name}' is given something to run"
    if any(word.kind is Kind.UNKNOWN and not values.is_plain(word) for word in words):
        return f"'{name}' is given words that nobody can see, and may run what they say"
    return None


def _about_make(name: str, words: tuple[Word, ...], values: Values) -> str | None:
    if values.is_run_by_make():
        return f"'{name}' may run what stands in a variable that is set"
    for at, word in enumerate(words):
        if found := programs.MAKE_FILE.fullmatch(word.text):
            is_attached = found.group(1) or word.kind is not Kind.LITERAL
            file = Word(found.group(1), word.kind) if is_attached else next(iter(words[at + 1 : at + 2]), Word(""))
            if is_no_script(file) and not _is_number_of(word.text, file):
                return f"'{name}' reads commands from its input, or from a file that is not written out"
        if word.kind is Kind.OPERAND and not values.is_plain(word):
            return f"'{name}' is given words that nobody can see, and may run what they say"
    return None


def _is_number_of(option: str, value: Word) -> bool:
    """``--max-load 4`` begins like ``--makefile``."""
    return option.startswith("--max") and value.text.isdigit()


def _about_sqlite(name: str, command: Command, values: Values) -> str | None:
    operands: list[Word] = []
    for word in command.words[1:]:
        if word.text.startswith("-") and not programs.SQLITE_FLAGS.fullmatch(word.text):
            return f"'{word.text}' is no option of '{name}' that is known here"
        if not word.text.startswith("-"):
            operands.append(word)
    if len(operands) < 2 and (not command.reads or is_no_script(Word(command.reads))):
        told = any(word.text.lstrip("-") in {"version", "help"} for word in command.words[1:])
        return None if told else f"'{name}' reads commands from its input"
    for word in operands:
        is_own_command = word.text.lstrip().startswith(".") and not programs.SQLITE_COMMANDS.fullmatch(word.text)
        if (
            not values.is_plain(word)
            or programs.SQLITE_STARTS.search(word.text)
            or (is_own_command and word is not operands[0])
        ):
            return f"'{name}' is given something to run"
    return None


def _uses(words: tuple[Word, ...], starts: Starts) -> bool:
    """Whether one of these options, also cut short or among other letters, is there, or may be."""
    for word in words:
        text = word.text
        if text.startswith("--") and len(text) > 2:
            option = text.split("=", 1)[0]
            if any(long.startswith(option) for long in starts.long):
                return True
        elif starts.short and re.match(rf"-[A-Za-z0-9]*[{starts.short}]", text):
            return True
        if starts.words and re.fullmatch(starts.words, text, re.DOTALL):
            return True
        if starts.strict and word.kind is Kind.UNKNOWN and not text:
            return True
    return False


def _old_style(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """``tar xf`` means ``tar -xf``."""
    return (Word(f"-{words[0].text}"),) if words and not words[0].text.startswith("-") else ()


# --- git --------------------------------------------------------------------------------------------------------------


def _about_git(_: str, given: Command, values: Values) -> str | None:
    words = given.words[1:]
    at = 0
    while at < len(words) and (words[at].text.startswith("-") or words[at].kind is Kind.UNKNOWN):
        word = words[at]
        at += 1
        option, has_value, _value = word.text.partition("=")
        if word.kind is Kind.LITERAL and option in programs.GIT_FLAGS:
            continue
        value = next(iter(words[at : at + 1]), Word(""))
        if word.kind is Kind.LITERAL and option in programs.GIT_VALUES:
            if not has_value and value.several and not values.is_plain(value):
                return "git is given words that nobody can see, and may run what they say"
            at += not has_value
        elif word.text == "-c" and _is_harmless_setting(value, values):
            at += 1
        else:
            return "git is given a setting or an option that may run anything"
    if at >= len(words):
        return None
    command, rest = words[at].text, words[at + 1 :]
    if words[at].kind is not Kind.LITERAL or command not in programs.GIT_COMMANDS:
        return f"'git {command}' may be an alias, which may run anything"
    if command == "bisect":
        return "'git bisect' may run a program"
    return _about_git_config(rest, values) if command == "config" else _about_git_command(command, rest, values)


def _about_git_command(command: str, rest: tuple[Word, ...], values: Values) -> str | None:
    starts = programs.GIT_STARTS.get(command)
    if command in programs.GIT_CONNECTS and any("::" in word.text for word in rest):
        return f"'git {command}' is given an address that may run a program"
    if starts is None:
        return None
    if _uses(rest, starts):
        return f"'git {command}' is given something to run"
    if any(word.kind is Kind.UNKNOWN and not values.is_plain(word) for word in rest):
        return f"'git {command}' is given words that nobody can see, and may run what they say"
    return None


def _about_git_config(rest: tuple[Word, ...], values: Values) -> str | None:
    operands = [word for word in rest if not (word.kind is Kind.LITERAL and word.text.startswith("-"))]
    options = {word.text for word in rest} - {word.text for word in operands}
    reason = "'git config' sets something that may run a program"
    if options - programs.GIT_CONFIG_READS - programs.GIT_CONFIG_FLAGS:
        return reason
    if any(word.kind is Kind.UNKNOWN and not values.is_plain(word) for word in operands):
        return reason
    if options & programs.GIT_CONFIG_READS or (operands and operands[0].text in programs.GIT_CONFIG_READS):
        return None
    if len(operands) == 1 and not options & {"--add", "--unset", "--unset-all", "--replace-all"}:
        return None
    if operands and operands[0].text == "set":
        operands = operands[1:]
    is_harmless = all(programs.GIT_SETTINGS.fullmatch(word.text) for word in operands[:1])
    return None if is_harmless and not any("::" in word.text for word in operands) else reason


def _is_harmless_setting(setting: Word, values: Values) -> bool:
    key, _, value = setting.text.partition("=")
    is_seen = setting.kind is Kind.LITERAL or (bool(value or "=" in setting.text) and values.is_plain(setting))
    return is_seen and programs.GIT_SETTINGS.fullmatch(key) is not None and "::" not in value


# --- programs whose language is read ----------------------------------------------------------------------------------


def _about_awk(name: str, command: Command, values: Values) -> str | None:
    words = command.words[1:]
    at, from_file = 0, False
    while at < len(words) and words[at].text.startswith("-") and words[at].kind is not Kind.UNKNOWN:
        option = words[at].text
        at += 1
        if option == "--":
            break
        if option[1:2] not in {"F", "v", "f"} or option.startswith("--"):
            return f"'{option}' is no option of '{name}' that is known here"
        value = Word(option[2:]) if option[2:] else next(iter(words[at : at + 1]), Word(""))
        at += len(option) == 2
        if value.several:
            return f"what '{name}' runs is not written out"
        if option[1] == "f":
            from_file = True
            if is_no_script(value):
                return f"'{name}' reads a program from its input, or from a file that is not written out"
    if from_file:
        hidden = any(word.kind is Kind.UNKNOWN and not values.is_plain(word) for word in words[at:])
        return f"what '{name}' runs is not written out" if hidden else None
    if at >= len(words) or words[at].kind is not Kind.LITERAL or programs.awk_may_run(words[at].text):
        return f"the program of '{name}' may start others"
    return None


_SED_OPTION: Final = re.compile(
    r"-[nrEsuz]*(i.*)?|--(quiet|silent|regexp-extended|in-place(=.*)?|null-data|separate|unbuffered|version|help)"
)


def _about_sed(_: str, command: Command, values: Values) -> str | None:
    words = command.words[1:]
    scripts: list[Word] = []
    operands: list[Word] = []
    at = 0
    while at < len(words):
        word = words[at]
        text = word.text
        at += 1
        if not text.startswith("-") or text == "-" or word.kind is Kind.UNKNOWN:
            operands.append(word)
        elif text == "--":
            operands.extend(words[at:])
            break
        elif text in {"-e", "--expression", "-ne", "-Ee", "-re", "-nEe", "-nre"}:
            scripts.extend(words[at : at + 1])
            at += 1
        elif re.fullmatch(r"(--expression=|-e).*", text, re.DOTALL) and word.kind is Kind.LITERAL:
            scripts.append(Word(text.removeprefix("--expression=") if text[1] == "-" else text[2:]))
        elif not _SED_OPTION.fullmatch(text):
            return f"'{text}' is no option of 'sed' that is known here"
    if not scripts:
        scripts, operands = operands[:1], operands[1:]
    if any(word.kind is not Kind.LITERAL or programs.sed_may_run(word.text) for word in scripts):
        return "the script of 'sed' may start a program"
    if any(word.kind is Kind.UNKNOWN and not values.is_plain(word) for word in operands):
        return "'sed' is given words that nobody can see, and may run what they say"
    return None


READS_WORDS: Final[dict[str, Callable[[str, Command, Values], str | None]]] = {
    "git": _about_git,
    "sqlite3": _about_sqlite,
    **dict.fromkeys(programs.AWK, _about_awk),
    **dict.fromkeys(programs.SED, _about_sed),
}

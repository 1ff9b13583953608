"""Every command that a command line may run, as far as its text says.

Pure. On top of the grammar it knows, by the tables of ``programs``, the commands that run others: ``sh -c``, ``eval``,
``env``, ``xargs``, ``find -exec``, ``timeout`` and their like. It does not judge: that is ``policy``.

Invariant: what may run and cannot be seen is in ``unclear``, with a reason for the person who is asked. A program may
always start others by itself, and a script is not read; what they can do is bounded by the sandbox, and what they
removed is brought back by a snapshot.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from trunkline.workspace import programs
from trunkline.workspace.programs import RUNNERS, SHELLS, Interpreter, Runner, Starts
from trunkline.workspace.shell_grammar import MAX_COMMANDS, parse
from trunkline.workspace.shell_words import Assignment, Command, Kind, NotUnderstood, Word

# The words of all of them: `env env env …` has all its words again at each level. As many as the longest text has.
MAX_WORDS: Final = 32_768

_LOADER: Final = re.compile(r"ld(-linux.*|-musl.*|-\d.*|64)?\.so.*")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
# Of the shell's own commands: those that set variables, and those that evaluate what stands in brackets.
_SETTING: Final = frozenset({"export", "readonly", "local", "declare", "typeset", "read", "getopts", "mapfile"})
_EVALUATING: Final = _SETTING | {"[", "[[", "test", "unset", "let", "printf"}
# What stands between words of a command inside a word of another program's.
_BETWEEN: Final = re.compile(r"[\s=,(){}\[\]`$!<>]+")
_LISTS: Final = re.compile(r"[;|&\n]+")


class FoundCommands(Struct, frozen=True):
    """What a command line may run, and in ``unclear`` why some of it cannot be seen.

    ``suspects`` are words that would be a command if the program that gets them, which is not known, runs it.
    ``scripts`` are files that a shell or an interpreter reads. ``plain``: simple commands only, none of which runs
    another.
    """

    commands: tuple[Command, ...]
    unclear: tuple[str, ...]
    plain: bool
    suspects: tuple[Command, ...] = ()
    scripts: tuple[str, ...] = ()


def name_of(command: Command) -> str | None:
    """The command's name without its folder, if it is written out."""
    first = command.words[0]
    return first.text.rsplit("/", 1)[-1] if first.kind is Kind.LITERAL else None


def read_commands(text: str, is_ruled: Callable[[str], bool] = lambda _: False) -> FoundCommands:
    """Every command the text may run, as written and as run by another one.

    ``is_ruled`` tells which names somebody has a rule about: those are looked for in the words of unknown programs.
    """
    reader = _Reader(is_ruled)
    reader.text(text)
    reader.work()
    unclear = tuple(dict.fromkeys(reader.unclear))
    scripts = tuple(dict.fromkeys(reader.scripts))
    return FoundCommands(tuple(reader.found), unclear, reader.plain, tuple(reader.suspects), scripts)


def variable_holds_code(name: str) -> bool:
    """Whether some program runs what stands in this variable."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in programs.CODE_VARIABLES)


class _Reader:
    """Looks into one command after the other, until none is left that may run another."""

    def __init__(self, is_ruled: Callable[[str], bool]) -> None:
        self.is_ruled = is_ruled
        self.found: list[Command] = []
        self.unclear: list[str] = []
        self.suspects: list[Command] = []
        self.scripts: list[str] = []
        self.plain = True
        self.waiting: list[Command] = []
        self.words = 0

    def text(self, text: str) -> None:
        try:
            script = parse(text)
        except NotUnderstood as reason:
            self.unclear.append(str(reason))
            self.plain = False
        else:
            self.plain = self.plain and script.plain
            self.waiting.extend(script.commands)
            for assignment in script.assignments:
                self.assigned(assignment)

    def work(self) -> None:
        while self.waiting:
            command = self.waiting.pop()
            self.words += len(command.words)
            if len(self.found) >= MAX_COMMANDS or self.words > MAX_WORDS:
                self.unclear.append("it has too many commands")
                self.plain = False
                return
            self.found.append(command)
            before = len(self.waiting), len(self.unclear)
            self.look_inside(command)
            if before != (len(self.waiting), len(self.unclear)):
                self.plain = False

    def look_inside(self, command: Command) -> None:
        name, words = name_of(command), command.words[1:]
        if name is None:
            self.unclear.append("the name of a command is not written out")
        elif name.startswith(("-", "+")):
            self.unclear.append(f"'{name}' stands where a command is expected")
        elif runner := RUNNERS.get(name):
            self.run_by(name, runner, words)
        elif name in SHELLS:
            self.shell(name, words)
        elif interpreter := programs.interpreter_of(name):
            self.interpreter(name, interpreter, words)
        elif name in programs.OPAQUE or _LOADER.fullmatch(name):
            self.unclear.append(f"'{name}' runs other commands in a way that is not read")
        elif method := _METHODS.get(name):
            method(self, name, words)
        elif name not in programs.START_NOTHING:
            self.ordinary(name, words)

    # --- programs that run what follows

    def run_by(self, name: str, runner: Runner, words: tuple[Word, ...]) -> None:
        """The command that begins after the runner's own options and operands."""
        operands, ended, stands_for = runner.operands, False, ""
        at = 0
        while at < len(words):
            word = words[at]
            if word.kind is Kind.UNKNOWN:
                self.unclear.append(f"what '{name}' runs is not written out")
                return
            text = word.text
            at += 1
            if not ended and text == "--":
                ended = True
            elif not ended and text == "-" and runner.dash:
                continue
            elif not ended and text.startswith("-") and len(text) > 1:
                taken = _own_option(text, runner)
                if taken is None:
                    self.unclear.append(f"'{text}' is no option of '{name}' that is known here")
                    return
                if name == "command" and set(text) & {"v", "V"}:
                    return  # it only tells where a command is
                if runner.replaces and text.startswith(f"-{runner.replaces}"):
                    stands_for = text[2:] or (words[at].text if at < len(words) else "")
                at += taken
            elif text == "!" and name == "time":  # a word of the grammar to some shells
                continue
            elif runner.assignments and _ASSIGNMENT.match(text):
                key, _, value = text.partition("=")
                self.assigned(Assignment(key, Word(value, word.kind)))
            elif operands:
                operands, ended = operands - 1, True
            else:
                self.waiting.append(_completed(words[at - 1 :], stands_for, appends=runner.appends))
                return

    def shell(self, name: str, words: tuple[Word, ...]) -> None:
        is_text, follows = False, False
        for at, word in enumerate(words):
            if follows and word.kind is Kind.LITERAL and word.text in programs.SHELL_OPTIONS:
                follows = False
                continue
            if follows:
                self.unclear.append(f"'{name}' is given an option by a name that is not known here")
                return
            if word.kind is Kind.UNKNOWN:
                self.unclear.append(f"what '{name}' runs is not written out")
                return
            if word.text == "--":
                self.script_or_text(name, words[at + 1 :], is_text=is_text)
                return
            if word.kind is Kind.LITERAL and word.text[:1] in {"-", "+"} and len(word.text) > 1:
                letters = word.text[1:]
                follows = letters.endswith("o")
                letters = letters.removesuffix("o")
                if set(letters) - programs.SHELL_FLAGS - {"c"}:
                    self.unclear.append(f"'{word.text}' is no option of '{name}' that is known here")
                    return
                is_text = is_text or (word.text[0] == "-" and "c" in letters)
                continue
            self.script_or_text(name, words[at:], is_text=is_text)
            return
        self.script_or_text(name, (), is_text=is_text)

    def script_or_text(self, name: str, words: tuple[Word, ...], *, is_text: bool) -> None:
        if is_text:
            self.joined(f"{name} -c", words[:1])
        elif not words or _is_no_script(words[0].text):
            self.unclear.append(f"'{name}' reads commands from its input")
        elif words[0].kind is Kind.LITERAL:
            self.scripts.append(words[0].text)

    def interpreter(self, name: str, known: Interpreter, words: tuple[Word, ...]) -> None:
        """A script is a program like any other; a program on the command line, or from the input, is not read."""
        at = 0
        while at < len(words):
            word = words[at]
            text = word.text
            at += 1
            if word.kind is Kind.UNKNOWN:
                self.unclear.append(f"what '{name}' runs is not written out")
                return
            if text == "--":
                continue
            if not text.startswith("-") or text == "-":
                if _is_no_script(text):
                    break
                if word.kind is Kind.LITERAL:
                    self.scripts.append(text)
                return
            if text.startswith("--"):
                if text.split("=", 1)[0] in known.code_long or not re.fullmatch(known.long, text):
                    self.unclear.append(f"'{name} {text.split('=', 1)[0]}' is not read")
                    return
                if re.fullmatch(known.no_script, text):
                    return
                continue
            letter = next((one for one in text[1:] if one not in known.flags), None)
            if letter is None:
                if known.flags and text[1] in "vVh":
                    return
            elif letter == known.module:
                self.module(name, text.partition(letter)[2], words[at:])
                return
            elif letter in known.values:
                at += text.endswith(letter)
            else:
                what = "the program after" if letter in known.code else "the option"
                self.unclear.append(f"{what} '{name} -{letter}' is not read")
                return
        self.unclear.append(f"'{name}' reads a program from its input")

    def module(self, name: str, attached: str, words: tuple[Word, ...]) -> None:
        rest = (Word(attached), *words) if attached else words
        if not rest or rest[0].kind is not Kind.LITERAL or rest[0].text.split(".")[0] in programs.MODULES_WITH_CODE:
            self.unclear.append(f"what '{name} -m' runs is not read")
        else:
            self.look_for_commands(rest[1:])

    def sourced(self, name: str, words: tuple[Word, ...]) -> None:
        if not words or words[0].kind is not Kind.LITERAL or _is_no_script(words[0].text):
            self.unclear.append(f"'{name}' reads commands that are not written out")
        else:
            self.scripts.append(words[0].text)

    def trap(self, name: str, words: tuple[Word, ...]) -> None:
        self.joined(name, _operands(words)[:1])

    def joined(self, name: str, words: tuple[Word, ...]) -> None:
        if not words or any(word.kind is not Kind.LITERAL for word in words):
            self.unclear.append(f"what '{name}' runs is not written out")
        else:
            self.text(" ".join(word.text for word in words))
            self.plain = False

    def alias(self, _: str, words: tuple[Word, ...]) -> None:
        for word in words:
            if word.kind is not Kind.LITERAL:
                self.unclear.append("an alias is not written out")
            elif "=" in word.text:
                # Where the alias is used, further words follow: nobody can see here which.
                self.text(word.text.split("=", 1)[1] + ' "$@"')
                self.plain = False

    def find(self, _: str, words: tuple[Word, ...]) -> None:
        at = 0
        while at < len(words):
            at += 1
            if words[at - 1].text in _FIND_RUNS:
                begin = at
                while at < len(words) and words[at].text not in {";", "+"}:
                    at += 1
                if at == begin:
                    self.unclear.append("what 'find' runs is not written out")
                    continue
                # `{}` stands for names that nobody can see here.
                self.waiting.append(_completed(words[begin:at], "{}", appends=False))

    def git(self, _: str, words: tuple[Word, ...]) -> None:
        at = 0
        while at < len(words) and (words[at].text.startswith("-") or words[at].kind is Kind.UNKNOWN):
            word = words[at]
            at += 1
            option, has_value, _value = word.text.partition("=")
            if word.kind is Kind.LITERAL and option in programs.GIT_FLAGS:
                continue
            if word.kind is Kind.LITERAL and option in programs.GIT_VALUES:
                at += not has_value
            elif word.text == "-c" and at < len(words) and _is_harmless_setting(words[at].text):
                at += 1
            else:
                self.unclear.append("git is given a setting or an option that may run anything")
                return
        if at >= len(words):
            return
        command, rest = words[at].text, words[at + 1 :]
        starts = programs.GIT_STARTS.get(command, Starts())
        if words[at].kind is not Kind.LITERAL or command not in programs.GIT_COMMANDS:
            self.unclear.append(f"'git {command}' may be an alias, which may run anything")
        elif any("ext::" in word.text for word in rest) or _uses(rest, starts):
            self.unclear.append(f"'git {command}' is given something to run")
        elif command == "config":
            keys = [word.text for word in rest if word.kind is not Kind.UNKNOWN and "." in word.text[1:]]
            reads = any(word.text in {"--get", "--get-all", "--list", "-l", "get", "list"} for word in rest)
            if not reads and not all(programs.GIT_SETTINGS.fullmatch(key) for key in keys[:1]):
                self.unclear.append("'git config' sets something that may run a program")
        elif command == "bisect":
            self.unclear.append("'git bisect' may run a program")

    def awk(self, name: str, words: tuple[Word, ...]) -> None:
        at, from_file = 0, False
        while at < len(words) and words[at].text.startswith("-") and words[at].kind is not Kind.UNKNOWN:
            option = words[at].text
            at += 1
            if option == "--":
                break
            if option[1:2] not in {"F", "v", "f"} or option.startswith("--"):
                self.unclear.append(f"'{option}' is no option of '{name}' that is known here")
                return
            value = option[2:] or (words[at].text if at < len(words) else "")
            at += len(option) == 2
            if option[1] == "f":
                from_file = True
                if _is_no_script(value):
                    self.unclear.append(f"'{name}' reads a program from its input")
        if from_file:
            return
        if at >= len(words) or words[at].kind is not Kind.LITERAL or programs.awk_may_run(words[at].text):
            self.unclear.append(f"the program of '{name}' may start others")

    def sed(self, _: str, words: tuple[Word, ...]) -> None:
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
            elif not re.fullmatch(r"-[nrEsuz]*(i.*)?|--(quiet|silent|regexp-extended|in-place(=.*)?|null-data|posix"
                                  r"|separate|unbuffered|version|help)", text):  # fmt: skip
                self.unclear.append(f"'{text}' is no option of 'sed' that is known here")
                return
        if not scripts:
            scripts, operands = operands[:1], operands[1:]
        if any(word.kind is not Kind.LITERAL or programs.sed_may_run(word.text) for word in scripts):
            self.unclear.append("the script of 'sed' may start a program")

    # --- programs of which it is not known that they run anything

    def shells_own(self, name: str, words: tuple[Word, ...]) -> None:
        """Commands of the shell that set variables or evaluate what stands in a word."""
        for word in words:
            if "$(" in word.text or "`" in word.text:
                self.unclear.append(f"'{name}' may run what stands in its words")
            key, is_set, value = word.text.partition("=")
            if name in _SETTING and (is_set or name in {"read", "getopts", "mapfile"}):
                self.assigned(Assignment(key, Word(value, word.kind)))

    def ordinary(self, name: str, words: tuple[Word, ...]) -> None:
        starts = programs.STARTS.get("make" if name == "gmake" else name)
        if starts is not None and (_uses(words, starts) or (name == "tar" and _uses(_old_style(words), starts))):
            self.unclear.append(f"'{name}' is given something to run")
            return
        takes = programs.TAKES_FILE.get(name)
        for option, value in itertools.pairwise(words):
            if takes is not None and takes.fullmatch(option.text) and _is_no_script(value.text):
                self.unclear.append(f"'{name}' reads commands from its input")
                return
        self.look_for_commands(words)

    def look_for_commands(self, words: tuple[Word, ...]) -> None:
        """What would be a command if the program that gets these words runs it."""
        for at, word in enumerate(words):
            if self.words > MAX_WORDS:
                return  # and that was said
            if word.kind is Kind.LITERAL and self.is_telling(word.text):
                self.suspect(Command(words[at:]))
            if word.text and (word.kind is not Kind.LITERAL or _BETWEEN.search(word.text) or ";" in word.text):
                self.suspect_text(word.text)

    def suspect_text(self, text: str) -> None:
        """The same inside one word (``--run='rm -r x'``): quotes are taken off, and any word may be the first."""
        bare = re.sub(r"['\"\\]", "", text)
        for part in _LISTS.split(bare):
            words = tuple(Word(word) for word in _BETWEEN.split(part) if word)
            for at, word in enumerate(words):
                if self.words > MAX_WORDS:
                    return
                if self.is_telling(word.text):
                    self.suspect(Command(words[at:]))

    def is_telling(self, text: str) -> bool:
        """Whether a word is the name of a command that a rule is about, or that runs others."""
        folder, _, name = text.rpartition("/")
        if folder and not folder.startswith(("/", "..")):
            return False  # a file of the space: `tests/sh`
        return (
            self.is_ruled(name)
            or name in SHELLS
            or name in RUNNERS
            or name in {"eval", "find"}
            or programs.interpreter_of(name) is not None
        )

    def suspect(self, command: Command) -> None:
        self.words += len(command.words)
        if len(self.suspects) >= MAX_COMMANDS or self.words > MAX_WORDS:
            self.unclear.append("it has too many commands")
            return
        self.suspects.append(command)
        name = name_of(command)
        # A word alone may be anything (`npm run time`, `uv venv --python python3`); a shell alone reads its input.
        if name is None or (len(command.words) == 1 and name not in SHELLS):
            return
        inner = _Reader(lambda _: False)
        inner.words = self.words
        inner.look_inside(command)
        if inner.unclear:
            self.unclear.append(f"a program that is not known is given '{name}', which runs others")
        self.suspects.extend(inner.waiting)

    def assigned(self, assignment: Assignment) -> None:
        if variable_holds_code(assignment.name):
            self.unclear.append(f"'{assignment.name}' is set, and programs run what it says")
        elif assignment.value.text:
            self.suspect_text(assignment.value.text)
            # Bash evaluates it wherever the variable is used as a number.
            if "$(" in assignment.value.text or "`" in assignment.value.text:
                self.unclear.append(f"'{assignment.name}' is set to what may be run later")


_METHODS: Final[dict[str, Callable[[_Reader, str, tuple[Word, ...]], None]]] = {
    ".": _Reader.sourced,
    "source": _Reader.sourced,
    "eval": _Reader.joined,
    "trap": _Reader.trap,
    "alias": _Reader.alias,
    "find": _Reader.find,
    "git": _Reader.git,
    **dict.fromkeys(programs.AWK, _Reader.awk),
    **dict.fromkeys(programs.SED, _Reader.sed),
    **dict.fromkeys(_EVALUATING, _Reader.shells_own),
}


def _own_option(text: str, runner: Runner) -> int | None:
    """How many words after it belong to this option of a runner; None if it is not exactly one of its options."""
    if text.startswith("--"):
        option, has_value, _ = text.partition("=")
        if option in runner.long_values:
            return 0 if has_value else 1
        return 0 if text in runner.long else None
    if runner.numbers and re.fullmatch(r"--?\d+", text):
        return 0
    for at, letter in enumerate(text[1:], start=1):
        if letter in runner.values:
            return 1 if at == len(text) - 1 else 0
        if letter not in runner.flags:
            return None
    return 0


def _completed(words: tuple[Word, ...], stands_for: str, *, appends: bool) -> Command:
    """A command with what nobody can see here: in the place of a mark, or at its end."""
    unknown = Word("", Kind.UNKNOWN)
    if stands_for:
        return Command(tuple(unknown if stands_for in word.text else word for word in words))
    return Command((*words, unknown) if appends else words)


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


def _is_harmless_setting(text: str) -> bool:
    return programs.GIT_SETTINGS.fullmatch(text.partition("=")[0]) is not None


def _is_no_script(path: str) -> bool:
    """Whether this names the standard input, or may: in any spelling, and from any folder."""
    names = path.split("/")
    return path == "-" or not path or ".." in names or any(name in {"dev", "proc"} for name in names)


def _operands(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """What comes after the options."""
    for at, word in enumerate(words):
        if word.text == "--":
            return words[at + 1 :]
        if not word.text.startswith(("-", "+")) or word.kind is not Kind.LITERAL:
            return words[at:]
    return ()

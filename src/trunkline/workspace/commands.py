"""Every command that a command line may run, as far as its text says.

Pure. On top of the grammar it knows, by the tables of ``programs``, the commands that run others: ``sh -c``, ``eval``,
``env``, ``xargs``, ``find -exec``, ``timeout`` and their like. It does not judge: that is ``policy``.

Invariant: what may run and cannot be seen is in ``unclear``, with a reason for the person who is asked. A program may
always start others by itself, and a script is not read; what they can do is bounded by the sandbox, and what they
removed is brought back by a snapshot.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from trunkline.workspace import doubts, programs
from trunkline.workspace.doubts import PLAIN_NAME, is_no_script
from trunkline.workspace.programs import RUNNERS, SHELLS, Interpreter, Runner
from trunkline.workspace.shell_grammar import MAX_COMMANDS, parse
from trunkline.workspace.shell_sources import Values
from trunkline.workspace.shell_words import ANYTHING, Assignment, Command, Kind, NotUnderstood, Script, Word

# The words of all of them: `env env env …` has all its words again at each level. As many as the longest text has.
MAX_WORDS: Final = 32_768

_LOADER: Final = re.compile(r"ld(-linux.*|-musl.*|-\d.*|64)?\.so.*")
# An alias is put in before the text is read: any other character of it may change what the line means.
_PLAIN_ALIAS: Final = re.compile(
    r"(?!(?:if|then|else|elif|fi|do|done|case|esac|while|until|for|in)=)[\w.+-]+=[\w./:@%+,= -]*"
)
# So many times a text is read again because a variable turned out to be set after it was used.
MAX_READINGS: Final = 4
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
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


def read_commands(
    text: str, is_ruled: Callable[[str], bool] = lambda _: False, env: Mapping[str, str] | None = None
) -> FoundCommands:
    """Every command the text may run, as written and as run by another one.

    ``is_ruled`` tells which names somebody has a rule about: those are looked for in the words of unknown programs.
    ``env`` are variables that are set before it runs.
    """
    reader = _Reader(is_ruled, Values(), {})
    reader.line(text, env or {})
    for _ in range(MAX_READINGS):
        if reader.values.found == reader.values.assumed:
            break
        reader = _Reader(is_ruled, Values(frozenset(reader.values.found)), reader.parsed)
        reader.line(text, env or {})
    else:
        reader.unclear.append("its variables are set in too many steps")
    unclear = tuple(dict.fromkeys(reader.unclear))
    scripts = tuple(dict.fromkeys(reader.scripts))
    return FoundCommands(tuple(reader.found), unclear, reader.plain, tuple(reader.suspects), scripts)


@functools.lru_cache(maxsize=256)  # a long line asks about one name thousands of times
def variable_holds_code(name: str) -> bool:
    """Whether some program runs what stands in this variable."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in programs.CODE_VARIABLES)


class _Reader:
    """Looks into one command after the other, until none is left that may run another."""

    def __init__(self, is_ruled: Callable[[str], bool], values: Values, parsed: dict[str, Script]) -> None:
        self.is_ruled = is_ruled
        self.values = values
        self.parsed = parsed  # texts that an earlier reading has understood
        self.found: list[Command] = []
        self.unclear: list[str] = []
        self.suspects: list[Command] = []
        self.scripts: list[str] = []
        self.plain = True
        self.waiting: list[Command] = []
        self.words = 0

    def line(self, text: str, env: Mapping[str, str]) -> None:
        for key, value in env.items():
            self.assigned(Assignment(key, Word(value)))
        self.text(text)
        self.work()

    def text(self, text: str) -> None:
        try:
            script = self.parsed.get(text) or parse(text)
        except NotUnderstood as reason:
            self.unclear.append(str(reason))
            self.plain = False
        else:
            self.parsed[text] = script
            self.plain = self.plain and script.plain
            self.waiting.extend(script.commands)
            self.unclear.extend(script.doubts)
            for assignment in script.assignments:
                self.assigned(assignment)
            for name in script.functions:
                self.values.note_redefined(name)
            if not all(map(self.values.is_number, script.numbers)):
                self.unclear.append("a variable that may be no number is used in arithmetic")

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
            self.run_by(name, runner, words, command.fed_by)
        elif name in SHELLS:
            self.shell(name, words)
        elif interpreter := programs.interpreter_of(name):
            self.interpreter(name, interpreter, words)
        elif name in programs.OPAQUE or _LOADER.fullmatch(name):
            self.unclear.append(f"'{name}' runs other commands in a way that is not read")
        elif method := _METHODS.get(name):
            method(self, name, words)
        elif name in doubts.READS_WORDS:
            self.doubt(doubts.READS_WORDS[name](name, command, self.values))
        elif name not in programs.START_NOTHING:
            self.ordinary(name, command)

    def doubt(self, reason: str | None) -> None:
        if reason is not None:
            self.unclear.append(reason)

    # --- programs that run what follows

    def run_by(self, name: str, runner: Runner, words: tuple[Word, ...], fed_by: str) -> None:
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
                if any(value.kind is not Kind.LITERAL and value.several for value in words[at : at + taken]):
                    self.unclear.append(f"what '{name}' runs is not written out")
                    return
                if name == "xargs" and (_value_of(text, "a", runner) is not None or text.startswith("--arg")):
                    fed_by = ANYTHING
                if runner.replaces and (mark := _value_of(text, runner.replaces, runner)) is not None:
                    stands_for = mark or (words[at].text if at < len(words) else "")
                    if not stands_for:
                        self.unclear.append(f"what '{name}' replaces is not written out")
                        return
                at += taken
            elif text == "!" and name == "time":  # a word of the grammar to some shells
                continue
            elif runner.assignments and "=" in text:
                self.set_by(name, word)
            elif operands:
                operands, ended = operands - 1, True
            else:
                self.waiting.append(_completed(words[at - 1 :], stands_for, fed_by, appends=runner.appends))
                return

    def set_by(self, name: str, word: Word) -> None:
        """A word `KEY=value` that a command takes for a variable."""
        key, _, value = word.text.partition("=")
        if not PLAIN_NAME.fullmatch(key):
            self.unclear.append(f"'{name}' sets something that is no plain variable")
        else:
            self.assigned(Assignment(key, Word(value, word.kind, word.sources, rest=word.rest)))

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
                if word.text[0] == "+" and "c" in letters:
                    self.unclear.append(f"'{word.text}' means different things to different shells")
                    return
                is_text = is_text or "c" in letters
                continue
            self.script_or_text(name, words[at:], is_text=is_text)
            return
        self.script_or_text(name, (), is_text=is_text)

    def script_or_text(self, name: str, words: tuple[Word, ...], *, is_text: bool) -> None:
        if is_text:
            self.joined(f"{name} -c", words[:1])
        elif not words or is_no_script(words[0]):
            self.unclear.append(f"'{name}' reads commands from its input, or from a file that is not written out")
        else:
            self.scripts.append(words[0].text)

    def interpreter(self, name: str, known: Interpreter, words: tuple[Word, ...]) -> None:
        """A script is a program like any other; a program on the command line, or from the input, is not read."""
        at, told = 0, False
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
                if is_no_script(word):
                    told = False
                    break
                self.scripts.append(text)
                return
            if text.startswith("--"):
                if text.split("=", 1)[0] in known.code_long or not re.fullmatch(known.long, text):
                    self.unclear.append(f"'{name} {text.split('=', 1)[0]}' is not read")
                    return
                told = told or re.fullmatch(known.no_script, text) is not None
                continue
            letter = next((one for one in text[1:] if one not in known.flags), None)
            if letter is None:
                told = told or bool(set(text) & set(known.tells))
            elif letter == known.module:
                self.module(name, text.partition(letter)[2], words[at:])
                return
            elif letter in known.values and not any(value.several for value in words[at : at + 1]):
                at += text.endswith(letter)
            else:
                what = "the program after" if letter in known.code else "the option"
                self.unclear.append(f"{what} '{name} -{letter}' is not read")
                return
        if not told:
            self.unclear.append(f"'{name}' reads a program from its input")

    def module(self, name: str, attached: str, words: tuple[Word, ...]) -> None:
        rest = (Word(attached), *words) if attached else words
        if not rest or rest[0].kind is not Kind.LITERAL or rest[0].text.split(".")[0] in programs.MODULES_WITH_CODE:
            self.unclear.append(f"what '{name} -m' runs is not read")
        elif rest[0].text == "coverage" and [word.text for word in rest[1:3]] == ["run", "-m"]:
            self.module(name, "", rest[3:])
        else:
            self.look_for_commands(rest[1:])

    def sourced(self, name: str, words: tuple[Word, ...]) -> None:
        if words and words[0].text == "--":
            words = words[1:]
        if not words or words[0].text.startswith("-") or is_no_script(words[0]):
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
            if word.kind is not Kind.LITERAL or ("=" in word.text and not _PLAIN_ALIAS.fullmatch(word.text)):
                self.unclear.append("an alias is more than a plain command")
            elif "=" in word.text:
                name, _, text = word.text.partition("=")
                self.values.note_redefined(name)
                # Where the alias is used, further words follow: nobody can see here which.
                self.text(text + ' "$@"')
                self.plain = False

    def find(self, _: str, words: tuple[Word, ...]) -> None:
        at = 0
        while at < len(words):
            at += 1
            if words[at - 1].text in _FIND_RUNS:
                begin = at
                while at < len(words) and not _ends_exec(words, begin, at):
                    at += 1
                run = words[begin:at]
                if not run or any(word.kind is not Kind.LITERAL and word.text[:1] in {";", "+", "{"} for word in run):
                    self.unclear.append("what 'find' runs is not written out")
                    continue
                # `{}` stands for names that nobody can see here.
                self.waiting.append(_completed(run, "{}", "$(find", appends=False))

    # --- programs of which it is not known that they run anything

    def shells_own(self, name: str, words: tuple[Word, ...]) -> None:
        """Commands of the shell that set variables or evaluate what stands in a word."""
        self.doubt(doubts.about_builtin(name, words, self.values))
        for word in words:
            if "$(" in word.text or "`" in word.text:
                self.unclear.append(f"'{name}' may run what stands in its words")
            if name in {"read", "getopts"}:
                self.assigned(Assignment(word.text, Word("", Kind.UNKNOWN, (ANYTHING,))))
            elif name in doubts.SETTING and "=" in word.text:
                self.set_by(name, word)

    def ordinary(self, name: str, command: Command) -> None:
        if reason := doubts.about_options(name, command.words[1:], self.values):
            self.unclear.append(reason)
        else:
            self.look_for_commands(command.words[1:])

    def look_for_commands(self, words: tuple[Word, ...]) -> None:
        """What would be a command if the program that gets these words runs it."""
        for at, word in enumerate(words):
            if self.words > MAX_WORDS:
                return  # and that was said
            if word.kind is Kind.LITERAL and self.is_telling(word.text):
                self.suspect(Command(words[at:]))
            text = word.text + word.rest
            if text and (word.kind is not Kind.LITERAL or _BETWEEN.search(text) or ";" in text):
                self.suspect_text(text)

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
        inner = _Reader(lambda _: False, self.values, self.parsed)
        inner.words = self.words
        inner.look_inside(command)
        if inner.unclear:
            self.unclear.append(f"a program that is not known is given '{name}', which runs others")
        self.suspects.extend(inner.waiting)

    def assigned(self, assignment: Assignment) -> None:
        if variable_holds_code(assignment.name):
            self.unclear.append(f"'{assignment.name}' is set, and programs run what it says")
            return
        self.values.note_assignment(assignment)
        if text := assignment.value.text + assignment.value.rest:
            self.suspect_text(text)
            # Bash evaluates it wherever the variable is used as a number, and make wherever it uses the variable.
            if "$(" in text or "${" in text or "`" in text:
                self.unclear.append(f"'{assignment.name}' is set to what may be run later")


_METHODS: Final[dict[str, Callable[[_Reader, str, tuple[Word, ...]], None]]] = {
    ".": _Reader.sourced,
    "source": _Reader.sourced,
    "eval": _Reader.joined,
    "trap": _Reader.trap,
    "alias": _Reader.alias,
    "find": _Reader.find,
    **dict.fromkeys(doubts.BUILTINS, _Reader.shells_own),
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


def _value_of(text: str, wanted: str, runner: Runner) -> str | None:
    """What stands after this letter in a word of short options: `@` in `-rI@`; None if the letter is not there."""
    for at, letter in enumerate(text[1:], start=2):
        if letter == wanted:
            return text[at:]
        if letter in runner.values or text.startswith("--"):
            return None
    return None


def _completed(words: tuple[Word, ...], stands_for: str, source: str, *, appends: bool) -> Command:
    """A command with what nobody can see here: in the place of a mark, or at its end."""
    unknown = Word("", Kind.UNKNOWN, (source,), several=True)
    if stands_for:
        anything = Word("", Kind.UNKNOWN, (ANYTHING,), several=True)  # a part of a word says more than where it is from
        replaced = {True: unknown, False: anything}
        return Command(tuple(replaced[word.text == stands_for] if stands_for in word.text else word for word in words))
    return Command((*words, unknown) if appends else words)


def _ends_exec(words: tuple[Word, ...], begin: int, at: int) -> bool:
    """Whether the command that `find` runs is over: at `;`, or at `+` after `{}`."""
    return words[at].text == ";" or (words[at].text == "+" and at > begin and words[at - 1].text == "{}")


def _operands(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """What comes after the options."""
    for at, word in enumerate(words):
        if word.text == "--":
            return words[at + 1 :]
        if not word.text.startswith(("-", "+")) or word.kind is not Kind.LITERAL:
            return words[at:]
    return ()

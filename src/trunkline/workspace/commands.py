"""Every command that a command line may run, as far as its text says.

Pure. On top of the grammar it knows the commands that run others: ``sh -c``, ``eval``, ``env``, ``xargs``, ``find
-exec``, ``timeout`` and their like. It does not judge: that is ``policy``.

Invariant: what may run and cannot be seen is in ``unclear``, with a reason for the person who is asked. A program may
always start others by itself; what they can do is bounded by the sandbox, not by this.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from trunkline.workspace.shell_grammar import MAX_COMMANDS, Command, Kind, NotUnderstood, Word, parse

# The words of all of them: `env env env …` has all its words again at each level. As many as the longest text has.
MAX_WORDS: Final = 32_768


class WrapperCommand(Struct, frozen=True):
    """How a command that runs another (``timeout 5 make``) is written.

    Which of its options take a value, and how many words of its own come before the other command.
    """

    short: str = ""
    long: tuple[str, ...] = ()
    operands: int = 0
    assignments: bool = False
    appends: bool = False  # adds words that nobody can see here


WRAPPERS: Final = {
    "env": WrapperCommand("uC", ("--unset", "--chdir"), assignments=True),
    "nohup": WrapperCommand(),
    "nice": WrapperCommand("n", ("--adjustment",)),
    "timeout": WrapperCommand("ks", ("--kill-after", "--signal"), operands=1),
    "command": WrapperCommand(),
    "builtin": WrapperCommand(),
    "exec": WrapperCommand("a"),
    "setsid": WrapperCommand(),
    "stdbuf": WrapperCommand("ioe", ("--input", "--output", "--error")),
    "ionice": WrapperCommand("cn", ("--class", "--classdata")),
    "taskset": WrapperCommand(operands=1),
    "chrt": WrapperCommand("TPD", operands=1),
    "time": WrapperCommand("fo", ("--format", "--output")),
    "busybox": WrapperCommand(),
    "toybox": WrapperCommand(),
    "sudo": WrapperCommand("ugCDhprRtTU", ("--user", "--group", "--chdir", "--host", "--prompt"), assignments=True),
    "doas": WrapperCommand("uC"),
    "xargs": WrapperCommand(
        "adEILnPs",
        ("--arg-file", "--delimiter", "--max-args", "--max-procs", "--max-chars", "--max-lines"),
        appends=True,
    ),
}

SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash", "posh", "yash"})
# They run what they are given in ways of their own, or somewhere else.
OPAQUE: Final = frozenset((
    "at", "batch", "bwrap", "capsh", "chpst", "chroot", "cpulimit", "crontab", "csh", "daemonize", "docker", "entr",
    "expect", "fakeroot", "firejail", "fish", "flock", "gdb", "kubectl", "linux32", "linux64", "ltrace", "lxc",
    "machinectl", "newgrp", "nsenter", "parallel", "pkexec", "podman", "prlimit", "runuser", "screen", "script",
    "setarch", "setpriv", "sg", "softlimit", "ssh", "start-stop-daemon", "strace", "su", "systemd-run", "tcsh",
    "tmux", "unbuffer", "unshare", "watch",
))  # fmt: skip
_LOADER: Final = re.compile(r"ld(-linux.*|-musl.*|-\d.*|64)?\.so.*")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_STANDARD_INPUT: Final = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})


class FoundCommands(Struct, frozen=True):
    """What a command line may run, and in ``unclear`` why some of it cannot be seen.

    ``plain``: simple commands only, none of which runs another.
    """

    commands: tuple[Command, ...]
    unclear: tuple[str, ...]
    plain: bool


def name_of(command: Command) -> str | None:
    """The command's name without its folder, if it is written out."""
    first = command.words[0]
    return first.text.rsplit("/", 1)[-1] if first.kind is Kind.LITERAL else None


def read_commands(text: str) -> FoundCommands:
    """Every command the text may run, as written and as run by another one."""
    reader = _Reader()
    reader.text(text)
    reader.work()
    return FoundCommands(tuple(reader.found), tuple(dict.fromkeys(reader.unclear)), plain=reader.plain)


class _Reader:
    """Looks into one command after the other, until none is left that may run another."""

    def __init__(self) -> None:
        self.found: list[Command] = []
        self.unclear: list[str] = []
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
        elif name == "env" and self.env_splits(words):
            self.unclear.append("'env -S' is not read")
        elif wrapper := WRAPPERS.get(name):
            self.run_by(name, wrapper, words)
        elif name in SHELLS:
            self.shell(name, words)
        elif name in {".", "source"}:
            if not words or words[0].kind is not Kind.LITERAL or words[0].text in _STANDARD_INPUT:
                self.unclear.append(f"'{name}' reads commands that are not written out")
        elif name == "eval":
            self.joined(name, words)
        elif name == "trap":
            self.joined(name, _operands(words)[:1])
        elif name == "alias":
            for word in words:
                self.alias(word)
        elif name == "find":
            self.find(words)
        elif name == "git" and any(word.text.startswith("alias.") for word in words):
            self.unclear.append("git is given an alias, which may run anything")
        elif name in OPAQUE or _LOADER.fullmatch(name):
            self.unclear.append(f"'{name}' runs other commands in a way that is not read")

    @staticmethod
    def env_splits(words: tuple[Word, ...]) -> bool:
        return any(re.match(r"-[A-Za-z]*S|--s", word.text) for word in words)

    def run_by(self, name: str, wrapper: WrapperCommand, words: tuple[Word, ...]) -> None:
        """The command that begins after the wrapper's own options and operands."""
        operands = wrapper.operands
        at = 0
        while at < len(words):
            word = words[at]
            if word.kind is Kind.UNKNOWN:
                self.unclear.append(f"what '{name}' runs is not written out")
                return
            text = word.text
            at += 1
            if text == "--":
                continue
            if text.startswith("-") and len(text) > 1:
                if text in wrapper.long or (not text.startswith("--") and _value_follows(text[1:], wrapper.short)):
                    at += 1
                continue
            if text == "!" and name == "time":  # a word of the grammar to some shells
                continue
            if wrapper.assignments and _ASSIGNMENT.match(text):
                continue
            if operands:
                operands -= 1
                continue
            inner = words[at - 1 :]
            if wrapper.appends:
                inner = (*inner, Word("", Kind.UNKNOWN))
            self.waiting.append(Command(inner))
            return

    def shell(self, name: str, words: tuple[Word, ...]) -> None:
        for at, word in enumerate(words):
            if word.kind is Kind.UNKNOWN:
                self.unclear.append(f"what '{name}' runs is not written out")
                return
            if re.fullmatch(r"[-+]o", word.text):
                self.unclear.append(f"'{name}' is given options by name")
                return
            if re.fullmatch(r"-[A-Za-z]*s[A-Za-z]*", word.text):
                break
            if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", word.text):
                # Everything after it but further options: the first operand is the text.
                texts = _operands(words[at + 1 :])
                self.joined(f"{name} -c", texts[:1])
                return
            if not word.text.startswith(("-", "+")) or word.text == "-":
                if word.text in _STANDARD_INPUT:
                    break
                return  # a script: a program like any other
        self.unclear.append(f"'{name}' reads commands from its input")

    def joined(self, name: str, words: tuple[Word, ...]) -> None:
        if not words or any(word.kind is not Kind.LITERAL for word in words):
            self.unclear.append(f"what '{name}' runs is not written out")
        else:
            self.text(" ".join(word.text for word in words))
            self.plain = False

    def alias(self, word: Word) -> None:
        if word.kind is not Kind.LITERAL:
            self.unclear.append("an alias is not written out")
        elif "=" in word.text:
            # Where the alias is used, further words follow: nobody can see here which.
            self.text(word.text.split("=", 1)[1] + ' "$@"')
            self.plain = False

    def find(self, words: tuple[Word, ...]) -> None:
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
                seen = (Word("", Kind.UNKNOWN) if "{}" in word.text else word for word in words[begin:at])
                self.waiting.append(Command(tuple(seen)))


def _operands(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """What comes after the options."""
    for at, word in enumerate(words):
        if word.text == "--":
            return words[at + 1 :]
        if not word.text.startswith(("-", "+")) or word.kind is not Kind.LITERAL:
            return words[at:]
    return ()


def _value_follows(cluster: str, with_value: str) -> bool:
    """Whether the last letter of ``-abc`` takes the next word; a letter before it that takes a value takes the rest."""
    for at, letter in enumerate(cluster):
        if letter in with_value:
            return at == len(cluster) - 1
    return False

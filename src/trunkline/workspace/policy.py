"""What a space may do without asking: three presets as data, overrides, and the judging of files and commands.

Pure. Owns the rules; it does not own how a question is asked, nor what holds when a rule is wrong: that is the sandbox.

Invariant: rules on the text of a command only ever add a question or a refusal to what the preset allows. They are for
mistakes and for a person's peace of mind; nothing is safe *because* a text was judged harmless. Order: denied, asked,
the list of what is allowed (decision 25).
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from trunkline.errors import ConfigError
from trunkline.model import Decision
from trunkline.workspace.commands import name_of, read_commands
from trunkline.workspace.folder import Amount, Quota
from trunkline.workspace.paths import check_path
from trunkline.workspace.shell_words import Command, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Git runs what stands in its hooks and its configuration, shells and editors what stands in these files: whoever opens
# the folder with programs of his own would run it with rights of his own.
PROTECTED: Final = (
    ".git/hooks", ".git/config", ".git/config.worktree", ".git/info/attributes", ".git/modules", ".git/worktrees",
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin",
    ".envrc", ".gitconfig", ".config/git", ".ssh", ".vscode", ".idea", ".mcp.json",
)  # fmt: skip

DENIED_COMMANDS: Final = ("sudo", "su", "doas")
ASKED_COMMANDS: Final = (
    "rm -r", "rm -R", "rm --recursive", "find -delete", "dd", "mkfs", "mkfs.*", "shred", "wipefs",
    "chmod -R", "chmod --recursive", "chown -R", "chown --recursive", "chgrp -R", "chgrp --recursive",
    "git push -f", "git push --force", "git push --force-with-lease", "git push --mirror", "git push --delete",
    "git push -d", "git push --prune", "git push +*", "git push :*", "git clean -f", "git clean --force", "git rm -f",
    "git reset --hard", "git rm --force", "rsync --delete", "rsync --delete-before", "rsync --delete-during",
    "rsync --delete-delay",
    "rsync --delete-after", "rsync --delete-excluded", "rsync --remove-source-files", "cmake remove_directory",
    "tar --remove-files", "zip -m", "zip --move", "git worktree remove -f", "git worktree remove --force",
)  # fmt: skip
# No option of any of these writes a file or runs a program. That is why `sort`, `uniq`, `file`, `git` and `rg` are not
# among them. Of `find` the listed options do: see FIND_WRITES.
READING_COMMANDS: Final = (
    "[", "basename", "cat", "cd", "cksum", "cmp", "comm", "cut", "date", "df", "diff", "dirname", "du", "echo", "egrep",
    "false", "fgrep", "find", "grep", "head", "id", "ls", "md5sum", "nl", "od", "printf", "pwd", "readlink", "realpath",
    "seq", "sha1sum", "sha256sum", "sha512sum", "stat", "tac", "tail", "test", "tr", "true", "uname", "wc", "which",
    "whoami",
)  # fmt: skip
FIND_WRITES: Final = re.compile(r"-(exec|ok|delete|fprint|fls).*")

# Variables that make a program load code, before it does anything of its own.
DENIED_VARIABLES: Final = ("LD_*", "PYTHON*", "BASH_ENV", "ENV", "BASH_FUNC_*", "GLIBC_TUNABLES", "GCONV_PATH")
# Of what is dangerous in a line, so much is shown before the line itself, which is shown whole.
MAX_PARTS: Final = 5
MAX_PART_CHARACTERS: Final = 200
EXCERPT_CHARACTERS: Final = 80
_WORD_REST: Final = re.compile(r"\S{0,2000}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class FilesystemPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Reading, writing, and the paths that are never written. ``visible``: folders of the host a command may read."""

    read: Decision = Decision.ALLOW
    write: Decision = Decision.ALLOW
    protected: tuple[str, ...] = PROTECTED
    visible: tuple[str, ...] = ()


class ShellPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Commands. A rule is a name and words that must all be there; ``allowed``, if given, is all that runs unasked."""

    denied: tuple[str, ...] = DENIED_COMMANDS
    asked: tuple[str, ...] = ASKED_COMMANDS
    allowed: tuple[str, ...] | None = None
    unclear: Decision = Decision.ASK
    max_timeout_ms: Amount = 600_000


# A kernel knows addresses, not domains; to choose among those takes a proxy that all traffic has to pass.
ALL_OR_NOTHING: Final = "commands have the machine's network or none: single domains cannot be allowed"


class NetworkPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether commands may use the network. Off, they have none, not even the machine's own addresses."""

    allowed: bool = False


class CommandLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What one command may use. A compiler and its linker fit; a fork bomb and a runaway do not hurt the machine."""

    memory_bytes: Amount = 2_147_483_648
    # The kernel knows no more.
    processes: Annotated[int, Meta(ge=1, le=4_194_304)] = 256
    open_files: Amount = 4_096
    file_bytes: Amount = 1_073_741_824
    temporary_bytes: Amount = 268_435_456
    cpu_s: Amount = 1_200  # twice the longest timeout: two cores all the time


class SnapshotLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of how a space was before its runs. ``kept`` 0: nothing.

    Of a space that takes more than ``largest_space_bytes`` none is made: without a file system that shares blocks the
    first one copies everything, at some 500 MiB/s. ``max_bytes`` is for all of a space's, beside its quota.
    """

    kept: Annotated[int, Meta(ge=0, le=1000)] = 20
    max_bytes: Amount = 2_147_483_648
    largest_space_bytes: Amount = 1_073_741_824


class SpacePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """All rules and limits of one workspace."""

    filesystem: FilesystemPolicy = FilesystemPolicy()
    shell: ShellPolicy = ShellPolicy()
    network: NetworkPolicy = NetworkPolicy()
    limits: CommandLimits = CommandLimits()
    quota: Quota = Quota()
    snapshots: SnapshotLimits = SnapshotLimits()


PRESETS: Final[Mapping[str, SpacePolicy]] = {
    "restrictive": SpacePolicy(
        filesystem=FilesystemPolicy(write=Decision.ASK),
        shell=ShellPolicy(allowed=READING_COMMANDS),
    ),
    "standard": SpacePolicy(),
    "permissive": SpacePolicy(shell=ShellPolicy(asked=(), unclear=Decision.ALLOW)),
}


class SpaceVerdict(Struct, frozen=True):
    """What the policy says of one operation, by which rule, and why."""

    decision: Decision
    rule: str
    reason: str = ""
    suggestion: str | None = None
    scripts: tuple[str, ...] = ()  # files that the command reads, of which the person who is asked should see the hash


def make_policy(preset: str, overrides: Mapping[str, object] | None = None) -> SpacePolicy:
    """A preset with some of its values replaced: ``{"shell": {"denied": ["curl"]}}``."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}: one of {', '.join(PRESETS)}", "preset")
    fields = msgspec.to_builtins(PRESETS[preset])
    for section, values in (overrides or {}).items():
        if section not in fields:
            raise ConfigError(f"unknown section: one of {', '.join(fields)}", section)
        if not isinstance(values, dict):
            raise ConfigError("must be a table", section)
        for key, value in values.items():
            if (section, key) == ("network", "domains"):
                raise ConfigError(ALL_OR_NOTHING, f"{section}.{key}")
            if key not in fields[section]:
                raise ConfigError(f"unknown key: one of {', '.join(fields[section])}", f"{section}.{key}")
            fields[section][key] = value
    try:
        policy = msgspec.convert(fields, SpacePolicy)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        raise ConfigError(text, place.rstrip("`")) from None
    for key in ("denied", "asked"):
        if not all(rule.split() for rule in getattr(policy.shell, key)):
            raise ConfigError("a rule is empty: give a command's name", f"shell.{key}")
    return policy


# --- files ------------------------------------------------------------------------------------------------------------


def judge_file(policy: SpacePolicy, action: Literal["create", "read", "edit", "delete"], path: str) -> SpaceVerdict:
    """Whether a file tool may do this. WorkspaceError (validation) if it is no path."""
    names = tuple(name.casefold() for name in check_path(path))
    rules = policy.filesystem
    if action != "read":
        for protected in rules.protected:
            if _touches(names, tuple(protected.casefold().split("/"))):
                reason = f"Path '{protected}' is protected: other programs run what is written there"
                return SpaceVerdict(Decision.DENY, "filesystem.protected", reason, "Write to another path")
    decision = rules.read if action == "read" else rules.write
    if decision is Decision.ALLOW:
        return SpaceVerdict(Decision.ALLOW, "default")
    verb = {"create": "Creating", "read": "Reading", "edit": "Editing", "delete": "Deleting"}[action]
    if decision is Decision.ASK:
        return SpaceVerdict(Decision.ASK, "filesystem.approvalRequired", f"{verb} files requires approval")
    return SpaceVerdict(Decision.DENY, "filesystem.denied", f"{verb} files is not allowed in this space")


def _touches(names: tuple[str, ...], protected: tuple[str, ...]) -> bool:
    """At any depth: the protected path itself, what is beneath it, and a file in the place of a folder above it."""
    for start in range(len(names)):
        rest = names[start : start + len(protected)]
        if rest == protected[: len(rest)] and (start + len(rest) == len(names) or len(rest) == len(protected)):
            return True
    return False


# --- commands ---------------------------------------------------------------------------------------------------------


def judge_command(policy: SpacePolicy, command: str, env: Mapping[str, str] | None = None) -> SpaceVerdict:
    """Whether a command line may run, with these extra variables."""
    rules = policy.shell
    for key in env or {}:
        if refused := _judge_variable(key):
            return refused
    names = {rule.split()[0] for rule in (*rules.denied, *rules.asked)}
    patterns = [name for name in names if set(name) & set("*?[")]
    found = read_commands(
        command, lambda name: name in names or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns), env
    )
    for one in found.commands:
        if denied := _first_match(one, rules.denied, certain=True):
            name = denied.split(" ", 1)[0]
            return SpaceVerdict(
                Decision.DENY, "shell.denied", f"Command '{name}' is blocked", f"Remove {name} from command"
            )
    destructive = [one for one in found.commands if _first_match(one, rules.asked, certain=False)]
    if destructive:
        # One command alone is what is shown anyway; of a longer line, what matters stands first.
        parts = "" if len(found.commands) == 1 else f": {_parts(destructive)}"
        return SpaceVerdict(
            Decision.ASK,
            "shell.approvalRequired",
            f"Destructive command requires approval{parts}",
            scripts=found.scripts,
        )
    for one in found.suspects:
        if _first_match(one, (*rules.denied, *rules.asked), certain=False):
            reason = f"A program is given a command and may run it, which requires approval: {_parts([one])}"
            return SpaceVerdict(Decision.ASK, "shell.approvalRequired", reason, scripts=found.scripts)
    unclear = found.unclear
    if unclear and (rules.unclear is not Decision.ALLOW or _names_denied(command, rules.denied)):
        more = f", and {len(unclear) - 1} more of the kind" if len(unclear) > 1 else ""
        reason = f"Command cannot be parsed and requires approval: {unclear[0]}{more}"
        if not found.commands:
            reason += _excerpts(command, rules.asked)
        decision = Decision.ASK if rules.unclear is Decision.ALLOW else rules.unclear
        rule = "shell.denied" if decision is Decision.DENY else "shell.approvalRequired"
        return SpaceVerdict(decision, rule, reason, "Write the command out plainly", found.scripts)
    if rules.allowed is None:
        return SpaceVerdict(Decision.ALLOW, "default")
    judged = _judge_allowed(found.commands, rules.allowed, plain=found.plain and not env)
    return msgspec.structs.replace(judged, scripts=found.scripts)


def _parts(commands: Sequence[Command]) -> str:
    """Commands for a person who is asked, in the order of the line, and how much of them is not shown."""
    shown = [_written(command) for command in reversed(commands[-MAX_PARTS:])]
    left_out = len(commands) - len(shown)
    return "; ".join(shown) + (f"; and {left_out} more such commands that are not shown here" if left_out else "")


def _written(command: Command) -> str:
    words = [word.text if word.kind is Kind.LITERAL else f"{word.text}…" for word in command.words]
    text = " ".join(words)
    end = _end_of_word(text, MAX_PART_CHARACTERS)
    return f"'{text[:end]}'" + (f" (cut: {len(text) - end} more characters)" if end < len(text) else "")


def _end_of_word(text: str, at: int) -> int:
    """Where to cut: not inside a word, since half a secret is not recognised as one when the record is masked."""
    return at + len(_WORD_REST.match(text, at).group()) if at < len(text) else len(text)  # type: ignore[union-attr]


def _excerpts(command: str, asked: tuple[str, ...]) -> str:
    """Of a text that was not understood: where it names what is asked about, so that it is not lost in a long one."""
    names = "|".join(re.escape(name) for name in sorted({rule.split()[0] for rule in asked if "*" not in rule}))
    # A name, and an option or so after it: `git` and `find` alone say nothing.
    places = [found.start() for found in re.finditer(rf"(?<![\w./-])(?:{names})\s+[^\s;|&]", command)] if names else []
    shown = [f"'{command[place : _end_of_word(command, place + EXCERPT_CHARACTERS)]}'" for place in places[-MAX_PARTS:]]
    return f"; it holds, among other things: {'; '.join(shown)}" if shown else ""


def _judge_variable(key: str) -> SpaceVerdict | None:
    if not VARIABLE.fullmatch(key):
        reason = f"'{key}' is not a name of an environment variable"
    elif any(fnmatch.fnmatchcase(key, pattern) for pattern in DENIED_VARIABLES):
        reason = f"Environment variable '{key}' is blocked"
    else:
        return None
    return SpaceVerdict(Decision.DENY, "shell.environment", reason, f"Remove {key} from env")


def _judge_allowed(commands: tuple[Command, ...], allowed: tuple[str, ...], *, plain: bool) -> SpaceVerdict:
    rule = "shell.approvalRequired"
    if not plain:
        text = "Only plain reading commands run without approval: no redirections, expansions, variables or functions"
        return SpaceVerdict(Decision.ASK, rule, text)
    for command in commands:
        # Without its folder `./cat` would be `cat`. /usr/bin is the sandbox's own and cannot be written.
        name = command.words[0].text.removeprefix("/usr/bin/").removeprefix("/bin/")
        if name not in allowed or (name == "find" and _find_writes(command)):
            text = f"Command '{name}' is not one of the reading commands and requires approval"
            return SpaceVerdict(Decision.ASK, rule, text)
    return SpaceVerdict(Decision.ALLOW, "shell.allowed")


def _find_writes(command: Command) -> bool:
    # A file may be called `-delete`, so what expands to names counts too.
    return any(word.kind is Kind.UNKNOWN or FIND_WRITES.match(word.text) for word in command.words)


def _names_denied(command: str, denied: tuple[str, ...]) -> bool:
    """Whether a text that was not understood holds a denied name, with all quoting taken off."""
    bare = re.sub(r"[\\'\"]", "", command)
    return any(re.search(rf"(?<![\w-]){re.escape(rule.split()[0])}(?![\w-])", bare) for rule in denied)


def _first_match(command: Command, rules: tuple[str, ...], *, certain: bool) -> str | None:
    name = name_of(command)
    if name is None:
        return None
    for rule in rules:
        wanted, *words = rule.split()
        if fnmatch.fnmatchcase(name, wanted) and all(_has(name, command, word, certain=certain) for word in words):
            return rule
    return None


def _has(name: str, command: Command, wanted: str, *, certain: bool) -> bool:
    """Whether the wanted option or operand is among the words, or, unless certain, may be."""
    operand_before = False
    for word in command.words[1:]:
        # Of others it may be the value of an option (`git clean -e -- -f`), or end nothing (`find -- x -delete`).
        if name == "rm" and word.text == "--" and wanted.startswith("-"):
            return False
        if word.kind is Kind.UNKNOWN:
            # It may be the subcommand only if none stands before it: `git add $files` is not `git push`.
            if not certain and (wanted.startswith(("-", "+", ":")) or not operand_before):
                return True
        elif _is_wanted(word.text, wanted):
            return True
        else:
            operand_before = operand_before or word.text[:1] != "-"
    return False


def _is_wanted(text: str, wanted: str) -> bool:
    if wanted.startswith("--"):
        option = text.split("=", 1)[0]
        return len(option) > 2 and wanted.startswith(option)  # long options may be cut short
    if len(wanted) == 2 and wanted.startswith("-"):
        return text.startswith("-") and not text.startswith("--") and wanted[1] in text
    return fnmatch.fnmatchcase(text, wanted)

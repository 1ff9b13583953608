"""What is known of programs: which run another command, which run code from their command line, which start nothing.

Data only, and the two small readers of inline programs (``awk``, ``sed``) that ordinary work is full of. How a command
line is looked through with it is ``commands``; whether a person is asked is ``policy``.

Invariant: an entry is exact. An option that is not listed for a program that runs others is not guessed at: what it
does to the words after it decides which of them is the command. So it is unclear, and what is unclear is asked.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct


class Runner(Struct, frozen=True):
    """How a program that runs another (``timeout 5 make``) is written: all its options, and its own words before it.

    ``flags`` and ``values`` are the letters of short options without and with a value, ``long`` and ``long_values``
    the same of long ones.
    """

    flags: str = ""
    values: str = ""
    long: tuple[str, ...] = ()
    long_values: tuple[str, ...] = ()
    operands: int = 0
    assignments: bool = False
    numbers: bool = False  # `nice -10`
    dash: bool = False  # `env -`
    appends: bool = False  # adds words that nobody can see here
    replaces: str = ""  # the option whose value stands for such words, wherever it is written


RUNNERS: Final = {
    "env": Runner(
        "i0v", "uC", ("--ignore-environment", "--null", "--debug"), ("--unset", "--chdir"), assignments=True, dash=True
    ),
    "nohup": Runner(),
    "nice": Runner("", "n", (), ("--adjustment",), numbers=True),
    "timeout": Runner(
        "vfp", "ks", ("--foreground", "--preserve-status", "--verbose"), ("--kill-after", "--signal"), operands=1
    ),
    "command": Runner("pvV"),
    "builtin": Runner(),
    "exec": Runner("cl", "a"),
    "setsid": Runner("cfw", "", ("--ctty", "--fork", "--wait")),
    "stdbuf": Runner("", "ioe", (), ("--input", "--output", "--error")),
    "ionice": Runner("t", "cn", ("--ignore",), ("--class", "--classdata")),
    "taskset": Runner("ac", "", ("--all-tasks", "--cpu-list"), operands=1),
    "chrt": Runner("abdfimorvR", "TPD", (), ("--sched-runtime", "--sched-period", "--sched-deadline"), operands=1),
    "choom": Runner("", "n", (), ("--adjust",)),
    "flock": Runner(
        "sexnuoFv",
        "wE",
        ("--shared", "--exclusive", "--nonblock", "--unlock", "--close", "--no-fork", "--verbose"),
        ("--wait", "--timeout", "--conflict-exit-code"),
        operands=1,
    ),
    "chronic": Runner("ev"),
    "time": Runner("pvaq", "fo", ("--portability", "--verbose", "--append", "--quiet"), ("--format", "--output")),
    "busybox": Runner(),
    "toybox": Runner(),
    "npx": Runner("yq", "p", ("--yes", "--no", "--no-install", "--quiet", "--offline"), ("--package",)),
    "cross-env": Runner(assignments=True),
    "sudo": Runner(
        "AbBEHknPS", "ugCDhprRtTU", (), ("--user", "--group", "--chdir", "--host", "--prompt"), assignments=True
    ),
    "doas": Runner("n", "uC"),
    "xargs": Runner(
        "0rtxpo",
        "adEILnPs",
        ("--null", "--no-run-if-empty", "--verbose", "--exit", "--interactive", "--open-tty"),
        ("--arg-file", "--delimiter", "--max-args", "--max-procs", "--max-chars", "--max-lines"),
        appends=True,
        replaces="I",
    ),
}

SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash", "posh", "yash"})
# What may stand after `-o` of a shell.
SHELL_OPTIONS: Final = frozenset({"errexit", "noclobber", "noglob", "nounset", "pipefail", "verbose", "xtrace"})
# Options of a shell that change nothing about how a text is read, or where it comes from.
SHELL_FLAGS: Final = frozenset("abefhmnuvxpCl")

# They run what they are given in ways of their own, or somewhere else.
OPAQUE: Final = frozenset((
    "at", "batch", "bwrap", "capsh", "chpst", "chroot", "cpulimit", "crontab", "csh", "daemonize", "dbus-launch",
    "dbus-run-session", "docker", "ed", "emacs", "entr", "eatmydata", "ex", "expect", "fakechroot", "fakeroot",
    "firejail", "fish", "ftp", "gdb", "i386", "kubectl", "linux32", "linux64", "lldb", "ltrace", "lxc",
    "machinectl", "mail", "mailx", "nano", "nc", "ncat", "netcat", "newgrp", "nsenter", "numactl", "nvim",
    "parallel", "pkexec", "podman", "prlimit", "rlwrap", "run-parts", "runcon", "runuser", "rview", "rvim", "scp",
    "screen", "script", "scriptlive", "setarch", "setpriv", "sftp", "sg", "socat", "softlimit", "ssh", "ssh-agent",
    "ssh-keygen", "start-stop-daemon", "strace", "su", "systemd-run", "tcsh", "telnet", "tmux", "uname26",
    "unbuffer", "unshare", "vi", "view", "vigr", "vim", "vimdiff", "vipw", "vim.basic", "vim.tiny", "watch",
    "x86_64", "xterm",
))  # fmt: skip


class Interpreter(Struct, frozen=True):
    """A program that runs a script. Its own options, all of them; ``code`` are those that hold a program themselves."""

    code: str = ""
    code_long: tuple[str, ...] = ()
    flags: str = ""
    values: str = ""
    long: str = "--(version|help)"  # an expression
    no_script: str = "--(version|help)"  # an expression: with these it needs none
    tells: str = "vVh"  # options with which, if nothing follows, it only says something
    module: str = ""  # the option after which a module's name and its words stand


_PYTHON: Final = Interpreter("c", (), "bBdEhIOPqsSuvVx?", "WX", tells="Vh?", module="m")
_ANY: Final = Interpreter("ecgE", ("--eval", "--execute", "--expression", "--print"))
INTERPRETERS: Final = {
    **dict.fromkeys(("python", "python2", "python3", "pypy", "pypy3"), _PYTHON),
    "perl": Interpreter("eE", (), "cvVwWtTX", "I"),
    "ruby": Interpreter("e", (), "cvwW", "IE", long="--(version|help|disable|enable|yjit).*"),
    **dict.fromkeys(
        ("node", "nodejs"),
        Interpreter(
            "ep",
            ("--eval", "--print"),
            "chv",
            "Cr",
            long=r"--(version|help|check|require|test|watch|inspect|inspect-brk|prof|((experimental|no|trace|max|stack|test|watch"
            r"|enable|preserve|throw|unhandled|openssl|harmony|expose|env-file)[\w-]*))(=.*)?",
            no_script="--(version|help|test)",
        ),
    ),
    "php": Interpreter("rBRE", ("--run",), "ilmnvq", "fSt"),
    "lua": Interpreter("e", (), "vEW", "l"),
    "Rscript": Interpreter("e", (), "", "", long="--(version|help|vanilla|verbose|no-.*)"),
    **dict.fromkeys(
        ("R", "clojure", "dc", "elixir", "erl", "gnuplot", "groovy", "guile", "iex", "ipython", "ipython3", "irb",
         "jshell", "julia", "luajit", "m4", "ocaml", "octave", "raku", "racket", "sbcl", "scala", "swipl", "tclsh",
         "ts-node", "tsx", "wish"),
        _ANY,
    ),
}  # fmt: skip
# `python3.12` is `python3`.
_VERSIONED: Final = re.compile(r"(python|pypy|lua|perl|php|ruby|tclsh|node|guile)[\d.]+")
# Modules of Python's that take a program as their words, or run one that is not written here.
MODULES_WITH_CODE: Final = frozenset((
    "IPython", "_pyrepl", "asyncio", "bpython", "cProfile", "code", "debugpy", "doctest", "idlelib", "kernprof",
    "memory_profiler", "pdb", "profile", "profiling", "ptpython", "pyinstrument", "runpy", "scalene", "timeit", "trace",
    "viztracer",
))  # fmt: skip


def interpreter_of(name: str) -> Interpreter | None:
    """The interpreter of this name, whichever version of it."""
    found = _VERSIONED.fullmatch(name)
    return INTERPRETERS.get(found.group(1)) if found else INTERPRETERS.get(name)


class Starts(Struct, frozen=True):
    """With which of its options or words an ordinary program starts others, or takes commands."""

    short: str = ""
    long: tuple[str, ...] = ()
    words: str = ""  # an expression
    strict: bool = False  # it is given names of files, and `*` may become such an option


STARTS: Final = {
    "tar": Starts("IF", ("--checkpoint-action", "--to-command", "--use-compress-program", "--info-script",
                         "--new-volume-script", "--rsh-command", "--rmt-command"), strict=True),
    "bsdtar": Starts("", ("--use-compress-program",)),
    "rsync": Starts("e", ("--rsh", "--rsync-path"), strict=True),
    "fd": Starts("xX", ("--exec", "--exec-batch")),
    "fdfind": Starts("xX", ("--exec", "--exec-batch")),
    "rg": Starts("", ("--pre", "--hostname-bin")),
    "zip": Starts("", ("--unzip-command",), r"-TT.*"),
    "split": Starts("", ("--filter",)),
    "man": Starts("PH", ("--pager", "--html")),
    "less": Starts("", (), r"\+.*"),
    "more": Starts("", (), r"\+.*"),
    "wget": Starts("", ("--use-askpass",)),
    "npm": Starts("c", ("--call", "--script-shell")),
    "pnpm": Starts("c", ("--shell-mode", "--script-shell")),
    "go": Starts("", (), r"--?(exec|toolexec|vettool)(=.*)?"),
    "cargo": Starts("", ("--config",)),
    "gcc": Starts("", (), r"-(wrapper|fplugin.*)"),
    "g++": Starts("", (), r"-(wrapper|fplugin.*)"),
    "cc": Starts("", (), r"-(wrapper|fplugin.*)"),
    "clang": Starts("", (), r"-(wrapper|fplugin.*)"),
    "deno": Starts("", (), r"eval|repl"),
    "bun": Starts("e", ("--eval", "--print"), r"repl|exec"),
    "make": Starts("E", ("--eval",), r"-|\.?SHELL(FLAGS)?[:+?]*=.*|MAKEFLAGS[:+?]*=.*|.*([$`\n;|&<>*?[({]|!=).*"),
    "cmake": Starts("", (), r"remove_directory"),
    "hash": Starts("p"),
    "jobs": Starts("x"),
    "wait": Starts("p"),
    "install": Starts("", ("--strip-program",)),
    "sort": Starts("", ("--compress-program",)),
}  # fmt: skip
# The option of make's after which, or in which, the file with its commands is named.
MAKE_FILE: Final = re.compile(r"(?:-[A-Za-z0-9]*f|--[fm][a-z-]*(?:=|$))(.*)", re.DOTALL)

# Of sqlite3: options without a value, and its own commands that start nothing. An SQL function may, too.
SQLITE_FLAGS: Final = re.compile(
    r"--?(ascii|bail|batch|box|column|csv|echo|header|help|html|json|line|list|markdown|noheader|quote|readonly|safe|stats"
    r"|table|tabs|version)"
)
SQLITE_COMMANDS: Final = re.compile(r"\.(dump|databases|fullschema|indexes|indices|schema|tables)(\s+[\w%]+)*\s*")
SQLITE_STARTS: Final = re.compile(r"\b(edit|load_extension)\b", re.IGNORECASE)

# Programs that start nothing, whatever they are given. What they write or remove is another matter.
START_NOTHING: Final = frozenset((
    ":", "[", "arch", "b2sum", "base32", "base64", "basename", "break", "bunzip2", "bzcat", "bzip2", "cal", "cat",
    "cd", "chgrp", "chmod", "chown", "cksum", "clear", "cmp", "column", "comm", "continue", "cp", "csplit", "curl",
    "cut", "date", "dd", "df", "diff", "diff3", "dirname", "dos2unix", "du", "echo", "egrep", "exit", "expand",
    "expr", "factor", "false", "fgrep", "file", "fmt", "fold", "free", "getconf", "getopts", "grep", "groups",
    "gunzip", "gzip", "head", "hexdump", "hostname", "iconv", "id", "join", "jq", "kill", "link", "ln", "locale",
    "logger", "logname", "ls", "lsblk", "lscpu", "lsof", "md5sum", "mkdir", "mkfifo", "mknod", "mktemp", "mv", "nl",
    "nm", "nproc", "numfmt", "objdump", "od", "paste", "pathchk", "pgrep", "pidof", "pkill", "pr", "printenv",
    "printf", "ps", "ptx", "pwd", "pwdx", "readelf", "readlink", "realpath", "return", "rev", "rm", "rmdir", "seq",
    "set", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "shift", "shred", "shuf", "size", "sleep",
    "stat", "strings", "strip", "stty", "sum", "sync", "tac", "tail", "tee", "test", "times", "top", "touch", "tr",
    "tree", "true", "truncate", "tsort", "tty", "type", "ulimit", "umask", "uname", "unexpand", "uniq", "unix2dos",
    "unlink", "unxz", "unzip", "unzstd", "uptime", "users", "vdir", "wc", "whereis", "which", "who", "whoami",
    "xxd", "xz", "xzcat", "yes", "zcat", "zstd", "zstdcat",
))  # fmt: skip

# Variables whose value some program runs, or takes for its options.
CODE_VARIABLES: Final = (
    "BASH_*", "BASHPID", "BROWSER", "CARGO_*_RUNNER", "COMP*", "DIRSTACK", "EDITOR", "ENV",
    "EPOCH*", "GIT_ALLOW_PROTOCOL", "GIT_ASKPASS", "GIT_CONFIG*", "GIT_EDITOR",
    "GIT_EXEC_PATH", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_PROXY_COMMAND", "GIT_SEQUENCE_EDITOR", "GIT_SSH*",
    "GIT_TEMPLATE_DIR", "GZIP", "IFS", "JAVA_TOOL_OPTIONS", "LD_*", "LESSCLOSE", "LESSOPEN", "MAKEFILES", "MAKEFLAGS",
    "GNUMAKEFLAGS", "MANPAGER", "NODE_OPTIONS", "PAGER", "PERL5DB", "PERL5OPT", "PROMPT_COMMAND", "PS0", "PS1", "PS2",
    "PS4", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "RSYNC_RSH", "RUBYOPT", "RUSTC_WRAPPER", "SHELL",
    "SHELLOPTS", "BASHOPTS", "SSH_ASKPASS", "TAR_OPTIONS", "VISUAL",
    # Bash takes what is given to these for arithmetic, in which a command may stand.
    "HISTCMD", "LINENO", "OPTIND", "RANDOM", "SECONDS", "SRANDOM",
)  # fmt: skip

# --- git --------------------------------------------------------------------------------------------------------------

GIT_FLAGS: Final = frozenset((
    "-P", "--no-pager", "--bare", "--no-replace-objects", "--literal-pathspecs", "--glob-pathspecs",
    "--noglob-pathspecs", "--icase-pathspecs", "--no-optional-locks", "--version", "-v", "--help", "-h",
))  # fmt: skip
GIT_VALUES: Final = frozenset({"-C", "--git-dir", "--work-tree", "--namespace"})
# Any other setting may name a program; so may a subcommand that git does not know, for that is an alias.
GIT_SETTINGS: Final = re.compile(
    r"(user|color|advice|column|pull|status|branch|fetch|log|stash|tag|i18n|rerere)\.[\w./-]+"
    r"|init\.defaultbranch|submodule\.recurse"
    r"|core\.(autocrlf|eol|quotepath|filemode|ignorecase|symlinks|safecrlf|abbrev|compression|bare|precomposeunicode)"
    r"|push\.(default|autosetupremote)|commit\.(gpgsign|verbose|status)|tag\.gpgsign|merge\.(ff|conflictstyle|stat)"
    r"|diff\.(renames|algorithm|context|noprefix|mnemonicprefix|colormoved)|safe\.directory|remote\.[\w.-]+\.(url|fetch)",
    re.IGNORECASE,
)
# What `git config` may be told: how it reads, and where; with anything else it is not certain what it does.
GIT_CONFIG_READS: Final = frozenset({"--get", "--get-all", "--get-regexp", "--list", "-l", "get", "list"})
GIT_CONFIG_FLAGS: Final = frozenset((
    "--global", "--local", "--system", "--worktree", "--bool", "--int", "--path", "--null", "-z", "--name-only",
    "--show-origin", "--show-scope", "--includes", "--add", "--unset", "--unset-all", "--replace-all",
))  # fmt: skip
# They are given the address of another repository, which may name a program: `ext::…`.
GIT_CONNECTS: Final = frozenset({"archive", "clone", "fetch", "ls-remote", "pull", "push", "remote", "submodule"})
GIT_COMMANDS: Final = frozenset((
    "add", "am", "annotate", "apply", "archive", "blame", "branch", "bundle", "cat-file", "check-attr", "check-ignore",
    "checkout", "checkout-index", "cherry", "cherry-pick", "clean", "clone", "commit", "commit-tree", "config",
    "count-objects", "describe", "diff", "diff-files", "diff-index", "diff-tree", "fetch", "for-each-ref",
    "format-patch", "fsck", "gc", "grep", "hash-object", "help", "init", "log", "ls-files", "ls-remote", "ls-tree",
    "maintenance", "merge", "merge-base", "merge-file", "mv", "name-rev", "notes", "pack-refs", "prune", "pull",
    "push", "range-diff", "read-tree", "rebase", "reflog", "remote", "rerere", "reset", "restore", "rev-list",
    "rev-parse", "revert", "rm", "shortlog", "show", "show-branch", "show-ref", "sparse-checkout", "stash", "status",
    "stripspace", "submodule", "switch", "symbolic-ref", "tag", "update-index", "update-ref", "var", "verify-commit",
    "verify-pack", "version", "whatchanged", "worktree", "write-tree",
))  # fmt: skip
GIT_STARTS: Final = {
    "archive": Starts("", ("--exec",)),
    "clone": Starts("cu", ("--config", "--upload-pack", "--template")),
    "config": Starts("e", ("--edit",)),
    "diff": Starts("", ("--ext-diff",)),
    "fetch": Starts("", ("--upload-pack",)),
    "grep": Starts("O", ("--open-files-in-pager",)),
    "init": Starts("", ("--template",)),
    "log": Starts("", ("--ext-diff",)),
    "ls-remote": Starts("", ("--upload-pack", "--exec")),
    "pull": Starts("", ("--upload-pack",)),
    "push": Starts("", ("--receive-pack", "--exec")),
    "rebase": Starts("x", ("--exec", "--interactive")),
    "show": Starts("", ("--ext-diff",)),
    "submodule": Starts("", (), "foreach"),
}

# --- inline programs of awk and sed -----------------------------------------------------------------------------------

AWK: Final = frozenset({"awk", "gawk", "mawk", "nawk", "original-awk"})
SED: Final = frozenset({"sed", "gsed"})


# After these an expression begins, so `/` opens a regular expression; after a value it divides.
_AWK_BEFORE_VALUE: Final = frozenset(("=", "~", "(", ",", "!", "&", "|", ";", "{", "}", "\n"))
_AWK_BEFORE_EITHER: Final = frozenset((
    "case", "delete", "do", "else", "exit", "getline", "in", "length", "print", "printf", "return",
))  # fmt: skip
_AWK_WORD: Final = re.compile(r"\w+")
_AWK_RUNS: Final = re.compile(r"[|@\\]|\bsystem\b")
_AWK_MENTIONS: Final = re.compile(r"[|@]|system|\\\n")


def awk_may_run(program: str) -> bool:
    """Whether a program of awk may start others: ``system``, a pipe, a library, a function by its name in a text."""
    bare: list[str] = []
    before = "\n"  # what stands last, blanks aside: a word or a character
    mentions = _AWK_MENTIONS.search(program.replace("||", "")) is not None
    at = 0
    while at < len(program):
        character = program[at]
        opens = character == "/" and before in _AWK_BEFORE_VALUE
        if character == "/" and not opens:
            divides = before in {"]", '"'} or (before[0].isalnum() and before not in _AWK_BEFORE_EITHER)
            if mentions and not divides:
                return True  # what follows would be a text in one case, and code in the other
        if opens or character == '"':
            closing = re.compile(rf"((?:\\.|[^{character}\\\n])*){character}", re.DOTALL).match(program, at + 1)
            if closing is None or (opens and _has_open_bracket(closing.group(1))):
                return True
            at = closing.end()
            bare.append("_")
            before = '"'
        elif character == "#":
            end = program.find("\n", at)
            at = len(program) if end < 0 else end
        else:
            word = _AWK_WORD.match(program, at)
            found = word.group() if word else character
            bare.append(found)
            before = before if found in {" ", "\t"} else found
            at += len(found)
    return _AWK_RUNS.search("".join(bare).replace("||", "")) is not None


def _has_open_bracket(expression: str) -> bool:
    """Whether the end that was found for a regular expression may stand in brackets, where some take it for no end."""
    return "[" in re.sub(r"\\.|\[\^?\]?(?:\[:\w+:\]|[^]\[])*\]", "", expression)


_SED_ADDRESS: Final = re.compile(
    r"(?:(?:\d+(?:~\d+)?|\$|/(?:\\.|\[\^?\]?[^]]*\]|[^/\\\n[])*/[IM]*)(?:[ ]*,[ ]*(?:\d+|\$|[+~]\d+"
    r"|/(?:\\.|\[\^?\]?[^]]*\]|[^/\\\n[])*/[IM]*))?)?[ ]*!?[ ]*"
)
_SED_SIMPLE: Final = re.compile(r"(?:[pdPDgGhHxnNzF=]|[qQlL][ ]*\d*|[btT][ ]*\w*|:[ ]*\w+)[ ]*(?=[;}\n#]|$)")
_SED_LINE: Final = re.compile(r"[aic][ ]*(?:\\\n|\\.|[^\n\\])*|[rRwW][^\n]*")
_SED_FLAGS: Final = re.compile(r"[gpiIM\d]*[ ]*(?=[;}\n#]|$)")


def sed_may_run(script: str) -> bool:
    """Whether a script of sed may start a program (``e``), or is not one of the forms that are known to start none."""
    at = 0
    while at < len(script):
        if script[at] in " \t\n;{}":
            at += 1
            continue
        if script[at] == "#":
            end = script.find("\n", at)
            at = len(script) if end < 0 else end
            continue
        address = _SED_ADDRESS.match(script, at)
        assert address is not None
        if _has_open_bracket(address.group()):
            return True
        at = address.end()
        if script[at : at + 1] == "{":
            continue
        if script[at : at + 1] in {"s", "y"}:
            after = _after_delimiters(script, at + 1)
            flags = None if after is None else _SED_FLAGS.match(script, after)
            if flags is None:
                return True
            at = flags.end()
        elif found := _SED_SIMPLE.match(script, at) or _SED_LINE.match(script, at):
            at = found.end()
        else:
            return True
    return False


def _after_delimiters(script: str, at: int) -> int | None:
    """After the third of the characters that stand around both parts of ``s/a/b/``; None if one is missing."""
    delimiter = script[at : at + 1]
    if not delimiter or delimiter in "\\\n" or delimiter.isalnum():
        return None
    at += 1
    for _ in range(2):
        start = at
        while script[at : at + 1] != delimiter:
            if at >= len(script):
                return None
            at += 2 if script[at] == "\\" else 1
        if _has_open_bracket(script[start:at]):
            return None
        at += 1
    return at

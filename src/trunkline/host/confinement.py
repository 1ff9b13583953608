"""What of the machine a launched agent gets to see, and how that is told to bubblewrap or to Landlock.

Owns the view: which paths are shown to read, which to write, and what is named when something was missing. Looks at the
machine's folders and changes nothing; trying whether it holds is ``isolation``'s part, entering it ``confined``'s.

Invariant: everything is named. The home of the exchange is never part of a view, whichever folder leads to it; of all
that is in it an agent sees its own folder, the agents' socket, and files that its own lines of the configuration name.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from trunkline.host.launch import LaunchError
from trunkline.workspace.plan import (
    DEVICES,
    NETWORK_SETTINGS,
    SETTING_FOLDERS,
    SETTINGS,
    SHARED_MEMORY,
    SYSTEM_FOLDERS,
    TEMPORARY,
    system_options,
)
from trunkline.workspace.seccomp import agent_filter

# Agents look up their own user, and names on the network.
AGENT_SETTINGS: Final = (*SETTINGS, *NETWORK_SETTINGS, "passwd", "group", "os-release", "gai.conf", "host.conf")
# Where some distributions keep what `/etc/ssl/certs` links to.
CERTIFICATES: Final = "/etc/ca-certificates"
# `/tmp` and `/dev/shm` of an agent are memory. What needs more has the agent's own folder, where TMPDIR leads.
TEMPORARY_BYTES: Final = 268_435_456
# Folders of programs: what they need lies beside them.
PROGRAM_FOLDERS: Final = ("bin", "sbin", "Scripts")
# Of a folder right below somebody's home (`~/.local`) only these: keyrings and mail lie there too.
PROGRAM_PARTS: Final = ("bin", "lib", "lib64", "libexec", "ssl", "pyvenv.cfg")
# What the exchange keeps in its home for itself. `agents` holds the folders of the others.
OWN_NAMES: Final = re.compile(r"\.?(agents|keys|logs|run|operator\.token|ready|ledger|trunkline\.toml)\b.*")
# Links from one interpreter to the next that are followed: venv, pyenv or uv, a version, a patch level are four.
MAX_HOPS: Final = 32
# Enough for the first line of a script, which the kernel cuts at 256 bytes.
FIRST_LINE_BYTES: Final = 256

# An absolute path in a line of a log, up to what ends it in the usual error messages.
_PATH: Final = re.compile(r"(?<![\w.:/])(/[^\s'\"`:;,()\[\]<>|]+)")
_READ_ONLY: Final = re.compile(r"Read-only file system|EROFS", re.IGNORECASE)
# What bubblewrap does not show is not there; what Landlock does not show may not be opened.
_REFUSED: Final = re.compile(r"Permission denied|EACCES|PermissionError", re.IGNORECASE)


class View(Struct, frozen=True):
    """What one agent sees, in absolute paths. ``folder`` is its own; ``hidden`` are the ways to the exchange's home."""

    folder: str
    socket: str
    cwd: str
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    network: bool = True


class Subject(Struct, frozen=True):
    """The agent that a view is made for: its lines of the configuration, and the file that its command means."""

    command: Sequence[str]
    program: str
    cwd: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = True
    # What other agents may write.
    written_by_others: tuple[str, ...] = ()
    # The agent may read what it says of itself.
    manifest: str | None = None


def program_paths(file: str, home: str) -> tuple[str, ...]:
    """What a program needs to see to run, besides the system."""
    places = _Places(home)
    return tuple(_widest(places.with_targets(places.program(file))))


def make_view(subject: Subject, *, home: str, folder: str, socket: str, installed: Iterable[str]) -> View:
    """What this agent sees. ``installed`` is what our own code needs. ``LaunchError``: a path that cannot be shown."""
    # Names are compared from here on: `..` would lead elsewhere than it seems.
    cwd = subject.cwd if os.path.normpath(subject.cwd) == subject.cwd else os.path.realpath(subject.cwd)
    program = os.path.normpath(subject.program)
    brought = tuple(installed)
    _check_named(subject, _Places(home), brought)
    writable = _writable(subject.write)
    shared = _writable(subject.written_by_others)
    # What an agent can change it could make a link to anything, for the next start.
    places = _Places(home, (f"{home}/agents", *writable, *shared))
    files = subject.command[1:] if subject.manifest is None else [*subject.command[1:], subject.manifest]
    named = [*subject.read, *places.named(files, cwd), *brought]
    if not places.is_closed(cwd):
        named.append(cwd)
    if not _below_any(program, brought):
        named += places.program(program)
        _check_program(program, (*named, *writable), places)
    shown = places.shown(named, writable, shared)
    ways = places.ways_home([*shown, *writable])
    # What is shown of the home stays apart: something above the home would not show it.
    inside = [path for path in shown if _below_any(path, ways)]
    return View(
        folder=folder,
        socket=socket,
        cwd=cwd,
        readable=(*_widest(path for path in shown if path not in inside), *_widest(inside)),
        writable=tuple(writable),
        hidden=tuple(ways),
        network=subject.network,
    )


def _check_named(subject: Subject, places: _Places, brought: Sequence[str]) -> None:
    for key, paths in (("read", subject.read), ("write", subject.write)):
        for path in paths:
            if not os.path.exists(path):
                raise LaunchError(f"{key} names {path}, which does not exist")
            if places.is_ours(path):
                raise LaunchError(f"{key} names {path}, which is the exchange's own")
    for path in map(places.real, subject.write):
        # Who may move the folders above them would have the next exchange run what he likes.
        for held in (places.real_home, *map(places.real, brought)):
            if is_below(held, path) or (held != places.real_home and is_below(path, held)):
                raise LaunchError(f"write names {path}, but the exchange itself is there ({held}): name another folder")


def _check_program(program: str, shown: Sequence[str], places: _Places) -> None:
    """A program that is a link which an agent can change is not followed: somebody has to say where it leads."""
    real = os.path.realpath(program)
    if places.is_changeable(program) and not _is_system(real) and not _below_any(real, shown):
        folder = os.path.dirname(os.path.dirname(real))
        problem = f"its program {program} leads to {real}, from a folder that an agent may write to"
        raise LaunchError(f'{problem}: add read = ["{folder}"] to its [[agent]]')


def _writable(paths: Sequence[str]) -> list[str]:
    """What may be written, as it is written down and where it leads; but for what lies in another such folder."""
    tops = [
        path
        for path in paths
        if not any(is_below(path, way) for other in paths if other != path for way in (other, os.path.realpath(other)))
    ]
    return _widest(found for path in tops for found in (path, os.path.realpath(path)))


def is_visible(view: View, path: str) -> bool:
    """Whether an agent with this view can see a path, as far as the view decides that."""
    inside = [*view.readable, *view.writable]
    hidden = [way for way in view.hidden if is_below(path, way)]
    if hidden:
        # What is shown of the home lies below the way to it.
        inside = [shown for shown in inside if any(is_below(shown, way) for way in hidden)]
    return is_below(path, view.folder) or path == view.socket or _below_any(path, inside) or _is_system(path)


def advice(view: View, printed: str, table: str = "[[agent]]") -> str:
    """What to add to the configuration, if the last lines of an agent that failed name a path that it cannot see.

    The last such line counts: the error that ended a program is what it prints last.
    """
    for line in reversed(printed.splitlines()):
        for path in dict.fromkeys(match[1].rstrip(".") for match in _PATH.finditer(line)):
            said = _advice_for(view, path, line, table)
            if said:
                return said
    return ""


def advice_on(view: View, printed: str, exception: str, table: str = "[[agent]]") -> str:
    """The same for an exception of a tool, whose agent goes on: the last line that names this type of it counts."""
    named = [line for line in printed.splitlines() if exception in line]
    return advice(view, named[-1], table) if named else ""


def _advice_for(view: View, path: str, line: str, table: str) -> str:
    if _is_system(path) or is_below(path, view.folder) or path == view.socket or _below_any(path, view.writable):
        return ""
    is_read_only = _READ_ONLY.search(line) is not None
    is_refused = is_read_only or _REFUSED.search(line) is not None
    if any(_is_own_name(path, way) for way in view.hidden):
        return ""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if folder in view.hidden:
        folder = path  # the exchange's home as a whole cannot be shown
    if is_visible(view, path):
        if not is_refused:
            return ""
        return f'it named {path}, which its sandbox shows it to read only: add write = ["{folder}"] to its {table}'
    is_there = os.path.exists(path)
    if not is_there and not (is_refused and os.path.isdir(folder)):
        return ""
    key = "write" if is_read_only or not is_there else "read"
    return f'it named {path}, which its sandbox does not show it: add {key} = ["{folder}"] to its {table}'


# --- for bubblewrap and for Landlock ----------------------------------------------------------------------------------


def bubblewrap_plan(view: View, program: str) -> dict[str, Any]:
    """The words for bubblewrap; those that need a descriptor are added by whoever becomes it (``confined``)."""
    uid, gid = str(os.geteuid()), str(os.getegid())
    inside = [path for path in (*view.readable, *view.writable) if _below_any(path, view.hidden)]
    outside = [path for path in (*view.readable, *view.writable) if path not in inside]
    return {
        "kind": "bubblewrap",
        "bubblewrap": program,
        # With the machine's network come its sockets without a file.
        "hides_sockets": view.network,
        "copies": [(f"/etc/{name}", f"/etc/{name}") for name in AGENT_SETTINGS],
        "filter": base64.b64encode(agent_filter(os.uname().machine)).decode(),
        "options": [
            "--unshare-user", "--unshare-all", *(["--share-net"] if view.network else []),
            "--disable-userns", "--die-with-parent", "--cap-drop", "ALL", "--uid", uid, "--gid", gid,
            *system_options([CERTIFICATES] if os.path.isdir(CERTIFICATES) else ()),
            # Read only, as an exchange of root's has agents with root's uid, who owns the kernel's settings.
            "--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev",
            "--perms", "1777", "--size", str(TEMPORARY_BYTES), "--tmpfs", SHARED_MEMORY, "--remount-ro", "/dev",
            "--perms", "1777", "--size", str(TEMPORARY_BYTES), "--tmpfs", TEMPORARY,
            *_binds(outside, view.writable),
            *(word for way in view.hidden for word in ("--tmpfs", way)),
            *_binds(inside, view.writable),
            "--bind", view.folder, view.folder,
            *(["--ro-bind-try", view.socket, view.socket] if view.socket else []),
            *(word for way in view.hidden for word in ("--remount-ro", way)),
            *([] if view.cwd == "/" else ["--dir", view.cwd] if not is_visible(view, view.cwd) else []),
            "--remount-ro", "/",
            "--chdir", view.cwd,
        ],
    }  # fmt: skip


def landlock_plan(view: View) -> dict[str, Any]:
    """The rules for Landlock, which only adds: a folder that leads to the home is named by what else is in it."""
    settings = (*AGENT_SETTINGS, *SETTING_FOLDERS)
    around = [path for shown in view.readable for path in _around(shown, view.hidden)]
    return {
        "kind": "landlock",
        "readable": ["/usr", *(f"/{name}" for name in SYSTEM_FOLDERS), *(f"/etc/{name}" for name in settings),
                     CERTIFICATES, "/proc/self", *around],
        "writable": [view.folder, *(f"/dev/{name}" for name in DEVICES),
                     *(path for shown in view.writable for path in _around(shown, view.hidden))],
        "filter": base64.b64encode(
            agent_filter(os.uname().machine, shared=True, network=view.network)
        ).decode(),
    }  # fmt: skip


def _binds(paths: Sequence[str], writable: Sequence[str]) -> Iterator[str]:
    """What lies above first: a mount hides what is below it."""
    for path in sorted(paths):
        yield from ("--bind" if path in writable else "--ro-bind", path, path)


def _around(path: str, hidden: Sequence[str]) -> list[str]:
    """The path, or if it leads to the home, what lies beside the way there."""
    if not any(is_below(way, path) for way in hidden):
        return [path]
    if path in hidden:
        return []
    return [found for entry in os.listdir(path) for found in _around(os.path.join(path, entry), hidden)]


# --- what is where ----------------------------------------------------------------------------------------------------


class _Places:
    """The exchange's home, and the homes of people: what must not be shown only because something in it is needed.

    ``changeable`` are folders in which no link is followed.
    """

    def __init__(self, home: str, changeable: Sequence[str] = ()) -> None:
        self.home = home
        self._changeable = changeable
        self._real: dict[str, str] = {}
        self.real_home = self.real(home)
        self.people = {self.real(os.path.expanduser("~")), "/root"}
        with contextlib.suppress(KeyError):  # a user without a name, as containers have them
            self.people.add(self.real(pwd.getpwuid(os.geteuid()).pw_dir))

    def real(self, path: str) -> str:
        """Where a path leads; looked up once, as the same few are asked for again and again."""
        if path not in self._real:
            self._real[path] = self._resolved(path) if self._changeable else os.path.realpath(path)
        return self._real[path]

    def is_changeable(self, path: str) -> bool:
        """Whether an agent could make something else of it."""
        return _below_any(path, self._changeable)

    def _resolved(self, path: str) -> str:
        """Like ``realpath``, up to the first folder in which no link is followed."""
        waiting = path.strip("/").split("/")[::-1]
        found, links = "/", 0
        while waiting and not self.is_changeable(found):
            name = waiting.pop()
            step = os.path.normpath(os.path.join(found, name))
            if os.path.islink(step) and not self.is_changeable(step) and links < MAX_HOPS:
                links += 1
                target = os.path.normpath(os.path.join(found, os.readlink(step)))
                waiting += target.strip("/").split("/")[::-1]
                found = "/"
            else:
                found = step
        return os.path.join(found, *waiting[::-1])

    def shown(self, named: Iterable[str], writable: Sequence[str], shared: Sequence[str]) -> list[str]:
        """What of these is to be shown to read: not what is there anyway, or could be something else by now."""
        found = dict[str, None]()
        for path in self.with_targets(named):
            if _is_system(path) or _below_any(path, (f"{self.home}/agents", *writable)):
                continue
            if not self.is_changeable(path):
                # A link into such a folder would be followed to its end by whoever shows it.
                if not self.is_changeable(self.real(path)):
                    found[path] = None
            else:
                # In a folder that another agent may write to: that is shown, as it is.
                found.update((top, None) for top in shared if is_below(path, top))
        return list(found)

    def with_targets(self, paths: Iterable[str]) -> list[str]:
        """Paths as they are written, and where they lead: programs ask for both."""
        return list(dict.fromkeys(found for path in paths for found in (path, self.real(path))))

    def hops(self, file: str) -> list[str]:
        """A file and the files that its links lead to, one after the other."""
        found = [file]
        while not self.is_changeable(found[-1]) and os.path.islink(found[-1]) and len(found) < MAX_HOPS:
            target = os.path.normpath(os.path.join(os.path.dirname(found[-1]), os.readlink(found[-1])))
            if target in found:
                break
            found.append(target)
        return list(dict.fromkeys([*found, self.real(file)]))

    def is_ours(self, path: str) -> bool:
        """Whether it is the home, or something that the exchange keeps there."""
        return _is_own_name(self.real(path), self.real_home)

    def is_closed(self, folder: str) -> bool:
        """Whether a folder is not shown even though an agent works there: the root, somebody's home, or ours."""
        real = self.real(folder)
        return real == "/" or self.is_persons(real) or self.is_ours(real)

    def is_persons(self, real: str) -> bool:
        return real in self.people or os.path.dirname(real) == "/home"

    def is_wide(self, folder: str) -> bool:
        """Whether a folder holds too much to be shown because of one file in it."""
        real = self.real(folder)
        is_at_top = os.path.dirname(real) == "/"
        return is_at_top or self.is_closed(real) or is_below(self.real_home, real)

    def named(self, words: Sequence[str], cwd: str) -> Iterator[str]:
        """What the words of a command name: the folders of files, folders themselves."""
        for word in words:
            for text in dict.fromkeys((word, word.partition("=")[2])):
                path = os.path.normpath(os.path.join(cwd, text)) if text and "\0" not in text else ""
                try:
                    is_there = bool(path) and os.path.exists(path)
                except OSError:  # a script as a word is no path, and too long for one
                    continue
                if is_there and self.is_changeable(path):
                    yield path
                elif is_there and not self.is_ours(path):
                    yield from self.beside(path)

    def beside(self, path: str) -> Iterator[str]:
        """A file with its folder, or alone if that holds too much; and where its links lead."""
        if os.path.isdir(path):
            if not self.is_wide(path):
                yield path
            return
        for file in self.hops(path):
            folder = os.path.dirname(file)
            if self.is_changeable(file):
                yield file
            elif not self.is_ours(file):
                yield file if self.is_wide(folder) else folder

    def program(self, program: str) -> Iterator[str]:
        """A program with what it needs to run: its prefix, its interpreter's, and folders that Python adds."""
        waiting, seen = [program], set[str]()
        while waiting and len(seen) < MAX_HOPS:
            file = waiting.pop()
            if file in seen or self.is_ours(file):
                continue
            if self.is_changeable(file):
                yield file
                continue
            seen.add(file)
            for found in self.prefix(file):
                yield found
                yield from self.added(found)
                waiting += _base_programs(found)
            waiting += [*self.hops(file)[1:], *_interpreters(file)]

    def prefix(self, file: str) -> list[str]:
        """The folder that a program is installed in."""
        folder = os.path.dirname(file)
        if _is_system(folder):
            return []
        above = os.path.dirname(folder)
        if os.path.basename(folder) not in PROGRAM_FOLDERS:
            return [file] if self.is_wide(folder) else [folder]
        if self.is_persons(self.real(os.path.dirname(above))):
            return [path for name in PROGRAM_PARTS if os.path.exists(path := os.path.join(above, name))]
        if not self.is_wide(above):
            return [above]
        return [file] if self.is_wide(folder) else [folder]

    def added(self, prefix: str) -> Iterator[str]:
        """Folders that a Python installation adds to its path: what is installed for editing."""
        for file in glob.glob(f"{glob.escape(prefix)}/lib/python3*/site-packages/*.pth"):
            for line in () if self.is_changeable(file) else _text(file).splitlines():
                if line.startswith("/") and os.path.isdir(line) and not self.is_wide(line):
                    yield line

    def ways_home(self, shown: Sequence[str]) -> list[str]:
        """Where the home would appear if these were shown: where it is, and behind each link that leads above it."""
        found = {self.real_home}
        for path in shown:
            real = self.real(path)
            if is_below(self.real_home, real):
                found.add(os.path.normpath(os.path.join(path, os.path.relpath(self.real_home, real))))
        if not _below_any(self.home, shown):
            found.add(self.home)
        return sorted(found)


def is_below(path: str, folder: str) -> bool:
    """Whether it is this folder or in it, by the names alone."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_own_name(path: str, home: str) -> bool:
    """Whether it is the home, or something that the exchange keeps there, by the names alone."""
    if not is_below(path, home):
        return False
    first = os.path.relpath(path, home).split("/")[0]
    return first == "." or OWN_NAMES.fullmatch(first) is not None


def _below_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


def _is_system(path: str) -> bool:
    """Whether every sandbox has it, or something of its own in its place."""
    return _below_any(path, ("/usr", *(f"/{name}" for name in SYSTEM_FOLDERS), "/proc", "/dev")) or path == TEMPORARY


def _widest(paths: Iterable[str]) -> list[str]:
    """Without those that lie in another one."""
    kept: list[str] = []
    for path in sorted(paths):
        if not _below_any(path, kept):
            kept.append(path)
    return kept


def _base_programs(prefix: str) -> list[str]:
    """Of a virtual environment: a program in the installation that it was made from."""
    for line in _text(os.path.join(prefix, "pyvenv.cfg")).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            return [os.path.join(value.strip(), "python3")]
    return []


def _interpreters(file: str) -> list[str]:
    """What the first line of a script runs, if it names that by its path."""
    try:
        with open(file, "rb") as opened:
            first = opened.read(FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return []
    words = os.fsdecode(first).removeprefix("#!").split() if first.startswith(b"#!") else []
    return words[:1] if words and words[0].startswith("/") else []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65_536)
    except OSError:
        return ""


def environment_inside(folder: str, home_variable: str) -> Mapping[str, str]:
    """What an agent with a folder of its own finds in its environment instead of the operator's home."""
    return {"HOME": folder, "TMPDIR": folder, home_variable: folder}

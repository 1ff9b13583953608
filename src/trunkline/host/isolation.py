"""Which isolation a launched agent gets on this machine, seen by trying, and its folder.

Owns the choice between bubblewrap, Landlock, a user of its own and none, with the reason where something does not hold.
What an agent sees is ``confinement``'s; the steps into it are ``confined``'s.

Invariant: a sandbox is used only after a trial in it could neither read nor write what it must not see. An agent whose
isolation was written down is not started with less.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

import trunkline
from trunkline.errors import WorkspaceError
from trunkline.host.confinement import Subject, View, bubblewrap_plan, landlock_plan, make_view, program_paths
from trunkline.host.launch import LaunchError
from trunkline.workspace.folder import free_uid
from trunkline.workspace.sandbox import ADVICE, LANDLOCK_VERSION, landlock_version
from trunkline.workspace.seccomp import is_known

Wanted = Literal["sandbox", "user", "none"]
Kind = Literal["bubblewrap", "landlock"]

# A trial takes 30 ms on an idle machine.
TRIAL_S: Final = 10.0
# Where an agent with a user of its own finds its socket and its folder, as it may not enter root's folders. The name
# that follows tells the homes of this machine apart.
PLACES: Final = "/run/trunkline"

# Each line that begins with `fault` is a hole. What is appended may land in a folder of the sandbox's own, so that the
# host looks whether its file changed.
_TRIAL: Final = """
cat {home}/operator.token 2>/dev/null && echo 'fault: it reads files of the exchange'
cat {outside}/secret 2>/dev/null && echo 'fault: it reads files outside'
(echo changed >> {home}/operator.token; echo changed >> {outside}/secret) 2>/dev/null
(: >> /proc/sys/kernel/core_pattern) 2>/dev/null && echo 'fault: it writes kernel settings'
kill -0 {exchange} 2>/dev/null && [ ! -d /proc/2 ] && echo 'fault: it reaches other processes'
cat /proc/{exchange}/environ 2>/dev/null | grep -q . && [ ! -d /proc/2 ] && echo 'fault: it sees other processes'
: > "$HOME/here" && echo finished
"""


class Sandbox(Struct, frozen=True):
    """The kind of sandbox that holds here, or why none does. ``program`` is bubblewrap's path."""

    kind: Kind | None
    program: str = ""
    why_not: str = ""

    def plan(self, view: View) -> dict[str, Any]:
        """What the keeper is told."""
        return bubblewrap_plan(view, self.program) if self.kind == "bubblewrap" else landlock_plan(view)


class Isolation(Struct, frozen=True):
    """What an agent gets: ``name`` is what people are shown, ``is_lacking`` that nobody chose to go without."""

    name: str
    kind: Literal["sandbox", "user", "none"]
    is_lacking: bool = False


def choose(wanted: Wanted | None, sandbox: Sandbox) -> Isolation:
    """What an agent gets; ``LaunchError`` if it was written down and cannot be had."""
    if wanted == "none":
        return Isolation("none", "none")
    if wanted == "user":
        if os.geteuid() != 0:
            raise LaunchError('isolation = "user" needs an exchange that root runs: only root can start other users')
        return Isolation("user", "user")
    if sandbox.kind is not None:
        return Isolation(f"sandbox ({sandbox.kind})", "sandbox")
    if wanted == "sandbox":
        raise LaunchError(f'isolation = "sandbox" does not hold on this machine: {sandbox.why_not}')
    return Isolation(f"none: {sandbox.why_not}", "none", is_lacking=True)


@functools.cache
def own_code(home: str) -> tuple[str, ...]:
    """What an agent in Python needs of ours: the interpreter with what it brings, and the package itself.

    Looked for once, in 5 ms: neither moves while the exchange runs.
    """
    package = str(Path(trunkline.__file__))
    return tuple(path for file in (sys.executable, package) for path in program_paths(file, home))


# --- folders and users ------------------------------------------------------------------------------------------------


def agent_folder(home: Path, agent_id: str) -> Path:
    """An agent's own folder, made if it is not there."""
    folder = home / "agents" / agent_id
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def own_uid(folder: Path) -> int:
    """The user of an agent whose folder this is: the one who owns it, else one that no other agent of this home has."""
    owner = folder.stat().st_uid
    return owner if owner != 0 else _free(folder, folder.parent)


def _free(for_folder: Path, agents: Path) -> int:
    try:
        return free_uid(for_folder, {folder.stat().st_uid for folder in agents.iterdir()})
    except WorkspaceError as problem:
        raise LaunchError(problem.message) from None


def give_to(folder: Path, uid: int) -> None:
    """Make this user the owner of an agent's folder and of all in it, if he is not. Links are not followed."""
    if folder.stat().st_uid == uid or os.geteuid() != 0:
        return
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                os.chown(os.path.join(root, name), uid, uid, follow_symlinks=False)  # noqa: PTH118
    os.chown(folder, uid, uid)


def folder_of_users(home: Path) -> str:
    """Where agents of this home with users of their own find what is theirs."""
    return f"{PLACES}/{sha256(os.fsencode(home)).hexdigest()[:16]}"


def leave_place(home: Path) -> None:
    """Remove that folder, which is empty but for those who see something in it."""
    with contextlib.suppress(OSError):
        Path(folder_of_users(home)).rmdir()


def user_plan(home: Path, folder: Path, socket: str, cwd: str) -> dict[str, Any]:
    """What the keeper is told for an agent with a user of its own; without ``socket`` it is shown none."""
    place = Path(folder_of_users(home))
    try:
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as problem:
        raise LaunchError(f"{place} cannot be made: {problem.strerror}") from None
    # No user: the group of all agents of this home that have users of their own, to whom the socket is opened. Its
    # folder stays closed, so that only they reach it, where it is shown to them.
    group = _free(folder.parent, folder.parent)
    shown = [(str(folder), f"{place}/{folder.name}")]
    if socket:
        with contextlib.suppress(FileNotFoundError):
            os.chown(socket, -1, group)
            Path(socket).chmod(0o660)
        # No id begins with a dot.
        shown.append((socket, f"{place}/.agents.sock"))
    return {"kind": "user", "uid": own_uid(folder), "group": group, "place": str(place), "shown": shown, "cwd": cwd}


# --- which one holds --------------------------------------------------------------------------------------------------


def probe(kinds: tuple[Kind, ...] = ("bubblewrap", "landlock")) -> Sandbox:
    """The first kind of sandbox that holds for agents here."""
    reasons: list[str] = []
    for kind in kinds:
        sandbox = _candidate(kind)
        why_not = sandbox.why_not or _try(sandbox)
        if not why_not:
            return sandbox
        reasons.append(f"{kind}: {why_not}")
    return Sandbox(None, why_not=f"{'; '.join(reasons)}; {ADVICE}")


def _candidate(kind: Kind) -> Sandbox:
    machine = os.uname().machine
    if not is_known(machine):
        return Sandbox(kind, why_not=f"no filter of system calls for {machine}")
    if kind == "landlock":
        version = landlock_version()
        if version < LANDLOCK_VERSION:
            return Sandbox(kind, why_not=f"the kernel has version {version}, {LANDLOCK_VERSION} is needed")
        return Sandbox(kind)
    program = shutil.which("bwrap")
    return Sandbox(kind, why_not="bwrap is not installed") if program is None else Sandbox(kind, program)


def _try(sandbox: Sandbox) -> str:
    """Why an agent in this sandbox would not be held, or could not work; empty if neither."""
    with tempfile.TemporaryDirectory(prefix="trunkline-probe-") as name:
        outside = Path(os.path.realpath(name))
        outside.chmod(0o755)
        home = outside / "home"
        home.mkdir()
        planted = (home / "operator.token", outside / "secret")
        for file in planted:
            file.write_text("secret", encoding="ascii")
            file.chmod(0o666)
        work = outside / "work"
        work.mkdir()
        folder = agent_folder(home, "trial")
        command = ["/bin/sh", "-c", _TRIAL.format(home=home, outside=outside, exchange=os.getpid())]
        subject = Subject(command, command[0], str(work))
        view = make_view(subject, home=str(home), folder=str(folder), socket=str(home / "sock"), installed=())
        said = _run(sandbox.plan(view), command, {"HOME": str(folder), "PATH": os.defpath}, str(work))
        faults = [line.removeprefix("fault: ") for line in said.splitlines() if line != "finished"]
        if any(file.read_text(encoding="ascii") != "secret" for file in planted):
            faults.append("it writes files outside")
        if not faults and not (folder / "here").is_file():
            faults.append("a trial did not come to its end")
        return "; ".join(faults)[:500]


def _run(plan: dict[str, Any], command: list[str], env: dict[str, str], cwd: str) -> str:
    tried = json.dumps({"plan": plan, "program": command[0], "argv": command, "env": env})
    paths = os.pathsep.join(filter(None, sys.path))
    try:
        return subprocess.run(
            [sys.executable, "-P", "-m", "trunkline.host.confined"],
            input=tried.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={"PYTHONPATH": paths},
            timeout=TRIAL_S,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"a trial could not be made: {problem}"

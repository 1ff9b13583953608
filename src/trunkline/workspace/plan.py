"""What the launcher is told for one command: the view of the machine that the command gets, and its limits.

Owns what is visible where, for both kinds of sandbox. Looks at the machine's folders; changes nothing but the mode of a
folder of the workspace that leads to protected files and was closed.

Invariant: everything is named. What is not in a plan, be it a folder, a variable or a descriptor, is not there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trunkline.errors import WorkspaceError
from trunkline.workspace.paths import failure_of, kind_of, open_folder
from trunkline.workspace.seccomp import filter_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trunkline.workspace.folder import Workspace
    from trunkline.workspace.policy import CommandLimits, SpacePolicy

# Where the launcher, as root, shows the workspace to the user it becomes. In a mount namespace of its own.
PLACE: Final = "/tmp/workspace"  # noqa: S108 — nothing is written there, and nobody else sees it
HOME: Final = "/workspace"
TEMPORARY: Final = "/tmp"  # noqa: S108 — the sandbox's own
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 — the same
USER: Final = 1000  # inside; outside it is the workspace's owner

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEM_FOLDERS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Programs find their libraries, certificates and time zone here. Nothing of /etc is secret to everybody, but not all of
# it is anybody's business. Files are copied: a mount for each would cost 0.4 ms of every start.
SETTINGS: Final = ("ld.so.cache", "localtime", "mime.types", "nsswitch.conf", "ssl/openssl.cnf")
SETTING_FOLDERS: Final = ("alternatives", "pki", "ssl/certs")
NETWORK_SETTINGS: Final = ("hosts", "protocols", "resolv.conf", "services")
DEVICES: Final = ("null", "zero", "full", "random", "urandom")

PASSWD: Final = (
    f"space:x:{USER}:{USER}:space:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n".encode()
)
GROUP: Final = f"space:x:{USER}:\nnogroup:x:65534:\n".encode()

# The number of processes is counted for each user namespace, so it is set inside: outside, everything else of this user
# would count. `ulimit -p` is dash's and busybox's name for it, where bash has `-u`.
_SHELL: Final = 'ulimit -p "$1" 2>/dev/null || ulimit -u "$1" || exit 125; exec /bin/sh -c "$2"'


# Python takes compiled code for current if second and size of its source are: after an edit within a second that keeps
# the size, a test would run what was there before.
NO_STALE_CODE: Final = {"PYTHONDONTWRITEBYTECODE": "1"}


def environment(home: str, temporary: str, extra: Mapping[str, str]) -> dict[str, str]:
    """All variables of a command; nothing is inherited."""
    return {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", "TMPDIR": temporary, **NO_STALE_CODE, **extra}


def bubblewrap_plan(
    program: str, workspace: Workspace, policy: SpacePolicy, command: str, cwd: tuple[str, ...], env: Mapping[str, str]
) -> dict[str, Any]:
    """For a command in namespaces of its own. Bytes among the options stand for a descriptor to read them from."""
    is_root = os.geteuid() == 0
    source = PLACE if is_root else str(workspace.root.absolute())
    return _plan(workspace, policy.limits, is_root=is_root) | {
        "bubblewrap": program,
        "network": policy.network.allowed,
        "copies": [(f"/etc/{name}", f"/etc/{name}") for name in _settings(policy)],
        "options": [
            "--unshare-user", "--unshare-all", *(["--share-net"] if policy.network.allowed else []),
            "--disable-userns", "--die-with-parent", "--new-session",
            "--uid", str(USER), "--gid", str(USER), "--hostname", "space",
            *system_options(policy.filesystem.visible),
            "--proc", "/proc", "--dev", "/dev",
            "--perms", "1777", "--size", str(policy.limits.temporary_bytes), "--tmpfs", SHARED_MEMORY,
            "--remount-ro", "/dev",
            "--perms", "1777", "--size", str(policy.limits.temporary_bytes), "--tmpfs", TEMPORARY,
            "--bind", source, HOME, *_protected(workspace, policy.filesystem.protected, source),
            "--file", PASSWD, "/etc/passwd", "--file", GROUP, "/etc/group",
            "--remount-ro", "/",
            "--chdir", "/".join((HOME, *cwd)),
            *_variables(environment(HOME, TEMPORARY, env)),
            "--seccomp", filter_program(os.uname().machine),
        ],
        "command": ["/bin/sh", "-c", _SHELL, "sh", str(policy.limits.processes), command],
    }  # fmt: skip


def landlock_plan(
    workspace: Workspace, policy: SpacePolicy, command: str, cwd: tuple[str, ...], env: Mapping[str, str]
) -> dict[str, Any]:
    """For a command that sees the machine's names but may open only these."""
    is_root = os.geteuid() == 0
    home = PLACE if is_root else str(workspace.root.absolute())
    settings = (*_settings(policy), *SETTING_FOLDERS, "passwd", "group")
    limits = policy.limits
    # There is no user namespace to count in: everything of this user counts, so what runs already is added.
    processes = limits.processes + _processes_of(workspace.uid)
    return _plan(workspace, limits, is_root=is_root) | {
        "bubblewrap": None,
        "cwd": "/".join((home, *cwd)),
        "env": environment(home, home, env),
        "own_limits": [(resource.RLIMIT_NPROC, processes)],
        "readable": ["/usr", *(f"/{name}" for name in SYSTEM_FOLDERS), *(f"/etc/{name}" for name in settings),
                     *policy.filesystem.visible],
        "writable": [home, *(f"/dev/{name}" for name in DEVICES)],
        "sockets": policy.network.allowed,
        "filter": filter_program(os.uname().machine, shared=True, sockets=policy.network.allowed),
        "command": ["/bin/sh", "-c", command],
    }  # fmt: skip


def _plan(workspace: Workspace, limits: CommandLimits, *, is_root: bool) -> dict[str, Any]:
    info = os.fstat(workspace.fd)
    return {
        "parent": os.getpid(),
        "root": (str(workspace.root.absolute()), (info.st_dev, info.st_ino), PLACE) if is_root else None,
        "owner": (workspace.uid, workspace.gid),
        "limits": [
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, limits.cpu_s),
            # Not RLIMIT_AS: node, Java and Go reserve address space that they never use.
            (resource.RLIMIT_DATA, limits.memory_bytes),
            (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_NOFILE, min(limits.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
            (resource.RLIMIT_MEMLOCK, 65_536),
            (resource.RLIMIT_MSGQUEUE, 0),
        ],
    }


def _settings(policy: SpacePolicy) -> tuple[str, ...]:
    return (*SETTINGS, *NETWORK_SETTINGS) if policy.network.allowed else SETTINGS


def system_options(visible: Iterable[str]) -> list[str]:
    """The machine's programs and libraries, and what else is named, to be read only."""
    options = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            options += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            options += ["--ro-bind", str(folder), str(folder)]
    for name in SETTING_FOLDERS:
        if Path("/etc", name).is_dir():
            options += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    for path in visible:
        options += ["--ro-bind", path, path]
    return options


def _protected(workspace: Workspace, protected: tuple[str, ...], source: str) -> list[str]:
    """Paths that are there and must not be written. Folders above them become mounts too, so that none can be moved."""
    options: list[str] = []
    mounted: set[str] = set()
    with workspace.acting():
        present = [path for path in sorted(protected) if _is_there(workspace, path.split("/"))]
    for path in present:
        names = path.split("/")
        for length in range(1, len(names)):
            above = "/".join(names[:length])
            if above not in mounted:
                options += ["--bind", f"{source}/{above}", f"{HOME}/{above}"]
                mounted.add(above)
        options += ["--ro-bind", f"{source}/{path}", f"{HOME}/{path}"]
        mounted.add(path)
    return options


def _is_there(workspace: Workspace, names: list[str]) -> bool:
    try:
        for length in range(1, len(names)):
            with open_folder(workspace.fd, tuple(names[: length - 1])) as above:
                _open_up(above, names[length - 1])
        with open_folder(workspace.fd, tuple(names[:-1])) as folder:
            # A link would be followed by the mount and show what it leads to: it is left alone.
            return kind_of(folder, names[-1]) in {"file", "folder"}
    except WorkspaceError as error:
        # A machine that cannot tell must not be taken for one that says no: the path would be left open.
        if error.kind == "system":
            raise
        return False


def _open_up(above: int, name: str) -> None:
    """Let the owner look into a folder of his.

    A command that closed it could open it again in the next one, in which nothing inside would be mounted. The
    descriptor needs no right to read the folder; by its name in /proc the mode can be changed, whatever is renamed.
    """
    try:
        folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except NotADirectoryError:
        return  # a link or a file: nothing is below it
    except OSError as error:
        raise failure_of(error) from None
    try:
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            with contextlib.suppress(PermissionError):  # somebody else's: no command can open it either
                Path(f"/proc/self/fd/{folder}").chmod(mode | stat.S_IRWXU)
    finally:
        os.close(folder)


def _variables(env: Mapping[str, str]) -> list[str]:
    options = ["--clearenv"]
    for key, value in env.items():
        options += ["--setenv", key, value]
    return options


def _processes_of(uid: int) -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                count += entry.stat().st_uid == uid and len(list((entry / "task").iterdir()))
            except OSError:
                continue
    return count

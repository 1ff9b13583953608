"""The small program between the exchange and a command: it gives rights away, then becomes the sandbox.

Its code and a plan (see ``plan``) come to a bare interpreter on the standard input. It imports nothing of ours and as
little as possible: each command pays for its start. A process of its own, because these steps change a whole
process and must not happen between fork and exec of the exchange.

Invariant: what it becomes never has root's real uid, a descriptor or a variable that the plan does not name, and ends
with the exchange.
"""

from __future__ import annotations

# What `ctypes`, `os` and `signal` are made of: with these themselves a start would take 7 ms more.
import _ctypes
import _signal as signal  # type: ignore[import-not-found]
import marshal
import posix as os
import resource
import sys
from _ctypes import _SimpleCData as Simple
from posix import _exit

TYPE_CHECKING = False  # `typing` would cost 2 ms
if TYPE_CHECKING:
    from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 32, 4096, 16384, 1 << 18

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_READ = 0b1101  # execute, read a file, read a folder
LANDLOCK_FILE_ONLY = 0b1000_0000_0000_0111 | 1 << 14  # the rights that a rule on a file may name
LANDLOCK_ALL = (1 << 16) - 1  # up to ABI 5: what exists since is not about files
LANDLOCK_ABSTRACT_SOCKETS = 0b01
LANDLOCK_SCOPES = 0b11  # abstract Unix sockets, signals
S_IFMT, S_IFDIR = 0o170000, 0o040000
# `nice` for a command: the exchange goes first when both want the processor.
NICENESS = 10

status_fd = -1


class Int(Simple):  # type: ignore[type-arg] # it has none at run time
    """C's ``int``: what ``ctypes.c_int`` is, without importing ``ctypes``."""

    _type_ = "i"


class Short(Simple):  # type: ignore[type-arg] # it has none at run time
    """C's ``unsigned short``, in the same way."""

    _type_ = "H"


class Bytes(Simple):  # type: ignore[type-arg] # it has none at run time
    """C's ``char *``, in the same way: a pointer to bytes."""

    _type_ = "z"


class Function(_ctypes.CFuncPtr):
    """A function of the C library that returns an ``int``."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = Int


library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # what is loaded already
mount, prctl, socket, syscall, unshare = (
    Function(_ctypes.dlsym(library, name)) for name in ("mount", "prctl", "socket", "syscall", "unshare")
)


def fail(text: str) -> NoReturn:
    """Say why there is no sandbox, and end."""
    os.write(status_fd, b"launch: " + text.encode() + b"\n")
    _exit(125)


def check(result: int, what: str) -> int:
    """The result of a call that must not fail."""
    if result < 0:
        fail(f"{what}: {os.strerror(_ctypes.get_errno())}")
    return result


def longs(*values: int) -> bytes:
    """An array of ``uint64_t``."""
    return b"".join(value.to_bytes(8, sys.byteorder) for value in values)


def join_groups(files: list[str]) -> None:
    """Enter the control groups that were made for this command."""
    for path in files:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b"0")
        os.close(fd)


def place_workspace(source: str, identity: tuple[int, int], place: str) -> None:
    """As root: show the workspace, which may be under a folder closed to its owner, at a place open to everybody."""
    check(unshare(CLONE_NEWNS), "unshare")
    check(mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    fd = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    info = os.fstat(fd)
    if (info.st_dev, info.st_ino) != identity:
        fail("the workspace's folder was replaced")
    parent = place.rpartition("/")[0].encode()
    check(mount(b"trunkline", parent, b"tmpfs", MS_NOSUID | MS_NODEV, b"size=64k,mode=755"), "tmpfs")
    os.mkdir(place)
    target = place.encode()
    check(mount(f"/proc/self/fd/{fd}".encode(), target, None, MS_BIND, None), "bind")
    check(mount(None, target, None, MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV, None), "bind again")
    os.close(fd)


def drop_rights(uid: int, gid: int) -> None:
    """Become the workspace's owner for good."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def end_with(parent: int) -> None:
    """End when the exchange ends, also if it has already."""
    check(prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        fail("the exchange is gone")


def inherit(data: bytes) -> int:
    """A descriptor, kept over exec, from which these bytes can be read."""
    fd = os.memfd_create("trunkline", 0)
    os.write(fd, data)
    os.lseek(fd, 0, 0)
    return fd


def readable(path: str) -> int:
    """A descriptor of a file, kept over exec."""
    fd = os.open(path, os.O_RDONLY)
    os.set_inheritable(fd, True)
    return fd


def hide_sockets() -> None:
    """With the machine's network come its sockets without a file; Landlock keeps those out, where the kernel can."""
    attributes = longs(0, 0, LANDLOCK_ABSTRACT_SOCKETS)
    ruleset = syscall(LANDLOCK_CREATE, attributes, 24, 0)
    if ruleset >= 0:
        check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
        check(syscall(LANDLOCK_RESTRICT, ruleset, 0), "landlock restrict")
        os.close(ruleset)


def arguments_of(plan: dict[str, Any], *more: str) -> int:
    """A descriptor with bubblewrap's options: everybody on the machine may read an argument list."""
    options = []
    for source, target in plan["copies"]:
        try:
            options += ["--file", str(readable(source)), target]
        except FileNotFoundError:
            continue
    for word in plan["options"]:
        options.append(str(inherit(word)) if isinstance(word, bytes) else word)
    options += more
    return inherit(b"\0".join(word.encode(errors="surrogateescape") for word in options) + b"\0")


def become_bubblewrap(plan: dict[str, Any]) -> NoReturn:
    """The process that sets the sandbox up, waits for the command, and says how it ended."""
    arguments = arguments_of(plan, "--json-status-fd", str(status_fd))
    os.execve(plan["bubblewrap"], ["bwrap", "--args", str(arguments), "--", *plan["command"]], {})


# --- Landlock ---------------------------------------------------------------------------------------------------------


def restrict_files(readable: list[str], writable: list[str]) -> None:
    """Nothing of the file system but these, no signal to and no abstract socket of anybody outside."""
    attributes = longs(LANDLOCK_ALL, 0, LANDLOCK_SCOPES)
    ruleset = check(syscall(LANDLOCK_CREATE, attributes, 24, 0), "landlock")
    for paths, rights in ((readable, LANDLOCK_READ), (writable, LANDLOCK_ALL)):
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH)
            except FileNotFoundError:
                continue
            is_folder = os.fstat(fd).st_mode & S_IFMT == S_IFDIR
            allowed = rights if is_folder else rights & LANDLOCK_FILE_ONLY
            rule = longs(allowed) + fd.to_bytes(4, sys.byteorder)  # `struct landlock_path_beneath_attr`, packed
            check(syscall(LANDLOCK_ADD, ruleset, 1, rule, 0), "landlock rule")
            os.close(fd)
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    check(syscall(LANDLOCK_RESTRICT, ruleset, 0), "landlock restrict")
    os.close(ruleset)


class Filter(_ctypes.Structure):
    """C's ``struct sock_fprog``: the filter of system calls as the kernel takes it."""

    _fields_ = (("length", Short), ("code", Bytes))


def refuse_calls(code: bytes) -> None:
    """Load the filter into this process and all that come from it."""
    program = Filter(len(code) // 8, code)
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, _ctypes.byref(program), 0, 0), "seccomp")


def end_group(group: int) -> None:
    """Kill all of it, and wait until the last one is gone. Orphans are our children: we are their reaper."""
    try:
        os.killpg(group, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def watch_over(plan: dict[str, Any]) -> NoReturn:
    """Run the command as a child whose whole group ends with us. It cannot leave the group: the filter says so."""
    check(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    check(prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0), "prctl")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    if os.getppid() != plan["parent"]:
        fail("the exchange is gone")
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            for limit, value in plan["own_limits"]:
                resource.setrlimit(limit, (value, value))
            os.chdir(plan["cwd"])
            restrict_files(plan["readable"], plan["writable"])
            refuse_calls(plan["filter"])
            if not plan["sockets"] and socket(2, 1, 0) >= 0:
                fail("the filter of system calls does not hold")
            os.close(status_fd)
            os.execve(plan["command"][0], plan["command"], plan["env"])
        finally:
            _exit(125)
    os.write(status_fd, b'{"child-pid": %d}\n' % child)
    status: int | None = None
    while status is None and signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGCHLD:
        while True:
            pid, found = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                status = found
                break
    end_group(child)
    if status is not None:
        code = os.waitstatus_to_exitcode(status)
        os.write(status_fd, b'{"exit-code": %d}\n' % (code if code >= 0 else 128 - code))
    _exit(0)


def main() -> NoReturn:
    """Read the plan, do what it says, and become the command."""
    global status_fd  # noqa: PLW0603 — `fail` must reach it from everywhere
    plan = marshal.load(sys.stdin.buffer)  # noqa: S302 — from our own parent, over a pipe
    status_fd = plan["status_fd"]
    empty = os.open("/dev/null", os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    try:
        os.umask(0o022)
        join_groups(plan["groups"])
        if plan["root"] is not None:
            place_workspace(*plan["root"])
            drop_rights(*plan["owner"])
        if os.getuid() == 0 or os.geteuid() == 0 or 0 in os.getgroups():
            fail("root's rights could not be dropped")
        for limit, value in plan["limits"]:
            resource.setrlimit(limit, (value, value))
        os.nice(NICENESS)
        if plan["bubblewrap"]:
            end_with(plan["parent"])
            if plan["network"]:
                hide_sockets()
            become_bubblewrap(plan)
        watch_over(plan)
    except OSError as error:
        fail(f"{error.strerror}: {error.filename or ''}")


if __name__ == "__main__":
    main()

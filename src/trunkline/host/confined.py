"""The last steps of a launched agent's process before its program runs: into its sandbox, or to its own user.

Runs in the keeper's forked child, and by itself (``python -m trunkline.host.confined``) when ``isolation`` tries if a
sandbox holds: the same steps, so that what was tried is what is used. Owns the order of the steps; what is visible is
in the plan (``confinement``), and the steps themselves are those of ``workspace.launch``. Only the standard library is
imported besides.

Invariant: a program runs with all of its plan in force, or not at all.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import signal
import sys
from typing import Any, Final, NoReturn

from trunkline.host import processes
from trunkline.workspace import launch as rights

PR_CAPBSET_DROP: Final = 24
# Capabilities end where the kernel knows no more; 64 is what its sets can hold.
CAPABILITIES: Final = 64
# `struct __user_cap_header_struct`, version 3 of this process; and two times three empty words.
_CAPSET_HEADER: Final = (0x20080522).to_bytes(4, sys.byteorder) + bytes(4)
_NO_CAPABILITIES: Final = bytes(24)
FOR_EVERYBODY: Final = 'with isolation = "user" it and the folders above it have to be open to everybody'


def run_confined(plan: dict[str, Any], program: str, argv: list[str], env: dict[str, str], said_to: int) -> NoReturn:
    """Become the program under this plan. What hinders that is written to the descriptor ``said_to``."""
    rights.status_fd = said_to
    if plan["kind"] == "bubblewrap":
        if plan["hides_sockets"]:
            rights.hide_sockets()
        code = base64.b64decode(plan["filter"])
        words = rights.arguments_of({**plan, "options": [*plan["options"], "--seccomp", code]})
        os.execve(plan["bubblewrap"], ["bwrap", "--args", str(words), "--", program, *argv[1:]], env)  # noqa: S606
    if plan["kind"] == "landlock":
        give_up_capabilities()
        rights.restrict_files(plan["readable"], plan["writable"])
        rights.refuse_calls(base64.b64decode(plan["filter"]))
    elif plan["kind"] == "user":
        become_user(plan)
    try:
        os.execve(program, argv, env)  # noqa: S606
    except PermissionError:
        if plan["kind"] == "user":
            rights.fail(f"its user {plan['uid']} may not run {program}: {FOR_EVERYBODY}")
        raise


def give_up_capabilities() -> None:
    """All that root may do beyond what root's files allow to root; nothing for anybody else."""
    if os.geteuid() != 0:
        return
    for capability in range(CAPABILITIES):
        if rights.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    libc = ctypes.CDLL(None, use_errno=True)
    rights.check(libc.capset(_CAPSET_HEADER, _NO_CAPABILITIES), "capset")


def become_user(plan: dict[str, Any]) -> None:
    """As root: show the socket and the agent's folder where its user may go, then become that user for good."""
    rights.check(rights.unshare(rights.CLONE_NEWNS), "unshare")
    rights.check(rights.mount(None, b"/", None, rights.MS_REC | rights.MS_PRIVATE, None), "private mounts")
    place = os.fsencode(plan["place"])
    flags = rights.MS_NOSUID | rights.MS_NODEV
    rights.check(rights.mount(b"trunkline", place, b"tmpfs", flags, b"size=64k,mode=755"), "tmpfs")
    for source, target in plan["shown"]:
        _stand_in(source, target)
        if os.path.exists(source):
            rights.check(
                rights.mount(os.fsencode(source), os.fsencode(target), None, rights.MS_BIND, None), f"bind {source}"
            )
    rights.check(rights.prctl(rights.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    parent = os.getppid()
    uid, group = plan["uid"], plan["group"]
    os.setgroups([group])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (uid, uid, uid) or os.getgroups() != [group]:
        rights.fail("root's rights could not be dropped")
    # The kernel forgets it when the user changes.
    processes.signal_on_parent_death(signal.SIGKILL)
    if os.getppid() != parent:
        rights.fail("the keeper is gone")
    try:
        os.chdir(plan["cwd"])
    except PermissionError:
        rights.fail(f"its user {plan['uid']} may not enter its folder {plan['cwd']}: {FOR_EVERYBODY}")


def _stand_in(source: str, target: str) -> None:
    """An empty folder or file for a mount to cover."""
    if os.path.isdir(source):
        os.mkdir(target, 0o755)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def main() -> None:
    """Read a plan, a program, its words and its environment from the standard input, and run it to its end."""
    tried = json.load(sys.stdin)
    empty = os.open("/dev/null", os.O_RDONLY)
    os.dup2(empty, 0)
    # Bubblewrap ends before the first process of its namespace does: that one is ours to collect then.
    processes.become_subreaper()
    if os.fork() == 0:
        run_confined(tried["plan"], tried["program"], tried["argv"], tried["env"], 2)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()

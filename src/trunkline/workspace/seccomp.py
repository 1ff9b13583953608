"""Which system calls a command may not make, as a filter program for the kernel.

Pure: builds the bytes; loading them is the launcher's part. A list of what is refused, not of what is allowed:
compilers and interpreters of all kinds must run. Namespaces and the missing rights already refuse most of it; this
takes away the less-tried parts of the kernel as well.

Invariant: one machine, one set of numbers. A call made in another way (32-bit, x32) ends the process or does not exist.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_ERRNO: Final = 0x00050000

_LOAD: Final = 0x20  # the word at this offset of `struct seccomp_data`
_JUMP_EQUAL: Final = 0x15
_JUMP_SET: Final = 0x45
_JUMP_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06

_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32: Final = 0x40000000

# Numbers from 424 on are the same everywhere.
_NEW: Final = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "openat2": 437, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "fchmodat2": 452,
    "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip
_NUMBERS: Final = {
    "x86_64": _NEW | {
        "open": 2, "ioctl": 16, "shmget": 29, "socket": 41, "socketpair": 53, "clone": 56, "semget": 64, "msgget": 68,
        "creat": 85, "chmod": 90, "fchmod": 91, "chown": 92, "lchown": 94, "ptrace": 101, "syslog": 103, "setpgid": 109,
        "setsid": 112, "utime": 132, "mknod": 133, "uselib": 134, "ustat": 136, "sysfs": 139, "setpriority": 141,
        "sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155,
        "_sysctl": 156, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
        "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
        "ioperm": 173, "create_module": 174, "init_module": 175, "delete_module": 176, "get_kernel_syms": 177,
        "query_module": 178, "quotactl": 179, "nfsservctl": 180, "setxattr": 188, "lsetxattr": 189, "removexattr": 197,
        "lremovexattr": 198, "sched_setaffinity": 203, "lookup_dcookie": 212, "clock_settime": 227, "utimes": 235,
        "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251,
        "migrate_pages": 256, "openat": 257, "mknodat": 259, "fchownat": 260, "futimesat": 261, "fchmodat": 268,
        "unshare": 272, "move_pages": 279, "utimensat": 280, "perf_event_open": 298, "fanotify_init": 300,
        "prlimit64": 302, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "sched_setattr": 314, "kexec_file_load": 320,
        "bpf": 321, "userfaultfd": 323,
    },
    "aarch64": _NEW | {
        "setxattr": 5, "lsetxattr": 6, "removexattr": 14, "lremovexattr": 15, "lookup_dcookie": 18, "ioctl": 29,
        "ioprio_set": 30, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "openat": 56, "vhangup": 58, "quotactl": 60, "utimensat": 88,
        "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112,
        "syslog": 116, "ptrace": 117, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122,
        "setpriority": 140, "reboot": 142, "setpgid": 154, "setsid": 157, "sethostname": 161, "setdomainname": 162,
        "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194,
        "socket": 198, "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
        "swapon": 224, "swapoff": 225, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241,
        "prlimit64": 261, "fanotify_init": 262, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "sched_setattr": 274,
        "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
    },
}  # fmt: skip

REFUSED: Final = (
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "create_module", "delete_module",
    "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms", "init_module",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load",
    "keyctl", "lookup_dcookie", "memfd_secret", "migrate_pages", "modify_ldt", "mount", "mount_setattr", "move_mount",
    "move_pages", "nfsservctl", "open_by_handle_at", "open_tree", "open_tree_attr", "perf_event_open", "pidfd_getfd",
    "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "query_module", "quotactl",
    "quotactl_fd", "reboot", "request_key", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff",
    "swapon", "_sysctl", "sysfs", "syslog", "umount2", "unshare", "uselib", "userfaultfd", "ustat", "vhangup",
)  # fmt: skip
# Their arguments are behind a pointer, where no filter can look; programs go back to `clone` and `openat` on ENOSYS.
HIDDEN: Final = ("clone3", "openat2")

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
_NEW_NAMESPACES: Final = 0x7E020000
_SET_ID_BITS: Final = 0o6000
_CREATES: Final = os.O_CREAT | 0o20000000  # O_TMPFILE without O_DIRECTORY
_TERMINAL_REQUESTS: Final = (0x5412, 0x541C)  # TIOCSTI types for the user, TIOCLINUX pastes
# Unix, IPv4, IPv6, netlink. The others are rarely used, and some (vsock) do not know network namespaces at all.
_FAMILIES: Final = (1, 2, 10, 16)

# Without namespaces of its own (Landlock) a command also shares its user's processes, queues and file attributes.
SHARED_REFUSED: Final = (
    "setsid", "setpgid", "shmget", "semget", "msgget", "mq_open", "setpriority", "sched_setparam", "sched_setscheduler",
    "sched_setattr", "sched_setaffinity", "ioprio_set", "chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat",
    "utime", "utimes", "futimesat", "setxattr", "lsetxattr", "removexattr", "lremovexattr", "setxattrat",
    "removexattrat", "file_setattr",
)  # fmt: skip

Instruction = tuple[int, int, int, int]


def is_known(machine: str) -> bool:
    """Whether there are numbers for this kind of machine."""
    return machine in _NUMBERS


def filter_program(machine: str, *, shared: bool = False, sockets: bool = True) -> bytes:
    """The filter. ``shared``: for a command without namespaces; ``sockets``: whether it may have any."""
    families = (_FAMILIES[1:] if shared else _FAMILIES) if sockets else ()
    return _program(machine, families, SHARED_REFUSED if shared else ())


def agent_filter(machine: str, *, shared: bool = False, network: bool = True) -> bytes:
    """The filter for a launched agent, which always has Unix sockets: it speaks with the exchange over one.

    It may open sessions and groups, too: the keeper ends it by more than these. ``network`` matters for ``shared``
    only; else its namespace decides that.
    """
    refused = tuple(name for name in SHARED_REFUSED if name not in {"setsid", "setpgid"}) if shared else ()
    return _program(machine, _FAMILIES if network or not shared else _FAMILIES[:1], refused)


def _program(machine: str, families: Sequence[int], shared_refused: Sequence[str]) -> bytes:
    numbers = _NUMBERS[machine]
    code: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        code += [(_JUMP_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += _refuse(numbers, REFUSED, errno.EPERM)
    code += _refuse(numbers, HIDDEN, errno.ENOSYS)
    code += _when(numbers, "clone", [*_argument(0), (_JUMP_SET, 0, 1, _NEW_NAMESPACES), _error(errno.EPERM)])
    for name, mode in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("mknod", 1), ("mknodat", 2)):
        code += _when(numbers, name, [*_argument(mode), (_JUMP_SET, 0, 1, _SET_ID_BITS), _error(errno.EPERM)])
    code += _when(numbers, "creat", [*_argument(1), (_JUMP_SET, 0, 1, _SET_ID_BITS), _error(errno.EPERM)])
    for name, flags in (("open", 1), ("openat", 2)):
        # The mode means something only if the flags create a file; otherwise it is whatever was in the register.
        test = [*_argument(flags), (_JUMP_SET, 0, 3, _CREATES), *_argument(flags + 1), (_JUMP_SET, 0, 1, _SET_ID_BITS)]
        code += _when(numbers, name, [*test, _error(errno.EPERM)])
    for request in _TERMINAL_REQUESTS:
        code += _when(numbers, "ioctl", [*_argument(1), (_JUMP_EQUAL, 0, 1, request), _error(errno.EPERM)])
    if families:
        known = [(_JUMP_EQUAL, len(families) - at, 0, family) for at, family in enumerate(families)]
        code += _when(numbers, "socket", [*_argument(0), *known, _error(errno.EAFNOSUPPORT)])
    else:
        code += _refuse(numbers, ("socket",), errno.EACCES)
    if shared_refused:
        code += _refuse(numbers, shared_refused, errno.EPERM)
        code += _when(numbers, "prlimit64", [*_argument(0), (_JUMP_EQUAL, 1, 0, 0), _error(errno.EPERM)])
        # With a null path it is about an open file, which is one that could be opened.
        null = [*_argument(1), (_JUMP_EQUAL, 0, 2, 0), (_LOAD, 0, 0, 16 + 8 + 4), (_JUMP_EQUAL, 1, 0, 0)]
        code += _when(numbers, "utimensat", [*null, _error(errno.EPERM)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _error(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _argument(index: int) -> list[Instruction]:
    # The low half. What is tested here are 32-bit values, and the kernel ignores the upper half of those too.
    return [(_LOAD, 0, 0, 16 + 8 * index)]


def _refuse(numbers: dict[str, int], names: Iterable[str], error: int) -> list[Instruction]:
    code: list[Instruction] = []
    for name in names:
        if name in numbers:  # not every machine has every call
            code += [(_JUMP_EQUAL, 0, 1, numbers[name]), _error(error)]
    return code


def _when(numbers: dict[str, int], name: str, body: list[Instruction]) -> list[Instruction]:
    """The body for this call only; where it falls through, the number is loaded again for the tests that follow."""
    if name not in numbers:
        return []
    return [(_JUMP_EQUAL, 0, len(body) + 1, numbers[name]), *body, (_LOAD, 0, 0, 0)]

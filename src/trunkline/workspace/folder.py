"""A workspace: its root folder, who owns what is in it, and how much may be.

Owns the descriptor of the root, the choice of an owner and the quota. It does not own what files contain.

Invariant: no file in a workspace is read or changed with more rights than its owner has; only counting and
``snapshots`` look with our own, since what is closed to its owner takes room, and is lost, all the same. If the
exchange runs as root, each workspace has a user of its own, a number that no account has, and ``acting`` takes that
user's rights for the file system in the calling thread. The folder's owner on disk is the only record of that number.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import hashlib
import os
import pwd
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from msgspec import Meta, Struct

from trunkline.errors import WorkspaceError
from trunkline.workspace.paths import failure_of, system_calls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# Owners for workspaces if we are root: from the range that systemd's list of uids leaves to nobody.
FIRST_UID: Final = 1_880_000_000
UIDS: Final = 200_000_000
# The same inside a container whose user namespace maps only 65,536 uids: above all accounts, below the dynamic ones.
FIRST_UID_IN_CONTAINER: Final = 40_000
UIDS_IN_CONTAINER: Final = 20_000

# Levels of folders that are open at the same time while they are counted; of deeper ones the upper are opened again.
OPEN_LEVELS: Final = 64
# What one byte costs on the usual file systems.
BLOCK_BYTES: Final = 4096
# Less than this between two counts does not matter.
GROWTH_BYTES: Final = 16_777_216
GROWTH_FILES: Final = 2_000
# What commands leave free on the disk, whatever their quota: four times what the record needs to go on (P-A6).
KEPT_FREE_BYTES: Final = 268_435_456

# To the operating system -1 is no limit at all, and a number that it cannot hold a reason to run nothing.
Amount = Annotated[int, Meta(ge=1, le=2**53)]


class Quota(Struct, frozen=True):
    """What a workspace may hold. A build tree of a middle-sized project has some 50,000 files and 1 GiB."""

    max_bytes: Amount = 2_147_483_648
    max_files: Amount = 200_000


QUOTA: Final = Quota()


class Usage(Struct, frozen=True):
    """What a workspace holds, as the disk counts it. ``over`` stops the count: the figures are then a lower bound."""

    size: int
    files: int
    over: bool


# In the folder of a space: what is set, its files unless they are elsewhere, and which files are on their way.
SETTINGS: Final = "space.toml"
FILES: Final = "files"
NOTES: Final = "placing"


def files_root(folder: Path) -> Path:
    """Where the files of the space in this folder are: in it, or where its settings say (``at``).

    ``WorkspaceError`` if its settings cannot be read.
    """
    try:
        settings = tomllib.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError):
        raise WorkspaceError("execution", "The space cannot be read") from None
    at = settings.get("at", "")
    return Path(at) if at else folder / FILES


class Workspace:
    """One workspace, open. ``uid`` and ``gid`` own its files and run its commands; they are never root's."""

    def __init__(self, root: Path, fd: int, uid: int, gid: int, notes_fd: int = -1) -> None:
        self.root = root
        self.fd = fd
        self.notes_fd = notes_fd  # of the folder that says which files are on their way (``placing``), if there is one
        self.uid = uid
        self.gid = gid
        self.turn = asyncio.Lock()  # one command at a time
        self._known: Usage | None = None
        self._free = (0, 0)

    @classmethod
    def create(cls, root: Path, taken: Collection[int] = (), notes: Path | None = None) -> Workspace:
        """Make the folder (0700) and open it. FileExistsError if there is something of that name.

        As root it gets a uid that is not among ``taken``: those of the other workspaces. ``notes`` as for ``open``.
        """
        root.mkdir(mode=0o700)
        if os.geteuid() == 0:
            uid = free_uid(root, taken)
            os.chown(root, uid, uid)
        return cls.open(root, notes)

    @classmethod
    def open(cls, root: Path, notes: Path | None = None) -> Workspace:
        """Open a folder that is there. As root, the folder must belong to somebody else.

        ``notes``, where no command reaches, is made if it is missing: it says what a kill may leave (``placing``).
        """
        try:
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            raise WorkspaceError("execution", "The workspace's folder is missing or is not a folder") from None
        owner = os.fstat(fd)
        fault = ""
        if 0 in {owner.st_uid, owner.st_gid}:
            fault = "The workspace's folder belongs to root: give it to a user of its own (chown -R USER:GROUP)"
        elif os.geteuid() not in {0, owner.st_uid}:
            fault = "The workspace's folder belongs to another user"
        if fault:
            os.close(fd)
            raise WorkspaceError("execution", fault)
        try:
            notes_fd = -1 if notes is None else _open_notes(notes, owner)
        except WorkspaceError:
            os.close(fd)
            raise
        return cls(root, fd, owner.st_uid, owner.st_gid, notes_fd)

    def close(self) -> None:
        """Let go of the root."""
        for fd in (self.fd, self.notes_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self.notes_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Touch files as the owner. Only this thread is changed, so nothing inside may wait for another one."""
        if os.geteuid() != 0:
            yield
            return
        uid, gid, groups = _syscall("setfsuid", NOBODY), _syscall("setfsgid", NOBODY), os.getgroups()
        # The kernel forgets this one when the user changes, and a supervisor may rely on it.
        at_parents_end = ctypes.c_int()
        _LIBC.prctl(PR_GET_PDEATHSIG, ctypes.byref(at_parents_end))
        try:
            _syscall("setgroups", 0, None)
            _set_file_system_ids(self.uid, self.gid)
            yield
        finally:
            _set_file_system_ids(uid, gid)
            _syscall("setgroups", len(groups), (ctypes.c_uint32 * len(groups))(*groups))
            _LIBC.prctl(PR_SET_PDEATHSIG, at_parents_end.value)

    def usage(self, quota: Quota = QUOTA) -> Usage:
        """Count what is there, up to the quota."""
        self._free = self.free_now()
        self._known = _usage(self.fd, quota)
        return self._known

    @property
    def device(self) -> int:
        """Of the file system that it is on."""
        with system_calls():
            return os.fstat(self.fd).st_dev

    def fills_disk(self, free_before: int) -> bool:
        """Whether the disk is nearly full, and more so than it was before."""
        free, _ = self.free_now()
        return free < KEPT_FREE_BYTES and free_before - free > GROWTH_BYTES

    def free_now(self) -> tuple[int, int]:
        """Bytes and files that the disk still takes."""
        with system_calls():
            disk = os.fstatvfs(self.fd)
        return disk.f_bfree * disk.f_frsize, disk.f_ffree

    def may_have_grown(self) -> bool:
        """Whether so much was written on the whole disk since the last count that counting again is worth it."""
        size, files = self.free_now()
        return self._known is None or self._free[0] - size > GROWTH_BYTES or self._free[1] - files > GROWTH_FILES

    def check_room(self, size: int, files: int, quota: Quota) -> None:
        """Take so much more into account, or refuse it.

        A count of 100,000 files takes 0.3 s, so what the file tools add is added to the last count, and only a sum that
        is too high, or a command that ran meanwhile, makes us count again.
        """
        size = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        if self._known is None or not _fits(self._known, size, files, quota):
            self.usage(quota)
        known = self._known
        if known is None or not _fits(known, size, files, quota):
            text = f"The workspace is full: it may hold {quota.max_bytes} bytes in {quota.max_files} files"
            raise WorkspaceError("execution", text)
        self._known = Usage(known.size + size, known.files + files, over=False)

    def forget_count(self) -> None:
        """Much may be other than it was: count again when it matters."""
        self._known = None

    def ran_command(self) -> None:
        """A command may have written: forget the count unless the disk is as it was."""
        if self.may_have_grown():
            self._known = None


def _open_notes(folder: Path, owner: os.stat_result) -> int:
    """The folder of notes, made if it is missing; its owner is the workspace's, as who writes there acts for him."""
    with system_calls():
        folder.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, owner.st_uid, owner.st_gid)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _fits(usage: Usage, size: int, files: int, quota: Quota) -> bool:
    return not usage.over and usage.size + size <= quota.max_bytes and usage.files + files <= quota.max_files


# A folder that is gone, or was swapped.
_NOT_COUNTED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
# What it takes to list a folder and to look at what is in it.
_LISTABLE: Final = stat.S_IRUSR | stat.S_IXUSR


class OpenLevel:
    """A folder that is looked through, open. One that its owner closed is opened for that long, and closed again."""

    __slots__ = ("_closed_mode", "entries", "fd")

    def __init__(self, folder_fd: int, name: str) -> None:
        self._closed_mode: int | None = None
        flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        place = os.open(name, os.O_PATH | flags, dir_fd=folder_fd)
        try:
            mode = stat.S_IMODE(os.fstat(place).st_mode)
            if os.geteuid() != 0 and mode & _LISTABLE != _LISTABLE:
                # By what was opened and not by its name: that may lead elsewhere by now.
                Path(f"/proc/self/fd/{place}").chmod(mode | _LISTABLE)
                self._closed_mode = mode
            self.fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(place)
        try:
            self.entries = os.scandir(self.fd)
        except OSError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Leave it as it was."""
        self.entries.close()
        if self._closed_mode is not None:
            os.fchmod(self.fd, self._closed_mode)
        os.close(self.fd)


class _Counted(Struct):
    """A folder on the way to the one that is counted now: which it is, and what of it is still to be looked into."""

    level: OpenLevel | None
    place: tuple[int, int]
    inner: list[str]


class _Count:
    """A count on its way: the folders from the root to the one that is looked at.

    However deep they are, only ``OPEN_LEVELS`` of them are open; on the way back the others are found from below, as
    the parents that they were. Not os.fwalk, which recurses and so ends in a RecursionError at a nasty depth.
    """

    def __init__(self, quota: Quota) -> None:
        self.size = 0
        self.files = 0
        self._quota = quota
        self._way: list[_Counted] = []

    @property
    def is_over(self) -> bool:
        return self.size > self._quota.max_bytes or self.files > self._quota.max_files

    def run(self, root_fd: int) -> None:
        """Count everything below, or up to the quota."""
        try:
            self._enter(root_fd, ".")
            while self._way and not self.is_over:
                here = self._way[-1]
                if not here.inner:
                    self._leave()
                    continue
                assert here.level is not None
                try:
                    self._enter(here.level.fd, here.inner.pop())
                except OSError as error:
                    if error.errno not in _NOT_COUNTED:
                        raise
        finally:
            for folder in reversed(self._way):
                if folder.level is not None:
                    folder.level.close()

    def _enter(self, folder_fd: int, name: str) -> None:
        """Count what is in a folder, and go on there."""
        level = OpenLevel(folder_fd, name)
        here = _Counted(level, _place(level), [])
        self._way.append(here)
        if len(self._way) > OPEN_LEVELS:
            # The root stays: what is below is found from there.
            upper = self._way[-OPEN_LEVELS]
            if upper is not self._way[0] and upper.level is not None:
                upper.level.close()
                upper.level = None
        for entry in level.entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone meanwhile
            self.files += 1
            # Of a file with several names each counts as whole: better too early than too late.
            self.size += info.st_blocks * 512
            if self.is_over:
                return
            if stat.S_ISDIR(info.st_mode):
                here.inner.append(entry.name)

    def _leave(self) -> None:
        """Go back to the folder above. If this one was moved meanwhile, to the next one above that is still open."""
        left = self._way.pop()
        assert left.level is not None
        try:
            if self._way and self._way[-1].level is None:
                above = OpenLevel(left.level.fd, "..")
                if _place(above) == self._way[-1].place:
                    self._way[-1].level = above
                else:
                    above.close()
        finally:
            left.level.close()
        while self._way and self._way[-1].level is None:
            self._way.pop()


def _place(level: OpenLevel) -> tuple[int, int]:
    info = os.fstat(level.fd)
    return info.st_dev, info.st_ino


def _usage(root_fd: int, quota: Quota) -> Usage:
    count = _Count(quota)
    try:
        count.run(root_fd)
    except OSError as error:
        raise failure_of(error) from None
    return Usage(count.size, count.files, over=count.is_over)


def erase(folder: Path) -> None:
    """Remove what commands of strangers made: folders closed to their owner, and deeper than Python can walk."""
    # Folders only: a file may have another name elsewhere. Each before it is looked into.
    closed = ["-type", "d", "!", "-perm", "-u=rwx", "-exec", "chmod", "u+rwx", "{}", ";"]
    for words in (["find", str(folder), *closed], ["rm", "-rf", "--", str(folder)]):
        subprocess.run(words, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False)


def free_uid(root: Path, taken: Collection[int]) -> int:
    """A user for this folder if we are root: nobody's account, not taken, and the same one whenever that can be."""
    mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    whole = mapped[-3:] == ["0", "0", "4294967295"]
    first, count = (FIRST_UID, UIDS) if whole else (FIRST_UID_IN_CONTAINER, UIDS_IN_CONTAINER)
    # By the path, so that two homes on one machine seldom meet; they could not reach each other's folders anyway.
    start = int.from_bytes(hashlib.sha256(os.fsencode(root.absolute())).digest()[:8], "big") % count
    for step in range(count):
        uid = first + (start + step) % count
        if uid not in taken and not _is_account(uid):
            return uid
    raise WorkspaceError("system", "No user number is left for another workspace")


def _is_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


# These calls report no failure; asked with this impossible number they change nothing and tell who we are.
NOBODY: Final = ctypes.c_uint32(0xFFFFFFFF)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG: Final = 1
PR_GET_PDEATHSIG: Final = 2
# The raw calls: they change one thread, where the C library's own functions change the whole process.
_NUMBERS: Final = {
    "x86_64": {"setfsuid": 122, "setfsgid": 123, "setgroups": 116},
    "aarch64": {"setfsuid": 151, "setfsgid": 152, "setgroups": 159},
}


def _syscall(name: str, *arguments: object) -> int:
    numbers = _NUMBERS.get(os.uname().machine)
    if numbers is None:
        raise WorkspaceError("execution", "Run the exchange as a user other than root on this kind of machine")
    return int(_LIBC.syscall(numbers[name], *arguments))


def _set_file_system_ids(uid: int, gid: int) -> None:
    for name, number in (("setfsgid", gid), ("setfsuid", uid)):
        _syscall(name, ctypes.c_uint32(number))
        if _syscall(name, NOBODY) != number:
            raise WorkspaceError("system", "The owner of the workspace could not be taken on")

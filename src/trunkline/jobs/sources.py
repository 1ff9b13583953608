"""What a sandbox job finds in its folder before the first command: files of a space, of a blob, or a git repository.

Owns the meaning of ``repo.source`` and the ways from a space or a blob into the job's folder. Does not own who may see
them (the edge asks before), nor fetching a repository: that is done by ``git``, inside the sandbox, as a command.
Functions block; call them in a thread.

Invariant: nothing is read outside the space and nothing is written outside the job's folder, whatever names, links or
archives say: every path is walked name by name from a descriptor, and no link is followed.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from trunkline.errors import JobRefused, WorkspaceError
from trunkline.workspace import copies
from trunkline.workspace.folder import BLOCK_BYTES, Quota, Workspace
from trunkline.workspace.paths import check_cwd, check_path, failure_of, open_folder, system_calls

# Where a job's folder is inside its sandbox; paths may begin with it.
ROOT: Final = "/workspace"
# Of a blob that is no archive.
BLOB_NAME: Final = "blob"
# Deeper folders are nobody's source code, and each level is an open descriptor.
MAX_DEPTH: Final = 100
PIECE_BYTES: Final = 1 << 20
_SPACE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# A branch, a tag or a commit; never an option.
_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,254}")
_URL: Final = re.compile(r"[!#-&(-;=?-Z\[\]_a-z~]+")
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EXPECTED: Final = "inputs.repo.source: expected space:NAME, blob:sha256:HEX or https://HOST/PATH"


class SpaceSource(Struct, frozen=True):
    """The files of a space, as they are now."""

    name: str


class BlobSource(Struct, frozen=True):
    """A large output of an earlier call: an archive, or one file."""

    sha256: str


class UrlSource(Struct, frozen=True):
    """A git repository."""

    url: str


Source = SpaceSource | BlobSource | UrlSource


def read_source(text: str, network_policy: str) -> Source:
    """What a source means; ``JobRefused`` if it means nothing, or needs a network that was not asked for."""
    kind, _, rest = text.partition(":")
    if kind == "space" and _SPACE.fullmatch(rest):
        return SpaceSource(rest)
    if kind == "blob" and rest.startswith("sha256:") and _DIGEST.fullmatch(rest.removeprefix("sha256:")):
        return BlobSource(rest.removeprefix("sha256:"))
    if kind != "https" or _URL.fullmatch(text) is None:
        raise JobRefused(_EXPECTED)
    try:
        parts = urlsplit(text)
        is_usable = bool(parts.hostname) and parts.port != 0 and parts.username is None and not parts.fragment
    except ValueError:
        is_usable = False
    if not is_usable:
        raise JobRefused(f"{_EXPECTED}, without a user or a fragment")
    if network_policy != "full":
        raise JobRefused("inputs.repo.source: a URL needs network_policy full")
    return UrlSource(text)


def read_ref(text: str | None) -> str:
    """A git reference that can be no option; empty if there is none."""
    if not text:
        return ""
    if _REF.fullmatch(text) is None or ".." in text:
        raise JobRefused("inputs.repo.git_ref: expected a branch, a tag or a commit")
    return text


def folder_names(path: str | None, place: str, base: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The names on the way from the job's folder to one inside it: relative to ``base``, or from ``/workspace``."""
    if not path:
        return base
    if path == ROOT or path.startswith(f"{ROOT}/"):
        base, path = (), path[len(ROOT) :].strip("/") or "."
    try:
        return (*base, *check_cwd(path))
    except WorkspaceError as error:
        raise JobRefused(f"{place}: {error.message}") from None


# --- files of a space -------------------------------------------------------------------------------------------------


def files_of(space: Workspace) -> frozenset[str]:
    """The paths of all files and links of a space."""
    found: set[str] = set()
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        names = waiting.pop()
        for name, kind in _listed(space, names) if len(names) <= MAX_DEPTH else ():
            if kind == "folder":
                waiting.append((*names, name))
            else:
                found.add("/".join((*names, name)))
    return frozenset(found)


def copy_space(space: Workspace, job: Workspace, mount: tuple[str, ...], quota: Quota, wanted: frozenset[str]) -> None:
    """All ``wanted`` files of a space, links as links; each read as the space's owner and written as the job's."""
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        names = waiting.pop()
        if len(names) > MAX_DEPTH:
            raise WorkspaceError("execution", f"The space has folders deeper than {MAX_DEPTH}")
        with job.acting(), open_folder(job.fd, (*mount, *names), make=True):
            pass
        for name, kind in _listed(space, names):
            if kind == "folder":
                waiting.append((*names, name))
            elif "/".join((*names, name)) in wanted:
                _copy_one(space, job, names, (*mount, *names), name, kind, quota)


def _listed(workspace: Workspace, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Names in a folder, and whether each is a file, a folder or a link; nothing else is source code."""
    found = []
    with system_calls(), workspace.acting(), open_folder(workspace.fd, names) as folder, os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                found.append((entry.name, "link"))
            elif entry.is_dir(follow_symlinks=False):
                found.append((entry.name, "folder"))
            elif entry.is_file(follow_symlinks=False):
                found.append((entry.name, "file"))
    return sorted(found)


def _copy_one(
    space: Workspace, job: Workspace, names: tuple[str, ...], to: tuple[str, ...], name: str, kind: str, quota: Quota
) -> None:
    try:
        with space.acting(), open_folder(space.fd, names) as folder:
            taken = os.readlink(name, dir_fd=folder) if kind == "link" else os.open(name, _READ, dir_fd=folder)
    except (PermissionError, FileNotFoundError):
        return  # closed to its owner, or gone meanwhile
    except OSError as error:
        raise failure_of(error) from None
    if isinstance(taken, str):
        with system_calls(), job.acting(), open_folder(job.fd, to) as folder:
            os.symlink(taken, name, dir_fd=folder)
        return
    try:
        _copy_file(taken, job, to, name, quota)
    finally:
        os.close(taken)


def _copy_file(source: int, job: Workspace, to: tuple[str, ...], name: str, quota: Quota) -> None:
    with system_calls():
        info = os.fstat(source)
        if not stat.S_ISREG(info.st_mode):
            return  # swapped meanwhile
        job.check_room(info.st_size, 1, quota)
        with job.acting(), open_folder(job.fd, to) as folder:
            written = os.open(name, _CREATE, 0o600, dir_fd=folder)
        try:
            copies.copy(source, written)
            os.fchmod(written, stat.S_IMODE(info.st_mode) & 0o777 | stat.S_IRUSR | stat.S_IWUSR)
        finally:
            os.close(written)


# --- a blob -----------------------------------------------------------------------------------------------------------


def put_blob(data: bytes, job: Workspace, mount: tuple[str, ...], quota: Quota) -> None:
    """Unpack an archive (tar, also compressed, or zip); anything else is one file.

    An output that a file tool gave (``content`` in base64) is the file that it holds.
    """
    content = _file_inside(data)
    members = _archived(content)
    try:
        single: Iterable[Member] = [(BLOB_NAME, False, io.BytesIO(content))]
        for path, executable, body in single if members is None else members:
            _write(job, mount, path, body, executable=executable, quota=quota)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno:
            raise failure_of(error) from None
        raise WorkspaceError("validation", "The archive cannot be read") from None


def _file_inside(data: bytes) -> bytes:
    try:
        read = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if msgspec.json.decode(read["encoding"], type=str) == "base64":
            return base64.b64decode(msgspec.json.decode(read["content"], type=str), validate=True)
    except (msgspec.DecodeError, KeyError, binascii.Error):
        pass
    return data


# A file of an archive: path, whether it can be run, and its content, which is read piece by piece: what is packed in a
# megabyte may be a gigabyte.
Member = tuple[str, bool, IO[bytes]]


def _archived(data: bytes) -> Iterator[Member] | None:
    """The files of an archive; None if it is none."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        return _zipped(data)
    try:
        archive = tarfile.open(fileobj=io.BytesIO(data), mode="r:*")  # noqa: SIM115  (read by the generator)
    except (tarfile.TarError, EOFError, OSError):
        return None
    return _tarred(archive)


def _tarred(archive: tarfile.TarFile) -> Iterator[Member]:
    with archive:
        for member in archive:
            # Folders are made for what is in them; links and devices are not taken.
            file = archive.extractfile(member) if member.isreg() else None
            if file is not None:
                yield member.name, bool(member.mode & stat.S_IXUSR), file


def _zipped(data: bytes) -> Iterator[Member]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            if member.is_dir() or stat.S_ISLNK(mode):
                continue
            with archive.open(member) as file:
                yield member.filename, bool(mode & stat.S_IXUSR), file


def _write(
    job: Workspace, mount: tuple[str, ...], path: str, body: IO[bytes], *, executable: bool, quota: Quota
) -> None:
    try:
        *folders, name = check_path(path.removeprefix("./"))
    except WorkspaceError as error:
        raise WorkspaceError("validation", f"A path in the archive cannot be used: {error.message}") from None
    job.check_room(BLOCK_BYTES, 1 + len(folders), quota)
    with system_calls(), job.acting(), open_folder(job.fd, (*mount, *folders), make=True) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        mode = 0o755 if executable else 0o644
        written = os.open(name, _CREATE, mode, dir_fd=folder)
    with os.fdopen(written, "wb") as file:
        while piece := body.read(PIECE_BYTES):
            job.check_room(len(piece), 0, quota)
            file.write(piece)

"""The Unix socket as a file: who may reach it, and what may be in its place already.

Owns the file's safety (OS-006): a folder that only its owner can write to, a socket that only its owner can open, no
symlink followed, nothing deleted but a socket that nobody answers. It does not own what is said on it.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Final

from trunkline.errors import ConfigError

# sockaddr_un.sun_path has 108 bytes, one of them for the end.
MAX_PATH_BYTES: Final = 107
# A living exchange accepts at once, even when it is busy: its kernel queue has 1,024 places.
_ANSWER_WITHIN_S: Final = 1.0
_OWNER_ONLY: Final = 0o177


def bind(path: Path) -> socket.socket:
    """A bound socket at this path, not yet listening; ``ConfigError`` says what is in the way."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError(f"a socket's path may have {MAX_PATH_BYTES} bytes; choose a shorter one", str(path))
    _judge_folder(path.parent)
    _clear(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # The mask is the process's own: nobody, not even for a moment, finds the socket open to others.
    mask = os.umask(_OWNER_ONLY)
    try:
        bound.bind(str(path))
    except OSError as exc:
        bound.close()
        raise ConfigError(f"cannot listen here: {exc.strerror}", str(path)) from None
    finally:
        os.umask(mask)
    return bound


def remove(path: Path, bound: tuple[int, int]) -> None:
    """Take our socket away, unless somebody put another in its place."""
    if identity(path) == bound:
        path.unlink(missing_ok=True)


def identity(path: Path) -> tuple[int, int] | None:
    """Which file this is now."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _judge_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as exc:
        raise ConfigError(f"cannot be used as the socket's folder: {exc.strerror}", str(folder)) from None
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError("the socket's folder is not a folder, or is a symbolic link", str(folder))
    if status.st_uid not in {os.geteuid(), 0}:
        raise ConfigError(f"the socket's folder belongs to user {status.st_uid}", str(folder))
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"others can write to the socket's folder; chmod 700 {folder}", str(folder))


def _clear(path: Path) -> None:
    """Remove what an exchange that did not stop cleanly left behind, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise ConfigError("the socket's path is a symbolic link; remove it", str(path))
    if not stat.S_ISSOCK(mode):
        raise ConfigError("there is a file that is not a socket; remove it or choose another path", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_WITHIN_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as exc:
            raise ConfigError(f"cannot tell whether somebody listens here: {exc.strerror}", str(path)) from None
    raise ConfigError("another exchange listens here", str(path))

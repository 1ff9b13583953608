"""Files with secrets of ours, in ``keys/`` of the home folder: made whole or not at all, for their owner only.

Owns how such a file is written and read. Does not own what is in it, nor the ledger's rule that its key is never made
anew (``ledger.keys``).

Invariant: a file that others can read is not used, and one that was begun and not finished is never found.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trunkline.errors import ConfigError

# Of the home folder.
KEYS_FOLDER: Final = "keys"
# A key or a certificate of ours is far smaller; something else may lie there.
MAX_KEY_FILE_BYTES: Final = 65_536


def read_private(path: Path, max_bytes: int = MAX_KEY_FILE_BYTES) -> bytes:
    """What is in such a file. ``FileNotFoundError`` if there is none, ``ConfigError`` if it may not be used."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", str(path)) from None
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise ConfigError("can be read by others: chmod 600 it", str(path))
        return file.read(max_bytes)


def write_private(path: Path, data: bytes) -> None:
    """Make such a file; it is on the disk when this returns."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Complete under another name first: a crash must not leave half a key.
    started = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(started, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        started.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            started.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def kept(path: Path, make: Callable[[], bytes]) -> bytes:
    """What is in such a file; made now if there is none yet."""
    try:
        return read_private(path)
    except FileNotFoundError:
        data = make()
    try:
        write_private(path, data)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", str(path)) from None
    return data


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

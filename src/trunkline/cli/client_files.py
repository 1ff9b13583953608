"""Files of other programs, and the configuration: read, and written whole with what was there before kept beside them.

Owns how such a file is written. Does not own what is written.

Invariant: a write that fails leaves nothing behind, and the file as it was; it fails if another program changed the
file meanwhile. A copy is never readable by more people than the file that it was made of, nor by anybody but its owner,
who stays the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from typing import Final

from trunkline.cli.terminal import CommandFailed
from trunkline.error_words import in_words

# Settings of a client with its projects; one had 2 MB.
MAX_BYTES: Final = 67_108_864


def text_of(file: Path) -> str:
    """What is in it; nothing if there is no such file."""
    try:
        return _data_of(file).decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed("state.conflict", f"{file}: cannot be read ({in_words(error)})") from None


def _data_of(file: Path) -> bytes:
    """A pipe in its place would be waited for without end, and a device has no end."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if found.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_BYTES} bytes")
        return opened.read(MAX_BYTES)


def write(file: Path, text: str, before: str) -> Path | None:
    """Write it whole in place of ``before``; where that is kept, if there was something."""
    real = file.resolve()
    made: list[Path] = []
    try:
        data = text.encode()
        real.parent.mkdir(parents=True, exist_ok=True)
        mode, owner, backup = 0o600, (os.geteuid(), os.getegid()), None
        if real.exists():
            found = real.stat()
            mode, owner = found.st_mode & 0o777, (found.st_uid, found.st_gid)
            backup = _free_name(real)
            _make(backup, before.encode(), mode & 0o600, owner, made)
        part = real.with_name(f".{real.name}.{os.getpid()}")
        _make(part, data, mode & 0o600, owner, made)
        part.chmod(mode)
        if text_of(file) != before:
            raise OSError(errno.EBUSY, "another program wrote it meanwhile; try again")
        part.replace(real)
    except BaseException as error:
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CommandFailed("state.conflict", f"{file}: {error.strerror}; nothing was changed") from None
        if isinstance(error, UnicodeEncodeError):
            problem = (
                f"{file}: what would be written is no text (a character of it is half of one); nothing was changed"
            )
            raise CommandFailed("state.conflict", problem) from None
        raise
    return backup


def _make(path: Path, data: bytes, mode: int, owner: tuple[int, int], made: list[Path]) -> None:
    """A new file, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    made.append(path)
    with os.fdopen(descriptor, "wb") as writer:
        if owner != (os.geteuid(), os.getegid()):
            os.fchown(writer.fileno(), *owner)
        writer.write(data)
        writer.flush()
        os.fsync(writer.fileno())


def _free_name(file: Path) -> Path:
    """Where a copy of it can be kept."""
    name = f"{file.name}.bak-{time.strftime('%Y%m%dT%H%M%S')}"
    found, number = file.with_name(name), 1
    while found.exists():
        number += 1
        found = file.with_name(f"{name}-{number}")
    return found

"""Files of other programs, and the configuration: read, and written whole with what was there before kept beside them.

Owns how such a file is written. Does not own what is written.

Invariant: a write that fails leaves nothing behind, and the file as it was. A copy is never readable by more people
than the file that it was made of, nor by anybody but its owner.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from trunkline.cli.terminal import CommandFailed
from trunkline.error_words import in_words


def text_of(file: Path) -> str:
    """What is in it; nothing if there is no such file."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed("state.conflict", f"{file}: cannot be read ({in_words(error)})") from None


def write(file: Path, text: str) -> Path | None:
    """Write it whole; where what was there before is kept, if there was something."""
    real = file.resolve()
    made: list[Path] = []
    try:
        data = text.encode()
        real.parent.mkdir(parents=True, exist_ok=True)
        mode, backup = 0o600, None
        if real.exists():
            mode = real.stat().st_mode & 0o777
            backup = _free_name(real)
            _make(backup, real.read_bytes(), mode & 0o600, made)
        part = real.with_name(f".{real.name}.{os.getpid()}")
        _make(part, data, mode & 0o600, made)
        part.chmod(mode)
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


def _make(path: Path, data: bytes, mode: int, made: list[Path]) -> None:
    """A new file, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    made.append(path)
    with os.fdopen(descriptor, "wb") as writer:
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

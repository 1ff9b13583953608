"""Files that a verb writes because its caller named one: ``--output FILE``, and ``--force`` for one that is there.

Owns how these options are spelled, and the writing. Does not own what is written, nor the files of the home.

Invariant: a file that is there already is left as it is, unless ``--force`` was said; a file with money in it takes the
place of no other at all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click

from trunkline.cli.terminal import CommandFailed, file_failure

OUTPUT_FILE: Final = click.Path(path_type=Path, dir_okay=False)


def with_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb ``--output``, as ``output``."""

    # Scripts say --out, which some verbs took before all had the same word.
    @click.option("--out", type=OUTPUT_FILE, hidden=True)
    @click.option("-o", "--output", type=OUTPUT_FILE, metavar="FILE", help="Write it to FILE, which is made.")
    @functools.wraps(function)
    def renamed(*args: Any, output: Path | None, out: Path | None, **rest: Any) -> Any:
        return function(*args, output=output or out, **rest)

    return renamed


def with_force(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb ``--force``, as ``force``: its files may take the place of others."""

    # As above: `ledger export` called it --overwrite.
    @click.option("--overwrite", is_flag=True, hidden=True)
    @click.option("--force", is_flag=True, help="Also over a file that is there already.")
    @functools.wraps(function)
    def renamed(*args: Any, force: bool, overwrite: bool, **rest: Any) -> Any:
        return function(*args, force=force or overwrite, **rest)

    return renamed


def refuse_existing(file: Path, *, force: bool) -> None:
    """End the command before its work, if what comes of it could not be written."""
    if not force and file.exists() and not _is_no_file(file):
        raise _taken(file)


def write_output(file: Path, pieces: Iterable[bytes], *, force: bool) -> int:
    """Write a file and say how many bytes it has; end the command if it is there already or cannot be written."""
    try:
        with file.open("wb" if force or _is_no_file(file) else "xb") as opened:
            return sum(map(opened.write, pieces))
    except FileExistsError:
        raise _taken(file) from None
    except OSError as error:
        raise file_failure(file, error.strerror) from None


def open_private(file: Path) -> int:
    """A descriptor of a file that was not there, for its owner only: what is in it is worth something."""
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise file_failure(file, "exists already: choose another name") from None
    except OSError as error:
        raise file_failure(file, error.strerror) from None


def _is_no_file(file: Path) -> bool:
    """Whether this is a device or a pipe (``/dev/null``): nothing is lost by writing to it."""
    return file.is_char_device() or file.is_fifo()


def _taken(file: Path) -> CommandFailed:
    return file_failure(file, "exists already: choose another name, or give --force")

"""The files of an agent whose change restarts it (``watch = true``), and whether one changed.

Owns which files those are: what the words of its command name, what lies beside and below a named file and ends as it
does, and its manifest. Does not own what follows from a change (``supervisor``). Looks at times and sizes, never into a
file.

Invariant: of files that are being written nothing is said; a change is told when two looks in a row found the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

# A look at so many takes some 20 ms, in a thread of its own. More is not an agent's code but what it works on.
MAX_FILES: Final = 2_000
# Folders of other people's code, and of what is made from files that are watched.
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

# By path: when it was last written, and its size.
Looks = dict[str, tuple[int, int]]


def look_at_files(command: Sequence[str], cwd: str, manifest: str | None, home: str) -> Looks:
    """How an agent's files are now. Below ``home`` lie logs and other people's files: there only those in it count."""
    found: Looks = {}
    for path in _files(command, Path(cwd), manifest, Path(home)):
        if len(found) >= MAX_FILES:
            break
        try:
            status = path.stat()
        except OSError:
            continue
        found[str(path)] = (status.st_mtime_ns, status.st_size)
    return found


def _files(command: Sequence[str], cwd: Path, manifest: str | None, home: Path) -> Iterator[Path]:
    if manifest is not None:
        yield Path(manifest)
    # The first word is the program: an interpreter of the system, unless it lies in a folder that it names.
    words = [word for number, word in enumerate(command) if number or "/" in word]
    for word, before in zip(words, ("", *words), strict=False):
        for path in _named(word, before, cwd):
            if path.is_dir():
                yield from _below(path, "", home)
            elif path.is_file():
                yield path
                if path.suffix:
                    yield from _below(path.parent, path.suffix, home)


def _named(word: str, before: str, cwd: Path) -> Iterator[Path]:
    """What a word of a command may name: a path, or after ``-m`` a module of Python."""
    if "\0" in word or not word or word.startswith("-"):
        return
    if before == "-m":
        module = cwd.joinpath(*word.split("."))
        yield from (module, module.with_suffix(".py"))
    elif word not in {".", ".."}:
        yield cwd / word


def _below(folder: Path, suffix: str, home: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        if Path(place) == home:
            folders.clear()
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _PASSED_OVER and not _is_venv(place, name)
        )
        yield from (Path(place, name) for name in sorted(names) if name.endswith(suffix) and not name.startswith("."))


def _is_venv(place: str, name: str) -> bool:
    return Path(place, name, "pyvenv.cfg").exists()


class FileWatch:
    """What was seen of one agent's files: since it was started, and at the last look."""

    def __init__(self, seen: Looks) -> None:
        self._at_start = seen
        self._last = seen

    def has_changed(self, seen: Looks) -> bool:
        """Whether the files are others than at the start, and nobody writes them now. Told once for each change."""
        is_quiet, self._last = seen == self._last, seen
        if not is_quiet or seen == self._at_start:
            return False
        self._at_start = seen
        return True

"""Which of our kinds of file somebody gave: a record, a proof, a trajectory or a bundle; and which verb is for it.

Owns the recognition by a file's first bytes, never by its name, and the sentence for somebody who gave a file to the
wrong verb. Does not own reading or checking any of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from trunkline.cli.client import decode
from trunkline.cli.terminal import CommandFailed, typed

Kind = Literal["record", "proof", "trajectory", "bundle"]

# What is called what, and what is typed for it.
_TOLD: Final[dict[Kind, tuple[str, str]]] = {
    "record": ("a record, or a copy of one", "ledger verify"),
    "proof": ("a proof of a conversation", "ledger check"),
    "trajectory": ("a trajectory (REPLAY.jsonl)", "replay"),
    "bundle": ("a ReplayBundle", "replay export"),
}
# The first line of a trajectory is a header; a bundle, which may be of any size, starts with its first member.
_LOOKED_AT: Final = 65_536
MANIFEST: Final = "MANIFEST.json"
_BUNDLE: Final = re.compile(rb'\s*\{\s*"session_id"\s*:')


def kind_of(file: Path) -> Kind | None:
    """What a file is by its beginning; None if it is none of ours, or cannot be read."""
    try:
        with file.open("rb") as opened:
            start = opened.read(_LOOKED_AT)
    except OSError:
        return None
    if start.startswith(b"SQLite format 3\0"):
        return "record"
    if start.startswith(b"PK\x03\x04"):
        return "proof" if _has_manifest(file, start) else None
    line = start.lstrip().partition(b"\n")[0]
    if not line.startswith(b"{"):
        return None
    if _BUNDLE.match(start) and b'"steps"' in start:
        return "bundle"
    try:
        header = decode(line)
    except ValueError:
        return None
    return "trajectory" if header.get("event", header.get("type")) == "ReplayHeader" else None


def _has_manifest(file: Path, start: bytes) -> bool:
    """Whether a zip is a proof: ours begin with the manifest, and somebody may have packed one again."""
    import zipfile

    if MANIFEST.encode() in start:
        return True
    try:
        with zipfile.ZipFile(file) as archive:
            return MANIFEST in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def expect(kind: Kind, file: Path) -> None:
    """End the command if the file is another kind than the verb is for; what is none of ours the verb itself judges."""
    found = kind_of(file)
    if found is None or found == kind:
        return
    import shlex

    what, verb = _TOLD[found]
    text = f"{file} is {what}; `{typed(f'{verb} {shlex.quote(str(file))}')}` is for it"
    raise CommandFailed("usage.invalid", text, exit_code=2, details={"file": str(file), "kind": found})

"""An agent's manifest, ``opensentience.agent.json``: read, judged, hashed.

Owns what may stand in the file (docs/protocols/opensentience.md, Permissions) and turns it into a
``model.Manifest``. Does not own approval: the permissions in it are asked for, not granted.

Invariant: the hash is that of the bytes that were judged, read once through one descriptor.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from trunkline import strictjson
from trunkline.errors import ConfigError
from trunkline.model import Manifest

FILE_NAME: Final = "opensentience.agent.json"
# More than any real manifest; read whole, so bounded.
MAX_BYTES: Final = 256_000
MAX_PERMISSIONS: Final = 500
MAX_PERMISSION_BYTES: Final = 300

# domain:action[:pattern]; ``*`` matches any characters. The pattern may hold anything that can be seen.
_PERMISSION: Final = re.compile(r"[A-Za-z0-9_.*-]+:[A-Za-z0-9_.*-]+(:[^\x00-\x1f\x7f]+)?")
# semver.org, 2.0.0
_SEMVER: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)


class _Source(Struct):
    git_url: str | None = None
    ref: str | None = None


class _Entrypoint(Struct):
    type: Literal["command", "mix_task", "release"]
    value: str | tuple[str, ...] | None = None


class _Document(Struct):
    """The file's fields. Unknown ones are left to later versions; ``null`` is the same as absent."""

    id: str
    name: str | None = None
    version: str | None = None
    description: str | None = None
    source: _Source | None = None
    entrypoint: _Entrypoint | None = None
    permissions: Annotated[tuple[str, ...], Meta(max_length=MAX_PERMISSIONS)] | None = None
    capabilities: tuple[str, ...] | None = None


def read_manifest(path: Path, agent_id: str) -> Manifest:
    """The manifest of ``agent_id``; ``ConfigError`` names the file, and the place in it, if it is not valid."""
    data = _content(path)
    try:
        strictjson.check(data, want_object=True)
        document = msgspec.json.decode(data, type=_Document)
    except ValueError as problem:
        raise ConfigError(str(problem), str(path)) from None
    for fault, place in _faults(document, agent_id):
        raise ConfigError(f"{fault} - at `$.{place}`", str(path))
    return Manifest(hashlib.sha256(data).hexdigest(), tuple(dict.fromkeys(document.permissions or ())))


def _faults(document: _Document, agent_id: str) -> Iterator[tuple[str, str]]:
    if document.id != agent_id:
        yield f"belongs to {document.id!r}, but is configured for {agent_id!r}", "id"
    if document.version is not None and not _SEMVER.fullmatch(document.version):
        yield f"{document.version!r} is not a semantic version such as '1.0.0'", "version"
    if document.entrypoint is not None and document.entrypoint.type != "command":
        yield f"{document.entrypoint.type!r} cannot be launched here, only 'command'", "entrypoint.type"
    for index, permission in enumerate(document.permissions or ()):
        if len(permission.encode()) > MAX_PERMISSION_BYTES:
            yield f"longer than {MAX_PERMISSION_BYTES} bytes", f"permissions[{index}]"
        if not _PERMISSION.fullmatch(permission):
            yield f"{permission!r} is not domain:action or domain:action:pattern", f"permissions[{index}]"


def _content(path: Path) -> bytes:
    if path.name != FILE_NAME:
        raise ConfigError(f"a manifest must be named {FILE_NAME}", str(path))
    try:
        # Without O_NONBLOCK a named pipe in its place would hang us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        reason = "is a symbolic link, which a manifest may not be" if path.is_symlink() else problem.strerror
        raise ConfigError(f"cannot be read: {reason}", str(path)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError("is not a regular file", str(path))
        data = os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if not 1 <= len(data) <= MAX_BYTES:
        raise ConfigError(f"must have 1 to {MAX_BYTES} bytes", str(path))
    return data

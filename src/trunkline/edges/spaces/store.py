"""Spaces on disk: ``<home>/spaces/<name>/`` with ``space.toml`` (preset, overrides) and ``files/`` (the root).

Owns these folders: reading them at the start, making one, removing one. Does not own what spaces do
(``agent``). The files belong to a user of the space's own if the exchange runs as root (``workspace.folder``).

Invariant: a folder with a ``space.toml`` is a whole space: that file is written last and removed first.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from trunkline.errors import ConfigError, WorkspaceError
from trunkline.tomlfile import TomlFile
from trunkline.workspace.folder import Workspace, erase
from trunkline.workspace.policy import Policy, make_policy

SETTINGS: Final = "space.toml"
FILES: Final = "files"
# A space's name is a folder's name and part of an agent's id; lower case, so that no two differ by case only.
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
NAME_IN_WORDS: Final = "up to 63 of a-z, 0-9, - and _, and begins with a letter or digit"


class Space(Struct, frozen=True):
    """A space as its folder says: its rules and its files."""

    name: str
    preset: str
    policy: Policy
    workspace: Workspace
    folder: Path


class SpaceFile(Struct, frozen=True):
    """``space.toml``."""

    preset: str = "standard"
    policy: dict[str, dict[str, Any]] = {}


class SpacesFolder:
    """The spaces of one home."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[Space]:
        """All spaces; ``ConfigError`` names the file of one that cannot be used."""
        if not self._path.is_dir():
            return []
        found = sorted(folder for folder in self._path.iterdir() if (folder / SETTINGS).exists())
        return [self._read(folder) for folder in found]

    def _read(self, folder: Path) -> Space:
        if not NAME.fullmatch(folder.name):
            raise ConfigError(f"a space's name is {NAME_IN_WORDS}", str(folder))
        preset, policy = _settings(folder)
        try:
            return Space(folder.name, preset, policy, Workspace.open(folder / FILES), folder)
        except WorkspaceError as error:
            raise ConfigError(str(error), str(folder / SETTINGS)) from None

    def read_again(self, space: Space) -> Space:
        """The same space with what its file says by now; ``ConfigError`` if that cannot be used."""
        preset, policy = _settings(space.folder)
        return structs.replace(space, preset=preset, policy=policy)

    def create(self, name: str, preset: str, overrides: Mapping[str, Any]) -> Space:
        """A new, empty space; ``ConfigError`` if it cannot be made of this."""
        policy = make_policy(preset, overrides)
        for section, values in overrides.items():
            for key, value in values.items():
                if value is None:
                    raise ConfigError("null cannot be written down: leave the key out", f"policy.{section}.{key}")
        folder = self._path / name
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            if (folder / SETTINGS).exists():
                raise ConfigError("is there already", str(folder))
            if folder.exists():  # what a crash left of a space that was being made or removed
                erase(folder)
            folder.mkdir(mode=0o700)
            others = {files.lstat().st_uid for files in self._path.glob(f"*/{FILES}")}
            workspace = Workspace.create(folder / FILES, others)
            _write(folder / SETTINGS, _as_toml(preset, overrides))
        except OSError as error:
            raise ConfigError(f"cannot be made: {error.strerror}", str(folder)) from None
        except WorkspaceError as error:
            raise ConfigError(f"cannot be made: {error.message}", str(folder)) from None
        return Space(name, preset, policy, workspace, folder)

    def remove(self, space: Space) -> None:
        """Take it away: first what says that it is one, then its files. Blocks: there may be many."""
        with contextlib.suppress(FileNotFoundError):
            (space.folder / SETTINGS).unlink()
        space.workspace.close()
        erase(space.folder)


def _settings(folder: Path) -> tuple[str, Policy]:
    file = folder / SETTINGS
    settings = TomlFile(file, required=True).convert(SpaceFile)
    try:
        return settings.preset, make_policy(settings.preset, settings.policy)
    except ConfigError as error:
        raise ConfigError(str(error), str(file)) from None


def _as_toml(preset: str, overrides: Mapping[str, Any]) -> str:
    # TOML reads numbers, true, false, arrays, and texts without escapes of half characters as JSON writes them.
    lines = [
        "# Read when the exchange starts, and by `trunkline reload`. The keys are in docs/protocols/spaces.md.",
        f"preset = {_toml_value(preset)}",
    ]
    for section, values in overrides.items():
        lines += ["", f"[policy.{section}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

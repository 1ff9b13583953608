"""Spaces on disk: what ``<home>/spaces/<name>/`` holds, and how one is made and removed.

``space.toml`` has the preset and overrides; ``files/`` is the root, unless that file names a folder of the operator's
(``at``) that is the root instead; ``placing/`` has the notes of files on their way.

Owns these folders: reading them at the start, making one, removing one. Does not own what spaces do
(``agent``). The files belong to a user of the space's own if the exchange runs as root (``workspace.folder``).

Invariant: a folder with a ``space.toml`` is a whole space: that file is written last and removed first. A folder of
the operator's is never made, given to another user or removed.
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
from trunkline.workspace.folder import FILES, NOTES, SETTINGS, Workspace, erase
from trunkline.workspace.policy import SpacePolicy, make_policy

# A space's name is a folder's name and part of an agent's id; lower case, so that no two differ by case only.
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
NAME_IN_WORDS: Final = "up to 63 of a-z, 0-9, - and _, and begins with a letter or digit"


class Space(Struct, frozen=True):
    """A space as its folder says: its rules and its files."""

    name: str
    preset: str
    policy: SpacePolicy
    workspace: Workspace
    folder: Path


class SpaceFile(Struct, frozen=True):
    """``space.toml``."""

    preset: str = "standard"
    # The operator's folder in which it works; empty: ``files`` beside this file.
    at: str = ""
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
        settings, policy = _settings(folder)
        try:
            workspace = Workspace.open(Path(settings.at) if settings.at else folder / FILES, folder / NOTES)
        except WorkspaceError as error:
            raise ConfigError(str(error), str(folder / SETTINGS)) from None
        return Space(folder.name, settings.preset, _possible(policy, workspace, folder), workspace, folder)

    def read_again(self, space: Space) -> Space:
        """The same space with what its file says by now; ``ConfigError`` if that cannot be used."""
        settings, policy = _settings(space.folder)
        if Path(settings.at or space.folder / FILES) != space.workspace.root:
            raise ConfigError("`at` cannot change while the exchange runs", str(space.folder / SETTINGS))
        return structs.replace(space, preset=settings.preset, policy=_possible(policy, space.workspace, space.folder))

    def create(self, name: str, preset: str, overrides: Mapping[str, Any], at: str = "") -> Space:
        """A new space, empty or on the operator's folder ``at``; ``ConfigError`` if it cannot be made of this."""
        policy = make_policy(preset, overrides)
        if at:
            at = self._checked(at)
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
            notes = folder / NOTES
            workspace = Workspace.open(Path(at), notes) if at else Workspace.create(folder / FILES, others, notes)
            _write(folder / SETTINGS, _as_toml(preset, overrides, at))
        except OSError as error:
            raise ConfigError(f"cannot be made: {error.strerror}", str(folder)) from None
        except WorkspaceError as error:
            raise ConfigError(f"cannot be made: {error.message}", at or str(folder)) from None
        return Space(name, preset, _possible(policy, workspace, folder), workspace, folder)

    def _checked(self, at: str) -> str:
        """A folder of the operator's in which an agent may work, without links; ``ConfigError`` says why not."""
        real = Path(at).resolve()
        if not Path(at).is_absolute() or not real.is_dir():
            raise ConfigError("expected the absolute path of a folder that is there", at)
        kept = {"the exchange's own folder": self._path.parent.resolve(), "your home folder": Path.home().resolve()}
        for what, place in kept.items():
            if place.is_relative_to(real):
                raise ConfigError(f"it holds {what}, which an agent in it could change", at)
        if real.is_relative_to(kept["the exchange's own folder"]):
            raise ConfigError("it is in the exchange's own folder", at)
        for file in self._path.glob(f"*/{SETTINGS}"):
            other = TomlFile(file, required=True).convert(SpaceFile).at
            if other and (real.is_relative_to(other) or Path(other).is_relative_to(real)):
                raise ConfigError(f"the space {file.parent.name} works there: {other}", at)
        return str(real)

    def remove(self, space: Space) -> None:
        """Take it away: first what says that it is one, then its files. Blocks: there may be many."""
        with contextlib.suppress(FileNotFoundError):
            (space.folder / SETTINGS).unlink()
        space.workspace.close()
        erase(space.folder)


def _possible(policy: SpacePolicy, workspace: Workspace, folder: Path) -> SpacePolicy:
    """Without snapshots where they cannot be brought back: that is done by renames, which stay on one file system."""
    if workspace.device == folder.stat().st_dev:
        return policy
    return structs.replace(policy, snapshots=structs.replace(policy.snapshots, kept=0))


def _settings(folder: Path) -> tuple[SpaceFile, SpacePolicy]:
    file = folder / SETTINGS
    settings = TomlFile(file, required=True).convert(SpaceFile)
    try:
        return settings, make_policy(settings.preset, settings.policy)
    except ConfigError as error:
        raise ConfigError(str(error), str(file)) from None


def _as_toml(preset: str, overrides: Mapping[str, Any], at: str) -> str:
    # TOML reads numbers, true, false, arrays, and texts without escapes of half characters as JSON writes them.
    lines = [
        "# Read when the exchange starts, and by `trunkline reload`. The keys are in docs/protocols/spaces.md.",
        f"preset = {_toml_value(preset)}",
        *([f"at = {_toml_value(at)}"] if at else []),
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

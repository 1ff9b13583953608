"""Packages of npm for tests, as they were published. Where no registry can be reached, the test is left out."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

FETCH_S = 60


def npm_of(node: str) -> tuple[str, ...]:
    """The npm that came with this Node.js, as words of a command."""
    return (node, str(Path(node).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))


def _run(command: tuple[str, ...], folder: Path, timeout_s: float) -> None:
    """Whether it went well is seen in the folder."""
    quiet = subprocess.DEVNULL
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=folder, stdout=quiet, stderr=quiet, check=False, timeout=timeout_s)


def unpacked(node: str, package: str, sha512: str, folder: Path) -> Path:
    """The folder of one package, by name and version, without what it depends on."""
    _run((*npm_of(node), "pack", package, "--silent"), folder, FETCH_S)
    name = package.partition("@")[0]
    found = list(folder.glob(f"{name}-*.tgz"))
    if not found:
        pytest.skip(f"the package {name} cannot be fetched here")
    assert base64.b64encode(hashlib.sha512(found[0].read_bytes()).digest()).decode() == sha512
    with tarfile.open(found[0]) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package"


def installed(
    npm: tuple[str, ...], lock: Path, folder: Path, needed: str, *words: str, timeout_s: float = FETCH_S
) -> Path:
    """The folder in which the packages that a lock names are: by ``npm ci``, or by other words."""
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(lock / name, folder)
    given = words or ("ci",)
    _run((*npm, *given, "--ignore-scripts", "--no-audit", "--no-fund", "--silent"), folder, timeout_s)
    if not (folder / "node_modules" / needed).exists():
        pytest.skip(f"{needed} cannot be fetched here")
    return folder

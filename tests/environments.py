"""Environments of Python that a test makes for itself: made and filled by uv, where it can be had, else by pip.

uv installs in a fraction of pip's time, but reads none of pip's configuration: which indexes, folders and certificates
a machine has is asked of pip and told to uv. It installs the same: what it is given has hashes, or comes from no index.

Invariant: whatever uv cannot do is done by pip, and only what pip cannot do either has failed.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
# Settings of pip that say where packages come from, and what uv calls each: a value, or several.
ONE = {
    "index-url": "UV_DEFAULT_INDEX",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "proxy": "ALL_PROXY",
}
SEVERAL = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
# Where pip found a setting, the stronger one later.
SECTIONS = ("global", "install", ":env:")


def told_to_uv(listed: str) -> dict[str, str]:
    """What ``pip config list`` printed, as the environment of uv."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        if section in found:
            found[section][key] = str(ast.literal_eval(value))
    settings = {key: value for section in SECTIONS for key, value in found[section].items()}
    # pip takes the best of all its indexes; uv would take the first that has a name. Hashes say whether it is the same.
    told = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    told |= {ONE[key]: value for key, value in settings.items() if key in ONE}
    for key, (name, between) in SEVERAL.items():
        if settings.get(key, "").split():
            told[name] = between.join(settings[key].split())
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        told["UV_NO_INDEX"] = "true"
    return told


@cache
def _uv() -> tuple[str, Mapping[str, str]] | None:
    """The program, and what it is told; nothing where it is not installed or pip's configuration cannot be read."""
    program = shutil.which("uv", path=sysconfig.get_path("scripts"))
    done = subprocess.run((*PIP, "config", "list"), capture_output=True, text=True, timeout=60, check=False)
    if program is None or done.returncode:
        return None
    return program, told_to_uv(done.stdout)


def make(place: Path) -> None:
    """An environment without any package, also without pip."""
    venv.create(place, symlinks=True, clear=True)


def install(place: Path, *words: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    """``pip install`` of these words into an environment, by whoever can."""
    python = str(place / "bin" / "python")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    uv = _uv()
    if uv is not None:
        program, told = uv
        done = _run((program, "pip", "install", "--quiet", "--python", python, *words), {**told, **env}, timeout_s)
        if done.returncode == 0:
            return done
    return _run((*PIP, "--python", python, "install", *words), env, timeout_s)


def _run(command: tuple[str, ...], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)

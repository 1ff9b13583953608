"""Elsewhere than on Linux: the package and the SDK are there, and the command says what to do instead."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# What those systems have not, and what is loaded by others before the name of the system is changed.
ELSEWHERE = """
import asyncio, http.client, importlib.abc, logging, multiprocessing, pathlib, shutil, ssl, subprocess, sys, tempfile
import urllib.request
import click, msgspec
missing = {"darwin": set(), "win32": {"fcntl", "grp", "hyperscan", "pty", "pwd", "resource", "termios", "uvloop"}}
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in missing[sys.platform]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.platform = sys.argv[1]
for name in missing[sys.platform]:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
from trunkline import Agent
from trunkline.cli.main import main
main(sys.argv[2:])
"""


def elsewhere(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ELSEWHERE, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize(("system", "name"), [("win32", "Windows"), ("darwin", "macOS")])
@pytest.mark.parametrize("verb", ["up", "down", "doctor", "status", "ledger verify"])
def test_a_verb_that_needs_linux_says_so_in_a_sentence(system: str, name: str, verb: str) -> None:
    said = elsewhere(system, *verb.split())
    word = verb.partition(" ")[0]
    assert said.returncode == 2
    assert said.stderr.startswith(f"platform.unsupported: `trunkline {word}` needs Linux, and this is {name}: ")
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("system", ["win32", "darwin"])
@pytest.mark.parametrize("words", [("--version",), ("--help",), ("completion", "zsh"), ("check", "--help")])
def test_what_needs_no_exchange_works_anywhere(system: str, words: tuple[str, ...]) -> None:
    said = elsewhere(system, *words)
    assert (said.returncode, said.stderr) == (0, "")

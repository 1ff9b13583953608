"""Pages whose code is run: the files they show, and their sessions with what each command prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.running import Running


def session(page: str) -> list[tuple[str, str]]:
    """The commands of all console blocks, each with what it should print."""
    steps: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], ""))
            else:
                steps[-1] = (steps[-1][0], steps[-1][1] + line + "\n")
    return steps


def files(page: str) -> dict[str, str]:
    """The Python files of a page: a block that begins with ``# NAME.py`` begins one, the blocks after it go on."""
    found: dict[str, str] = {}
    name = ""
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        if named := re.match(r"# (\w+\.py)\n", block):
            name = named[1]
        found[name] = found[name] + "\n\n" + block if name in found else block
    return found


def as_pattern(expected: str) -> str:
    """Expected output as a regular expression: a line that is only … is any lines, … elsewhere anything on its line."""
    return "".join(
        "(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + " *\n"
        for line in expected.splitlines()
    )


def completed(command: str, said: str) -> str:
    """A command with the ids that a page leaves open: ``a…`` is the last such id that was printed, as is ``run_…``."""

    def last(match: re.Match[str]) -> str:
        return re.findall(rf"\b{match[1]}[0-9a-f][0-9a-f-]*\b", said)[-1]

    return re.sub(r"(?<= )([a-z_]+)…", last, command)


def play(page: str, exchange: Running, cwd: Path, before: Callable[[str], None] = lambda _: None) -> int:
    """Run a page's session against an exchange; how many commands it has. Each prints what the page says."""
    steps, said = session(page), ""
    for command, expected in steps:
        before(command)
        said += printed(completed(command, said), expected, cwd, {"TRUNKLINE_HOME": str(exchange.home)})
    return len(steps)


def printed(command: str, expected: str, cwd: Path, given: dict[str, str]) -> str:
    """What a command of a page prints, which has to be what the page says; ``given`` is in its environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(  # noqa: S602  (the page's own lines)
        command,
        shell=True,
        env={**os.environ, "PATH": path, "COLUMNS": "200", **given},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    assert re.fullmatch(as_pattern(expected), ran.stdout), f"$ {command}\n{ran.stdout}"
    return ran.stdout

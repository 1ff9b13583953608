"""Commands that texts tell their readers to type name the home that they are about."""

from __future__ import annotations

import ast
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import trunkline
from tests.unit.cli.conftest import Running, running
from tests.unit.cli.conftest import trunkline as run
from trunkline.cli.main import VERBS, cli
from trunkline.config import Log
from trunkline.hints import command, completed
from trunkline.host.logs import OwnHandler, notice, set_up
from trunkline.model import FAULTS

pytestmark = pytest.mark.slow

__all__ = ["running"]

SOURCE = Path(trunkline.__file__).parent
A_COMMAND = re.compile(r"(?<![\w/.])trunkline ([a-z]+)\b[^`\n]*")
# Words of ours that look like one in texts that nobody types: the keys that are derived from a secret.
NO_HINT = re.compile(r"^trunkline (ledger|heads|edges|orchestrator)( \w+)? ?\d?$")


@cache
def texts_in(file: Path) -> tuple[tuple[int, str], ...]:
    """The texts of a module that somebody may be shown: no docstrings, no help of commands."""
    return tuple(_texts_in(file))


def _texts_in(file: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(file.read_text())
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                skipped.add(id(first.value))
            if not isinstance(node, ast.Module):
                skipped |= {id(inner) for one in node.decorator_list for inner in ast.walk(one)}
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values),
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def test_a_hint_of_the_exchange_stands_between_backticks_so_that_its_home_can_be_added() -> None:
    open_ended: list[str] = []
    for file in SOURCE.rglob("*.py"):
        if file.is_relative_to(SOURCE / "testing") or file.name in {"page.py", "hints.py"}:
            continue
        for line, text in texts_in(file):
            # Pages in a browser have marks of their own; which home they are of their reader knows.
            bare = re.sub(r"`trunkline [^`]*`|<code>trunkline [^<]*</code>", "", text)
            if not NO_HINT.match(bare) and any(found[1] in VERBS for found in A_COMMAND.finditer(bare)):
                open_ended.append(f"{file.relative_to(SOURCE)}:{line}: {text[:80]}")
    assert open_ended == []


def hinted() -> Iterator[tuple[str, str]]:
    for file in SOURCE.rglob("*.py"):
        if not file.is_relative_to(SOURCE / "testing") and file.name not in {"page.py", "hints.py"}:
            for line, text in texts_in(file):
                for found in re.finditer(r"`trunkline ([a-z][^`\n]*)`", text):
                    yield f"{file.relative_to(SOURCE)}:{line}", found[1]


def what_is_missing(words: list[str]) -> str:
    """Of a hint: an argument or an option without which its verb does nothing but say how it is used."""
    verb: click.Command = cli
    while isinstance(verb, click.Group):
        name = words[0] if words and words[0] in verb.list_commands(click.Context(verb)) else None
        if name is None:
            return "" if verb.invoke_without_command else "a verb"
        words = words[1:]
        verb = verb.get_command(click.Context(verb), name) or verb
    try:
        verb.make_context(None, list(words), resilient_parsing=False)
    except click.UsageError as error:
        # A word that stands for what a reader puts there need not fit.
        is_there = isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
        return "" if is_there else error.format_message()
    return ""


def test_a_hint_names_all_that_its_verb_needs() -> None:
    lacking = [
        f"{place}: {words}: {missing}"
        for place, words in hinted()
        if (missing := what_is_missing(shlex.split(words.replace("…", "X"))))
    ]
    assert lacking == []


def test_a_home_is_added_to_each_hint_once_and_quoted() -> None:
    text = "see `trunkline approvals`, `trunkline logs x -f`; trunkline is a word"
    assert completed(text, None) == completed(text, "") == text
    once = completed(text, "/my home")
    assert once == (
        "see `trunkline approvals --home '/my home'`, `trunkline logs x -f --home '/my home'`; trunkline is a word"
    )
    assert completed(once, "/my home") == once
    assert command("up", "/h") == "trunkline up --home /h"


def is_usage(found: re.Match[str]) -> bool:
    """Whether it is how a verb is used in general."""
    return found.string[: found.start()].endswith("Usage: ")


ARGUMENTS = {
    "blob": ["sha256:00"], "call": ["a/b", "{}"], "completion": ["bash"], "publish": ["t", "{}"], "start": ["a"],
    "stop": ["a"], "restart": ["a"], "logs": ["a"], "approve": ["a1"], "deny": ["a1"],
    "directive": ["new", "a/b", "--intent", "x"], "policy": ["check", "a", "b/c"], "space": ["undo", "x", "--yes"],
    "jobs": ["show", "oa.embedding.v1"], "token": ["revoke", "t1"], "pylon": ["cert"], "replay": ["/nowhere.jsonl"],
    "check": ["ossa"], "ledger": ["verify"],
}  # fmt: skip
# They go on: one starts an exchange (its lines are seen below), the others wait for one, or for a client.
NOT_RUN = {"up", "watch", "mcp"}


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in NOT_RUN])
@pytest.mark.parametrize("is_running", [False, True])
def test_what_any_verb_says_to_type_names_the_home_that_it_was_given(
    verb: str, is_running: bool, running: Running, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(running.home if is_running else short_path)
    if verb == "down" and is_running:
        pytest.skip("the process it would stop is this one")
    monkeypatch.setattr(sys, "argv", ["trunkline"])
    said = run(verb, *ARGUMENTS.get(verb, []), "--home", home)
    if verb == "completion":
        return  # what it prints is a program
    for found in A_COMMAND.finditer(said.out + "\n" + said.err):
        if found[1] in VERBS and "--help" not in found[0] and not is_usage(found):
            assert f"--home {home}" in found[0], said


@pytest.mark.parametrize("code", [code for code, row in FAULTS.items() if "`trunkline" in row.text])
def test_a_fault_of_the_exchange_is_shown_with_the_home_in_its_hint(
    code: str, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trunkline.cli.client import ExchangeClient, end_with

    monkeypatch.setattr(
        ExchangeClient, "request", lambda _self, *_: end_with({"code": code, "message": FAULTS[code].text})
    )
    said = run("agents", "--home", str(running.home))
    assert f"--home {running.home}`" in said.err


def test_what_a_tool_says_to_type_is_not_made_fit_to_be_typed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trunkline.cli.client import ExchangeClient, end_with

    said = {"code": "tool.failed", "message": "not done yet: `trunkline approve a7`"}
    monkeypatch.setattr(ExchangeClient, "request", lambda _self, *_: end_with(said))
    assert "`trunkline approve a7`" in run("agents", "--home", str(running.home)).err


def test_lines_of_the_exchange_itself_name_its_home(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    level = root.level
    set_up(Log(), "/h")
    try:
        notice("a5 waits: `trunkline approvals`")
        logging.getLogger("trunkline").warning("it ended: `trunkline start`")
    finally:
        for handler in [one for one in root.handlers if isinstance(one, OwnHandler)]:
            root.removeHandler(handler)
        root.setLevel(level)
    said = capsys.readouterr().err
    assert "a5 waits: `trunkline approvals --home /h`\n" in said
    assert "WARNING it ended: `trunkline start --home /h`\n" in said

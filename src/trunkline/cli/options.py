"""What all verbs share: ``--home`` and ``--json``, before or after the verb, and JSON given on the command line.

Owns ``CommandSettings``, which each verb gets as its first argument, and the reading of arguments that are JSON, ``-``
or ``@file``. Does not own what a verb does with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trunkline.cli.client import ExchangeClient, encode
from trunkline.cli.terminal import HOME_OPTION, CommandFailed, file_failure, printable, say
from trunkline.home import Home

# How much of a line is shown on each side of a fault in it.
_AROUND = 30


class CommandSettings:
    """What ``--home`` and ``--json`` said, before or after the verb, and what follows from it."""

    def __init__(self) -> None:
        self.home_option: str | None = None
        self.as_json = False

    @property
    def home(self) -> Home:
        """The folder of the exchange. A file cannot be one, whatever is done with it."""
        home = Home.resolve(self.home_option, os.environ)
        if home.path.exists() and not home.path.is_dir():
            raise file_failure(home.path, "it is no folder, and the home of an exchange is one")
        return home

    def connect(self) -> ExchangeClient:
        """The running exchange of this home; ``ExchangeUnreachable`` if there is none."""
        return ExchangeClient(self.home)

    def shown_as_json(self, value: object) -> bool:
        """Print the value for a program, if one asked; whether that was all."""
        if self.as_json:
            say_json(encode(value))
        return self.as_json


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that all have, and its ``CommandSettings`` as the first argument."""

    def keep_home(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(CommandSettings).home_option = value
            context.meta[HOME_OPTION] = value

    def keep_json(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.ensure_object(CommandSettings).as_json = True

    decorated: Callable[..., Any] = click.make_pass_decorator(CommandSettings, ensure=True)(function)
    for option in (
        click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=keep_json,
            help="For programs: JSON on stdout, also of an error.",
        ),
        click.option(
            "--home",
            metavar="DIR",
            expose_value=False,
            callback=keep_home,
            help="The home folder; else $TRUNKLINE_HOME or ~/.trunkline.",
        ),
    ):
        decorated = option(decorated)
    return decorated


def say_json(data: bytes) -> None:
    """JSON on stdout: the same value with nothing invisible in it; spread out for a person, one line for a program."""
    if sys.stdout.isatty():
        import msgspec

        data = msgspec.json.format(data, indent=2)
    say(printable(data.decode(), keep="\n"))


def json_argument(text: str | None, what: str = "input") -> bytes:
    """The JSON that an argument means: itself, ``-`` for stdin, ``@file`` for a file; ``{}`` if there is none."""
    if text is None:
        return b"{}"
    if text == "-":
        data = sys.stdin.buffer.read()
    elif text.startswith("@"):
        try:
            data = Path(text[1:]).read_bytes()
        except OSError as error:
            raise file_failure(text[1:], error.strerror) from None
    else:
        data = os.fsencode(text)
    if text != "{}":
        _check(data, what, _as_object(text) if what == "input" else "")
    return data


def _as_object(text: str) -> str:
    """``text=hello``, as other programs take it, as the JSON that was meant; nothing if it is not of that form."""
    name, is_pair, value = text.partition("=")
    if not is_pair or not name.isidentifier():
        return ""
    import json
    import shlex

    return f"\n  write {printable(shlex.quote(json.dumps({name: value})))}"


def _check(data: bytes, what: str, hint: str) -> None:
    from trunkline.strictjson import NotStrictJson, check

    try:
        check(data)
    except NotStrictJson as error:
        fault = error.fault[:1].lower() + error.fault[1:]
        if not data.strip():
            fault, error.at = "it is empty", None
        message = f"the {what} is not JSON: {fault}"
        if error.at is None:
            raise CommandFailed("message.malformed", message) from None
        line, column, spot = place(data, error.at)
        where = {"line": line, "column": column}
        text = f"{message}, line {line}, column {column}"
        raise CommandFailed("message.malformed", text, below=spot + hint, details=where) from None


def place(data: bytes, offset: int) -> tuple[int, int, str]:
    """Line and column of an offset, and that part of the line with a mark below it."""
    before = data[:offset].decode("utf-8", "replace")
    after = data[offset:].decode("utf-8", "replace").split("\n", 1)[0]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    lead = printable(before[len(before) - column + 1 :][-_AROUND:])
    return line, column, f"  {lead}{printable(after[:_AROUND])}\n  {' ' * len(lead)}^"

"""``docs/cli.md`` names every verb and every option is really there."""

from __future__ import annotations

import re
from pathlib import Path

import click

from trunkline.cli.main import VERBS, cli

DOCS = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
VERB_ROWS = re.findall(r"^\| (`[^|]*`) \|", DOCS.partition("## Exit codes")[0], re.MULTILINE)


def test_every_verb_is_documented_and_no_other() -> None:
    documented = {use.split()[0] for row in VERB_ROWS for use in re.findall(r"`([^`]*)`", row)}
    assert documented == set(VERBS)


def test_every_documented_option_exists() -> None:
    context = click.Context(cli)
    for row in VERB_ROWS:
        for use in re.findall(r"`([^`]*)`", row):
            words = use.split()
            command = cli.get_command(context, words[0])
            if isinstance(command, click.Group) and len(words) > 1:
                command = command.get_command(context, words[1])
            assert command is not None
            known = {option for parameter in command.params for option in parameter.opts}
            assert set(re.findall(r"--\w+", use)) <= known, use

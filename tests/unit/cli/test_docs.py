"""``docs/cli.md`` names every verb and every option is really there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

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
            if isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith("["):
                command = command.get_command(context, words[1])
            assert command is not None
            known = {option for parameter in command.params for option in parameter.opts}
            assert set(re.findall(r"--[\w-]+", use)) <= known, use


@pytest.mark.parametrize("verb", ["call", "tools", "publish", "policy check", "token new", "check ossa"])
def test_examples_in_a_help_stand_on_lines_of_their_own(verb: str) -> None:
    text = CliRunner().invoke(cli, [*verb.split(), "--help"]).output
    assert "\\b" not in text
    assert sum(line.startswith("  trunkline ") for line in text.splitlines()) >= 1

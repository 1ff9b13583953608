"""``trunkline completion``: a script that lets a shell complete verbs, options and the names of what is there.

Owns what is suggested for tools, agents, spaces and open questions: those of the running exchange of this home. Where
none runs, nothing is suggested and nothing is said: a shell waits in the middle of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from trunkline.cli.client import ExchangeClient, at
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, printable, say
from trunkline.errors import ExchangeUnreachable

if TYPE_CHECKING:
    # Loaded by the shell's request only: it costs milliseconds of each command.
    from click.shell_completion import CompletionItem

# Who pressed Tab looks at a line that does not move.
WITHIN_S: Final = 2.0

Suggest = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shared
def completion(_: CommandSettings, shell: str) -> None:
    """Print the script for a SHELL; it has to be read when the shell starts.

    \b
    trunkline completion bash > ~/.local/share/bash-completion/completions/trunkline
    trunkline completion zsh > "${fpath[1]}/_trunkline"
    trunkline completion fish > ~/.config/fish/completions/trunkline.fish
    """
    from click.shell_completion import get_completion_class

    from trunkline.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None
    say(script(cli, {}, "trunkline", "_TRUNKLINE_COMPLETE").source().rstrip("\n"))


def _suggesting(names: Callable[[ExchangeClient], Iterator[tuple[str, str]]]) -> Suggest:
    """Those of these names that begin as typed, each with what a shell may show beside it."""

    def suggest(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        settings = context.find_object(CommandSettings) or CommandSettings()
        with suppress(ExchangeUnreachable, CommandFailed):
            exchange = ExchangeClient(settings.home, timeout_s=WITHIN_S)
            return [
                CompletionItem(name, help=printable(text))
                for name, text in names(exchange)
                if name.startswith(typed) and printable(name) == name
            ]
        return []

    return suggest


def _tools(exchange: ExchangeClient) -> Iterator[tuple[str, str]]:
    from trunkline.cli.tools import all_tools

    for tool in all_tools(exchange):
        yield tool["tool_id"], tool["description"].partition("\n")[0]


def _agents(exchange: ExchangeClient) -> Iterator[tuple[str, str]]:
    for agent in exchange.get(at("agents"))["agents"]:
        yield agent["agent_id"], agent["state"]


def _steerable(exchange: ExchangeClient) -> Iterator[tuple[str, str]]:
    for agent in exchange.get(at("agents"))["agents"]:
        if agent.get("steerable"):
            yield agent["agent_id"], agent["state"]


def _questions(exchange: ExchangeClient) -> Iterator[tuple[str, str]]:
    for question in exchange.get(at("approvals"))["approvals"]:
        yield question["approval_id"], str(question.get("tool_id") or question.get("agent_id") or "")


def _spaces(exchange: ExchangeClient) -> Iterator[tuple[str, str]]:
    for space in exchange.get(at("spaces"))["spaces"]:
        yield space["name"], space["folder"]


def among(names: Iterable[str]) -> Suggest:
    """Those of these words that begin as typed; no exchange is asked."""

    def suggest(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in names if name.startswith(typed)]

    return suggest


tools_here: Final = _suggesting(_tools)
agents_here: Final = _suggesting(_agents)
steerable_here: Final = _suggesting(_steerable)
questions_here: Final = _suggesting(_questions)
spaces_here: Final = _suggesting(_spaces)

"""``trunkline directive new``: state that a call is intended, for tools that run only then (``requires_directive``).

Owns the words of the command line. The exchange keeps the directive, and uses it up with the one call that names it.
"""

from __future__ import annotations

import click
from msgspec import Raw

from trunkline.cli.client import at
from trunkline.cli.completion import tools_here
from trunkline.cli.options import CommandSettings, json_argument, shared
from trunkline.cli.terminal import note, printable, say, typed
from trunkline.cli.tools import check_needs_directive, help_with_tool


@click.group()
@shared
def directive(_: CommandSettings) -> None:
    """State an intent for a tool that needs one (`trunkline tools` says which do)."""


@directive.command("new", short_help="State that one call is intended.")
@click.argument("tool", shell_complete=tools_here)
@click.argument("json_input", metavar="[JSON]", required=False)
@click.option("--reason", required=True, help="Why; it goes on record.")
@shared
def new(settings: CommandSettings, tool: str, json_input: str | None, reason: str) -> None:
    """State that one call of TOOL (with exactly this JSON, if given) is intended; prints the directive's id.

    It holds for an hour: `trunkline call TOOL --directive ID`.
    """
    body: dict[str, object] = {"tool_id": tool, "reason": reason}
    if json_input is not None:
        body["input"] = Raw(json_argument(json_input))
    exchange = settings.connect()
    check_needs_directive(exchange, tool, f"call it: {typed(f'call {printable(tool)} …')}")
    help_with_tool(exchange, tool)
    answer = exchange.post(at("directives"), body)
    if not settings.shown_as_json(answer):
        say(printable(answer["directive_id"]))
        hint = typed(f"call {printable(tool)} … --directive {answer['directive_id']}")
        note(f"for one call within the hour: {hint}")

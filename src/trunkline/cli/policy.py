"""``trunkline policy`` and ``policy check``: the rules in force, and what they would say to a call.

Both ask the exchange: nothing is judged here, and a check calls and records nothing.

Owns the table of rules as a person reads it. Does not own judging.
"""

from __future__ import annotations

import shlex
from typing import Any

import click
import msgspec
from msgspec import Raw

from trunkline.cli.client import at
from trunkline.cli.completion import tools_here
from trunkline.cli.options import CommandSettings, json_argument, shared
from trunkline.cli.terminal import printable, say, status_word, table, typed
from trunkline.cli.tools import known_tools, no_tool
from trunkline.input_conditions import shown
from trunkline.model import InputCondition


@click.group(invoke_without_command=True)
@shared
@click.pass_context
def policy(context: click.Context, settings: CommandSettings) -> None:
    """The rules in force, in the order in which they are tried; the first match wins, nothing matches: deny."""
    if context.invoked_subcommand is not None:
        return
    found: dict[str, Any] = settings.connect().get(at("policy"))
    if settings.shown_as_json(found):
        return
    rows = [
        [rule["id"], rule["decision"], rule["caller"], rule["tool"], _condition(rule), rule.get("reason", "")]
        for rule in found["rules"]
    ]
    rows.append(["default", "deny", "*", "*", "", "nothing above matches"])
    table(["RULE", "DECISION", "CALLER", "TOOL", "IF", "REASON"], rows, status=1, below=2, keep=(0, 1, 2, 3))
    for warning in found.get("warnings", ()):
        say(f"warning: {printable(warning)}")


def _condition(rule: dict[str, Any]) -> str:
    words = []
    if "side_effects" in rule:
        words.append("it changes things" if rule["side_effects"] else "it reads only")
    if "when" in rule:
        words.append(str(rule["when"]))
    words += [shown(msgspec.convert(one, InputCondition)) for one in rule.get("input", ())]
    if rule.get("sensitive"):
        words.append("sensitive")
    return ", ".join(words)


@policy.command("check", short_help="What the rules would say to a call; nothing is called.")
@click.argument("caller")
@click.argument("tool", shell_complete=tools_here)
@click.argument("json_input", metavar="[JSON]", required=False)
@shared
def check(settings: CommandSettings, caller: str, tool: str, json_input: str | None) -> None:
    """What would happen if CALLER called TOOL, with this JSON if given. Nothing is called or recorded.

    CALLER is `operator` or an edge and an id: agent:ID, http:NAME, chiffon:ID.

    \b
    trunkline policy check agent:com.example.reporter com.example.notes/append
    """
    body: dict[str, object] = {"caller": caller, "tool_id": tool}
    if json_input is not None:
        body["input"] = Raw(json_argument(json_input))
    exchange = settings.connect()
    verdict: dict[str, Any] = exchange.post(at("policy", "check"), body)
    if settings.shown_as_json(verdict):
        return
    reason = f": {printable(verdict['reason'])}" if verdict.get("reason") else ""
    say(f"{status_word(verdict['decision'])} by {printable(verdict['rule'])}{reason}")
    for rule in verdict.get("depends", ()):
        say(f"depends on the input: {printable(rule)}")
    if verdict.get("depends"):
        words = f"policy check {shlex.quote(caller)} {shlex.quote(tool)} JSON"
        say(f"with an input: {typed(words)}")
    fault = verdict.get("fault")
    if fault is not None:
        if fault["code"] == "tool.not_found":
            fault["message"] = no_tool(tool, known_tools(exchange, tool))
        say(f"the caller would get {printable(fault['code'])}: {printable(fault['message'])}")

"""``trunkline tools``: which tools can be called, and of one its description, its schemas and a call to try.

Also owns the way through all pages of them (``all_tools``), what other verbs say about a tool that does not exist
(``help_with_tool`` and ``no_tool`` name the one that was perhaps meant), and about one that needs no directive.
"""

from __future__ import annotations

import shutil
import sys
from typing import Any, Final, NoReturn

import click

from trunkline.cli.client import ExchangeClient, at, decode, encode, end_with
from trunkline.cli.completion import tools_here
from trunkline.cli.options import CommandSettings, say_json, shared
from trunkline.cli.terminal import (
    CommandFailed,
    brief,
    clock,
    did_you_mean,
    heading,
    near,
    note,
    printable,
    say,
    status_word,
    table,
    typed,
    width,
)
from trunkline.model import MOUNT_PREFIX, tool_agent

# Columns in which a description still says something.
_LEAST_DESCRIPTION: Final = 40


@click.command()
@click.argument("tool", required=False, shell_complete=tools_here)
@click.option("--all", "everything", is_flag=True, help="Also those of agents that are gone, see above.")
@shared
def tools(settings: CommandSettings, tool: str | None, everything: bool) -> None:
    """What can be called; with the name of a TOOL its description, its schemas and a call to try. With the id of an
    agent, what that one offers.

    Tools of agents that are gone (not configured, not connected, without a token) are left out; the exchange forgets
    them at its next start.

    \b
    trunkline tools
    trunkline tools com.example.clock
    trunkline tools com.example.clock/countdown
    """
    exchange = settings.connect()
    found = all_tools(exchange)
    of_agent = [one for one in found if tool is not None and one["tool_id"].startswith(f"{tool}/")]
    if of_agent:
        found, tool = of_agent, None
    elif tool is not None:
        found = _named(tool, found)
    if settings.shown_as_json({"tools": found}):
        return
    gone = set() if everything or tool is not None or of_agent else _gone(exchange, found)
    found = [one for one in found if tool_agent(one["tool_id"]) not in gone]
    if not found:
        say(f"No tools: no agent has announced any. `{typed('agents')}` shows who is there.")
    elif tool is not None:
        for one in found:
            _describe(one)
    else:
        show_table(found)
    if gone:
        note(f"left out, as they are gone: the tools of {printable(', '.join(sorted(gone)))}; {typed('tools --all')}")


def _gone(exchange: ExchangeClient, found: list[dict[str, Any]]) -> set[str]:
    """The agents that offered some of these tools, and are neither configured nor connected, nor may come again."""
    away = {tool_agent(one["tool_id"]) for one in found if one["status"] == "unavailable"}
    away -= {tool_agent(one["tool_id"]) for one in found if one["status"] != "unavailable"}
    if away:
        away -= {one["agent_id"] for one in exchange.get(at("agents"))["agents"]}
    if away:
        for one in exchange.get(at("tokens"))["tokens"]:
            if not one.get("revoked"):
                away -= {one["agent"], f"{one['edge']}.{one['agent']}"}
    return away


def show_table(found: list[dict[str, Any]]) -> None:
    """One row each; where a description would have too little room beside the names, it goes below its row."""
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    names = [[one["tool_id"], one["status"], _nature(one)] for one in found]
    taken = sum(max(map(width, column)) + 2 for column in zip(*names, strict=True))
    is_narrow = 0 < room < taken + _LEAST_DESCRIPTION
    texts = [brief(one["description"], room - 4) if is_narrow else one["description"] for one in found]
    rows = [[*row, text] for row, text in zip(names, texts, strict=True)]
    below = int(is_narrow)
    table(["TOOL", "STATUS", "KIND", "DESCRIPTION"], rows, status=1, below=below, keep=(0, 1, 2), foreign=(3,))


def _named(tool: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tool of this id, or those whose name after the slash it is."""
    exact = [one for one in found if tool in {one["tool_id"], one["tool_id"].partition("/")[2]}]
    if not exact:
        raise CommandFailed("tool.not_found", no_tool(tool, found))
    return exact


def all_tools(exchange: ExchangeClient) -> list[dict[str, Any]]:
    """The tools of all pages, by name."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = exchange.get(at("tools", after=after))
        found += page["tools"]
        # An exchange of an earlier release has no pages.
        after = page.get("next")
        if after is None:
            return found


def known_tools(exchange: ExchangeClient, tool: str) -> list[dict[str, Any]]:
    """All tools, and by their ids alone those that the agent of this one has ever offered, if it is away."""
    found = all_tools(exchange)
    status, answer = exchange.answer("GET", at("agents", tool.partition("/")[0] or "-", "tools"))
    # An exchange of an earlier release does not tell.
    known = decode(answer)["tools"] if status == 200 else []
    listed = {one["tool_id"] for one in found}
    return found + [{"tool_id": one} for one in known if one not in listed]


def check_needs_directive(exchange: ExchangeClient, tool: str, instead: str) -> None:
    """End the command for a tool that needs no directive: it would take any id and use none up. ``instead`` is what to
    do.
    """
    found = next((one for one in all_tools(exchange) if one["tool_id"] == tool), None)
    if found is not None and not found.get("requires_directive"):
        raise CommandFailed("state.conflict", f"{tool} needs no directive; {instead}")


def help_with_tool(exchange: ExchangeClient, tool: str) -> None:
    """Let a refusal say which tool was perhaps meant, or where its input is described."""

    def refused(error: dict[str, Any]) -> NoReturn:
        exchange.refused = end_with
        if error["code"] in {"tool.not_found", "tool.unavailable"}:
            error["message"] = _why_not(exchange, tool, error)
        end_with(error, _further(exchange, error["code"], tool))

    exchange.refused = refused


def _why_not(exchange: ExchangeClient, tool: str, error: dict[str, Any]) -> str:
    """What is said of a tool that is not there, or whose agent is not: what keeps it away, or what was meant."""
    agent_id, found = tool.partition("/")[0], known_tools(exchange, tool)
    is_known = any(one["tool_id"] == tool for one in found)
    agents = exchange.get(at("agents"))["agents"]
    agent = next((one for one in agents if one["agent_id"] == agent_id), None)
    if agent is None and is_known:
        return _nobody_here(exchange, agent_id)
    if agent is not None and agent["state"] not in {"ready", "unhealthy"}:
        return _is_away(exchange, agent)
    is_launched = agent is not None and agent["state"] == "ready" and agent.get("steerable")
    if agent is not None and is_launched and (is_known or not agent.get("tools")):
        return f"{agent_id} was being started or restarted, and is there now: call it again"
    if error["code"] != "tool.unavailable":
        return no_tool(tool, found)
    return str(error["message"]) + ("" if agent is None else f": {_where_to_look(exchange, agent_id)}")


def _further(exchange: ExchangeClient, code: str, tool: str) -> str:
    """What helps besides, by what is wrong."""
    if code == "tool.invalid_input":
        return f"its input: {typed(f'tools {printable(tool)}')}"
    if code == "tool.suspended":
        return _while_developed(exchange, tool)
    return ""


def _while_developed(exchange: ExchangeClient, tool: str) -> str:
    """How not to be asked about each change of an agent's tools; only what the configuration names can be told so."""
    agent_id = tool.partition("/")[0]
    agents: list[dict[str, Any]] = exchange.get(at("agents"))["agents"]
    found: dict[str, Any] = next((one for one in agents if one["agent_id"] == agent_id), {})
    if not found:
        return ""
    if not found.get("steerable"):
        return f"{printable(agent_id)} comes in by itself over {found['edge']}: each change of its tools is asked about"
    table_ = "[[mcp]]" if tool.startswith(MOUNT_PREFIX) else "[[agent]]"
    return f"while you develop it: pin_definitions = false in its {table_}, and {typed('reload')}"


def _is_away(exchange: ExchangeClient, agent: dict[str, Any]) -> str:
    """What keeps an agent away that the exchange launches or connects to."""
    agent_id, state = agent["agent_id"], agent["state"]
    why = f" ({agent['note']})" if agent.get("note") else ""
    how = "runs and has not connected yet" if state in {"starting", "running"} else f"is {state}"
    how = "is restarting" if state == "stopping" and not why else how
    return f"{agent_id} {how}{why}: {_where_to_look(exchange, agent_id)}"


def _where_to_look(exchange: ExchangeClient, agent_id: str) -> str:
    has_log = (exchange.home.logs_folder / agent_id).is_dir()
    return typed("agents") + (f", {typed(f'logs {agent_id}')}" if has_log else "")


def _nobody_here(exchange: ExchangeClient, agent_id: str) -> str:
    """What is said of an agent that was here once, and is neither configured now nor connected."""
    from trunkline.host.begin import is_example

    try:
        seen = max(file.stat().st_mtime for file in (exchange.home.logs_folder / agent_id).iterdir())
    except (OSError, ValueError):
        since = ""
    else:
        since = f"; its last log ends at {clock(seen)}"
    if is_example(exchange.home, agent_id):
        how = f"it is one of the examples: {typed('down')}, then {typed('up --demo')}"
    else:
        how = _brought_back(exchange, agent_id)
    return f"no agent {agent_id} is configured or connected now{since}; {how}"


def _brought_back(exchange: ExchangeClient, agent_id: str) -> str:
    """What brings an agent back, by how it comes in: with a credential that was made for it, or launched."""
    made = [one for one in exchange.get(at("tokens"))["tokens"] if one["agent"] == agent_id]
    if valid := [one for one in made if not one.get("revoked")]:
        return f"it comes in by itself over {valid[-1]['edge']}, with {valid[-1]['id']}: start its program"
    if made:
        kind = f" --type {made[-1]['type']}" if made[-1].get("type") else ""
        again = typed(f"token new {made[-1]['edge']} --agent {agent_id}{kind}")
        return f"it came in over {made[-1]['edge']}, and {made[-1]['id']} was revoked: {again} makes another credential"
    return f"add its [[agent]] to trunkline.toml and {typed('reload')}, or start it by hand with a token"


def no_tool(tool: str, found: list[dict[str, Any]]) -> str:
    """What is said of a tool that does not exist, and which one was perhaps meant."""
    of_agent = [str(one["tool_id"]) for one in found if str(one["tool_id"]).startswith(f"{tool}/")]
    if of_agent:
        return f"{tool} is an agent, not one of its tools{did_you_mean(near(tool, of_agent, 0.0))}"
    return f"no tool {tool!r}" + (_nearest(tool, found) or f"; `{typed('tools')}` lists them")


def _nearest(tool: str, found: list[dict[str, Any]]) -> str:
    """The tools that were perhaps meant, as the end of a sentence.

    A name after the slash is as good as the whole id; an agent that exists narrows it down to that agent's tools.
    """
    ids = [str(one["tool_id"]) for one in found]
    agent, _, name = tool.rpartition("/")
    siblings = [tool_id for tool_id in ids if tool_id.startswith(f"{agent}/")] if agent else []
    by_name = {tool_id.partition("/")[2]: tool_id for tool_id in siblings or ids}
    if name in by_name:
        return did_you_mean([by_name[name]])
    if siblings:
        return did_you_mean([by_name[one] for one in near(name, by_name)])
    return did_you_mean(near(tool, ids))


def _nature(tool: dict[str, Any]) -> str:
    kind = "changes things" if tool.get("side_effects", True) else "reads only"
    return f"{kind}, needs a directive" if tool.get("requires_directive") else kind


def _describe(tool: dict[str, Any]) -> None:
    say(f"{heading(tool['tool_id'])}  {status_word(tool['status'])}, {_nature(tool)}")
    say(printable(tool["description"], keep="\n"))
    for name in ("capabilities", "tags", "required_permissions"):
        if tool.get(name):
            say(f"{name.replace('_', ' ')}: {printable(', '.join(tool[name]))}")
    for name in ("input_schema", "output_schema"):
        if tool.get(name) is not None:
            say(f"{name.replace('_', ' ')}:")
            say_json(encode(tool[name]))
    example = printable(encode(example_of(tool["input_schema"])).decode())
    say(typed(f"call {printable(tool['tool_id'])} '{example}'"))


# Schemas may refer to themselves.
_EXAMPLE_DEPTH: Final = 6


def example_of(schema: Any) -> object:
    """A value that this schema allows, as far as it tells: required fields only, something to edit."""
    return _example(schema, schema.get("$defs", {}) if isinstance(schema, dict) else {}, _EXAMPLE_DEPTH)


def _example(schema: Any, definitions: Any, depth: int) -> object:
    if not isinstance(schema, dict) or depth == 0:
        return "…"
    for name in ("const", "default"):
        if name in schema:
            value: object = schema[name]
            return value
    for name in ("enum", "examples"):
        if isinstance(schema.get(name), list) and schema[name]:
            first: object = schema[name][0]
            return first
    reference = schema.get("$ref")
    if isinstance(reference, str) and isinstance(definitions, dict):
        return _example(definitions.get(reference.removeprefix("#/$defs/")), definitions, depth - 1)
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(name), list) and schema[name]:
            return _example(schema[name][0], definitions, depth - 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "integer" | "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
            return max(0, least) if isinstance(least, int | float) else 0
        case "boolean":
            return False
        case "null":
            return None
        case "array":
            count = schema.get("minItems", 0)
            return [_example(schema.get("items", {}), definitions, depth - 1)] * (min(count, 3) if count else 0)
        case "object":
            return _example_object(schema, definitions, depth)
    return _example_object(schema, definitions, depth) if "properties" in schema else "…"


def _example_object(schema: dict[str, Any], definitions: Any, depth: int) -> dict[str, object]:
    fields, required = schema.get("properties"), schema.get("required")
    known = fields if isinstance(fields, dict) else {}
    names = required if isinstance(required, list) else []
    return {str(name): _example(known.get(name), definitions, depth - 1) for name in names}

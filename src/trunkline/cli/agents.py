"""``trunkline agents``: the agents, how they are, and why one does not run.

A table of what ``GET /v1/agents`` says. What the states mean is decided in the exchange.

Owns the table, and which note stands beside a state.
"""

from __future__ import annotations

from typing import Any

import click

from trunkline.cli.client import at
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import say, table, typed
from trunkline.home import Home

# PID, RESTARTS, VERSION, TOOLS and OPEN, where a terminal is too narrow for all: first what one can do without.
SPARE = (9, 8, 3, 4, 5)


@click.command()
@shared
def agents(settings: CommandSettings) -> None:
    """The agents and how they are: those that the exchange launches, and those that came with a token.

    OPEN, OK and FAILED count their calls; NOTE says why one does not run. `trunkline logs AGENT` has what it printed.
    """
    found: list[dict[str, Any]] = settings.connect().get(at("agents"))["agents"]
    if settings.shown_as_json({"agents": found}):
        return
    if not found:
        say("No agents. Add an [[agent]] to trunkline.toml and reload, or start one by hand with a token:")
        say(f"  {typed('token new opensentience --agent ID')}")
        return
    rows = [
        [
            agent["agent_id"],
            agent["state"],
            agent.get("health", ""),
            agent.get("version", ""),
            str(agent.get("tools", 0)),
            str(agent.get("open_calls", 0)),
            str(agent.get("succeeded", 0)),
            str(agent.get("failed", 0)),
            str(agent.get("restarts", 0)),
            str(agent.get("pid", "")),
            str(agent.get("isolation", "")).partition(":")[0],
            _note(agent, settings.home),
        ]
        for agent in found
    ]
    figures = ["VERSION", "TOOLS", "OPEN", "OK", "FAILED", "RESTARTS", "PID"]
    headers = ["AGENT", "STATE", "HEALTH", *figures, "ISOLATION", "NOTE"]
    table(headers, rows, status=1, below=1, keep=(0, 1, 10), spare=SPARE)


def _note(agent: dict[str, Any], home: Home) -> str:
    """Why it does not run, and where to read more if it ever did."""
    note, agent_id = str(agent.get("note", "")), str(agent["agent_id"])
    why_not_isolated = str(agent.get("isolation", "")).partition(": ")[2]
    if why_not_isolated and not note:
        return f"no sandbox: {why_not_isolated}"
    return f"{note}; {typed(f'logs {agent_id}')}" if note and (home.logs_folder / agent_id).is_dir() else note

"""``trunkline start``, ``stop``, ``restart``: the process of one agent that the exchange launches.

Owns what is said of it, also where it changes nothing. When a process is started again by itself is decided in
``host.restart``.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import click

from trunkline.cli.client import at, end_with
from trunkline.cli.completion import steerable_here
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import did_you_mean, near, printable, say, typed

# What is said where an action changes nothing, by the state of the agent before it.
_ALREADY: Final = {
    **{("start", state): "runs already" for state in ("ready", "unhealthy", "running", "starting")},
    **{("stop", state): "does not run, and is not started again" for state in ("stopped", "crashed")},
    ("stop", "stopping"): "is being stopped already",
}


def _steer(settings: CommandSettings, agent: str, action: str, done: str) -> None:
    exchange = settings.connect()

    def refused(error: dict[str, Any]) -> NoReturn:
        exchange.refused = end_with
        if error["code"] == "not_found":
            known = [one["agent_id"] for one in exchange.get(at("agents"))["agents"] if one.get("steerable")]
            error["message"] += did_you_mean(near(agent, known))
        end_with(error)

    exchange.refused = refused
    state = next((one["state"] for one in exchange.get(at("agents"))["agents"] if one["agent_id"] == agent), "")
    answer = exchange.post(at("agents", agent, action))
    done = _ALREADY.get((action, state), done)
    if not settings.shown_as_json(answer):
        say(f"{printable(agent)} {done}; `{typed('agents')}` shows how it is")


@click.command()
@click.argument("agent", shell_complete=steerable_here)
@shared
def start(settings: CommandSettings, agent: str) -> None:
    """Start an agent that does not run. One that runs goes on."""
    _steer(settings, agent, "start", "is being started")


@click.command()
@click.argument("agent", shell_complete=steerable_here)
@shared
def stop(settings: CommandSettings, agent: str) -> None:
    """Stop an agent, until `trunkline start`, `reload` or the next `up`. Its calls end as for one that left."""
    _steer(settings, agent, "stop", "is being stopped")


@click.command()
@click.argument("agent", shell_complete=steerable_here)
@shared
def restart(settings: CommandSettings, agent: str) -> None:
    """Stop an agent and start it again: its code changed. One that does not run is started."""
    _steer(settings, agent, "restart", "is being restarted")

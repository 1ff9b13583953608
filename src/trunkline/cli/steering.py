"""``trunkline start``, ``stop``, ``restart``: the process of one agent that the exchange launches.

One request each. Owns what is said of it, also where it changes nothing, and the short look at what came of a start
(``Starts``, which ``reload`` has too). Does not own when a process is started again by itself (``host.restart``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import click

from trunkline.cli.client import ExchangeClient, at, end_with
from trunkline.cli.completion import steerable_here
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import did_you_mean, hinted, near, printable, say, typed

# What a program that works needs to import and connect. One that needs longer is said to run.
START_WAIT_S: Final = 2.0
LOOK_EVERY_S: Final = 0.05

_ATTACHED: Final = ("ready", "unhealthy")
_ENDED: Final = ("crashed", "backoff", "stopped")

no_wait_option = click.option("--no-wait", is_flag=True, help="Do not wait to see whether it attaches.")

# What is said where an action changes nothing, by the state of the agent before it.
_ALREADY: Final = {
    **{("start", state): "runs already" for state in ("ready", "unhealthy", "running", "starting")},
    **{("stop", state): "does not run, and is not started again" for state in ("stopped", "crashed")},
    ("stop", "stopping"): "is being stopped already",
}


class Starts:
    """What becomes of agents that are started: made before that is asked for."""

    def __init__(self, exchange: ExchangeClient) -> None:
        self._exchange = exchange
        self._before = self._agents()

    def state_before(self, agent_id: str) -> str:
        """In which state an agent was then; empty if there was none of this id."""
        return str(self._before.get(agent_id, {}).get("state", ""))

    def _agents(self) -> dict[str, dict[str, Any]]:
        return {one["agent_id"]: one for one in self._exchange.get(at("agents"))["agents"]}

    def wait(self, started: Iterable[str], restarted: Iterable[str] = ()) -> list[dict[str, Any]]:
        """How each of them is once all are attached or have ended, or after a short time."""
        is_restarted = {**dict.fromkeys(started, False), **dict.fromkeys(restarted, True)}
        until = time.monotonic() + START_WAIT_S
        while True:
            agents = self._agents()
            found = [agents[agent_id] for agent_id in is_restarted if agent_id in agents]
            if time.monotonic() >= until or all(self._is_settled(one, is_restarted) for one in found):
                return found
            time.sleep(LOOK_EVERY_S)

    def _is_settled(self, agent: dict[str, Any], is_restarted: dict[str, bool]) -> bool:
        run_id = agent.get("run_id")
        is_earlier = run_id is not None and run_id == self._before.get(agent["agent_id"], {}).get("run_id")
        return agent["state"] not in {"starting", "running", "stopping"} and not (
            is_earlier and is_restarted[agent["agent_id"]]
        )


def has_ended(agent: dict[str, Any]) -> bool:
    """Whether an agent that was started does not run any more."""
    return agent["state"] in _ENDED


def how_it_is(agent: dict[str, Any]) -> str:
    """What became of an agent that was started, in a line."""
    agent_id, state = printable(agent["agent_id"]), str(agent["state"])
    if state in _ATTACHED:
        return f"{agent_id} is attached"
    note = printable(hinted(str(agent.get("note", ""))))
    if has_ended(agent):
        return f"{agent_id} ended: {note or state}; {typed(f'logs {agent_id}')}"
    if state in {"starting", "running", "stopping"}:
        how = "is still being stopped" if state == "stopping" else "runs and has not connected yet"
        return f"{agent_id} {how}; `{typed('agents')}` shows how it is"
    return f"{agent_id} is {state}{f': {note}' if note else ''}"


def _steer(settings: CommandSettings, agent: str, action: str, done: str, *, no_wait: bool = True) -> None:
    exchange = settings.connect()
    starts = Starts(exchange)

    def refused(error: dict[str, Any]) -> NoReturn:
        exchange.refused = end_with
        if error["code"] == "not_found":
            known = [one["agent_id"] for one in exchange.get(at("agents"))["agents"] if one.get("steerable")]
            error["message"] += did_you_mean(near(agent, known))
        end_with(error)

    exchange.refused = refused
    answer = exchange.post(at("agents", agent, action))
    done = _ALREADY.get((action, starts.state_before(agent)), done)
    if no_wait:
        if not settings.shown_as_json(answer):
            say(f"{printable(agent)} {done}; `{typed('agents')}` shows how it is")
        return
    if not settings.as_json:
        say(f"{printable(agent)} {done}")
    is_restart = action == "restart"
    found = starts.wait(() if is_restart else (agent,), (agent,) if is_restart else ())
    if not settings.shown_as_json({**answer, "agents": found}):
        for one in found:
            say(how_it_is(one))
    if any(map(has_ended, found)):
        raise SystemExit(1)


@click.command()
@click.argument("agent", shell_complete=steerable_here)
@no_wait_option
@shared
def start(settings: CommandSettings, agent: str, no_wait: bool) -> None:
    """Start an agent that does not run. One that runs goes on.

    Waits up to 2 s to say whether it attached; exit code 1 if it ended.
    """
    _steer(settings, agent, "start", "is being started", no_wait=no_wait)


@click.command()
@click.argument("agent", shell_complete=steerable_here)
@shared
def stop(settings: CommandSettings, agent: str) -> None:
    """Stop an agent, until `trunkline start`, `reload` or the next `up`. Its calls end as for one that left."""
    _steer(settings, agent, "stop", "is being stopped")


@click.command()
@click.argument("agent", shell_complete=steerable_here)
@no_wait_option
@shared
def restart(settings: CommandSettings, agent: str, no_wait: bool) -> None:
    """Stop an agent and start it again: its code changed. One that does not run is started.

    Waits up to 2 s to say whether it attached; exit code 1 if it ended.
    """
    _steer(settings, agent, "restart", "is being restarted", no_wait=no_wait)

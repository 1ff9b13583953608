"""``trunkline reload``: let the running exchange read its configuration again.

One request, and a look at those that it started. What a reload changes and what needs a restart is decided in ``host``.
"""

from __future__ import annotations

from typing import Any, Final

import click

from trunkline.cli.client import at
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.steering import Starts, has_ended, how_it_is, no_wait_option
from trunkline.cli.terminal import printable, say

_CHANGES: Final = ("started", "restarted", "stopped", "released", "changed", "cannot_start")


@click.command()
@no_wait_option
@shared
def reload(settings: CommandSettings, no_wait: bool) -> None:
    """Read the configuration again: rules, limits, agents. A file that cannot be used changes nothing.

    New agents start, changed ones restart, those that do not run are started. Addresses of listeners need a restart.
    An agent that cannot start is named with the reason, and the exit code is 1; one that runs as it was goes on.
    Of those that were started it waits up to 2 s to say whether they attached; exit code 1 if one ended.
    What else changed (rules, limits, settings of a space) is said in a line each.
    An agent whose code changed, and nothing in the file, is started anew by `trunkline restart`.
    """
    exchange = settings.connect()
    starts = None if no_wait else Starts(exchange)
    answer = exchange.post(at("reload"))
    if not settings.as_json:
        _tell(answer)
    found = [] if starts is None else starts.wait(answer.get("started", ()), answer.get("restarted", ()))
    if not settings.shown_as_json({**answer, "agents": found} if found else answer):
        for one in found:
            say(f"  {how_it_is(one)}")
    if answer.get("cannot_start") or any(map(has_ended, found)):
        raise SystemExit(1)


def _tell(answer: dict[str, Any]) -> None:
    say("reloaded")
    for what in ("started", "restarted", "stopped", "released"):
        if answer.get(what):
            say(f"  {what}: {', '.join(map(printable, answer[what]))}")
    for change in answer.get("changed", ()):
        say(f"  {printable(change)}")
    for problem in answer.get("cannot_start", ()):
        say(f"  cannot start: {problem}")
    for warning in answer.get("warnings", ()):
        say(f"  warning: {printable(warning)}")
    # An exchange of an earlier release does not tell what else changed.
    if "changed" in answer and not any(answer.get(what) for what in _CHANGES):
        say("  nothing changed")

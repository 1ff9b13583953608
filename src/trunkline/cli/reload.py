"""``trunkline reload``: let the running exchange read its configuration again.

One request. What a reload changes and what needs a restart is decided in ``host``.
"""

from __future__ import annotations

from typing import Final

import click

from trunkline.cli.client import at
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import printable, say

_CHANGES: Final = ("started", "restarted", "stopped", "released", "changed", "cannot_start")


@click.command()
@shared
def reload(settings: CommandSettings) -> None:
    """Read the configuration again: rules, limits, agents. A file that cannot be used changes nothing.

    New agents start, changed ones restart, those that do not run are started. Addresses of listeners need a restart.
    An agent that cannot start is named with the reason, and the exit code is 1; one that runs as it was goes on.
    What else changed (rules, limits, settings of a space) is said in a line each.
    An agent whose code changed, and nothing in the file, is started anew by `trunkline restart`.
    """
    answer = settings.connect().post(at("reload"))
    if not settings.shown_as_json(answer):
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
    if answer.get("cannot_start"):
        raise SystemExit(1)

"""``trunkline reload``: let the running exchange read its configuration again.

One request. What a reload changes and what needs a restart is decided in ``host``.
"""

from __future__ import annotations

import click

from trunkline.cli.client import at
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import say


@click.command()
@shared
def reload(settings: CommandSettings) -> None:
    """Read the configuration again: rules, limits, agents. A file that cannot be used changes nothing.

    New agents start, changed ones restart, crashed ones are tried again. Addresses of listeners need a restart.
    """
    answer = settings.connect().post(at("reload"))
    if not settings.shown_as_json(answer):
        say("reloaded")

"""``trunkline up``: run the exchange in the foreground.

The only verb that imports the exchange; all others speak HTTP to one that runs, or read its files. What happens at the
start and at the end is in ``host.up``.
"""

from __future__ import annotations

from pathlib import Path

import click

from trunkline.cli.options import CommandSettings, shared


@click.command()
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="Instead of trunkline.toml in the home."
)
@click.option("--demo", is_flag=True, help="With the example agents, besides those of the configuration.")
@shared
def up(settings: CommandSettings, config: Path | None, demo: bool) -> None:
    """Run the exchange in the foreground.

    Ctrl-C or SIGTERM stops it: no new calls, those that run have 10 s to end, what is left is taken up at the next
    start. SIGHUP does what `trunkline reload` does.
    """
    from trunkline.host.up import run

    raise SystemExit(run(settings.home, config, demo=demo))

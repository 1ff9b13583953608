"""``trunkline service``: a systemd user unit for the exchange of this home, printed; where to put it is said beside it.

Owns the text of the unit and its quoting. Writes no file and starts nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import note, printable, say, typed
from trunkline.config_file import overriding

# RestartPreventExitStatus: a configuration that cannot be used (2) and a damaged record (1) are for a person. A disk
# that failed (70) and a crash are tried again.
# KillMode=mixed: the exchange alone is told to stop, and ends its agents and its writer itself.
# Delegate: commands of spaces get control groups of their own.
UNIT: Final = """\
[Unit]
Description=Trunkline, an exchange for agents ({home})
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=exec
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
{environment}
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=1 2
KillMode=mixed
TimeoutStopSec=60
Delegate=yes
UMask=0077

[Install]
WantedBy=default.target
"""


# What systemd.unit(5) allows in the name of a unit, without the backslash, which shells take for something else.
_NAME: Final = re.compile(r"[A-Za-z0-9:_.@-]{1,200}")


@click.command()
@click.option("--name", default="trunkline", show_default=True, metavar="NAME", help="What the service is called.")
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="Instead of trunkline.toml in the home."
)
@shared
def service(settings: CommandSettings, name: str, config: Path | None) -> None:
    """Print a systemd user unit that runs this exchange from login on, or from boot on if you linger.

    \b
    trunkline service > ~/.config/systemd/user/trunkline.service
    """
    name = name.removesuffix(".service")
    if not _NAME.fullmatch(name):
        text = "expected letters, digits and any of : _ . @ -, as systemd names its units"
        raise click.BadParameter(text, param_hint="--name")
    kept = overriding(os.environ)
    unit = unit_text(settings, config, kept)
    if settings.shown_as_json({"name": f"{name}.service", "unit": unit}):
        return
    say(unit.rstrip("\n"))
    words = "service" if config is None else f"service --config {shlex.quote(str(config.absolute()))}"
    file = f"~/.config/systemd/user/{name}.service"
    if kept:
        note(f"# in it, as you have them set now: {printable(', '.join(kept))}")
    note(f"# save it:           mkdir -p ~/.config/systemd/user && {typed(words)} > {file}")
    note(f"# start it, always:  systemctl --user daemon-reload && systemctl --user enable --now {name}")
    note(f"# what it prints:    journalctl --user -u {name}")
    note("# without a login:   loginctl enable-linger")


def unit_text(settings: CommandSettings, config: Path | None, kept: Sequence[str]) -> str:
    """The unit of this home, with the interpreter that runs now, and the search path and the settings (``kept``) in the
    environment of whoever asks.
    """
    words = [sys.executable, "-P", "-m", "trunkline", "up", "--home", str(settings.home.path)]
    if config is not None:
        words += ["--config", str(config.absolute())]
    return UNIT.format(
        home=_unspecified(printable(str(settings.home.path))),
        command=" ".join(_quoted(word).replace("$", "$$") for word in words),
        # The search path of a service is short; agents are looked for on it.
        environment="\n".join(
            f"Environment={_quoted(f'{variable}={value}')}"
            for variable, value in {
                "PATH": os.environ.get("PATH", os.defpath),
                **{one: os.environ[one] for one in kept},
            }.items()
        ),
    )


def _quoted(word: str) -> str:
    """A word as systemd.syntax(7) reads it: always in quotes, with what means something to it escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{_unspecified(escaped)}"'


def _unspecified(text: str) -> str:
    return text.replace("%", "%%")

"""``trunkline doctor``: what is missing here, what is off and why, what is wrong; with or without an exchange.

Asks the running exchange, if there is one, and shows what ``checkup`` finds. Ends with 1 if there is a problem.

Owns how findings are shown and the exit code. Does not own what is looked at (``checkup``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from trunkline.cli.client import at
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, hinted, printable, say
from trunkline.errors import ExchangeUnreachable

if TYPE_CHECKING:
    from trunkline.checkup import RunningExchange

COLOURS: Final = {"ok": "green", "off": "cyan", "warning": "yellow", "problem": "red"}


@click.command()
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="Instead of trunkline.toml in the home."
)
@shared
def doctor(settings: CommandSettings, config: Path | None) -> None:
    """Look at everything that the exchange needs: machine, disk, clock, configuration, record, sandbox, ports, broker.

    Works with and without a running exchange. Exit 1 if there is a problem; what is off, or warned about, is none.
    """
    from trunkline.checkup import findings

    exchange, why_not = _running(settings)
    found = []
    for finding in findings(settings.home, config, os.environ, exchange, why_not):
        found.append(finding)
        if not settings.as_json:
            state = click.style(f"{finding.state:<8}", fg=COLOURS[finding.state])
            say(f"{state} {finding.name:<14} {hinted(printable(finding.text))}")
            if finding.advice and finding.state != "ok":
                say(f"{'':<23} → {hinted(printable(finding.advice))}")
    problems = sum(finding.state == "problem" for finding in found)
    if not settings.shown_as_json({"problems": problems, "running": exchange is not None, "findings": found}):
        say()
        counted = [_count(problems, "problem"), _count(sum(one.state == "warning" for one in found), "warning")]
        say(", ".join(filter(None, counted)) or "nothing is wrong")
    if problems:
        raise SystemExit(1)


def _count(number: int, word: str) -> str:
    """``2 problems``; nothing where there are none."""
    return "" if not number else f"1 {word}" if number == 1 else f"{number} {word}s"


def _running(settings: CommandSettings) -> tuple[RunningExchange | None, str]:
    """What the running exchange says of itself; else why there is none."""
    from trunkline.checkup import RunningExchange

    try:
        exchange = settings.connect()
        return RunningExchange(exchange.ready, exchange.get(at("status")), exchange.get(at("agents"))["agents"]), ""
    except ExchangeUnreachable as error:
        # Why alone: what to do is said by the finding.
        return None, str(error).partition("; ")[0]
    except CommandFailed as error:
        # It answers, and refuses: another token, or it is just stopping.
        return None, str(error)

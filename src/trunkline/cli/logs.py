"""``trunkline logs``: what an agent printed, from the files in the home. No exchange needs to run.

``host.runlog`` writes these files, one for each run of an agent, with secrets masked, and removes the oldest. Here they
are only read, also while the agent still prints.

Owns which lines are shown and how following goes on from one run to the next. Does not own the files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from trunkline.cli.client import encode
from trunkline.cli.completion import agents_here
from trunkline.cli.numbers import WholeNumber
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, clock, did_you_mean, near, note, printable, say
from trunkline.model import AGENT_ID

# A person sees no delay, and a look at a file costs microseconds.
FOLLOW_S: Final = 0.2


class LogLine(NamedTuple):
    """One line that an agent printed, and the run in which it did."""

    run_id: str
    text: str


@click.command()
@click.argument("agent", shell_complete=agents_here)
@click.option("--last", type=WholeNumber(min=1), default=50, show_default=True, metavar="N", help="How many lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what it prints from now on; Ctrl-C ends it.")
@shared
def logs(settings: CommandSettings, agent: str, last: int, follow: bool) -> None:
    """What AGENT printed on stdout and stderr, through all its runs; what looked like a secret is masked.

    Only agents that the exchange launches have a log. It is read from the home: no exchange needs to run.
    """
    folder = settings.home.logs_folder / agent
    if AGENT_ID.fullmatch(agent) is None or not _runs(folder):
        text = f"no log of an agent {agent!r}; those that the exchange launches have one once they ran"
        raise CommandFailed("not_found", text + _meant(settings.home.logs_folder, agent))
    newest, end, lines = _latest(_runs(folder), last)
    if settings.as_json and not follow:
        settings.shown_as_json({"lines": [line._asdict() for line in lines]})
        return
    if not lines:
        note(f"{agent} has printed nothing")
    printer = LogPrinter(as_json=settings.as_json)
    for line in lines:
        printer.line(line)
    if follow:
        try:
            for line in _from_now_on(folder, newest, end):
                printer.line(line)
        except KeyboardInterrupt:
            return


class LogPrinter:
    """Prints the lines on stdout and, on stderr, where each run begins."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._run_id = ""

    def line(self, line: LogLine) -> None:
        """Print one more line."""
        if self._as_json:
            say(printable(encode(line._asdict()).decode()))
            return
        if line.run_id != self._run_id:
            self._run_id = line.run_id
            note(click.style(f"run {_began(line.run_id)}", dim=True))
        say(printable(line.text, keep="\t"))


def _began(run_id: str) -> str:
    """When a run began, which its id says."""
    try:
        return f"of {clock(int(run_id.partition('-')[0], 16) / 1000)}"
    except (ValueError, OverflowError, OSError):
        return printable(run_id)


def _runs(folder: Path) -> list[Path]:
    """The logs of an agent's runs, oldest first: their names sort by time."""
    return sorted(folder.glob("*.log"))


def _latest(runs: list[Path], last: int) -> tuple[Path, int, list[LogLine]]:
    """The newest run, how far its log was read, and the last lines through all runs."""
    newest = runs.pop()
    data = _read(newest)
    found = _lines(newest, data)
    while runs and len(found) < last:
        run = runs.pop()
        found = [*_lines(run, _read(run)), *found]
    return newest, len(data), found[-last:]


def _lines(run: Path, data: bytes) -> list[LogLine]:
    return [LogLine(run.stem, line) for line in data.decode(errors="backslashreplace").split("\n")[:-1]]


def _read(run: Path, start: int = 0) -> bytes:
    """What is in a log from there on, as far as its lines are whole; nothing if it was removed meanwhile."""
    try:
        with run.open("rb") as file:
            file.seek(start)
            data = file.read()
    except OSError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _from_now_on(folder: Path, run: Path, end: int) -> Iterator[LogLine]:
    """What is printed after this, also by the runs that follow."""
    while True:
        # Looked for first: when there is a newer one, this run's log is whole.
        newer = [other for other in _runs(folder) if other.name > run.name]
        data = _read(run, end)
        yield from _lines(run, data)
        end += len(data)
        if newer:
            run, end = newer[0], 0
        else:
            time.sleep(FOLLOW_S)


def _meant(folder: Path, agent: str) -> str:
    # Ids begin alike; their last part tells them apart.
    known = {one.name.rpartition(".")[2]: one.name for one in folder.iterdir()} if folder.is_dir() else {}
    return did_you_mean([known[part] for part in near(agent.rpartition(".")[2], known, 0.7)])

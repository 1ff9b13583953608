"""``trunkline check``: a conformance suite against anybody's implementation of a protocol.

Owns where the identities come from and how the report is shown; what is checked is in ``trunkline.check``. Identities
that the check made for itself are revoked when it ends, however it ends.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from trunkline.check.ossa.bench import BOOK, MAX_IDENTITIES, MIN_IDENTITIES, RATE, REQUEST_TIMEOUT_S
from trunkline.check.ossa.checking import check_endpoint
from trunkline.check.ossa.endpoint import Endpoint, Unreachable
from trunkline.check.ossa.wire import Identity, read_identity
from trunkline.check.report import Report, Tally
from trunkline.check.suite import FAILED, LEVELS, Result
from trunkline.cli.client import ExchangeClient, at
from trunkline.cli.numbers import Number, WholeNumber
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.output_files import OUTPUT_FILE, refuse_existing, with_force, write_output
from trunkline.cli.terminal import (
    CommandFailed,
    did_you_mean,
    duration,
    file_failure,
    heading,
    near,
    note,
    printable,
    say,
    typed,
    width,
)
from trunkline.errors import ExchangeUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

# How wide explanations are, on terminals that would have more.
_TEXT_CHARS: Final = 100
_BAR_CHARS: Final = 20


@click.group()
@shared
def check(_: CommandSettings) -> None:
    """Whether an implementation of a protocol does what the protocol asks for."""


@check.command("ossa", short_help="An endpoint of the OSSA Agent Communication Protocol.")
@click.argument("url", required=False)
@click.option("--level", type=click.Choice(LEVELS), default=LEVELS[-1], show_default=True, help="Up to which level.")
@click.option(
    "--only", metavar="NAME", multiple=True, help="A case or a category, whatever its level; may be repeated."
)
@click.option(
    "--identity",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"An agent to speak as: what `trunkline token new ossa --agent ID --json` prints. Give {MAX_IDENTITIES}; "
    "without any they are made, and revoked, through the exchange of --home.",
)
@click.option("--report", "report_file", metavar="FILE", type=OUTPUT_FILE, help="The report as JSON.")
@click.option("--page", "page_file", metavar="FILE", type=OUTPUT_FILE, help="The report as HTML.")
@with_force
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=Number(0.1, 31),
    default=REQUEST_TIMEOUT_S,
    show_default=True,
    help="After how long the endpoint gives a request up.",
)
@click.option(
    "--rate",
    metavar="N",
    type=WholeNumber(1, 10_000),
    default=RATE,
    show_default=True,
    help="Requests that it allows an agent in a minute.",
)
@click.option("--denied", metavar="AGENT/ACTION", help="An action that its policy denies.")
@click.option("--list", "is_list", is_flag=True, help="Show what would be checked, and check nothing.")
@shared
def ossa(
    settings: CommandSettings,
    url: str | None,
    level: str,
    only: tuple[str, ...],
    files: tuple[Path, ...],
    report_file: Path | None,
    page_file: Path | None,
    force: bool,
    timeout_s: float,
    rate: int,
    denied: str | None,
    is_list: bool,
) -> None:
    """Check the OSSA endpoint at URL, by default that of the exchange of --home.

    Exits with 0 if all passed, 1 if anything failed, 2 if there is nobody to check.

    \b
    trunkline check ossa https://127.0.0.1:7413
    trunkline check ossa https://127.0.0.1:7413 --level core --page report.html
    trunkline check ossa https://127.0.0.1:7413 --only security --only streams.gap
    """
    _check_names(only)
    if is_list:
        _list(settings, level, only)
        return
    forbidden = _denied(denied)
    for file in (report_file, page_file):
        if file is not None:
            refuse_existing(file, force=force)
    with _identities(settings, files) as (identities, found_url):
        endpoint = _endpoint(url or found_url)
        progress = _Progress(len(BOOK.selected(level, only)))
        try:
            report = asyncio.run(
                check_endpoint(
                    endpoint,
                    identities,
                    level=level,
                    only=only,
                    request_timeout_s=timeout_s,
                    rate=rate,
                    denied=forbidden,
                    told=progress.told,
                )
            )
        except Unreachable as error:
            raise CommandFailed("endpoint.unreachable", str(error), exit_code=2) from None
        finally:
            progress.end()
    if report_file is not None:
        write_output(report_file, [json.dumps(report.as_json(), indent=2).encode(), b"\n"], force=force)
    if page_file is not None:
        from trunkline.check.page import page

        write_output(page_file, [page(report).encode()], force=force)
    if not settings.shown_as_json(report.as_json()):
        _show(report)
    sys.exit(0 if report.is_passed else 1)


# --- what is given ----------------------------------------------------------------------------------------------------


def _check_names(only: Sequence[str]) -> None:
    known = {name for case in BOOK.cases for name in (case.id, case.category)}
    for name in only:
        if name not in known:
            raise click.UsageError(f"no case or category {printable(name)!r}{did_you_mean(near(name, known))}")


def _endpoint(url: str | None) -> Endpoint:
    if url is None:
        raise click.UsageError("URL is missing: which endpoint? e.g. https://127.0.0.1:7413")
    try:
        return Endpoint(url)
    except ValueError as error:
        raise click.UsageError(f"{printable(url)}: {error}") from None


def _denied(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    agent, slash, action = text.partition("/")
    if not agent or not slash or not action:
        raise click.UsageError("--denied: expected AGENT/ACTION")
    return agent, action


@contextmanager
def _identities(settings: CommandSettings, files: Sequence[Path]) -> Iterator[tuple[list[Identity], str | None]]:
    """The agents to speak as, and the endpoint of the exchange that made them, if one did."""
    if files:
        if len(files) < MIN_IDENTITIES:
            raise click.UsageError(f"--identity: at least {MIN_IDENTITIES}, a caller and a provider; all cases need 6")
        yield [_read(file) for file in files[:MAX_IDENTITIES]], None
        return
    exchange: ExchangeClient = settings.connect()
    made: list[dict[str, Any]] = []
    run = secrets.token_hex(3)
    # A job of CI that takes too long is ended by it: what was made is taken back then, too.
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        for number in range(1, MAX_IDENTITIES + 1):
            asked: dict[str, object] = {"edge": "ossa", "agent": f"check-{run}-{number}", "type": "worker"}
            made.append({**asked, **exchange.post(at("tokens"), asked)})
        found = exchange.ready.get("ossa")
        yield [read_identity(one) for one in made], found if isinstance(found, str) else None
    finally:
        for one in made:
            try:
                status, _ = exchange.answer("DELETE", at("tokens", str(one.get("id"))))
            except ExchangeUnreachable:
                status = 0
            if status != 200:
                note("not revoked: " + typed(f"token revoke {printable(str(one.get('id')))}"))
        signal.signal(signal.SIGTERM, before)


def _interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _read(file: Path) -> Identity:
    try:
        return read_identity(json.loads(file.read_bytes()))
    except OSError as error:
        raise file_failure(file, error.strerror) from None
    except ValueError as error:
        raise file_failure(file, str(error)) from None


# --- what is shown ----------------------------------------------------------------------------------------------------


class _Progress:
    """How far it is, on one line of a terminal that is taken away in the end; elsewhere how many there are."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._ended = self._failed = 0
        self._is_shown = sys.stderr.isatty()
        if not self._is_shown:
            note(f"{total} {'case' if total == 1 else 'cases'} to check; all of them take half a minute")

    def told(self, result: Result) -> None:
        self._ended += 1
        self._failed += result.status == FAILED
        if self._is_shown:
            failed = f", {self._failed} failed" if self._failed else ""
            click.echo(f"\r\033[K{self._ended} of {self._total} checked{failed}", nl=False, err=True)

    def end(self) -> None:
        if self._is_shown:
            click.echo("\r\033[K", nl=False, err=True)


def _list(settings: CommandSettings, level: str, only: Sequence[str]) -> None:
    cases = BOOK.selected(level, only)
    told = [
        {"id": case.id, "level": case.level, "requirements": list(case.rows), "description": case.must}
        for case in cases
    ]
    if settings.shown_as_json({"tests": told}):
        return
    size = max(len(case.id) for case in cases)
    for case in cases:
        say(f"{case.id.ljust(size)}  {case.level.ljust(8)}  {case.must}")


def _show(report: Report) -> None:
    say(heading(f"{report.protocol} at {report.endpoint}, level {report.level}"))
    say(f"certificate, trusted because it was shown: sha256 {report.fingerprint}")
    say()
    size = max(len(category) for category in report.categories)
    for category, results in report.categories.items():
        say(_row(category.ljust(size), Tally.of(results)))
    for cases in report.causes:
        say()
        _show_cause(cases)
    if report.skipped:
        say()
        for one in report.skipped:
            _paragraph(f"{click.style('skipped', fg='yellow')} {one.id}", one.seen)
    say()
    tally = report.tally
    say(
        heading(f"{tally.passed} of {tally.passed + tally.failed} passed")
        + (f", {tally.skipped} could not be tried" if tally.skipped else "")
        + f"; score {tally.rate:g}, {report.messages} messages looked at in {duration(report.duration_s)}"
    )


def _show_cause(cases: Sequence[Result]) -> None:
    """What was seen once, and what it fails: of one case its sentence, of several their names."""
    first, failed = cases[0], click.style("FAILED", fg="red", bold=True)
    if len(cases) == 1:
        say(f"{failed} {heading(first.id)}  {first.level}, {', '.join(first.rows)}")
        _paragraph("must", first.must)
    else:
        say(f"{failed} {heading(f'{len(cases)} cases')} for one reason")
        _paragraph("these", ", ".join(one.id for one in cases))
    _paragraph("seen", first.seen)
    _paragraph("mend", first.mend)


def _row(category: str, tally: Tally) -> str:
    tried = tally.passed + tally.failed
    filled = round(_BAR_CHARS * tally.passed / tried) if tried else 0
    if tally.failed:
        filled = min(filled, _BAR_CHARS - 1)
    bar = click.style("━" * filled, fg="green") + click.style("┄" * (_BAR_CHARS - filled), fg="red" if tried else None)
    row = f"  {category}  {bar}  {tally.passed:3} of {tried}"
    if tally.failed:
        row += "  " + click.style(f"{tally.failed} failed", fg="red")
    if tally.skipped:
        row += "  " + click.style(f"{tally.skipped} skipped", fg="yellow")
    return row


def _paragraph(name: str, text: str) -> None:
    """A name and the text about it, indented below the name."""
    first = f"  {name}  "
    below = " " * width(click.unstyle(first))
    for number, line in enumerate(text.splitlines() or [""]):
        lines = textwrap.wrap(printable(line), _TEXT_CHARS - len(below), break_on_hyphens=False) or [""]
        for inner, part in enumerate(lines):
            say((first if number == inner == 0 else below) + part)

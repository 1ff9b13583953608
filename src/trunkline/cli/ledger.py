"""``trunkline ledger``: verify, show and export the record, read from its file. No exchange needs to run.

Owns what a person is shown and the options. Reading and proving are in ``trunkline.ledger``: ``reader``, ``verify``,
``export``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import click

from trunkline.cli.client import decode, encode
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, heading, note, printable, say
from trunkline.cli.watch import sentence

if TYPE_CHECKING:
    from trunkline.ledger.reader import Reader


@click.group()
def ledger() -> None:
    """The record: verify, show, export. It is read from its file; no exchange needs to run."""


@contextmanager
def reading(settings: CommandSettings) -> Iterator[Reader]:
    """Open the record of this home for reading, and close it afterwards."""
    from trunkline.ledger.reader import Reader

    reader = Reader(settings.home.ledger_file)
    try:
        yield reader
    finally:
        reader.close()


@ledger.command("verify", short_help="Prove that nothing in it was changed.")
@click.option(
    "--head", metavar="N:HASH", help="The end that an earlier verify printed: proves that nothing was cut off."
)
@shared
def verify(settings: CommandSettings, head: str | None) -> None:
    """Prove that every entry is the one that was written; exit 1 names the first that is not."""
    from trunkline.ledger.verify import verify as walk

    report = walk(settings.home.ledger_file, head=_anchor(head))
    if settings.shown_as_json(
        {"status": "whole", **{name: getattr(report, name) for name in report.__struct_fields__}}
    ):
        return
    bodies, snapshots = (
        _count(report.blobs, "large bodies", "large body"),
        _count(report.snapshots, "snapshots", "snapshot"),
    )
    say(f"whole: {report.entries:,} entries, {bodies}, {snapshots}")
    if report.removed:
        say(f"{report.removed:,} older entries were removed by the retention setting; their hash is in the chain")
    say(f"head {report.last}:{report.head}")


def _count(number: int, many: str, one: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _anchor(head: str | None) -> tuple[int, str] | None:
    if head is None:
        return None
    number, _, digest = head.partition(":")
    if not (number.isascii() and number.isdecimal() and len(digest) == 64):
        raise click.BadParameter("expected N:HASH, as `trunkline ledger verify` prints it", param_hint="--head")
    return int(number), digest


@ledger.command("show", short_help="The story of a call or a conversation, or the latest entries.")
@click.option("--call", "call_id", metavar="ID", help="The story of one call.")
@click.option("--correlation", metavar="ID", help="The story of one conversation.")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Without these: how many of the latest.",
)
@shared
def show(settings: CommandSettings, call_id: str | None, correlation: str | None, last: int) -> None:
    """What is on record of a call or a conversation, or the latest entries; secrets are masked."""
    if call_id is not None and correlation is not None:
        raise click.UsageError("give one of --call and --correlation")
    from trunkline.ledger.export import replay

    with reading(settings) as reader:
        if call_id is None and correlation is None:
            newest = reader.head()[0]
            lines: Iterable[bytes] = reader.lines(max(1, newest - last + 1), newest)
        else:
            lines = replay(reader, call_id=call_id, correlation=correlation)
        entries = [decode(line) for line in lines]
    if not entries and (call_id or correlation):
        nothing_under(call_id or correlation)
    if settings.shown_as_json({"entries": entries}):
        return
    if not entries:
        say("Nothing is on record yet.")
    for entry in entries:
        say(f"{entry['n']:>7}  {sentence(entry)}")
        if call_id is not None:
            for name in ("input", "output"):
                _say_body(name, entry)


def _say_body(name: str, entry: dict[str, Any]) -> None:
    if name in entry:
        import msgspec

        text = msgspec.json.format(encode(entry[name]), indent=2).decode()
        say(heading(f"         {name}:"))
        for line in printable(text, keep="\n").split("\n"):
            say(f"           {line}")


def nothing_under(name: str | None) -> NoReturn:
    """End the command: there is no such call or conversation."""
    raise CommandFailed("not_found", f"nothing is on record under {name}; `trunkline calls` shows ids")


@ledger.command("export", short_help="Hand out a conversation, as lines or as a bundle with proof.")
@click.option("--correlation", metavar="ID", required=True, help="The conversation.")
@click.option("--format", "form", type=click.Choice(["replay", "bundle"]), default="replay", show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="A file instead of stdout.")
@shared
def export(settings: CommandSettings, correlation: str, form: str, out: Path | None) -> None:
    """Hand out a conversation: `replay` is one entry a line, `bundle` a zip that proves itself."""
    from trunkline.ledger import export as record

    with reading(settings) as reader:
        if not record.numbers(reader, correlation=correlation):
            nothing_under(correlation)
        if form == "replay":
            data = b"".join(line + b"\n" for line in record.replay(reader, correlation=correlation))
            if out is None and sys.stdout.isatty():
                data = printable(data.decode(), keep="\n").encode()
            _hand_out(data, out)
        elif out is None and sys.stdout.isatty():
            raise click.UsageError("a bundle is a zip, not text: give --out FILE or redirect stdout")
        else:
            import io

            bundle = io.BytesIO()
            record.bundle(reader, correlation, bundle)
            _hand_out(bundle.getvalue(), out)


def _hand_out(data: bytes, out: Path | None) -> None:
    if out is None:
        stdout: BinaryIO = sys.stdout.buffer
        stdout.write(data)
        stdout.flush()
        return
    try:
        out.write_bytes(data)
    except OSError as error:
        raise click.BadParameter(f"{printable(str(out))}: {error.strerror}", param_hint="--out") from None
    note(f"{printable(str(out))}: {len(data):,} bytes")

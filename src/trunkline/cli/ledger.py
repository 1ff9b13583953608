"""``trunkline ledger``: verify, anchor, copy, show and export the record, read from its file. No exchange needs to run.

Owns what a person is shown and the options. Reading and proving are in ``trunkline.ledger``: ``reader``, ``verify``,
``heads``, ``backup``, ``export``; what becomes of a trajectory afterwards is ``cli.replay``.
"""

from __future__ import annotations

import os
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
    from trunkline.ledger.heads import WrittenHead
    from trunkline.ledger.reader import Reader


@click.group()
def ledger() -> None:
    """The record: verify, anchor, copy, show, export. It is read from its file; no exchange needs to run."""


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
@click.option("--head", metavar="HEAD", help="A head that was written down: `trunkline ledger anchor` prints one.")
@click.option(
    "--anchor", metavar="FILE|HEAD", help="Heads that were published, or one of them. Default: the anchor file."
)
@shared
def verify(settings: CommandSettings, head: str | None, anchor: str | None) -> None:
    """Prove that every entry is the one that was written; exit 1 names the first that is not.

    Signed heads show a record that was made anew, put back or cut. Where they were put back with it, only a head that
    was kept elsewhere shows it: --head, --anchor.
    """
    from trunkline.ledger.heads import public_key_of
    from trunkline.ledger.verify import verify as walk

    kept = [*_heads(head, "--head"), *_anchors(settings, anchor)]
    report = walk(settings.home.ledger_file, kept=kept, public_key=public_key_of(settings.home.keys_folder))
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
    if report.signed:
        since = report.last - report.signed
        say(
            f"signed up to {report.signed:,}"
            + (f"; the {_count(since, 'entries', 'entry')} since are not" if since else "")
        )
    else:
        say("not signed: no head of it was signed here")
    if report.anchored:
        say(f"anchored up to {report.anchored:,}: the heads that were kept elsewhere fit")
    else:
        say("not anchored: no head that was kept elsewhere was given (--head, --anchor)")
    say(f"head {report.last}:{report.head}")


def _heads(text: str | None, option: str) -> list[WrittenHead]:
    from trunkline.ledger.heads import written_heads

    try:
        return [] if text is None else written_heads(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _anchors(settings: CommandSettings, given: str | None) -> list[WrittenHead]:
    """The heads in the file, or the head, that was given; else those of the file where this exchange publishes them."""
    if given is None:
        published = _anchor_file(settings)
        return _heads(published.read_text(), str(published)) if published is not None else []
    from trunkline.ledger.heads import written_heads

    try:
        return written_heads(given)
    except ValueError:
        # Then it is the name of a file.
        pass
    try:
        text = Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise click.BadParameter(f"neither a head nor a file: {reason}", param_hint="--anchor") from None
    return _heads(text, "--anchor")


def _anchor_file(settings: CommandSettings) -> Path | None:
    from trunkline.config import load

    anchor = load(settings.home, None, os.environ).ledger.anchor
    file = Path(anchor.file) if anchor is not None and anchor.file is not None else None
    if file is not None and not file.exists():
        note(f"{printable(str(file))}, where heads are published, cannot be read from here")
        return None
    return file


@ledger.command("anchor", short_help="A head to write down or keep elsewhere.")
@shared
def anchor(settings: CommandSettings) -> None:
    """Print the newest signed head: with it, `ledger verify --head` proves later that nothing before it changed."""
    from trunkline.ledger.heads import last_head, public_key_of, short

    head = last_head(settings.home.ledger_file)
    if head is not None:
        key = public_key_of(settings.home.keys_folder)
        if not settings.shown_as_json({**head.as_json(key or b""), "short": head.short}):
            say(head.short)
        return
    with reading(settings) as reader:
        number, digest = reader.head()
    note("no head of it was signed yet; this is its end")
    if not settings.shown_as_json({"number": number, "hash": digest.hex(), "short": short(number, digest.hex())}):
        say(short(number, digest.hex()))


@ledger.command("backup", short_help="Copy the record, also while the exchange runs.")
@click.argument("file", type=click.Path(path_type=Path))
@shared
def backup(settings: CommandSettings, file: Path) -> None:
    """Copy the record to FILE, with its signed heads beside it, and verify the copy."""
    from trunkline.ledger.backup import backup as copy
    from trunkline.ledger.heads import public_key_of

    report = copy(settings.home.ledger_file, file, public_key_of(settings.home.keys_folder))
    if not settings.shown_as_json({"file": str(file), "entries": report.entries, "signed": report.signed}):
        say(f"{printable(str(file))}: {report.entries:,} entries, verified; signed up to {report.signed:,}")


@ledger.command("check", short_help="Check a proof that `ledger export` made.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@shared
def check(settings: CommandSettings, file: Path) -> None:
    """Prove that the parts of a proof fit together and, where this home has a record, that its entries are of it."""
    from trunkline.ledger.export import verify_proof

    has_record = settings.home.ledger_file.exists()
    if has_record:
        with reading(settings) as reader:
            found = verify_proof(file, known=reader.hash)
    else:
        found = verify_proof(file)
    shown = {"correlation": found.correlation, "entries": len(found.entries), "blobs": len(found.blobs)}
    if settings.shown_as_json({"status": "whole", "compared_with_record": has_record, **shown}):
        return
    whose = "and they are of this record" if has_record else "this home has no record to compare them with"
    say(f"whole: {_count(len(found.entries), 'entries', 'entry')} of {printable(found.correlation)}; {whose}")


def _count(number: int, many: str, one: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


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
    from trunkline.ledger.export import entry_lines

    with reading(settings) as reader:
        if call_id is None and correlation is None:
            newest = reader.head()[0]
            lines: Iterable[bytes] = reader.lines(max(1, newest - last + 1), newest)
        else:
            lines = entry_lines(reader, call_id=call_id, correlation=correlation)
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


@ledger.command("export", short_help="Hand out a conversation: its trajectory, its entries, or a proof.")
@click.option("--correlation", metavar="ID", required=True, help="The conversation.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["entries", "proof", "replay", "bundle"]),
    default="entries",
    show_default=True,
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="A file instead of stdout.")
@shared
def export(settings: CommandSettings, correlation: str, form: str, out: Path | None) -> None:
    """Hand out a conversation, secrets masked.

    \b
    entries  one entry of the record a line
    proof    a zip that proves itself: `trunkline ledger check`
    replay   a trajectory, REPLAY.jsonl v1: `trunkline replay FILE`
    bundle   the same as one JSON value, a ReplayBundle
    """
    from trunkline.ledger import export as record

    with reading(settings) as reader:
        if not record.numbers(reader, correlation=correlation):
            nothing_under(correlation)
        match form:
            case "proof":
                if out is None and sys.stdout.isatty():
                    raise click.UsageError("a proof is a zip, not text: give --out FILE or redirect stdout")
                _hand_out([_proof(reader, correlation)], out)
            case "entries":
                lines = record.entry_lines(reader, correlation=correlation)
                _hand_out((line + b"\n" for line in lines), out, as_text=True)
            case "replay":
                _hand_out((line + b"\n" for line in record.trajectory(reader, correlation)), out, as_text=True)
            case _:
                from trunkline.trajectory.bundle import bundle_of, encode_bundle

                bundle = bundle_of(record.trajectory(reader, correlation))
                _hand_out([encode_bundle(bundle) + b"\n"], out, as_text=True)


def _proof(reader: Reader, correlation: str) -> bytes:
    import io

    from trunkline.ledger.export import proof

    made = io.BytesIO()
    proof(reader, correlation, made)
    return made.getvalue()


def _hand_out(pieces: Iterable[bytes], out: Path | None, *, as_text: bool = False) -> None:
    """Write to the file, or to stdout: there text is shown with nothing invisible in it, if a person looks."""
    if out is None:
        stdout: BinaryIO = sys.stdout.buffer
        escapes = as_text and sys.stdout.isatty()
        stdout.writelines(printable(piece.decode(), keep="\n").encode() if escapes else piece for piece in pieces)
        stdout.flush()
        return
    try:
        with out.open("wb") as file:
            size = sum(map(file.write, pieces))
    except OSError as error:
        raise click.BadParameter(f"{printable(str(out))}: {error.strerror}", param_hint="--out") from None
    note(f"{printable(str(out))}: {size:,} bytes")

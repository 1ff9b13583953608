"""``trunkline ledger``: verify, anchor, copy, show and export the record, read from its file. No exchange needs to run.

Owns what a person is shown and the options. Reading and proving are in ``trunkline.ledger``: ``reader``, ``verify``,
``heads``, ``backup``, ``export``; what becomes of a trajectory afterwards is ``cli.replay``.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn

import click

from trunkline.cli.client import decode, encode
from trunkline.cli.file_kinds import expect, kind_of
from trunkline.cli.numbers import WholeNumber
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.output_files import refuse_existing, with_force, with_output, write_output
from trunkline.cli.terminal import CommandFailed, file_failure, heading, note, printable, say, typed
from trunkline.cli.times import FORMS, MOMENT, check_range
from trunkline.cli.watch import sentence
from trunkline.errors import LedgerCorrupt, LedgerError, LedgerNotCopied

if TYPE_CHECKING:
    from trunkline.ledger.heads import WrittenHead
    from trunkline.ledger.reader import Reader

# Entries read at once.
_PIECE: Final = 10_000
_AT: Final = re.compile(rb'"at":(\d+)')


@click.group()
@shared
def ledger(_: CommandSettings) -> None:
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
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--head", metavar="HEAD", help="A head that was written down: `trunkline ledger anchor` prints one.")
@click.option(
    "--anchor", metavar="FILE|HEAD", help="Heads that were published, or one of them. Default: the anchor file."
)
@shared
def verify(settings: CommandSettings, file: Path | None, head: str | None, anchor: str | None) -> None:
    """Prove that every entry is the one that was written; exit 1 names the first that is not.

    FILE is a copy that `ledger backup` made; without it the record of this home is meant. The signatures of a copy
    are checked with the key of this home, if it has one.

    Signed heads show a record that was made anew, put back or cut. Where they were put back with it, only a head that
    was kept elsewhere shows it: --head, --anchor.
    """
    from trunkline.ledger.heads import public_key_of
    from trunkline.ledger.verify import verify as walk

    # What was published since a copy was taken is not in it.
    published = _anchors(settings, anchor) if file is None or anchor is not None else []
    kept = [*_heads(head, "--head"), *published]
    path = settings.home.ledger_file if file is None else file
    expect("record", path)
    if file is not None:
        _expect_ledger(file)
    report = walk(path, kept=kept, public_key=public_key_of(settings.home.keys_folder))
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
            + (f"; the {_count(since, 'entries', 'entry')} since {'is' if since == 1 else 'are'} not" if since else "")
        )
    else:
        say("not signed: no head of it was signed here")
    if report.anchored:
        say(f"anchored up to {report.anchored:,}: the heads that were kept elsewhere fit")
    else:
        say("not anchored: no head that was kept elsewhere was given (--head, --anchor)")
    say(f"head {report.last}:{report.head}")


def _expect_ledger(file: Path) -> None:
    """End the command if a file that was named is no ledger; one that was, and is damaged, is judged as a record.

    Without this it would be told of what is missing beside the file, as if it were one.
    """
    from trunkline.ledger.heads import heads_file
    from trunkline.ledger.store import open_for_reading

    if heads_file(file) == file and kind_of(file) != "record":
        raise LedgerError(f"{file} is not a ledger: it has the name of a ledger's signed heads; name the ledger itself")
    if heads_file(file).exists():
        return
    if file.stat().st_size and kind_of(file) != "record":
        raise LedgerError(f"{file} is not a ledger: it is no database of SQLite")
    with contextlib.suppress(LedgerCorrupt):
        open_for_reading(file).close()


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
    from trunkline.config_file import load

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
    """Copy the record to FILE, with its signed heads beside it, and verify the copy.

    The folder `keys` is not in it. Ecash in `keys/ecash` is another after every payment: copy the folder each time.
    """
    from trunkline.ledger.backup import backup as copy
    from trunkline.ledger.heads import public_key_of

    try:
        report = copy(settings.home.ledger_file, file, public_key_of(settings.home.keys_folder))
    except LedgerNotCopied as refused:
        raise file_failure(refused.file, refused.reason) from None
    if not settings.shown_as_json({"file": str(file), "entries": report.entries, "signed": report.signed}):
        say(f"{printable(str(file))}: {report.entries:,} entries, verified; signed up to {report.signed:,}")
    if any((settings.home.keys_folder / "ecash").glob("*")):
        note(f"ecash is not in it, and is another after every payment: copy {settings.home.keys_folder} now, too")


@ledger.command("check", short_help="Check a proof that `ledger export` made.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@shared
def check(settings: CommandSettings, file: Path) -> None:
    """Prove that the parts of a proof fit together and, where this home has a record, that its entries are of it.

    FILE is a proof: the zip that `ledger export --correlation ID --format proof --output FILE` makes of one
    conversation, with its entries, their hashes and the bodies they name. A copy of the whole record is for
    `ledger verify FILE`.
    """
    from trunkline.ledger.export import verify_proof

    expect("proof", file)
    if kind_of(file) != "proof":
        raise LedgerError(f"{file} is not a proof: it is no zip that `{typed('ledger export --format proof')}` made")
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
    type=WholeNumber(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Without these: how many of the latest.",
)
@shared
def show(settings: CommandSettings, call_id: str | None, correlation: str | None, last: int) -> None:
    """What is on record of a call or a conversation, or the latest entries; secrets are masked."""
    if call_id is not None and correlation is not None:
        raise click.UsageError("give --call or --correlation, not both")
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
    raise CommandFailed("not_found", f"nothing is on record under {name}; `{typed('calls')}` shows ids")


@ledger.command("export", short_help="Hand out a conversation, a time range or everything.")
@click.option("--correlation", metavar="ID", help="A conversation.")
@click.option("--all", "everything", is_flag=True, help="Everything, one entry a line.")
@click.option("--since", type=MOMENT, metavar="TIME", help=f"What was recorded from then on: {FORMS}.")
@click.option("--until", type=MOMENT, metavar="TIME", help="What was recorded before then.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["entries", "proof", "replay", "bundle"]),
    default="entries",
    show_default=True,
)
@with_output
@with_force
@shared
def export(
    settings: CommandSettings,
    correlation: str | None,
    everything: bool,
    since: int | None,
    until: int | None,
    form: str,
    output: Path | None,
    force: bool,
) -> None:
    """Hand out a conversation, a time range or everything, secrets masked.

    \b
    entries  one entry of the record a line
    proof    a zip of a conversation that proves itself: `trunkline ledger check`
    replay   a trajectory, REPLAY.jsonl v1: `trunkline replay FILE`
    bundle   the same as one JSON value, a ReplayBundle

    Times without a zone are local. A copy of everything that proves itself is made by `trunkline ledger backup`.
    """
    from trunkline.ledger import export as record

    if sum((correlation is not None, everything, since is not None or until is not None)) != 1:
        raise click.UsageError("give --correlation, --all or a time range (--since, --until), and only one of them")
    check_range(since, until, "--since and --until")
    if correlation is None and form != "entries":
        raise click.UsageError(f"a {form} is of one conversation: give --correlation")
    if output is not None:
        refuse_existing(output, force=force)
    with reading(settings) as reader:
        if correlation is None:
            lines = _lines_between(reader, since or 0, until)
            _hand_out((line + b"\n" for line in lines), output, as_text=True, force=force)
            return
        if not record.numbers(reader, correlation=correlation):
            nothing_under(correlation)
        pieces = _pieces(reader, correlation, form, is_terminal=output is None and sys.stdout.isatty())
        _hand_out(pieces, output, as_text=form != "proof", force=force)


def _pieces(reader: Reader, correlation: str, form: str, *, is_terminal: bool) -> Iterable[bytes]:
    """A conversation in one of its forms."""
    from trunkline.ledger import export as record

    match form:
        case "proof":
            if is_terminal:
                raise click.UsageError("a proof is a zip, not text: give --output FILE or redirect stdout")
            import io

            made = io.BytesIO()
            record.proof(reader, correlation, made)
            return [made.getvalue()]
        case "entries":
            return (line + b"\n" for line in record.entry_lines(reader, correlation=correlation))
        case "replay":
            return (line + b"\n" for line in record.trajectory(reader, correlation))
        case _:
            from trunkline.trajectory.bundle import bundle_of, encode_bundle

            return [encode_bundle(bundle_of(record.trajectory(reader, correlation))) + b"\n"]


def _lines_between(reader: Reader, since_ms: int, until_ms: int | None) -> Iterator[bytes]:
    """Entries of a time range, one a line, in their order. A clock that was set back may have put some elsewhere."""
    from trunkline.ledger.export import on_one_line

    newest = reader.head()[0]
    for first in range(1, newest + 1, _PIECE):
        for line in reader.lines(first, min(first + _PIECE - 1, newest)):
            at = _AT.search(line, 0, 256)
            if at is not None and since_ms <= int(at[1]) and (until_ms is None or int(at[1]) < until_ms):
                yield on_one_line(line)


def _hand_out(pieces: Iterable[bytes], output: Path | None, *, as_text: bool, force: bool) -> None:
    """Write to the file, or to stdout: there text is shown with nothing invisible in it, if a person looks."""
    if output is None:
        stdout: BinaryIO = sys.stdout.buffer
        escapes = as_text and sys.stdout.isatty()
        stdout.writelines(printable(piece.decode(), keep="\n").encode() if escapes else piece for piece in pieces)
        stdout.flush()
        return
    size = write_output(output, pieces, force=force)
    note(f"{printable(str(output))}: {size:,} bytes")

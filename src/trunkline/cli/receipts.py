"""``trunkline receipts``: what was paid for which job, read from the record; and whether a receipt proves it.

Owns what a person is shown, the exit code of ``verify`` (1 names the link that does not hold) and the form of an
exported file. Following the links is ``trunkline.money.proving``'s. No exchange needs to run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
import msgspec
from msgspec import Raw

from trunkline.cli.client import decode, encode
from trunkline.cli.ledger import reading
from trunkline.cli.numbers import WholeNumber
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, clock, file_failure, heading, printable, say, seconds_of, table, typed

if TYPE_CHECKING:
    from trunkline.ledger.reader import Reader
    from trunkline.ledger.receipts import OnRecord
    from trunkline.money import proving
    from trunkline.money.proving import Evidence, Proved, Verify
    from trunkline.money.rail import RailName

# The form of a file that has a receipt and everything that it points to.
FORMAT: Final = "trunkline-receipt-1"
# Ids of receipts have neither.
_LIKE_A_FILE: Final = re.compile(r"[./]")
MAX_FILE_BYTES: Final = 268_435_456
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(invoke_without_command=True)
@click.option("--limit", type=WholeNumber(1, 10_000), default=50, show_default=True, help="How many.")
@shared
@click.pass_context
def receipts(context: click.Context, settings: CommandSettings, limit: int) -> None:
    """Receipts, newest first; with a verb, one of them. They are read from the record; no exchange needs to run.

    \b
    trunkline receipts show ID
    trunkline receipts verify ID
    trunkline receipts export ID > receipt.json
    trunkline receipts verify receipt.json
    """
    if context.invoked_subcommand is not None:
        return
    import itertools

    from trunkline.ledger import receipts as on_record
    from trunkline.money.proving import Broken

    with reading(settings) as reader:
        try:
            found = [one.issued.receipt for one in itertools.islice(on_record.listed(reader), limit)]
        except Broken as broken:
            _end_with(broken)
    if settings.shown_as_json({"receipts": found}):
        return
    if not found:
        say("No receipts. A priced job that was paid and verified has one.")
        return
    rows = []
    for raw in found:
        one: dict[str, Any] = decode(bytes(raw))
        at = clock(seconds_of(one["timestamp"]))
        rows.append([at, one["receipt_id"], f"{one['amount_msats']:,}", one["rail"], one["provider_id"]])
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    table(["AT", "RECEIPT", "MSATS", "RAIL", "PROVIDER"], cells, keep=(0, 1, 2))


@receipts.command("show", short_help="One receipt, field by field.")
@click.argument("receipt_id", metavar="ID")
@shared
def show(settings: CommandSettings, receipt_id: str) -> None:
    """One receipt: its twelve fields, as they were put on record."""
    with reading(settings) as reader:
        found = _found(reader, receipt_id)
    raw = found.issued.receipt
    fields: dict[str, Any] = decode(bytes(raw))
    if settings.shown_as_json(raw):
        return
    say(heading(receipt_id))
    for name, value in fields.items():
        text = f"{value['type']} {value['value']}" if name == "payment_proof" else value
        say(f"{name}: {printable('none' if text is None else str(text))}")
    say(f"entry: {found.number}, its hash {found.issued.receipt_hash}")


@receipts.command("export", short_help="A receipt with everything that it points to, as one file.")
@click.argument("receipt_id", metavar="ID")
@shared
def export(settings: CommandSettings, receipt_id: str) -> None:
    """Print a receipt with its invoice, trajectory and rules: whoever has it can verify it without this exchange."""
    from trunkline.ledger.receipts import evidence
    from trunkline.money.proving import Broken

    with reading(settings) as reader:
        try:
            given = evidence(reader, _found(reader, receipt_id))
        except Broken as broken:
            _end_with(broken)
    click.echo(_written(given))


def _written(given: Evidence) -> bytes:
    return encode(
        {
            "format": FORMAT,
            "receipt": given.receipt,
            "receipt_hash": given.receipt_hash,
            "request": given.request,
            "evidence": given.evidence,
            "policy": given.policy,
            "trajectory": [line.decode() for line in given.trajectory],
            "call_id": given.call_id,
        }
    )


@receipts.command("verify", short_help="Follow every link and compute every hash.")
@click.argument("named", metavar="ID|FILE")
@click.option("--trajectory", type=_FILE, help="With a FILE that is a bare receipt: its REPLAY.jsonl.")
@click.option("--policy", type=_FILE, help="With such a FILE: the rules, a JSON list.")
@click.option("--result", type=_FILE, help="With such a FILE: the provider's signed event that names the invoice.")
@click.option("--mint-keys", type=_FILE, help="Of ecash: what the mint answers to GET /v1/keys, asked by yourself.")
@click.option("--accept-untied", is_flag=True, help="Exit with 0 also if nothing says which job was paid for.")
@shared
def verify(
    settings: CommandSettings,
    named: str,
    trajectory: Path | None,
    policy: Path | None,
    result: Path | None,
    mint_keys: Path | None,
    *,
    accept_untied: bool,
) -> None:
    """Prove a receipt: payment, job, trajectory, policy. Exit 1 names the first link that does not hold.

    Where every link holds, and the payment could be that of another job as well (an invoice that names none, an id that
    does not follow from both), the receipt is untied: exit 1, unless --accept-untied is given.

    ID is one of this home's record. FILE is what `export` wrote, here or by anybody, or a receipt alone: then what it
    points to is taken from the record, or from --trajectory, --policy and --result.

    Which keys are a mint's is the payee's word, and said to be that; with --mint-keys it is compared.
    """
    from trunkline.money.proving import Broken, prove

    if not Path(named).exists() and _LIKE_A_FILE.search(named):
        raise file_failure(named, "there is no such file")
    try:
        if Path(named).exists():
            given = _of_file(settings, Path(named), trajectory, policy, result)
        else:
            given = _of_record(settings, named)
        proved = prove(given, _verifiers(settings, mint_keys), knows_mint=mint_keys is not None)
    except Broken as broken:
        _end_with(broken)
    if proved.untied and not accept_untied:
        text = printable(f"untied: {'; '.join(proved.untied)}")
        details = {"untied": list(proved.untied)}
        raise CommandFailed("receipt.untied", text, exit_code=1, line=text, details=details)
    _tell(settings, proved)


def _verifiers(settings: CommandSettings, mint_keys: Path | None) -> Mapping[RailName, Verify]:
    """How proofs are judged here: the configuration of this home says which blocks are of the chain."""
    from trunkline.config_file import load
    from trunkline.money.cashu.known_keys import read_known_keys
    from trunkline.money.refusals import ProofRefused
    from trunkline.money.verifying import verifiers

    try:
        known = None if mint_keys is None else read_known_keys(_read(mint_keys))
    except ProofRefused as refused:
        raise CommandFailed("input", f"--mint-keys: {refused}", exit_code=2) from None
    chain = load(settings.home, None, os.environ).nostr.chain
    return verifiers(chain.network, chain.checkpoints, chain.confirmations, known)


def _of_record(settings: CommandSettings, receipt_id: str) -> Evidence:
    from trunkline.ledger.receipts import evidence

    with reading(settings) as reader:
        return evidence(reader, _found(reader, receipt_id))


def _of_file(
    settings: CommandSettings, file: Path, trajectory: Path | None, policy: Path | None, result: Path | None
) -> Evidence:
    from trunkline.money import proving
    from trunkline.money.proving import Broken
    from trunkline.money.receipts import receipt_hash
    from trunkline.strictjson import NotStrictJson

    data = _read(file)
    try:
        # First, since it looks how deep it is: readers of types follow it down.
        computed = receipt_hash(data)
        fields = msgspec.json.decode(data, type=dict[str, Raw])
    except (msgspec.DecodeError, NotStrictJson) as error:
        raise Broken("receipt", f"{file.name}: {error}") from None
    if "format" in fields:
        return _exported(fields)
    if trajectory is not None and policy is not None and result is not None:
        lines = tuple(_read(trajectory).rstrip(b"\n").split(b"\n"))
        event = _read(result)
        invoice = proving.invoice_named(event)
        return proving.Evidence(Raw(data), computed, invoice, Raw(event), lines, Raw(_read(policy)))
    return _bare(settings, data)


def _exported(fields: dict[str, Raw]) -> Evidence:
    """What ``export`` wrote. What is missing or has another form is a broken receipt."""
    from trunkline.money.proving import Broken, Evidence

    try:
        if msgspec.json.decode(fields["format"], type=str) != FORMAT:
            raise Broken("receipt", f"format: expected {FORMAT}")
        return Evidence(
            fields["receipt"],
            msgspec.json.decode(fields["receipt_hash"], type=str),
            msgspec.json.decode(fields["request"], type=str),
            fields["evidence"],
            tuple(line.encode() for line in msgspec.json.decode(fields["trajectory"], type=list[str])),
            fields["policy"],
            # Files of earlier versions have none.
            msgspec.json.decode(fields.get("call_id", Raw(b'""')), type=str),
        )
    except (KeyError, msgspec.DecodeError) as error:
        raise Broken("receipt", f"the file is incomplete: {error}") from None


def _bare(settings: CommandSettings, data: bytes) -> Evidence:
    """A receipt alone: everything else is on record here, and its hash has to be the one on record."""
    from trunkline.money import receipts as forms
    from trunkline.money.proving import Broken

    try:
        receipt_id = forms.read(data).receipt_id
    except forms.NotAReceipt as error:
        raise Broken("receipt", str(error)) from None
    given = _of_record(settings, receipt_id)
    return msgspec.structs.replace(given, receipt=Raw(data))


def _found(reader: Reader, receipt_id: str) -> OnRecord:
    from trunkline.ledger import receipts as on_record
    from trunkline.money.proving import Broken

    try:
        found = on_record.find(reader, receipt_id)
    except Broken as broken:
        _end_with(broken)
    if found is None:
        listed = typed("receipts")
        raise CommandFailed("not_found", f"no receipt {receipt_id!r} is on record; `{listed}` lists them")
    return found


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_FILE_BYTES)
    except OSError as error:
        raise file_failure(file, error.strerror) from None


def _tell(settings: CommandSettings, proved: Proved) -> None:
    from trunkline.money.proving import MINT_BY_WORD

    receipt = proved.receipt
    status = "untied" if proved.untied else "whole"
    shown = {"status": status, "receipt_id": receipt.receipt_id, "links": proved.links, "unproved": proved.unproved}
    if proved.untied:
        shown["untied"] = proved.untied
    if settings.shown_as_json(shown):
        return
    say(
        f"{status}: {printable(receipt.receipt_id)}, {receipt.amount_msats:,} msats to {printable(receipt.provider_id)}"
    )
    by_word = ", by keys that the payee says are the mint's" if MINT_BY_WORD in proved.unproved else ""
    say(f"payment: {receipt.payment_proof.type} proves it{by_word}")
    say(f"job: {receipt.job_hash}")
    say(f"trajectory: {receipt.trajectory_hash}")
    say(f"policy: {printable(receipt.policy_bundle_id)}")
    for text in proved.untied:
        say(f"untied: {printable(text)}")
    for text in proved.unproved:
        say(f"not computed: {text}")


def _end_with(broken: proving.Broken) -> NoReturn:
    text = printable(f"{broken.link}: {broken}")
    raise CommandFailed("receipt.invalid", text, exit_code=1, line=text, details={"link": broken.link}) from None

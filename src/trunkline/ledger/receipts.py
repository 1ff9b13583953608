"""Receipts as they stand on record: listed, found, and with everything that they point to.

Owns where on record a receipt's links lead: the entries of its session, the rules that were in force, its own place in
the chain. Does not own what a receipt is or whether it holds (``trunkline.money``).

Invariant: what ``evidence`` gives is read from the record alone; nothing is taken from the receipt's own word but the
names of its session and of the call that was paid for.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from trunkline.entries import AnyEntry, CallAccepted, ProcessStep
from trunkline.errors import LedgerCorrupt
from trunkline.ledger import export
from trunkline.ledger.chain import link
from trunkline.ledger.reader import Reader
from trunkline.model import stamp
from trunkline.money import receipts
from trunkline.money.proving import Broken, Evidence
from trunkline.money.receipts import Issued, NotAReceipt


class OnRecord(Struct, frozen=True):
    """A receipt, the number of its entry and when that was written."""

    number: int
    at: str
    issued: Issued


def numbers(reader: Reader) -> list[int]:
    """The entries of all receipts, in order."""
    return [number for number in reader.steps(receipts.SUBJECT) if _step(reader.entry(number)) is not None]


def _step(entry: AnyEntry | None) -> ProcessStep | None:
    return entry if isinstance(entry, ProcessStep) and entry.process == receipts.PROCESS else None


def listed(reader: Reader, before: int | None = None) -> Iterator[OnRecord]:
    """All receipts, newest first; those before an entry, if that is given."""
    for number in reversed(reader.steps(receipts.SUBJECT)):
        if (before is None or number < before) and _step(reader.entry(number)) is not None:
            yield read(reader, number)


def read(reader: Reader, number: int) -> OnRecord:
    """The receipt in an entry; ``Broken`` if it was changed into something else."""
    try:
        step = _step(reader.entry(number))
        if step is None:
            raise Broken("receipt", f"entry {number} is no receipt")
        return OnRecord(number, stamp(step.at), receipts.issued_of(step.data))
    except (LedgerCorrupt, NotAReceipt) as error:
        raise Broken("receipt", f"entry {number}: {error}") from None


def find(reader: Reader, receipt_id: str) -> OnRecord | None:
    """The receipt with this id."""
    wanted = msgspec.json.encode(receipt_id)
    for number in reversed(reader.steps(receipts.SUBJECT)):
        line = reader.line(number)
        if line is not None and wanted in line:
            found = read(reader, number)
            if _id_of(found.issued.receipt) == receipt_id:
                return found
    return None


def _id_of(receipt: Raw) -> str:
    try:
        return str(msgspec.json.decode(bytes(receipt), type=dict[str, object]).get("receipt_id", ""))
    except msgspec.DecodeError:
        return ""


def evidence(reader: Reader, found: OnRecord) -> Evidence:
    """A receipt with all that it points to, read from the record; ``Broken`` names what is not there or was changed."""
    _in_chain(reader, found.number)
    try:
        receipt = receipts.read(found.issued.receipt)
    except NotAReceipt as error:
        raise Broken("receipt", str(error)) from None
    session = _session(reader, found, receipt.session_id)
    if not session:
        raise Broken("trajectory", f"nothing is on record of the session {receipt.session_id}")
    try:
        policy = reader.policy_before(session[0])
    except (LedgerCorrupt, msgspec.DecodeError):
        policy = None
    if policy is None:
        raise Broken("policy", "the rules that were in force are not on record")
    rules = msgspec.json.encode(policy.rules)
    if policy.policy_bundle_id and policy.policy_bundle_id != receipt.policy_bundle_id:
        raise Broken("policy", f"{policy.policy_bundle_id} was in force, not {receipt.policy_bundle_id}")
    try:
        lines = tuple(export.trajectory(reader, receipt.session_id, found.number, call_id=found.issued.call_id))
    except (LedgerCorrupt, msgspec.DecodeError) as error:
        raise Broken("trajectory", str(error)) from None
    issued = found.issued
    return Evidence(
        issued.receipt, issued.receipt_hash, issued.request, issued.evidence, lines, Raw(rules), issued.call_id
    )


def _session(reader: Reader, found: OnRecord, session_id: str) -> list[int]:
    """The entries that a receipt is about; none if its call is of another session."""
    call_id = found.issued.call_id
    if not call_id:
        return [number for number in export.numbers(reader, correlation=session_id) if number < found.number]
    numbers = export.part(reader, call_id)
    call = reader.entry(numbers[0]) if numbers else None
    is_named = isinstance(call, CallAccepted) and session_id in (call.correlation_id, call.call_id)
    return numbers if is_named else []


def _in_chain(reader: Reader, number: int) -> None:
    line, before, own = reader.line(number), reader.hash(number - 1), reader.hash(number)
    if line is None or before is None or link(before, line) != own:
        raise Broken("receipt", f"entry {number} of the record, which holds it, does not match its hash")


def pointed_to(reader: Reader) -> set[int]:
    """The entries that receipts and what they prove need: retention keeps them."""
    kept: set[int] = set()
    for number in numbers(reader):
        kept.add(number)
        try:
            found = read(reader, number)
            receipt = receipts.read(found.issued.receipt)
        except (Broken, NotAReceipt):
            continue
        session = _session(reader, found, receipt.session_id)
        kept.update(session)
        if session:
            begun = (reader.policy_before(session[0]), reader.started_before(session[0]))
            kept.update(entry.n for entry in begun if entry is not None)
    return kept

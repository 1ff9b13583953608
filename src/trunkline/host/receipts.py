"""One receipt for a person who looks at it: its twelve fields, where its links lead, and whether they hold.

Owns putting these together. Does not own what is on record (``ledger.receipts``), nor the proof (``money.proving``).
Reads with a connection of its own, so that a long session is followed in a thread while the exchange goes on.

Invariant: a receipt is said to be whole only if every link was followed just now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw

from trunkline.config import Config
from trunkline.edges.exchange import ReceiptView
from trunkline.entries import CallAccepted
from trunkline.ledger import export, receipts
from trunkline.ledger.reader import Reader
from trunkline.ledger.receipts import OnRecord
from trunkline.money.proving import LINKS, Broken, Verify, prove
from trunkline.money.rail import RailName
from trunkline.money.receipts import NotAReceipt
from trunkline.money.receipts import read as read_receipt

Judges = Callable[[], Mapping[RailName, Verify]]


def judges_of(config: Config) -> Judges:
    """How payments are judged here: the configuration says which blocks are of the chain."""

    def made() -> Mapping[RailName, Verify]:
        # What it takes is imported when somebody looks at a receipt.
        from trunkline.money.verifying import verifiers

        return verifiers(config.chain.network, config.chain.checkpoints, config.chain.confirmations)

    return made


def checked(reader: Reader, receipt_id: str, judges: Judges) -> ReceiptView | None:
    """The receipt of this id, with each link followed; None if there is none."""
    try:
        found = receipts.find(reader, receipt_id)
    except Broken as broken:
        # What stands in its place cannot be shown.
        return ReceiptView(Raw(b"null"), "", 0, "", "broken", link=broken.link, reason=str(broken))
    if found is None:
        return None
    shown = ReceiptView(
        receipt=found.issued.receipt,
        receipt_hash=found.issued.receipt_hash,
        entry=found.number,
        at=found.at,
        status="broken",
        call_id=_job_of(reader, found),
    )
    try:
        proved = prove(receipts.evidence(reader, found), judges())
    except Broken as broken:
        return shown.with_broken(broken.link, str(broken))
    return shown.with_links(LINKS, (*proved.untied, *proved.unproved))


def _job_of(reader: Reader, found: OnRecord) -> str | None:
    """The call that was paid for: the first of the receipt's session."""
    try:
        session = read_receipt(found.issued.receipt).session_id
    except NotAReceipt:
        return None
    entries = (reader.entry(number) for number in export.numbers(reader, correlation=session))
    return next((entry.call_id for entry in entries if isinstance(entry, CallAccepted)), None)

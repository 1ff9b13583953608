"""Whether a transaction in a block proves that somebody was paid: all parts of the proof together.

Owns the evidence's form and the judgement. The proof itself is the transaction's id; the evidence beside it is the
transaction, its place in a block, and headers from a checkpoint on, all in hexadecimal digits.

Invariant: what ``check_payment`` accepts stands in a block under a checkpoint of the operator's, with the work of so
many blocks on it, and pays the script at least the amount.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from trunkline.money.onchain.headers import (
    HEADER_BYTES,
    MAX_DEPTH,
    MAX_HEADERS,
    Checkpoint,
    Network,
    check_in_block,
    read_chain,
)
from trunkline.money.onchain.transactions import MAX_TRANSACTION_BYTES, read_transaction
from trunkline.money.refusals import ProofRefused

MAX_EVIDENCE_BYTES: Final = 2 * (MAX_TRANSACTION_BYTES + HEADER_BYTES * MAX_HEADERS) + 4096

Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Hex = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{2})*\Z")]


class Evidence(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a payment is found. ``block`` counts headers: 0 is the checkpoint itself."""

    transaction: Hex
    headers: Hex
    block: Annotated[int, Meta(ge=0, lt=MAX_HEADERS)]
    position: Annotated[int, Meta(ge=0, lt=1 << MAX_DEPTH)]
    siblings: Annotated[tuple[Hash, ...], Meta(max_length=MAX_DEPTH)]


def check_payment(
    txid: str,
    script: bytes,
    amount: int,
    evidence: Evidence,
    checkpoints: Sequence[Checkpoint],
    network: Network,
    *,
    confirmations: int,
) -> None:
    """Refuse unless this transaction paid the script so many satoshis, under so many blocks, its own included."""
    transaction = read_transaction(bytes.fromhex(evidence.transaction))
    if transaction.txid != txid:
        raise ProofRefused("other_transaction")
    paid = transaction.paid_to(script)
    if not paid:
        raise ProofRefused("pays_another")
    if paid < amount:
        raise ProofRefused("wrong_amount", "less than was asked for")
    headers = read_chain(bytes.fromhex(evidence.headers), checkpoints, network)
    if evidence.block >= len(headers):
        raise ProofRefused("other_block", "no header of this number")
    check_in_block(
        txid, evidence.position, [bytes.fromhex(part) for part in evidence.siblings], headers[evidence.block]
    )
    if len(headers) - evidence.block < confirmations:
        raise ProofRefused("unconfirmed")

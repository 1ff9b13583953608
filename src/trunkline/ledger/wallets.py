"""The embedded wallet as it stands on record: folded without a running exchange, and its history.

Owns where on record the wallet's steps are. What they mean is ``trunkline.money.wallet``'s.

Invariant: the fold of what is on record is the wallet of the exchange that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from trunkline.entries import ProcessStep
from trunkline.ledger.reader import Reader
from trunkline.money import wallet
from trunkline.money.wallet import Wallet


def fold(reader: Reader) -> Wallet:
    """What all accounts have by the record."""
    found = Wallet()
    for step in _generation(reader, _newest(reader)):
        if not step.done:
            found.apply(wallet.decode(step.data))
    return found


def history(reader: Reader, account: str, limit: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """What happened to an account, or to all if it is empty, newest first: when, and what in words for people."""
    count = 0
    for generation in range(_newest(reader), 0, -1):
        for step in reversed(_generation(reader, generation)):
            told = None if step.done else _told(step)
            if told is not None and (not account or account in (told.get("account"), told.get("to"))):
                yield step.at, told
                count += 1
            if count >= limit:
                return


def _newest(reader: Reader) -> int:
    """The steps are carried over from one generation to the next: the newest has everything, and of the older ones
    retention may have left nothing.
    """
    names = [subject.removeprefix(wallet.SUBJECTS) for subject in reader.subjects(wallet.SUBJECTS)]
    numbers = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
    return next((number for number in numbers if _generation(reader, number)), 1)


def _generation(reader: Reader, generation: int) -> list[ProcessStep]:
    found = (reader.entry(number) for number in reader.steps(wallet.subject_of(generation)))
    return [entry for entry in found if isinstance(entry, ProcessStep) and entry.process == wallet.PROCESS]


def _told(step: ProcessStep) -> dict[str, Any] | None:
    """A step in words; None for one that moves nothing."""
    try:
        said = wallet.decode(step.data)
    except msgspec.DecodeError:
        return None
    told: dict[str, Any] = {"step": step.step}
    match said:
        case wallet.Opened():
            return {**told, "account": said.account}
        case wallet.Funded():
            return {**told, "account": said.account, "msats": said.msats}
        case wallet.Held():
            return {
                **told, "account": said.payer, "to": said.payee, "msats": said.msats, "job": said.schema_id,
                "payment_hash": said.payment_hash, "request_id": said.request_id,
            }  # fmt: skip
        case wallet.Released() | wallet.Refunded() | wallet.Moved():
            return {
                **told, "account": said.payer, "to": said.payee, "msats": said.msats, "payment_hash": said.payment_hash,
            }  # fmt: skip
        case wallet.Ecash():
            # What there is of it now.
            return {**told, "account": wallet.OWN, "to": said.mint, "msats": said.sats * 1000}
        case wallet.Sent():
            return {**told, "account": "outside", "to": said.provider, "msats": said.msats}
        case _:
            return None

"""The embedded wallet as it stands on record: folded without a running exchange, and its history.

Owns where on record the wallet's steps are. What they mean is ``trunkline.money.wallet``'s.

Invariant: the fold of what is on record is the wallet of the exchange that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from trunkline.entries import ProcessStep
from trunkline.ledger.reader import Reader
from trunkline.money import wallet
from trunkline.money.wallet import Wallet

# Of what was sent, and neither its payee's word nor its return is known.
OUTSTANDING: Final = "outstanding"


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
    outcomes: dict[str, str] = {}
    for generation in range(_newest(reader), 0, -1):
        steps = _generation(reader, generation)
        sent = _sent(steps)
        for step in reversed(steps):
            told = None if step.done else _told(step, sent, outcomes)
            if told is not None and (not account or account in (told.get("account"), told.get("to"))):
                yield step.at, told
                count += 1
            if count >= limit:
                return


def _sent(steps: Sequence[ProcessStep]) -> dict[str, tuple[str, int]]:
    """By payment hash: to whom something was sent, and how much, also before these steps."""
    found: dict[str, tuple[str, int]] = {}
    for step in steps:
        said = None if step.done else _read(step)
        if isinstance(said, wallet.Carried):
            found |= {one.payment_hash: (one.provider, one.msats) for one in said.spent}
        elif isinstance(said, wallet.Sent):
            found[said.payment_hash] = (said.provider, said.msats)
    return found


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


def _read(step: ProcessStep) -> wallet.Step | None:
    try:
        said: wallet.Step = wallet.decode(step.data)
    except msgspec.DecodeError:
        return None
    return said


def _told(step: ProcessStep, sent: Mapping[str, tuple[str, int]], outcomes: dict[str, str]) -> dict[str, Any] | None:
    """A step in words; None for one that moves nothing. ``outcomes`` are of payments that later steps ended, by hash:
    what was sent and has none is outstanding.
    """
    said = _read(step)
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
        case wallet.TokenSent() | wallet.TokenOver():
            return {**told, "account": wallet.OWN, "to": said.mint, "msats": said.sats * 1000, "token": said.name}
        case wallet.TokenReceived():
            return {**told, "account": wallet.OWN, "to": said.mint, "msats": said.sats * 1000}
        case wallet.Sent():
            return {
                **told, "account": "outside", "to": said.provider, "msats": said.msats,
                "payment_hash": said.payment_hash, "outcome": outcomes.get(said.payment_hash, OUTSTANDING),
            }  # fmt: skip
        case wallet.Settled():
            outcome = outcomes[said.payment_hash] = "paid" if said.preimage else "returned"
            provider, msats = sent.get(said.payment_hash, ("", 0))
            return {
                **told, "account": "outside", "to": provider, "msats": said.msats or msats,
                "payment_hash": said.payment_hash, "outcome": outcome,
            }  # fmt: skip
        case _:
            return None

"""What a payee asked for: his signed event that names an amount and what it is to be paid by.

Owns the comparison, for rails whose proofs do not name their payee themselves. Does not own what the request means.

Invariant: an event that ``asked_by_payee`` gives was signed by the payee of ``due``, over its amount and request.
"""

from __future__ import annotations

from trunkline.money import signed_events
from trunkline.money.bech32 import NotBech32, public_of
from trunkline.money.rail import Due
from trunkline.money.refusals import ProofRefused, malformed
from trunkline.money.signed_events import NotSigned, SignedEvent


def payee_key(due: Due) -> bytes:
    """The payee's public key, as Nostr has it: 32 bytes."""
    try:
        return bytes.fromhex(public_of(due.payee))
    except NotBech32 as error:
        raise malformed(str(error)) from None


def asked_by_payee(due: Due, event: bytes) -> SignedEvent:
    """The event; refused unless the payee signed it, and it asks for this amount by this request."""
    try:
        found = signed_events.read(event)
    except NotSigned as error:
        raise ProofRefused("not_asked", str(error)) from None
    if found.pubkey != payee_key(due).hex():
        raise ProofRefused("not_asked", "somebody else signed the event")
    if ("amount", str(due.amount_msats), due.request) not in found.tags:
        raise ProofRefused("not_asked", "the event names another amount or request")
    return found

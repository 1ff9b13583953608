"""What the buyer of jobs asks the exchange and the wallet: which steps are on record, and how calls and money stand.

Owns the questions. The answers are the exchange's (``edges.exchange.Views``) and ``settling``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from trunkline.entries import ProcessStep
from trunkline.model import Fault
from trunkline.money.rail import Way
from trunkline.money.wallet import Paid
from trunkline.shown import CallView


class Lookups(Struct, frozen=True):
    """One function for each question."""

    # Steps on record of one call that is open.
    steps: Callable[[str], Sequence[ProcessStep]]
    # Whether a call is still open.
    is_open: Callable[[str], bool]
    # Why a call may not go on by the rules of now.
    denied: Callable[[str], Fault | None]
    # The call that an order made under a key; None if there is none.
    made_by: Callable[[str, str], CallView | None]
    # What somebody, an npub, was paid before.
    paid_before: Callable[[str], Paid]
    # The call that had the money of an invoice held, handed over or paid for an order, by the payment hash and the
    # order; empty if none did.
    held_by: Callable[[str, str], str]
    # What proves that an invoice was paid at once, by the payment hash; empty if that is not known.
    preimage_of: Callable[[str], str]
    # How what somebody asks to be paid by would be paid with the money that is here; None if it cannot be.
    way: Callable[[str], Way | None]

"""Quotes: what a job costs by the announced prices, and how an offer stands until it is paid or over.

Pure. Owns the price of a job, the states of a quote and the book of quotes, in which one key of one buyer is one quote.
Does not own invoices or money; whoever moves money says here what became of it.

::

    CREATED ──asked──> UNPAID ──held──> PENDING ──released──> PAID
                         │                 └────refunded────> FAILED
                         └──time over, or nobody wants it any more──> EXPIRED

Invariant: a quote goes along these arrows only, and the same key gives the same quote until it is paid. No quote that
is open is forgotten, however many others are made.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from msgspec import Struct

from trunkline.jobs.schemas import EMBEDDING, SANDBOX, count_tokens
from trunkline.money.rail import MAX_MSATS, Quote

# Quotes that are kept of all buyers, and of them such of one buyer that are open: what waits for payment is far less.
MAX_QUOTES: Final = 4096
MAX_OPEN_OF_BUYER: Final = 64
MAX_KEY_CHARS: Final = 128


class QuoteState(enum.StrEnum):
    """How a quote stands."""

    CREATED = "created"
    UNPAID = "unpaid"
    PENDING = "pending"
    PAID = "paid"
    FAILED = "failed"
    EXPIRED = "expired"


_STEPS: Final = {
    QuoteState.CREATED: {QuoteState.UNPAID, QuoteState.EXPIRED},
    QuoteState.UNPAID: {QuoteState.PENDING, QuoteState.EXPIRED},
    QuoteState.PENDING: {QuoteState.PAID, QuoteState.FAILED},
    QuoteState.PAID: set(),
    QuoteState.FAILED: set(),
    QuoteState.EXPIRED: set(),
}
OPEN: Final = frozenset({QuoteState.CREATED, QuoteState.UNPAID, QuoteState.PENDING})


class BadStep(ValueError):
    """A quote cannot go from its state to that one."""


class KeyTaken(ValueError):
    """The key of a quote is that of another job, or of one that was paid; the text may be told to the buyer."""


class NoRoom(ValueError):
    """There are too many open quotes, of this buyer or of all; the text may be told to the buyer."""


class Prices(Struct, frozen=True):
    """What a provider asks for, in its announcement's names (OA-112)."""

    input_tokens_per_1k_msats: float
    output_tokens_per_1k_msats: float
    sandbox_per_minute_msats: float


# Their output is numbers, not text.
_VECTORS: Final = frozenset({EMBEDDING})


def price(prices: Prices, schema_id: str, tokens: int, minutes: Fraction) -> int:
    """What a job costs: a sandbox by the minutes of its timeout, embeddings by the tokens of their inputs, all others
    by these and by as many of output. Rounded up to a whole msat; 0 is free.
    """
    msats = minutes * _exact(prices.sandbox_per_minute_msats)
    if schema_id != SANDBOX:
        per_1k = _exact(prices.input_tokens_per_1k_msats)
        if schema_id not in _VECTORS:
            per_1k += _exact(prices.output_tokens_per_1k_msats)
        msats = Fraction(tokens) / 1000 * per_1k
    return min(math.ceil(msats), MAX_MSATS)


def price_of(prices: Prices, schema_id: str, inputs: Mapping[str, Any]) -> int:
    """What a job with these inputs costs."""
    return price(prices, schema_id, count_tokens(inputs), minutes_of(schema_id, inputs))


def minutes_of(schema_id: str, inputs: Mapping[str, Any]) -> Fraction:
    """How long a sandbox job may run; nothing of all others."""
    if schema_id != SANDBOX:
        return Fraction(0)
    return Fraction(inputs.get("sandbox", {}).get("resources", {}).get("timeout_secs", 60)) / 60


def _exact(msats: float) -> Fraction:
    # An announcement may say any number, and the largest ones cannot be added.
    return Fraction(min(msats, MAX_MSATS))


class Quoted(Struct, eq=False):
    """A quote, whose job it is for, and how it stands."""

    quote: Quote
    # Of the request that it was made for.
    request_id: str
    state: QuoteState = QuoteState.CREATED
    # Other requests of the buyer with the same key: they were told the same, and are not done beside it.
    repeats: list[str] = []
    buyer: str = ""

    @property
    def can_be_paid(self) -> bool:
        """Whether it waits for its money."""
        return self.state in {QuoteState.CREATED, QuoteState.UNPAID}

    @property
    def requests(self) -> tuple[str, ...]:
        """All requests that wait for it."""
        return (self.request_id, *self.repeats)

    def become(self, state: QuoteState) -> None:
        """Go on; ``BadStep`` if there is no such way."""
        if state not in _STEPS[self.state]:
            raise BadStep(f"a quote that is {self.state} cannot become {state}")
        self.state = state


def quote_id_of(buyer: str, key: str, request_id: str) -> str:
    """The name of a quote: another one for another buyer, key or request."""
    return hashlib.sha256(f"{buyer}\n{key}\n{request_id}".encode()).hexdigest()


class Quotes:
    """All quotes of a provider. Keys belong to buyers: one cannot take another's."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], Quoted] = {}
        self._by_id: dict[str, Quoted] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def known(self, buyer: str, key: str, job_hash: str, now_ms: int) -> Quoted | None:
        """The quote of this key that can be paid, if there is one. ``KeyTaken`` if it is another job's, is paid and not
        done yet, or the buyer's own key was used before; a key that is only the job's hash can be used again after
        that, since a job can be bought twice.
        """
        found = self._by_key.get((buyer, key))
        if found is None:
            return None
        if found.quote.job_hash != job_hash:
            raise KeyTaken("this key was used for another job")
        if found.state is QuoteState.PENDING:
            raise KeyTaken(f"what it asks for was paid as {found.request_id}")
        if found.state in OPEN and now_ms < found.quote.expires_ms:
            return found
        if found.state is QuoteState.PAID and key != job_hash:
            raise KeyTaken(f"what this key asks for was paid and done as {found.request_id}")
        return None

    def add(self, buyer: str, request_id: str, quote: Quote) -> Quoted:
        """A new one, after ``need_room``."""
        self.need_room(buyer)
        made = Quoted(quote, request_id, buyer=buyer)
        self._by_key[buyer, quote.key] = self._by_id[quote.quote_id] = made
        return made

    def need_room(self, buyer: str) -> None:
        """See that one more quote of a buyer can be kept: the oldest that is over goes, of those that were paid the
        last; ``NoRoom`` if there is none, or the buyer has his share.
        """
        if sum(one.buyer == buyer and one.state in OPEN for one in self._by_id.values()) >= MAX_OPEN_OF_BUYER:
            raise NoRoom(f"{MAX_OPEN_OF_BUYER} quotes of yours are open; pay them, or take the requests back")
        if len(self._by_id) < MAX_QUOTES:
            return
        over = [one for one in self._by_id.values() if one.state not in OPEN]
        if not over:
            raise NoRoom("too many quotes are open; try again later")
        gone = next((one for one in over if one.state is not QuoteState.PAID), over[0])
        del self._by_id[gone.quote.quote_id]
        if self._by_key.get((gone.buyer, gone.quote.key)) is gone:
            del self._by_key[gone.buyer, gone.quote.key]

    def of(self, quote_id: str) -> Quoted | None:
        """One by its name."""
        return self._by_id.get(quote_id)

    def expire(self, now_ms: int) -> list[Quoted]:
        """Those whose time is over with this moment: the one place that says so, and each of them once."""
        found = [one for one in self._by_id.values() if one.can_be_paid and now_ms >= one.quote.expires_ms]
        for one in found:
            one.become(QuoteState.EXPIRED)
        return found

"""Quotes: what a job costs by the announced prices, and how an offer stands until it is paid or over.

Pure. Owns the price of a job, the states of a quote and the book of quotes, in which one key of one buyer is one quote.
Does not own invoices or money; whoever moves money says here what became of it.

::

    CREATED ──asked──> UNPAID ──held──> PENDING ──released──> PAID
                         │                 └────refunded────> FAILED
                         └──time over──> EXPIRED

Invariant: a quote goes along these arrows only, and the same key gives the same quote while it is open.
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

# How long an offer holds (silent point 11 of OpenAgents).
EXPIRY_S: Final = 600
# Quotes that are kept of all buyers: what waits for payment is far less.
MAX_QUOTES: Final = 4096
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
        """The open quote of this key, if there is one. ``KeyTaken`` if it is another job's, or the buyer's own key was
        used before; a key that is only the job's hash can be used again, since a job can be bought twice.
        """
        found = self._by_key.get((buyer, key))
        if found is None:
            return None
        self._expire(found, now_ms)
        if found.quote.job_hash != job_hash:
            raise KeyTaken("this key was used for another job")
        if found.state in OPEN:
            return found
        if found.state is QuoteState.PAID and key != job_hash:
            raise KeyTaken(f"what this key asks for was paid and done as {found.request_id}")
        return None

    def add(self, buyer: str, request_id: str, quote: Quote) -> Quoted:
        """A new one. The oldest that is over goes where there are too many."""
        made = Quoted(quote, request_id)
        self._by_key[buyer, quote.key] = self._by_id[quote.quote_id] = made
        if len(self._by_id) > MAX_QUOTES:
            over = next((one for one in self._by_key.items() if one[1].state not in OPEN), None)
            name, gone = over or next(iter(self._by_key.items()))
            del self._by_key[name]
            self._by_id.pop(gone.quote.quote_id, None)
        return made

    def of(self, quote_id: str) -> Quoted | None:
        """One by its name."""
        return self._by_id.get(quote_id)

    def expire(self, now_ms: int) -> list[Quoted]:
        """Those whose time is over with this moment."""
        return [one for one in list(self._by_id.values()) if self._expire(one, now_ms)]

    def _expire(self, one: Quoted, now_ms: int) -> bool:
        if one.state in {QuoteState.CREATED, QuoteState.UNPAID} and now_ms >= one.quote.expires_ms:
            one.become(QuoteState.EXPIRED)
            return True
        return False

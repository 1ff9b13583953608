"""Whom a job that is being bought is asked of next, and the signed request for him.

Pure. Owns the choice among those who announce themselves (``discovery`` says in which order) and the words for a job
that nobody is left to ask for. Does not own when somebody is asked (``buyer``).

Invariant: a provider is asked once for a job, and we ask ourselves only if that is configured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from trunkline.config import Nostr
from trunkline.edges.nostr import orders
from trunkline.edges.nostr.discovery import Book
from trunkline.edges.nostr.events import signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.orders import Order, Request
from trunkline.jobs.verification import JobVerdict
from trunkline.model import Fault, Now


class Asking:
    """Chooses among those in the book."""

    def __init__(self, settings: Nostr, signer: Signer, book: Book, entropy: Callable[[int], bytes]) -> None:
        self._settings = settings
        self._signer = signer
        self._book = book
        self._entropy = entropy

    def next(self, order: Order, open_jobs: Counter[str]) -> tuple[str, int]:
        """Whom to ask now, and how many could be asked later; ``open_jobs`` is what each of them is at."""
        asked = {request.provider for request in order.requests.values()}
        if order.named:
            return ("" if order.named in asked | self._excluded() else order.named), 0
        choice = self._book.choice(order.need, asked | self._excluded(), open_jobs)
        possible = len(order.results) + len(order.open_requests()) + len(choice.ready) + choice.busy
        if possible < order.quorum:
            return "", 0  # there can never be enough that agree
        return (choice.ready[0].provider if choice.ready else ""), choice.busy

    def request(self, order: Order, provider: str, now: Now) -> Request:
        """What one is asked; ``TooLarge`` if relays do not carry it."""
        nonce = self._entropy(16).hex()
        draft = orders.draft_of(order, provider, self._settings, self._signer, nonce, int(now.wall))
        return Request(signed(draft, self._signer), provider, "recording", now.mono + order.patience_s)

    def nobody_left(self, order: Order, verdict: JobVerdict | None) -> Fault:
        """Why a call fails for which nobody is left to ask."""
        excluded, choice = self._excluded(), self._book.choice
        is_ours = bool(excluded and (order.named or choice(order.need, frozenset()).ready))
        return orders.nobody_left(order, verdict, len(choice(order.need, excluded).ready), is_ours=is_ours)

    def _excluded(self) -> frozenset[str]:
        return frozenset() if self._settings.buyer.from_ourselves else frozenset({self._signer.public})

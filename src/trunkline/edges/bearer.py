"""Bearer tokens of requests: how one is read, whose it is, and what a guesser's refusals cost him.

Owns the header's form, the one way in which every door asks the exchange about a token (``whose``), and the failures of
each address (``Throttle``). How a refusal looks on its wire, each edge says.

Invariant: a token that is missing, empty, unknown, revoked or of another edge is nobody's, and looking takes as long.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from trunkline.edges.exchange import Feed
from trunkline.events import Noticed
from trunkline.model import Principal, is_told_of

# A refusal waits 0.1 s, doubling up to this, while its address keeps failing: a mistyped token costs nothing.
MAX_DELAY_S: Final = 5.0
# An address that was quiet for so long starts anew; on one machine everybody shares an address.
FORGET_AFTER_S: Final = 60.0
# Addresses whose failures are remembered, and refusals that wait at the same time; above it they are answered at once.
MAX_ADDRESSES: Final = 256
MAX_WAITING: Final = 64


def bearer_token(values: Sequence[bytes]) -> bytes | None:
    """The token of an ``Authorization: Bearer …`` header; None without one, and empty if it is something else."""
    if not values:
        return None
    scheme, _, token = values[0].partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" and len(values) == 1 else b""


def token_sha256(token: bytes | None) -> str:
    """What the exchange knows a token by. Without a token the same work is done, so that time says nothing."""
    return hashlib.sha256(token or b"").hexdigest()


def whose(feed: Feed, edge: str, token: bytes | None) -> Principal | None:
    """Who comes in at an edge with this token; None if nobody does."""
    found = feed.identify(edge, token_sha256(token))
    return found if token else None


class Throttle:
    """Failed attempts for each address: they slow its next refusal, never anybody's success (decision 17)."""

    def __init__(self, feed: Feed, edge: str) -> None:
        self._feed = feed
        self._edge = edge
        self._seen: dict[str, tuple[int, float]] = {}
        self._waiting = 0

    def count(self, address: str) -> int:
        """How many failures in a row this is. The record hears of some (``is_told_of``)."""
        now = self._feed.now().mono
        earlier, at = self._seen.pop(address, (0, now))
        count = earlier + 1 if now - at < FORGET_AFTER_S else 1
        self._seen[address] = (count, now)
        if len(self._seen) > MAX_ADDRESSES:
            del self._seen[next(iter(self._seen))]
        if is_told_of(count):
            self._feed.feed([Noticed("auth.failed", self._edge, who=address, detail=f"{count} in a row")])
        return count

    async def refused(self, address: str) -> None:
        """One more failure: wait as long as its refusal should take."""
        count = self.count(address)
        if count > 1 and self._waiting < MAX_WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(min(MAX_DELAY_S, 0.1 * 2.0 ** min(count - 2, 16)))
            finally:
                self._waiting -= 1

"""Bytes that are kept for somebody on the other side of a connection: each identity's share, and the sum over all.

Owns the counts. Does not own what is kept, nor how a refusal is said. What is on its way in (bodies, messages on a
WebSocket) and what waits to be read (answers) have budgets of their own.

Invariant: what was taken is given back, once, when it is no longer kept.
"""

from __future__ import annotations

from typing import Final

# What one identity may have on its way in, and as much unread: what its open calls may hold (``open_bytes``).
MAX_SHARE_BYTES: Final = 67_108_864
# Of all identities together: four that use all of theirs.
MAX_SUM_BYTES: Final = 4 * MAX_SHARE_BYTES
# The first bytes of a body, a message or an answer count for nobody, so that ordinary requests get through whatever
# others do: 512 connections keep 32 MiB of them.
FREE_BYTES: Final = 65_536

# Where an application finds, in the scope, the share of who asks.
SHARE: Final = "trunkline.share"


class Shares:
    """One budget."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._sum = 0

    def held(self, who: str) -> int:
        """What is kept for somebody now."""
        return self._held.get(who, 0)

    def change(self, who: str, size: int) -> None:
        """Count so much more, or less."""
        self._sum += size
        left = self._held.get(who, 0) + size
        if left:
            self._held[who] = left
        else:
            del self._held[who]

    def has_room(self, who: str, size: int) -> bool:
        """Whether so much more fits."""
        return self.held(who) + size <= MAX_SHARE_BYTES and self._sum + size <= MAX_SUM_BYTES


class Share:
    """What one body, message or answer takes of its identity's share. ``set_size`` as it grows, ``end`` at last."""

    __slots__ = ("_shares", "_taken", "_who")

    def __init__(self, shares: Shares, who: str) -> None:
        self._shares = shares
        self._who = who
        self._taken = 0

    def beside(self) -> Share:
        """One more of the same identity."""
        return Share(self._shares, self._who)

    def try_set_size(self, size: int) -> bool:
        """Count it as so large; False if that is more than there is room for."""
        more = max(0, size - FREE_BYTES) - self._taken
        if more > 0 and not self._shares.has_room(self._who, more):
            return False
        self.set_size(size)
        return True

    def set_size(self, size: int) -> None:
        """Count it as so large, whether or not there is room."""
        more = max(0, size - FREE_BYTES) - self._taken
        if more:
            self._taken += more
            self._shares.change(self._who, more)

    def end(self) -> None:
        """It is not kept any more."""
        self.set_size(0)

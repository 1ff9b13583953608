"""What is sent to a server at a URL and asks for nothing: refusals of what it wants of us, pongs, cancellations.

Owns the order in which they leave, how many are on their way, and how long one may take. Does not own how one is sent
(``remote``). Each is a request of HTTP, and most of them are caused by the server: without a bound it decides how many
connections we open.

Invariant: at most ``AT_ONCE`` are on their way and ``MAX_WAITING`` wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline.edges.background import Background
from trunkline.edges.mounts.session import Outgoing

# One would do; with a few, one that the server is slow to take does not hold up a cancellation.
AT_ONCE: Final = 4
# All calls that a server may have at once can be canceled together (256), and it may ask us as much besides.
MAX_WAITING: Final = 512
# The answer to a notification is an empty one (HTTP 202): no work is waited for.
DEADLINE_S: Final = 10.0


class Notices:
    """Those of one conversation at a time. ``clear`` when it is over."""

    def __init__(self, background: Background, send: Callable[[Outgoing], Awaitable[None]]) -> None:
        self._background = background
        self._send = send
        self._waiting: deque[Outgoing] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    def try_put(self, one: Outgoing) -> bool:
        """Send this when its turn comes; False if too many wait already."""
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append(one)
        if len(self._senders) < AT_ONCE:
            sender = self._background.spawn(self._send_waiting())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return True

    def clear(self) -> None:
        """Nothing of this is sent any more."""
        self._waiting.clear()
        for sender in self._senders:
            sender.cancel()
        self._senders.clear()

    async def _send_waiting(self) -> None:
        while self._waiting:
            # One that a server does not take in time is lost to it; nothing of ours waits for the answer.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEADLINE_S):
                    await self._send(self._waiting.popleft())

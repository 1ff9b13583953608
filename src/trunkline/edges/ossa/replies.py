"""What is said to an agent that asked, and which results it is owed. Pure.

Owns how much may be owed to one agent, and for how long: it may never connect to be told. Of more than that the oldest
is let go; a repeat of the command still tells its result. Does not own what is on record of it (``asking``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from trunkline.edges.ossa.messages import Message

MAX_OWED: Final = 1024
MAX_OWED_BYTES: Final = 16_777_216
OWED_LIVES_MS: Final = 86_400_000


class Saying(Struct, frozen=True):
    """A message for the agent: for those who wait for it by these tickets, or, without any, wherever it is reached."""

    message: Message | None
    tickets: tuple[int, ...] = ()
    is_sealed: bool = False
    # It leaves once what it tells is on disk: a repeat is told the same, also after a power loss.
    after_disk: bool = False


class Owed(Struct, frozen=True):
    """A result that was not acknowledged. ``ref`` names the command on record; empty if it is not there."""

    ref: str
    saying: Saying
    message: Message
    since_ms: int


class OwedResults:
    """What one agent is owed, oldest first, by the id of the message."""

    def __init__(self) -> None:
        self._owed: dict[str, Owed] = {}
        self._bytes = 0

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._owed

    def __iter__(self) -> Iterator[Saying]:
        return (one.saying for one in self._owed.values())

    def __len__(self) -> int:
        return len(self._owed)

    def add(self, ref: str, saying: Saying, message: Message, ms: int) -> None:
        """One more; the same result again is owed from now on."""
        earlier = self.drop(message.message_id)
        self._owed[message.message_id] = Owed(ref or ("" if earlier is None else earlier.ref), saying, message, ms)
        self._bytes += message.size

    def drop(self, message_id: str) -> Owed | None:
        """It is not owed any more; what it was, if it was."""
        found = self._owed.pop(message_id, None)
        if found is not None:
            self._bytes -= found.message.size
        return found

    def drop_overdue(self, ms: int) -> Iterator[Owed]:
        """Let go of what nobody came for."""
        while self._owed:
            oldest = next(iter(self._owed.values()))
            is_too_much = len(self._owed) > MAX_OWED or self._bytes > MAX_OWED_BYTES
            if not is_too_much and ms - oldest.since_ms < OWED_LIVES_MS:
                return
            self.drop(oldest.message.message_id)
            yield oldest

    @property
    def drops_at_ms(self) -> int | None:
        """When the oldest is let go of."""
        return next(iter(self._owed.values())).since_ms + OWED_LIVES_MS if self._owed else None
